// Who is ahead, since when, and whether it is more than chance, in words.
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

  // Each group at the last place that all of them reached, the best first.
  function standing(groups, better) {
    const end = Math.min(...groups.flatMap(({ members }) => members.map(({ xs }) => xs[xs.length - 1])));
    const rows = groups
      .map((group) => {
        const values = group.members
          .map(({ xs, judged }) => EBT.math.at(xs, judged, end))
          .filter((value) => value !== null);
        return { group, values, mean: values.reduce((sum, value) => sum + value, 0) / values.length };
      })
      .filter(({ values }) => values.length);
    const sign = better === "higher" ? -1 : 1;
    return { end, rows: rows.sort((a, b) => sign * (a.mean - b.mean)) };
  }

  function meanCurve({ members }) {
    const pairs = members.map(({ xs, judged }) => [xs, judged]);
    if (pairs.length === 1) return pairs[0];
    const band = EBT.math.band(pairs, EBT.gridOf(pairs));
    return [band.x, band.mean];
  }

  // Where a change of lead came about; between two measurements that are far apart, nobody knows where.
  function turnText(x, curves, range, placeText) {
    const around = curves.map(([xs]) => [
      Math.max(...xs.filter((place) => place <= x)),
      Math.min(...xs.filter((place) => place >= x)),
    ]);
    const [low, high] = [Math.min(...around.map(([low]) => low)), Math.max(...around.map(([, high]) => high))];
    return high - low > 0.1 * range ? `between ${placeText(low)} and ${placeText(high)}` : `at ${placeText(x)}`;
  }

  // Since when the first of two groups is ahead, in words.
  function since(best, other, better, placeText) {
    const [first, second] = [meanCurve(best), meanCurve(other)];
    const grid = EBT.math.grid([first, second]);
    if (!grid.length) return "has no place in common with it";
    const values = [...first[1], ...second[1]];
    const least = 0.002 * (Math.max(...values) - Math.min(...values));
    const turns = EBT.math.overtakings(first, second, better, least);
    const range = grid[grid.length - 1] - grid[0];
    if (!turns.length || (turns.length === 1 && turns[0].leads && turns[0].x - grid[0] < 0.02 * range))
      return "was ahead throughout";
    const final = turns[turns.length - 1];
    const more = turns.length > 1 ? `, after ${EBT.plural(turns.length - 1, "earlier change")} of lead` : "";
    const place = turnText(final.x, [first, second], range, placeText);
    return final.leads ? `overtook it ${place}${more}` : `was behind again ${place}${more}`;
  }

  function verdictText({ kind, noise }) {
    if (kind === "unknown") return ["not known", "one seed each"];
    return kind === "within"
      ? ["within seed noise", `\u00B1${EBT.number(noise, 2)}`]
      : ["more than seed noise", `\u00B1${EBT.number(noise, 2)}`];
  }

  // One setting alone: how far its runs are apart.
  function spreadCard({ group, values, mean }, end, unit, placeText) {
    if (values.length < 2) return null;
    const [low, high] = [Math.min(...values), Math.max(...values)].map((value) => EBT.fixed(value, placesOf(values)));
    return h(
      "section",
      { class: "card wide verdict" },
      h("h3", {}, "Verdict"),
      h(
        "p",
        { class: "lead" },
        `${group.name} at ${placeText(end)}: mean ${EBT.fixed(mean, placesOf(values))}, from ${low} to ${high}${unit ? ` ${unit}` : ""}.`,
      ),
    );
  }

  EBT.verdictCard = function (groups, series, placeText) {
    const better = series.better;
    const { end, rows } = standing(groups, better);
    const [best, ...others] = rows;
    if (!others.length) return spreadCard(best, end, series.unit, placeText);
    const unit = series.unit ? ` ${series.unit}` : "";
    const gap = Math.abs(others[0].mean - best.mean);
    const verdict = EBT.math.verdict(best.values, others[0].values);
    const about = {
      unknown: `One seed each, so nobody knows how much is chance: repeat with another --seed.`,
      within: `That is within seed noise (\u00B1${EBT.number(verdict.noise, 2)} at 95\u2009%): no winner.`,
      beyond: `That is more than seed noise (\u00B1${EBT.number(verdict.noise, 2)} at 95\u2009%).`,
    }[verdict.kind];
    const places = placesOf(rows.map(({ mean }) => mean));
    const lead = better
      ? `${best.group.name} is ${better} by ${EBT.fixed(gap, places)}${unit} at ${placeText(end)} and so ahead of ${others[0].group.name}.`
      : `${best.group.name} and ${others[0].group.name} differ by ${EBT.fixed(gap, places)}${unit} at ${placeText(end)}.`;
    const line = (row) => {
      const against = row === best ? null : EBT.math.verdict(row.values, best.values);
      const [word, how] = against ? verdictText(against) : ["", ""];
      return h(
        "tr",
        {},
        h("td", {}, h("i", { class: "swatch", style: `background: ${row.group.colour}` }), row.group.name),
        h("td", { class: "number" }, EBT.fixed(row.mean, places)),
        h(
          "td",
          { class: "number" },
          against ? `${against.difference > 0 ? "+" : "\u2212"}${EBT.fixed(Math.abs(against.difference), places)}` : "",
        ),
        h("td", { class: against ? against.kind : null }, word, how ? h("small", {}, how) : null),
        better
          ? h(
              "td",
              { class: "quiet" },
              row === best ? "" : EBT.upper(`the best ${since(best.group, row.group, better, placeText)}`),
            )
          : null,
      );
    };
    return h(
      "section",
      { class: "card wide verdict" },
      h(
        "div",
        { class: "head" },
        h("h3", {}, "Verdict"),
        groups.some(({ members }) => members.some(({ sparse }) => !sparse))
          ? h("span", { class: "quiet" }, `on the running median of ${EBT.JUDGED} points`)
          : null,
      ),
      h(
        "p",
        { class: `lead ${verdict.kind}` },
        lead,
        " ",
        h("b", {}, about),
        others.length === 1 && better
          ? ` The better one ${since(best.group, others[0].group, better, placeText)}.`
          : "",
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
            ["run", `at ${placeText(end)}`, "to the best", "difference", better ? "lead" : null]
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
