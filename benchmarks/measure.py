"""What the benchmarks share: how a call or a process is timed, and the two forms of a result, measurement and table."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent


class Measurement(NamedTuple):
    """A number, and in a few words how it was taken."""

    name: str
    value: float
    unit: str
    note: str


@dataclass(frozen=True)
class Sheet:
    """A table of results, for the screen and for a file. Cells are text; `words`: columns that hold no numbers."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[str] = frozenset()

    def table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, title=self.title, padding=(0, 1, 0, 0))
        for heading in self.headings:
            table.add_column(heading, justify="left" if heading in self.words else "right")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        rule = ["---" if heading in self.words else "---:" for heading in self.headings]
        lines = ["| " + " | ".join(cells) + " |" for cells in (self.headings, rule, *self.rows)]
        return "\n".join([self.title, "", *lines, ""])


def seconds(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def best_seconds(call: Callable[[], object], rounds: int = 3) -> float:
    """Seconds of the fastest of some calls."""
    return min(seconds(call) for _ in range(rounds))


def run_python(*words: str) -> None:
    """`python WORDS` in a process of its own, without its output."""
    command = [sys.executable, *words]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
