// What the page of a run says in words and tables.
"use strict";
(function () {
  const h = EBT.h;
  const file = document.body.dataset.file;
  const open = new Set(); // what somebody unfolded
  const SHOWN = 6; // alarms, the newest

  function fact(label, value, note) {
    return value === "" || value === null || value === undefined
      ? null
      : h("div", { class: "fact" }, h("dt", {}, label), h("dd", {}, value), note ? h("small", {}, note) : null);
  }

  EBT.facts = function (run, curves) {
    const series = curves.series;
    const final = (name) => (series[name] ? series[name].y.filter((y) => y !== null).pop() : null);
    const end = (axis) => (curves.places[axis] ? curves.places[axis][curves.places[axis].length - 1] : null);
    const [best, at] = series.valid_loss ? EBT.math.best(series.valid_loss) : [];
    const total =
      run.heartbeat.total_steps ?? (run.settings.find((setting) => setting.name === "max_steps") || {}).value;
    return h(
      "dl",
      { class: "facts" },
      fact("Best validation loss", EBT.fixed(best), best === undefined ? "" : `nats per token, step ${EBT.number(at)}`),
      fact("Last validation loss", EBT.fixed(final("valid_loss")), "nats per token"),
      fact("Last training loss", EBT.fixed(final("train_loss")), "nats per token"),
      fact(
        "Accuracy",
        series.valid_accuracy ? `${(100 * final("valid_accuracy")).toFixed(1)}\u2009%` : "",
        "validation, last",
      ),
      fact("Thinking gain", EBT.fixed(final("valid_thinking_gain"), 3), "nats per token, validation"),
      fact("Steps", EBT.number(end("step")), total ? `of ${EBT.number(total)}` : ""),
      fact("Tokens", EBT.large(end("tokens"))),
      fact("Training time", EBT.duration(end("seconds"))),
      fact("Cost", EBT.large(end("flops")), "FLOPs"),
    );
  };

  // Why it did not finish, where one looks first.
  EBT.failure = (run) =>
    run.failure
      ? h(
          "div",
          { class: "failure", role: "alert" },
          h(
            "p",
            {},
            h("b", {}, EBT.upper(run.state)),
            Number.isFinite(run.failure.step) ? ` at step ${EBT.number(run.failure.step)}` : "",
            run.failure.cause === run.state ? "" : `: ${run.failure.cause}`,
          ),
          run.failure.said ? h("code", {}, run.failure.said) : null,
        )
      : null;

  const block = (title, text) =>
    text
      ? h("pre", { class: title === "Code diff" ? "diff" : null }, title === "Code diff" ? EBT.diffLines(text) : text)
      : null;

  function folded(title, note, ...content) {
    const inside = content.flat().filter(Boolean);
    if (!inside.length) return null;
    const details = h(
      "details",
      { open: open.has(title), ontoggle: (event) => (event.target.open ? open.add(title) : open.delete(title)) },
      h("summary", {}, title, note ? h("span", { class: "quiet" }, note) : null),
      inside,
    );
    return details;
  }

  function settingsTable(settings) {
    const line = (setting) =>
      h(
        "tr",
        { class: setting.changed ? "changed" : null, title: setting.help || null },
        h("td", {}, `--${setting.name}`),
        h("td", {}, EBT.shown(setting.value)),
        h("td", { class: "quiet" }, setting.changed ? EBT.shown(setting.default) : ""),
        h("td", { class: "quiet" }, setting.help),
      );
    const table = (rows) =>
      h(
        "table",
        { class: "plain" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["flag", "value", "default", ""].map((text) => h("th", {}, text)),
          ),
        ),
        h("tbody", {}, rows.map(line)),
      );
    const changed = settings.filter((setting) => setting.changed).sort((a, b) => b.compared - a.compared);
    return h(
      "section",
      { class: "card wide" },
      h(
        "div",
        { class: "head" },
        h("h3", {}, "Settings"),
        h("span", { class: "quiet" }, changed.length ? `${changed.length} unlike the default` : "all as the default"),
      ),
      changed.length ? table(changed) : null,
      folded("All settings", ` ${settings.length}`, table(settings)),
    );
  }

  EBT.record = function (run) {
    const journal = run.journal.map((note) =>
      h("li", {}, h("time", {}, EBT.date(note.time)), h("span", { class: "tag" }, note.tag), h("p", {}, note.text)),
    );
    const samples = run.samples
      .slice()
      .reverse()
      .map((sample) =>
        h(
          "li",
          {},
          h("time", {}, `step ${EBT.number(sample.step)}`),
          h("p", { class: "sample" }, h("b", {}, EBT.shown(sample.prompt ?? "")), EBT.shown(sample.text ?? "")),
        ),
      );
    const attempts = h(
      "table",
      { class: "plain" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["", "began", "ended", "steps", "how it ended", "host", "job"].map((text) => h("th", {}, text)),
        ),
      ),
      h(
        "tbody",
        {},
        run.attempts.map((one) =>
          h(
            "tr",
            {},
            [
              one.attempt,
              one.start,
              one.end || "",
              `${one.first_step ?? ""} \u2013 ${one.last_step ?? ""}`,
              one.cause || "",
              one.host || "",
              one.job || "",
            ].map((text) => h("td", {}, EBT.shown(text))),
          ),
        ),
      ),
    );
    const lineage = run.lineage.map((step) =>
      h(
        "li",
        {},
        `${EBT.shown(step.how || "made")} from `,
        step.here ? h("a", { href: EBT.runLink(encodeURIComponent(step.parent)) }, step.name) : step.parent,
        step.changes && Object.keys(step.changes).length
          ? h(
              "code",
              {},
              Object.entries(step.changes)
                .map(([name, value]) => `--${name} ${EBT.shown(value)}`)
                .join("  "),
            )
          : null,
      ),
    );
    const link = (name) => h("a", { class: "file", href: `../runs/${file}/${encodeURIComponent(name)}` }, name);
    const pictures = run.pictures.map((name) =>
      h(
        "figure",
        {},
        h(
          "a",
          { href: `../runs/${file}/${encodeURIComponent(name)}` },
          h("img", { src: `../runs/${file}/${encodeURIComponent(name)}`, alt: name }),
        ),
        h("figcaption", {}, name),
      ),
    );
    const code = run.code;
    return [
      journal.length
        ? h("section", { class: "card wide" }, h("h3", {}, "Journal"), h("ul", { class: "notes" }, journal))
        : null,
      samples.length
        ? h(
            "section",
            { class: "card wide" },
            h("h3", {}, "Samples"),
            h("ul", { class: "notes" }, samples.slice(0, 3)),
            samples.length > 3
              ? folded("Earlier samples", ` ${samples.length - 3}`, h("ul", { class: "notes" }, samples.slice(3)))
              : null,
          )
        : null,
      settingsTable(run.settings),
      pictures.length
        ? h("section", { class: "card wide" }, h("h3", {}, "Pictures"), h("div", { class: "pictures" }, pictures))
        : null,
      h(
        "section",
        { class: "card wide" },
        h("h3", {}, "Record"),
        lineage.length
          ? folded("Lineage", ` ${EBT.plural(lineage.length, "step")}`, h("ul", { class: "notes" }, lineage))
          : null,
        run.attempts.length ? folded("Attempts", ` ${run.attempts.length}`, attempts) : null,
        folded("Job script", null, run.script ? [link("job_script.slurm"), block("", run.script)] : null),
        folded(
          "Code diff",
          code.commit ? ` on ${String(code.commit).slice(0, 10)}, ${EBT.shown(code.branch ?? "")}` : null,
          run.diff
            ? [link("code.diff"), block("Code diff", run.diff)]
            : code.commit
              ? h(
                  "p",
                  { class: "quiet" },
                  "no change since the commit",
                  code.untracked && code.untracked.length
                    ? `, besides untracked files: ${code.untracked.join(", ")}`
                    : "",
                )
              : null,
        ),
        folded(
          "Environment",
          run.environment.host ? ` ${EBT.shown(run.environment.host)}` : null,
          Object.keys(run.environment).length ? block("", JSON.stringify(run.environment, null, 2)) : null,
        ),
        folded(
          "Log",
          run.log.file ? ` ${run.log.cut ? "the end of " : ""}${run.log.file}` : null,
          run.log.tail ? [link(run.log.file), block("", run.log.tail)] : null,
        ),
      ),
    ];
  };

  EBT.sentences = function (run) {
    if (!run.summary.length && !run.takeaways.length) return null;
    return h(
      "div",
      { class: "sentences" },
      run.summary.length ? h("p", {}, run.summary.join(" ")) : null,
      run.takeaways.length
        ? h(
            "ul",
            {},
            run.takeaways.map((text) => h("li", {}, text)),
          )
        : null,
    );
  };

  EBT.warnings = function (run) {
    // Where there are takeaways, they tell these too.
    const known = run.takeaways.length || !Array.isArray(run.usage.verdicts) ? [] : run.usage.verdicts;
    const verdicts = known.map((verdict) => ["usage", EBT.shown(verdict.text ?? verdict), ""]);
    const alarms = run.alarms.map((alarm) => [
      `step ${EBT.number(alarm.step)}`,
      EBT.shown(alarm.text ?? alarm.what ?? alarm.kind ?? alarm),
      EBT.shown(alarm.advice ?? (alarm.back_to === undefined ? "" : `went back to step ${alarm.back_to}`)),
    ]);
    const missing = run.missing.length ? [["record", `missing in the run folder: ${run.missing.join(", ")}`, ""]] : [];
    const all = [...missing, ...alarms.slice(-SHOWN), ...verdicts];
    if (!all.length) return null;
    const line = ([where, text, advice]) =>
      h("li", {}, h("b", {}, where), h("span", {}, text), advice ? h("em", {}, advice) : null);
    return h(
      "ul",
      { class: "alarms" },
      all.map(line),
      folded(
        "Earlier alarms",
        ` ${alarms.length - SHOWN}`,
        alarms.length > SHOWN ? h("ul", {}, alarms.slice(0, -SHOWN).map(line)) : null,
      ),
    );
  };
})();
