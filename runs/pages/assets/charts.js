// The arithmetic of curves (EBT.math, which touches no element), then Plotly in the colours and fonts of the page.
"use strict";
EBT.math = {};

// The value of y at x by linear interpolation, for rising xs; null outside of them.
EBT.math.interpolate = function (xs, ys, x) {
  const last = xs.length - 1;
  if (last < 0 || x < xs[0] || x > xs[last]) return null;
  let low = 0,
    high = last;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  if (x === xs[low]) return ys[low];
  if (xs[high] === xs[low] || x === xs[high]) return ys[high];
  return ys[low] + (ys[high] - ys[low]) * ((x - xs[low]) / (xs[high] - xs[low]));
};

// Steps converted to another axis (units, seconds or FLOPs) by curves.places, which has all of them at some steps.
EBT.math.alongAxis = function (curves, axis, steps) {
  if (axis === "step") return steps;
  const { step, [axis]: values } = curves.places;
  return steps.map((x) => EBT.math.interpolate(step, values, Math.min(Math.max(x, step[0]), step[step.length - 1])));
};

// An exponential mean that starts without bias: weight 0 leaves the curve, 0.99 looks back about 100 points.
EBT.math.smooth = function (ys, weight) {
  if (!weight) return ys;
  let mean = 0,
    sum = 0;
  return ys.map((y) => {
    if (y === null) return null;
    mean = weight * mean + (1 - weight) * y;
    sum = weight * sum + (1 - weight);
    return mean / sum;
  });
};

// The running median of the last `count` values, which a single spike does not move.
EBT.math.median = (ys, count) =>
  ys.map((_, index) => {
    const near = ys.slice(Math.max(0, index - count + 1), index + 1).sort((a, b) => a - b);
    return (near[(near.length - 1) >> 1] + near[near.length >> 1]) / 2;
  });

// A curve without its null values, which can be interpolated: [xs, ys].
EBT.math.withoutGaps = function (xs, ys) {
  const points = xs.map((x, index) => [x, ys[index]]).filter(([x, y]) => x !== null && y !== null);
  return [points.map(([x]) => x), points.map(([, y]) => y)];
};

// The curve of an evaluation, split by how much data each point saw (`of`): [{of, x, y}], the one of most points first.
EBT.math.byExtent = function ({ x, y, of }) {
  const parts = new Map();
  x.forEach((step, index) => {
    const key = of ? of[index] : null;
    if (!parts.has(key)) parts.set(key, { of: key, x: [], y: [] });
    parts.get(key).x.push(step);
    parts.get(key).y.push(y[index]);
  });
  const size = ({ x }) => x.filter((step) => step > 0).length;
  return [...parts.values()].sort((a, b) => size(b) - size(a) || b.of - a.of);
};

// Evenly spread xs in the range that all of the curves cover; none where they do not overlap.
EBT.math.grid = function (curves, count = 400) {
  const start = Math.max(...curves.map(([xs]) => xs[0] ?? Infinity));
  const end = Math.min(...curves.map(([xs]) => xs[xs.length - 1] ?? -Infinity));
  if (!(end > start)) return end === start ? [start] : [];
  return Array.from({ length: count }, (_, index) =>
    index === count - 1 ? end : start + ((end - start) * index) / (count - 1),
  );
};

// Mean, least and largest of several curves at each x of the grid.
EBT.math.band = function (curves, grid) {
  const values = grid.map((x) => curves.map(([xs, ys]) => EBT.math.interpolate(xs, ys, x)));
  return {
    x: grid,
    mean: values.map((row) => row.reduce((sum, y) => sum + y, 0) / row.length),
    low: values.map((row) => Math.min(...row)),
    high: values.map((row) => Math.max(...row)),
  };
};

