"""`python -m runs export RUN`: metrics as CSV, for a spreadsheet or a plot of one's own."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from core.commands import CommandParser
from core.errors import UserError
from core.files import write_text
from core.text import shown
from runs.metrics import PLACE
from runs.reading import find_run, number

Row = dict[str, Any]


def export(argv: list[str]) -> int:
    """The command."""
    parser = CommandParser(
        "python -m runs export",
        "Print a run's metrics as CSV.\n\n"
        "An epoch is one line: means of what training measured in it, and the last of each evaluation.\n"
        "Epoch 0 is what was measured before training.",
    )
    parser.add_argument("run", metavar="RUN", help="id, name, beginning of an id, or last")
    parser.add_argument("--every", choices=("row", "epoch"), default="epoch", help="a line an epoch, or a line a row")
    parser.add_argument("--out", metavar="FILE", help="write it there instead of printing it")
    options = parser.parse_args(argv)
    run = find_run(Path(options.logs_dir), options.run)
    rows = run.metrics()
    if not rows:
        raise UserError(f"RUN is {shown(run.run_id)}: it has measured nothing yet; choose a run that has trained.")
    text = to_csv(by_epoch(rows) if options.every == "epoch" else rows)
    if options.out is None:
        sys.stdout.write(text)
        return 0
    try:
        write_text(Path(options.out), text)
    except OSError as error:
        raise UserError(
            f"--out is {shown(options.out)}: {error.strerror}; give a file in a folder that exists."
        ) from None
    print(options.out)
    return 0


def by_epoch(rows: Sequence[Row]) -> list[Row]:
    """One row an epoch, counted from 1; 0 is what was measured before training."""
    epochs: dict[int, list[Row]] = {}
    for row in rows:
        epoch = number(row.get("epoch"), 0.0)
        epochs.setdefault(math.ceil(epoch) if math.isfinite(epoch) else 0, []).append(row)
    return [{**merged(epochs[epoch]), "epoch": epoch} for epoch in sorted(epochs)]


def merged(rows: Sequence[Row]) -> Row:
    """Means of what training measured; the newest of places, evaluations and rates."""
    found: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return {
        name: mean(values) if is_mean(name) and all(map(is_number, values)) else values[-1]
        for name, values in found.items()
    }


def mean(values: Sequence[float]) -> float:
    try:
        return fmean(values)
    except (OverflowError, ValueError):  # their sum is beyond all numbers, or infinite both ways
        return sum(value / len(values) for value in values)


def is_mean(name: str) -> bool:
    return name not in PLACE and not name.startswith(("valid_", "test_", "learning_rate", "divergences"))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def to_csv(rows: Sequence[Row]) -> str:
    """Rows with a column for each name that occurs; what a row does not have stays empty."""
    names = [name for name in PLACE if any(name in row for row in rows)]
    names += [name for name in dict.fromkeys(name for row in rows for name in row) if name not in PLACE]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
