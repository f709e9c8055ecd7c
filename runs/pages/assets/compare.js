// Two runs or more over one another: what differs, which is better, since when, and is it more than chance?
"use strict";
(function () {
  const h = EBT.h;

  // A row for each setting that is not the same in all runs; columns: [[title, runs], ...].
  EBT.settingsCard = function (runs, columns) {
    const names = [
      ...new Set(
        runs.flatMap((run) => run.settings.filter((setting) => setting.compared).map((setting) => setting.name)),
      ),
    ];
    const value = (run, name) => {
      const match = run.settings.find((setting) => setting.name === name);
      return match ? EBT.textOf(match.value) : "\u2013";
    };
    const differ = names.filter((name) => new Set(runs.map((run) => value(run, name))).size > 1);
    return h(
      "section",
      { class: "card wide" },
      h(
        "div",
        { class: "head" },
        h("h3", {}, "Settings that differ"),
        h("span", { class: "quiet" }, `${differ.length} of ${names.length}`),
      ),
      differ.length
        ? h(
            "div",
            { class: "table" },
            EBT.table(
              ["flag", ...columns.map(([name]) => name)],
              differ.map((name) =>
                h(
                  "tr",
                  {},
                  h("td", {}, `--${name}`),
                  columns.map(([, members]) =>
                    h("td", {}, [...new Set(members.map((run) => value(run, name)))].sort().join(", ")),
                  ),
                ),
              ),
              "plain settings",
            ),
          )
        : h("p", { class: "quiet" }, "All the same."),
    );
  };

  // The changes to each file since the commit: {file: text}.
  const byFile = (diff) =>
    new Map(
      diff
        .split(/^(?=diff --git )/m)
        .filter(Boolean)
        .map((part) => [(/^diff --git a\/(.*?) b\//.exec(part) || ["", "other"])[1], part]),
    );

  EBT.codeCard = function (runs) {
    const commits = [...new Set(runs.map((run) => run.code.commit || "unknown"))];
    const parts = runs.map((run) => byFile(run.diff));
    const files = [...new Set(parts.flatMap((part) => [...part.keys()]))]
      .filter((name) => new Set(parts.map((part) => part.get(name))).size > 1)
      .sort();
    const content = [];
    if (commits.length > 1) {
      for (const commit of commits)
        content.push(
          h(
            "p",
            {},
            h("code", {}, commit.slice(0, 10)),
            ` ${runs
              .filter((run) => (run.code.commit || "unknown") === commit)
              .map((run) => run.label)
              .join(", ")}`,
          ),
        );
      const whole = commits.filter((commit) => /^[0-9a-f]{7,64}$/.test(commit));
      if (whole.length > 1)
        content.push(h("pre", { class: "command" }, `git diff ${whole[0].slice(0, 12)} ${whole[1].slice(0, 12)}`));
    }
    for (const name of files) {
      content.push(
        h(
          "details",
          {},
          h(
            "summary",
            {},
            name,
            h(
              "span",
              { class: "quiet" },
              ` changed in ${runs
                .filter((_, index) => parts[index].has(name))
                .map((run) => run.label)
                .join(", ")}`,
            ),
          ),
          h(
            "div",
            { class: "sides" },
            runs.map((run, index) =>
              h(
                "div",
                {},
                h("h4", {}, run.label),
                parts[index].has(name)
                  ? h("pre", { class: "diff" }, EBT.diffLines(parts[index].get(name)))
                  : h("p", { class: "quiet" }, "as committed"),
              ),
            ),
          ),
        ),
      );
    }
    if (!content.length)
      content.push(
        h(
          "p",
          { class: "quiet" },
          commits[0] === "unknown"
            ? "No commit is known of these runs."
            : `The same code in all: ${commits[0].slice(0, 10)}, and the same changes to it.`,
        ),
      );
    return h("section", { class: "card wide" }, h("h3", {}, "Code"), content);
  };
})();

EBT.MEDIAN_POINTS = 15; // points of the running median by which a curve of many points is judged
(function () {
  const h = EBT.h;

  // The xs of a band over seeds: those of the seeds where they are the same, else evenly spread ones.
  EBT.gridOf = function (pairs) {
    const [first] = pairs[0];
    const same = pairs.every(([xs]) => xs.length === first.length && xs.every((x, index) => x === first[index]));
    return same ? first : EBT.math.grid(pairs);
  };

  // ---- which runs may be compared

  // What must be the same is series.needs (some of these, or the unit) and always the task.
  const WORDS = {
    task: "other tasks",
    data: "other data",
    limits: "other limits of validation",
    overfitting: "other training batches",
  };
  const flagsOf = (run, kind) => {
    if (kind === "task") return { task: run.task.name };
    const on = run.measured_on;
    if (!on) return { settings: "unknown" };
    return kind === "overfitting" ? { overfit_batches: on.limits.overfit_batches } : on[kind];
  };

  // Why the metric of these runs says nothing about which is better: {kind: words}; empty where nothing is in the way.
  EBT.obstacles = function (runs, { needs }) {
    const obstacles = {};
    for (const kind of ["task", ...needs]) {
      const all = runs.map((run) => flagsOf(run, kind));
      const differ = [...new Set(all.flatMap(Object.keys))].filter(
        (name) => new Set(all.map((flags) => EBT.textOf(flags[name]))).size > 1,
      );
      const text = (value) => EBT.textOf(value === undefined ? "unknown" : (value ?? "none"));
      const values = (name) => [...new Set(all.map((flags) => text(flags[name])))].join(" and ");
      const flags = differ.map((name) => `--${name} ${values(name)}`).join(", ");
      if (differ.length) obstacles[kind] = `${WORDS[kind] || `other ${EBT.plurals(differ)}`} (${flags})`;
    }
    return obstacles;
  };

  // The largest set of groups that can be compared with one another, and the others: [groups, others].
  function comparable(groups, { needs }) {
    const parts = new Map();
    for (const group of groups) {
      const key = JSON.stringify(["task", ...needs].map((kind) => flagsOf(group.members[0].run, kind)));
      parts.set(key, [...(parts.get(key) || []), group]);
    }
    const judged = [...parts.values()].reduce((most, part) => (part.length > most.length ? part : most), []);
    return [judged, groups.filter((group) => !judged.includes(group))];
  }

  // ---- the steps at which all of them were measured

  // The xs at which all groups were measured, with the values of each group: [{x, values: [[...], ...]}].
  const commonPointsOf = (groups, near) => {
    const sizes = groups.map(({ members }) => members.length);
    return EBT.math
      .commonPoints(
        groups.flatMap(({ members }) => members.map(({ points }) => points)),
        near,
      )
      .map(({ x, values }) => {
        const left = [...values];
        return { x, values: sizes.map((size) => left.splice(0, size)) };
      });
  };

  // The groups that have xs in common, those left out for it, and these xs: [groups, others, commonPoints].
  function withCommonPoints(groups, near) {
    const judged = [...groups];
    const ofOthers = (group) => commonPointsOf(judged.filter((other) => other !== group), near);
    const alone = (group) => judged.filter((other) => !commonPointsOf([group, other], near).length).length;
    // Leave out the group without which the others have the latest x in common, else the one that shares xs with the
    // fewest.
    const gain = (group) => ofOthers(group).reduce((_, { x }) => [1, x], [0, alone(group)]);
    for (;;) {
      const common = commonPointsOf(judged, near);
      if (common.length || judged.length < 3) return [judged, groups.filter((group) => !judged.includes(group)), common];
      const gains = judged.map((group) => [...gain(group), group]);
      const [[, , worst]] = gains.sort((a, b) => b[0] - a[0] || b[1] - a[1]);
      judged.splice(judged.indexOf(worst), 1);
    }
  }

  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

  // Since when the first of two groups is ahead, in words.
  function since(best, other, better, near, positionText) {
    const common = commonPointsOf([best, other], near);
    const sign = better === "higher" ? 1 : -1;
    const means = common.map(({ values }) => values.map(mean));
    const all = means.flat();
    const least = 0.002 * (Math.max(...all) - Math.min(...all));
    const ahead = means.map(([a, b]) => sign * (a - b));
    const turns = EBT.math.leadChanges(
      common.map(({ x }) => x),
      ahead,
      least,
    );
    if (common.length < 2) return "was measured beside it only once";
    if (ahead.every((lead) => Math.abs(lead) <= least)) return "was never clearly ahead of it";
    if (!turns.length) return `was ahead throughout, from ${positionText(common[0].x)}`;
    const { from, to, leads } = turns[turns.length - 1];
    const more = turns.length > 1 ? `, after ${EBT.plural(turns.length - 1, "earlier change")} of lead` : "";
    const close = to - from <= 0.02 * (common[common.length - 1].x - common[0].x);
    const where = close ? `at ${positionText(to)}` : `between ${positionText(from)} and ${positionText(to)}`;
    return `${leads ? "overtook it" : "was behind again"} ${where}${more}`;
  }

  // ---- the card

  const card = (note, ...content) =>
    h(
      "section",
      { class: "card wide verdict" },
      h("div", { class: "head" }, h("h3", {}, "Verdict"), note ? h("span", { class: "quiet" }, note) : null),
      ...content,
    );
  const noVerdict = (why) => card(null, h("p", { class: "lead none" }, h("b", {}, "No verdict"), `: ${why}.`));

  // Where there is one group only: the spread of its runs.
  function spreadCard(group, { x, values: [values] }, unit, positionText) {
    const decimals = unit === "%" ? 2 : decimalsOf(values);
    const [middle, low, high] = [mean(values), Math.min(...values), Math.max(...values)].map((value) =>
      EBT.fixed(value, decimals),
    );
    const text = `${group.name} at ${positionText(x)}: mean ${middle}, from ${low} to ${high}`;
    return card(null, h("p", { class: "lead" }, `${text}${unit ? ` ${unit}` : ""}.`));
  }

  const verdictText = ({ kind, noise }) =>
    ({
      unknown: ["not known", "one seed each"],
      equal: ["equal", ""],
      within: ["within seed noise", `\u00B1${EBT.number(noise, 2)}`],
      beyond: ["more than seed noise", `\u00B1${EBT.number(noise, 2)}`],
    })[kind];

  const inPercent = (group) => ({
    ...group,
    members: group.members.map((member) => ({
      ...member,
      points: member.points.map((point) => ({ ...point, y: 100 * point.y })),
    })),
  });

  // near: how far apart two xs may be that count as one; 0 where steps are exact.
  EBT.verdictCard = function (measuredGroups, measuredSeries, near, positionText, measuredNote = null) {
    const [groups, series, note] = EBT.isShare(measuredSeries)
      ? [measuredGroups.map(inPercent), { ...measuredSeries, unit: "percentage points" }, measuredNote || "in percent"]
      : [measuredGroups, measuredSeries, measuredNote];
    const [alike, others] = comparable(groups, series);
    const runsOf = (some) => some.flatMap(({ members }) => members.map(({ run }) => run));
    const reasons = Object.values(EBT.obstacles(runsOf(groups), series)).join("; ");
    const alone = alike.length === 1;
    if (alone && others.length) return noVerdict(`these runs have ${reasons}, so their numbers do not mean the same`);
    if (alone && alike[0].members.length < 2) return null;
    const [judged, apart, common] = withCommonPoints(alike, near);
    const where = near ? "place on this axis" : "step after the first";
    if (!common.length) {
      const same = judged.some(({ members }) => members.some(({ points }) => points.some(({ of }) => of !== null)));
      return noVerdict(`there is no ${where} at which all of them were measured${same ? ` over the same ${unitOf(judged)}` : ""}`);
    }
    const last = common[common.length - 1];
    if (alone) return spreadCard(judged[0], last, EBT.isShare(measuredSeries) ? "%" : series.unit, positionText);
    const { better } = series;
    const sign = better === "higher" ? -1 : 1;
    const rows = judged
      .map((group, index) => ({ group, values: last.values[index], mean: mean(last.values[index]) }))
      .sort((a, b) => sign * (a.mean - b.mean));
    const [best, second] = rows;
    const decimals = EBT.isShare(measuredSeries) ? 2 : decimalsOf(rows.map((row) => row.mean));
    const pairs = (rows.length * (rows.length - 1)) / 2; // the best was picked among them, so all pairs count
    const judge = (row) => {
      const result = EBT.math.welchTest(row.values, best.values, pairs);
      return Number(EBT.fixed(Math.abs(result.difference), decimals)) === 0 ? { ...result, kind: "equal" } : result;
    };
    const unit = series.unit ? ` ${series.unit}` : "";
    const at = positionText(last.x);
    const verdict = judge(second);
    const gap = `${EBT.fixed(Math.abs(verdict.difference), decimals)}${unit}`;
    const together = pairs > 1 ? ` for all ${pairs} pairs together` : "";
    const chance = `\u00B1${EBT.number(verdict.noise, 2)} at 95\u2009%${together}`;
    const about = {
      unknown: "One seed each, so nobody knows how much is chance: repeat with another --seed.",
      equal: "No winner.",
      within: `That is within seed noise (${chance}): no winner.`,
      beyond: `That is more than seed noise (${chance}).`,
    }[verdict.kind];
    const lead =
      verdict.kind === "equal"
        ? `${best.group.name} and ${second.group.name} are equal at ${at}.`
        : better
          ? `${best.group.name} is ${better} by ${gap} than ${second.group.name} at ${at}.`
          : `${best.group.name} and ${second.group.name} differ by ${gap} at ${at}.`;
    const chances = ["equal", "within"]; // where nobody won, nobody overtook
    const history = (row) => since(best.group, row.group, better, near, positionText);
    const line = (row) => {
      const against = row === best ? null : judge(row);
      const [word, how] = against ? verdictText(against) : ["", ""];
      const apart = against ? EBT.fixed(Math.abs(against.difference), decimals) : "";
      return h(
        "tr",
        {},
        h("td", {}, h("i", { class: "swatch", style: `background: ${row.group.colour}` }), row.group.name),
        h("td", { class: "number" }, EBT.fixed(row.mean, decimals)),
        h(
          "td",
          { class: "number" },
          against ? `${against.difference >= 0 ? "+" : "\u2212"}${apart}` : "",
        ),
        h("td", { class: against ? against.kind : null }, word, how ? h("small", {}, how) : null),
        better
          ? h(
              "td",
              { class: "quiet" },
              row === best || chances.includes(against.kind) ? "" : EBT.capitalize(`the best ${history(row)}`),
            )
          : null,
      );
    };
    const dense = judged.some(({ members }) => members.some(({ sparse }) => !sparse));
    return card(
      [note, dense ? `on the running median of ${EBT.MEDIAN_POINTS} points` : null].filter(Boolean).join("; "),
      h(
        "p",
        { class: `lead ${verdict.kind}` },
        lead,
        " ",
        h("b", {}, about),
        rows.length === 2 && better && !chances.includes(verdict.kind) ? ` The better one ${history(second)}.` : "",
      ),
      [
        [others, `runs with ${reasons} cannot be compared`],
        [apart, `there is no ${where} at which all were measured over the same ${unitOf(judged)}`],
      ]
        .filter(([left]) => left.length)
        .map(([left, why]) =>
          h("p", { class: "quiet" }, `Left out, since ${why}: ${left.map(({ name }) => name).join(", ")}.`),
        ),
      EBT.table(
        [
          "run",
          h("th", { class: "number" }, `at ${at}`),
          h("th", { class: "number" }, "to the best"),
          "difference",
          ...(better ? ["lead"] : []),
        ],
        rows.map(line),
      ),
    );
  };

  const unitOf = ([{ members }]) => members[0].run.task.unit;
  const decimalsOf = (values) =>
    Math.max(...values.map(Math.abs)) >= 100 ? 1 : Math.max(...values.map(Math.abs)) >= 0.01 ? 4 : 7;
})();

(function () {
  const h = EBT.h;
  const view = { metric: null, axis: "step", weight: 0, logx: false, logy: false, grouped: true, late: true };
  const MOST_PICTURES = 6; // runs whose pictures are shown beside one another
  let runs = [],
    plot = null;

  const isListed = (file) => EBT.index.runs.some((run) => run.file === file);
  // The runs in the address, each once.
  const selectedFiles = () =>
    location.hash
      .slice(1)
      .split(",")
      .filter((file, index, all) => isListed(file) && all.indexOf(file) === index);

  function metrics() {
    const names = new Map();
    for (const run of runs) for (const [name, series] of Object.entries(run.curves.series)) names.set(name, series);
    const order = runs.flatMap(({ task }) => [task.headline, task.columns.train, ...task.facts]);
    const rank = (name) => (order.includes(name) ? order.indexOf(name) : order.length + (name.includes("/") ? 1 : 0));
    return [...names].sort(([a], [b]) => rank(a) - rank(b) || a.localeCompare(b, "en", { numeric: true }));
  }

  // The metric to begin with: of validation where every run that has any metric has a few of it, else of training.
  const firstMetric = () => {
    const begun = runs.filter((run) => Object.keys(run.curves.series).length);
    const measured = (name) => begun.every((run) => run.curves.series[name] && run.curves.series[name].x.length > 4);
    return runs.flatMap(({ task }) => [task.headline, task.columns.train]).find(measured) || metrics()[0][0];
  };

  const has = (run, axis) => axis === "step" || Boolean(run.curves.places[axis]);

  // The runs that have the metric, as curves along the axis: [{run, xs, ys, raw, ...}]; ys is smoothed, raw as measured.
  // points: what a verdict uses, after step 0: {x, y, of}. exact: whether every measured step is among them.
  function curvesOf(axis, metric = view.metric) {
    return runs
      .filter((run) => run.curves.series[metric] && has(run, axis))
      .map((run) => {
        const series = run.curves.series[metric];
        const along = (steps) => EBT.math.alongAxis(run.curves, axis, steps);
        const [drawn] = EBT.math.byExtent(series);
        const [xs, raw] = EBT.math.withoutGaps(along(drawn.x), drawn.y);
        const sparse = raw.length <= 60;
        const ys = EBT.math.smooth(raw, raw.length < 20 ? 0 : view.weight);
        // One row of training loss is noise, and may be a spike: what is measured often is judged by its median.
        const judged = sparse ? raw : EBT.math.median(raw, EBT.MEDIAN_POINTS);
        const trained = drawn.x.filter((_, index) => drawn.y[index] !== null).map((step) => step > 0);
        const points = xs
          .map((x, index) => ({ x, y: judged[index], of: drawn.of }))
          .filter((_, index) => trained[index]);
        for (const part of EBT.math.byExtent(series).slice(1))
          along(part.x).forEach((x, index) => {
            if (part.x[index] > 0 && part.y[index] !== null) points.push({ x, y: part.y[index], of: part.of });
          });
        return { run, xs, raw, ys, sparse, points, exact: axis === "step" && series.rows === series.x.length };
      })
      .filter(({ xs }) => xs.length);
  }

  const seedOf = (run) => (run.settings.find((setting) => setting.name === "seed") || {}).value;

  function groupsOf(curves) {
    const together = view.grouped ? EBT.math.bySeed(curves.map(({ run }) => run)) : curves.map(({ run }) => [run]);
    return together.map((members, index) => ({
      members: members.map((run) => curves.find((curve) => curve.run === run)),
      name:
        members.length > 1
          ? `${members[0].name} (${members.length} ${new Set(members.map(seedOf)).size > 1 ? "seeds" : "runs"})`
          : members[0].label,
      colour: EBT.colour(index),
      dash: EBT.dashes[Math.floor(index / EBT.palette().length) % EBT.dashes.length],
    }));
  }

  function tracesOf(groups, scale) {
    return groups.flatMap(({ members, name, colour, dash }) => {
      const line = { line: { dash } };
      if (members.length === 1) {
        const [{ xs, raw }] = members;
        return EBT.curve(xs.map(scale), raw, name, colour, raw.length < 20 ? 0 : view.weight, line);
      }
      const pairs = members.map(({ xs, ys }) => [xs, ys]);
      const band = EBT.math.band(pairs, EBT.gridOf(pairs));
      const x = band.x.map(scale);
      const hidden = { hoverinfo: "skip", hovertemplate: undefined, mode: "lines", line: { width: 0 } };
      return [
        EBT.line(x, band.low, name, colour, hidden),
        EBT.line(x, band.high, name, colour, { ...hidden, fill: "tonexty", fillcolor: EBT.withAlpha(colour, 0.2) }),
        EBT.line(x, band.mean, name, colour, line),
      ];
    });
  }

  const positionText = (x) =>
    view.axis === "seconds"
      ? EBT.duration(x)
      : view.axis === "step"
        ? `step ${EBT.number(Math.round(x))}`
        : `${EBT.withPrefix(x)} ${view.axis === "flops" ? "FLOPs" : view.axis}`;

  function chips() {
    const remove = (file) => () => {
      location.hash = selectedFiles()
        .filter((other) => other !== file)
        .join(",");
    };
    const others = EBT.index.runs.filter((run) => run.page && !runs.some((one) => one.file === run.file));
    const add = h(
      "select",
      {
        "aria-label": "add a run",
        name: "add",
        onchange: (event) => {
          location.hash = [...selectedFiles(), event.target.value].join(",");
        },
      },
      h("option", { value: "" }, "add a run \u2026"),
      others.slice(0, 500).map((run) => h("option", { value: run.file }, run.id)),
    );
    const colours = new Map(
      groupsOf(curvesOf(view.axis)).flatMap(({ members, colour }) => members.map(({ run }) => [run.file, colour])),
    );
    const order = [...colours.keys()];
    const sorted = [...runs].sort((a, b) => order.indexOf(a.file) - order.indexOf(b.file));
    return h(
      "div",
      { class: "chips" },
      sorted.map((run) =>
        h(
          "span",
          { class: "chip" },
          h("i", { class: "swatch", style: `background: ${colours.get(run.file) || "transparent"}` }),
          h("a", { href: EBT.runLink(run.file), title: run.id }, run.label),
          h("button", { type: "button", "aria-label": `remove ${run.label}`, onclick: remove(run.file) }, "\u00D7"),
        ),
      ),
      others.length ? add : null,
    );
  }

  const axesOfRuns = () => EBT.axesOf([...new Set(runs.map(({ task }) => task.unit))]);

  function controls() {
    const all = metrics();
    const measured = runs.filter((run) => run.curves.series[view.metric]);
    const axes = axesOfRuns();
    const available = Object.keys(axes).filter((axis) => measured.some((run) => has(run, axis)));
    if (!available.includes(view.axis)) view.axis = "step";
    const lacking = Object.keys(axes)
      .map((axis) => [axis, runs.filter((run) => !has(run, axis))])
      .filter(([, without]) => without.length)
      .map(([axis, without]) => [axes[axis].label, without.map((run) => run.label).join(", ")])
      .map(([label, names]) => `${label}: not recorded by ${names}`);
    const change = (name) => (value) => {
      view[name] = value;
      draw();
    };
    const pick = h(
      "select",
      { "aria-label": "metric", name: "metric", onchange: (event) => change("metric")(event.target.value) },
      all.map(([name, series]) => h("option", { value: name }, EBT.capitalize(series.title))),
    );
    pick.value = view.metric;
    return [
      h(
        "div",
        { class: "toolbar" },
        pick,
        EBT.segments(
          "axis",
          available.map((axis) => [axis, axes[axis].label]),
          view.axis,
          change("axis"),
        ),
        h("span", { id: "smoothing" }),
        EBT.toggle("log x", view.logx, change("logx"), "logx"),
        EBT.toggle("log y", view.logy, change("logy"), "logy"),
        EBT.toggle("fit the end", view.late, change("late"), "late"),
        EBT.toggle("seed bands", view.grouped, change("grouped"), "grouped"),
      ),
      lacking.length ? h("p", { class: "quiet lacking" }, lacking.join("; ")) : null,
    ];
  }

  // The range of y in the last four fifths: losses fall so much at first that nothing could be seen after.
  function lateRange(curves) {
    const end = Math.min(...curves.map(({ xs }) => xs[xs.length - 1]));
    const values = curves
      .flatMap(({ xs, ys }) => [...ys.filter((_, index) => xs[index] >= 0.2 * end), EBT.math.interpolate(xs, ys, 0.2 * end)])
      .filter((value) => value !== null);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const margin = 0.04 * (high - low);
    return high > low && (!view.logy || low > margin) ? [low - margin, high + margin] : null;
  }

  function paint() {
    const curves = curvesOf(view.axis);
    const groups = groupsOf(curves);
    const series = metrics().find(([name]) => name === view.metric)[1];
    const { title, scale } = EBT.axisOf(view.axis, axesOfRuns()[view.axis], Math.max(...curves.map(({ xs }) => xs[xs.length - 1])));
    const traces = tracesOf(groups, scale);
    EBT.draw(
      plot,
      traces,
      EBT.layout({
        xrange: EBT.rangeOfX(traces),
        yrange: view.late ? lateRange(curves) : null,
        xtitle: title,
        ytitle: [EBT.capitalize(series.title), series.unit].filter(Boolean).join(", "),
        logx: view.logx,
        logy: view.logy,
        percent: EBT.isShare(series),
        height: 440,
      }),
    );
    const drawn = curves.map(({ run }) => run);
    const lacking = runs.filter((run) => !drawn.includes(run)).map((run) => run.label);
    document
      .getElementById("legend")
      .replaceChildren(
        EBT.legend(groups.map(({ name, colour, dash }) => [name, colour, dash])),
        lacking.length ? h("p", { class: "quiet" }, `Not drawn, since it was not recorded: ${lacking.join(", ")}.`) : "",
      );
    document.getElementById("verdict").replaceChildren(...[verdict(curves, groups, series)].filter(Boolean));
  }

  // Losses per unit cannot be compared where the units differ (tokenizers); the column series.instead can.
  function verdict(curves, groups, series) {
    const near = (some) =>
      some.every(({ exact }) => exact) ? 0 : 0.01 * Math.min(...some.map(({ xs }) => xs[xs.length - 1]));
    const others = series.instead ? curvesOf(view.axis, series.instead) : [];
    const other = others.length ? others[0].run.curves.series[series.instead] : null;
    const runsOf = (some) => some.map(({ run }) => run);
    if (
      other &&
      others.length === curves.length &&
      "unit" in EBT.obstacles(runsOf(curves), series) &&
      !Object.keys(EBT.obstacles(runsOf(curves), other)).length
    ) {
      const note = `in ${other.unit}, since the ${EBT.plurals(Object.keys(curves[0].run.measured_on.unit))} differ`;
      return EBT.verdictCard(groupsOf(others), other, near(others), positionText, note);
    }
    return EBT.verdictCard(groups, series, near(curves), positionText);
  }

  // The pictures that at least two runs drew, beside one another by training step.
  function picturesCard() {
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.pictures_by_step || {})))].sort();
    const sides = (name) =>
      runs
        .filter((run) => (run.pictures_by_step || {})[name])
        .map(({ label, file, pictures_by_step: { [name]: drawn } }) => ({
          label,
          pictures: drawn.map(([step, picture]) => [step, EBT.runFile(file, "pictures", picture)]),
        }));
    const shown = names.filter((name) => sides(name).length > 1);
    return shown.length
      ? h(
          "section",
          { class: "card wide" },
          h("h3", {}, "Pictures by training step"),
          shown.map((name) => EBT.picturesByStep(name, sides(name).slice(0, MOST_PICTURES))),
        )
      : null;
  }

  function draw() {
    document.getElementById("controls").replaceChildren(...controls().filter(Boolean));
    document.getElementById("smoothing").replaceWith(
      EBT.slider(view.weight, (weight) => {
        view.weight = weight;
        paint();
      }),
    );
    document.getElementById("chips").replaceChildren(chips());
    const columns = view.grouped
      ? groupsOf(curvesOf(view.axis)).map(({ name, members }) => [name, members.map(({ run }) => run)])
      : runs.map((run) => [run.label, [run]]);
    document.getElementById("settings").replaceChildren(EBT.settingsCard(runs, columns));
    paint();
  }
  EBT.repaint = () => runs.length && draw();

  EBT.render = function () {
    const names = selectedFiles().map((file) => (EBT.details[file] || {}).name);
    runs = selectedFiles()
      .filter((file) => EBT.details[file])
      .map((file) => {
        const details = EBT.details[file];
        const label =
          names.filter((name) => name === details.name).length > 1
            ? `${details.name} ${details.id.slice(-6)}`
            : details.name;
        return { ...details, file, label, curves: EBT.curves[file] || { places: {}, series: {} } };
      });
    const main = document.getElementById("main");
    if (!runs.length || !metrics().length) {
      main.replaceChildren(
        EBT.header("Compare runs"),
        h(
          "p",
          { class: "quiet" },
          runs.length
            ? "These runs have no metrics yet."
            : "No runs to compare: choose two or more in the list of all runs.",
        ),
      );
      runs = [];
      return;
    }
    if (!metrics().some(([name]) => name === view.metric)) view.metric = firstMetric();
    plot = h("div", { class: "plot tall" });
    main.replaceChildren(
      EBT.header("Compare", h("span", { class: "quiet" }, EBT.plural(runs.length, "run"))),
      h("div", { id: "chips" }),
      h("div", { id: "controls" }),
      h("section", { class: "card wide" }, h("div", { id: "legend" }), plot),
      h("div", { id: "verdict" }),
      picturesCard() || "",
      h("div", { id: "settings" }),
      EBT.codeCard(runs),
    );
    draw();
  };

  const load = async () => {
    for (const file of selectedFiles()) {
      if (!EBT.curves[file]) await EBT.load(`${EBT.base}data/${file}.curves.js`);
      if (!EBT.details[file]) await EBT.load(`${EBT.base}data/${file}.js`);
    }
    EBT.render();
  };
  EBT.sources = () => [
    `${EBT.base}runs.js`,
    ...selectedFiles().flatMap((file) => [`${EBT.base}data/${file}.curves.js`, `${EBT.base}data/${file}.js`]),
  ];
  addEventListener("hashchange", load);
  load();
})();
