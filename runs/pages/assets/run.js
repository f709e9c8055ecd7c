// The page of one run: what it says in words and tables, then its charts.
"use strict";
(function () {
  const h = EBT.h;
  const file = document.body.dataset.file;
  const open = new Set(); // titles of the sections that are unfolded
  const SHOWN = 6; // alarms, the newest

  function fact(label, value, note) {
    return value === "" || value === null || value === undefined
      ? null
      : h("div", { class: "fact" }, h("dt", {}, label), h("dd", {}, value), note ? h("small", {}, note) : null);
  }

  EBT.facts = function (run, curves) {
    const series = curves.series;
    const final = (name) => (series[name] ? series[name].y.filter((y) => y !== null).pop() : null);
    const end = (axis) => (curves.places[axis] ? curves.places[axis][curves.places[axis].length - 1] : null);
    const { headline, columns, facts, measures, unit } = run.task;
    const [best, at] = run.best || [];
    const words = (name) => series[name] || measures[name];
    const text = (name) => EBT.measured(final(name), words(name), 3);
    const unitOf = (name) => EBT.unitOf(words(name));
    const bestNote = [unitOf(headline), `step ${EBT.number(at)}`].filter(Boolean).join(", ");
    const plain = (name) => EBT.capitalize(words(name).title.replace(/^validation /, ""));
    const total =
      run.heartbeat.total_steps ?? (run.settings.find((setting) => setting.name === "max_steps") || {}).value;
    return h(
      "dl",
      { class: "facts" },
      fact(
        `Best ${words(headline).title}`,
        EBT.measured(best, words(headline)),
        best === undefined ? "" : bestNote,
      ),
      fact(`Last ${words(headline).title}`, EBT.measured(final(headline), words(headline)), unitOf(headline)),
      fact(
        `Last ${words(columns.train).title}`,
        EBT.measured(final(columns.train), words(columns.train)),
        unitOf(columns.train),
      ),
      facts.map((name) =>
        fact(
          plain(name),
          series[name] ? text(name) : "",
          EBT.isShare(words(name)) ? "validation, last" : [words(name).unit, "validation"].filter(Boolean).join(", "),
        ),
      ),
      fact("Steps", EBT.number(end("step")), total ? `of ${EBT.number(total)}` : ""),
      fact(EBT.capitalize(unit), EBT.withPrefix(end(unit))),
      fact("Training time", EBT.duration(end("seconds"))),
      fact("Cost", EBT.withPrefix(end("flops")), "FLOPs"),
    );
  };

  // Why it did not finish.
  EBT.failure = (run) =>
    run.failure
      ? h(
          "div",
          { class: "failure", role: "alert" },
          h(
            "p",
            {},
            h("b", {}, EBT.capitalize(run.state)),
            Number.isFinite(run.failure.step) ? ` at step ${EBT.number(run.failure.step)}` : "",
            run.failure.cause === run.state ? "" : `: ${run.failure.cause}`,
          ),
          run.failure.line ? h("code", {}, run.failure.line) : null,
        )
      : null;

  const block = (title, text) =>
    text
      ? h("pre", { class: title === "Code diff" ? "diff" : null }, title === "Code diff" ? EBT.diffLines(text) : text)
      : null;

  function foldable(title, note, ...content) {
    const inside = content.flat().filter(Boolean);
    if (!inside.length) return null;
    const details = h(
      "details",
      { open: open.has(title), ontoggle: (event) => (event.target.open ? open.add(title) : open.delete(title)) },
      h("summary", {}, title, note ? h("span", { class: "quiet" }, note) : null),
      inside,
    );
    return details;
  }

  function settingsTable(settings) {
    const line = (setting) =>
      h(
        "tr",
        { class: setting.changed ? "changed" : null, title: setting.help || null },
        h("td", {}, `--${setting.name}`),
        h("td", {}, EBT.textOf(setting.value)),
        h("td", { class: "quiet" }, setting.changed ? EBT.textOf(setting.default) : ""),
        h("td", { class: "quiet" }, setting.help),
      );
    const table = (rows) => EBT.table(["flag", "value", "default", ""], rows.map(line));
    const changed = settings.filter((setting) => setting.changed).sort((a, b) => b.compared - a.compared);
    return h(
      "section",
      { class: "card wide" },
      h(
        "div",
        { class: "head" },
        h("h3", {}, "Settings"),
        h("span", { class: "quiet" }, changed.length ? `${changed.length} unlike the default` : "all as the default"),
      ),
      changed.length ? table(changed) : null,
      foldable("All settings", ` ${settings.length}`, table(settings)),
    );
  }

  EBT.record = function (run) {
    const journal = run.journal.map((note) =>
      h("li", {}, h("time", {}, EBT.date(note.time)), h("span", { class: "tag" }, note.tag), h("p", {}, note.text)),
    );
    const samples = run.samples
      .slice()
      .reverse()
      .map((sample) =>
        h(
          "li",
          {},
          h("time", {}, `step ${EBT.number(sample.step)}`),
          h("p", { class: "sample" }, h("b", {}, EBT.textOf(sample.prompt ?? "")), EBT.textOf(sample.text ?? "")),
        ),
      );
    const attempts = EBT.table(
      ["", "began", "ended", "steps", "how it ended", "host", "job"],
      run.attempts.map((attempt) =>
        h(
          "tr",
          {},
          [
            attempt.attempt,
            attempt.start,
            attempt.end || "",
            `${attempt.first_step ?? ""} \u2013 ${attempt.last_step ?? ""}`,
            attempt.cause || "",
            attempt.host || "",
            attempt.job || "",
          ].map((text) => h("td", {}, EBT.textOf(text))),
        ),
      ),
    );
    const lineage = run.lineage.map((step) =>
      h(
        "li",
        {},
        `${EBT.textOf(step.how || "made")} from `,
        step.here ? h("a", { href: EBT.runLink(encodeURIComponent(step.parent)) }, step.name) : step.parent,
        step.changes && Object.keys(step.changes).length
          ? h(
              "code",
              {},
              Object.entries(step.changes)
                .map(([name, value]) => `--${name} ${EBT.textOf(value)}`)
                .join("  "),
            )
          : null,
      ),
    );
    const link = (name) => h("a", { class: "file", href: EBT.runFile(file, name) }, name);
    const pictures = run.pictures.map((name) =>
      h(
        "figure",
        {},
        h("a", { href: EBT.runFile(file, name) }, h("img", { src: EBT.runFile(file, name), alt: name })),
        h("figcaption", {}, name),
      ),
    );
    const code = run.code;
    return [
      journal.length
        ? h("section", { class: "card wide" }, h("h3", {}, "Journal"), h("ul", { class: "notes" }, journal))
        : null,
      samples.length
        ? h(
            "section",
            { class: "card wide" },
            h("h3", {}, "Samples"),
            h("ul", { class: "notes" }, samples.slice(0, 3)),
            samples.length > 3
              ? foldable("Earlier samples", ` ${samples.length - 3}`, h("ul", { class: "notes" }, samples.slice(3)))
              : null,
          )
        : null,
      settingsTable(run.settings),
      pictures.length
        ? h("section", { class: "card wide" }, h("h3", {}, "Pictures"), h("div", { class: "pictures" }, pictures))
        : null,
      h(
        "section",
        { class: "card wide" },
        h("h3", {}, "Record"),
        lineage.length
          ? foldable("Lineage", ` ${EBT.plural(lineage.length, "step")}`, h("ul", { class: "notes" }, lineage))
          : null,
        run.attempts.length ? foldable("Attempts", ` ${run.attempts.length}`, attempts) : null,
        foldable("Job script", null, run.script ? [link("job_script.slurm"), block("", run.script)] : null),
        foldable(
          "Code diff",
          code.commit ? ` on ${String(code.commit).slice(0, 10)}, ${EBT.textOf(code.branch ?? "")}` : null,
          run.diff
            ? [link("code.diff"), block("Code diff", run.diff)]
            : code.commit
              ? h(
                  "p",
                  { class: "quiet" },
                  "no change since the commit",
                  code.untracked && code.untracked.length
                    ? `, besides untracked files: ${code.untracked.join(", ")}`
                    : "",
                )
              : null,
        ),
        foldable(
          "Environment",
          run.environment.host ? ` ${EBT.textOf(run.environment.host)}` : null,
          Object.keys(run.environment).length ? block("", JSON.stringify(run.environment, null, 2)) : null,
        ),
        foldable(
          "Log",
          run.log.file ? ` ${run.log.cut ? "the end of " : ""}${run.log.file}` : null,
          run.log.tail ? [link(run.log.file), block("", run.log.tail)] : null,
        ),
      ),
    ];
  };

  EBT.drawnByStep = function (run) {
    const drawn = Object.entries(run.pictures_by_step || {}).map(([name, pictures]) =>
      EBT.picturesByStep(name, [
        { label: "", pictures: pictures.map(([step, picture]) => [step, EBT.runFile(file, "pictures", picture)]) },
      ]),
    );
    return drawn.length
      ? h(
          "section",
          { class: "card wide" },
          h("h3", {}, "Pictures by training step"),
          h("div", { class: "pictures" }, drawn),
        )
      : null;
  };

  EBT.sentences = function (run) {
    if (!run.summary.length && !run.takeaways.length) return null;
    return h(
      "div",
      { class: "sentences" },
      run.summary.length ? h("p", {}, run.summary.join(" ")) : null,
      run.takeaways.length
        ? h(
            "ul",
            {},
            run.takeaways.map((text) => h("li", {}, text)),
          )
        : null,
    );
  };

  EBT.warnings = function (run) {
    // The takeaways, where there are any, include these.
    const usageVerdicts = run.takeaways.length || !Array.isArray(run.usage.verdicts) ? [] : run.usage.verdicts;
    const verdicts = usageVerdicts.map((verdict) => ["usage", EBT.textOf(verdict.text ?? verdict), ""]);
    const alarms = run.alarms.map((alarm) => [
      `step ${EBT.number(alarm.step)}`,
      EBT.textOf(alarm.text ?? alarm.what ?? alarm.kind ?? alarm),
      EBT.textOf(alarm.advice ?? (alarm.back_to === undefined ? "" : `went back to step ${alarm.back_to}`)),
    ]);
    const missing = run.missing.length ? [["record", `missing in the run folder: ${run.missing.join(", ")}`, ""]] : [];
    const all = [...missing, ...alarms.slice(-SHOWN), ...verdicts];
    if (!all.length) return null;
    const line = ([where, text, advice]) =>
      h("li", {}, h("b", {}, where), h("span", {}, text), advice ? h("em", {}, advice) : null);
    return h(
      "ul",
      { class: "alarms" },
      all.map(line),
      foldable(
        "Earlier alarms",
        ` ${alarms.length - SHOWN}`,
        alarms.length > SHOWN ? h("ul", {}, alarms.slice(0, -SHOWN).map(line)) : null,
      ),
    );
  };
})();