// The xs at which all of the curves were measured over the same amount of data: [{x, values}], not interpolated.
// points: [[{x, y, of}, ...], ...] of rising x. near: how far apart two xs may be that count as one. Of several points at
// one x, that over the most data counts.
EBT.math.commonPoints = function (points, near) {
  const byExtent = points.map((curve) => {
    const groups = new Map();
    for (const point of curve) groups.set(point.of, [...(groups.get(point.of) || []), point]);
    return groups;
  });
  const nearest = (curve, x) => {
    let low = 0,
      high = curve.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (curve[middle].x <= x) low = middle;
      else high = middle;
    }
    const point = x - curve[low].x <= curve[high].x - x && curve[high].x !== x ? curve[low] : curve[high];
    return Math.abs(point.x - x) <= near ? point : null;
  };
  const common = new Map();
  for (const [of, curve] of byExtent[0]) {
    if (!byExtent.every((extents) => extents.has(of))) continue;
    for (const { x } of curve) {
      const values = byExtent.map((extents) => nearest(extents.get(of), x));
      if (values.includes(null) || (common.has(x) && common.get(x).of > of)) continue;
      common.set(x, { x, of, values: values.map(({ y }) => y) });
    }
  }
  return [...common.values()].sort((a, b) => a.x - b.x);
};

// Where the first of two overtakes the second or falls behind: [{from, to, leads}], between two measured xs.
// leads: by how much it is ahead at each x. A lead of no more than `least` is ignored.
EBT.math.leadChanges = function (xs, leads, least = 0) {
  const changes = [];
  let last = null;
  leads.forEach((lead, index) => {
    if (Math.abs(lead) <= least) return;
    if (last !== null && lead > 0 !== leads[last] > 0)
      changes.push({ from: xs[last], to: xs[index], leads: lead > 0 });
    last = index;
  });
  return changes;
};

// The two-sided quantile of Student's t distribution for a share of all values, for degrees of freedom from 1 on:
// with t = sqrt(freedom) tan(angle) the density is cos(angle) ** (freedom - 1).
EBT.math.studentT = function (freedom, share = 0.95) {
  const degrees = Math.max(1, freedom);
  const area = (end) => {
    const count = 400; // of Simpson's rule
    let sum = 0;
    for (let index = 0; index <= count; index++)
      sum += (index % count ? 2 + 2 * (index % 2) : 1) * Math.cos((end * index) / count) ** (degrees - 1);
    return (sum * end) / (3 * count);
  };
  const whole = area(Math.PI / 2);
  let [low, high] = [0, Math.PI / 2];
  for (let round = 0; round < 50; round++) {
    const middle = (low + high) / 2;
    if (area(middle) < share * whole) low = middle;
    else high = middle;
  }
  return Math.sqrt(degrees) * Math.tan(low);
};

// Whether two sets of results, one number a seed, differ by more than seeds do: Welch's test at 95 %.
// A side with a single seed is assumed to have the variance of the other. pairs: how many are tested together
// (Bonferroni).
EBT.math.welchTest = function (first, second, pairs = 1) {
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const spread = (values) => values.reduce((sum, value) => sum + (value - mean(values)) ** 2, 0) / (values.length - 1);
  const difference = mean(first) - mean(second);
  const several = [first, second].filter((values) => values.length > 1);
  if (!several.length) return { kind: "unknown", difference, noise: null };
  const [a, b] = [first, second].map((values) => spread(values.length > 1 ? values : several[0]) / values.length);
  const error = Math.sqrt(a + b);
  const terms = [
    [a, first],
    [b, second],
  ].filter(([, values]) => values.length > 1);
  const freedom =
    terms.length === 2 && error
      ? (a + b) ** 2 / terms.reduce((sum, [part, values]) => sum + part ** 2 / (values.length - 1), 0)
      : several[0].length - 1;
  const noise = EBT.math.studentT(freedom, 1 - 0.05 / pairs) * error;
  return { kind: Math.abs(difference) <= noise ? "within" : "beyond", difference, noise };
};

// Runs grouped by all settings but the seed: [[run, ...], ...] in the order of the first of each.
EBT.math.bySeed = function (runs) {
  const groups = new Map();
  for (const run of runs) {
    const compared = run.settings.filter((setting) => setting.compared && setting.name !== "seed");
    const key = JSON.stringify(compared.map((setting) => [setting.name, setting.value]).sort());
    const group = compared.length ? key : run.file;
    groups.set(group, [...(groups.get(group) || []), run]);
  }
  return [...groups.values()];
};

