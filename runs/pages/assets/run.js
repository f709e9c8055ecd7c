// The page of one run.
"use strict";
(function () {
  const h = EBT.h;
  const file = document.body.dataset.file;
  const view = { axis: "step", weight: 0, logy: false, logx: false };
  const drawn = new Map();
  let charts = [];

  // Charts that belong together, in the order of reading. `of`: names or a pattern; what none of them takes comes after.
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
    { title: "Gradient norm", of: ["gradient_norm"], log: true },
    { title: "Gradient norm by layer", of: /^gradient_norm\//, log: true },
    { title: "Clipped steps", of: ["clipped_share"] },
    { title: "Learning rate", of: /^learning_rate\// },
    { title: "Speed", of: ["tokens_per_second"] },
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
      if (name.startsWith("valid_") && series.x.length <= 60)
        Object.assign(more, { mode: "lines+markers", marker: { size: 5 } });
      return EBT.curve(
        along(series.x),
        series.y,
        EBT.upper(short(name, series)),
        EBT.colour(place),
        group.stacked || series.x.length < 20 ? 0 : view.weight,
        more,
      );
    });
    const attempts = EBT.details[file].attempts
      .slice(1)
      .map((attempt) => ({ x: along([attempt.first_step ?? 0])[0], text: `attempt ${attempt.attempt}` }));
    const units = [...new Set(names.map((name) => curves.series[name].unit))];
    EBT.draw(
      element,
      traces,
      EBT.layout({
        xtitle: title,
        ytitle: group.unit || (units.length === 1 ? units[0] : ""),
        logx: view.logx,
        logy,
        height: group.wide ? 400 : 250,
        ends: EBT.ends(traces),
        marks: attempts.filter(({ x }) => !view.logx || x > 0),
        stacked: group.stacked,
      }),
    );
    element.dataset.drawn = "yes";
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
    const note = many ? h("span", { class: "quiet" }, `${group.names.length} curves; point at one for its name`) : null;
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

  const redraw = () => charts.forEach((entry) => entry.element.dataset.drawn && drawChart(entry));
  EBT.repaint = () => EBT.render();

  EBT.render = function () {
    const run = EBT.details[file];
    const curves = EBT.curves[file] || { places: {}, series: {} };
    charts = [];
    const [groups, constant] = groupsOf(curves, GROUPS);
    const [usage] = groupsOf(run.usage, USAGE);
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
    const seen = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          if (!entry.isIntersecting) continue;
          seen.unobserve(entry.target);
          drawChart(charts.find((chart) => chart.element === entry.target));
        }
      },
      { rootMargin: "300px" },
    );
    charts.forEach(({ element }) => seen.observe(element));
  };

  EBT.sources = () => [`data/${file}.curves.js`, `data/${file}.js`];
  EBT.render();
})();
