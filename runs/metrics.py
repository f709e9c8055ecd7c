"""metrics.jsonl: what its columns mean, the last and best value of each, and its rows as CSV.

A run folder says itself what its columns mean: task.json holds the unit that the task counts, the column that a run is
judged by, and its measures. Columns of every task (step, seconds, gradient_norm, ...) are known here.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import fmean
from typing import IO, Any, Literal, NamedTuple, get_args
from zlib import crc32

from config.flags import Decides
from config.record import from_dict, values_of
from config.task import DEFAULT_TASK, SPLITS, Measure, find_task, measure_of, task_record
from core.commands import CommandParser
from core.errors import UserError
from core.files import rows_of, write_text
from core.text import format_number, format_value

EVALUATED = ("valid", "test")  # splits of which a row says how many units it saw, in SPLIT_targets
Better = Literal["lower", "higher"] | None


@dataclass(frozen=True)
class Metric:
    """What a column means. better: whether a smaller or a larger value is wanted; None where neither is."""

    title: str
    unit: str = ""
    better: Better = None

    @property
    def is_share(self) -> bool:
        return self.unit.startswith("share of ")

    def text(self, value: float) -> str:
        """A value in a sentence: a share in percent."""
        return f"{value:.1%}" if self.is_share else format_number(value)


PREFIXES = {"gradient_norm/": "gradient norm of {}", "learning_rate/": "learning rate of {}"}


def axis_columns(unit: str) -> dict[str, Metric]:
    """The columns that say where in training a row was measured: axes of a chart, not curves."""
    return {
        "step": Metric("optimizer step", "steps"),
        "epoch": Metric("epoch", "passes over the data"),
        unit: Metric(f"{unit} trained on", unit),
        "flops": Metric("training FLOPs so far", "FLOPs"),
        "seconds": Metric("training time", "s"),
        "time": Metric("wall time", "s since 1970"),
        "attempt": Metric("attempt"),
    }


def general_columns(unit: str) -> dict[str, Metric]:
    """The columns that every task has."""
    return {
        **axis_columns(unit),
        "gradient_norm": Metric("gradient norm before clipping"),
        "clipped_share": Metric("steps whose gradient was clipped", "share of steps", "lower"),
        "learning_rate": Metric("learning rate of the weights"),
        f"{unit}_per_second": Metric("speed", f"{unit} per second", "higher"),
        "loader_wait_share": Metric("time spent waiting for data", "share of time", "lower"),
        "divergences": Metric("troubles seen by the divergence guard", "events", "lower"),
        **{f"{split}_targets": Metric(f"{title} {unit} evaluated", unit) for split, title in SPLITS.items()},
    }


@dataclass(frozen=True)
class TaskRecord:
    """task.json: what reading a run needs to know of its task.

    unit: what training counts, such as tokens; it names a column and an axis. headline: the column that a run is judged
    by, such as valid_loss. models: {--model_name: title}. twin: the flags of its baseline. decides: the flags that
    decide which data a run is evaluated on, what a unit of it is, and how many of them a row has. metrics: a cache of
    `measure`.
    """

    name: str
    unit: str
    headline: str
    models: Mapping[str, str]
    measures: tuple[Measure, ...]
    twin: Mapping[str, Any]
    decides: Mapping[str, tuple[str, ...]]
    metrics: dict[str, Metric] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def axes(self) -> dict[str, Metric]:
        return axis_columns(self.unit)

    @cached_property
    def general(self) -> dict[str, Metric]:
        return general_columns(self.unit)

    def measure(self, column: str) -> Metric:
        """What a column means; the title of an undeclared column is its name."""
        if column not in self.metrics:
            self.metrics[column] = self.describe(column)
        return self.metrics[column]

    def describe(self, column: str) -> Metric:
        if measure := None if column in self.axes else measure_of(column, self.measures):
            return Metric(measure.title, measure.unit, measure.better)
        if column in self.general:
            return self.general[column]
        for prefix, title in PREFIXES.items():
            if column.startswith(prefix):
                return Metric(title.format(column.removeprefix(prefix)))
        return Metric(column.replace("_", " ").strip() or column)

    def pattern_of(self, column: str) -> dict[str, Any] | None:
        """The pattern that declares a column, as loss_step_* does valid_loss_step_2: its own column and title, with *,
        the part that * stands for, and its rank among the measures; None where the column is declared by its name, or
        not at all."""
        split, _, rest = column.partition("_")
        if column in self.axes or any(column in (each.name, f"{split}_{each.name}") for each in self.measures):
            return None
        for rank, measure in enumerate(self.measures):
            before, star, after = measure.name.partition("*")
            is_of_split = measure.split and split in SPLITS
            name = rest if is_of_split else column
            if star and is_of_split == measure.split and measure.matches(name):
                start, title = (f"{split}_", f"{SPLITS[split]} {measure.title}") if is_of_split else ("", measure.title)
                part = name.removeprefix(before).removesuffix(after)
                return {"column": f"{start}{measure.name}", "title": title, "part": part, "rank": rank}
        return None

    def sign(self, column: str) -> int:
        """1 where a smaller value is better, -1 where a larger one is, 0 where neither is."""
        return 0 if column in self.axes else {"lower": 1, "higher": -1, None: 0}[self.measure(column).better]

    def headline_on(self, split: str) -> str:
        """The column of the headline's measure on another split: train_loss where the headline is valid_loss."""
        first, _, rest = self.headline.partition("_")
        return f"{split}_{rest}" if first in SPLITS else self.headline

    @cached_property
    def unit_free(self) -> frozenset[str]:
        """The measures that are the same for any unit: runs whose units differ are compared by them."""
        return frozenset(measure.instead for measure in self.measures if measure.instead)

    def is_unit_free(self, column: str) -> bool:
        split, _, name = column.partition("_")
        return split in SPLITS and name in self.unit_free

    def instead_of(self, column: str) -> str | None:
        """The column of the same measure that does not depend on the unit: bits per byte for the loss per token."""
        split, _, name = column.partition("_")
        measures = self.measures if split in SPLITS else ()
        return next((f"{split}_{each.instead}" for each in measures if each.name == name and each.instead), None)

    def restates_headline(self, column: str) -> bool:
        """Whether a column is the headline in other words, as perplexity and bits per byte are the loss."""
        split = column.partition("_")[0]
        headline = self.headline_on(split)
        other = self.instead_of(headline)
        return other is not None and column != headline and other in (column, self.instead_of(column))

    @property
    def label(self) -> str:
        """The title of the headline's measure without its split: loss."""
        title = self.measure(self.headline).title
        return title.removeprefix(f"{SPLITS.get(self.headline.partition('_')[0], '')} ")


