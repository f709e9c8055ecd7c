"""What every puzzle has: cells with input fields, clues, an answer of symbols, rules, and three kinds of rows.

The splits never share a puzzle: `Puzzle.split_key` gives a number that is equal for puzzles that are the same up to a
symmetry (a relabelling, a rotation ...), and a hash of it says which split a puzzle belongs to.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch

from core.errors import UserError
from core.progress import progress
from data.module import Batch, Spec

IN_DISTRIBUTION, SHIFTED, SEVERAL = 0, 1, 2
KINDS = {IN_DISTRIBUTION: "in distribution", SHIFTED: "shifted", SEVERAL: "several answers"}

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
SPLIT_ENDS = (0.75, 0.875, 1.0)  # shares of the split keys, summed up

BLANK = "."
MOST_EMPTY_DRAWS = 100  # in a row without a new puzzle, until there seem to be no more


@dataclass(frozen=True)
class PuzzleSpec(Spec):
    """What a model of puzzles is built from.

    cells: N. symbols: the V answers of a cell, as printed. fields: the number of values of each input field.
    positions: int64 [G, N], the G coordinates of each cell (row, column, box ...).
    """

    dataset: str
    cells: int
    symbols: tuple[str, ...]
    fields: tuple[int, ...]
    positions: np.ndarray


@dataclass(frozen=True)
class PuzzleSet:
    """R puzzles.

    inputs: uint8 [R, N, F]. given: int8 [R, N], the symbol of a clue, -1 where a cell is to be predicted.
    answer: int8 [R, N], one valid answer, -1 where it is unknown or padding. real: bool [R, N], false for padding.
    kind: int8 [R], see KINDS.
    """

    inputs: np.ndarray
    given: np.ndarray
    answer: np.ndarray
    real: np.ndarray
    kind: np.ndarray

    def __len__(self) -> int:
        return len(self.kind)

    def arrays(self) -> dict[str, np.ndarray]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def rows(self, indices: np.ndarray | Sequence[int] | slice) -> Self:
        """The puzzles of these indices."""
        return replace(self, **{name: array[indices] for name, array in self.arrays().items()})

    def batch(self, indices: np.ndarray | Sequence[int] | None = None) -> Batch:
        """As tensors: inputs int64 [B, N, F], given and answer int64 [B, N], real bool [B, N], kind int64 [B]."""
        chosen = self if indices is None else self.rows(np.asarray(indices, np.int64))
        batch = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in chosen.arrays().items()}
        return {name: tensor if tensor.dtype == torch.bool else tensor.long() for name, tensor in batch.items()}

    @classmethod
    def of_batch(cls, batch: Batch) -> Self:
        """The puzzles of a batch, on the CPU."""
        types = {"inputs": np.uint8, "given": np.int8, "answer": np.int8, "real": np.bool_, "kind": np.int8}
        return cls(**{name: batch[name].cpu().numpy().astype(dtype) for name, dtype in types.items()})

    @classmethod
    def join(cls, parts: Sequence[PuzzleSet]) -> Self:
        """All puzzles of the parts, which have the same cells."""
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in parts[0].arrays()})


class Puzzle:
    """Rules of one kind of puzzle, and how its puzzles are drawn.

    columns: cells of a printed line. kinds: of rows that there are. can_repeat: whether there are so few puzzles that
    training rows repeat by chance. draws_own_split: whether `draw` gives nothing of other splits.
    has_solver: whether `answers` searches; where it does not, it gives stored answers only.
    """

    spec: PuzzleSpec
    columns: int
    kinds: tuple[int, ...] = (IN_DISTRIBUTION, SHIFTED)
    can_repeat = False
    draws_own_split = False
    has_solver = True

    def draw(self, split: Split, kind: int, random: np.random.RandomState, seed: int) -> PuzzleSet:
        """A number of puzzles; those that belong to another split are left out afterwards."""
        raise NotImplementedError

    @abstractmethod
    def split_key(self, puzzles: PuzzleSet) -> np.ndarray:
        """uint64 [R], equal for puzzles that are the same up to a symmetry."""

    @abstractmethod
    def violations(self, puzzles: PuzzleSet, answer: np.ndarray) -> np.ndarray:
        """Cells that break a rule, bool [R, N]: a changed clue, no symbol, a double, a wrong sum. answer: [R, N]."""

    @abstractmethod
    def parse(self, text: str) -> PuzzleSet:
        """The one puzzle that the text describes; its answer is unknown."""

    @abstractmethod
    def answers(self, puzzles: PuzzleSet, row: int, most: int = 2) -> list[np.ndarray]:
        """At most so many valid answers of a puzzle, each int64 [N]; none if it is unsolvable."""

    def generate(self, split: Split, kind: int, count: int, seed: int) -> PuzzleSet:
        """`count` puzzles, the same for the same arguments on every machine; fewer are a prefix of more.

        No puzzle of valid and test occurs twice.
        """
        if kind not in self.kinds:
            raise ValueError(f"{self.spec.dataset} has no rows of kind {kind} ({KINDS.get(kind)})")
        random = random_state(self.spec.dataset, split, kind, seed)
        parts = [self.empty_set()]
        total, without = 0, 0
        seen: set[bytes] = set()
        with progress(f"{self.spec.dataset}, {split}, {KINDS[kind]}", "puzzles", count) as advance:
            while total < count:
                part = self.draw(split, kind, random, seed)
                if not self.draws_own_split:
                    part = part.rows(np.flatnonzero(split_numbers(self.split_key(part)) == SPLITS.index(split)))
                if split != "train":
                    part = part.rows(_unseen(part, seen))
                part = part.rows(slice(0, count - total))
                total, without = total + len(part), 0 if len(part) else without + 1
                if without == MOST_EMPTY_DRAWS:
                    flag = "--num_puzzles" if split == "train" else "--num_eval_puzzles"
                    raise UserError(
                        f"{flag} is {count}: {self.spec.dataset} has only {total} different puzzles {KINDS[kind]} "
                        f"for {split}; choose at most {total}, or a larger puzzle."
                    )
                parts.append(part)
                advance(len(part))
        return PuzzleSet.join(parts)

    def solved(self, puzzles: PuzzleSet, answer: np.ndarray) -> np.ndarray:
        """Whether no rule is broken, bool [R]; every valid answer counts, not only the stored one."""
        return np.asarray(~self.violations(puzzles, answer).any(axis=1))

    def lines(self, puzzles: PuzzleSet, row: int, answer: np.ndarray | None = None) -> list[str]:
        """The board as text; of `answer`, int [N], or of the clues alone."""
        symbols = self.cell_texts(puzzles, row, answer)
        size = max(map(len, symbols))
        symbols = [symbol.rjust(size) for symbol in symbols]
        return [" ".join(symbols[first : first + self.columns]) for first in range(0, len(symbols), self.columns)]

    def text(self, puzzles: PuzzleSet, row: int) -> str:
        """The puzzle in one line, as `parse` reads it."""
        return "".join(self.cell_texts(puzzles, row))

    def cell_texts(self, puzzles: PuzzleSet, row: int, answer: np.ndarray | None = None) -> list[str]:
        """The printed symbol of each real cell; `.` where there is none."""
        shown = np.asarray(puzzles.given[row] if answer is None else answer)[puzzles.real[row]]
        return [self.spec.symbols[value] if 0 <= value < len(self.spec.symbols) else BLANK for value in shown]

    def empty_set(self) -> PuzzleSet:
        """No puzzles of these cells."""
        cells, num_fields = self.spec.cells, len(self.spec.fields)
        return PuzzleSet(
            np.empty((0, cells, num_fields), np.uint8),
            np.empty((0, cells), np.int8),
            np.empty((0, cells), np.int8),
            np.empty((0, cells), bool),
            np.empty(0, np.int8),
        )

    def content(self) -> str:
        """What decides the puzzles besides the name of the dataset: a user's file."""
        return ""

    def save(self, folder: Path) -> None:
        """Write what is needed besides the name of the dataset into a run's folder."""

    def clue_violations(self, puzzles: PuzzleSet, answer: np.ndarray) -> np.ndarray:
        """What is wrong whatever the rules: a changed clue, or no symbol in a real cell; bool [R, N]."""
        out_of_range = (answer < 0) | (answer >= len(self.spec.symbols))
        changed = (puzzles.given >= 0) & (answer != puzzles.given)
        result: np.ndarray = (out_of_range | changed) & puzzles.real
        return result


