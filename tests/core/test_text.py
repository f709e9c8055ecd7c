"""Values, numbers, durations and lists as a person reads them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from core.text import (
    format_amount,
    format_bytes,
    format_clock,
    format_count,
    format_duration,
    format_number,
    format_rate,
    format_short_duration,
    format_time,
    plural,
    printable_lines,
    shortened,
)


@pytest.mark.parametrize(
    ("seconds", "sentence", "table", "clock"),
    [
        (0, "0 s", "0s", "0:00"),
        (12.4, "12 s", "12s", "0:12"),
        (75, "1 min 15 s", "1m 15s", "1:15"),
        (3700, "1 h 1 min", "1h 01m", "1:01:40"),
        (2 * 86400 + 3 * 3600, "2 d 3 h", "2d 03h", "51:00:00"),
    ],
)
def test_durations(seconds: float, sentence: str, table: str, clock: str) -> None:
    assert (format_duration(seconds), format_short_duration(seconds), format_clock(seconds)) == (sentence, table, clock)


@pytest.mark.parametrize("value", [None, "5", True, math.nan, math.inf, -1])
def test_what_is_no_duration_is_a_question_mark(value: Any) -> None:
    assert format_duration(value) == "?"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1450, "1,450"), (0.13964, "0.1396"), (47.46812, "47.4681"), (123456.7, "1.235e+05"), (2.0, "2"), (None, "null")],
)
def test_measured_numbers(value: Any, text: str) -> None:
    assert format_number(value) == text


def test_amounts() -> None:
    assert [format_count(value) for value in (819_200, 1.3e6, 24.4e9, 1.2e15)] == [
        *("819,200", "1.3 million", "24.4 billion", "1.2e+15"),
    ]
    assert [format_amount(1_234_567, "FLOP"), format_amount(12, "B", 1024), format_amount(2**31, "B", 1024)] == [
        *("1.23 MFLOP", "12 B", "2 GB"),
    ]
    assert [format_bytes(349 * 2**20), format_bytes(23.5 * 2**30)] == ["349 MiB", "23.5 GiB"]
    assert [format_rate(1234.5), format_rate(0.345)] == ["1,234", "0.34"]
    assert [plural(1, "run"), plural(0, "run"), plural(1200, "run")] == ["1 run", "0 runs", "1,200 runs"]


def test_times_and_texts() -> None:
    assert len(format_time(0)) == len("1970-01-01 00:00:00") and format_time(1e300) == "?"
    assert shortened("default_20260101-120000_ab12cd", 12) == "defau…ab12cd" and shortened("short", 12) == "short"
    assert printable_lines("a\x1b[31m\nb\u20ac", "ascii") == ["a\\x1b[31m", "b\\u20ac"]
