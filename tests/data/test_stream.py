"""The stream of batches: a pure function of seed and position, shared out over processes without loss."""

from __future__ import annotations

from itertools import chain
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from data.stream import EMPTY_ROW, BatchStream, evaluation_batches

sizes = st.fixed_dictionaries(
    {"num_rows": st.integers(12, 60), "batch_size": st.integers(1, 4), "seed": st.integers(0, 2**40)}
)


def stream(num_rows: int, batch_size: int, **settings: Any) -> BatchStream:
    world_size = settings.get("world_size", 1)
    settings.setdefault("batches_per_epoch", num_rows // (batch_size * world_size))
    return BatchStream(num_rows, batch_size, **settings)


@given(sizes=sizes, start=st.integers(0, 100), shuffle=st.booleans())
def test_starting_anywhere_gives_the_same_following_batches(sizes: dict[str, int], start: int, shuffle: bool) -> None:
    whole = list(stream(**sizes, stop=110, shuffle=shuffle))
    rest = stream(**sizes, start=start, stop=110, shuffle=shuffle)
    assert list(rest) == whole[start:]
    assert len(rest) == 110 - start


@given(sizes=sizes, world_size=st.integers(1, 3), shuffle=st.booleans())
def test_processes_see_together_what_one_with_a_larger_batch_sees(
    sizes: dict[str, int], world_size: int, shuffle: bool
) -> None:
    ranks = [stream(**sizes, stop=40, shuffle=shuffle, world_size=world_size, rank=r) for r in range(world_size)]
    together = [list(chain(*parts)) for parts in zip(*ranks, strict=True)]
    large = sizes | {"batch_size": sizes["batch_size"] * world_size}
    assert together == list(stream(**large, stop=40, shuffle=shuffle))


@given(sizes=sizes, epoch=st.integers(0, 5))
def test_an_epoch_sees_each_row_at_most_once_and_drops_less_than_a_batch(sizes: dict[str, int], epoch: int) -> None:
    per_epoch = sizes["num_rows"] // sizes["batch_size"]
    batches = list(stream(**sizes, start=epoch * per_epoch, stop=(epoch + 1) * per_epoch))
    seen = list(chain(*batches))
    assert all(len(batch) == sizes["batch_size"] for batch in batches)
    assert len(set(seen)) == len(seen) > sizes["num_rows"] - sizes["batch_size"]
    assert set(seen) <= set(range(sizes["num_rows"]))


def test_epochs_and_seeds_have_their_own_order() -> None:
    first, second = list(stream(50, 50, seed=1, stop=2))
    (other,) = stream(50, 50, seed=2, stop=1)
    assert first != second and first != other and second != other
    assert sorted(first) == sorted(second) == sorted(other)


def test_the_order_never_changes_between_releases() -> None:
    assert next(iter(stream(10, 10, seed=3, stop=1))) == [1, 5, 9, 0, 4, 7, 2, 8, 3, 6]


def test_without_shuffle_the_rows_come_in_order_and_repeat() -> None:
    assert list(stream(7, 2, shuffle=False, stop=4)) == [[0, 1], [2, 3], [4, 5], [0, 1]]


def test_a_shorter_epoch_takes_the_first_part_of_each_order() -> None:
    short = list(stream(50, 5, batches_per_epoch=3, seed=4, stop=6))
    assert short[:3] == list(stream(50, 5, seed=4, stop=3))
    assert short[3:] == list(stream(50, 5, seed=4, start=10, stop=13))


def test_beyond_the_end_there_is_nothing() -> None:
    finished = stream(10, 2, start=9, stop=7)
    assert (list(finished), len(finished)) == ([], 0)


@given(num_rows=st.integers(0, 60), batch_size=st.integers(1, 7), world_size=st.integers(1, 5))
def test_evaluation_sees_every_row_exactly_once(num_rows: int, batch_size: int, world_size: int) -> None:
    ranks = [evaluation_batches(range(num_rows), batch_size, world_size, rank) for rank in range(world_size)]
    seen = [row for rank in ranks for batch in rank for row in batch if row != EMPTY_ROW]
    assert sorted(seen) == list(range(num_rows))
    assert len({len(rank) for rank in ranks}) == 1
    assert all(1 <= len(batch) <= batch_size for rank in ranks for batch in rank)


@given(num_rows=st.integers(1, 60), batch_size=st.integers(1, 7))
def test_a_single_process_needs_no_fill(num_rows: int, batch_size: int) -> None:
    batches = evaluation_batches(range(num_rows), batch_size)
    assert EMPTY_ROW not in chain(*batches)
    assert all(len(batch) == batch_size for batch in batches[:-1])


def test_fill_is_for_ranks_without_a_row_only() -> None:
    assert [evaluation_batches(range(9), 2, 3, rank) for rank in range(3)] == [
        [[0, 1], [6, 7]],
        [[2, 3], [8]],
        [[4, 5], [EMPTY_ROW]],
    ]
