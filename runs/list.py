"""`python -m runs list` and `best`: all runs as a table, by any setting or metric."""

from __future__ import annotations

import csv
import difflib
import json
import sys
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

from config.record import flags_shown_first, record_flags
from config.task import SPLITS
from config.task_flags import all_flags
from core.commands import CommandParser
from core.errors import UserError
from core.text import format_duration, format_number, format_value, join_words, plural, shortened
from runs.compare import extent, ranking_key, ratio_of, row_length
from runs.index import FIELDS, IndexedRun, load, select_runs
from runs.metrics import LANGUAGE_TASK, Metric, TaskRecord
from runs.query import Comparison, as_list, error_at, leaves, number, parse

NEWEST = 30  # runs that are shown by default
SETTING_COLUMNS = 4  # that differ between the shown runs
SHORT_ID = 24  # characters of the id of a run of a sweep, on a terminal
SHORT_HEADING = 12  # of a swept flag, where there is no room for all of them
BEST = 5  # runs of a group that `best` shows, and groups


def list_runs(argv: list[str], newest: int = NEWEST) -> int:
    """`python -m runs list`. newest: how many runs are shown by default."""
    parser = CommandParser("python -m runs list", "All runs, the newest first.", epilog=fields_help())
    parser.add_argument("--where", metavar="'…'", help="only runs that fit, as 'ebt_type=time_embed and valid_loss<2'")
    parser.add_argument("--sort", metavar="[-]FIELD", help="smallest first; with - largest first")
    parser.add_argument("--columns", metavar="A,B", help="what to show; default: what tells the runs apart")
    parser.add_argument("--limit", type=int, metavar="N", help=f"how many [{newest}; all with --json and --csv]")
    parser.add_argument("--all", action="store_true", help="every run, however many")
    parser.add_argument("--archived", action="store_true", help="archived runs too")
    parser.add_argument("--json", action="store_true", help="as JSON, with everything known unless --columns is given")
    parser.add_argument("--csv", action="store_true", help="as CSV")
    options = parser.parse_args(join_sort_argument(argv))
    if options.json and options.csv:
        raise UserError("--json and --csv are both given: remove one of them.")
    if options.limit is not None and (options.limit < 1 or options.all):
        raise UserError(f"--limit is {options.limit}: give a whole number of at least 1, or --all instead.")
    records = load(Path(options.logs_dir))
    matches = filter_runs(records, options.where, options.archived)
    if options.sort:
        matches = sort_runs(records, matches, options.sort)
    is_for_programs = options.json or options.csv
    limit = None if options.all or (is_for_programs and options.limit is None) else options.limit or newest
    rows = matches[:limit]
    columns = requested_columns(records, options.columns)
    if options.json:
        print(json.dumps([json_row(row, columns) for row in rows], indent=1))
    elif options.csv:
        columns = columns or default_columns(rows)
        writer = csv.writer(sys.stdout)
        writer.writerow(columns)
        writer.writerows([csv_cell(row.value(name)) for name in columns] for row in rows)
    else:
        show_table(rows, columns)
        print(closing_line(records, matches, rows, options))
    return 0


