"""sudoku:4, sudoku:6 and sudoku:9: each digit once in every row, column and box.

Splits: a grid is assigned to a split by a number that no symmetry of Sudoku changes (`grid_key`): relabelling digits,
permuting bands, stacks, rows of a band and columns of a stack, and transposing where boxes are square. So a grid of
one split is never a grid of another in disguise. Grids of 4 x 4 have only two classes, too few to split by: there the
puzzles are split, by the canonical form of their clues under the same symmetries, and splits share solutions.

Kinds: in distribution (many clues, chosen at random; 9 x 9 always with one solution), shifted (few clues, exactly one
solution), several answers (few clues, at least two solutions). Variety comes from random symmetries of base grids,
which stay in their class.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations as all_permutations

import numpy as np

from core.errors import UserError
from data.reasoning.puzzle import (
    IN_DISTRIBUTION,
    SEVERAL,
    SHIFTED,
    SPLITS,
    Puzzle,
    PuzzleSet,
    PuzzleSpec,
    Split,
    mix,
    parse_symbols,
    permutations,
    random_state,
    split_numbers,
)

BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}  # rows and columns of a box
CLUES = {
    4: {IN_DISTRIBUTION: (6, 10), SHIFTED: (4, 5), SEVERAL: (3, 5)},
    6: {IN_DISTRIBUTION: (18, 26), SHIFTED: (12, 16), SEVERAL: (10, 16)},
    9: {IN_DISTRIBUTION: (40, 58), SHIFTED: (26, 34), SEVERAL: (24, 34)},
}
BASE_GRIDS = {4: 512, 6: 4096, 9: 2048}
DRAW = {IN_DISTRIBUTION: 4096, SHIFTED: 256, SEVERAL: 256}  # puzzles drawn at once
FREE_CLUES = 8  # of 9 x 9 in distribution: chosen at random, beside those that leave one solution
SLOW_CLUES = 28  # fewer that leave one solution of 9 x 9 take long to find
SEARCH_STATES = 4096  # that the solver works on at once


class Sudoku(Puzzle):
    kinds = (IN_DISTRIBUTION, SHIFTED, SEVERAL)

    def __init__(self, size: int, clues: tuple[int, int] | None = None) -> None:
        """clues: fewest and most in training; the usual range if None."""
        self.size = size
        self.box_rows, self.box_columns = BOXES[size]
        self.columns = size
        self.can_repeat = size == 4
        self.draws_own_split = size != 4  # whose splits share solutions
        self.clues = CLUES[size] | ({} if clues is None else {IN_DISTRIBUTION: clues})
        low = self.clues[IN_DISTRIBUTION][0]
        self.fewest = max(low - FREE_CLUES, min(low, SLOW_CLUES))
        cells = size * size
        row, column = np.divmod(np.arange(cells), size)
        box = row // self.box_rows * self.box_rows + column // self.box_columns
        positions = np.stack([row, column, box])
        symbols = tuple(str(digit) for digit in range(1, size + 1))
        self.spec = PuzzleSpec(f"sudoku:{size}", cells, symbols, (size + 1,), positions)
        self.solver = Solver(size, positions)

    def draw(self, split: Split, kind: int, random: np.random.RandomState, seed: int) -> PuzzleSet:
        grids, masks, numbers = base_grids(self.size, seed, self.fewest)
        if self.draws_own_split:
            own = numbers == SPLITS.index(split)
            grids, masks = grids[own], masks[own]
        count = DRAW[kind] if self.draws_own_split else min(DRAW[kind], 1024)
        chosen = random.randint(len(grids), size=count)
        grids, bases = self.transform(grids[chosen], masks[chosen], random)
        low, high = self.clues[kind]
        num_clues = random.randint(low, high + 1, size=count)
        if kind == SHIFTED:
            masks = self.solver.remove_clues(grids, num_clues, random)
            proper = (masks.sum(axis=1) >= low) & (masks.sum(axis=1) <= high)
        else:
            order = random.random_sample(grids.shape)
            if kind == IN_DISTRIBUTION and self.size == 9:
                order -= bases  # the clues that make the solution unique come first
            masks = order.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable") < num_clues[:, None]
            # A base of 9 x 9 may need more clues than were asked for.
            proper = bases.sum(axis=1) <= num_clues if kind == IN_DISTRIBUTION and self.size == 9 else num_clues >= 0
            if kind == SEVERAL:
                proper = self.solver.count(np.where(masks, grids, -1), most=2) == 2
        return self.puzzles(np.where(masks, grids, -1)[proper], grids[proper], kind)

    def split_key(self, puzzles: PuzzleSet) -> np.ndarray:
        if self.size == 4:
            return canonical_clues(puzzles.given)
        return self.grid_keys(puzzles.answer)

    def violations(self, puzzles: PuzzleSet, answer: np.ndarray) -> np.ndarray:
        """Both cells of a double, changed clues and cells without a digit."""
        return self.clue_violations(puzzles, answer) | self.doubles(answer)

    def doubles(self, digits: np.ndarray) -> np.ndarray:
        """Cells whose digit stands twice in a row, column or box; bool [R, N]. digits: [R, N], -1 for blank cells."""
        chosen = digits[:, :, None] == np.arange(self.size)
        counts = self.solver.incidence @ chosen.astype(np.float32)  # [R, units, digits]
        repeated = (self.solver.incidence.T @ (counts > 1).astype(np.float32)) > 0
        result: np.ndarray = (repeated & chosen).any(axis=2)
        return result

    def parse(self, text: str) -> PuzzleSet:
        name = f"a Sudoku of {self.size} x {self.size}"
        given = parse_symbols(text, self.spec.symbols, self.spec.cells, name)[None]
        wrong = np.flatnonzero(self.doubles(given)[0])
        if len(wrong):
            places = ", ".join(f"{cell // self.size + 1}/{cell % self.size + 1}" for cell in wrong)
            raise UserError(
                f"--puzzle has contradictory clues: a digit stands twice in a row, column or box "
                f"(row/column {places}); change or blank one of them."
            )
        return self.puzzles(given, np.full_like(given, -1), IN_DISTRIBUTION)

    def answers(self, puzzles: PuzzleSet, row: int, most: int = 2) -> list[np.ndarray]:
        given = puzzles.given[row : row + 1]
        return [] if self.doubles(given).any() else self.solver.solutions(given, most)

    def lines(self, puzzles: PuzzleSet, row: int, answer: np.ndarray | None = None) -> list[str]:
        """The board with lines between the boxes."""
        symbols = self.cell_texts(puzzles, row, answer)
        lines = []
        for number in range(self.size):
            if number and number % self.box_rows == 0:
                lines.append("+".join(["-" * (2 * self.box_columns + 1)] * self.box_rows)[1:-1])
            parts = [
                " ".join(symbols[number * self.size + first : number * self.size + first + self.box_columns])
                for first in range(0, self.size, self.box_columns)
            ]
            lines.append(" | ".join(parts))
        return lines

    def puzzles(self, given: np.ndarray, answer: np.ndarray, kind: int) -> PuzzleSet:
        """given, answer: [R, N], -1 for blank cells."""
        given = given.astype(np.int8)
        inputs = (given + 1).astype(np.uint8)[:, :, None]
        kinds = np.full(len(given), kind, np.int8)
        return PuzzleSet(inputs, given, answer.astype(np.int8), np.ones(given.shape, bool), kinds)

    def transform(
        self, grids: np.ndarray, masks: np.ndarray, random: np.random.RandomState
    ) -> tuple[np.ndarray, np.ndarray]:
        """A random symmetry of each grid and of the cells that its mask, [R, N], chooses."""
        count, size = len(grids), self.size
        rows = self._line_order(random, count, self.box_rows)
        columns = self._line_order(random, count, self.box_columns)
        cells = rows[:, :, None] * size + columns[:, None, :]
        if self.box_rows == self.box_columns:
            transposed = random.randint(2, size=count).astype(bool)
            cells[transposed] = cells[transposed].transpose(0, 2, 1)
        cells = cells.reshape(count, -1)
        labels = permutations(random, count, size)
        grids = np.take_along_axis(labels, np.take_along_axis(grids, cells, 1).astype(np.int64), 1)
        return grids.astype(np.int8), np.take_along_axis(masks, cells, 1)

    def _line_order(self, random: np.random.RandomState, count: int, lines: int) -> np.ndarray:
        """Rows (or columns) in a random order that permutes groups of so many lines and the lines of each; [R, n]."""
        groups = self.size // lines
        group = permutations(random, count, groups)
        line = permutations(random, count * groups, lines).reshape(count, groups, lines)
        return (group[:, :, None] * lines + line).reshape(count, self.size)

    def grid_keys(self, grids: np.ndarray) -> np.ndarray:
        """uint64 [R], equal for grids that are the same up to a symmetry. grids: [R, N]."""
        boards = grids.reshape(-1, self.size, self.size).astype(np.int64)
        rows = line_keys(boards, self.box_rows)
        columns = line_keys(boards.transpose(0, 2, 1), self.box_columns)
        # Where boxes are square, transposing exchanges the two.
        first, second = (1, 1) if self.box_rows == self.box_columns else (1, 2)
        positions = boards.argsort(axis=2)  # [R, row, digit] -> column: pairs of digits are pairs of permutations too
        digits = pair_keys(positions.transpose(0, 2, 1)).sum(axis=(1, 2), dtype=np.uint64)
        return mix(mix(rows * np.uint64(first)) + mix(columns * np.uint64(second)) + mix(digits))


def pair_keys(lines: np.ndarray) -> np.ndarray:
    """A hash of the cycle lengths of the permutation from each line to each other, uint64 [R, n, n]; own pairs are 0.

    lines: [R, n, n], each a permutation. Relabelling conjugates a permutation and reordering the places leaves it as
    it is: neither changes its cycles.
    """
    size = lines.shape[2]
    places = lines.argsort(axis=2)
    # step[r, a, b, s]: the symbol in line b at the place where line a has s
    step = np.take_along_axis(lines[:, None, :, :], places[:, :, None, :], axis=3)
    power, code = step, np.zeros(step.shape[:3], np.int64)
    identity = np.arange(size)
    for _ in range(size):
        code = code * (size + 1) + (power == identity).sum(axis=3)  # fixed points of the powers tell the cycle lengths
        power = np.take_along_axis(step, power, axis=3)
    return np.where(np.eye(size, dtype=bool), np.uint64(0), mix(code))


def line_keys(boards: np.ndarray, group: int) -> np.ndarray:
    """uint64 [R]: hash of how the rows of a board relate, the same for every order of groups and of rows in a group."""
    pairs = pair_keys(boards)
    size = boards.shape[1]
    groups = size // group
    blocks = pairs.reshape(len(pairs), groups, group, groups, group)
    per_row = mix(blocks.sum(axis=4, dtype=np.uint64))  # [R, group, row, group]
    same = np.eye(groups, dtype=bool)[None, :, None, :]
    inside = np.where(same, mix(per_row), np.uint64(0)).sum(axis=3, dtype=np.uint64)
    outside = np.where(same, np.uint64(0), mix(per_row + np.uint64(1))).sum(axis=3, dtype=np.uint64)
    rows = mix(inside + mix(outside))
    return mix(rows.sum(axis=2, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)


@lru_cache(maxsize=4)
def base_grids(size: int, seed: int, fewest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Grids, int8 [R, N], clues of each that leave one solution, bool [R, N], and the number of its split, [R].

    The clues are all cells but for 9 x 9, where there are `fewest` of them, or more where these are needed.
    """
    sudoku = Sudoku(size)
    solver = sudoku.solver
    random = random_state("base grids", size, seed)
    grids = solver.random_grids(BASE_GRIDS[size], random)
    masks = np.ones(grids.shape, bool)
    if size == 9:
        masks = solver.remove_clues(grids, np.full(len(grids), fewest), random)
    return grids, masks, split_numbers(sudoku.grid_keys(grids))


