"""metrics.jsonl as curves small enough for a browser: every spike is kept, whatever the number of rows."""

from __future__ import annotations

import json
import math
from array import array
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from runs.comparing import extent
from runs.measured import EVALUATED
from runs.metrics import PLACE, describe

AXES = ("step", "tokens", "seconds", "flops")
POINTS = 60_000  # of all curves of a run together
MOST, FEWEST = 2000, 50  # of one curve
PLACES = 400  # at which tokens, seconds and FLOPs are told beside the step
EXACT = 15  # digits of a step
SPARK = 48  # points of the small curve in the list of runs
# A term of the training loss, and the flag that is its weight; what they leave is the cross-entropy.
TERMS = {"contrastive_loss": "contrastive_loss_coeff"}


@dataclass(frozen=True)
class Column:
    """What one column of a .jsonl file holds, in the order of `step`."""

    step: np.ndarray
    value: np.ndarray


def read_columns(path: Path, place: str = "step") -> dict[str, Column]:
    """Every column of numbers, row by row and so in little memory; what is no number is NaN.

    Rows without a `place` are passed over, as are lines that are no JSON.
    """
    kinds: dict[tuple[str, ...], list[array[float]]] = {}  # rows of the same names share their places
    try:
        with open(path, "rb") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict) and isinstance(row.get(place), int | float):
                    add(kinds, row)
    except OSError:
        return {}
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for names, columns in kinds.items():
        steps = np.asarray(columns[names.index(place)])
        for name, column in zip(names, columns, strict=True):
            found.setdefault(name, []).append((steps, np.asarray(column)))
    return {name: joined(parts) for name, parts in found.items()}


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


def joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> Column:
    steps = np.concatenate([steps for steps, _ in parts])
    values = np.concatenate([values for _, values in parts])
    known = np.isfinite(steps)
    order = np.argsort(steps[known], kind="stable")
    return Column(steps[known][order], values[known][order])


def decimate(values: np.ndarray, limit: int) -> np.ndarray:
    """The places of at most `limit` values: the ends, and of each stretch the least, the largest and the first that is
    not finite."""
    count = len(values)
    if count <= limit:
        return np.arange(count)
    finite = np.isfinite(values)
    stretches = (limit - 2) // (2 if finite.all() else 3)
    edges = np.linspace(0, count, stretches + 1).astype(int)
    low, high = np.where(finite, values, np.inf), np.where(finite, values, -np.inf)
    kept = {0, count - 1}
    for start, stop in pairwise(edges):
        inside = finite[start:stop]
        if inside.any():
            kept |= {int(start + low[start:stop].argmin()), int(start + high[start:stop].argmax())}
        if not inside.all():
            kept.add(int(start + inside.argmin()))
    return np.array(sorted(kept))


