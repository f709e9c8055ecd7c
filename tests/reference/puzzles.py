"""Rules and exact solvers of the puzzles, one cell at a time, and canonical forms by trying every symmetry."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import permutations, product

import numpy as np

BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}


def sees(size: int, one: int, other: int) -> bool:
    """Whether two cells of a Sudoku share a row, a column or a box."""
    rows, columns = BOXES[size]
    (y, x), (v, u) = divmod(one, size), divmod(other, size)
    return y == v or x == u or (y // rows == v // rows and x // columns == u // columns)


def sudoku_violations(size: int, given: Sequence[int], answer: Sequence[int]) -> list[bool]:
    cells = range(size * size)
    return [
        not 0 <= answer[cell] < size
        or (given[cell] >= 0 and given[cell] != answer[cell])
        or any(answer[other] == answer[cell] for other in cells if other != cell and sees(size, cell, other))
        for cell in cells
    ]


def sudoku_answers(size: int, given: Sequence[int]) -> Iterator[list[int]]:
    """Every solution, by backtracking on the blank cell with fewest digits left."""
    board = list(given)
    near = [[o for o in range(size * size) if o != c and sees(size, c, o)] for c in range(size * size)]

    def options(cell: int) -> set[int]:
        return set(range(size)) - {board[other] for other in near[cell]}

    def fill() -> Iterator[list[int]]:
        blank = [cell for cell in range(size * size) if board[cell] < 0]
        if not blank:
            yield board.copy()
            return
        cell = min(blank, key=lambda cell: len(options(cell)))
        for digit in sorted(options(cell)):
            board[cell] = digit
            yield from fill()
        board[cell] = -1

    return fill()


def line_orders(size: int, lines: int) -> list[list[int]]:
    """Every order of rows (columns) that keeps groups of so many lines together."""
    groups = range(size // lines)
    return [
        [group * lines + line for group, inner in zip(outer, inners, strict=True) for line in inner]
        for outer in permutations(groups)
        for inners in product(permutations(range(lines)), repeat=len(groups))
    ]


def canonical(size: int, board: Sequence[int]) -> tuple[int, ...]:
    """The first, in the order of tuples, of all that symmetries make of a board; -1 for blank cells."""
    rows, columns = BOXES[size]
    row_orders, column_orders = np.array(line_orders(size, rows)), np.array(line_orders(size, columns))
    orders = (row_orders[:, None, :, None] * size + column_orders[None, :, None, :]).reshape(-1, size, size)
    if rows == columns:
        orders = np.concatenate([orders, orders.transpose(0, 2, 1)])
    boards = np.asarray(board)[orders.reshape(len(orders), -1)]
    renamed = np.zeros_like(boards)  # digits by the order in which they appear, 0 for blank cells
    names = np.zeros((len(boards), size + 1), np.int64)
    following = np.ones(len(boards), np.int64)
    every = np.arange(len(boards))
    for cell in range(size * size):
        digits = boards[:, cell] + 1
        fresh = (digits > 0) & (names[every, digits] == 0)
        names[every[fresh], digits[fresh]] = following[fresh]
        following += fresh
        renamed[:, cell] = names[every, digits]
    order = np.lexsort(renamed.T[::-1])
    return tuple(renamed[order[0]].tolist())


def reached(edges: Sequence[Sequence[int]], source: int) -> dict[int, int]:
    """Steps from the source to every node that it reaches."""
    steps, queue = {source: 0}, deque([source])
    while queue:
        node = queue.popleft()
        for other, edge in enumerate(edges[node]):
            if edge and other not in steps:
                steps[other] = steps[node] + 1
                queue.append(other)
    return steps


def shortest_paths(size: int, inputs: np.ndarray) -> list[frozenset[int]]:
    """The cells of every shortest path of a maze. inputs: [N, 5]."""
    offsets = (-size, 1, size, -1)
    ways = [[cell + offsets[d] for d in range(4) if inputs[cell, d]] for cell in range(size * size)]
    start, goal = (int(np.flatnonzero(inputs[:, 4] == role)[0]) for role in (1, 2))
    edges = [[other in near for other in range(size * size)] for near in ways]
    steps = reached(edges, start)

    def back(cell: int) -> Iterator[frozenset[int]]:
        if cell == start:
            yield frozenset([start])
        for other in ways[cell]:
            if steps[other] == steps[cell] - 1:
                for path in back(other):
                    yield path | {cell}

    return list(back(goal)) if goal in steps else []
