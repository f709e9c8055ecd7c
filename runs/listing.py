"""`python -m runs list` and `best`: all runs as a table, by any setting or metric."""

from __future__ import annotations

import csv
import difflib
import json
import sys
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

from config.flags import FLAGS
from core.commands import CommandParser
from core.errors import UserError
from core.text import listing, shown
from runs.comparing import extent, kind_of
from runs.expressions import Comparison, leaves, number, several
from runs.index import FIELDS, Record, chosen, load
from runs.metrics import PLACE, describe
from runs.reading import shortened
from runs.summary import GOAL, NOT_COMPARED, duration, figure
from runs.where import parse, pointed

NEWEST = 30  # runs that are shown unless more are asked for
VARYING = 4  # columns of settings that tell the shown runs apart
SHORT_ID = 24  # characters of the id of a run of a sweep, on a terminal
SHORT_HEADING = 12  # of a swept flag, where there is no room for all of them
BEST = 5  # runs that `best` shows, and kinds of runs
KEY = ("model_name", "model_size", "ebt_type", "recipe", "dataset_name")  # told first where they vary


def list_runs(argv: list[str]) -> int:
    """`python -m runs list`"""
    parser = CommandParser("python -m runs list", "All runs, the newest first.", epilog=fields_help())
    parser.add_argument("--where", metavar="'…'", help="only runs that fit, as 'ebt_type=time_embed and valid_loss<2'")
    parser.add_argument("--sort", metavar="[-]FIELD", help="smallest first; with - largest first")
    parser.add_argument("--columns", metavar="A,B", help="what to show; default: what tells the runs apart")
    parser.add_argument("--limit", type=int, metavar="N", help=f"how many [{NEWEST}; all with --json and --csv]")
    parser.add_argument("--all", action="store_true", help="every run, however many")
    parser.add_argument("--archived", action="store_true", help="those put out of sight as well")
    parser.add_argument("--json", action="store_true", help="as JSON, with everything known unless --columns is given")
    parser.add_argument("--csv", action="store_true", help="as CSV")
    options = parser.parse_args(sort_joined(argv))
    if options.json and options.csv:
        raise UserError("--json and --csv are both given: remove one of them.")
    if options.limit is not None and (options.limit < 1 or options.all):
        raise UserError(f"--limit is {options.limit}: give a whole number of at least 1, or --all instead.")
    known = load(Path(options.logs_dir))
    found = selected(known, options.where, options.archived)
    if options.sort:
        found = ordered(known, found, options.sort)
    plain = options.json or options.csv
    limit = None if options.all or (plain and options.limit is None) else options.limit or NEWEST
    rows = found[:limit]
    columns = asked_columns(known, options.columns)
    if options.json:
        print(json.dumps([plain_row(row, columns) for row in rows], indent=1))
    elif options.csv:
        columns = columns or default_columns(rows)
        writer = csv.writer(sys.stdout)
        writer.writerow(columns)
        writer.writerows([csv_cell(row.value(name)) for name in columns] for row in rows)
    else:
        show_table(rows, columns)
        print(closing_line(known, found, rows, options))
    return 0


def best(argv: list[str]) -> int:
    """`python -m runs best`"""
    parser = CommandParser("python -m runs best", "The run with the best value of a metric, and those next to it.")
    parser.add_argument("metric", nargs="?", default=GOAL, metavar="METRIC", help=f"[{GOAL}]")
    parser.add_argument("--where", metavar="'…'", help="only among runs that fit, as 'model_size=xs'")
    options = parser.parse_args(argv)
    metric = options.metric.removeprefix("best.")
    known = load(Path(options.logs_dir))
    field = f"best.{metric}"
    better = describe(metric).better
    if better is None:
        must_exist(known, metric, "METRIC")
        raise UserError(
            f"METRIC is {shown(metric)}: neither a low nor a high value of it is better; "
            f"python -m runs list --sort {shown(metric)} sorts by it."
        )
    measured = [record for record in selected(known, options.where, False) if record.value(field) is not None]
    asked = bool(options.where) and any(leaf.field == "rehearsal" for leaf in leaves(parse(options.where)))
    found = [record for record in measured if record.best[metric][1] != 0 and (asked or not record.value("rehearsal"))]
    if not measured:
        must_exist(known, metric, "METRIC")
        raise UserError(f"METRIC is {shown(metric)}: no run that fits has measured it yet.")
    left_out = left_out_line(len(measured) - len(found))
    if not found:
        raise UserError(f"METRIC is {shown(metric)}: no run that fits can be ranked by it. {left_out}")
    kinds: dict[Hashable, list[Record]] = {}
    for record in found:
        kinds.setdefault(kind_of(record.value, metric, extent_of(record, metric)), []).append(record)
    ranked = sorted(kinds.values(), key=len, reverse=True)
    for alike in ranked[:BEST]:
        show_best(alike, metric, better, several=len(ranked) > 1)
    if len(ranked) > 1:
        bits = ", and bits per byte where only the tokenizer differs" if metric == GOAL else ""
        print(f"Only runs of one line can be compared: of the same data, tokenizer and validated tokens{bits}.")
    if len(ranked) > BEST:
        print(f"{len(ranked) - BEST:,} more kinds of runs are not shown: choose with --where.")
    if left_out:
        print(left_out)
    return 0