def best(argv: list[str]) -> int:
    """`python -m runs best`"""
    parser = CommandParser("python -m runs best", "The run with the best value of a metric, and those next to it.")
    parser.add_argument("metric", nargs="?", metavar="METRIC", help="[what its task is judged by, as valid_loss]")
    parser.add_argument("--where", metavar="'…'", help="only among runs that fit, as 'model_size=xs'")
    options = parser.parse_args(argv)
    records = load(Path(options.logs_dir))
    headline = tasks_of(records)[0].headline
    metric = (options.metric or headline).removeprefix("best.")
    field = f"best.{metric}"
    better = measure_among(records, metric).better
    if better is None:
        check_field(records, metric, "METRIC")
        raise UserError(
            f"METRIC is {format_value(metric)}: neither a low nor a high value of it is better; "
            f"python -m runs list --sort {format_value(metric)} sorts by it."
        )
    measured = [record for record in filter_runs(records, options.where, False) if record.value(field) is not None]
    wants_rehearsals = bool(options.where) and any(leaf.field == "rehearsal" for leaf in leaves(parse(options.where)))
    ranked = [
        record
        for record in measured
        if record.best[metric][1] != 0 and (wants_rehearsals or not record.value("rehearsal"))
    ]
    if not measured:
        check_field(records, metric, "METRIC")
        raise UserError(f"METRIC is {format_value(metric)}: no run that fits has measured it yet.")
    left_out = left_out_line(len(measured) - len(ranked))
    if not ranked:
        raise UserError(f"METRIC is {format_value(metric)}: no run that fits can be ranked by it. {left_out}")
    by_key: dict[Hashable, list[IndexedRun]] = {}
    for record in ranked:
        key = ranking_key(record.value, record.task, metric, extent_of(record, metric))
        by_key.setdefault(key, []).append(record)
    groups = sorted(by_key.values(), key=len, reverse=True)
    for group in groups[:BEST]:
        on = data_words(group[0], ranked) if len(groups) > 1 else ""
        show_best(group, metric, better, on)
    if len(groups) > 1:
        print(f"Only runs of one line can be compared: {shared_by_ranked(ranked, metric)}.")
    if len(groups) > BEST:
        print(f"{len(groups) - BEST:,} more kinds of runs are not shown: choose with --where.")
    if left_out:
        print(left_out)
    return 0


def shared_by_ranked(records: Sequence[IndexedRun], metric: str) -> str:
    """What runs that are ranked together have in common, in words."""
    task = records[0].task
    units = [name.replace("_", " ") for name in task.decides["unit"]]
    same = f"of the same {join_words(['data', *units, f'validated {task.unit}'], 'and')}"
    instead = task.instead_of(metric) if metric == task.headline else None
    if instead is None or not units or not any(instead in record.best for record in records):
        return same
    title = task.measure(instead).title.removeprefix(f"{SPLITS[instead.partition('_')[0]]} ")
    return f"{same}, and {title} where only the {join_words(units, 'and')} differs"


def data_words(record: IndexedRun, records: Sequence[IndexedRun]) -> str:
    """What a run was evaluated on: the settings that tables show first, and those that differ among `records`."""
    names = (*record.task.decides["data"], *record.task.decides["unit"])
    values = {name: format_value(record.value(name)) for name in names}
    first = [value for name, value in values.items() if name in flags_shown_first()]
    others = [
        f"{name} {value}"
        for name, value in values.items()
        if name not in flags_shown_first() and any(format_value(other.value(name)) != value for other in records)
    ]
    return ", ".join([*first, *others])


def show_best(records: list[IndexedRun], metric: str, better: str, on: str) -> None:
    """The best of runs that can be compared, and those next to it. on: the data, where others are of other data."""
    records.sort(key=lambda record: record.best[metric][0], reverse=better == "higher")
    value, step = records[0].best[metric]
    at = "" if step is None else f" at step {step:,}"
    rank = f"the {better[:-2]}est of {len(records):,}"
    targets = records[0].best.get(f"{metric.partition('_')[0]}_targets", (0, None))[0]
    task = records[0].task
    measure = task.measure(metric)
    on = f" on {on}{f', {targets:,.0f} {task.unit}' if targets else ''}" if on else ""
    print(f"{format_value(records[0].run_id)}: {measure.title} {measure.text(value)}{at}, {rank}{on}.")
    show_table(records[:BEST], ["id", f"best.{metric}", *varying_settings(records[:BEST])])


