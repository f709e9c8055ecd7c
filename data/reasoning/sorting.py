"""sorting:N: a list of N/2 to N values from 0 to 2N - 1, repeats allowed; the answer is the sorted list.

Kinds: disorder is the share of the pairs that stand in the wrong order. It is at most one half in distribution, and at
least 0.65 in the shifted rows (a random list has one half). Splits: by the sorted list, so that no solution of one
split is the solution of another.
"""

from __future__ import annotations

import numpy as np

from core.errors import UserError
from data.reasoning.puzzle import IN_DISTRIBUTION, Puzzle, PuzzleSet, PuzzleSpec, Split, mix_all

DRAW = 4096
DISORDER = {0: (0.0, 0.5), 1: (0.65, 1.0)}


class Sorting(Puzzle):
    """Cells are places of the list, padded at its end. Field: the value, 0 for padding."""

    def __init__(self, length: int) -> None:
        self.length = self.columns = length
        self.shortest = (length + 1) // 2
        self.can_repeat = length <= 4
        values = 2 * length
        symbols = tuple(map(str, range(values)))
        self.spec = PuzzleSpec(
            f"sorting:{length}", length, symbols, (values + 1,), np.arange(length, dtype=np.int64)[None]
        )

    def draw(self, split: Split, kind: int, random: np.random.RandomState, seed: int) -> PuzzleSet:
        lengths = random.randint(self.shortest, self.length + 1, size=DRAW)
        real = np.arange(self.length) < lengths[:, None]
        values = random.randint(2 * self.length, size=real.shape)
        ordered = np.sort(np.where(real, values, 2 * self.length), axis=1)
        # The number of earlier places that each value goes to decides the disorder: geometric, with a share of its own
        # for each list, so that all amounts of disorder are drawn.
        share = (
            np.exp(random.uniform(-2, 0.5, size=(DRAW, 1)))
            if kind == IN_DISTRIBUTION
            else random.uniform(1, 4, (DRAW, 1))
        )
        steps = truncated_geometric(share, random.random_sample(real.shape))
        places = np.zeros(real.shape, np.int64)
        for index in range(self.length):
            place = index - steps[:, index : index + 1]
            places[:, :index] += places[:, :index] >= place
            places[:, index : index + 1] = place
        shuffled = np.take_along_axis(ordered, places.argsort(axis=1), 1)
        # Padding goes to the end; the order of the values stays.
        end = (shuffled == 2 * self.length).argsort(axis=1, kind="stable")
        shuffled = np.where(real, np.take_along_axis(shuffled, end, 1), -1)
        low, high = DISORDER[kind]
        disorder = self.disorder(shuffled)
        proper = (disorder >= low) & (disorder <= high)
        return self.puzzles(shuffled[proper], kind)

    def disorder(self, values: np.ndarray) -> np.ndarray:
        """The share of pairs in the wrong order, [R]. values: [R, N], -1 for padding."""
        earlier, later = np.triu_indices(self.length, 1)
        wrong = (values[:, earlier] > values[:, later]) & (values[:, later] >= 0)
        return wrong.sum(axis=1) / np.maximum(1, (values[:, later] >= 0).sum(axis=1))

    def puzzles(self, values: np.ndarray, kind: int) -> PuzzleSet:
        """values: [R, N], -1 for padding at the end."""
        kinds = np.full(len(values), kind, np.int8)
        given = np.full(values.shape, -1, np.int8)
        return PuzzleSet((values + 1).astype(np.uint8)[:, :, None], given, ordered(values), values >= 0, kinds)

    def split_key(self, puzzles: PuzzleSet) -> np.ndarray:
        return mix_all(puzzles.answer + 1)

    def violations(self, puzzles: PuzzleSet, answer: np.ndarray) -> np.ndarray:
        """Places with another value than the sorted list."""
        wrong = (answer != ordered(puzzles.inputs[:, :, 0].astype(np.int64) - 1)) & puzzles.real
        return self.clue_violations(puzzles, answer) | wrong

    def parse(self, text: str) -> PuzzleSet:
        """`5 2 9`: the values, with spaces or commas between them."""
        words = text.replace(",", " ").split()
        largest = 2 * self.length - 1
        for word in words:
            if not (word.isascii() and word.isdecimal() and int(word) <= largest):
                raise UserError(f"--puzzle has {word!r}: {self.spec.dataset} has values from 0 to {largest}.")
        if not 1 <= len(words) <= self.length:
            raise UserError(f"--puzzle has {len(words)} values: {self.spec.dataset} has 1 to {self.length}.")
        values = np.full((1, self.length), -1, np.int64)
        values[0, : len(words)] = [int(word) for word in words]
        puzzles = self.puzzles(values, IN_DISTRIBUTION)
        puzzles.answer[:] = -1
        return puzzles

    def text(self, puzzles: PuzzleSet, row: int) -> str:
        return " ".join(str(value - 1) for value in puzzles.inputs[row, :, 0].astype(int) if value)

    def lines(self, puzzles: PuzzleSet, row: int, answer: np.ndarray | None = None) -> list[str]:
        """The list, and below it the answer."""
        words = [self.text(puzzles, row).split(), self.cell_texts(puzzles, row, answer)]
        size = max(len(word) for line in words for word in line)
        return [" ".join(word.rjust(size) for word in line) for line in words]

    def answers(self, puzzles: PuzzleSet, row: int, most: int = 2) -> list[np.ndarray]:
        return [ordered(puzzles.inputs[row : row + 1, :, 0].astype(np.int64) - 1)[0].astype(np.int64)][:most]


def ordered(values: np.ndarray) -> np.ndarray:
    """Each list sorted, with padding (-1) at its end, int8 [R, N]."""
    sizes = np.where(values < 0, np.iinfo(np.int64).max, values.astype(np.int64))
    result = np.sort(sizes, axis=1)
    return np.where(result == np.iinfo(np.int64).max, -1, result).astype(np.int8)


def truncated_geometric(ratio: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Numbers from 0 to n in column n, the probability of each `ratio` times that of the one before; [R, N]."""
    columns = np.arange(uniform.shape[1])
    log_ratio = np.log(np.where(abs(ratio - 1) < 1e-6, 1 + 1e-6, ratio))
    total = np.expm1(log_ratio * (columns + 1))
    return np.clip(np.floor(np.log1p(uniform * total) / log_ratio), 0, columns).astype(np.int64)