def show_best(found: list[Record], metric: str, better: str, several: bool) -> None:
    """The best of runs that can be compared, and those next to it."""
    found.sort(key=lambda record: record.best[metric][0], reverse=better == "higher")
    value, step = found[0].best[metric]
    at = "" if step is None else f" at step {step:,}"
    place = f"the {better[:-2]}est of {len(found):,}"
    setting = found[0].value
    seen = found[0].best.get(f"{metric.partition('_')[0]}_targets", (0, None))[0]
    on = f" on {shown(setting('dataset_name'))}, {shown(setting('tokenizer'))}" if several else ""
    on += f", {seen:,.0f} tokens" if several and seen else ""
    print(f"{shown(found[0].run_id)}: {describe(metric).title} {figure(value)}{at}, {place}{on}.")
    show_table(found[:BEST], ["id", f"best.{metric}", *varying(found[:BEST])])


def extent_of(record: Record, metric: str) -> float:
    """What the best of a split was measured over."""
    split = metric.partition("_")[0]
    targets, loss, bits = (
        record.best.get(f"{split}_{name}", (0.0, None))[0] for name in ("targets", "loss", "bits_per_byte")
    )
    in_bytes = (loss, bits) if metric.endswith("bits_per_byte") else ()
    return extent(targets, record.value("context_length"), *in_bytes)


def left_out_line(count: int) -> str:
    if not count:
        return ""
    runs = "1 run is" if count == 1 else f"{count:,} runs are"
    return (
        f"{runs} left out: a rehearsal, validated on a part of the split, or not trained yet; "
        "python -m runs list --where rehearsal shows which."
    )


def sort_joined(argv: Sequence[str]) -> list[str]:
    """`--sort -x` as `--sort=-x`, since argparse takes -x for a flag."""
    words = list(argv)
    for place in range(len(words) - 2, -1, -1):
        if words[place] == "--sort" and words[place + 1].startswith("-") and not words[place + 1].startswith("--"):
            words[place : place + 2] = [f"--sort={words[place + 1]}"]
    return words


def fields_help() -> str:
    return (
        f"A FIELD is a setting (ebt_type), a metric's last value (valid_loss), its best (best.valid_loss),\n"
        f"{', '.join([*FIELDS, *PLACE])}.\n"
        "--where joins comparisons = != < <= > >= ~ (contains, or a regular expression) with and, or, not and ( ).\n"
        "A value is a number, a word, a text in quotes, true, false or none; began compares with dates: began>2026-11."
    )


def selected(known: Sequence[Record], text: str | None, archived: bool) -> list[Record]:
    """The runs that fit --where, which may only name fields that some run has."""
    if text is None:
        return chosen(known, None, archived)
    expression = parse(text)
    for leaf in leaves(expression):
        problem = field_problem(known, leaf.field) if known else None
        if problem:
            start = leaf.place[0]
            raise pointed(text, (start, start + len(leaf.field)), problem)
        if isinstance(leaf, Comparison) and isinstance(leaf.value, str) and leaf.sign[0] in "<>":
            values = [value for record in known for value in several(record.value(leaf.field))]
            if number(leaf.value) is None and not any(isinstance(value, str) for value in values):
                sentence = f"{shown(leaf.field)} is a number: compare it with one."
                raise pointed(text, leaf.place, sentence)
    # a run that is asked for as archived is not hidden from the one who asks
    archived = archived or any(leaf.field == "archived" for leaf in leaves(expression))
    return chosen(known, expression, archived)


