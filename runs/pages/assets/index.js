// The list of all runs: search, filter, sort, choose, compare.
"use strict";
(function () {
  const h = EBT.h;
  const PAGE = 300; // rows drawn at once; more come as one scrolls
  const view = { query: "", state: "", sort: "began", down: true, archived: false, rows: PAGE, chosen: new Set() };
  let columns = [];

  function matching() {
    const { fits, mistake } = EBT.search(view.query);
    document.getElementById("mistake").textContent = mistake || "";
    const found = EBT.index.runs.filter(
      (run) => fits && (view.archived || !run.archived) && (!view.state || run.state === view.state) && fits(run),
    );
    const column = columns.find((column) => column.key === view.sort) || columns[0];
    const sign = view.down ? -1 : 1;
    return found.sort((left, right) => {
      const [a, b] = [column.value(left), column.value(right)];
      const [noA, noB] = [a, b].map((value) => value === null || value === undefined || value === "");
      if (noA || noB) return noA - noB; // what is not known comes last, either way
      return (
        sign *
        (typeof a === "number" && typeof b === "number"
          ? a - b
          : String(EBT.shown(a)).localeCompare(String(EBT.shown(b)), "en", { numeric: true }))
      );
    });
  }

  function row(run) {
    const box = h("input", {
      type: "checkbox",
      "aria-label": `choose ${run.name}`,
      checked: view.chosen.has(run.file),
      onchange: (event) => choose(run.file, event.target),
    });
    return h(
      "tr",
      { "data-file": run.file, class: run.archived ? "archived" : null },
      h("td", { class: "choose" }, box),
      columns.map((column) => h("td", { class: column.kind || null }, column.show(run))),
    );
  }

  function choose(file, box) {
    if (box.checked) view.chosen.add(file);
    else view.chosen.delete(file);
    box.closest("tr").classList.toggle("chosen", box.checked);
    compareButton();
  }

  function compareButton() {
    const button = document.getElementById("compare");
    const count = view.chosen.size;
    button.disabled = count < 2;
    button.textContent = count < 2 ? "Compare" : `Compare ${count} runs`;
    button.title = count < 2 ? "choose two runs or more" : "";
  }

  function body() {
    const found = matching();
    const shown = found.slice(0, view.rows);
    const rows = document.createDocumentFragment();
    for (const run of shown) rows.append(row(run));
    document.querySelector("tbody").replaceChildren(rows);
    for (const run of shown)
      if (view.chosen.has(run.file))
        document.querySelector(`tr[data-file="${CSS.escape(run.file)}"]`).classList.add("chosen");
    document.getElementById("more").hidden = found.length <= view.rows;
    document.getElementById("count").textContent =
      found.length === EBT.index.runs.length ? "" : `${EBT.plural(found.length, "run")} shown`;
    document.getElementById("none").hidden = found.length > 0 || document.getElementById("mistake").textContent !== "";
    for (const head of document.querySelectorAll("th[data-key]")) {
      head.setAttribute("aria-sort", head.dataset.key !== view.sort ? "none" : view.down ? "descending" : "ascending");
    }
    for (const button of document.querySelectorAll(".states button"))
      button.setAttribute("aria-pressed", String(button.dataset.value === view.state));
    const kept = new URLSearchParams(
      Object.entries({ q: view.query, state: view.state, sort: view.sort, up: view.down ? "" : "1" }).filter(
        ([, value]) => value,
      ),
    );
    history.replaceState(null, "", `#${kept}`);
  }

  function sortBy(column) {
    const same = view.sort === column.key;
    view.down = same ? !view.down : ["step", "seconds", "flops", "began", "gain"].includes(column.key);
    view.sort = column.key;
    body();
  }

  EBT.render = function () {
    const { runs } = EBT.index;
    for (const run of runs) {
      run.text = [
        run.name,
        run.id,
        run.state,
        run.job,
        ...run.tags,
        ...Object.entries(run.settings).map(([name, value]) => `${name}=${EBT.shown(value)}`),
      ]
        .join(" ")
        .toLowerCase();
    }
    columns = EBT.columns();
    const counts = new Map();
    for (const run of runs) if (!run.archived) counts.set(run.state, (counts.get(run.state) || 0) + 1);
    const archived = runs.filter((run) => run.archived).length;
    const states = [
      ["", `All ${runs.length - archived}`],
      ...[...counts].sort().map(([state, count]) => [state, `${EBT.upper(state)} ${count}`]),
    ];
    const search = h("input", {
      type: "search",
      id: "search",
      placeholder: "Search: name, tag, model_size=xs, valid_loss<2",
      value: view.query,
      "aria-label": "search runs",
      oninput: (event) => {
        view.query = event.target.value;
        view.rows = PAGE;
        body();
      },
    });
    const chips = EBT.segments("state", states, view.state, (value) => {
      view.state = value;
      view.rows = PAGE;
      body();
    });
    chips.classList.add("states");
    const compare = h("button", {
      type: "button",
      id: "compare",
      class: "primary",
      onclick: () => {
        location.href = `compare.html#${[...view.chosen].join(",")}`;
      },
    });
    const heads = columns.map((column) =>
      h(
        "th",
        { "data-key": column.key, class: column.kind || null, scope: "col" },
        h(
          "button",
          { type: "button", title: column.hint || null, onclick: () => sortBy(column) },
          EBT.breakable(column.title),
        ),
      ),
    );
    document.getElementById("main").replaceChildren(
      EBT.header(
        "Runs",
        h("span", { class: "quiet" }, EBT.plural(runs.length, "run"), " ", h("span", { id: "count" })),
      ),
      h(
        "div",
        { class: "toolbar" },
        search,
        chips,
        archived
          ? EBT.toggle(
              `archived (${archived})`,
              view.archived,
              (on) => {
                view.archived = on;
                body();
              },
              "archived",
            )
          : null,
        compare,
      ),
      h("pre", { id: "mistake", role: "alert" }),
      h(
        "div",
        { class: "table" },
        h("table", { class: "runs" }, h("thead", {}, h("tr", {}, h("th", { class: "choose" }), heads)), h("tbody")),
      ),
      h(
        "p",
        { id: "none", class: "quiet", hidden: true },
        runs.length ? "No run fits." : "No runs yet: python train_model.py makes the first.",
      ),
      h(
        "p",
        { id: "more", hidden: true },
        h(
          "button",
          {
            type: "button",
            onclick: () => {
              view.rows += PAGE;
              body();
            },
          },
          "Show more",
        ),
      ),
    );
    new IntersectionObserver((seen) => {
      if (seen.some((entry) => entry.isIntersecting)) {
        view.rows += PAGE;
        body();
      }
    }).observe(document.getElementById("more"));
    compareButton();
    body();
  };

  const kept = new URLSearchParams(location.hash.slice(1));
  Object.assign(view, {
    query: kept.get("q") || "",
    state: kept.get("state") || "",
    sort: kept.get("sort") || "began",
    down: !kept.get("up"),
  });
  EBT.sources = () => [`${EBT.base}runs.js`];
  EBT.render();
})();
