"""Which numbers of two runs may be compared: of the same task, data, kind and number of units, at the same step.

A verdict needs all of them; where one differs, the reason is given in words and the numbers are left as they are. Which
settings decide on the data and on what a unit is, the task says (task.json).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from config.task import measure_of
from config.task_flags import all_flags
from core.files import rows_of
from core.text import format_value, join_words
from runs.metrics import EVALUATED, TaskRecord, number_or

# The flags that leave out a part of the data.
LIMITS = ("limit_val_batches", "overfit_batches", "fast_dev_run", "debug_mode")
Lookup = Callable[[str], Any]


class Validation(NamedTuple):
    """One row of a validation. value: the headline. units: how much it saw, see `extent`; 0 where the row does not say.

    unit_free, unit_free_extent: the same for runs whose units differ, where the task has a measure for that.
    """

    step: int
    value: float
    units: float = 0.0
    unit_free: float = math.nan
    unit_free_extent: float = 0.0


def extent(targets: float, row_length: int, ratio: float | None = None) -> float:
    """How many units an evaluation saw, as a number that is the same for the same data only: a sample is of whole rows,
    and rows of another length are another sample.

    ratio: how many times larger the measure per unit is than the one that is the same for any unit. Where it is given,
    the number is one of the data and not of its units: nats per token / bits per byte gives the bytes of the tokens.
    """
    if not targets or not math.isfinite(targets):
        return 0.0
    size = targets
    if ratio is not None:
        size = targets * ratio
        size = float(f"{size:.3g}") if math.isfinite(size) else 0.0
    return size + row_length / 1e9 if size and row_length and targets % row_length == 0 else size


def ratio_of(value: float, unit_free: float) -> float:
    return value / unit_free if unit_free else 0.0


def row_length(setting: Lookup, task: TaskRecord) -> int:
    """The number of units in a row of data, by the settings; 0 where they do not decide it."""
    lengths = [setting(name) for name in task.decides["row"]]
    return math.prod(lengths) if lengths and all(type(length) is int for length in lengths) else 0


def value_of(settings: Mapping[str, Any], name: str) -> Any:
    """A setting of a run; the default where the version of the run did not have it."""
    if name in settings or name not in all_flags():
        return settings.get(name)
    default = all_flags()[name].default
    return list(default) if isinstance(default, tuple) else default


def measured_on(settings: Mapping[str, Any], name: str) -> Any:
    """A setting that decides what was measured. No limit is "all", however it was written."""
    value = value_of(settings, name)
    return "all" if name == "limit_val_batches" and value in (None, 1) else value


def rehearsal_of(setting: Lookup) -> str | None:
    """The flags by which a run is a rehearsal or saw a part of the validation split: its numbers are not ranked."""
    flags = [f"--{name}" for name in ("fast_dev_run", "debug_mode") if setting(name)]
    overfit, limit = setting("overfit_batches"), setting("limit_val_batches")
    if overfit:
        flags.append(f"--overfit_batches {format_value(overfit)}")
    if limit not in (None, 0, 1) and not flags:
        flags.append(f"--limit_val_batches {format_value(limit)}")
    return " ".join(flags) or None


def why_not_comparable(a: Mapping[str, Any], b: Mapping[str, Any], metric: str, task: TaskRecord) -> str | None:
    """Why a metric does not tell which of two runs is better, in words; None where it does."""
    if not a or not b:
        return "the settings of one are not known"
    units = () if task.is_unit_free(metric) else task.decides["unit"]
    kinds = {"other data": task.decides["data"], "other limits of validation": LIMITS}
    for why, names in (kinds | {f"another {name.replace('_', ' ')}": (name,) for name in units}).items():
        differ = [name for name in names if measured_on(a, name) != measured_on(b, name)]
        flags = [
            f"--{name} {format_value(measured_on(a, name))} and {format_value(measured_on(b, name))}" for name in differ
        ]
        if flags:
            return f"{why} ({join_words(flags, 'and')})"
    return None


def ranking_key(setting: Lookup, task: TaskRecord, metric: str, size: float) -> Hashable:
    """Runs of the same key can be ranked by the metric. size: the extent of what was evaluated."""
    split = metric.partition("_")[0]
    if split not in ("train", *EVALUATED):
        return task.name
    names = (*task.decides["data"], *(() if task.is_unit_free(metric) else task.decides["unit"]))
    return (task.name, *(format_value(setting(name)) for name in names), 0 if split == "train" else size)


def needs_of(column: str, task: TaskRecord) -> list[str]:
    """What must be equal in runs whose values of a column are compared, of: data, limits, overfitting, unit."""
    split = column.partition("_")[0]
    unit = [] if task.is_unit_free(column) else ["unit"]
    if split in EVALUATED:
        return ["data", "limits", *unit]
    is_result = split == "train" or (task.sign(column) != 0 and measure_of(column, task.measures) is not None)
    return ["data", "overfitting", *unit] if is_result else []


def validations_of(path: Path, setting: Lookup, task: TaskRecord) -> list[Validation]:
    """The validations of a run's folder, in the order in which they were written."""
    quoted = json.dumps(task.headline).encode()
    try:
        with open(path / "metrics.jsonl", "rb") as file:
            lines = [line for line in file if quoted in line]  # one row of many is a validation
    except OSError:
        return []
    length, instead = row_length(setting, task), task.instead_of(task.headline)
    validations = []
    for row in rows_of(b"".join(lines)):
        step, value = row.get("step"), row.get(task.headline)
        if isinstance(step, int) and isinstance(value, int | float) and math.isfinite(value):
            targets, other = (number_or(row.get(name or ""), 0.0) for name in ("valid_targets", instead))
            sizes = extent(targets, length), extent(targets, length, ratio_of(value, other))
            validations.append(Validation(step, value, sizes[0], other, sizes[1]))
    return validations


def of_one_extent(validations: Sequence[Validation]) -> list[Validation]:
    """The validations after step 0 that saw the same number of units: the number that most of them saw."""
    trained = [one for one in validations if one.step > 0]
    counts = Counter(one.units for one in trained)
    most = max(counts, key=lambda units: (counts[units], units), default=0)
    return list({one.step: one for one in trained if one.units == most}.values())


def last_common_validations(
    mine: Sequence[Validation], theirs: Sequence[Validation], size: Callable[[Validation], float]
) -> tuple[Validation, Validation] | None:
    """The validations of both runs at the last step at which both saw the same amount of data; of several at one step,
    the one over more data."""
    a, b = ({(one.step, size(one)): one for one in rows if one.step > 0} for rows in (mine, theirs))
    common = a.keys() & b.keys()
    return (a[max(common)], b[max(common)]) if common else None
