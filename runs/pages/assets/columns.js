// A run as a row: the columns of the list.
"use strict";
(function () {
  const h = EBT.h;
  const settingColumns = () => (innerWidth < 1400 ? 2 : innerWidth < 1600 ? 4 : 6);
  const metric = (name, which) => (run) => (run.metrics && run.metrics[name] ? run.metrics[name][which] : null);
  const setting = (name) => (run) => run.settings[name];

  EBT.columns = function () {
    const { runs, settings } = EBT.index;
    const known = (column) => runs.some((run) => ![null, undefined, ""].includes(column.value(run)));
    const number = (key, title, value, show, hint) => ({
      key,
      title,
      value,
      show: (run) => show(value(run)),
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
        title: "Loss",
        value: (run) => (run.spark && run.spark.length ? run.spark[run.spark.length - 1] : null),
        show: (run) => spark(run.spark),
        kind: "spark",
      },
      number(
        "best",
        "Best valid.",
        metric("valid_loss", 1),
        (value) => EBT.fixed(value),
        "lowest validation loss, nats per token",
      ),
      number(
        "last",
        "Last valid.",
        metric("valid_loss", 0),
        (value) => EBT.fixed(value),
        "last validation loss, nats per token",
      ),
      number(
        "train",
        "Last train",
        metric("train_loss", 0),
        (value) => EBT.fixed(value),
        "last training loss, nats per token",
      ),
      number(
        "gain",
        "Thinking",
        metric("valid_thinking_gain", 0),
        (value) => EBT.fixed(value, 3),
        "nats per token that the later descent steps gain, last validation",
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
      number("seconds", "Time", (run) => run.seconds, EBT.briefly, "training time, without validation"),
      number("flops", "FLOPs", (run) => run.flops, EBT.large, "training FLOPs"),
    ].filter(known);
  };

  EBT.breakable = (title) => title.split("_").flatMap((part, place) => (place ? ["_", h("wbr"), part] : [part]));
  const settingText = (value) =>
    typeof value === "number" ? EBT.number(value, 5).replaceAll(",", "") : value === undefined ? "" : EBT.shown(value);

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

  function spark(values) {
    if (!values || values.length < 2) return "";
    const logs = values.map((value) => Math.log(Math.max(value, 1e-6)));
    const low = Math.min(...logs),
      range = Math.max(...logs) - low || 1;
    const points = logs.map(
      (y, place) =>
        `${((place / (logs.length - 1)) * 84 + 2).toFixed(1)},${(20 - ((y - low) / range) * 16).toFixed(1)}`,
    );
    const [x, y] = points[points.length - 1].split(",");
    return h(
      "svg",
      { viewBox: "0 0 90 24", width: 90, height: 24, role: "img", "aria-label": "loss by step" },
      h("polyline", { points: points.join(" ") }),
      h("circle", { cx: x, cy: y, r: 2.2 }),
    );
  }
})();
