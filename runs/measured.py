"""The last and the best value of every metric of a run, brought up to date from where metrics.jsonl was read to."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple
from zlib import crc32

from core.files import rows_of
from runs.metrics import PLACE, describe

Best = dict[str, tuple[float, int | None]]  # {metric: (its best value, at which step)}
EVALUATED = ("valid", "test")  # splits of which a row says how many tokens it saw

CHUNK = 1 << 20  # bytes that are read at once
GUARD = 300  # bytes before the place read to, by which a file that was cut and written anew is recognised


class Measured(NamedTuple):
    """offset, guard: how far the file was read, and a sum of what stands before it. best: {metric: [value, step]}.

    The best of valid_ and test_ is among the rows that saw the most tokens, so that a sample is not held against the
    whole split, and not of step 0 where there is a later row; `best["valid_targets"]` is how many tokens that were.
    """

    offset: int = 0
    guard: int = 0
    rows: int = 0
    damaged: int = 0
    last: dict[str, float] = {}  # noqa: RUF012 (never changed in place)
    best: Best = {}  # noqa: RUF012


def measure(path: Path, before: Measured | None = None) -> Measured:
    """What a metrics.jsonl says; a last line that is still being written is left for the next time."""
    try:
        with open(path, "rb") as file:
            known = before if before and is_continued(file, before) else Measured()
            return read_on(file, known)
    except OSError:
        return Measured()


def is_continued(file: IO[bytes], before: Measured) -> bool:
    return guard_at(file, before.offset) == before.guard


def guard_at(file: IO[bytes], offset: int) -> int:
    start = max(0, offset - GUARD)
    file.seek(start)
    return crc32(file.read(offset - start))


def read_on(file: IO[bytes], known: Measured) -> Measured:
    last: dict[str, Any] = dict(known.last)
    best = dict(known.best)
    offset, found, damaged = known.offset, known.rows, known.damaged
    file.seek(offset)
    while lines := [line for line in file.readlines(CHUNK) if line.endswith(b"\n")]:
        offset += sum(map(len, lines))
        rows = rows_at_once(lines)
        found += len(rows)
        damaged += sum(map(bool, map(bytes.strip, lines))) - len(rows)
        update_best(best, rows)
        for row in rows:
            last.update(row)
    numbers = {name: value for name, value in last.items() if is_number(value)}
    return Measured(offset, guard_at(file, offset), found, damaged, numbers, best)


def rows_at_once(lines: list[bytes]) -> list[dict[str, Any]]:
    """The rows that can be read; all at once where nothing is wrong, which takes half the time."""
    try:
        rows = json.loads(b"[" + b",".join(lines) + b"]")
        if len(rows) == len(lines) and all(type(row) is dict for row in rows):
            return list(rows)
    except (ValueError, RecursionError):
        pass
    return rows_of(b"\n".join(lines))


def update_best(best: Best, rows: Sequence[Mapping[str, Any]]) -> None:
    """Take further rows into account."""
    kinds: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}  # rows of the same columns, to be judged together
    for row in rows:
        kinds.setdefault(tuple(row), []).append(row)
    for columns, alike in kinds.items():
        largest = {split: largest_of(best, split, alike) for split in EVALUATED if f"{split}_loss" in columns}
        for name in columns:
            if sign := sign_of(name):
                take_best(best, name, sign, largest.get(name.partition("_")[0], alike))


def largest_of(best: Best, split: str, rows: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows among which the best of a split is; where they saw more than all before, the best so far is dropped."""
    targets = f"{split}_targets"
    rows = [row for row in rows if is_number(row[f"{split}_loss"]) and math.isfinite(row[f"{split}_loss"])]
    ranks = [rank(row.get("step"), row.get(targets)) for row in rows]
    seen, step = best.get(targets, (-1.0, 0))
    most = max([rank(step, seen), *ranks])
    if most > rank(step, seen):
        for name in [name for name in best if name.startswith(f"{split}_")]:
            del best[name]
        step = rows[ranks.index(most)].get("step")
        best[targets] = most[1], step if type(step) is int else None
    return [row for row, each in zip(rows, ranks, strict=True) if each == most]


def rank(step: Any, targets: Any) -> tuple[bool, float]:
    """Before the first step nothing is learned, and a validation over more tokens tells more."""
    return step != 0, targets if is_number(targets) and math.isfinite(targets) else 0.0


def take_best(best: Best, name: str, sign: int, rows: list[Mapping[str, Any]]) -> None:
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


@cache
def sign_of(name: str) -> int:
    """1 where a smaller value is better, -1 where a larger one is, 0 where neither is."""
    if name in PLACE:
        return 0
    return {"lower": 1, "higher": -1, None: 0}[describe(name).better]