def extent_of(record: IndexedRun, metric: str) -> float:
    """How much data the best value of a metric was measured over, see `extent`."""
    task, split = record.task, metric.partition("_")[0]
    headline = task.headline_on(split)
    names = f"{split}_targets", headline, task.instead_of(headline) or ""
    targets, value, other = (record.best.get(name, (0.0, None))[0] for name in names)
    ratio = ratio_of(value, other) if task.is_unit_free(metric) else None
    return extent(targets, row_length(record.value, task), ratio)


def left_out_line(count: int) -> str:
    if not count:
        return ""
    runs = f"{plural(count, 'run')} {'is' if count == 1 else 'are'}"
    return (
        f"{runs} left out: a rehearsal, validated on a part of the split, or not trained yet; "
        "python -m runs list --where rehearsal shows which."
    )


def join_sort_argument(argv: Sequence[str]) -> list[str]:
    """`--sort -x` as `--sort=-x`, since argparse takes -x for a flag."""
    words = list(argv)
    for index in range(len(words) - 2, -1, -1):
        if words[index] == "--sort" and words[index + 1].startswith("-") and not words[index + 1].startswith("--"):
            words[index : index + 2] = [f"--sort={words[index + 1]}"]
    return words


def fields_help() -> str:
    return (
        f"A FIELD is a setting (ebt_type), a metric's last value (valid_loss), its best (best.valid_loss),\n"
        f"{', '.join([*FIELDS, *LANGUAGE_TASK.axes])}.\n"
        "--where joins comparisons = != < <= > >= ~ (contains, or a regular expression) with and, or, not and ( ).\n"
        "A value is a number, a word, a text in quotes, true, false or none; began compares with dates: began>2026-11."
    )


def filter_runs(records: Sequence[IndexedRun], text: str | None, archived: bool) -> list[IndexedRun]:
    """The runs that fit --where; a UserError where it names a field that no run has."""
    if text is None:
        return select_runs(records, None, archived)
    expression = parse(text)
    for leaf in leaves(expression):
        problem = field_problem(records, leaf.field) if records else None
        if problem:
            start = leaf.span[0]
            raise error_at(text, (start, start + len(leaf.field)), problem)
        if isinstance(leaf, Comparison) and isinstance(leaf.value, str) and leaf.sign[0] in "<>":
            values = [value for record in records for value in as_list(record.value(leaf.field))]
            if number(leaf.value) is None and not any(isinstance(value, str) for value in values):
                sentence = f"{format_value(leaf.field)} is a number: compare it with one."
                raise error_at(text, leaf.span, sentence)
    # --where archived=true shows archived runs without --archived
    archived = archived or any(leaf.field == "archived" for leaf in leaves(expression))
    return select_runs(records, expression, archived)


def field_problem(records: Sequence[IndexedRun], field: str) -> str | None:
    """The sentence about a field that no run has, with the nearest names; None where some run has it."""
    axes = list(dict.fromkeys(name for task in tasks_of(records) for name in task.axes))
    if field in FIELDS or field in axes or any(record.value(field) is not None for record in records):
        return None
    if field in all_flags() or any(field in record.settings for record in records):
        return None  # a setting that is none everywhere
    begins = "best." if field.startswith("best.") else ""
    names = [*FIELDS, *axes, *all_names(records)]
    near = difflib.get_close_matches(field.removeprefix("best."), names, 3, 0.7)
    advice = (
        f"did you mean {join_words([begins + name for name in near])}?" if near else "see python -m runs list --help."
    )
    return f"no run has a setting or metric {format_value(field)}: {advice}"


def tasks_of(records: Iterable[IndexedRun]) -> list[TaskRecord]:
    """The tasks of these runs, each once; that of language where there is none."""
    return list({record.row.task: record.task for record in records}.values()) or [LANGUAGE_TASK]


def headlines_of(records: Iterable[IndexedRun]) -> list[str]:
    return list(dict.fromkeys(task.headline for task in tasks_of(records)))


