// The arithmetic of curves: places on an axis, smoothing, bands over seeds, verdicts. No element is touched here.
"use strict";
EBT.math = {};

// The value of y at x, between the points of a curve of rising xs; null outside of it.
EBT.math.at = function (xs, ys, x) {
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

// Steps told as tokens, seconds or FLOPs, by the places that a run noted.
EBT.math.along = function (curves, axis, steps) {
  if (axis === "step") return steps;
  const { step, [axis]: values } = curves.places;
  return steps.map((x) => EBT.math.at(step, values, Math.min(Math.max(x, step[0]), step[step.length - 1])));
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

// The middle one of the last `count` values at each place: what a single spike cannot move.
EBT.math.median = (ys, count) =>
  ys.map((_, place) => {
    const near = ys.slice(Math.max(0, place - count + 1), place + 1).sort((a, b) => a - b);
    return (near[(near.length - 1) >> 1] + near[near.length >> 1]) / 2;
  });

// A curve without its gaps, ready to be asked for values in between: [xs, ys].
EBT.math.whole = function (xs, ys) {
  const kept = xs.map((x, place) => [x, ys[place]]).filter(([x, y]) => x !== null && y !== null);
  return [kept.map(([x]) => x), kept.map(([, y]) => y)];
};

// Places at which all of the curves are known, evenly spread; none where they do not overlap.
EBT.math.grid = function (curves, count = 400) {
  const start = Math.max(...curves.map(([xs]) => xs[0] ?? Infinity));
  const end = Math.min(...curves.map(([xs]) => xs[xs.length - 1] ?? -Infinity));
  if (!(end > start)) return end === start ? [start] : [];
  return Array.from({ length: count }, (_, place) =>
    place === count - 1 ? end : start + ((end - start) * place) / (count - 1),
  );
};

// Mean, least and largest of several curves at each place.
EBT.math.band = function (curves, grid) {
  const values = grid.map((x) => curves.map(([xs, ys]) => EBT.math.at(xs, ys, x)));
  return {
    x: grid,
    mean: values.map((row) => row.reduce((sum, y) => sum + y, 0) / row.length),
    low: values.map((row) => Math.min(...row)),
    high: values.map((row) => Math.max(...row)),
  };
};

// Where the first curve overtakes the second or falls behind: [{x, leads}], leads true when the first is ahead after it.
// Crossings between which the curves stay closer than `least` are one blur, and not told.
EBT.math.overtakings = function (first, second, better, least = 0) {
  const grid = EBT.math.grid([first, second], 800);
  const sign = better === "higher" ? 1 : -1;
  const lead = grid.map((x) => sign * (EBT.math.at(...first, x) - EBT.math.at(...second, x)));
  const found = [];
  let ahead = null,
    since = null;
  for (let place = 0; place < grid.length; place++) {
    const now = lead[place];
    if (place && since === null && Math.sign(now) !== Math.sign(lead[place - 1]) && now !== 0) {
      const before = lead[place - 1];
      since = grid[place - 1] + (grid[place] - grid[place - 1]) * (before / (before - now));
    }
    if (Math.abs(now) <= least) continue;
    if (ahead !== null && now > 0 !== ahead) found.push({ x: since ?? grid[place], leads: now > 0 });
    ahead = now > 0;
    since = null;
  }
  return found;
};

// Two-sided 95 % points of Student's t, by degrees of freedom.
EBT.math.student = function (freedom) {
  const table = [
    12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131,
  ];
  if (freedom < 1) return table[0];
  return freedom <= table.length ? table[Math.floor(freedom) - 1] : 1.96 + 2.5 / freedom;
};

// Whether two sets of results, one number a seed, differ by more than seeds do: Welch's test at 95 %.
// Where one side has a single seed, it is taken to vary as the other does.
EBT.math.verdict = function (first, second) {
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
  const noise = EBT.math.student(freedom) * error;
  return { kind: Math.abs(difference) <= noise ? "within" : "beyond", difference, noise };
};

// Runs whose settings are the same but for the seed, together: [[run, ...], ...] in the order of the first of each.
EBT.math.bySeed = function (runs) {
  const groups = new Map();
  for (const run of runs) {
    const told = run.settings.filter((setting) => setting.compared && setting.name !== "seed");
    const key = JSON.stringify(told.map((setting) => [setting.name, setting.value]).sort());
    const group = told.length ? key : run.file;
    groups.set(group, [...(groups.get(group) || []), run]);
  }
  return [...groups.values()];
};
