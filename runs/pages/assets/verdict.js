// Who is ahead, since when, and whether it is more than chance, in words; or why nobody can tell.
"use strict";
EBT.JUDGED = 15; // points of a running median under a verdict, for curves of many points
(function () {
  const h = EBT.h;

  // Where seeds were measured at the same places the band is told there, else at places in between.
  EBT.gridOf = function (pairs) {
    const [first] = pairs[0];
    const same = pairs.every(([xs]) => xs.length === first.length && xs.every((x, place) => x === first[place]));
    return same ? first : EBT.math.grid(pairs);
  };

  // ---- which runs may be compared

  const kinds = (metric) => {
    if (/^(valid|test)_bits_per_byte$/.test(metric)) return ["data", "limits"];
    if (/^(valid|test)_/.test(metric)) return ["data", "limits", "tokenizer"];
    return /^train_|loss|thinking_gain/.test(metric) ? ["data", "overfitting", "tokenizer"] : [];
  };
  const WORDS = {
    data: "other data",
    limits: "other limits of validation",
    overfitting: "other training batches",
    tokenizer: "other tokenizers",
  };
  const flagsOf = (run, kind) => {
    const on = run.measured_on;
    if (!on) return { settings: "unknown" };
    return kind === "overfitting" ? { overfit_batches: on.limits.overfit_batches } : on[kind];
  };

  // Why the metric of these runs says nothing about which is better: {kind: words}; empty where nothing is in the way.
  EBT.obstacles = function (runs, metric) {
    const found = {};
    for (const kind of kinds(metric)) {
      const all = runs.map((run) => flagsOf(run, kind));
      const differ = [...new Set(all.flatMap(Object.keys))].filter(
        (name) => new Set(all.map((flags) => EBT.shown(flags[name]))).size > 1,
      );
      const told = (value) => EBT.shown(value === undefined ? "unknown" : (value ?? "none"));
      const values = (name) => [...new Set(all.map((flags) => told(flags[name])))].join(" and ");
      const flags = differ.map((name) => `--${name} ${values(name)}`).join(", ");
      if (differ.length) found[kind] = `${WORDS[kind]} (${flags})`;
    }
    return found;
  };

  // The groups that can be compared with one another, as many as there are, and the others.
  function comparable(groups, metric) {
    const parts = new Map();
    for (const group of groups) {
      const key = JSON.stringify(kinds(metric).map((kind) => flagsOf(group.members[0].run, kind)));
      parts.set(key, [...(parts.get(key) || []), group]);
    }
    const judged = [...parts.values()].reduce((most, part) => (part.length > most.length ? part : most), []);
    return [judged, groups.filter((group) => !judged.includes(group))];
  }

  // ---- where they were measured beside one another

  // The places at which all groups were measured, with the values of each: [{x, values: [[...], ...]}].
  const meetingsOf = (groups, near) => {
    const sizes = groups.map(({ members }) => members.length);
    return EBT.math
      .meetings(
        groups.flatMap(({ members }) => members.map(({ points }) => points)),
        near,
      )
      .map(({ x, values }) => {
        const left = [...values];
        return { x, values: sizes.map((size) => left.splice(0, size)) };
      });
  };

  // As many groups as were measured beside one another, those that were not, and where: [groups, others, meetings].
  function measuredTogether(groups, near) {
    const judged = [...groups];
    const ofOthers = (group) => meetingsOf(judged.filter((other) => other !== group), near);
    const alone = (group) => judged.filter((other) => !meetingsOf([group, other], near).length).length;
    // Best without the one whose absence lets the others meet the latest, else without the loneliest.
    const gain = (group) => ofOthers(group).reduce((_, { x }) => [1, x], [0, alone(group)]);
    for (;;) {
      const met = meetingsOf(judged, near);
      if (met.length || judged.length < 3) return [judged, groups.filter((group) => !judged.includes(group)), met];
      const gains = judged.map((group) => [...gain(group), group]);
      const [[, , worst]] = gains.sort((a, b) => b[0] - a[0] || b[1] - a[1]);
      judged.splice(judged.indexOf(worst), 1);
    }
  }

  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

  // Since when the first of two groups is ahead, in words.
  function since(best, other, better, near, placeText) {
    const met = meetingsOf([best, other], near);
    const sign = better === "higher" ? 1 : -1;
    const means = met.map(({ values }) => values.map(mean));
    const all = means.flat();
    const least = 0.002 * (Math.max(...all) - Math.min(...all));
    const ahead = means.map(([a, b]) => sign * (a - b));
    const turns = EBT.math.overtakings(
      met.map(({ x }) => x),
      ahead,
      least,
    );
    if (met.length < 2) return "was measured beside it only once";
    if (ahead.every((lead) => Math.abs(lead) <= least)) return "was never clearly ahead of it";
    if (!turns.length) return `was ahead throughout, from ${placeText(met[0].x)}`;
    const { from, to, leads } = turns[turns.length - 1];
    const more = turns.length > 1 ? `, after ${EBT.plural(turns.length - 1, "earlier change")} of lead` : "";
    const close = to - from <= 0.02 * (met[met.length - 1].x - met[0].x);
    const place = close ? `at ${placeText(to)}` : `between ${placeText(from)} and ${placeText(to)}`;
    return `${leads ? "overtook it" : "was behind again"} ${place}${more}`;
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

  // One setting alone: how far its runs are apart.
  function spreadCard(group, { x, values: [values] }, unit, placeText) {
    const [middle, low, high] = [mean(values), Math.min(...values), Math.max(...values)].map((value) =>
      EBT.fixed(value, placesOf(values)),
    );
    const text = `${group.name} at ${placeText(x)}: mean ${middle}, from ${low} to ${high}`;
    return card(null, h("p", { class: "lead" }, `${text}${unit ? ` ${unit}` : ""}.`));
  }

  const verdictText = ({ kind, noise }) =>
    ({
      unknown: ["not known", "one seed each"],
      equal: ["equal", ""],
      within: ["within seed noise", `\u00B1${EBT.number(noise, 2)}`],
      beyond: ["more than seed noise", `\u00B1${EBT.number(noise, 2)}`],
    })[kind];

  // near: how far apart two places may be that count as one; 0 where steps are exact.
  EBT.verdictCard = function (groups, metric, series, near, placeText, note = null) {
    const [alike, others] = comparable(groups, metric);
    const runsOf = (some) => some.flatMap(({ members }) => members.map(({ run }) => run));
    const reasons = Object.values(EBT.obstacles(runsOf(groups), metric)).join("; ");
    const alone = alike.length === 1;
    if (alone && others.length) return noVerdict(`these runs have ${reasons}, so their numbers do not mean the same`);
    if (alone && alike[0].members.length < 2) return null;
    const [judged, apart, met] = measuredTogether(alike, near);
    const where = near ? "place on this axis" : "step after the first";
    if (!met.length) {
      const same = judged.some(({ members }) => members.some(({ points }) => points.some(({ of }) => of !== null)));
      return noVerdict(`there is no ${where} at which all of them were measured${same ? " over the same tokens" : ""}`);
    }
    const last = met[met.length - 1];
    if (alone) return spreadCard(judged[0], last, series.unit, placeText);
    const { better } = series;
    const sign = better === "higher" ? -1 : 1;
    const rows = judged
      .map((group, place) => ({ group, values: last.values[place], mean: mean(last.values[place]) }))
      .sort((a, b) => sign * (a.mean - b.mean));
    const [best, second] = rows;
    const places = placesOf(rows.map((row) => row.mean));
    const pairs = (rows.length * (rows.length - 1)) / 2; // the best was picked among them, so all pairs count
    const judge = (row) => {
      const found = EBT.math.verdict(row.values, best.values, pairs);
      return Number(EBT.fixed(Math.abs(found.difference), places)) === 0 ? { ...found, kind: "equal" } : found;
    };
    const unit = series.unit ? ` ${series.unit}` : "";
    const at = placeText(last.x);
    const verdict = judge(second);
    const gap = `${EBT.fixed(Math.abs(verdict.difference), places)}${unit}`;
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
    const history = (row) => since(best.group, row.group, better, near, placeText);
    const line = (row) => {
      const against = row === best ? null : judge(row);
      const [word, how] = against ? verdictText(against) : ["", ""];
      const apart = against ? EBT.fixed(Math.abs(against.difference), places) : "";
      return h(
        "tr",
        {},
        h("td", {}, h("i", { class: "swatch", style: `background: ${row.group.colour}` }), row.group.name),
        h("td", { class: "number" }, EBT.fixed(row.mean, places)),
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
              row === best || chances.includes(against.kind) ? "" : EBT.upper(`the best ${history(row)}`),
            )
          : null,
      );
    };
    const dense = judged.some(({ members }) => members.some(({ sparse }) => !sparse));
    return card(
      [note, dense ? `on the running median of ${EBT.JUDGED} points` : null].filter(Boolean).join("; "),
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
        [apart, `there is no ${where} at which all were measured over the same tokens`],
      ]
        .filter(([left]) => left.length)
        .map(([left, why]) =>
          h("p", { class: "quiet" }, `Left out, since ${why}: ${left.map(({ name }) => name).join(", ")}.`),
        ),
      h(
        "table",
        { class: "plain" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["run", `at ${at}`, "to the best", "difference", better ? "lead" : null]
              .filter((text) => text !== null)
              .map((text, place) => h("th", { class: place === 1 || place === 2 ? "number" : null }, text)),
          ),
        ),
        h("tbody", {}, rows.map(line)),
      ),
    );
  };

  const placesOf = (values) =>
    Math.max(...values.map(Math.abs)) >= 100 ? 1 : Math.max(...values.map(Math.abs)) >= 0.01 ? 4 : 7;
})();
