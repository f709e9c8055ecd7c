"""file:PATH: puzzles of a user's own, from one text file.

A header in YAML, a line `---`, then one puzzle a line: puzzle, solution and, if wanted, a split (train, valid, test)
and a kind (0 in distribution, 1 shifted, 2 several answers), separated by spaces. Empty lines and lines that begin
with # are skipped.

    symbols: "1234"            # or a list, for symbols of more than one character
    columns: 4                 # cells of a line of the board
    checker: all_different     # equal: only the solution is right; or module:function
    groups: [rows, columns, [0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    positions: [rows, columns] # coordinates that the model sees of each cell; or lists of numbers, one for each cell
    clues: stay                # or input: the puzzle's symbols are read, but the answer may have others there
    ---
    1...2...3...4... 1234...   valid 1

Cells are written one character each, or with commas between them where symbols have more characters; `.` is a blank
cell. Shorter puzzles are padded. A row without a split goes to one by its solution, so that a solution is never in two.

A checker of one's own is called with the puzzle and the answer, two lists of printed symbols, and returns whether the
answer is right, or a list that says of each cell whether it breaks a rule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import yaml

from core.errors import UserError
from core.files import write_text
from data.reasoning.puzzle import (
    BLANK,
    IN_DISTRIBUTION,
    KINDS,
    SPLITS,
    Puzzle,
    PuzzleSet,
    PuzzleSpec,
    Split,
    mix_all,
    split_numbers,
)

COPY = "puzzles.txt"  # in a run's folder
KEYS = ("symbols", "columns", "checker", "groups", "positions", "clues")
MOST_SYMBOLS = 126  # an answer is a signed byte
Checker = Callable[[list[str], list[str]], Any]


class OwnFile(Puzzle):
    """The puzzles of a file."""

    can_repeat = True  # what is in the file is the user's choice

    def __init__(self, dataset_name: str, path: Path) -> None:
        try:
            self.source = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise UserError(
                f"--dataset_name is {dataset_name!r}: {path} cannot be read ({reason}); give the path of a text file."
            ) from error
        self.path = path
        lines = self.source.splitlines()
        end = next((number for number, line in enumerate(lines) if line.strip() == "---"), None)
        if end is None:
            raise self.error(len(lines), "there is no line --- between the header and the puzzles")
        self._read_header("\n".join(lines[:end]), end)
        rows = [
            (number, line.split())
            for number, line in enumerate(lines[end + 1 :], start=end + 2)
            if line.strip() and not line.lstrip().startswith("#")
        ]
        if not rows:
            raise self.error(len(lines), "there is no puzzle after the line ---")
        parsed = [self._read_row(number, words) for number, words in rows]
        cells = max(len(given) for given, _, _, _ in parsed)
        place = np.arange(cells)
        named = {"rows": place // self.columns, "columns": place % self.columns}
        self.groups = self._cell_groups(named, cells)
        positions = np.array(
            [self._coordinate(value, named, cells) for value in self.header.get("positions", ["rows", "columns"])]
        )
        symbols = self.symbols
        self.spec = PuzzleSpec(dataset_name, cells, symbols, (len(symbols) + 1,), positions.astype(np.int64))
        self.all = self._puzzle_set([(given, answer, kind) for given, answer, _, kind in parsed])
        fixed = np.array([SPLITS.index(split) if split else -1 for _, _, split, _ in parsed])
        self.split_of = np.where(fixed < 0, split_numbers(self.split_key(self.all)), fixed)
        self.kinds = tuple(kind for kind in KINDS if kind == IN_DISTRIBUTION or (self.all.kind == kind).any())
        wrong = self.violations(self.all, self.all.answer).any(axis=1)
        if wrong.any():
            raise self.error(rows[int(wrong.argmax())][0], f"the solution breaks a rule of the checker {self.checker}")

    def error(self, line: int, text: str) -> UserError:
        return UserError(f"{self.path}, line {line}: {text}.")

    def _read_header(self, text: str, end: int) -> None:
        try:
            header = yaml.safe_load(text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            raise self.error(
                mark.line + 1 if mark else 1, "the header is no YAML (NAME: VALUE on each line)"
            ) from error
        if not isinstance(header, dict):
            raise self.error(1, f"the header has no NAME: VALUE lines; it needs {', '.join(KEYS[:3])}")
        self.header: dict[str, Any] = header
        for key in header:
            if key not in KEYS:
                raise self.error(
                    self._line_of(text, key), f"{key!r} is no name of the header; choose {', '.join(KEYS)}"
                )
        for key in KEYS[:3]:
            if key not in header:
                raise self.error(end + 1, f"the header has no {key!r}; it needs {', '.join(KEYS[:3])}")

        def fail(key: str, allowed: str) -> UserError:
            return self.error(self._line_of(text, key), f"{key} is {header[key]!r}: {allowed}")

        symbols = header["symbols"]
        names = tuple(map(str, symbols)) if isinstance(symbols, str | list) else ()
        unusual = any(not name or name == BLANK or "," in name or name != "".join(name.split()) for name in names)
        if not 1 < len(names) <= MOST_SYMBOLS or len(set(names)) < len(names) or unusual:
            raise fail(
                "symbols",
                f"write 2 to {MOST_SYMBOLS} different ones in quotes or as a list, without spaces, commas and {BLANK}",
            )
        self.symbols = names
        if not isinstance(header["columns"], int) or isinstance(header["columns"], bool) or header["columns"] < 1:
            raise fail("columns", "write the number of cells of a line of the board")
        self.columns = header["columns"]
        if header.get("clues", "stay") not in ("stay", "input"):
            raise fail("clues", "choose stay or input")
        self.clues_stay = header.get("clues", "stay") == "stay"
        for key in ("groups", "positions"):
            values = header.get(key, ["rows"])
            proper = isinstance(values, list) and values and all(_is_group(value) for value in values)
            if not proper:
                raise fail(key, "write a list of rows, columns and lists of numbers from 0 up")
        self.group_line, self.position_line = self._line_of(text, "groups"), self._line_of(text, "positions")
        self.checker = str(header["checker"])
        self.has_solver = self.checker == "all_different"
        self.check: Checker | None = None
        if self.checker == "all_different":
            if "groups" not in header:
                raise fail("checker", "it needs groups: a list of rows, columns and lists of cells")
        elif ":" in self.checker:
            try:
                self.check = resolve_name(self.checker)
            except (ImportError, AttributeError, ValueError) as error:
                raise fail("checker", f"it cannot be imported ({error}); write module:function") from error
            if not callable(self.check):
                raise fail("checker", "it is no function; write module:function")
        elif self.checker != "equal":
            raise fail("checker", "choose equal, all_different or module:function")

    def _line_of(self, header: str, key: object) -> int:
        lines = header.splitlines()
        return next((n for n, line in enumerate(lines, start=1) if line.lstrip("'\"").startswith(str(key))), 1)

    def _read_row(self, number: int, words: list[str]) -> tuple[list[int], list[int], str | None, int]:
        """Clues and solution, -1 for blank cells, the split, and the kind."""
        if not 2 <= len(words) <= 4:
            raise self.error(
                number, f"there are {len(words)} words; write puzzle, solution, and perhaps split and kind"
            )
        given, answer = (self._read_cells(word, lambda text: self.error(number, text)) for word in words[:2])
        if len(given) != len(answer):
            raise self.error(number, f"the puzzle has {len(given)} cells and the solution {len(answer)}")
        if -1 in answer:
            raise self.error(number, f"cell {answer.index(-1) + 1} of the solution is blank")
        if self.clues_stay:
            for cell, (clue, symbol) in enumerate(zip(given, answer, strict=True)):
                if clue >= 0 and clue != symbol:
                    raise self.error(
                        number, f"the solution changes the clue in cell {cell + 1} (clues: input allows it)"
                    )
        split, kind = None, IN_DISTRIBUTION
        for word in words[2:]:
            if word in SPLITS:
                split = word
            elif word in ("0", "1", "2"):
                kind = int(word)
            else:
                raise self.error(number, f"{word!r} is neither a split ({', '.join(SPLITS)}) nor a kind (0, 1, 2)")
        if split == "train" and kind != IN_DISTRIBUTION:
            raise self.error(number, f"training has rows of kind 0 only; this one has kind {kind}")
        return given, answer, split, kind

    def _read_cells(self, text: str, fail: Callable[[str], UserError]) -> list[int]:
        """Symbols of the cells, -1 for blank ones."""
        wide = any(len(symbol) > 1 for symbol in self.symbols)
        cells = text.split(",") if wide else list(text.replace(",", ""))
        for place, cell in enumerate(cells):
            if cell != BLANK and cell not in self.symbols:
                shown = " ".join(self.symbols[:20])
                raise fail(f"{cell!r} in cell {place + 1} is no symbol; choose {shown}, or {BLANK} for a blank cell")
        return [-1 if cell == BLANK else self.symbols.index(cell) for cell in cells]

    def _cell_groups(self, named: dict[str, np.ndarray], cells: int) -> np.ndarray:
        """Which cells each group has, float32 [groups, N]."""
        groups = []
        for value in self.header.get("groups", []):
            if isinstance(value, str):
                groups += [named[value] == number for number in range(int(named[value].max()) + 1)]
            elif max(value) >= cells:
                raise self.error(self.group_line, f"groups has cell {max(value)}: cells count from 0 to {cells - 1}")
            else:
                groups.append(np.isin(np.arange(cells), value))
        return np.array(groups, np.float32).reshape(len(groups), cells)

    def _coordinate(self, value: Any, named: dict[str, np.ndarray], cells: int) -> np.ndarray:
        if isinstance(value, str):
            return named[value]
        if len(value) != cells:
            text = f"positions has a list of {len(value)} numbers: the largest puzzle has {cells} cells"
            raise self.error(self.position_line, text)
        return np.array(value)

    def _puzzle_set(self, rows: list[tuple[list[int], list[int], int]]) -> PuzzleSet:
        shape = (len(rows), self.spec.cells)
        symbols, answer = np.full(shape, -1, np.int8), np.full(shape, -1, np.int8)
        real = np.zeros(shape, bool)
        for row, (clues, solution, _) in enumerate(rows):
            symbols[row, : len(clues)], answer[row, : len(clues)] = clues, solution
            real[row, : len(clues)] = True
        given = symbols if self.clues_stay else np.full_like(symbols, -1)
        inputs = (symbols + 1).astype(np.uint8)[:, :, None]
        return PuzzleSet(inputs, given, answer, real, np.array([kind for _, _, kind in rows], np.int8))

    def generate(self, split: Split, kind: int, count: int, seed: int) -> PuzzleSet:
        """The first `count` rows of a split and kind; fewer where the file has no more."""
        rows = np.flatnonzero((self.split_of == SPLITS.index(split)) & (self.all.kind == kind))
        return self.all.rows(rows[:count])

    def split_key(self, puzzles: PuzzleSet) -> np.ndarray:
        return mix_all(puzzles.answer + 1)

    def violations(self, puzzles: PuzzleSet, answer: np.ndarray) -> np.ndarray:
        """What the checker of the file says, beside changed clues; of a checker that names no cell, all cells."""
        wrong = self.clue_violations(puzzles, answer)
        if self.check is not None:
            return wrong | self._ask_checker(puzzles, answer)
        if self.checker == "equal":
            return wrong | ((answer != puzzles.answer) & puzzles.real)  # an unknown answer is no proof of another
        chosen = (answer[:, :, None] == np.arange(len(self.symbols))) & puzzles.real[:, :, None]
        counts = self.groups @ chosen.astype(np.float32)
        repeated = (self.groups.T @ (counts > 1).astype(np.float32)) > 0
        return np.asarray(wrong | (repeated & chosen).any(axis=2))

    def _ask_checker(self, puzzles: PuzzleSet, answer: np.ndarray) -> np.ndarray:
        assert self.check is not None
        wrong = np.zeros(puzzles.real.shape, bool)
        for row in range(len(puzzles)):
            real = puzzles.real[row]
            verdict = self.check(self._input_texts(puzzles, row), self.cell_texts(puzzles, row, answer[row]))
            if isinstance(verdict, bool | np.bool_):
                wrong[row] = real & ~bool(verdict)
            else:
                cells = np.asarray(verdict)
                if cells.shape != (int(real.sum()),) or cells.dtype != bool:
                    raise UserError(
                        f"checker {self.checker} returned {type(verdict).__name__}: return True or False, or a list "
                        f"of them, one for each of the {int(real.sum())} cells."
                    )
                wrong[row, real] = cells
        return wrong

    def _input_texts(self, puzzles: PuzzleSet, row: int) -> list[str]:
        """The symbols of the puzzle, those that do not stay in the answer too."""
        values = puzzles.inputs[row, puzzles.real[row], 0].astype(int) - 1
        return [self.symbols[value] if value >= 0 else BLANK for value in values]

    def text(self, puzzles: PuzzleSet, row: int) -> str:
        wide = any(len(symbol) > 1 for symbol in self.symbols)
        return ("," if wide else "").join(self._input_texts(puzzles, row))

    def parse(self, text: str) -> PuzzleSet:
        """Cells as in the file; shorter puzzles are padded."""
        cells = self._read_cells("".join(text.split()), lambda problem: UserError(f"--puzzle: {problem}."))
        if not 1 <= len(cells) <= self.spec.cells:
            raise UserError(f"--puzzle has {len(cells)} cells: {self.spec.dataset} has 1 to {self.spec.cells}.")
        puzzles = self._puzzle_set([(cells, [-1] * len(cells), IN_DISTRIBUTION)])
        stored = np.flatnonzero((self.all.inputs == puzzles.inputs).all(axis=(1, 2)))
        if self.checker == "equal" and len(stored):  # whose only rule is the solution
            puzzles.answer[0] = self.all.answer[stored[0]]
        elif self.checker == "all_different" and len(wrong := np.flatnonzero(self._clashes(puzzles))):
            places = ", ".join(str(cell + 1) for cell in wrong)
            raise UserError(f"--puzzle has contradictory clues: cells {places} are in one group; change one of them.")
        return puzzles

    def _clashes(self, puzzles: PuzzleSet) -> np.ndarray:
        """Clues of one puzzle that break a rule, bool [N]."""
        return self.violations(puzzles, puzzles.given.astype(np.int64))[0] & (puzzles.given[0] >= 0)

    def answers(self, puzzles: PuzzleSet, row: int, most: int = 2) -> list[np.ndarray]:
        """With all_different by a search; otherwise the stored answer, where there is one."""
        one = puzzles.rows(slice(row, row + 1))
        if self.checker == "all_different":
            return [] if self._clashes(one).any() else self._search(one, most)
        return [one.answer[0].astype(np.int64)] if (one.answer[0][one.real[0]] >= 0).all() and most else []

    def _search(self, puzzle: PuzzleSet, most: int) -> list[np.ndarray]:
        """Depth first, on the cell with fewest symbols left."""
        near = (self.groups.T @ self.groups) > 0
        results: list[np.ndarray] = []
        stack = [puzzle.given[0].astype(np.int64)]
        while stack and len(results) < most:
            answer = stack.pop()
            blank = np.flatnonzero((answer < 0) & puzzle.real[0])
            if not len(blank):
                results.append(answer)
                continue
            options = [np.setdiff1d(np.arange(len(self.symbols)), answer[near[cell]]) for cell in blank]
            fewest = min(range(len(blank)), key=lambda index: len(options[index]))
            for symbol in options[fewest]:
                branch = answer.copy()
                branch[blank[fewest]] = symbol
                stack.append(branch)
        return results

    def content(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()

    def save(self, folder: Path) -> None:
        write_text(folder / COPY, self.source)


def _is_group(value: Any) -> bool:
    if isinstance(value, str):
        return value in ("rows", "columns")
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(cell, int) and not isinstance(cell, bool) and cell >= 0 for cell in value)
    )