def field_problem(known: Sequence[Record], field: str) -> str | None:
    """What to say of a field that no run has, with the nearest ones."""
    if field in FIELDS or field in PLACE or any(record.value(field) is not None for record in known):
        return None
    if field in FLAGS or any(field in record.settings for record in known):
        return None  # a setting that is none everywhere
    begins = "best." if field.startswith("best.") else ""
    names = [*FIELDS, *PLACE, *all_names(known)]
    near = difflib.get_close_matches(field.removeprefix("best."), names, 3, 0.7)
    meant = f"did you mean {listing([begins + name for name in near])}?" if near else "see python -m runs list --help."
    return f"no run has a setting or metric {shown(field)}: {meant}"


def all_names(known: Iterable[Record]) -> list[str]:
    """Every setting and metric of any run."""
    groups = {id(flags): flags for record in known for _, flags in record.groups}
    settings = dict.fromkeys(name for flags in groups.values() for name in flags)
    return [*settings, *dict.fromkeys(name for record in known for name in record.last)]


def must_exist(known: Sequence[Record], field: str, flag: str) -> None:
    if known and (problem := field_problem(known, field)):
        raise UserError(f"{flag} is {shown(field)}: {problem}")


def ordered(known: Sequence[Record], found: list[Record], sort: str) -> list[Record]:
    """By a field, numbers before texts; runs that do not have it come last either way."""
    field, falling = sort.removeprefix("-"), sort.startswith("-")
    must_exist(known, field, "--sort")
    values = {id(record): sort_key(record.value(field)) for record in found}
    there = [record for record in found if values[id(record)] is not None]
    there.sort(key=lambda record: values[id(record)] or (0, 0.0, ""), reverse=falling)
    return there + [record for record in found if values[id(record)] is None]


def sort_key(value: Any) -> tuple[int, float, str] | None:
    if value is None or value == [] or value != value:
        return None
    known = number(value)
    return (0, known, "") if known is not None else (1, 0.0, shown(value))


def asked_columns(known: Sequence[Record], text: str | None) -> list[str]:
    columns = [name.strip() for name in (text or "").split(",") if name.strip()]
    if text is not None and not columns:
        raise UserError("--columns is empty: give names with commas between them, as id,ebt_type,valid_loss.")
    for name in columns:
        must_exist(known, name, "--columns")
    return columns


def default_columns(rows: Sequence[Record]) -> list[str]:
    """Enough to know a run by: its id, how it stands, what tells it from the others, and its loss."""
    columns = ["id", "state", *varying(rows), "step", "train_loss", GOAL, f"best.{GOAL}", "seconds", "tags"]
    return [
        name for name in columns if name in ("id", "state") or any(row.value(name) not in (None, []) for row in rows)
    ]


def fitting(rows: Sequence[Record], columns: list[str], width: int, longest: int | None = None) -> list[str]:
    """As many of the columns as the screen has room for, those that matter most. longest: of a swept flag's heading."""
    swept = swept_flags(rows)
    first = ("id", *swept, "state", f"best.{GOAL}", *varying(rows)[:1], "tags", "step", GOAL)
    kept: set[str] = set()
    for name in sorted(columns, key=lambda name: first.index(name) if name in first else len(first)):
        title = heading(name, longest if name in swept else None)
        wide = max(len(title), *map(len, cells(name, rows))) + 2
        wide = min(wide, SHORT_ID + 2) if name == "id" and swept else wide
        if wide <= width or name == "id":
            kept.add(name)
            width -= wide
    return [name for name in columns if name in kept]


def varying(rows: Sequence[Record]) -> list[str]:
    """The few settings by which these runs are told apart best."""
    counts: dict[str, int] = {}
    for name in dict.fromkeys(name for record in rows for name in record.settings):
        if name not in NOT_COMPARED:
            counts[name] = len({shown(record.settings.get(name)) for record in rows if record.settings})
    varied = [name for name, count in counts.items() if count > 1]
    swept = swept_flags(rows)
    first = [*swept, *KEY]
    varied.sort(key=lambda name: first.index(name) if name in first else len(first))
    return varied[: max(VARYING, len(swept))]


