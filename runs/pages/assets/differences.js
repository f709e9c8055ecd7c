// What differs between runs: settings and code.
"use strict";
(function () {
  const h = EBT.h;

  // A row for each setting that is not the same in all runs; columns: [[title, runs], ...].
  EBT.settingsCard = function (runs, columns) {
    const names = [
      ...new Set(
        runs.flatMap((run) => run.settings.filter((setting) => setting.compared).map((setting) => setting.name)),
      ),
    ];
    const value = (run, name) => {
      const found = run.settings.find((setting) => setting.name === name);
      return found ? EBT.shown(found.value) : "\u2013";
    };
    const differ = names.filter((name) => new Set(runs.map((run) => value(run, name))).size > 1);
    return h(
      "section",
      { class: "card wide" },
      h(
        "div",
        { class: "head" },
        h("h3", {}, "Settings that differ"),
        h("span", { class: "quiet" }, `${differ.length} of ${names.length}`),
      ),
      differ.length
        ? h(
            "div",
            { class: "table" },
            h(
              "table",
              { class: "plain settings" },
              h(
                "thead",
                {},
                h(
                  "tr",
                  {},
                  h("th", {}, "flag"),
                  columns.map(([name]) => h("th", {}, name)),
                ),
              ),
              h(
                "tbody",
                {},
                differ.map((name) =>
                  h(
                    "tr",
                    {},
                    h("td", {}, `--${name}`),
                    columns.map(([, members]) =>
                      h("td", {}, [...new Set(members.map((run) => value(run, name)))].sort().join(", ")),
                    ),
                  ),
                ),
              ),
            ),
          )
        : h("p", { class: "quiet" }, "All the same."),
    );
  };

  // The changes to each file since the commit: {file: text}.
  const byFile = (diff) =>
    new Map(
      diff
        .split(/^(?=diff --git )/m)
        .filter(Boolean)
        .map((part) => [(/^diff --git a\/(.*?) b\//.exec(part) || ["", "other"])[1], part]),
    );

  EBT.codeCard = function (runs) {
    const commits = [...new Set(runs.map((run) => run.code.commit || "unknown"))];
    const parts = runs.map((run) => byFile(run.diff));
    const files = [...new Set(parts.flatMap((part) => [...part.keys()]))]
      .filter((name) => new Set(parts.map((part) => part.get(name))).size > 1)
      .sort();
    const content = [];
    if (commits.length > 1) {
      for (const commit of commits)
        content.push(
          h(
            "p",
            {},
            h("code", {}, commit.slice(0, 10)),
            ` ${runs
              .filter((run) => (run.code.commit || "unknown") === commit)
              .map((run) => run.label)
              .join(", ")}`,
          ),
        );
      const whole = commits.filter((commit) => /^[0-9a-f]{7,64}$/.test(commit));
      if (whole.length > 1)
        content.push(h("pre", { class: "command" }, `git diff ${whole[0].slice(0, 12)} ${whole[1].slice(0, 12)}`));
    }
    for (const name of files) {
      content.push(
        h(
          "details",
          {},
          h(
            "summary",
            {},
            name,
            h(
              "span",
              { class: "quiet" },
              ` changed in ${runs
                .filter((_, place) => parts[place].has(name))
                .map((run) => run.label)
                .join(", ")}`,
            ),
          ),
          h(
            "div",
            { class: "sides" },
            runs.map((run, place) =>
              h(
                "div",
                {},
                h("h4", {}, run.label),
                parts[place].has(name)
                  ? h("pre", { class: "diff" }, EBT.diffLines(parts[place].get(name)))
                  : h("p", { class: "quiet" }, "as committed"),
              ),
            ),
          ),
        ),
      );
    }
    if (!content.length)
      content.push(
        h(
          "p",
          { class: "quiet" },
          commits[0] === "unknown"
            ? "No commit is known of these runs."
            : `The same code in all: ${commits[0].slice(0, 10)}, and the same changes to it.`,
        ),
      );
    return h("section", { class: "card wide" }, h("h3", {}, "Code"), content);
  };
})();