def random_state(*keys: object) -> np.random.RandomState:
    """A generator of its own for these keys; NumPy promises never to change the numbers of RandomState."""
    digest = hashlib.sha256(repr(keys).encode()).digest()
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(int.from_bytes(digest[:16], "little"))))


def permutations(random: np.random.RandomState, count: int, size: int) -> np.ndarray:
    """Random permutations, int64 [count, size]."""
    return random.random_sample((count, size)).argsort(axis=1, kind="stable")


def mix(values: np.ndarray) -> np.ndarray:
    """Scramble 64-bit numbers, so that sums of them are hashes of what was added in any order (splitmix64)."""
    with np.errstate(over="ignore"):
        values = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


def mix_all(values: np.ndarray) -> np.ndarray:
    """One hash of each row of integers, uint64 [R]; the order counts. values: [R, ...]."""
    values = values.reshape(len(values), -1)
    places = mix(np.arange(values.shape[1], dtype=np.uint64)) | np.uint64(1)
    return mix((mix(values) * places).sum(axis=1, dtype=np.uint64))


def split_numbers(keys: np.ndarray) -> np.ndarray:
    """Which of SPLITS each key belongs to, int64 [R]."""
    return np.searchsorted(SPLIT_ENDS, (mix(keys) >> np.uint64(11)) * 2.0**-53, side="right")


def parse_symbols(text: str, symbols: Sequence[str], cells: int, what: str) -> np.ndarray:
    """Cells written one character each, int8 [cells]; `.` (or 0, where that is no symbol) is -1; spaces are free."""
    characters = "".join(text.split())
    if len(characters) != cells:
        raise UserError(f"--puzzle has {len(characters)} cells: {what} has {cells}; write . for a blank one.")
    blanks = BLANK if "0" in symbols else BLANK + "0"
    for place, character in enumerate(characters):
        if character not in symbols and character not in blanks:
            raise UserError(
                f"--puzzle has {character!r} in cell {place + 1}: {what} has the symbols {symbols[0]} to {symbols[-1]} "
                "and . for a blank cell."
            )
    return np.array([symbols.index(c) if c in symbols else -1 for c in characters], np.int8)


def _unseen(part: PuzzleSet, seen: set[bytes]) -> np.ndarray:
    """Indices of the puzzles that are not in `seen`, to which they are added."""
    indices = []
    for row in range(len(part)):
        content = part.inputs[row].tobytes() + part.given[row].tobytes()
        if content not in seen:
            seen.add(content)
            indices.append(row)
    return np.array(indices, np.int64)
