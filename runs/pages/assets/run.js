// The page of one run.
"use strict";
(function () {
  const h = EBT.h;
  const file = document.body.dataset.file;
  const view = { axis: "step", weight: 0, logy: false, logx: false };
  const drawn = new Map();
  let charts = [];

  const clip = () => (EBT.details[file].settings.find(({ name }) => name === "gradient_clip_val") || {}).value;
  // How many steps were clipped; where it is most of them, the length of the gradient no longer tells anything.
  function clipped({ series }) {
    const shares = series.clipped_share ? series.clipped_share.y.filter((y) => y !== null) : [];
    if (!shares.length || !clip()) return null;
    const share = shares.reduce((sum, y) => sum + y, 0) / shares.length;
    const text = `clipped to ${EBT.number(clip())} at ${Math.round(100 * share)}\u2009% of the steps`;
    return h("span", { class: share > 0.5 ? "warn" : "quiet" }, share > 0.5 ? `\u26A0 ${text}` : text);
  }

  // Charts that belong together, in the order of reading. `of`: names or a pattern; what none of them takes comes after.
  // limit: a line across; note: what stands beside the title.
  const GROUPS = [
    { title: "Loss", of: ["train_loss", "valid_loss", "test_loss"], wide: true, log: true },
    { title: "Validation loss after each descent step", of: /^valid_loss_step_\d+$/, log: true },
    { title: "Thinking gain", of: ["thinking_gain", "valid_thinking_gain", "test_thinking_gain"] },
    { title: "Energy along the descent", of: /^(energy_first|energy_last|energy_step_\d+)$/ },
    { title: "Energy drop", of: ["energy_gap"] },
    { title: "Shares of the training loss", of: /^loss_share\//, stacked: true },
    { title: "Terms of the training loss", of: ["contrastive_loss"], log: true },
    { title: "Accuracy", of: ["valid_accuracy", "valid_top5"] },
    { title: "Step size of the descent", of: ["step_size"] },
    { title: "Slope of the energy", of: ["energy_gradient_norm"], log: true },
    { title: "Gradient norm", of: ["gradient_norm"], log: true, limit: clip, note: clipped },
    { title: "Gradient norm by layer", of: /^gradient_norm\//, log: true },
    { title: "Clipped steps", of: ["clipped_share"] },
    { title: "Learning rate", of: /^learning_rate(\/|$)/ },
    { title: "Speed", of: ["tokens_per_second"] },
    { title: "Waiting for data", of: ["loader_wait_share"] },
  ];
  const USAGE = [
    { title: "Processor", of: ["cpu_percent", "gpu_percent"], unit: "%" },
    { title: "Memory", of: ["memory_bytes", "gpu_memory_bytes"], unit: "bytes" },
    { title: "Waiting for data", of: ["loader_wait_share"] },
    { title: "Disk", of: ["read_bytes", "written_bytes"], unit: "bytes" },
  ];
  const SAID_ELSEWHERE = /_(perplexity|bits_per_byte|targets)$/; // the loss in other words, and a constant

  function groupsOf(curves, groups) {
    const left = new Set(Object.keys(curves.series).filter((name) => !SAID_ELSEWHERE.test(name)));
    const constant = [...left].filter((name) => new Set(curves.series[name].y).size === 1 && !/loss/.test(name));
    const found = [];
    for (const group of groups) {
      const names = (
        Array.isArray(group.of)
          ? group.of
          : [...left].filter((name) => group.of.test(name)).sort((a, b) => a.localeCompare(b, "en", { numeric: true }))
      ).filter((name) => left.has(name));
      names.forEach((name) => left.delete(name));
      if (names.some((name) => !constant.includes(name))) found.push({ ...group, names, curves });
      else names.forEach((name) => left.add(name));
    }
    const rest = [...left].filter((name) => !constant.includes(name));
    found.push(...rest.map((name) => ({ title: EBT.upper(curves.series[name].title), names: [name], curves })));
    return [found, constant.filter((name) => left.has(name))];
  }

  function drawChart({ element, group }) {
    const { curves, names } = group;
    const axis = curves.places[view.axis] ? view.axis : "step";
    const longest = Math.max(...(curves.places.seconds || [0]));
    const { title, scale } = EBT.axisOf(axis, longest);
    const along = (steps) => EBT.math.along(curves, axis, steps).map(scale);
    const logy = view.logy && group.log;
    const traces = names.flatMap((name, place) => {
      const series = curves.series[name];
      const dash = EBT.dashes[Math.floor(place / EBT.palette().length) % EBT.dashes.length];
      const more = { line: { dash }, ...(group.stacked ? { stackgroup: "share", pale: false } : {}) };
      // What was evaluated over more or less text than the curve is no part of it.
      const [curve, ...others] = EBT.math.parts(series);
      const title = EBT.upper(short(name, series));
      const weight = group.stacked || curve.x.length < 20 ? 0 : view.weight;
      return [
        ...EBT.curve(along(curve.x), curve.y, title, EBT.colour(place), weight, more),
        ...others.map(({ x, y, of }) =>
          EBT.line(along(x), y, `${title}, of ${EBT.large(of)}`, EBT.colour(place), {
            mode: "markers",
            marker: { size: 8, symbol: "diamond-open" },
          }),
        ),
      ];
    });
    const limit = group.limit && group.limit();
    const ends = EBT.ends(traces);
    if (limit && ends) {
      const muted = getComputedStyle(document.documentElement).getPropertyValue("--muted").trim();
      traces.push(EBT.line(ends, [limit, limit], "clipped at", muted, { mode: "lines", line: { dash: "dash", width: 1.2 } }));
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
        ends,
        marks: attempts.filter(({ x }) => !view.logx || x > 0),
        stacked: group.stacked,
      }),
    );
  }

  const short = (name, series) => (name.startsWith("loss_share/") ? name.slice(11).replaceAll("_", " ") : series.title);

  function chart(group) {
    const element = drawn.get(group.title) || h("div", { class: "plot" }); // kept, with what somebody zoomed into
    drawn.set(group.title, element);
    charts.push({ element, group });
    const many = group.names.length > 12;
    const legend =
      group.names.length > 1 && !many
        ? EBT.legend(
            group.names.map((name, place) => [EBT.upper(short(name, group.curves.series[name])), EBT.colour(place)]),
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
    const known = Object.keys(EBT.axes).filter((axis) => axis === "step" || curves.places[axis]);
    const lacking = Object.keys(EBT.axes).filter((axis) => !known.includes(axis));
    return h(
      "div",
      { class: "toolbar" },
      EBT.segments(
        "axis",
        known.map((axis) => [axis, EBT.axes[axis].label]),
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
        ? h("span", { class: "quiet" }, `not recorded: ${lacking.map((axis) => EBT.axes[axis].label).join(", ")}`)
        : null,
    );
  }
  const press = (axis) =>
    document
      .querySelectorAll(".segments button")
      .forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.value === axis)));

  const redraw = () => charts.forEach(drawChart);
  EBT.repaint = () => EBT.render();

  EBT.render = function () {
    const run = EBT.details[file];
    const curves = EBT.curves[file] || { places: {}, series: {} };
    charts = [];
    const [groups, constant] = groupsOf(curves, GROUPS);
    const measured = { ...run.usage, series: { ...run.usage.series } };
    if (curves.series.loader_wait_share) delete measured.series.loader_wait_share; // one chart for waiting
    const [usage] = groupsOf(measured, USAGE);
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
        h("div", { class: "charts" }, groups.map(chart)),
        constant.length
          ? h(
              "p",
              { class: "quiet" },
              `Constant: ${constant.map((name) => `${curves.series[name].title} ${EBT.number(curves.series[name].y[0])}`).join(", ")}.`,
            )
          : null,
        usage.length ? h("h2", {}, "Usage") : null,
        usage.length ? h("div", { class: "charts" }, usage.map(chart)) : null,
        h("h2", {}, "About this run"),
        run.command ? h("pre", { class: "command" }, run.command) : null,
        h("div", { class: "charts" }, EBT.record(run)),
      ].filter(Boolean),
    );
    charts.forEach(drawChart); // all of them: a page that is printed or photographed is not scrolled first
  };

  EBT.sources = () => [`data/${file}.curves.js`, `data/${file}.js`];
  EBT.render();
})();