(function () {
  const h = EBT.h;
  const file = document.body.dataset.file;
  const view = { axis: "step", weight: 0, logy: false, logx: false };
  const elements = new Map(); // {title: the element of a chart}, reused so that a zoom stays
  let charts = [];

  const clip = () => (EBT.details[file].settings.find(({ name }) => name === "gradient_clip_val") || {}).value;
  // The share of steps that were clipped; a warning where it is most of them, since then the norm says little.
  function clipped({ series }) {
    const shares = series.clipped_share ? series.clipped_share.y.filter((y) => y !== null) : [];
    if (!shares.length || !clip()) return null;
    const share = shares.reduce((sum, y) => sum + y, 0) / shares.length;
    const text = `clipped to ${EBT.number(clip())} at ${Math.round(100 * share)}\u2009% of the steps`;
    return h("span", { class: share > 0.5 ? "warn" : "quiet" }, share > 0.5 ? `\u26A0 ${text}` : text);
  }

  const withoutSplit = (title) => title.replace(/^(training|validation|test) /, "");
  const isNumber = (part) => /^\d+$/.test(part);
  const final = ({ y }) => y.filter((value) => value !== null).pop();
  // Columns that a pattern declares (solved_step_*), as {column, title, of: [[part, name], ...]}; parts in their order.
  function families({ series }) {
    const all = new Map();
    for (const [name, { pattern }] of Object.entries(series)) {
      if (!pattern) continue;
      if (!all.has(pattern.column)) all.set(pattern.column, { ...pattern, unit: series[name].unit, of: [] });
      all.get(pattern.column).of.push([pattern.part, name]);
    }
    const order = ([a], [b]) => a.localeCompare(b, "en", { numeric: true });
    return [...all.values()]
      .map((family) => ({ ...family, of: family.of.sort(order) }))
      .sort((a, b) => isTest(a) - isTest(b) || a.rank - b.rank);
  }
  const isTest = ({ column }) => column.startsWith("test_");
  const titleOf = ({ title }) => EBT.capitalize(title.replace("*", "\u2026"));
  // The last values of families that count something (steps), by that number: a chart for each unit.
  function byPart(curves) {
    const numeric = families(curves).filter(
      ({ column, of }) => /^(valid|test)_/.test(column) && of.length > 2 && of.every(([part]) => isNumber(part)),
    );
    return [...new Set(numeric.map(({ unit }) => unit))].map((unit) => {
      const lines = numeric.filter((family) => family.unit === unit);
      const title = withoutSplit(lines[0].title);
      return { title: EBT.capitalize(`${title.replace("*", "\u2026")}, at the end`), lines };
    });
  }
  // Each family along training. A number of one part alone has its own title.
  const byPattern = (curves) =>
    families(curves).map((family) => ({
      title: family.of.length > 1 ? EBT.capitalize(withoutSplit(titleOf(family).replace(/^V/, "v"))) : undefined,
      of: family.of.map(([, name]) => name),
      ordered: family.of.every(([part]) => isNumber(part)),
      log: !EBT.isShare(family),
    }));
  // What is measured in training and in evaluations.
  const bySplit = ({ series }) =>
    Object.keys(series)
      .filter((name) => name.startsWith("train_") && series[`valid_${name.slice(6)}`] && !series[name].pattern)
      .map((name) => ({
        title: EBT.capitalize(withoutSplit(series[name].title)),
        of: Object.keys(columns).map((split) => `${split}_${name.slice(6)}`),
        log: !EBT.isShare(series[name]),
      }));
  // Shares of the same kind in one chart.
  function shares({ series }) {
    const names = Object.keys(series).filter((name) => name.startsWith("valid_") && EBT.isShare(series[name]));
    return [...new Set(names.map((name) => series[name].unit))].map((unit) => ({
      several: EBT.capitalize(unit),
      of: names.filter((name) => series[name].unit === unit),
    }));
  }

  // The charts in order. `of`: the columns of a chart, as names or a pattern; columns of none come after, a chart each.
  // A function gives charts by what was measured. limit: the value of a horizontal line; note: an element beside the
  // title; several: the title of more than one column; lines: the values are those at the end, along another axis.
  const { columns, label, unit } = EBT.details[file].task;
  const GROUPS = [
    { title: EBT.capitalize(label), of: Object.values(columns), wide: true, log: true },
    byPart,
    bySplit,
    byPattern,
    { title: "Thinking gain", of: ["thinking_gain", "valid_thinking_gain", "test_thinking_gain"] },
    { title: "Energy along the descent", of: /^(energy_first|energy_last|energy_step_\d+)$/ },
    { title: "Energy drop", of: ["energy_gap"] },
    { title: "Shares of the training loss", of: /^loss_share\//, stacked: true },
    { title: "Terms of the training loss", of: ["contrastive_loss"], log: true },
    shares,
    { title: "Step size of the descent", of: ["step_size"] },
    { title: "Slope of the energy", of: ["energy_gradient_norm"], log: true },
    { title: "Gradient norm", of: ["gradient_norm"], log: true, limit: clip, note: clipped },
    { title: "Gradient norm by layer", of: /^gradient_norm\//, log: true },
    { title: "Clipped steps", of: ["clipped_share"] },
    { title: "Learning rate", of: /^learning_rate(\/|$)/ },
    { title: "Speed", of: [`${unit}_per_second`] },
    { title: "Waiting for data", of: ["loader_wait_share"] },
  ];
  const USAGE = [
    { title: "Processor", of: ["cpu_percent", "gpu_percent"], unit: "%" },
    { title: "Memory", of: ["memory_bytes", "gpu_memory_bytes"], unit: "bytes" },
    { title: "Waiting for data", of: ["loader_wait_share"] },
    { title: "Disk", of: ["read_bytes", "written_bytes"], unit: "bytes" },
  ];
  const AXES = EBT.axesOf([unit]);
  // Columns without a chart: the headline in other words, and how many units were evaluated.
  const isElsewhere = (name, series) => series.again || name.endsWith("_targets");

  function groupsOf(curves, groups) {
    const remaining = new Set(Object.keys(curves.series).filter((name) => !isElsewhere(name, curves.series[name])));
    const constant = [...remaining].filter((name) => new Set(curves.series[name].y).size === 1 && !/loss/.test(name));
    const drawnGroups = [];
    for (const group of groups.flatMap((each) => (typeof each === "function" ? each(curves) : [each]))) {
      if (group.lines) {
        drawnGroups.push({ ...group, names: group.lines.map(({ of: [[, name]] }) => name), curves });
        // What was measured once is drawn here alone.
        for (const [, name] of group.lines.flatMap(({ of }) => of))
          if (curves.series[name].x.length === 1) remaining.delete(name);
        continue;
      }
      const names = (
        Array.isArray(group.of)
          ? group.of
          : [...remaining].filter((name) => group.of.test(name, curves.series[name])).sort((a, b) => a.localeCompare(b, "en", { numeric: true }))
      ).filter((name) => remaining.has(name));
      names.forEach((name) => remaining.delete(name));
      const own = names.length && EBT.capitalize(curves.series[names[0]].title.replace(/^validation /, ""));
      const title = group.title || (names.length > 1 && group.several) || own;
      if (names.some((name) => !constant.includes(name))) drawnGroups.push({ ...group, title, names, curves });
      else names.forEach((name) => remaining.add(name));
    }
    const rest = [...remaining].filter((name) => !constant.includes(name));
    drawnGroups.push(...rest.map((name) => ({ title: EBT.capitalize(curves.series[name].title), names: [name], curves })));
    return [drawnGroups, constant.filter((name) => remaining.has(name))];
  }

  // Colour and dash of a line: one colour for a measure, and another dash for the test split.
  function lookOf(lines, index) {
    const ranks = [...new Set(lines.map(({ rank }) => rank))];
    return [EBT.colour(ranks.indexOf(lines[index].rank)), { line: { dash: isTest(lines[index]) ? "dot" : "solid" } }];
  }

  // Values at the end, by the number that is in the names of their columns.
  function drawLines({ element, group: { lines, curves, title } }) {
    const numbers = [...new Set(lines.flatMap(({ of }) => of.map(([part]) => Number(part))))].sort((a, b) => a - b);
    const logx = numbers[0] > 0 && numbers[numbers.length - 1] >= 8 * numbers[0];
    // The word that the number belongs to: "after * steps", "after step *".
    const [before, after] = lines[0].title.split("*").map((text) => text.trim().split(" "));
    EBT.draw(
      element,
      lines.map((line, index) =>
        EBT.line(
          line.of.map(([part]) => Number(part)),
          line.of.map(([, name]) => final(curves.series[name])),
          titleOf(line),
          ...lookOf(lines, index),
        ),
      ),
      EBT.layout({
        xtitle: after[0] || before[before.length - 1],
        ytitle: lines[0].unit || title,
        height: 250,
        logx,
        xticks: numbers.length <= 12 ? numbers : undefined,
        percent: EBT.isShare(lines[0]),
      }),
    );
  }

  // The colour of a curve: shades of one where the curves have an order.
  const colourOf = (group, index) =>
    group.ordered && group.names.length > 1
      ? EBT.withAlpha(EBT.colour(0), 0.3 + (0.7 * index) / (group.names.length - 1))
      : EBT.colour(index);

  function drawChart({ element, group }) {
    if (group.lines) return drawLines({ element, group });
    const { curves, names } = group;
    const axis = curves.places[view.axis] ? view.axis : "step";
    const longest = Math.max(...(curves.places.seconds || [0]));
    const { title, scale } = EBT.axisOf(axis, AXES[axis], longest);
    const along = (steps) => EBT.math.alongAxis(curves, axis, steps).map(scale);
    const logy = view.logy && group.log;
    const traces = names.flatMap((name, index) => {
      const series = curves.series[name];
      const colour = colourOf(group, index);
      const dash = group.ordered
        ? "solid"
        : EBT.dashes[Math.floor(index / EBT.palette().length) % EBT.dashes.length];
      const more = { line: { dash }, ...(group.stacked ? { stackgroup: "share", pale: false } : {}) };
      // Evaluations over more or less data than most are drawn as single points.
      const [curve, ...others] = EBT.math.byExtent(series);
      const title = EBT.capitalize(short(name, series));
      const weight = group.stacked || curve.x.length < 20 ? 0 : view.weight;
      return [
        ...EBT.curve(along(curve.x), curve.y, title, colour, group.ordered ? 0 : weight, more),
        ...others.map(({ x, y, of }) =>
          EBT.line(along(x), y, `${title}, of ${EBT.withPrefix(of)}`, colour, {
            mode: "markers",
            marker: { size: 8, symbol: "diamond-open" },
          }),
        ),
      ];
    });
    const limit = group.limit && group.limit();
    const xrange = EBT.rangeOfX(traces);
    if (limit && xrange) {
      const muted = getComputedStyle(document.documentElement).getPropertyValue("--muted").trim();
      traces.push(EBT.line(xrange, [limit, limit], "clipped at", muted, { mode: "lines", line: { dash: "dash", width: 1.2 } }));
    }
    const attempts = EBT.details[file].attempts
      .slice(1)
      .map((attempt) => ({ x: along([attempt.first_step ?? 0])[0], text: `attempt ${attempt.attempt}` }));
    const units = [...new Set(names.map((name) => curves.series[name].unit))];
    EBT.draw(
      element,
      traces,
      EBT.layout({
        xtitle: title,
        ytitle: group.unit || (units.length === 1 && units[0]) || group.title.toLowerCase(),
        logx: view.logx,
        logy,
        height: group.wide ? 400 : 250,
        xrange,
        marks: attempts.filter(({ x }) => !view.logx || x > 0),
        stacked: group.stacked,
        percent: names.every((name) => EBT.isShare(curves.series[name])),
      }),
    );
  }

  const short = (name, series) => (name.startsWith("loss_share/") ? name.slice(11).replaceAll("_", " ") : series.title);

  const legendLook = (group, index) => {
    if (!group.lines) return [colourOf(group, index)];
    const [colour, { line }] = lookOf(group.lines, index);
    return [colour, line.dash];
  };
  const legendText = ({ lines, ordered, curves }, name, index) => {
    if (lines) return titleOf(lines[index]);
    return ordered ? curves.series[name].pattern.part : EBT.capitalize(short(name, curves.series[name]));
  };

  function chart(group) {
    const element = elements.get(group.title) || h("div", { class: "plot" });
    elements.set(group.title, element);
    charts.push({ element, group });
    const many = group.names.length > (group.ordered ? 20 : 12);
    const legend =
      group.names.length > 1 && !many
        ? EBT.legend(
            group.names.map((name, index) => [legendText(group, name, index), ...legendLook(group, index)]),
          )
        : null;
    const note = many
      ? h("span", { class: "quiet" }, `${group.names.length} curves; point at one for its name`)
      : group.note && group.note(group.curves);
    return h(
      "section",
      { class: group.wide ? "card wide" : "card" },
      h("div", { class: "head" }, h("h3", {}, group.title), legend, note),
      element,
    );
  }

  function controls(curves) {
    const available = Object.keys(AXES).filter((axis) => axis === "step" || curves.places[axis]);
    const lacking = Object.keys(AXES).filter((axis) => !available.includes(axis));
    return h(
      "div",
      { class: "toolbar" },
      EBT.segments(
        "axis",
        available.map((axis) => [axis, AXES[axis].label]),
        view.axis,
        (axis) => {
          view.axis = axis;
          redraw();
          press(axis);
        },
      ),
      EBT.slider(view.weight, (weight) => {
        view.weight = weight;
        redraw();
      }),
      EBT.toggle(
        "log loss",
        view.logy,
        (on) => {
          view.logy = on;
          redraw();
        },
        "logy",
      ),
      EBT.toggle(
        "log axis",
        view.logx,
        (on) => {
          view.logx = on;
          redraw();
        },
        "logx",
      ),
      lacking.length
        ? h("span", { class: "quiet" }, `not recorded: ${lacking.map((axis) => AXES[axis].label).join(", ")}`)
        : null,
    );
  }
  const press = (axis) =>
    document
      .querySelectorAll(".segments button")
      .forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.value === axis)));

  const redraw = () => charts.forEach(drawChart);
  EBT.repaint = () => EBT.render();
  const constantText = (series) => (EBT.isShare(series) ? EBT.percent(series.y[0]) : EBT.number(series.y[0]));

  EBT.render = function () {
    const run = EBT.details[file];
    const curves = EBT.curves[file] || { places: {}, series: {} };
    charts = [];
    const [groups, constant] = groupsOf(curves, GROUPS);
    const usageCurves = { ...run.usage, series: { ...run.usage.series } };
    if (curves.series.loader_wait_share) delete usageCurves.series.loader_wait_share; // it has a chart already
    const [usage] = groupsOf(usageCurves, USAGE);
    const started = [
      run.began ? EBT.date(run.began) : null,
      run.job ? `job ${run.job}` : null,
      run.heartbeat.seconds_left && run.state === "running" ? `${EBT.duration(run.heartbeat.seconds_left)} left` : null,
    ]
      .filter(Boolean)
      .join(" \u00B7 ");
    document.getElementById("main").replaceChildren(
      ...[
        EBT.header(
          run.name,
          EBT.state(run.state),
          run.tags.map((tag) => h("span", { class: "tag" }, tag)),
        ),
        h("p", { class: "under" }, h("span", { class: "id" }, run.id), started),
        EBT.failure(run),
        EBT.facts(run, curves),
        EBT.sentences(run),
        EBT.warnings(run),
        groups.length ? controls(curves) : h("p", { class: "quiet" }, "No metrics yet."),
        h("div", { class: "charts" }, groups.map(chart), EBT.drawnByStep(run)),
        constant.length
          ? h(
              "p",
              { class: "quiet" },
              `Constant: ${constant.map((name) => `${curves.series[name].title} ${constantText(curves.series[name])}`).join(", ")}.`,
            )
          : null,
        usage.length ? h("h2", {}, "Usage") : null,
        usage.length ? h("div", { class: "charts" }, usage.map(chart)) : null,
        h("h2", {}, "About this run"),
        run.command ? h("pre", { class: "command" }, run.command) : null,
        h("div", { class: "charts" }, EBT.record(run)),
      ].filter(Boolean),
    );
    charts.forEach(drawChart); // all of them: a page may be printed without being scrolled
  };

  EBT.sources = () => [`data/${file}.curves.js`, `data/${file}.js`];
  EBT.render();
})();
