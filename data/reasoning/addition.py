"""addition:N: two numbers of N digits and their sum, on three lines of N + 1 cells; all digits are predicted at once.

Kinds: a carry chain begins where two digits make 10 or more and goes on through columns that make exactly 9, whose
carry depends on the column before. The longest chain is at most N/3 in distribution and at least N/2 + 1 in the
shifted rows. Splits: by the sum, so that no solution of one split is the solution of another, and exchanging digits
of the operands leads to no other split.
"""

from __future__ import annotations

import re

import numpy as np

from core.errors import UserError
from data.reasoning.puzzle import BLANK, IN_DISTRIBUTION, SHIFTED, Puzzle, PuzzleSet, PuzzleSpec, Split, mix_all

DRAW = 4096


class Addition(Puzzle):
    """Cells: the lines of the operands, which are given, and of the sum. Field: the digit + 1 of an operand, else 0."""

    def __init__(self, digits: int) -> None:
        self.digits = digits
        self.columns = width = digits + 1
        self.can_repeat = digits <= 3
        line, column = np.divmod(np.arange(3 * width), width)
        symbols = tuple("0123456789")
        self.spec = PuzzleSpec(f"addition:{digits}", 3 * width, symbols, (11,), np.stack([line, column]))
        self.chains = {IN_DISTRIBUTION: (0, max(1, digits // 3)), SHIFTED: (digits // 2 + 1, digits)}

    def draw(self, split: Split, kind: int, random: np.random.RandomState, seed: int) -> PuzzleSet:
        first = random.randint(10, size=(DRAW, self.digits))  # units last
        second = random.randint(10, size=first.shape)
        nines = random.random_sample(first.shape) < random.uniform(0, 0.5, size=(DRAW, 1))
        low, high = self.chains[kind]
        if kind == SHIFTED:
            length = random.randint(low, high + 1, size=(DRAW, 1))
            end = self.digits - (random.random_sample((DRAW, 1)) * (self.digits - length + 1)).astype(np.int64)
            column = np.arange(self.digits)
            nines = np.where((column < end) & (column >= end - length), True, nines)
            start = column == end - 1
        second = np.where(nines, 9 - first, second)
        if kind == SHIFTED:
            high_digit = random.randint(1, 10, size=first.shape)
            first = np.where(start, high_digit, first)
            # 10 or more in the column where the chain starts
            carrying = 10 - high_digit + (random.random_sample(first.shape) * high_digit).astype(np.int64)
            second = np.where(start, carrying, second)
        chain = longest_chain(first, second)
        proper = (chain >= low) & (chain <= high)
        return self.puzzles(first[proper], second[proper], kind)

    def puzzles(self, first: np.ndarray, second: np.ndarray, kind: int) -> PuzzleSet:
        """first, second: digits [R, n], units last."""
        count, width = len(first), self.columns
        board = np.zeros((count, 3, width), np.int8)
        board[:, 0, 1:], board[:, 1, 1:] = first, second
        board[:, 2] = sums(board[:, 0], board[:, 1])
        answer = board.reshape(count, -1)
        given = np.where(np.arange(3 * width) < 2 * width, answer, -1).astype(np.int8)
        inputs = (given + 1).astype(np.uint8)[:, :, None]
        return PuzzleSet(inputs, given, answer, np.ones(answer.shape, bool), np.full(count, kind, np.int8))

    def split_key(self, puzzles: PuzzleSet) -> np.ndarray:
        return mix_all(puzzles.answer[:, 2 * self.columns :])

    def violations(self, puzzles: PuzzleSet, answer: np.ndarray) -> np.ndarray:
        """Changed clues and digits of a wrong sum."""
        board = puzzles.given.reshape(-1, 3, self.columns)
        wrong = np.zeros(answer.shape, bool)
        wrong[:, 2 * self.columns :] = answer[:, 2 * self.columns :] != sums(board[:, 0], board[:, 1])
        return self.clue_violations(puzzles, answer) | wrong

    def parse(self, text: str) -> PuzzleSet:
        """`123 + 89`: two numbers of at most N digits."""
        match = re.fullmatch(r"\s*(\d+)\s*\+\s*(\d+)\s*=?\s*", text, re.ASCII)
        if match is None:
            raise UserError(f"--puzzle is {text.strip()[:60]!r}: write two numbers, as 123 + 89.")
        for number in match.groups():
            if len(number) > self.digits:
                raise UserError(f"--puzzle has {number}: {self.spec.dataset} has at most {self.digits} digits.")
        first, second = (np.array([[int(digit) for digit in n.zfill(self.digits)]]) for n in match.groups())
        puzzles = self.puzzles(first, second, IN_DISTRIBUTION)
        puzzles.answer[:] = -1
        return puzzles

    def text(self, puzzles: PuzzleSet, row: int) -> str:
        lines = puzzles.given[row].reshape(3, -1)[:2, 1:]
        return " + ".join("".join(map(str, line)) for line in lines)

    def lines(self, puzzles: PuzzleSet, row: int, answer: np.ndarray | None = None) -> list[str]:
        """The two operands and, below a rule, the sum."""
        symbols = self.cell_texts(puzzles, row, answer)
        first, second, total = ("".join(symbols[n * self.columns : (n + 1) * self.columns]) for n in range(3))
        return ["  " + first, "+ " + second, "-" * (self.columns + 2), "  " + (total or BLANK)]

    def answers(self, puzzles: PuzzleSet, row: int, most: int = 2) -> list[np.ndarray]:
        board = puzzles.given[row].reshape(1, 3, -1)
        lines = [board[:, 0], board[:, 1], sums(board[:, 0], board[:, 1])]
        return [np.concatenate(lines, axis=1)[0].astype(np.int64)][:most]


def sums(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Digits of the sum, int8 [R, n]; a carry out of the first column is lost. first, second: digits [R, n]."""
    total = first.astype(np.int8) + second.astype(np.int8)
    for column in range(total.shape[1] - 1, 0, -1):
        total[:, column - 1] += total[:, column] > 9
    return total % np.int8(10)


def longest_chain(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Columns of the longest carry chain, [R]; 0 without a carry. first, second: digits [R, n], units last."""
    total = first + second
    chain, longest = np.zeros(len(total), np.int64), np.zeros(len(total), np.int64)
    for column in range(total.shape[1] - 1, -1, -1):
        goes_on = (total[:, column] == 9) & (chain > 0)
        chain = np.where(goes_on, chain + 1, total[:, column] >= 10)
        longest = np.maximum(longest, chain)
    return longest