@lru_cache
def task_from_text(text: str) -> TaskRecord:
    """The task of a task.json; that of language where it cannot be read."""
    try:
        record = json.loads(text)
        models, twin, decides = (record.get(name) for name in ("models", "twin", "decides"))
        return TaskRecord(
            str(record["name"]),
            str(record["unit"]),
            str(record["headline"]),
            {str(name): str(title) for name, title in models.items()} if isinstance(models, dict) else {},
            tuple(map(declared_measure, record["measures"])),
            twin if isinstance(twin, dict) else {},
            {kind: tuple(map(str, (decides or {}).get(kind, ()))) for kind in get_args(Decides)},
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return LANGUAGE_TASK


def declared_measure(entry: Mapping[str, Any]) -> Measure:
    """A measure as task.json has it; another version may have declared more of it, or less."""
    better = entry.get("better")
    return Measure(
        str(entry["name"]),
        str(entry.get("title") or entry["name"]),
        str(entry.get("unit") or ""),
        better if better in ("lower", "higher") else None,
        bool(entry.get("split", True)),
        entry.get("scale"),
        instead=str(entry.get("instead") or ""),
    )


# Folders of earlier versions have no task.json: language was the only task.
LANGUAGE = task_record(find_task(DEFAULT_TASK), values_of(from_dict({})))
LANGUAGE_TASK = task_from_text(json.dumps(LANGUAGE))


def schema(columns: Iterable[str], task: TaskRecord = LANGUAGE_TASK) -> dict[str, dict[str, str | None]]:
    """What metrics.schema.json says of these columns."""
    return {name: asdict(task.measure(name)) for name in columns}


# -- the last and the best value of every column ---------------------------------------------------------------------

Best = dict[str, tuple[float, int | None]]  # {column: (its best value, at which step)}
CHUNK = 1 << 20  # bytes that are read at once
TAIL = 300  # bytes before the offset, by which a file that was cut and written again is recognised


class MetricSummary(NamedTuple):
    """What was read of a metrics.jsonl. offset: how far. tail_checksum: of the bytes before it."""

    offset: int = 0
    tail_checksum: int = 0
    rows: int = 0
    damaged: int = 0
    last: dict[str, float] = {}  # noqa: RUF012 (never changed in place)
    best: Best = {}  # noqa: RUF012


def summarise_metrics(path: Path, task: TaskRecord, before: MetricSummary | None = None) -> MetricSummary:
    """What a metrics.jsonl says, from where `before` ended; a line that is still being written is left for later."""
    try:
        with open(path, "rb") as file:
            is_continued = before is not None and checksum_at(file, before.offset) == before.tail_checksum
            return continue_summary(file, task, before if before and is_continued else MetricSummary())
    except OSError:
        return MetricSummary()


def checksum_at(file: IO[bytes], offset: int) -> int:
    start = max(0, offset - TAIL)
    file.seek(start)
    return crc32(file.read(offset - start))


def continue_summary(file: IO[bytes], task: TaskRecord, before: MetricSummary) -> MetricSummary:
    last: dict[str, Any] = dict(before.last)
    best = before.best
    offset, count, damaged = before.offset, before.rows, before.damaged
    file.seek(offset)
    while lines := [line for line in file.readlines(CHUNK) if line.endswith(b"\n")]:
        offset += sum(map(len, lines))
        rows = parse_lines(lines)
        count += len(rows)
        damaged += sum(map(bool, map(bytes.strip, lines))) - len(rows)
        best = best_values(rows, task, best)
        for row in rows:
            last.update(row)
    numbers = {name: value for name, value in last.items() if is_number(value)}
    return MetricSummary(offset, checksum_at(file, offset), count, damaged, numbers, best)


def parse_lines(lines: list[bytes]) -> list[dict[str, Any]]:
    """The rows of these lines; parsed at once where all are valid, which takes half the time."""
    try:
        rows = json.loads(b"[" + b",".join(lines) + b"]")
        if len(rows) == len(lines) and all(type(row) is dict for row in rows):
            return list(rows)
    except (ValueError, RecursionError):
        pass
    return rows_of(b"\n".join(lines))


def best_values(rows: Sequence[Mapping[str, Any]], task: TaskRecord, before: Best | None = None) -> Best:
    """The best value of every column that has a better direction, `before` and in these rows.

    The best of valid_ and test_ is among the rows that saw the most units, so that a sample is not compared with the
    whole split, and not of step 0 where there is a later row; `best["valid_targets"]` is how many units that were.
    """
    best = dict(before or {})
    kinds: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}  # {columns: the rows that have them}
    for row in rows:
        kinds.setdefault(tuple(row), []).append(row)
    for columns, alike in kinds.items():
        largest = {
            split: largest_evaluations(best, split, task.headline_on(split), alike)
            for split in EVALUATED
            if task.headline_on(split) in columns
        }
        for name in columns:
            if sign := task.sign(name):
                update_best(best, name, sign, largest.get(name.partition("_")[0], alike))
    return best