EBT.palette = () =>
  EBT.isDark()
    ? ["#5cb8f0", "#ff9557", "#35c99b", "#eda3d0", "#f2c14b", "#a5a8ff", "#b9c0c8"]
    : ["#0072b2", "#d0540a", "#00875f", "#b9588c", "#9a6b00", "#5b5bd6", "#5f6b76"];
EBT.dashes = ["solid", "dash", "dot", "dashdot"];
EBT.colour = (index) => EBT.palette()[index % EBT.palette().length];
EBT.withAlpha = (colour, share) =>
  colour +
  Math.round(share * 255)
    .toString(16)
    .padStart(2, "0");
// Plotly reads some HTML in its texts.
EBT.escapeHtml = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

// The axes that runs can be drawn along, by the units that their tasks count: {axis: {label, title}}.
EBT.axesOf = (units) => ({
  step: { label: "Step", title: "optimizer step" },
  ...Object.fromEntries(units.map((unit) => [unit, { label: EBT.capitalize(unit), title: `${unit} trained on` }])),
  seconds: { label: "Time", title: "training time" },
  flops: { label: "FLOPs", title: "training FLOPs" },
});

// Seconds in the unit that suits their range: [divisor, unit].
EBT.timeUnit = (longest) =>
  longest > 172800 ? [86400, "d"] : longest > 7200 ? [3600, "h"] : longest > 300 ? [60, "min"] : [1, "s"];

// The title of an axis, and the function that converts its values into the unit of the title.
EBT.axisOf = function (axis, { title }, longest) {
  if (axis !== "seconds") return { title, scale: (x) => x };
  const [divisor, unit] = EBT.timeUnit(longest);
  return { title: `${title}, ${unit}`, scale: (x) => (x === null ? null : x / divisor) };
};

EBT.TOOLBAR_HEIGHT = 30; // pixels above a chart, so that the tool bar covers no curve

EBT.PERCENT = ".4~%"; // of an axis

// percent: y is a share. xticks: the only values of x.
EBT.layout = function ({ xtitle, ytitle, logx, logy, height, marks, stacked, xrange, yrange, percent, xticks }) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = {
    gridcolor: colour("--grid"),
    linecolor: colour("--line"),
    zeroline: false,
    automargin: true,
    ticks: "",
    tickfont: { size: 11.5 },
    exponentformat: "SI",
    minexponent: 4,
  };
  const shapes = (marks || []).map(({ x }) => ({
    type: "line",
    x0: x,
    x1: x,
    yref: "paper",
    y0: 0,
    y1: 1,
    line: { color: colour("--muted"), width: 1, dash: "dot" },
  }));
  const annotations = (marks || []).map(({ x, text }) => ({
    x: logx ? Math.log10(x) : x,
    yref: "paper",
    y: 1,
    yanchor: "bottom",
    xanchor: "left",
    showarrow: false,
    text: EBT.escapeHtml(text),
    font: { size: 11, color: colour("--muted") },
  }));
  return {
    height: height + EBT.TOOLBAR_HEIGHT,
    shapes,
    annotations,
    margin: { l: 52, r: 12, t: EBT.TOOLBAR_HEIGHT, b: 40 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--muted"), activecolor: colour("--accent") },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: {
      family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif",
      size: 12.5,
      color: colour("--text"),
    },
    xaxis: {
      ...axis,
      title: { text: xtitle, font: { size: 12, color: colour("--muted") }, standoff: 8 },
      type: logx ? "log" : "linear",
      ...(xticks ? { tickmode: "array", tickvals: xticks, ticktext: xticks.map(String) } : {}),
      ...(xrange && !logx ? { autorangeoptions: { minallowed: xrange[0], maxallowed: xrange[1] } } : {}),
    },
    yaxis: {
      ...axis,
      title: { text: EBT.escapeHtml(ytitle || ""), font: { size: 12, color: colour("--muted") }, standoff: 6 },
      type: logy ? "log" : "linear",
      ...(percent || stacked ? { tickformat: EBT.PERCENT } : {}),
      ...(stacked ? { range: [0, 1] } : {}),
      ...(yrange ? { range: logy ? yrange.map(Math.log10) : yrange } : {}),
    },
    hovermode: "x unified",
    hoverlabel: {
      bgcolor: colour("--raised"),
      bordercolor: colour("--line"),
      font: { color: colour("--text"), size: 12 },
      namelength: 40,
    },
    showlegend: false,
    uirevision: `${xtitle}${ytitle}${logx}${logy}${yrange ? "end" : ""}`,
  };
};

