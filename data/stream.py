"""Which rows make up which batch: a pure function of seed and position, so that a run can start anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from torch.utils.data import Sampler

EMPTY_ROW = -1  # index of a row that counts nothing, for processes that have fewer rows than others


def row_order(num_rows: int, seed: int, epoch: int) -> np.ndarray:
    """The order of the rows in an epoch, int64 [num_rows]."""
    # RandomState, because NumPy promises never to change its numbers: a resumed run may have a newer NumPy.
    generator = np.random.RandomState(np.random.MT19937(np.random.SeedSequence((seed, epoch))))
    return generator.permutation(num_rows)


def stream_position(batch: int, skipped: Sequence[tuple[int, int]]) -> int:
    """Position of a batch in the whole stream, when those of `skipped` (sorted ranges [first, end)) do not count."""
    for first, end in skipped:
        if batch >= first:
            batch += end - first
    return batch


def exclude_batches(skipped: Sequence[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """`skipped` and the batches first to last, which are counted without those of `skipped`."""
    start, end = stream_position(first, skipped), stream_position(last, skipped) + 1
    return sorted([*((a, b) for a, b in skipped if not start <= a < end), (start, end)])


class BatchStream(Sampler[list[int]]):
    """Batches start to stop-1 of a whole run, as one stream over all epochs.

    Batch k takes part k % batches_per_epoch of the order of epoch k // batches_per_epoch. Each part has
    world_size * batch_size rows, of which each rank takes its own batch_size. Batches of `skipped` are excluded
    and the later ones take their numbers. order: (seed, epoch) -> row indices; by default `row_order`.
    """

    def __init__(
        self,
        num_rows: int,
        batch_size: int,
        *,
        batches_per_epoch: int,
        stop: int,
        start: int = 0,
        skipped: Sequence[tuple[int, int]] = (),
        seed: int = 0,
        shuffle: bool = True,
        world_size: int = 1,
        rank: int = 0,
        order: Callable[[int, int], np.ndarray] | None = None,
    ) -> None:
        assert 0 <= rank < world_size
        assert 0 < batches_per_epoch * batch_size * world_size <= num_rows
        self.num_rows = num_rows
        self.batch_size = batch_size
        self.batches_per_epoch = batches_per_epoch
        self.start = start
        self.stop = stop
        self.skipped = skipped
        self.seed = seed
        self.shuffle = shuffle
        self.world_size = world_size
        self.rank = rank
        self.order = order or partial(row_order, num_rows)

    def __len__(self) -> int:
        return max(self.stop - self.start, 0)

    def __iter__(self) -> Iterator[list[int]]:
        order, order_epoch = np.arange(0), -1
        for batch in range(self.start, self.stop):
            epoch, part = divmod(stream_position(batch, self.skipped), self.batches_per_epoch)
            if epoch != order_epoch:
                order = self.order(self.seed, epoch) if self.shuffle else np.arange(self.num_rows)
                order_epoch = epoch
            first = (part * self.world_size + self.rank) * self.batch_size
            yield order[first : first + self.batch_size].tolist()


def evaluation_batches(rows: Sequence[int], batch_size: int, world_size: int = 1, rank: int = 0) -> list[list[int]]:
    """The batches of one rank: over all ranks every row once, and the same number of batches on each.

    The last batch may be smaller; a rank that has no row left for it gets a single EMPTY_ROW.
    """
    count = -(-len(rows) // (world_size * batch_size))
    firsts = [(part * world_size + rank) * batch_size for part in range(count)]
    return [list(rows[first : first + batch_size]) or [EMPTY_ROW] for first in firsts]


def spread_rows(num_rows: int, count: int) -> list[int]:
    """`count` row indices at equal distances."""
    return [number * num_rows // count for number in range(count)]
