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

// The curve of an evaluation without those that saw more or less text: [{of, x, y}], the one of most points first.
EBT.math.parts = function ({ x, y, of }) {
  const found = new Map();
  x.forEach((step, place) => {
    const key = of ? of[place] : null;
    if (!found.has(key)) found.set(key, { of: key, x: [], y: [] });
    found.get(key).x.push(step);
    found.get(key).y.push(y[place]);
  });
  const size = ({ x }) => x.filter((step) => step > 0).length;
  return [...found.values()].sort((a, b) => size(b) - size(a) || b.of - a.of);
};

// The best value of a series and its step, after step 0 and over the most text; [] where there is none.
EBT.math.best = function ({ x, y, of, better }) {
  const known = x.map((step, place) => ({ step, y: y[place], of: of ? of[place] : 0 })).filter(({ y }) => y !== null);
  const trained = known.filter(({ step }) => step > 0);
  const left = trained.length ? trained : known;
  const most = Math.max(...left.map(({ of }) => of));
  const sign = better === "higher" ? -1 : 1;
  const ranked = left.filter(({ of }) => of === most).sort((a, b) => sign * (a.y - b.y));
  return ranked.length ? [ranked[0].y, ranked[0].step] : [];
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

// The places at which all of some curves were measured, over as much text: [{x, values}], without any value in between.
// points: [[{x, y, of}, ...], ...] of rising x. near: how far apart two places may be that count as one. Of several at
// one place that over the most counts.
EBT.math.meetings = function (points, near) {
  const byExtent = points.map((curve) => {
    const found = new Map();
    for (const point of curve) found.set(point.of, [...(found.get(point.of) || []), point]);
    return found;
  });
  const nearest = (curve, x) => {
    let low = 0,
      high = curve.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (curve[middle].x <= x) low = middle;
      else high = middle;
    }
    const found = x - curve[low].x <= curve[high].x - x && curve[high].x !== x ? curve[low] : curve[high];
    return Math.abs(found.x - x) <= near ? found : null;
  };
  const met = new Map();
  for (const [of, curve] of byExtent[0]) {
    if (!byExtent.every((extents) => extents.has(of))) continue;
    for (const { x } of curve) {
      const values = byExtent.map((extents) => nearest(extents.get(of), x));
      if (values.includes(null) || (met.has(x) && met.get(x).of > of)) continue;
      met.set(x, { x, of, values: values.map(({ y }) => y) });
    }
  }
  return [...met.values()].sort((a, b) => a.x - b.x);
};

// Where the first of two overtakes the second or falls behind: [{from, to, leads}], between two places of measurement.
// leads: by how much it is ahead at each place. A lead of no more than `least` is a blur, and changes nothing.
EBT.math.overtakings = function (places, leads, least = 0) {
  const found = [];
  let last = null;
  leads.forEach((lead, place) => {
    if (Math.abs(lead) <= least) return;
    if (last !== null && lead > 0 !== leads[last] > 0)
      found.push({ from: places[last], to: places[place], leads: lead > 0 });
    last = place;
  });
  return found;
};

// The two-sided point of Student's t that a share of all values stays within, for any degrees of freedom from 1 on:
// with t = sqrt(freedom) tan(angle) the density is cos(angle) ** (freedom - 1).
EBT.math.student = function (freedom, share = 0.95) {
  const degrees = Math.max(1, freedom);
  const area = (end) => {
    const count = 400; // of Simpson's rule
    let sum = 0;
    for (let place = 0; place <= count; place++)
      sum += (place % count ? 2 + 2 * (place % 2) : 1) * Math.cos((end * place) / count) ** (degrees - 1);
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
// Where one side has a single seed, it is taken to vary as the other does. pairs: how many are judged together.
EBT.math.verdict = function (first, second, pairs = 1) {
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
  const noise = EBT.math.student(freedom, 1 - 0.05 / pairs) * error;
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
