// What all pages share: making elements, formatting numbers, light and dark, reloading data that changed.
"use strict";
var EBT = { index: { runs: [], tasks: {}, settings: [], shared: {} }, curves: {}, details: {} };

// An element. Texts become text nodes, so nothing that a person typed is ever read as HTML.
EBT.h = function (tag, attributes, ...children) {
  const svg = ["svg", "polyline", "circle", "path"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
};

EBT.base = document.currentScript.getAttribute("src").replace("assets/common.js", "");

// ---- numbers and times

EBT.number = function (value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return value.toLocaleString("en-US");
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(digits - 2).replace("e+", "e");
  return value.toLocaleString("en-US", {
    minimumFractionDigits: 0,
    maximumSignificantDigits: Math.max(digits, Math.ceil(Math.log10(size + 1))),
  });
};
// A fixed number of decimals, for columns of numbers.
EBT.fixed = (value, decimals = 4) => (Number.isFinite(value) ? value.toFixed(Math.abs(value) >= 1e4 ? 0 : decimals) : "");
// With an SI prefix: 1.5 M.
EBT.withPrefix = function (value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "";
  const units = [
    [1e24, "Y"],
    [1e21, "Z"],
    [1e18, "E"],
    [1e15, "P"],
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ];
  const [size, unit] = units.find(([size]) => Math.abs(value) >= size) || [1, ""];
  return `${Number((value / size).toPrecision(3))}${unit && "\u2009" + unit}`;
};
EBT.duration = function (seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  if (seconds < 60) return `${Number(seconds.toPrecision(2))} s`;
  const minutes = Math.round(seconds / 60);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.round((minutes % 1440) / 60)} h`;
};
// A duration as one number with one unit, for a column.
EBT.shortDuration = function (seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  const [size, unit] = [
    [86400 * 2, 86400, "d"],
    [7200, 3600, "h"],
    [120, 60, "min"],
    [0, 1, "s"],
  ]
    .find(([least]) => seconds >= least)
    .slice(1);
  return `${(seconds / size).toFixed(unit === "s" ? 0 : 1)}\u2009${unit}`;
};
EBT.date = function (seconds) {
  const date = new Date(seconds * 1000);
  if (!Number.isFinite(seconds) || Number.isNaN(date.getTime())) return "";
  const two = (value) => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}`;
};
// A share of all ("share of tokens") is shown in percent.
EBT.isShare = (series) => Boolean(series && (series.unit || "").startsWith("share of "));
EBT.percent = (value, decimals = 1) => (Number.isFinite(value) ? `${(100 * value).toFixed(decimals)}\u2009%` : "");
EBT.measured = (value, series, decimals = 4) =>
  EBT.isShare(series) ? EBT.percent(value) : EBT.fixed(value, decimals);
// The unit beside such a number: "of tokens" after a percentage.
EBT.unitOf = (series) => (EBT.isShare(series) ? series.unit.slice(6) : series.unit);
EBT.plural = (count, word) => `${count.toLocaleString("en-US")} ${word}${count === 1 ? "" : "s"}`;
// Names of flags as words, in the plural: tokenizers.
EBT.plurals = (names) => names.map((name) => `${name.replaceAll("_", " ")}s`).join(" and ");
EBT.textOf = (value) => (typeof value === "string" ? value : (JSON.stringify(value) ?? ""));
EBT.capitalize = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// ---- parts of every page

EBT.state = (state, more = "", cause = null) =>
  EBT.h("span", { class: "state", "data-state": state.replaceAll(" ", "-"), title: cause }, EBT.h("i"), state + more);

// titles: texts or th elements. rows: tr elements.
EBT.table = (titles, rows, kind = "plain") =>
  EBT.h(
    "table",
    { class: kind },
    EBT.h(
      "thead",
      {},
      EBT.h(
        "tr",
        {},
        titles.map((title) => (typeof title === "string" ? EBT.h("th", {}, title) : title)),
      ),
    ),
    EBT.h("tbody", {}, rows),
  );

EBT.segments = function (label, options, selected, select) {
  const group = EBT.h("div", { class: "segments", role: "group", "aria-label": label });
  for (const [value, text] of options) {
    const pressed = String(value === selected);
    group.append(
      EBT.h(
        "button",
        { type: "button", "data-value": value, "aria-pressed": pressed, onclick: () => select(value) },
        text,
      ),
    );
  }
  return group;
};

EBT.toggle = (text, on, change, name) =>
  EBT.h(
    "label",
    { class: "toggle" },
    EBT.h("input", { type: "checkbox", name, checked: on, onchange: (event) => change(event.target.checked) }),
    text,
  );

EBT.header = function (title, ...rest) {
  const back = document.body.classList.contains("index")
    ? null
    : EBT.h("a", { class: "back", href: `${EBT.base ? "" : "../"}index.html` }, "All runs");
  const theme = EBT.h(
    "button",
    {
      type: "button",
      class: "theme",
      title: "light or dark",
      "aria-label": "switch between light and dark",
      onclick: EBT.switchTheme,
    },
    "\u25D0",
  );
  return EBT.h("header", {}, back, EBT.h("div", { class: "title" }, EBT.h("h1", {}, title), ...rest, theme));
};