@lru_cache(maxsize=1)
def _symmetries_of_four() -> np.ndarray:
    """The 128 orders of the cells of a 4 x 4 board that keep rows, columns and boxes, [128, 16]."""
    pairs = list(all_permutations(range(2)))
    orders = [
        [2 * group + line for group in outer for line in inner[group]]
        for outer in pairs
        for inner in ((first, second) for first in pairs for second in pairs)
    ]
    boards = [[4 * row + column for row in rows for column in columns] for rows in orders for columns in orders]
    straight = np.array(boards)
    return np.concatenate([straight, straight.reshape(-1, 4, 4).transpose(0, 2, 1).reshape(-1, 16)])


def canonical_clues(given: np.ndarray) -> np.ndarray:
    """The smallest number that a symmetry makes of the clues of a 4 x 4 puzzle, uint64 [R]. given: [R, 16]."""
    least = np.full(len(given), 5**16, np.int64)
    for order in _symmetries_of_four():
        board = given[:, order]
        places = np.stack([np.where((board == digit).any(1), (board == digit).argmax(1), 16) for digit in range(4)], 1)
        labels = places.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")  # in the order of appearance
        named = np.where(board < 0, 0, np.take_along_axis(labels, np.maximum(board, 0).astype(np.int64), 1) + 1)
        least = np.minimum(least, named @ 5 ** np.arange(16, dtype=np.int64))
    return least.astype(np.uint64)


