"""The one display of progress: a bar on a terminal, a line from time to time in a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .text import format_clock, format_rate

LINE_EVERY_SECONDS = 10.0
CLEAR_LINE = "\r\x1b[2K"


def bar_text(share: float, width: int = 24) -> str:
    """A bar of this many characters, filled to `share`."""
    done = round(width * share)
    return "━" * done + "─" * (width - done)


def print_note(text: str) -> None:
    """Print one line to stderr, so that it never mixes with a command's output."""
    print(text, file=sys.stderr, flush=True)


class Screen:
    """The terminal's last line, drawn over and over; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self.terminal = sys.__stderr__ if sys.__stderr__ is not None and sys.__stderr__.isatty() else None

    @property
    def is_terminal(self) -> bool:
        return self.terminal is not None

    def draw(self, text: str) -> None:
        """Replace the line."""
        if self.terminal is not None:
            try:
                self.terminal.write(CLEAR_LINE + text)
                self.terminal.flush()
            except OSError:  # the terminal is gone
                self.terminal = None

    def clear(self) -> None:
        """Remove the line, for other output."""
        self.draw("")


@contextmanager
def progress(title: str, unit: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Yield advance(count, total, title): `count` more units are done; the others replace those given before.

    total: of all units; None if it is unknown.
    """
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit + " · {task.fields[rate]}/s ·"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=total, rate="-")
            yield lambda count, total=None, title=None: bar.update(
                task, advance=count, total=total, description=title, rate=format_rate(bar.tasks[0].speed or 0)
            )
        return

    start = last = time.monotonic()
    done, whole, text = 0, total, title

    def advance(count: int, total: int | None = None, title: str | None = None) -> None:
        nonlocal done, last, whole, text
        done, whole, text = done + count, total or whole, title or text
        now = time.monotonic()
        if now - last < LINE_EVERY_SECONDS:
            return
        last = now
        rate = done / (now - start)
        if whole and 0 < done <= whole:
            left = format_clock((whole - done) / rate)
            print_note(f"{text}: {done:,} of {whole:,} {unit}, {format_rate(rate)}/s, {left} left")
        else:
            print_note(f"{text}: {done:,} {unit}, {format_rate(rate)}/s")

    yield advance