def largest_evaluations(
    best: Best, split: str, headline: str, rows: list[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The rows that saw the most units of a split, among which its best value is.

    Where they saw more than all rows before, the values of `best` so far are dropped.
    """
    targets = f"{split}_targets"
    rows = [row for row in rows if is_number(row[headline]) and math.isfinite(row[headline])]
    ranks = [rank(row.get("step"), row.get(targets)) for row in rows]
    before = best.get(targets, (-1.0, 0))
    most = max([rank(before[1], before[0]), *ranks])
    if most > rank(before[1], before[0]):
        for name in [name for name in best if name.startswith(f"{split}_")]:
            del best[name]
        step = rows[ranks.index(most)].get("step")
        best[targets] = most[1], step if type(step) is int else None
    return [row for row, each in zip(rows, ranks, strict=True) if each == most]


def rank(step: Any, targets: Any) -> tuple[bool, float]:
    """The order of evaluations: one after training began counts more than step 0, then one over more units."""
    return step != 0, targets if is_number(targets) and math.isfinite(targets) else 0.0


def update_best(best: Best, name: str, sign: int, rows: list[Mapping[str, Any]]) -> None:
    """Put the best value of a column into `best`, with the first step that had it."""
    values = [row[name] for row in rows]
    if set(map(type, values)) != {float} or not math.isfinite(sum(values)):
        rows = [row for row in rows if is_number(row[name]) and math.isfinite(row[name])]
        values = [row[name] for row in rows]
    if values:
        value = min(values) if sign > 0 else max(values)
        if name not in best or sign * value < sign * best[name][0]:
            step = rows[values.index(value)].get("step")
            best[name] = (value, step if type(step) is int else None)


def is_number(value: Any) -> bool:
    """Whether it can be computed with: a whole number may have more digits than a float can hold."""
    return type(value) is float or (type(value) is int and value.bit_length() < 1000)


def number_or(value: Any, otherwise: float) -> float:
    """The value as a float; `otherwise` where it is no number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else otherwise


# -- `python -m runs export` -----------------------------------------------------------------------------------------

Row = dict[str, Any]


def export(argv: list[str]) -> int:
    """`python -m runs export`"""
    from runs.run import RUN_HELP, find_run  # here, since runs.run imports this module

    parser = CommandParser(
        "python -m runs export",
        "Print a run's metrics as CSV.\n\n"
        "An epoch is one line: means of what training measured in it, and the last of each evaluation.\n"
        "Epoch 0 is what was measured before training.",
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--every", choices=("row", "epoch"), default="epoch", help="a line an epoch, or a line a row")
    parser.add_argument("--out", metavar="FILE", help="write it there instead of printing it")
    options = parser.parse_args(argv)
    run = find_run(Path(options.logs_dir), options.run)
    rows = run.metrics()
    if not rows:
        raise UserError(
            f"RUN is {format_value(run.run_id)}: it has measured nothing yet; choose a run that has trained."
        )
    text = to_csv(by_epoch(rows, run.task) if options.every == "epoch" else rows, run.task)
    if options.out is None:
        sys.stdout.write(text)
        return 0
    try:
        write_text(Path(options.out), text)
    except OSError as error:
        raise UserError(
            f"--out is {format_value(options.out)}: {error.strerror}; give a file in a folder that exists."
        ) from None
    print(options.out)
    return 0


def by_epoch(rows: Sequence[Row], task: TaskRecord = LANGUAGE_TASK) -> list[Row]:
    """One row an epoch, counted from 1; 0 is what was measured before training."""
    epochs: dict[int, list[Row]] = {}
    for row in rows:
        epoch = number_or(row.get("epoch"), 0.0)
        epochs.setdefault(math.ceil(epoch) if math.isfinite(epoch) else 0, []).append(row)
    return [{**merge_rows(epochs[epoch], task), "epoch": epoch} for epoch in sorted(epochs)]


def merge_rows(rows: Sequence[Row], task: TaskRecord) -> Row:
    """Means of what training measured; the newest of places, evaluations and rates."""
    values_of: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            values_of.setdefault(name, []).append(value)
    return {
        name: mean(values) if is_averaged(name, task) and all(map(is_number, values)) else values[-1]
        for name, values in values_of.items()
    }


def mean(values: Sequence[float]) -> float:
    try:
        return fmean(values)
    except (OverflowError, ValueError):  # their sum overflows, or has both infinities
        return sum(value / len(values) for value in values)


def is_averaged(name: str, task: TaskRecord) -> bool:
    return name not in task.axes and not name.startswith(("valid_", "test_", "learning_rate", "divergences"))


def to_csv(rows: Sequence[Row], task: TaskRecord = LANGUAGE_TASK) -> str:
    """Rows with a column for each name that occurs; what a row does not have stays empty."""
    names = [name for name in task.axes if any(name in row for row in rows)]
    names += [name for name in dict.fromkeys(name for row in rows for name in row) if name not in task.axes]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