// The address of a file in a run folder.
EBT.runFile = (file, ...names) =>
  `${EBT.base ? "" : "../"}runs/${file}/${names.map(encodeURIComponent).join("/")}`;

// ---- pictures by training step

EBT.shownSteps = new Map(); // {name of a picture: the step that was chosen}; without one, the last
// One picture by training step, of a run or of several beside one another. sides: [{label, pictures: [[step, address],
// ...]}, ...]; of each side the newest that is not after the chosen step is shown.
EBT.picturesByStep = function (name, sides) {
  const steps = [...new Set(sides.flatMap(({ pictures }) => pictures.map(([step]) => step)))].sort((a, b) => a - b);
  const last = steps.length - 1;
  const newest = (pictures, step) => pictures.filter(([other]) => other <= step).pop();
  const views = sides.map(({ label, pictures }) => {
    const link = EBT.h("a", {}, EBT.h("img", {}));
    const caption = EBT.h("figcaption");
    const show = (step) => {
      const picture = newest(pictures, step);
      link.hidden = !picture;
      const words = picture ? `step ${EBT.number(picture[0])}` : "not drawn yet";
      caption.textContent = label ? `${label}, ${words}` : words;
      if (!picture) return;
      link.href = link.firstChild.src = picture[1];
      link.firstChild.alt = `${name} at ${caption.textContent}`;
    };
    return { show, element: EBT.h("figure", {}, link, caption) };
  });
  const strip = steps.map((step, index) => {
    const [, address] = newest(sides.find(({ pictures }) => newest(pictures, step)).pictures, step);
    const title = `step ${EBT.number(step)}`;
    return EBT.h(
      "button",
      { type: "button", tabindex: -1, title, "aria-label": title, onclick: () => choose(index) },
      EBT.h("img", { src: address, alt: "" }),
    );
  });
  const range = EBT.h("input", {
    type: "range",
    min: 0,
    max: last,
    step: 1,
    "aria-label": `training step of ${name}`,
    oninput: () => choose(Number(range.value)),
  });
  const place = EBT.h("output", {});
  const choose = (index) => {
    range.value = index;
    range.setAttribute("aria-valuetext", `step ${EBT.number(steps[index])}`);
    place.textContent = `step ${EBT.number(steps[index])}, ${index + 1} of ${steps.length}`;
    if (index === last) EBT.shownSteps.delete(name);
    else EBT.shownSteps.set(name, steps[index]);
    views.forEach(({ show }) => show(steps[index]));
    strip.forEach((button, other) => button.setAttribute("aria-pressed", String(other === index)));
  };
  const chosen = steps.indexOf(EBT.shownSteps.get(name));
  choose(chosen < 0 ? last : chosen);
  const several = steps.length > 1;
  return EBT.h(
    "div",
    { class: "by-step", "data-name": name },
    EBT.h("h4", {}, name.replaceAll("_", " ")),
    EBT.h(
      "div",
      { class: "sides" },
      views.map(({ element }) => element),
    ),
    several ? EBT.h("label", { class: "steps" }, range, place) : null,
    several ? EBT.h("div", { class: "strip" }, strip) : null,
  );
};

EBT.runLink = (file) => `${EBT.base}${file}.html`;

// ---- light and dark

// Read a setting that the browser stores, or store it.
EBT.preference = function (name, value) {
  try {
    // some browsers store nothing for pages opened from a disk
    if (value === undefined) return localStorage.getItem(name);
    localStorage.setItem(name, value);
  } catch {
    /* then it lasts as long as the page */
  }
  return null;
};
EBT.isDark = () =>
  (document.documentElement.dataset.theme ||
    (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
EBT.switchTheme = function () {
  document.documentElement.dataset.theme = EBT.isDark() ? "light" : "dark";
  EBT.preference("ebt-theme", document.documentElement.dataset.theme);
  if (EBT.repaint) EBT.repaint();
};
if (EBT.preference("ebt-theme")) document.documentElement.dataset.theme = EBT.preference("ebt-theme");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => EBT.repaint && EBT.repaint());

// ---- data are loaded as scripts, since a page opened from a disk may load nothing else

EBT.load = (source) =>
  new Promise((done) => {
    const script = EBT.h("script", { src: source });
    script.onload = script.onerror = () => {
      script.remove();
      done();
    };
    document.head.append(script);
  });
// Called by live.js, which is loaded every `every` seconds. Where `mark`, a hash of the list of runs, changed, a page
// that has `sources` loads them again and renders.
EBT.pulse = async function (mark, every) {
  const changed = EBT.mark !== undefined && EBT.mark !== mark;
  EBT.mark = mark;
  if (changed && EBT.sources) {
    for (const source of EBT.sources()) await EBT.load(`${source}?${mark}`);
    EBT.render();
  }
  EBT.every = every || EBT.every; // a run that ends writes live.js with 0, while `serve` goes on
  if (EBT.every) setTimeout(() => EBT.load(`${EBT.base}live.js?${Date.now()}`), EBT.every * 1000);
};
