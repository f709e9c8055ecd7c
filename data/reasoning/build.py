"""The data of a reasoning run: the name of a dataset to a DataModule of puzzles."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from config.settings import RunConfig
from core.errors import UserError
from data.language.cache import cache_root
from data.module import Batch, DataModule, Finding, Rows, Scan
from data.reasoning.addition import Addition
from data.reasoning.cache import Sets, fingerprint, read_or_draw
from data.reasoning.maze import Maze
from data.reasoning.own_file import COPY, OwnFile
from data.reasoning.puzzle import IN_DISTRIBUTION, KINDS, SPLITS, Puzzle, PuzzleSet
from data.reasoning.reachability import Reachability
from data.reasoning.sorting import Sorting
from data.reasoning.sudoku import BOXES, Sudoku
from data.stream import EMPTY_ROW

DATA_SEED = 0  # of the puzzles; --seed does not change it, so that every seed of a model learns from the same data

# name -> class, smallest and largest size
SIZED: dict[str, tuple[Callable[[int], Puzzle], int, int]] = {
    "reachability": (Reachability, 12, 64),
    "sorting": (Sorting, 3, 32),
    "addition": (Addition, 2, 32),
    "maze": (Maze, 4, 32),
}
CHOICES = "sudoku:4, sudoku:6, sudoku:9, reachability:16, sorting:8, addition:6, maze:8 (or other sizes), or file:PATH"


class PuzzleSettings(Protocol):
    """Flags that decide which puzzles there are."""

    @property
    def num_puzzles(self) -> int: ...

    @property
    def num_eval_puzzles(self) -> int: ...

    @property
    def clues(self) -> str | None: ...


def find_puzzle(dataset_name: str, clues: str = "", folder: Path | None = None) -> Puzzle:
    """The puzzle of a dataset name, as `sudoku:6`.

    clues: fewest and most in training, as `18-26`. folder: of a run, whose copy of a user's file is preferred.
    """
    name, _, part = dataset_name.partition(":")
    puzzle: Puzzle
    if name == "sudoku" and part.isdecimal() and int(part) in BOXES:
        return Sudoku(int(part), parse_clues(clues, int(part) ** 2) if clues else None)
    if name in SIZED and part.isdecimal():
        make, low, high = SIZED[name]
        if not low <= int(part) <= high:
            raise UserError(f"--dataset_name is {dataset_name!r}: choose {name}:N with N from {low} to {high}.")
        puzzle = make(int(part))
    elif name == "file" and part:
        copy = folder / COPY if folder is not None else None
        puzzle = OwnFile(dataset_name, copy if copy is not None and copy.is_file() else Path(part).expanduser())
    else:
        raise UserError(f"--dataset_name is {dataset_name!r}: choose {CHOICES}.")
    if clues:
        raise UserError(f"--clues is {clues!r}: {dataset_name} has no clues to count; leave it out.")
    return puzzle


def parse_clues(text: str, cells: int) -> tuple[int, int]:
    """Fewest and most clues of `18-26` or `20`."""
    match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", text, re.ASCII)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if not 0 <= low <= high < cells:
        raise UserError(
            f"--clues is {text!r}: write the fewest and the most clues, as 18-26; the board has {cells} cells, of "
            "which at least one stays blank."
        )
    return low, high


class PuzzleRows(Rows):
    """A split of puzzles; EMPTY_ROW gives one of kind -1 without real cells."""

    unit = "puzzles"
    source_flags = "--dataset_name, --num_puzzles, --num_eval_puzzles and --clues"
    more_rows = "or a larger --num_puzzles"
    sample_units = 192  # spread over all kinds: thinking on many takes as long as training
    if_empty = " (--num_eval_puzzles sets its size)"

    def __init__(self, puzzles: PuzzleSet, puzzle: Puzzle) -> None:
        self.puzzles = puzzles
        self.puzzle = puzzle
        self.num_units = len(puzzles)

    def __len__(self) -> int:
        return len(self.puzzles)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """inputs int64 [B, N, F], given and answer int64 [B, N], real bool [B, N], kind int64 [B]."""
        index = np.asarray(indices, np.int64)
        if index.size and (index.max() >= len(self) or index.min() < EMPTY_ROW):
            raise IndexError(f"row indices {index.min()} to {index.max()} of {len(self)} rows")
        empty = index == EMPTY_ROW
        if not empty.any():
            return self.puzzles.batch(index)
        cells, num_fields = self.puzzle.spec.cells, len(self.puzzle.spec.fields)
        rows = PuzzleSet(
            np.zeros((len(index), cells, num_fields), np.uint8),
            np.full((len(index), cells), -1, np.int8),
            np.full((len(index), cells), -1, np.int8),
            np.zeros((len(index), cells), bool),
            np.full(len(index), -1, np.int8),
        )
        for name, array in rows.arrays().items():
            array[~empty] = getattr(self.puzzles, name)[index[~empty]]
        return rows.batch()

    def describe(self) -> str:
        return f"puzzles of {self.puzzle.spec.cells} cells"

    def record(self) -> dict[str, int]:
        return {"puzzles": len(self), **{KINDS[kind]: count for kind, count in self._counts().items() if count}}

    def scan(self, batch: Batch, spec: Any) -> dict[str, np.ndarray]:
        """blank: cells to be predicted; is_wrong: whether the stored answer breaks a rule."""
        puzzles = PuzzleSet.of_batch(batch)
        return {
            "blank": (puzzles.real & (puzzles.given < 0)).sum(axis=1),
            "is_wrong": ~self.puzzle.solved(puzzles, puzzles.answer),
        }

    def findings(self, data: DataModule, batch: Batch, scans: Mapping[str, Scan]) -> list[Finding]:
        for name, scan in scans.items():
            if scan.numbers["is_wrong"].any():
                row = int(scan.numbers["is_wrong"].argmax())
                text = f"the answer of row {row} of {name} breaks a rule; correct the file, or its checker"
                return [Finding("answers", "problem", text)]
        return [Finding("answers", "ok", "every stored answer keeps the rules")]

    def columns(self, scan: Scan) -> dict[str, str]:
        blank = scan.numbers["blank"]
        counts = {KINDS[kind]: f"{count:,}" for kind, count in self._counts().items()}
        return counts | {"blank cells": f"{blank.mean():.1f}" if len(blank) else "-"}

    def row_text(self, index: int, processor: Any) -> str:
        """The puzzle as it is typed, and the symbols of its answer."""
        answer = self.puzzle.cell_texts(self.puzzles, index, self.puzzles.answer[index])
        space = " " if max(map(len, answer), default=1) > 1 else ""
        return f"{self.puzzle.text(self.puzzles, index)} => {space.join(answer)}"

    def repeats(self) -> tuple[str, bool]:
        if self.puzzle.can_repeat:
            return "there are so few puzzles of this size that some repeat by chance", True
        return "remove repeated puzzles", False

    def _counts(self) -> dict[int, int]:
        return {kind: int((self.puzzles.kind == kind).sum()) for kind in self.puzzle.kinds}


class PuzzleProcessor:
    """The puzzle of a run: its rules, parser and solver."""

    def __init__(self, puzzle: Puzzle) -> None:
        self.puzzle = puzzle

    def save(self, folder: Path) -> Mapping[str, Any]:
        """Write what the puzzle needs elsewhere into a run's folder."""
        self.puzzle.save(folder)
        return {"dataset": self.puzzle.spec.dataset}


