"""Values, lists, numbers, durations and times as a person reads them, and text that is safe to print."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

PREFIXES = ("", "k", "M", "G", "T", "P")


def join_words(words: Sequence[str], last: str = "or") -> str:
    """a, b or c"""
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def plural(count: int, noun: str, plural_noun: str = "") -> str:
    """1 run, 2 runs, 1,200 runs. plural_noun: where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural_noun or f'{noun}s'}"


def format_value(value: Any) -> str:
    """A value in a message or a table: always on one line and printable."""
    if isinstance(value, str):
        return value if value.isprintable() and value else repr(value)
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(format_value, value)) + "]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def format_number(value: Any) -> str:
    """A measured number with few digits: 1,450, 0.1396, 47.4681, 1.23e+05; other values as format_value has them."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return format_value(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{value:,.0f}"
    return f"{value:.4f}" if 0.1 <= abs(value) < 100 else f"{value:.4g}"


def format_count(value: float) -> str:
    """A large count in words: 819,200, 1.3 million, 1.2e+15"""
    if value >= 1e12:
        return f"{value:.3g}"
    words = ((1e9, "billion"), (1e6, "million"))
    return next((f"{value / size:.3g} {word}" for size, word in words if value >= size), f"{value:,.0f}")


def format_amount(value: float, unit: str, base: int = 1000) -> str:
    """An amount with a prefix: 1234567, "FLOP" -> 1.23 MFLOP"""
    for prefix in PREFIXES:
        if abs(value) < base or prefix == PREFIXES[-1]:
            break
        value /= base
    return f"{value:,.3g} {prefix}{unit}" if value < base or prefix else f"{value:,.0f} {unit}"


def format_bytes(size: float) -> str:
    """349 MiB, 23.5 GiB"""
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"


def format_rate(count: float) -> str:
    """1234.5 -> 1,234 and 0.345 -> 0.34: slow work has a rate too."""
    return f"{count:,.0f}" if count >= 10 else f"{count:.2g}"


def format_compact(value: float) -> str:
    """A count in a narrow column, at most five characters: 9999, 12.3k, 1.25M"""
    if value < 10_000:
        return f"{value:.0f}"
    for prefix in PREFIXES[1:5]:
        value /= 1000
        if value < 1000:
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}{prefix}"
    return f"{value:.0f}{prefix}"


def format_duration(seconds: Any) -> str:
    """In a sentence, two units at most: 12 s, 7 min 43 s, 4 h 5 min, 2 d 3 h; ? where it is no duration."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not math.isfinite(seconds) or seconds < 0:
        return "?"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if hours < 1:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{hours} h {minutes % 60} min" if days < 1 else f"{days} d {hours % 24} h"


def format_short_duration(seconds: float) -> str:
    """In a table, of equal width: 12s, 3m 20s, 4h 05m, 2d 03h"""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02}h"


def format_clock(seconds: float) -> str:
    """As on a stop-watch: 75 -> 1:15, 3700 -> 1:01:40"""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def format_time(seconds: float) -> str:
    """A local date and time, so written that texts are ordered as times are: 2026-01-31 08:05:00"""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "?"


def format_moment(seconds: float) -> str:
    """A past time in a sentence, with the date if it was not today: at 08:05:00, on 2026-01-31 at 08:05:00"""
    then = time.localtime(seconds)
    return time.strftime("at %H:%M:%S" if then[:3] == time.localtime()[:3] else "on %Y-%m-%d at %H:%M:%S", then)


def format_short_time(text: str) -> str:
    """A coming time as Slurm writes it, in short: 14:05, Thu 14:05, 2026-11-30; empty without one."""
    if not text:
        return ""
    then = datetime.fromisoformat(text)
    days = (then.date() - datetime.now().date()).days
    return then.strftime("%H:%M" if days < 1 else "%a %H:%M" if days < 7 else "%Y-%m-%d")


def shortened(text: str, width: int, end: int = 6) -> str:
    """The beginning and the last `end` characters: a run is found by the random part at the end of its id."""
    if len(text) <= width:
        return text
    return f"{text[: max(1, width - 1 - end)]}…{text[len(text) - end :] if end else ''}"


def printable_lines(text: str, encoding: str | None) -> list[str]:
    """The lines of a text; what a terminal would obey or cannot show is written as an escape."""
    printable = "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)
    encoding = encoding or "utf-8"
    return printable.encode(encoding, "backslashreplace").decode(encoding).split("\n")
