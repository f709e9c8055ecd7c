"""Tells from the batches themselves whether training reads its rows in a random order."""

from __future__ import annotations

import zlib
from collections import deque

import numpy as np

LOOKED_AT = 200  # batches in which neighbours are looked for
ENOUGH = 64  # pairs of rows before they are judged
MOST_SEEN = 20_000  # batches that are remembered
TOO_MANY = 8  # repeated batches


class Order:
    """Looks at every batch: rows that follow one another in the text, and batches that come again in the same order."""

    def __init__(self) -> None:
        self.batches = 0
        self.pairs = self.neighbours = self.others = self.alike = 0
        self.last_token: int | None = None
        self.digests: deque[int] = deque(maxlen=3)
        self.seen: dict[int, None] = {}
        self.repeated = 0

    def see(self, rows_BS: np.ndarray) -> None:
        """rows: [B, S+1], where the last token of a row is the first of the one that follows it in the text."""
        self.batches += 1
        if self.batches <= LOOKED_AT:
            first, last = rows_BS[:, 0], rows_BS[:, -1]
            self.pairs += len(rows_BS) - 1
            self.neighbours += int((last[:-1] == first[1:]).sum())
            if self.last_token is not None:
                self.pairs += 1
                self.neighbours += int(first[0] == self.last_token)
            self.last_token = int(last[-1])
            self.others += len(rows_BS)  # a row that ends as it begins tells how often tokens are alike by chance
            self.alike += int((last == first).sum())
        self.digests.append(zlib.crc32(rows_BS.tobytes()))
        if len(self.digests) == 3:
            three = hash(tuple(self.digests))  # a single row may come again each epoch, three in a row hardly
            self.repeated += three in self.seen
            self.seen[three] = None
            if len(self.seen) > MOST_SEEN:
                del self.seen[next(iter(self.seen))]

    def trouble(self) -> str | None:
        if self.pairs >= ENOUGH and self.neighbours > 0.9 * self.pairs and self.alike < 0.5 * self.others:
            return "the rows of a batch follow one another in the text: the training data is not shuffled"
        if self.repeated >= TOO_MANY:
            return f"the same batches come again in the same order ({self.repeated} times): the data is not shuffled"
        return None
