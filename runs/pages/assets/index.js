// The list of all runs: its search, its columns, filter, sort, select, compare.
// The search has the grammar of `python -m runs list --where` and its error messages; besides, a word alone is searched
// in the run's name, id, tags and settings, and `and` may be left out.
"use strict";
(function () {
  const SIGNS = ["=", "!=", "<", "<=", ">", ">=", "~"];
  const PLAIN = { true: true, false: false, none: null, null: null };
  const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
  const DEEPEST = 50; // brackets and nots inside one another
  const FIELDS = {
    began: (run) => EBT.date(run.began),
    ...Object.fromEntries(
      ["id", "name", "state", "attempts", "tags", "archived", "parent", "note", "rehearsal"].map((name) => [
        name,
        (run) => run[name],
      ]),
    ),
  };
  const axisColumns = () => ["step", "epoch", "flops", "seconds", ...Object.values(EBT.index.tasks).map(({ unit }) => unit)];

  class Mistake extends Error {
    constructor(sentence, start, end) {
      super(sentence);
      Object.assign(this, { start, end: Math.max(end, start + 1) });
    }
  }

  // [{kind: "sign" | "quoted" | "word" | "end", text, start, end}]
  function tokens(text) {
    const pattern = /\s*(?:(<=|>=|!=|==|[=<>~()])|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|([^\s"'()=<>~!]+))/y;
    const result = [];
    const length = text.trimEnd().length;
    let offset = 0;
    while (offset < length) {
      pattern.lastIndex = offset;
      const match = pattern.exec(text);
      if (!match) {
        const start = offset + /^\s*/.exec(text.slice(offset))[0].length;
        throw new Mistake("\"'".includes(text[start]) ? "this quote is not closed" : "write != here", start, start + 1);
      }
      const [whole, sign, quoted, word] = match;
      const end = offset + whole.length;
      const start = end - (sign || quoted || word).length;
      if (sign) result.push({ kind: "sign", text: sign === "==" ? "=" : sign, start, end });
      else if (quoted) result.push({ kind: "quoted", text: quoted.slice(1, -1).replace(/\\(.)/gs, "$1"), start, end });
      else result.push({ kind: "word", text: word, start, end });
      offset = end;
    }
    return [...result, { kind: "end", text: "", start: length, end: length + 1 }];
  }

  // A function that says whether a run fits.
  function parse(text) {
    const left = tokens(text);
    let depth = 0;
    const take = () => (left.length > 1 ? left.shift() : left[0]);
    const isSign = (token, sign) => token.kind === "sign" && token.text === sign;
    const isJoint = (token, ...joints) => token.kind === "word" && joints.includes(token.text.toLowerCase());

    function expression() {
      const parts = [conjunction()];
      while (isJoint(left[0], "or")) {
        take();
        parts.push(conjunction());
      }
      return (run) => parts.some((part) => part(run));
    }
    function conjunction() {
      const parts = [negation()];
      while (left[0].kind !== "end" && !isSign(left[0], ")") && !isJoint(left[0], "or")) {
        if (isJoint(left[0], "and")) take();
        parts.push(negation());
      }
      return (run) => parts.every((part) => part(run));
    }
    function negation() {
      const opening = left[0];
      const denied = isJoint(opening, "not");
      if (!denied && !isSign(opening, "(")) return comparison();
      take();
      if (++depth > DEEPEST) throw new Mistake(`this is nested more than ${DEEPEST} deep`, opening.start, opening.end);
      const part = denied ? negation() : expression();
      depth--;
      if (!denied && !isSign(take(), ")")) throw new Mistake("this bracket is not closed", opening.start, opening.end);
      return denied ? (run) => !part(run) : part;
    }
    function comparison() {
      const name = take();
      if (!["word", "quoted"].includes(name.kind) || isJoint(name, "and", "or", "not"))
        throw new Mistake("a setting or a metric belongs here, such as valid_loss<2", name.start, name.end);
      if (left[0].kind !== "sign" || !SIGNS.includes(left[0].text)) {
        const word = name.text.toLowerCase();
        return (run) => run.text.includes(word);
      }
      const [sign, value] = [take(), take()];
      if (!["word", "quoted"].includes(value.kind))
        throw new Mistake(
          `a value belongs after ${sign.text}: a number, a word, true, false or none`,
          value.start,
          value.end,
        );
      checkField(name);
      return compared(name, sign.text, value);
    }

    const fits = left[0].kind === "end" ? () => true : expression();
    if (left[0].kind !== "end") throw new Mistake("this bracket closes nothing", left[0].start, left[0].end);
    return fits;
  }

  const asList = (value) => (value === null || value === undefined ? [] : Array.isArray(value) ? value : [value]);

  function compared(name, sign, token) {
    const low = token.text.toLowerCase();
    const bare = token.kind === "word";
    const value = bare && low in PLAIN ? PLAIN[low] : bare && NUMBER.test(token.text) ? Number(token.text) : token.text;
    const values = (run) => asList(EBT.valueOf(run, name.text));
    if (sign === "~") {
      let pattern;
      try {
        pattern = new RegExp(token.text, "i");
      } catch (error) {
        const why = `this is no regular expression (${error.message}): put a backslash before signs that are meant as such`;
        throw new Mistake(why, token.start, token.end);
      }
      return (run) => values(run).some((actual) => pattern.test(EBT.textOf(actual)));
    }
    if (sign === "=" || sign === "!=") {
      const same = (actual) =>
        typeof actual === "number" && typeof value === "number"
          ? actual === value
          : EBT.textOf(actual).toLowerCase() === EBT.textOf(value).toLowerCase();
      const equal = (run) => (value === null ? !values(run).length : values(run).some(same));
      return sign === "=" ? equal : (run) => !equal(run);
    }
    const recorded = EBT.index.runs.flatMap(values);
    if (typeof value === "string" && recorded.length && !recorded.some((actual) => typeof actual === "string"))
      throw new Mistake(`${name.text} is a number: compare it with one.`, name.start, token.end);
    const holds = { "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b }[sign];
    return (run) =>
      values(run).some((actual) =>
        typeof actual === "number" && typeof value === "number"
          ? holds(actual, value)
          : typeof actual === "string" && holds(actual, token.text),
      );
  }

  // The value of a field of a search or a column; null or undefined where the run has none.
  EBT.valueOf = function (run, field) {
    if (field in FIELDS) return FIELDS[field](run);
    if (axisColumns().includes(field)) return run[field];
    const metrics = run.metrics || {};
    if (field.startsWith("best.")) return (metrics[field.slice(5)] || [])[1];
    return run.settings[field] ?? EBT.index.shared[field] ?? (metrics[field] || [])[0];
  };

  const names = () => [
    ...new Set([
      ...Object.keys(FIELDS),
      ...axisColumns(),
      ...EBT.index.settings,
      ...Object.keys(EBT.index.shared),
      ...EBT.index.runs.flatMap((run) => Object.keys(run.metrics || {})),
    ]),
  ];

  function checkField({ text, start, end }) {
    const begins = text.startsWith("best.") ? "best." : "";
    const field = text.slice(begins.length);
    const all = names();
    if (!EBT.index.runs.length || all.includes(field)) return;
    const near = all
      .map((name) => [editDistance(name, field) / Math.max(name.length, field.length), begins + name])
      .filter(([share]) => share <= 0.3)
      .sort(([a], [b]) => a - b)
      .slice(0, 3)
      .map(([, name]) => name);
    const last = near.pop();
    const advice = last ? `did you mean ${near.length ? `${near.join(", ")} or ${last}` : last}?` : "see docs/runs.md.";
    throw new Mistake(`no run has a setting or metric ${text}: ${advice}`, start, end);
  }

  // The edit distance of two words.
  function editDistance(a, b) {
    let row = Array.from({ length: b.length + 1 }, (_, index) => index);
    for (let i = 1; i <= a.length; i++) {
      const next = [i];
      for (let j = 1; j <= b.length; j++)
        next.push(Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1)));
      row = next;
    }
    return row[b.length];
  }

  // {fits: a function of a run}, or {mistake: a sentence, and the text with a mark under the mistake}
  EBT.search = function (text) {
    try {
      return { fits: parse(text) };
    } catch (error) {
      if (!(error instanceof Mistake)) throw error;
      const sentence = /[.?]$/.test(error.message) ? error.message : `${error.message}.`;
      const mark = " ".repeat(error.start) + "^".repeat(error.end - error.start);
      return { mistake: `${sentence}\n  ${text}\n  ${mark}` };
    }
  };
})();

(function () {
  const h = EBT.h;
  const settingColumns = () => (innerWidth < 1400 ? 2 : innerWidth < 1600 ? 4 : 6);
  // A value of a metric; which: 0 is the last, 1 the best. nameOf: its column, given the task of a run.
  const metric = (nameOf, which) => (run) => {
    const name = nameOf(EBT.index.tasks[run.task]);
    return run.metrics && run.metrics[name] ? run.metrics[name][which] : null;
  };
  // The meaning of a column for each of the tasks, as text.
  const meaning = (nameOf, words) => [
    ...new Set(
      Object.values(EBT.index.tasks)
        .filter((task) => task.measures[nameOf(task)])
        .map((task) => {
          const { title, unit, better } = task.measures[nameOf(task)];
          const word = words.replace("best", better === "higher" ? "highest" : "lowest");
          return `${word} ${title}${unit ? `, ${unit}` : ""}`;
        }),
    ),
  ].join("; ");
  const headline = (task) => task.headline;
  const training = (task) => task.columns.train;
  const gain = (task) => task.facts.find((name) => name.endsWith("_gain"));
  const label = () => [...new Set(Object.values(EBT.index.tasks).map((task) => task.label))].join(", ");
  // A value as text, by the meaning of its column for the task of its run.
  const measured = (nameOf, decimals) => (value, run) => {
    const task = EBT.index.tasks[run.task];
    return EBT.measured(value, task.measures[nameOf(task)], decimals);
  };
  const setting = (name) => (run) => run.settings[name];

  EBT.columns = function () {
    const { runs, settings } = EBT.index;
    const hasValues = (column) => runs.some((run) => ![null, undefined, ""].includes(column.value(run)));
    const number = (key, title, value, show, hint) => ({
      key,
      title,
      value,
      show: (run) => show(value(run), run),
      kind: "number",
      hint,
    });
    return [
      { key: "name", title: "Run", value: (run) => run.name.toLowerCase(), show: nameCell, kind: "name" },
      { key: "state", title: "State", value: (run) => run.state, show: stateCell },
      number(
        "began",
        "Began",
        (run) => run.began,
        (value) => EBT.date(value).slice(5),
      ),
      {
        key: "spark",
        title: EBT.capitalize(label()),
        value: (run) => (run.spark && run.spark.length ? run.spark[run.spark.length - 1] : null),
        show: (run) => {
          const task = EBT.index.tasks[run.task];
          return spark(run.spark, EBT.isShare(task.measures[task.headline]));
        },
        kind: "spark",
      },
      number(
        "best",
        "Best valid.",
        metric(headline, 1),
        measured(headline),
        meaning(headline, "best"),
      ),
      number(
        "last",
        "Last valid.",
        metric(headline, 0),
        measured(headline),
        meaning(headline, "last"),
      ),
      number(
        "train",
        "Last train",
        metric(training, 0),
        measured(training),
        meaning(training, "last"),
      ),
      number(
        "gain",
        "Thinking",
        metric(gain, 0),
        measured(gain, 3),
        `${meaning(gain, "last")}: what the later descent steps gain`,
      ),
      ...settings
        .slice(0, settingColumns())
        .map((name) => ({
          key: `set:${name}`,
          title: name,
          value: setting(name),
          show: (run) => settingText(setting(name)(run)),
          kind: runs.every((run) => ["number", "undefined"].includes(typeof run.settings[name]))
            ? "number setting"
            : "setting",
          hint: `--${name}`,
        })),
      number(
        "step",
        "Steps",
        (run) => run.step,
        (value) => EBT.number(value),
        "optimizer steps trained",
      ),
      number("seconds", "Time", (run) => run.seconds, EBT.shortDuration, "training time, without validation"),
      number("flops", "FLOPs", (run) => run.flops, EBT.withPrefix, "training FLOPs"),
    ].filter(hasValues);
  };

  EBT.withLineBreaks = (title) => title.split("_").flatMap((part, index) => (index ? ["_", h("wbr"), part] : [part]));
  const settingText = (value) =>
    typeof value === "number" ? EBT.number(value, 5).replaceAll(",", "") : value === undefined ? "" : EBT.textOf(value);

  function nameCell(run) {
    const name = run.page
      ? h("a", { href: EBT.runLink(run.file) }, run.name)
      : h("span", { title: "python -m runs page writes its page" }, run.name);
    const tags = run.tags.map((tag) => h("span", { class: "tag" }, tag));
    const marks = [
      run.alarms
        ? h("span", { class: "mark warn", title: EBT.plural(run.alarms, "alarm") }, `\u26A0 ${run.alarms}`)
        : null,
      run.rehearsal
        ? h("span", { class: "mark", title: `${run.rehearsal}: its losses are no result` }, "not ranked")
        : null,
      run.notes ? h("span", { class: "mark", title: EBT.plural(run.notes, "note") }, `\u270E ${run.notes}`) : null,
    ];
    return [h("div", { class: "name" }, name, tags, marks), h("div", { class: "id" }, run.id)];
  }

  function stateCell(run) {
    const share =
      run.state === "running" && run.total ? ` ${Math.round((100 * (run.step || 0)) / run.total)}\u2009%` : "";
    return EBT.state(run.state, share, run.cause || null);
  }

  // A loss on a logarithmic scale, a share on a linear one.
  function spark(values, linear) {
    if (!values || values.length < 2) return "";
    const heights = values.map((value) => (linear ? value : Math.log(Math.max(value, 1e-6))));
    const low = Math.min(...heights),
      range = Math.max(...heights) - low || 1;
    const points = heights.map(
      (y, index) =>
        `${((index / (heights.length - 1)) * 84 + 2).toFixed(1)},${(20 - ((y - low) / range) * 16).toFixed(1)}`,
    );
    const [x, y] = points[points.length - 1].split(",");
    return h(
      "svg",
      { viewBox: "0 0 90 24", width: 90, height: 24, role: "img", "aria-label": `${label()} by step` },
      h("polyline", { points: points.join(" ") }),
      h("circle", { cx: x, cy: y, r: 2.2 }),
    );
  }
})();

(function () {
  const h = EBT.h;
  const PAGE = 300; // rows drawn at once; more come as one scrolls
  const view = { query: "", state: "", sort: "began", down: true, archived: false, rows: PAGE, selected: new Set() };
  let columns = [];

  function matching() {
    const { fits, mistake } = EBT.search(view.query);
    document.getElementById("mistake").textContent = mistake || "";
    const matches = EBT.index.runs.filter(
      (run) => fits && (view.archived || !run.archived) && (!view.state || run.state === view.state) && fits(run),
    );
    const column = columns.find((column) => column.key === view.sort) || columns[0];
    const sign = view.down ? -1 : 1;
    return matches.sort((left, right) => {
      const [a, b] = [column.value(left), column.value(right)];
      const [noA, noB] = [a, b].map((value) => value === null || value === undefined || value === "");
      if (noA || noB) return noA - noB; // runs without a value come last, either way
      return (
        sign *
        (typeof a === "number" && typeof b === "number"
          ? a - b
          : String(EBT.textOf(a)).localeCompare(String(EBT.textOf(b)), "en", { numeric: true }))
      );
    });
  }

  function row(run) {
    const box = h("input", {
      type: "checkbox",
      "aria-label": `choose ${run.name}`,
      checked: view.selected.has(run.file),
      onchange: (event) => choose(run.file, event.target),
    });
    return h(
      "tr",
      { "data-file": run.file, class: run.archived ? "archived" : null },
      h("td", { class: "choose" }, box),
      columns.map((column) => h("td", { class: column.kind || null }, column.show(run))),
    );
  }

  function choose(file, box) {
    if (box.checked) view.selected.add(file);
    else view.selected.delete(file);
    box.closest("tr").classList.toggle("selected", box.checked);
    compareButton();
  }

  function compareButton() {
    const button = document.getElementById("compare");
    const count = view.selected.size;
    button.disabled = count < 2;
    button.textContent = count < 2 ? "Compare" : `Compare ${count} runs`;
    button.title = count < 2 ? "choose two runs or more" : "";
  }

  function body() {
    const matches = matching();
    const visible = matches.slice(0, view.rows);
    const rows = document.createDocumentFragment();
    for (const run of visible) rows.append(row(run));
    document.querySelector("tbody").replaceChildren(rows);
    for (const run of visible)
      if (view.selected.has(run.file))
        document.querySelector(`tr[data-file="${CSS.escape(run.file)}"]`).classList.add("selected");
    document.getElementById("more").hidden = matches.length <= view.rows;
    document.getElementById("count").textContent =
      matches.length === EBT.index.runs.length ? "" : `${EBT.plural(matches.length, "run")} shown`;
    document.getElementById("none").hidden = matches.length > 0 || document.getElementById("mistake").textContent !== "";
    for (const head of document.querySelectorAll("th[data-key]")) {
      head.setAttribute("aria-sort", head.dataset.key !== view.sort ? "none" : view.down ? "descending" : "ascending");
    }
    for (const button of document.querySelectorAll(".states button"))
      button.setAttribute("aria-pressed", String(button.dataset.value === view.state));
    const parameters = new URLSearchParams(
      Object.entries({ q: view.query, state: view.state, sort: view.sort, up: view.down ? "" : "1" }).filter(
        ([, value]) => value,
      ),
    );
    history.replaceState(null, "", `#${parameters}`);
  }

  function sortBy(column) {
    const same = view.sort === column.key;
    // The best first: the largest of a metric of which more is better.
    const higher = Object.values(EBT.index.tasks).every((task) => task.measures[task.headline].better === "higher");
    const down = ["step", "seconds", "flops", "began", "gain", ...(higher ? ["best", "last", "train"] : [])];
    view.down = same ? !view.down : down.includes(column.key);
    view.sort = column.key;
    body();
  }

  EBT.render = function () {
    const { runs } = EBT.index;
    for (const run of runs) {
      run.text = [
        run.name,
        run.id,
        run.state,
        run.job,
        ...run.tags,
        ...Object.entries(run.settings).map(([name, value]) => `${name}=${EBT.textOf(value)}`),
      ]
        .join(" ")
        .toLowerCase();
    }
    columns = EBT.columns();
    const counts = new Map();
    for (const run of runs) if (!run.archived) counts.set(run.state, (counts.get(run.state) || 0) + 1);
    const archived = runs.filter((run) => run.archived).length;
    const states = [
      ["", `All ${runs.length - archived}`],
      ...[...counts].sort().map(([state, count]) => [state, `${EBT.capitalize(state)} ${count}`]),
    ];
    const search = h("input", {
      type: "search",
      id: "search",
      placeholder: `Search: name, tag, model_size=xs, ${(Object.values(EBT.index.tasks)[0] || { headline: "step" }).headline}<2`,
      value: view.query,
      "aria-label": "search runs",
      oninput: (event) => {
        view.query = event.target.value;
        view.rows = PAGE;
        body();
      },
    });
    const chips = EBT.segments("state", states, view.state, (value) => {
      view.state = value;
      view.rows = PAGE;
      body();
    });
    chips.classList.add("states");
    const compare = h("button", {
      type: "button",
      id: "compare",
      class: "primary",
      onclick: () => {
        location.href = `compare.html#${[...view.selected].join(",")}`;
      },
    });
    const heads = columns.map((column) =>
      h(
        "th",
        { "data-key": column.key, class: column.kind || null, scope: "col" },
        h(
          "button",
          { type: "button", title: column.hint || null, onclick: () => sortBy(column) },
          EBT.withLineBreaks(column.title),
        ),
      ),
    );
    document.getElementById("main").replaceChildren(
      EBT.header(
        "Runs",
        h("span", { class: "quiet" }, EBT.plural(runs.length, "run"), " ", h("span", { id: "count" })),
      ),
      h(
        "div",
        { class: "toolbar" },
        search,
        chips,
        archived
          ? EBT.toggle(
              `archived (${archived})`,
              view.archived,
              (on) => {
                view.archived = on;
                body();
              },
              "archived",
            )
          : null,
        compare,
      ),
      h("pre", { id: "mistake", role: "alert" }),
      h(
        "div",
        { class: "table" },
        h("table", { class: "runs" }, h("thead", {}, h("tr", {}, h("th", { class: "choose" }), heads)), h("tbody")),
      ),
      h(
        "p",
        { id: "none", class: "quiet", hidden: true },
        runs.length ? "No run fits." : "No runs yet: python train_model.py makes the first.",
      ),
      h(
        "p",
        { id: "more", hidden: true },
        h(
          "button",
          {
            type: "button",
            onclick: () => {
              view.rows += PAGE;
              body();
            },
          },
          "Show more",
        ),
      ),
    );
    new IntersectionObserver((seen) => {
      if (seen.some((entry) => entry.isIntersecting)) {
        view.rows += PAGE;
        body();
      }
    }).observe(document.getElementById("more"));
    compareButton();
    body();
  };

  const parameters = new URLSearchParams(location.hash.slice(1));
  Object.assign(view, {
    query: parameters.get("q") || "",
    state: parameters.get("state") || "",
    sort: parameters.get("sort") || "began",
    down: !parameters.get("up"),
  });
  EBT.sources = () => [`${EBT.base}runs.js`];
  EBT.render();
})();
