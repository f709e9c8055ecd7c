"""Whether two runs trained the same: every step once, and every loss the same to the last bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

KINDS = {"train_loss": "step", "valid_loss": "the validation of step", "test_loss": "the test after step"}
SAME = ("loss", "norm", "energy", "accuracy", "learning_rate", "step_size")  # in the name of what has to be the same

Trace = dict[tuple[str, int, float], dict[str, Any]]


def rows_by_place(rows: Iterable[dict[str, Any]]) -> tuple[Trace, str | None]:
    """What was measured, by kind of row and step; and the first that stands there twice."""
    found: Trace = {}
    seen: Counter[tuple[str, int, float]] = Counter()
    for row in rows:
        for name, kind in KINDS.items():
            if name in row and isinstance(row.get("step"), int):
                place = (kind, row["step"], row.get("valid_targets") or 0)  # a sample's, and the whole split's
                seen[place] += 1
                found[place] = {key: value for key, value in row.items() if any(word in key for word in SAME)}
    twice = next((f"{kind} {step} stands there twice" for (kind, step, _), count in seen.items() if count > 1), None)
    return found, twice


def first_difference(
    rows: Iterable[dict[str, Any]], whole: Iterable[dict[str, Any]], until: int | None = None
) -> str | None:
    """In what a run differs from one that was never interrupted, in words; None where they are the same.

    until: the last step of a run that was ended for good.
    """
    here, twice = rows_by_place(rows)
    there, _ = rows_by_place(whole)
    if twice:
        return twice
    for place in sorted(here.keys() | there.keys(), key=lambda place: (place[1], place[0], place[2])):
        kind, step, _ = place
        if until is not None and step > until:
            break
        if place not in here:
            if until == step and kind != KINDS["train_loss"]:
                continue  # its validation was still to come
            return f"{kind} {step} is missing"
        if place not in there:
            return f"{kind} {step} should not be there"
        mine, theirs = here[place], there[place]
        for name in sorted(mine.keys() | theirs.keys()):
            a, b = mine.get(name), theirs.get(name)
            if a != b and not (a != a and b != b):
                return f"{kind} {step}: {name} is {a!r} and not {b!r}"
    return None