def measure_among(records: Sequence[IndexedRun], metric: str) -> Metric:
    """What a metric means to the first run that has it, else to the first task that says which way is better."""
    for record in records:
        if metric in record.last:
            return record.task.measure(metric)
    measures = [task.measure(metric) for task in tasks_of(records)]
    return next((measure for measure in measures if measure.better), measures[0])


def all_names(records: Iterable[IndexedRun]) -> list[str]:
    """Every setting and metric of any run."""
    groups = {id(flags): flags for record in records for _, flags in record.groups}
    settings = dict.fromkeys(name for flags in groups.values() for name in flags)
    return [*settings, *dict.fromkeys(name for record in records for name in record.last)]


def check_field(records: Sequence[IndexedRun], field: str, flag: str) -> None:
    if records and (problem := field_problem(records, field)):
        raise UserError(f"{flag} is {format_value(field)}: {problem}")


def sort_runs(records: Sequence[IndexedRun], matches: list[IndexedRun], sort: str) -> list[IndexedRun]:
    """Sorted by a field, numbers before texts; runs without a value come last either way."""
    field, falling = sort.removeprefix("-"), sort.startswith("-")
    check_field(records, field, "--sort")
    values = {id(record): sort_key(record.value(field)) for record in matches}
    with_value = [record for record in matches if values[id(record)] is not None]
    with_value.sort(key=lambda record: values[id(record)] or (0, 0.0, ""), reverse=falling)
    return with_value + [record for record in matches if values[id(record)] is None]


def sort_key(value: Any) -> tuple[int, float, str] | None:
    if value is None or value == [] or value != value:
        return None
    size = number(value)
    return (0, size, "") if size is not None else (1, 0.0, format_value(value))


def requested_columns(records: Sequence[IndexedRun], text: str | None) -> list[str]:
    columns = [name.strip() for name in (text or "").split(",") if name.strip()]
    if text is not None and not columns:
        raise UserError("--columns is empty: give names with commas between them, as id,ebt_type,valid_loss.")
    for name in columns:
        check_field(records, name, "--columns")
    return columns


def default_columns(rows: Sequence[IndexedRun]) -> list[str]:
    """Its id and state, the settings in which the runs differ, and its progress and losses."""
    headlines = headlines_of(rows)
    training = dict.fromkeys(task.headline_on("train") for task in tasks_of(rows))
    best = [f"best.{name}" for name in headlines]
    columns = ["id", "state", *varying_settings(rows), "step", *training, *headlines, *best, "seconds", "tags"]
    return [
        name for name in columns if name in ("id", "state") or any(row.value(name) not in (None, []) for row in rows)
    ]


def columns_that_fit(
    rows: Sequence[IndexedRun], columns: list[str], width: int, longest: int | None = None
) -> list[str]:
    """The columns that fit into `width` characters, the most important first. longest: of a swept flag's heading."""
    swept = swept_flags(rows)
    headlines = headlines_of(rows)
    best = [f"best.{name}" for name in headlines]
    first = ("id", *swept, "state", *best, *varying_settings(rows)[:1], "tags", "step", *headlines)
    shown_columns: set[str] = set()
    for name in sorted(columns, key=lambda name: first.index(name) if name in first else len(first)):
        title = heading(name, headlines, longest if name in swept else None)
        wide = max(len(title), *map(len, cells(name, rows))) + 2
        wide = min(wide, SHORT_ID + 2) if name == "id" and swept else wide
        if wide <= width or name == "id":
            shown_columns.add(name)
            width -= wide
    return [name for name in columns if name in shown_columns]


def varying_settings(rows: Sequence[IndexedRun]) -> list[str]:
    """The few settings that distinguish these runs best."""
    counts: dict[str, int] = {}
    for name in dict.fromkeys(name for record in rows for name in record.settings):
        if name not in record_flags():
            counts[name] = len({format_value(record.settings.get(name)) for record in rows if record.settings})
    names = [name for name, count in counts.items() if count > 1]
    swept = swept_flags(rows)
    first = [*swept, *flags_shown_first(1)]
    names.sort(key=lambda name: first.index(name) if name in first else len(first))
    return names[: max(SETTING_COLUMNS, len(swept))]


