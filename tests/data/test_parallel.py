"""The map keeps order, reads ahead only a little and hands errors on."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from data.parallel import ordered_map


def test_order_is_kept_though_items_finish_in_any() -> None:
    def slow(item: int) -> int:
        time.sleep(random.random() / 100)
        return item * item

    assert list(ordered_map(slow, range(40), threads=4)) == [item * item for item in range(40)]


def test_reads_ahead_a_few_items_only() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    results = ordered_map(lambda item: item, items(), threads=2)
    for expected in range(1, 51):
        assert next(results) == expected
        assert taken <= expected + 4


def test_errors_of_function_and_input_come_through() -> None:
    def refuse(item: int) -> int:
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 0"):
        list(ordered_map(refuse, range(100)))

    def broken() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(ordered_map(str, broken()))
