// Plotly in the colours and letters of the page.
"use strict";
// Told apart by people who see few colours: after Okabe and Ito, darker on white and lighter on black.
EBT.palette = () =>
  EBT.isDark()
    ? ["#5cb8f0", "#ff9557", "#35c99b", "#eda3d0", "#f2c14b", "#a5a8ff", "#b9c0c8"]
    : ["#0072b2", "#d0540a", "#00875f", "#b9588c", "#9a6b00", "#5b5bd6", "#5f6b76"];
EBT.dashes = ["solid", "dash", "dot", "dashdot"];
EBT.colour = (place) => EBT.palette()[place % EBT.palette().length];
EBT.faded = (colour, share) =>
  colour +
  Math.round(share * 255)
    .toString(16)
    .padStart(2, "0");
// Plotly reads some HTML in its texts.
EBT.plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

EBT.axes = {
  step: { label: "Step", title: "optimizer step" },
  tokens: { label: "Tokens", title: "tokens trained on" },
  seconds: { label: "Time", title: "training time" },
  flops: { label: "FLOPs", title: "training FLOPs" },
};

// Seconds told in the unit that suits their range: [divisor, unit].
EBT.timeUnit = (longest) =>
  longest > 172800 ? [86400, "d"] : longest > 7200 ? [3600, "h"] : longest > 300 ? [60, "min"] : [1, "s"];

// The axis and the function that brings its values into its unit.
EBT.axisOf = function (axis, longest) {
  if (axis !== "seconds") return { title: EBT.axes[axis].title, scale: (x) => x };
  const [divisor, unit] = EBT.timeUnit(longest);
  return { title: `${EBT.axes.seconds.title}, ${unit}`, scale: (x) => (x === null ? null : x / divisor) };
};

EBT.BAR = 30; // pixels over a chart, in which the tool bar lies and covers no curve

EBT.layout = function ({ xtitle, ytitle, logx, logy, height, marks, stacked, ends, yrange }) {
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
    text: EBT.plain(text),
    font: { size: 11, color: colour("--muted") },
  }));
  return {
    height: height + EBT.BAR,
    shapes,
    annotations,
    margin: { l: 52, r: 12, t: EBT.BAR, b: 40 },
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
      ...(ends && !logx ? { autorangeoptions: { minallowed: ends[0], maxallowed: ends[1] } } : {}),
    },
    yaxis: {
      ...axis,
      title: { text: EBT.plain(ytitle || ""), font: { size: 12, color: colour("--muted") }, standoff: 6 },
      type: logy ? "log" : "linear",
      ...(stacked ? { range: [0, 1], tickformat: ".0%" } : {}),
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
EBT.ends = function (traces) {
  let [low, high] = [Infinity, -Infinity];
  for (const { x } of traces)
    for (const value of x)
      if (value !== null) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
  return high > low ? [low, high] : null;
};

EBT.draw = (element, traces, layout) =>
  Plotly.react(element, traces, layout, {
    displaylogo: false,
    responsive: true,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
    toImageButtonOptions: { format: "svg" },
  });

// A sheet of paper is white and narrower than a window, and nobody tells a chart.
EBT.refit = function (printing) {
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
addEventListener("beforeprint", () => EBT.refit(true));
addEventListener("afterprint", () => EBT.refit(false));

EBT.FEW = 40; // points of a curve that are marked one by one
EBT.line = (x, y, name, colour, more = {}) => ({
  type: "scatter",
  mode: x.length <= EBT.FEW ? "lines+markers" : "lines",
  marker: { size: 5 },
  x,
  y,
  name: EBT.plain(name),
  connectgaps: false,
  line: { color: colour, width: 1.9, ...(more.line || {}) },
  hovertemplate: "%{y:.5~g}",
  ...Object.fromEntries(Object.entries(more).filter(([key]) => key !== "line")),
});

// A curve as lines: smoothed where that is asked for, with the measured one pale behind it.
EBT.curve = function (x, y, name, colour, weight, more = {}) {
  const line = EBT.line(x, EBT.math.smooth(y, weight), name, colour, more);
  if (!weight || more.pale === false) return [line];
  return [
    EBT.line(x, y, `${name}, as measured`, EBT.faded(colour, 0.28), {
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
