"""metrics.jsonl as curves small enough for a browser: every spike stays visible, whatever the number of rows."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from runs.compare import extent, needs_of, ratio_of, row_length
from runs.metrics import EVALUATED, LANGUAGE_TASK, Metric, TaskRecord

POINTS = 60_000  # of all curves of a run together
MAX_POINTS, MIN_POINTS = 2000, 50  # of one curve
AXIS_POINTS = 400  # steps for which units, seconds and FLOPs are given
STEP_DIGITS = 15
SPARK_POINTS = 48  # points of the small curve in the list of runs
# {term of the training loss: the flag that is its weight}; the rest of the loss is that of the prediction itself.
TERMS = {"contrastive_loss": "contrastive_loss_coeff"}


@dataclass(frozen=True)
class Column:
    """What one column of a .jsonl file holds, in the order of `step`."""

    step: np.ndarray
    value: np.ndarray


def read_columns(path: Path, axis: str = "step") -> dict[str, Column]:
    """Every column of numbers, row by row and so in little memory; what is no number is NaN.

    Rows without the axis are skipped, as are lines that are no JSON.
    """
    kinds: dict[tuple[str, ...], list[array[float]]] = {}  # {names: their columns}; most rows have the same names
    try:
        with open(path, "rb") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict) and isinstance(row.get(axis), int | float):
                    add(kinds, row)
    except OSError:
        return {}
    parts_of: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for names, columns in kinds.items():
        steps = np.asarray(columns[names.index(axis)])
        for name, column in zip(names, columns, strict=True):
            parts_of.setdefault(name, []).append((steps, np.asarray(column)))
    return {name: concatenate(parts) for name, parts in parts_of.items()}


def add(kinds: dict[tuple[str, ...], list[array[float]]], row: dict[str, Any]) -> None:
    names = tuple(row)
    columns = kinds.get(names)
    if columns is None:
        columns = kinds[names] = [array("d") for _ in names]
    for column, value in zip(columns, row.values(), strict=True):
        try:
            column.append(value)
        except (TypeError, OverflowError):
            column.append(math.nan)


def concatenate(parts: list[tuple[np.ndarray, np.ndarray]]) -> Column:
    steps = np.concatenate([steps for steps, _ in parts])
    values = np.concatenate([values for _, values in parts])
    finite = np.isfinite(steps)
    order = np.argsort(steps[finite], kind="stable")
    return Column(steps[finite][order], values[finite][order])


def decimate(values: np.ndarray, limit: int) -> np.ndarray:
    """The indices of at most `limit` values: both ends, and of each stretch the least, the largest and the first that
    is not finite."""
    count = len(values)
    if count <= limit:
        return np.arange(count)
    finite = np.isfinite(values)
    stretches = (limit - 2) // (2 if finite.all() else 3)
    edges = np.linspace(0, count, stretches + 1).astype(int)
    low, high = np.where(finite, values, np.inf), np.where(finite, values, -np.inf)
    indices = {0, count - 1}
    for start, stop in pairwise(edges):
        inside = finite[start:stop]
        if inside.any():
            indices |= {int(start + low[start:stop].argmin()), int(start + high[start:stop].argmax())}
        if not inside.all():
            indices.add(int(start + inside.argmin()))
    return np.array(sorted(indices))


def curves_of(
    columns: dict[str, Column],
    settings: dict[str, Any],
    task: TaskRecord = LANGUAGE_TASK,
    measure: Callable[[str], Metric] | None = None,
) -> dict[str, Any]:
    """What a page draws: {"places": {axis: [...]}, "series": {name: {"x": steps, "y": values, title, unit, better}}}

    Where rows say over how much they were evaluated, "of" has it, see `extent`. "needs": what must be the same in runs
    that are compared by it; "instead": the column for runs whose units differ. "again": it is the headline in other
    words. "pattern": of the columns that are drawn together with it, see `pattern_of`. measure: what a column means, if
    not by the task alone.
    """
    columns = {**columns, **loss_shares(columns, settings, task)}
    drawn = {
        name: column for name, column in columns.items() if name not in task.axes and np.isfinite(column.value).any()
    }
    limit = min(MAX_POINTS, max(MIN_POINTS, POINTS // max(1, len(drawn))))
    series = {}
    for name, column in sorted(drawn.items()):
        indices = decimate(column.value, limit)
        series[name] = {
            "x": plain(column.step[indices], STEP_DIGITS),
            "y": plain(column.value[indices]),
            "rows": len(column.value),
            **(
                {"of": plain(sizes[indices], STEP_DIGITS)}
                if (sizes := extent_of(columns, name, settings, task)) is not None
                else {}
            ),
            **({"instead": instead} if (instead := task.instead_of(name)) in drawn else {}),
            **({"again": True} if task.restates_headline(name) else {}),
            **({"pattern": pattern} if (pattern := task.pattern_of(name)) else {}),
            "needs": needs_of(name, task),
            **asdict((measure or task.measure)(name)),
        }
    return {"places": axis_values(columns, task.unit), "series": series}


def extent_of(columns: dict[str, Column], name: str, settings: dict[str, Any], task: TaskRecord) -> np.ndarray | None:
    """What each value of an evaluation was measured over: see `extent`; None where the rows do not say."""
    split = name.partition("_")[0]
    targets = columns.get(f"{split}_targets")
    if split not in EVALUATED or targets is None or len(targets.step) != len(columns[name].step):
        return None
    length = row_length(settings.get, task)
    if not task.is_unit_free(name):
        return np.array([extent(units, length) for units in targets.value])
    headline, column = columns.get(task.headline_on(split)), columns[name]
    if headline is None or len(headline.step) != len(column.step):
        return None
    rows = zip(targets.value, headline.value, column.value, strict=True)
    return np.array([extent(units, length, ratio_of(value, other)) for units, value, other in rows])


def loss_shares(columns: dict[str, Column], settings: dict[str, Any], task: TaskRecord) -> dict[str, Column]:
    """The part of the training loss that each of its terms makes up, when it has several."""
    whole = columns.get(task.headline_on("train"))
    shares: dict[str, Column] = {}
    for term, weight in TERMS.items():
        coefficient = settings.get(weight)
        if whole is None or term not in columns or not isinstance(coefficient, int | float):
            continue
        column = columns[term]
        part = coefficient * np.interp(whole.step, column.step, column.value)
        rest = np.abs(whole.value - part)
        share = np.abs(part) / np.maximum(np.abs(part) + rest, 1e-12)
        shares = {
            f"loss_share/{term}": Column(whole.step, share),
            "loss_share/reconstruction": Column(whole.step, 1 - share),
        }
    return shares


def axis_values(columns: dict[str, Column], unit: str) -> dict[str, list[float | None]]:
    """Units, seconds and FLOPs beside some steps; an axis that part of the rows lack is left out."""
    if "step" not in columns:
        return {}
    steps = np.unique(columns["step"].step)
    steps_shown = steps[np.unique(np.linspace(0, len(steps) - 1, min(AXIS_POINTS, len(steps))).astype(int))]
    axes = {"step": plain(steps_shown, STEP_DIGITS)}
    for axis in (unit, "seconds", "flops"):
        column = columns.get(axis)
        if column is None:
            continue
        finite = np.isfinite(column.value)
        if finite.sum() >= 0.9 * len(columns["step"].step):
            rising = np.maximum.accumulate(column.value[finite])
            axes[axis] = plain(np.interp(steps_shown, column.step[finite], rising), 9)
    return axes


def spark(columns: dict[str, Column], task: TaskRecord) -> list[float | None]:
    """A curve of few points that says how training went: the headline where there is enough of it, else on training."""
    for name, least in ((task.headline, 8), (task.headline_on("train"), 2), (task.headline, 2)):
        column = columns.get(name)
        if column is not None and np.isfinite(column.value).sum() >= least:
            finite = column.value[np.isfinite(column.value)]
            return plain(finite[decimate(finite, SPARK_POINTS)], 3)
    return []


def plain(values: Any, digits: int = 6) -> list[Any]:
    """Numbers as JSON has them, with as many digits as a chart can show; what is not finite is null."""
    array = np.asarray(values, dtype=float)
    is_finite = np.isfinite(array)
    finite = np.where(is_finite, array, 0.0)
    size = np.floor(np.log10(np.maximum(np.abs(finite), 1e-300)))
    # Powers of ten beyond these are not exact, and such numbers are left as they are.
    decimals = np.where(np.abs(digits - 1 - size) <= 22, digits - 1 - size, 0)
    up, down = 10.0 ** np.maximum(decimals, 0), 10.0 ** np.maximum(-decimals, 0)
    rounded = np.where(np.abs(digits - 1 - size) <= 22, np.round(finite * up / down) * down / up, finite)
    if not is_finite.all():
        return [value if fine else None for value, fine in zip(rounded.tolist(), is_finite, strict=True)]
    whole = len(rounded) and np.abs(rounded).max() < 2**53 and (rounded == np.round(rounded)).all()
    numbers: list[Any] = (rounded.astype(np.int64) if whole else rounded).tolist()
    return numbers