def draw_sets(puzzle: Puzzle, num_puzzles: int, num_eval_puzzles: int, seed: int = DATA_SEED) -> Sets:
    """train of one kind; valid and test of all kinds, one after the other."""
    sets: Sets = {}
    for split in SPLITS:
        kinds = (IN_DISTRIBUTION,) if split == "train" else puzzle.kinds
        count = num_puzzles if split == "train" else num_eval_puzzles
        sets[split] = PuzzleSet.join([puzzle.generate(split, kind, count, seed) for kind in kinds])
    return sets


def reasoning_data(config: RunConfig, settings: PuzzleSettings, *runs: Path | None) -> DataModule:
    """The data of a run: draws the puzzles, or reads them from the cache of an earlier run.

    runs: folders of runs, whose copy of a user's file is read where there is one.
    """
    name = config.data.dataset_name
    folder = next((run for run in runs if run is not None), None)
    clues = settings.clues or ""
    puzzle = find_puzzle(name, clues, folder)
    request = {
        "dataset": name,
        "content": puzzle.content(),
        "num_puzzles": settings.num_puzzles,
        "num_eval_puzzles": settings.num_eval_puzzles,
        "clues": clues,
        "seed": DATA_SEED,
    }
    cache = Path(config.data.dataset_dir).expanduser() if config.data.dataset_dir else cache_root() / "puzzles"
    sets = read_or_draw(cache, request, lambda: draw_sets(puzzle, settings.num_puzzles, settings.num_eval_puzzles))
    rows: dict[str, Rows] = {split: PuzzleRows(sets[split], puzzle) for split in SPLITS}
    return DataModule(config, rows, puzzle.spec, PuzzleProcessor(puzzle), fingerprint(sets))