def curves_of(columns: dict[str, Column], settings: dict[str, Any]) -> dict[str, Any]:
    """What a page draws: {"places": {axis: [...]}, "series": {name: {"x": steps, "y": values, title, unit, better}}}

    Where rows say over how much they were evaluated, "of" has it: tokens, or bytes for bits per byte.
    """
    columns = {**columns, **loss_shares(columns, settings)}
    drawn = {name: column for name, column in columns.items() if name not in PLACE and np.isfinite(column.value).any()}
    limit = min(MOST, max(FEWEST, POINTS // max(1, len(drawn))))
    series = {}
    for name, column in sorted(drawn.items()):
        kept = decimate(column.value, limit)
        series[name] = {
            "x": plain(column.step[kept], EXACT),
            "y": plain(column.value[kept]),
            "rows": len(column.value),
            **({"of": plain(seen[kept], EXACT)} if (seen := extent_of(columns, name, settings)) is not None else {}),
            **asdict(describe(name)),
        }
    return {"places": places(columns), "series": series}


def extent_of(columns: dict[str, Column], name: str, settings: dict[str, Any]) -> np.ndarray | None:
    """What each value of an evaluation was measured over: a number that is the same for the same text only."""
    split, _, what = name.partition("_")
    targets = columns.get(f"{split}_targets")
    if split not in EVALUATED or targets is None or len(targets.step) != len(columns[name].step):
        return None
    length = settings.get("context_length")
    if what != "bits_per_byte":
        return np.array([extent(seen, length) for seen in targets.value])
    loss, bits = columns.get(f"{split}_loss"), columns[name]
    if loss is None or len(loss.step) != len(bits.step):
        return None
    rows = zip(targets.value, loss.value, bits.value, strict=True)
    return np.array([extent(seen, length, *values) for seen, *values in rows])


def loss_shares(columns: dict[str, Column], settings: dict[str, Any]) -> dict[str, Column]:
    """The part of the training loss that each of its terms makes up, when it has several."""
    whole = columns.get("train_loss")
    shares: dict[str, Column] = {}
    for term, weight in TERMS.items():
        coefficient = settings.get(weight)
        if whole is None or term not in columns or not isinstance(coefficient, int | float):
            continue
        measured = columns[term]
        part = coefficient * np.interp(whole.step, measured.step, measured.value)
        rest = np.abs(whole.value - part)
        share = np.abs(part) / np.maximum(np.abs(part) + rest, 1e-12)
        shares = {
            f"loss_share/{term}": Column(whole.step, share),
            "loss_share/cross_entropy": Column(whole.step, 1 - share),
        }
    return shares


def places(columns: dict[str, Column]) -> dict[str, list[float | None]]:
    """Tokens, seconds and FLOPs beside some steps; an axis that part of the rows lack is left out."""
    if "step" not in columns:
        return {}
    steps = np.unique(columns["step"].step)
    kept = steps[np.unique(np.linspace(0, len(steps) - 1, min(PLACES, len(steps))).astype(int))]
    found = {"step": plain(kept, EXACT)}
    for axis in AXES[1:]:
        column = columns.get(axis)
        if column is None:
            continue
        known = np.isfinite(column.value)
        if known.sum() >= 0.9 * len(columns["step"].step):
            rising = np.maximum.accumulate(column.value[known])
            found[axis] = plain(np.interp(kept, column.step[known], rising), 9)
    return found


def spark(columns: dict[str, Column]) -> list[float | None]:
    """A curve of few points that says how the loss went: validation where there is enough of it, else training."""
    for name, least in (("valid_loss", 8), ("train_loss", 2), ("valid_loss", 2)):
        column = columns.get(name)
        if column is not None and np.isfinite(column.value).sum() >= least:
            finite = column.value[np.isfinite(column.value)]
            return plain(finite[decimate(finite, SPARK)], 3)
    return []


def extremes(columns: dict[str, Column]) -> dict[str, list[float | None]]:
    """{metric: [last, best, step of the best]}; best by the metric's own direction, None where it has none."""
    found = {}
    for name, column in columns.items():
        finite = np.isfinite(column.value)
        if name in PLACE or "/" in name or not finite.any():
            continue
        values = column.value[finite]
        last = plain(values[-1:], 7)
        ranked = finite & largest(columns, name)
        steps, values = column.step[ranked], column.value[ranked]
        better = describe(name).better
        at = {"lower": int(values.argmin()), "higher": int(values.argmax())}.get(better or "")
        best = [None, None] if at is None else [*plain([values[at]], 7), *plain([steps[at]], EXACT)]
        found[name] = [*last, *best]
    return found


def largest(columns: dict[str, Column], name: str) -> np.ndarray:
    """Which values the best is among, as runs/measured.py has it: after step 0, and over the most tokens."""
    column = columns[name]
    ranked = np.isfinite(column.value)
    if name.partition("_")[0] in EVALUATED:
        trained = ranked & (column.step != 0)
        ranked = trained if trained.any() else ranked
        seen = extent_of(columns, name, {})
        if seen is not None and ranked.any():
            ranked &= seen == seen[ranked].max()
    return ranked


def last(columns: dict[str, Column], name: str) -> float | None:
    """The last finite value of a column."""
    if name not in columns:
        return None
    finite = columns[name].value[np.isfinite(columns[name].value)]
    return float(finite[-1]) if len(finite) else None


def plain(values: Any, digits: int = 6) -> list[Any]:
    """Numbers as JSON has them, with as many digits as a chart can show; what is not finite is null."""
    array = np.asarray(values, dtype=float)
    known = np.isfinite(array)
    finite = np.where(known, array, 0.0)
    size = np.floor(np.log10(np.maximum(np.abs(finite), 1e-300)))
    # Powers of ten beyond these are not exact, and such numbers are left as they are.
    places = np.where(np.abs(digits - 1 - size) <= 22, digits - 1 - size, 0)
    up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
    rounded = np.where(np.abs(digits - 1 - size) <= 22, np.round(finite * up / down) * down / up, finite)
    if not known.all():
        return [value if fine else None for value, fine in zip(rounded.tolist(), known, strict=True)]
    whole = len(rounded) and np.abs(rounded).max() < 2**53 and (rounded == np.round(rounded)).all()
    found: list[Any] = (rounded.astype(np.int64) if whole else rounded).tolist()
    return found
