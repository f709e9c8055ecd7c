"""Shows how far long work is: a bar on a terminal, a line now and then in a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE_EVERY_SECONDS = 10.0


def notice(text: str) -> None:
    """Tell the person one line; stderr, so that it never mixes with a command's output."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def progress(title: str, unit: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Yield a function that is told how many units were just done; total is None when nobody knows it."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit + " · {task.fields[rate]}/s ·"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=total, rate="-")
            yield lambda count: bar.update(task, advance=count, rate=f"{bar.tasks[0].speed or 0:,.0f}")
        return

    start = last = time.monotonic()
    done = 0

    def advance(count: int) -> None:
        nonlocal done, last
        done += count
        now = time.monotonic()
        if now - last < LINE_EVERY_SECONDS:
            return
        last = now
        rate = done / (now - start)
        if total and done <= total:
            notice(f"{title}: {done:,} of {total:,} {unit}, {rate:,.0f}/s, {(total - done) / rate:,.0f} s left")
        else:
            notice(f"{title}: {done:,} {unit}, {rate:,.0f}/s")

    yield advance
