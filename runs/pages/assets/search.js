// The search of the list: the language of `python -m runs list --where`, in which a word alone is looked for in the
// run's name, id, tags and settings, and in which `and` may be left out. Mistakes are told in the same words.
"use strict";
(function () {
  const SIGNS = ["=", "!=", "<", "<=", ">", ">=", "~"];
  const PLAIN = { true: true, false: false, none: null, null: null };
  const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
  const DEEPEST = 50; // brackets and nots inside one another
  const FIELDS = {
    began: (run) => EBT.date(run.began),
    ...Object.fromEntries(
      ["id", "name", "state", "attempts", "tags", "archived", "parent", "note", "rehearsal"].map((name) => [
        name,
        (run) => run[name],
      ]),
    ),
  };
  const PLACES = ["step", "epoch", "tokens", "flops", "seconds"];

  class Mistake extends Error {
    constructor(sentence, start, end) {
      super(sentence);
      Object.assign(this, { start, end: Math.max(end, start + 1) });
    }
  }

  // [{kind: "sign" | "quoted" | "word" | "end", text, start, end}]
  function tokens(text) {
    const pattern = /\s*(?:(<=|>=|!=|==|[=<>~()])|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|([^\s"'()=<>~!]+))/y;
    const found = [];
    const length = text.trimEnd().length;
    let place = 0;
    while (place < length) {
      pattern.lastIndex = place;
      const match = pattern.exec(text);
      if (!match) {
        const start = place + /^\s*/.exec(text.slice(place))[0].length;
        throw new Mistake("\"'".includes(text[start]) ? "this quote is not closed" : "write != here", start, start + 1);
      }
      const [whole, sign, quoted, word] = match;
      const end = place + whole.length;
      const start = end - (sign || quoted || word).length;
      if (sign) found.push({ kind: "sign", text: sign === "==" ? "=" : sign, start, end });
      else if (quoted) found.push({ kind: "quoted", text: quoted.slice(1, -1).replace(/\\(.)/gs, "$1"), start, end });
      else found.push({ kind: "word", text: word, start, end });
      place = end;
    }
    return [...found, { kind: "end", text: "", start: length, end: length + 1 }];
  }

  // A function of a run: whether it fits.
  function parse(text) {
    const left = tokens(text);
    let depth = 0;
    const take = () => (left.length > 1 ? left.shift() : left[0]);
    const isSign = (token, sign) => token.kind === "sign" && token.text === sign;
    const isJoint = (token, ...joints) => token.kind === "word" && joints.includes(token.text.toLowerCase());

    function expression() {
      const parts = [conjunction()];
      while (isJoint(left[0], "or")) {
        take();
        parts.push(conjunction());
      }
      return (run) => parts.some((part) => part(run));
    }
    function conjunction() {
      const parts = [negation()];
      while (left[0].kind !== "end" && !isSign(left[0], ")") && !isJoint(left[0], "or")) {
        if (isJoint(left[0], "and")) take();
        parts.push(negation());
      }
      return (run) => parts.every((part) => part(run));
    }
    function negation() {
      const opening = left[0];
      const denied = isJoint(opening, "not");
      if (!denied && !isSign(opening, "(")) return comparison();
      take();
      if (++depth > DEEPEST) throw new Mistake(`this is nested more than ${DEEPEST} deep`, opening.start, opening.end);
      const found = denied ? negation() : expression();
      depth--;
      if (!denied && !isSign(take(), ")")) throw new Mistake("this bracket is not closed", opening.start, opening.end);
      return denied ? (run) => !found(run) : found;
    }
    function comparison() {
      const name = take();
      if (!["word", "quoted"].includes(name.kind) || isJoint(name, "and", "or", "not"))
        throw new Mistake("a setting or a metric belongs here, such as valid_loss<2", name.start, name.end);
      if (left[0].kind !== "sign" || !SIGNS.includes(left[0].text)) {
        const word = name.text.toLowerCase();
        return (run) => run.text.includes(word);
      }
      const [sign, value] = [take(), take()];
      if (!["word", "quoted"].includes(value.kind))
        throw new Mistake(
          `a value belongs after ${sign.text}: a number, a word, true, false or none`,
          value.start,
          value.end,
        );
      checkField(name);
      return compared(name, sign.text, value);
    }

    const found = left[0].kind === "end" ? () => true : expression();
    if (left[0].kind !== "end") throw new Mistake("this bracket closes nothing", left[0].start, left[0].end);
    return found;
  }

  const several = (found) => (found === null || found === undefined ? [] : Array.isArray(found) ? found : [found]);

  function compared(name, sign, token) {
    const low = token.text.toLowerCase();
    const bare = token.kind === "word";
    const value = bare && low in PLAIN ? PLAIN[low] : bare && NUMBER.test(token.text) ? Number(token.text) : token.text;
    const values = (run) => several(EBT.valueOf(run, name.text));
    if (sign === "~") {
      let pattern;
      try {
        pattern = new RegExp(token.text, "i");
      } catch (error) {
        const why = `this is no regular expression (${error.message}): put a backslash before signs that are meant as such`;
        throw new Mistake(why, token.start, token.end);
      }
      return (run) => values(run).some((found) => pattern.test(EBT.shown(found)));
    }
    if (sign === "=" || sign === "!=") {
      const same = (found) =>
        typeof found === "number" && typeof value === "number"
          ? found === value
          : EBT.shown(found).toLowerCase() === EBT.shown(value).toLowerCase();
      const equal = (run) => (value === null ? !values(run).length : values(run).some(same));
      return sign === "=" ? equal : (run) => !equal(run);
    }
    const known = EBT.index.runs.flatMap(values);
    if (typeof value === "string" && known.length && !known.some((found) => typeof found === "string"))
      throw new Mistake(`${name.text} is a number: compare it with one.`, name.start, token.end);
    const holds = { "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b }[sign];
    return (run) =>
      values(run).some((found) =>
        typeof found === "number" && typeof value === "number"
          ? holds(found, value)
          : typeof found === "string" && holds(found, token.text),
      );
  }

  // What a search and a column call `field`; null or undefined where the run has none.
  EBT.valueOf = function (run, field) {
    if (field in FIELDS) return FIELDS[field](run);
    if (PLACES.includes(field)) return run[field];
    const metrics = run.metrics || {};
    if (field.startsWith("best.")) return (metrics[field.slice(5)] || [])[1];
    return run.settings[field] ?? EBT.index.shared[field] ?? (metrics[field] || [])[0];
  };

  const names = () => [
    ...new Set([
      ...Object.keys(FIELDS),
      ...PLACES,
      ...EBT.index.settings,
      ...Object.keys(EBT.index.shared),
      ...EBT.index.runs.flatMap((run) => Object.keys(run.metrics || {})),
    ]),
  ];

  function checkField({ text, start, end }) {
    const begins = text.startsWith("best.") ? "best." : "";
    const field = text.slice(begins.length);
    const all = names();
    if (!EBT.index.runs.length || all.includes(field)) return;
    const near = all
      .map((name) => [apart(name, field) / Math.max(name.length, field.length), begins + name])
      .filter(([share]) => share <= 0.3)
      .sort(([a], [b]) => a - b)
      .slice(0, 3)
      .map(([, name]) => name);
    const last = near.pop();
    const meant = last ? `did you mean ${near.length ? `${near.join(", ")} or ${last}` : last}?` : "see docs/runs.md.";
    throw new Mistake(`no run has a setting or metric ${text}: ${meant}`, start, end);
  }

  // How many letters must be changed to make one word of another.
  function apart(a, b) {
    let row = Array.from({ length: b.length + 1 }, (_, place) => place);
    for (let i = 1; i <= a.length; i++) {
      const next = [i];
      for (let j = 1; j <= b.length; j++)
        next.push(Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1)));
      row = next;
    }
    return row[b.length];
  }

  // {fits: a function of a run} or {mistake: words with a mark under the place}
  EBT.search = function (text) {
    try {
      return { fits: parse(text) };
    } catch (error) {
      if (!(error instanceof Mistake)) throw error;
      const sentence = /[.?]$/.test(error.message) ? error.message : `${error.message}.`;
      const mark = " ".repeat(error.start) + "^".repeat(error.end - error.start);
      return { mistake: `${sentence}\n  ${text}\n  ${mark}` };
    }
  };
})();