// The least and the largest x of some lines.
EBT.rangeOfX = function (traces) {
  let [low, high] = [Infinity, -Infinity];
  for (const { x } of traces)
    for (const value of x)
      if (value !== null) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
  return high > low ? [low, high] : null;
};

EBT.draw = function (element, traces, layout) {
  const percent = layout.yaxis.tickformat === EBT.PERCENT;
  const formatted = traces.map((trace) =>
    percent && trace.hovertemplate ? { ...trace, hovertemplate: "%{y:.1%}" } : trace,
  );
  return Plotly.react(element, formatted, layout, {
    displaylogo: false,
    responsive: true,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
    toImageButtonOptions: { format: "svg" },
  });
};

// Paper is white and narrower than a window: charts are drawn again for printing and back.
EBT.fitToPaper = function (printing) {
  const { classList, dataset } = document.documentElement;
  const theme = dataset.theme || "";
  classList.toggle("printing", printing);
  if (printing) EBT.theme = theme;
  dataset.theme = printing ? "light" : EBT.theme;
  if (!dataset.theme) delete dataset.theme;
  if (dataset.theme !== theme && EBT.repaint) EBT.repaint();
  for (const element of document.querySelectorAll(".js-plotly-plot"))
    Plotly.relayout(element, printing ? { width: element.clientWidth } : { width: null, autosize: true });
};
addEventListener("beforeprint", () => EBT.fitToPaper(true));
addEventListener("afterprint", () => EBT.fitToPaper(false));

EBT.MARKED_POINTS = 40; // points of a curve that are marked one by one
EBT.line = (x, y, name, colour, more = {}) => ({
  type: "scatter",
  mode: x.length <= EBT.MARKED_POINTS ? "lines+markers" : "lines",
  marker: { size: 5 },
  x,
  y,
  name: EBT.escapeHtml(name),
  connectgaps: false,
  line: { color: colour, width: 1.9, ...(more.line || {}) },
  hovertemplate: "%{y:.5~g}",
  ...Object.fromEntries(Object.entries(more).filter(([key]) => key !== "line")),
});

// The traces of a curve. With a weight it is smoothed, and the measured one is drawn pale behind it.
EBT.curve = function (x, y, name, colour, weight, more = {}) {
  const line = EBT.line(x, EBT.math.smooth(y, weight), name, colour, more);
  if (!weight || more.pale === false) return [line];
  return [
    EBT.line(x, y, `${name}, as measured`, EBT.withAlpha(colour, 0.28), {
      mode: "lines",
      hoverinfo: "skip",
      hovertemplate: undefined,
      line: { width: 1.2 },
    }),
    line,
  ];
};

EBT.legend = (entries) =>
  EBT.h(
    "ul",
    { class: "legend" },
    entries.map(([text, colour, dash]) =>
      EBT.h(
        "li",
        {},
        EBT.h("i", { style: `border-top: 3px ${dash && dash !== "solid" ? "dashed" : "solid"} ${colour}` }),
        text,
      ),
    ),
  );

EBT.slider = function (weight, change) {
  const text = (hundredths) => (hundredths ? `smoothing ${(hundredths / 100).toFixed(2)}` : "smoothing off");
  const label = EBT.h("span", {}, text(Math.round(weight * 100)));
  const input = EBT.h("input", {
    type: "range",
    name: "smoothing",
    min: 0,
    max: 99,
    value: Math.round(weight * 100),
    oninput: (event) => {
      label.textContent = text(Number(event.target.value));
      change(Number(event.target.value) / 100);
    },
  });
  return EBT.h("label", { class: "slider" }, input, label);
};

EBT.diffLines = (text) =>
  text.split("\n").map((line) => {
    const kind = /^(diff|index|---|\+\+\+) /.test(line)
      ? "file"
      : line.startsWith("@@")
        ? "place"
        : line.startsWith("+")
          ? "added"
          : line.startsWith("-")
            ? "removed"
            : null;
    return EBT.h("span", { class: kind }, `${line}\n`);
  });