def swept_flags(rows: Sequence[IndexedRun]) -> list[str]:
    """The flags that sweeps among the first of these runs varied."""
    return list(dict.fromkeys(name for record in rows[:NEWEST] for name in record.run.swept))


def json_row(record: IndexedRun, columns: Sequence[str]) -> dict[str, Any]:
    """A run for --json: the requested columns, or everything."""
    if columns:
        return {name: record.value(name) for name in columns}
    facts = {name: record.value(name) for name in FIELDS}
    best = {name: {"value": value, "step": step} for name, (value, step) in record.best.items()}
    row = {**facts, "settings": record.settings, "last": record.last, "best": best}
    return {**row, "problems": record.facts["problems"]}


def csv_cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = (
        "" if value is None else " ".join(map(format_value, value)) if isinstance(value, list) else format_value(value)
    )
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def show_table(rows: Sequence[IndexedRun], columns: Sequence[str] = ()) -> None:
    """Print a table of the requested columns, or of those that fit into the terminal."""
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
        columns = columns_that_fit(rows, default_columns(rows), console.width)
        if not set(swept) <= set(columns):
            longest = SHORT_HEADING
            columns = columns_that_fit(rows, default_columns(rows), console.width, longest)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        numeric = all(isinstance(row.value(name), int | float | None) for row in rows) and name != "archived"
        title = heading(name, headlines_of(rows), longest if name in swept else None)
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


def cells(name: str, rows: Sequence[IndexedRun]) -> list[str]:
    """The cells of a column; losses of a rehearsal are marked with *, since they are no results."""
    texts = [cell(name, row.value(name)) for row in rows]
    if not name.removeprefix("best.").startswith(("train_", "valid_", "test_")) or not any(map(is_unranked, rows)):
        return texts
    return [f"{text}{'*' if text and is_unranked(row) else ' '}" for row, text in zip(rows, texts, strict=True)]


def is_unranked(record: IndexedRun) -> bool:
    return record.value("rehearsal") is not None


def heading(name: str, headlines: Sequence[str], longest: int | None = None) -> str:
    titles = {"id": "run", "seconds": "time"} | ({f"best.{headlines[0]}": "best"} if len(headlines) == 1 else {})
    title = titles.get(name, name)
    return shortened(title, longest) if longest else title


def cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "seconds":
        return format_duration(value)
    if isinstance(value, list):
        return " ".join(map(format_value, value))
    measured = isinstance(value, int | float) and not isinstance(value, bool) and name not in all_flags()
    return format_number(value) if measured else format_value(value)


def closing_line(
    records: Sequence[IndexedRun], matches: Sequence[IndexedRun], rows: Sequence[IndexedRun], options: Any
) -> str:
    """The line below the table: how many runs there are, and how to see the others."""
    logs = format_value(options.logs_dir)
    if not records:
        return f"There are no runs in {logs}: python train_model.py makes one; --logs_dir names another folder."
    sentence = (
        f"{len(rows):,} of {len(matches):,} runs; --all shows all."
        if len(rows) < len(matches)
        else f"{plural(len(rows), 'run')}."
    )
    if not matches:
        sentence = f"None of the {len(records):,} runs in {logs} fits."
    hidden = 0 if options.archived else sum(record.is_archived for record in records)
    if hidden and not options.where:
        sentence += f" {hidden:,} archived: --archived shows them too."
    if damaged := sum(bool(record.facts["problems"]) for record in rows):
        sentence += f" Of {damaged:,} something is missing: python -m runs show RUN says what."
    if any(map(is_unranked, rows)):
        sentence += " * rehearsed, or validated on a part of the split: not ranked."
    return sentence
