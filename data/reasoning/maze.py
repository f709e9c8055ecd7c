"""maze:N: the cells of a shortest path from start to goal in a maze of N x N cells.

A maze is a random tree of corridors in which some more walls are opened: loops, so that there can be several shortest
paths, any of which is right.

Kinds: the path has N/2 to 3N/2 steps in distribution, and 2N to 4N in the shifted rows, which have one shortest path,
and in those with several. Splits: by the walls, whatever start and goal, under rotations and reflections.
"""

from __future__ import annotations

import numpy as np

from core.errors import UserError
from data.reasoning.puzzle import (
    BLANK,
    IN_DISTRIBUTION,
    SEVERAL,
    SHIFTED,
    Puzzle,
    PuzzleSet,
    PuzzleSpec,
    Split,
    mix,
)

OFFSETS = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left
OPPOSITE = np.array([2, 3, 0, 1])
START, GOAL = 1, 2
DRAW_CELLS = 1 << 18  # of the mazes that are drawn at once
WALL = "#"


class Maze(Puzzle):
    """Fields: whether a cell is open to above, right, below and left; whether it is start (1) or goal (2)."""

    kinds = (IN_DISTRIBUTION, SHIFTED, SEVERAL)

    def __init__(self, size: int) -> None:
        self.size = self.columns = size
        self.cells = size * size
        positions = np.stack(np.divmod(np.arange(self.cells), size))
        self.spec = PuzzleSpec(f"maze:{size}", self.cells, (BLANK, "*"), (2, 2, 2, 2, 3), positions)
        row, column = positions
        self.neighbours = np.full((self.cells, 4), self.cells)  # `cells` where the board ends
        for direction, (down, right) in enumerate(OFFSETS):
            inside = (row + down >= 0) & (row + down < size) & (column + right >= 0) & (column + right < size)
            self.neighbours[inside, direction] = ((row + down) * size + column + right)[inside]
        usual, longer = (size // 2, 3 * size // 2), (2 * size, 4 * size)
        self.steps = {IN_DISTRIBUTION: usual, SHIFTED: longer, SEVERAL: longer}

    def draw(self, split: Split, kind: int, random: np.random.RandomState, seed: int) -> PuzzleSet:
        count = max(64, DRAW_CELLS // self.cells)
        low, high = self.steps[kind]
        openings = self.corridors(count, random)
        openings = self.open_walls(openings, random.uniform(0.02, 0.25, size=(count, 1)), random)
        start = random.randint(self.cells, size=count)
        distance, paths = self.distances(openings, start, high)
        fits = (distance >= low) & (distance <= high)
        if kind != IN_DISTRIBUTION:
            fits &= (paths == 1) if kind == SHIFTED else (paths > 1)
        goal = (fits * (1 + random.random_sample(fits.shape))).argmax(axis=1)
        proper = np.flatnonzero(fits.any(axis=1))
        openings, start, goal, distance = openings[proper], start[proper], goal[proper], distance[proper]
        return self.puzzles(openings, start, goal, self.path(openings, goal, distance, random), kind)

    def puzzles(
        self, openings: np.ndarray, start: np.ndarray, goal: np.ndarray, answer: np.ndarray, kind: int
    ) -> PuzzleSet:
        """openings: bool [R, N, 4]; start, goal: cells [R]; answer: [R, N]."""
        count, rows = len(openings), np.arange(len(openings))
        inputs = np.zeros((count, self.cells, 5), np.uint8)
        inputs[:, :, :4] = openings
        inputs[rows, start, 4], inputs[rows, goal, 4] = START, GOAL
        shape = (count, self.cells)
        kinds = np.full(count, kind, np.int8)
        return PuzzleSet(inputs, np.full(shape, -1, np.int8), answer.astype(np.int8), np.ones(shape, bool), kinds)

    def corridors(self, count: int, random: np.random.RandomState) -> np.ndarray:
        """Trees of corridors by a random depth-first search in all mazes at once; openings, bool [count, N, 4]."""
        rows = np.arange(count)
        openings = np.zeros((count, self.cells, 4), bool)
        visited = np.zeros((count, self.cells + 1), bool)
        visited[:, self.cells] = True
        trail = np.zeros((count, self.cells), np.int64)
        trail[:, 0] = random.randint(self.cells, size=count)
        visited[rows, trail[:, 0]] = True
        depth = np.zeros(count, np.int64)
        missing = count * (self.cells - 1)
        while missing:
            cell = trail[rows, depth]
            free = ~visited[rows[:, None], self.neighbours[cell]]
            direction = (free * (1 + random.random_sample(free.shape))).argmax(axis=1)
            forward = free.any(axis=1)
            depth = np.where(forward, depth + 1, np.maximum(depth - 1, 0))
            moved, way = rows[forward], direction[forward]
            target = self.neighbours[cell[forward], way]
            openings[moved, cell[forward], way] = True
            openings[moved, target, OPPOSITE[way]] = True
            visited[moved, target] = True
            missing -= len(moved)
            trail[moved, depth[forward]] = target
        return openings

    def open_walls(self, openings: np.ndarray, share: np.ndarray, random: np.random.RandomState) -> np.ndarray:
        """Open this share, [R, 1], of the inner walls."""
        openings = openings.copy()
        for direction in (1, 2):
            inside = np.flatnonzero(self.neighbours[:, direction] < self.cells)
            opened = random.random_sample((len(openings), len(inside))) < share
            openings[:, inside, direction] |= opened
            openings[:, self.neighbours[inside, direction], OPPOSITE[direction]] |= opened
        return openings

    def distances(self, openings: np.ndarray, start: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Steps from the start to each cell, -1 beyond `most`, and the number of shortest paths, at most 2; [R, N]."""
        rows, size = np.arange(len(openings)), self.size
        distance = np.full((len(openings), self.cells), -1, np.int16)
        distance[rows, start] = 0
        paths = (distance == 0).astype(np.uint8).reshape(-1, size, size)
        border = np.zeros((len(openings), size + 2, size + 2), np.uint8)  # with a frame, so that moving it is a slice
        border[:, 1:-1, 1:-1] = paths
        ways = [openings[:, :, direction].reshape(paths.shape).astype(np.uint8) for direction in range(4)]
        near = [border[:, 1 + down : 1 + down + size, 1 + right : 1 + right + size] for down, right in OFFSETS]
        boards = distance.reshape(paths.shape)
        for step in range(1, most + 1):
            ahead = sum((border * way for border, way in zip(near, ways, strict=True)), np.uint8(0))
            ahead = np.minimum(ahead, np.uint8(2)) * (boards < 0)
            if not ahead.any():
                break
            boards[ahead > 0] = step
            border[:, 1:-1, 1:-1] = ahead
            paths += ahead
        return distance, paths.reshape(-1, self.cells)

    def path(
        self, openings: np.ndarray, goal: np.ndarray, distance: np.ndarray, random: np.random.RandomState
    ) -> np.ndarray:
        """One of the shortest paths, by its cells, bool [R, N]. distance: from the start, [R, N]."""
        rows = np.arange(len(openings))
        on_path = np.zeros(distance.shape, bool)
        padded = np.concatenate([distance, np.full((len(distance), 1), -9, distance.dtype)], axis=1)
        cell = goal.copy()
        on_path[rows, cell] = True
        for _ in range(int(distance[rows, goal].max(initial=0))):
            near = self.neighbours[cell]
            back = openings[rows, cell] & (padded[rows[:, None], near] == padded[rows, cell][:, None] - 1)
            way = (back * (1 + random.random_sample(back.shape))).argmax(axis=1)
            cell = np.where(back.any(axis=1), near[rows, way], cell)
            on_path[rows, cell] = True
        return on_path

    def split_key(self, puzzles: PuzzleSet) -> np.ndarray:
        size = self.size
        board = puzzles.inputs[:, :, :4].reshape(-1, size, size, 4).astype(np.uint64)
        right, down = board[:, :, :-1, 1], board[:, :-1, :, 2]
        walls = np.concatenate([right.reshape(len(board), -1), down.reshape(len(board), -1)], axis=1)
        weights = mix(np.arange(walls.shape[1], dtype=np.uint64))
        across, along = weights[: size * (size - 1)].reshape(size, -1), weights[size * (size - 1) :].reshape(-1, size)
        keys = []
        for _ in range(4):  # a reflection and a transposition make a quarter turn
            keys.append((walls * np.concatenate([across.ravel(), along.ravel()])).sum(axis=1, dtype=np.uint64))
            across, along = across[:, ::-1], along[:, ::-1]
            keys.append((walls * np.concatenate([across.ravel(), along.ravel()])).sum(axis=1, dtype=np.uint64))
            across, along = along.T, across.T
        return mix(np.min(keys, axis=0))

    def ends(self, puzzles: PuzzleSet) -> tuple[np.ndarray, np.ndarray]:
        """The cells of start and goal, [R] each."""
        roles = puzzles.inputs[:, :, 4]
        return (roles == START).argmax(axis=1), (roles == GOAL).argmax(axis=1)

    def violations(self, puzzles: PuzzleSet, answer: np.ndarray) -> np.ndarray:
        """Cells on no shortest path; cells that could be the missing step, or are one too many; steps through walls."""
        openings = puzzles.inputs[:, :, :4] > 0
        start, goal = self.ends(puzzles)
        rows = np.arange(len(answer))
        distance, _ = self.distances(openings, start, self.cells)
        to_goal, _ = self.distances(openings, goal, self.cells)
        length = distance[rows, goal]
        useful = (distance >= 0) & (to_goal >= 0) & (distance + to_goal == length[:, None])
        marked = answer == 1
        wrong = self.clue_violations(puzzles, answer) | (marked & ~useful)
        on_path = marked & useful
        # per step of the path: the number of marked cells; column `cells` collects the others
        step = np.where(useful, distance, self.cells)
        counts = np.zeros((len(answer), self.cells + 1), np.int64)
        np.add.at(counts, (rows[:, None], np.where(on_path, step, self.cells)), 1)
        own = np.take_along_axis(counts, step.astype(np.int64), axis=1)
        wrong |= useful & (own == 0)
        wrong |= on_path & (own > 1)
        # Each marked cell but the goal needs an open way to a marked cell one step further.
        padded = np.concatenate([np.where(on_path, distance, -9), np.full((len(answer), 1), -9)], axis=1)
        further = openings & (padded[:, self.neighbours] == distance[:, :, None] + 1)
        wrong |= on_path & (distance < length[:, None]) & ~further.any(axis=2)
        no_way = length < 0  # start and goal are not connected: no answer is right
        wrong[no_way] = puzzles.real[no_way]
        return wrong

    def answers(self, puzzles: PuzzleSet, row: int, most: int = 2) -> list[np.ndarray]:
        one = puzzles.rows(slice(row, row + 1))
        openings = one.inputs[0, :, :4] > 0
        start, goal = (int(cell[0]) for cell in self.ends(one))
        distance = self.distances(openings[None], np.array([start]), self.cells)[0][0]
        results: list[np.ndarray] = []
        trails = [[goal]] if distance[goal] >= 0 else []
        while trails and len(results) < most:
            trail = trails.pop()
            if trail[-1] == start:
                answer = np.zeros(self.cells, np.int64)
                answer[trail] = 1
                results.append(answer)
                continue
            for direction, near in enumerate(self.neighbours[trail[-1]]):
                if openings[trail[-1], direction] and distance[near] == distance[trail[-1]] - 1:
                    trails.append([*trail, int(near)])
        return results

    def lines(self, puzzles: PuzzleSet, row: int, answer: np.ndarray | None = None) -> list[str]:
        """A drawing of 2N + 1 lines: # walls, S start, G goal, * the path."""
        size = self.size
        drawing = np.full((2 * size + 1, 2 * size + 1), WALL)
        symbols = self.cell_texts(puzzles, row, answer)
        for cell in range(self.cells):
            y, x = 2 * (cell // size) + 1, 2 * (cell % size) + 1
            drawing[y, x] = {START: "S", GOAL: "G"}.get(int(puzzles.inputs[row, cell, 4]), symbols[cell])
            for direction, (down, right) in enumerate(OFFSETS):
                if puzzles.inputs[row, cell, direction]:
                    drawing[y + down, x + right] = BLANK
        return ["".join(line) for line in drawing]

    def text(self, puzzles: PuzzleSet, row: int) -> str:
        return "/".join(self.lines(puzzles, row))

    def parse(self, text: str) -> PuzzleSet:
        """A drawing as `lines` gives it, its lines separated by / or line ends; a path in it is not read."""
        lines = [line.strip() for line in text.replace("/", "\n").split("\n") if line.strip()]
        side = 2 * self.size + 1
        if len(lines) != side or any(len(line) != side for line in lines):
            sizes = f"{len(lines)} lines of {'/'.join(map(str, sorted({len(line) for line in lines})))} characters"
            raise UserError(
                f"--puzzle has {sizes}: {self.spec.dataset} is drawn on {side} lines of {side}, # for a wall, . for "
                "none, S and G for start and goal."
            )
        for number, line in enumerate(lines):
            wrong = next((character for character in line if character not in "#.*SG"), None)
            if wrong:
                raise UserError(f"--puzzle has {wrong!r} in line {number + 1}: use # . S and G.")
        drawing = np.array([list(line) for line in lines])
        cells = drawing[1::2, 1::2]
        if (cells == "S").sum() != 1 or (cells == "G").sum() != 1 or np.isin(drawing, ["S", "G"]).sum() != 2:
            raise UserError("--puzzle needs one S (start) and one G (goal), each in a cell of its own.")
        fixed = np.zeros(drawing.shape, bool)
        fixed[[0, -1]] = fixed[:, [0, -1]] = fixed[::2, ::2] = True
        is_wall = drawing == WALL
        if (fixed & ~is_wall).any() or (cells == WALL).any():
            y, x = np.argwhere((fixed & ~is_wall) | (_cell_places(drawing.shape) & is_wall))[0]
            raise UserError(
                f"--puzzle has {drawing[y, x]!r} in line {y + 1}, column {x + 1}: the border and every crossing of "
                "walls is #, and a cell never is."
            )
        rows, columns = np.divmod(np.arange(self.cells), self.size)
        ways = [~is_wall[2 * rows + 1 + down, 2 * columns + 1 + right] for down, right in OFFSETS]
        openings = np.stack(ways, axis=1)[None]
        ends = [np.flatnonzero(cells.ravel() == letter) for letter in "SG"]
        return self.puzzles(openings, ends[0], ends[1], np.full((1, self.cells), -1), IN_DISTRIBUTION)


def _cell_places(shape: tuple[int, ...]) -> np.ndarray:
    places = np.zeros(shape, bool)
    places[1::2, 1::2] = True
    return places