class Solver:
    """An exact solver of many boards at once: singles first, then a depth-first search on the cell with fewest choices.

    A board is a bit mask of the digits that each cell may have, uint16 [N, S], boards last. incidence: [units, N].
    """

    def __init__(self, size: int, positions: np.ndarray) -> None:
        self.size, self.cells = size, size * size
        self.all_digits = np.uint16((1 << size) - 1)
        # units[k]: the k-th cell of each row, column and box
        self.units = np.concatenate([np.argsort(line, kind="stable").reshape(size, size) for line in positions]).T
        self.units_of = positions + size * np.arange(3)[:, None]  # [3, N]
        self.incidence = (
            (self.units_of[:, None, :] == np.arange(3 * size)[None, :, None]).any(axis=0).astype(np.float32)
        )

    def masks(self, given: np.ndarray) -> np.ndarray:
        """Boards of clues, [N, S]. given: [S, N], -1 for blank cells."""
        digits = np.left_shift(1, np.maximum(given, 0).astype(np.int64))
        return np.ascontiguousarray(np.where(given < 0, self.all_digits, digits).astype(np.uint16).T)

    def propagate(self, boards: np.ndarray) -> np.ndarray:
        """Apply singles, in place, until nothing changes; whether a board may still have a solution, bool [S]."""
        possible = (boards != 0).all(axis=0)
        active = np.flatnonzero(possible)
        while len(active):
            before = boards[:, active]
            after, contradiction = self._singles(before)
            boards[:, active] = after
            possible[active[contradiction]] = False
            active = active[(after != before).any(axis=0) & ~contradiction]
        return possible

    def _singles(self, boards: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One round: strike digits that a row, column or box has; place digits that have one cell left in it."""
        fixed = np.where(boards & (boards - np.uint16(1)), np.uint16(0), boards)
        shape = (self.units.shape[1], boards.shape[1])
        placed, placed_twice = np.zeros(shape, np.uint16), np.zeros(shape, np.uint16)
        once, twice = np.zeros(shape, np.uint16), np.zeros(shape, np.uint16)
        for cells in self.units:
            digits = fixed[cells]
            placed_twice |= placed & digits
            placed |= digits
            digits = boards[cells]
            twice |= once & digits
            once |= digits
        contradiction = (placed_twice != 0).any(axis=0) | (once != self.all_digits).any(axis=0)
        row, column, box = self.units_of
        struck = placed[row] | placed[column] | placed[box]
        after = np.where(fixed, boards, boards & ~struck)
        only = once & ~twice
        single = after & (only[row] | only[column] | only[box])
        after = np.where(single, single, after)
        # A cell that two digits need has neither: two bits are left, and the next round finds the digit missing.
        both = (single & (single - np.uint16(1))) != 0
        contradiction |= both.any(axis=0) | (after == 0).any(axis=0)
        return after, contradiction

    def search(self, boards: np.ndarray, most: int) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
        """The number of solutions of each board, at most `most`, [S]; and the solutions, as (board, uint16 [N])."""
        counts = np.zeros(boards.shape[1], np.int64)
        solutions: list[tuple[int, np.ndarray]] = []
        stack = [(boards.copy(), np.arange(boards.shape[1]))]
        while stack:
            states, owners = stack.pop()
            needed = counts[owners] < most
            states, owners = states[:, needed], owners[needed]
            if len(owners) > SEARCH_STATES:
                stack.append((states[:, :-SEARCH_STATES], owners[:-SEARCH_STATES]))
                states, owners = states[:, -SEARCH_STATES:].copy(), owners[-SEARCH_STATES:]
            possible = self.propagate(states)
            states, owners = states[:, possible], owners[possible]
            choices = np.bitwise_count(states)
            done = (choices == 1).all(axis=0)
            for index in np.flatnonzero(done):
                if counts[owners[index]] < most:
                    counts[owners[index]] += 1
                    solutions.append((int(owners[index]), states[:, index]))
            states, owners, choices = states[:, ~done], owners[~done], choices[:, ~done]
            if len(owners):
                cell = np.where(choices > 1, choices, self.size + 1).argmin(axis=0)
                options = states[cell, np.arange(len(owners))]
                digit, parent = np.nonzero(options[None, :] >> np.arange(self.size, dtype=np.uint16)[:, None] & 1)
                branches = states[:, parent]
                branches[cell[parent], np.arange(len(parent))] = np.left_shift(1, digit)
                stack.append((branches, owners[parent]))
        return counts, solutions

    def count(self, given: np.ndarray, most: int = 2) -> np.ndarray:
        """The number of solutions of each puzzle, at most `most`, [S]. given: [S, N], -1 for blank cells."""
        return self.search(self.masks(given), most)[0]

    def solutions(self, given: np.ndarray, most: int) -> list[np.ndarray]:
        """At most so many solutions of one puzzle, int64 [N] each. given: [1, N]."""
        return [
            np.bitwise_count(board - np.uint16(1)).astype(np.int64)
            for _, board in self.search(self.masks(given), most)[1]
        ]

    def remove_clues(self, grids: np.ndarray, num_clues: np.ndarray, random: np.random.RandomState) -> np.ndarray:
        """Clues of each grid that leave it the only solution: as many as asked for, more where none can be removed.

        grids: int8 [R, N]; num_clues: [R]. Returns bool [R, N].
        """
        order = permutations(random, *grids.shape)
        masks = np.ones(grids.shape, bool)
        # A third at once, where that leaves one solution; then one by one.
        many = self.cells // 3
        at_once = order.argsort(axis=1) >= many
        unique = (num_clues <= self.cells - many) & (self.count(np.where(at_once, grids, -1)) == 1)
        masks[unique] = at_once[unique]
        for cell in order.T:
            rows = np.flatnonzero((masks.sum(axis=1) > num_clues) & masks[np.arange(len(grids)), cell])
            if not len(rows):
                continue
            own = cell[rows]
            trial = masks[rows]
            trial[np.arange(len(rows)), own] = False
            boards = self.masks(np.where(trial, grids[rows], -1))
            # Another solution would have another digit here, since the clue left one solution.
            boards[own, np.arange(len(rows))] &= ~np.left_shift(1, grids[rows, own].astype(np.int64)).astype(np.uint16)
            removable = self.search(boards, 1)[0] == 0
            masks[rows[removable], own[removable]] = False
        return masks

    def random_grids(self, count: int, random: np.random.RandomState) -> np.ndarray:
        """Complete grids, int8 [count, N]."""
        grids = np.empty((0, self.cells), np.int8)
        while len(grids) < count:
            boards = np.full((self.cells, count), self.all_digits, np.uint16)
            while boards.shape[1]:
                boards = boards[:, self.propagate(boards)]
                choices = np.bitwise_count(boards)
                done = (choices == 1).all(axis=0)
                grids = np.concatenate([grids, np.bitwise_count(boards[:, done] - np.uint16(1)).astype(np.int8).T])
                boards, choices = boards[:, ~done], choices[:, ~done]
                if not boards.shape[1]:
                    break
                order = np.where(choices > 1, choices, self.size + 1) + random.random_sample(choices.shape) / 2
                cell, index = order.argmin(axis=0), np.arange(boards.shape[1])
                allowed = boards[cell, index] >> np.arange(self.size, dtype=np.uint16)[:, None] & 1
                digit = (allowed * (random.random_sample(allowed.shape) + 1)).argmax(axis=0)
                boards[cell, index] = np.left_shift(1, digit)
        return grids[:count]
