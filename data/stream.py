"""Which rows make up which batch: a pure function of seed and position, so that a run can start anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

from data.rows import FILL


def row_order(num_rows: int, seed: int, epoch: int) -> np.ndarray:
    """The order of the rows in an epoch, int64 [num_rows]."""
    # RandomState, because NumPy promises never to change its numbers: a resumed run may have a newer NumPy.
    generator = np.random.RandomState(np.random.MT19937(np.random.SeedSequence((seed, epoch))))
    return generator.permutation(num_rows)


def position_of(batch: int, skipped: Sequence[tuple[int, int]]) -> int:
    """Where the batch stands among all, when those of `skipped` (sorted ranges [first, end)) do not count."""
    for first, end in skipped:
        if batch >= first:
            batch += end - first
    return batch


def skip(skipped: Sequence[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """The ranges that also leave out what are the batches first to last without those of `skipped`."""
    start, end = position_of(first, skipped), position_of(last, skipped) + 1
    return sorted([*((a, b) for a, b in skipped if not start <= a < end), (start, end)])


class BatchStream(Sampler[list[int]]):
    """Batches start to stop-1 of a whole run, as one stream that crosses epochs by itself.

    Batch k takes part k % batches_per_epoch of the order of epoch k // batches_per_epoch. Each part has
    world_size * batch_size rows, of which each rank takes its own batch_size. Batches of `skipped` are left out
    and the later ones take their numbers.
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

    def __len__(self) -> int:
        return max(self.stop - self.start, 0)

    def __iter__(self) -> Iterator[list[int]]:
        order, order_epoch = np.arange(0), -1
        for batch in range(self.start, self.stop):
            epoch, part = divmod(position_of(batch, self.skipped), self.batches_per_epoch)
            if epoch != order_epoch:
                order = row_order(self.num_rows, self.seed, epoch) if self.shuffle else np.arange(self.num_rows)
                order_epoch = epoch
            first = (part * self.world_size + self.rank) * self.batch_size
            yield order[first : first + self.batch_size].tolist()


def evaluation_batches(rows: Sequence[int], batch_size: int, world_size: int = 1, rank: int = 0) -> list[list[int]]:
    """The batches of one rank: over all ranks every row once, and the same number of batches on each.

    The last batch may be smaller; a rank that has no row left for it gets a single FILL.
    """
    count = -(-len(rows) // (world_size * batch_size))
    firsts = [(part * world_size + rank) * batch_size for part in range(count)]
    return [list(rows[first : first + batch_size]) or [FILL] for first in firsts]


def spread_rows(num_rows: int, count: int) -> list[int]:
    """So many of the rows, from all over them."""
    return [number * num_rows // count for number in range(count)]