def swept_flags(rows: Sequence[Record]) -> list[str]:
    """The flags that sweeps among the first of these runs varied."""
    return list(dict.fromkeys(name for record in rows[:NEWEST] for name in record.run.swept))


def plain_row(record: Record, columns: Sequence[str]) -> dict[str, Any]:
    """For programs: the columns asked for, or everything."""
    if columns:
        return {name: record.value(name) for name in columns}
    facts = {name: record.value(name) for name in FIELDS}
    best = {name: {"value": value, "step": step} for name, (value, step) in record.best.items()}
    found = {**facts, "settings": record.settings, "last": record.last, "best": best}
    return {**found, "problems": record.facts["problems"]}


def csv_cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = "" if value is None else " ".join(map(shown, value)) if isinstance(value, list) else shown(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def show_table(rows: Sequence[Record], columns: Sequence[str] = ()) -> None:
    """The columns asked for, or those that there is room for."""
    if not rows:
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:  # a file or another program has no edge at which to break lines
        console.width = 1000
    swept, longest = swept_flags(rows), None
    if not columns:
        columns = fitting(rows, default_columns(rows), console.width)
        if not set(swept) <= set(columns):
            longest = SHORT_HEADING
            columns = fitting(rows, default_columns(rows), console.width, longest)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        numeric = all(isinstance(row.value(name), int | float | None) for row in rows) and name != "archived"
        title = heading(name, longest if name in swept else None)
        table.add_column(Text(title), justify="right" if numeric else "left", overflow="fold")
    for row, texts in zip(rows, zip(*(cells(name, rows) for name in columns), strict=True), strict=True):
        # A name that was made of the swept values makes room for them; the end of an id finds a run, too.
        short = console.is_terminal and bool(row.run.swept)
        fit = [
            shortened(text, SHORT_ID) if short and name == "id" else text
            for name, text in zip(columns, texts, strict=True)
        ]
        table.add_row(*map(Text, fit))
    console.print(table)


def cells(name: str, rows: Sequence[Record]) -> list[str]:
    """A column. A loss that is not ranked has a mark, so that nobody takes it for a result."""
    texts = [cell(name, row.value(name)) for row in rows]
    if not name.removeprefix("best.").startswith(("train_", "valid_", "test_")) or not any(map(is_marked, rows)):
        return texts
    return [f"{text}{'*' if text and is_marked(row) else ' '}" for row, text in zip(rows, texts, strict=True)]


def is_marked(record: Record) -> bool:
    return record.value("rehearsal") is not None


def heading(name: str, longest: int | None = None) -> str:
    title = {"id": "run", "seconds": "time", f"best.{GOAL}": "best"}.get(name, name)
    return shortened(title, longest) if longest else title


def cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "seconds":
        return duration(value)
    if isinstance(value, list):
        return " ".join(map(shown, value))
    measured = isinstance(value, int | float) and not isinstance(value, bool) and name not in FLAGS
    return figure(value) if measured else shown(value)


def closing_line(known: Sequence[Record], found: Sequence[Record], rows: Sequence[Record], options: Any) -> str:
    """How many there are, and how to see the others."""
    logs = shown(options.logs_dir)
    if not known:
        return f"There are no runs in {logs}: python train_model.py makes one; --logs_dir names another folder."
    said = (
        f"{len(rows):,} of {len(found):,} runs; --all shows all." if len(rows) < len(found) else f"{len(rows):,} runs."
    )
    if not found:
        said = f"None of the {len(known):,} runs in {logs} fits."
    hidden = 0 if options.archived else sum(record.is_archived for record in known)
    if hidden and not options.where:
        said += f" {hidden:,} archived: --archived shows them too."
    if damaged := sum(bool(record.facts["problems"]) for record in rows):
        said += f" Of {damaged:,} something is missing: python -m runs show RUN says what."
    if any(map(is_marked, rows)):
        said += " * rehearsed, or validated on a part of the split: not ranked."
    return said.replace("1 runs.", "1 run.") if len(rows) == 1 == len(found) else said
