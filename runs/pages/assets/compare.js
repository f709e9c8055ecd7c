// Two runs or more over one another: which is better, since when, and is it more than chance?
"use strict";
(function () {
  const h = EBT.h;
  const view = { metric: null, axis: "step", weight: 0, logx: false, logy: false, grouped: true, late: true };
  let runs = [],
    plot = null;

  const known = () => new Map(EBT.index.runs.map((run) => [run.file, run]));
  const wanted = () =>
    location.hash
      .slice(1)
      .split(",")
      .filter((file, place, all) => known().has(file) && all.indexOf(file) === place);

  function metrics() {
    const names = new Map();
    for (const run of runs) for (const [name, series] of Object.entries(run.curves.series)) names.set(name, series);
    const order = ["valid_loss", "train_loss", "valid_bits_per_byte", "valid_accuracy", "valid_thinking_gain"];
    const place = (name) => (order.includes(name) ? order.indexOf(name) : order.length + (name.includes("/") ? 1 : 0));
    return [...names].sort(([a], [b]) => place(a) - place(b) || a.localeCompare(b, "en", { numeric: true }));
  }

  // The metric to begin with: validation where it was measured a few times, else training; by the runs that have any.
  const telling = () => {
    const begun = runs.filter((run) => Object.keys(run.curves.series).length);
    const measured = (name) => begun.every((run) => run.curves.series[name] && run.curves.series[name].x.length > 4);
    return ["valid_loss", "train_loss"].find(measured) || metrics()[0][0];
  };

  const has = (run, axis) => axis === "step" || Boolean(run.curves.places[axis]);

  // The runs that have the metric, as curves along the axis: [{run, xs, ys}] smoothed, with what was measured in `raw`.
  // points: what a verdict is told from, after step 0: {x, y, of}. exact: whether every measured step is among them.
  function curvesOf(axis, metric = view.metric) {
    return runs
      .filter((run) => run.curves.series[metric] && has(run, axis))
      .map((run) => {
        const series = run.curves.series[metric];
        const along = (steps) => EBT.math.along(run.curves, axis, steps);
        const [drawn] = EBT.math.parts(series);
        const [xs, raw] = EBT.math.whole(along(drawn.x), drawn.y);
        const sparse = raw.length <= 60;
        const ys = EBT.math.smooth(raw, raw.length < 20 ? 0 : view.weight);
        // One row of training loss is noise, and may be a spike: what is measured often is judged by its median.
        const judged = sparse ? raw : EBT.math.median(raw, EBT.JUDGED);
        const trained = drawn.x.filter((_, place) => drawn.y[place] !== null).map((step) => step > 0);
        const points = xs
          .map((x, place) => ({ x, y: judged[place], of: drawn.of }))
          .filter((_, place) => trained[place]);
        for (const part of EBT.math.parts(series).slice(1))
          along(part.x).forEach((x, place) => {
            if (part.x[place] > 0 && part.y[place] !== null) points.push({ x, y: part.y[place], of: part.of });
          });
        return { run, xs, raw, ys, sparse, points, exact: axis === "step" && series.rows === series.x.length };
      })
      .filter(({ xs }) => xs.length);
  }

  const seedOf = (run) => (run.settings.find((setting) => setting.name === "seed") || {}).value;

  function groupsOf(curves) {
    const together = view.grouped ? EBT.math.bySeed(curves.map(({ run }) => run)) : curves.map(({ run }) => [run]);
    return together.map((members, place) => ({
      members: members.map((run) => curves.find((curve) => curve.run === run)),
      name:
        members.length > 1
          ? `${members[0].name} (${members.length} ${new Set(members.map(seedOf)).size > 1 ? "seeds" : "runs"})`
          : members[0].label,
      colour: EBT.colour(place),
      dash: EBT.dashes[Math.floor(place / EBT.palette().length) % EBT.dashes.length],
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
        EBT.line(x, band.high, name, colour, { ...hidden, fill: "tonexty", fillcolor: EBT.faded(colour, 0.2) }),
        EBT.line(x, band.mean, name, colour, line),
      ];
    });
  }

  const placeText = (x) =>
    view.axis === "seconds"
      ? EBT.duration(x)
      : view.axis === "step"
        ? `step ${EBT.number(Math.round(x))}`
        : `${EBT.large(x)} ${view.axis === "flops" ? "FLOPs" : "tokens"}`;

  function chips() {
    const remove = (file) => () => {
      location.hash = wanted()
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
          location.hash = [...wanted(), event.target.value].join(",");
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

  function controls() {
    const all = metrics();
    const measured = runs.filter((run) => run.curves.series[view.metric]);
    const known = Object.keys(EBT.axes).filter((axis) => measured.some((run) => has(run, axis)));
    if (!known.includes(view.axis)) view.axis = "step";
    const lacking = Object.keys(EBT.axes)
      .map((axis) => [axis, runs.filter((run) => !has(run, axis))])
      .filter(([, without]) => without.length)
      .map(([axis, without]) => [EBT.axes[axis].label, without.map((run) => run.label).join(", ")])
      .map(([label, names]) => `${label}: not recorded by ${names}`);
    const change = (name) => (value) => {
      view[name] = value;
      draw();
    };
    const pick = h(
      "select",
      { "aria-label": "metric", name: "metric", onchange: (event) => change("metric")(event.target.value) },
      all.map(([name, series]) => h("option", { value: name }, EBT.upper(series.title))),
    );
    pick.value = view.metric;
    return [
      h(
        "div",
        { class: "toolbar" },
        pick,
        EBT.segments(
          "axis",
          known.map((axis) => [axis, EBT.axes[axis].label]),
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

  // Losses fall so much in the beginning that nothing could be seen after: the range of the later four fifths.
  function lateRange(curves) {
    const end = Math.min(...curves.map(({ xs }) => xs[xs.length - 1]));
    const values = curves
      .flatMap(({ xs, ys }) => [...ys.filter((_, place) => xs[place] >= 0.2 * end), EBT.math.at(xs, ys, 0.2 * end)])
      .filter((value) => value !== null);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const margin = 0.04 * (high - low);
    return high > low && (!view.logy || low > margin) ? [low - margin, high + margin] : null;
  }

  function paint() {
    const curves = curvesOf(view.axis);
    const groups = groupsOf(curves);
    const series = metrics().find(([name]) => name === view.metric)[1];
    const { title, scale } = EBT.axisOf(view.axis, Math.max(...curves.map(({ xs }) => xs[xs.length - 1])));
    const traces = tracesOf(groups, scale);
    EBT.draw(
      plot,
      traces,
      EBT.layout({
        ends: EBT.ends(traces),
        yrange: view.late ? lateRange(curves) : null,
        xtitle: title,
        ytitle: [EBT.upper(series.title), series.unit].filter(Boolean).join(", "),
        logx: view.logx,
        logy: view.logy,
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

  // Losses per token of two tokenizers are numbers of two units; bits per byte are of one.
  function verdict(curves, groups, series) {
    const near = (some) =>
      some.every(({ exact }) => exact) ? 0 : 0.01 * Math.min(...some.map(({ xs }) => xs[xs.length - 1]));
    const bits = view.metric.replace(/_(loss|perplexity)$/, "_bits_per_byte");
    const inBits = bits === view.metric ? [] : curvesOf(view.axis, bits);
    const runsOf = (some) => some.map(({ run }) => run);
    if (
      inBits.length === curves.length &&
      "tokenizer" in EBT.obstacles(runsOf(curves), view.metric) &&
      !Object.keys(EBT.obstacles(runsOf(curves), bits)).length
    ) {
      const note = "in bits per byte, since the tokenizers differ";
      const told = inBits[0].run.curves.series[bits];
      return EBT.verdictCard(groupsOf(inBits), bits, told, near(inBits), placeText, note);
    }
    return EBT.verdictCard(groups, view.metric, series, near(curves), placeText);
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
    const names = wanted().map((file) => (EBT.details[file] || {}).name);
    runs = wanted()
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
    if (!metrics().some(([name]) => name === view.metric)) view.metric = telling();
    plot = h("div", { class: "plot tall" });
    main.replaceChildren(
      EBT.header("Compare", h("span", { class: "quiet" }, EBT.plural(runs.length, "run"))),
      h("div", { id: "chips" }),
      h("div", { id: "controls" }),
      h("section", { class: "card wide" }, h("div", { id: "legend" }), plot),
      h("div", { id: "verdict" }),
      h("div", { id: "settings" }),
      EBT.codeCard(runs),
    );
    draw();
  };

  const load = async () => {
    for (const file of wanted()) {
      if (!EBT.curves[file]) await EBT.load(`${EBT.base}data/${file}.curves.js`);
      if (!EBT.details[file]) await EBT.load(`${EBT.base}data/${file}.js`);
    }
    EBT.render();
  };
  EBT.sources = () => [
    `${EBT.base}runs.js`,
    ...wanted().flatMap((file) => [`${EBT.base}data/${file}.curves.js`, `${EBT.base}data/${file}.js`]),
  ];
  addEventListener("hashchange", load);
  load();
})();
