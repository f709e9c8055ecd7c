"""Boards of a walk: printed side by side, with the cells that break a rule marked, and drawn as PNG and GIF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np
from rich.text import Text

from data.reasoning.puzzle import Puzzle, PuzzleSet
from runs.pictures import COLOURS, FAINT, GREY, picture_text, pyplot

MARK = "!"  # behind a cell that breaks a rule, where there are no colours
GAP = 4  # columns between boards
WRONG, CLUE = "#d6494f", "#e4e7eb"
FRAMES_PER_SECOND = 3
LAST_FRAME_SECONDS = 3
BOARDS_A_ROW = 4


@dataclass(frozen=True)
class Board:
    """An answer on its way. cells: printed symbols of the real cells; wrong, clue: bool, of the same; title: over it.

    columns: cells of a line. boxes: the box of each cell, None where there are none; energy: None without one.
    """

    title: str
    cells: list[str]
    wrong: np.ndarray
    clue: np.ndarray
    columns: int
    boxes: np.ndarray | None
    energy: float | None
    step: int

    @classmethod
    def of(
        cls, puzzle: Puzzle, puzzles: PuzzleSet, row: int, answer: np.ndarray, title: str, step: int,
        energy: float | None,
    ) -> Board:  # fmt: skip
        real = puzzles.real[row]
        wrong = puzzle.violations(puzzles.rows([row]), answer[None])[0][real]
        positions = puzzle.spec.positions
        boxes = positions[2][real] if len(positions) == 3 else None
        cells = puzzle.cell_texts(puzzles, row, answer)
        return cls(title, cells, wrong, puzzles.given[row][real] >= 0, puzzle.columns, boxes, energy, step)

    def named(self, title: str) -> Board:
        """The same board under another title."""
        return replace(self, title=title)

    @property
    def place(self) -> list[tuple[int, int]]:
        """Line and column of each cell."""
        return [divmod(cell, self.columns) for cell in range(len(self.cells))]

    def is_border(self, cell: int, other: int) -> bool:
        """Whether a line between boxes is between two cells."""
        return self.boxes is not None and other < len(self.cells) and self.boxes[cell] != self.boxes[other]

    def lines(self, marks: bool) -> list[Text]:
        """The board as text. marks: with a mark behind what breaks a rule, as well as colour."""
        size = max(map(len, self.cells))
        lines, line = [], Text()
        for cell, symbol in enumerate(self.cells):
            column = cell % self.columns
            style = "bold red" if self.wrong[cell] else "bold" if self.clue[cell] else ""
            line.append(symbol.rjust(size), style)
            line.append((MARK if self.wrong[cell] else " ") if marks else "", "red")
            is_last = column == self.columns - 1 or cell == len(self.cells) - 1
            if not is_last:
                line.append(" | " if self.is_border(cell, cell + 1) else " ")
                continue
            lines.append(line)
            below = [self.is_border(other, other + self.columns) for other in range(cell - column, cell + 1)]
            if any(below):
                lines.append(Text("-" * len(line), "dim"))
            line = Text()
        return lines


def side_by_side(boards: Sequence[Board], width: int, marks: bool) -> list[Text]:
    """Boards beside each other, as many as fit into the width."""
    lines: list[Text] = []
    blocks = [[Text(part) for part in board.title.split("\n")] + board.lines(marks) for board in boards]
    sizes = [max(len(line) for line in block) for block in blocks]
    first = 0
    while first < len(blocks):
        last, total = first + 1, sizes[first]
        while last < len(blocks) and total + GAP + sizes[last] <= width:
            total += GAP + sizes[last]
            last += 1
        for number in range(max(len(block) for block in blocks[first:last])):
            line = Text()
            for index in range(first, last):
                line.append_text(blocks[index][number].copy() if number < len(blocks[index]) else Text())
                if index < last - 1:
                    line.append(" " * (sum(sizes[first : index + 1]) + GAP * (index + 1 - first) - len(line)))
            line.rstrip()
            lines.append(line)
        lines.append(Text())
        first = last
    return lines


def draw_board(panel: Any, board: Board) -> None:
    """The cells as squares: clues shaded, what breaks a rule red."""
    places = board.place
    height = places[-1][0] + 1
    size = max(map(len, board.cells))
    scale = min(1.0, 9 / max(board.columns, height)) / max(1.0, 0.6 * size)
    for cell, (line, column) in enumerate(places):
        colour = WRONG if board.wrong[cell] else CLUE if board.clue[cell] else "white"
        square = panel.add_patch(
            pyplot().Rectangle((column, line), 1, 1, facecolor=colour, edgecolor=GREY, linewidth=0.5)
        )
        square.set_alpha(0.55 if board.wrong[cell] else 1)
        weight = "bold" if board.clue[cell] else "normal"
        panel.text(
            *(column + 0.5, line + 0.53, picture_text(board.cells[cell])),
            ha="center", va="center", color="#20242a", fontsize=15 * scale, fontweight=weight,
        )  # fmt: skip
        if column < board.columns - 1 and board.is_border(cell, cell + 1):
            panel.plot([column + 1] * 2, [line, line + 1], color="#20242a", linewidth=1.4)
        if board.is_border(cell, cell + board.columns):
            panel.plot([column, column + 1], [line + 1] * 2, color="#20242a", linewidth=1.4)
    panel.set_xlim(-0.05, board.columns + 0.05)
    panel.set_ylim(height + 0.05, -0.05)
    panel.set_aspect("equal")
    panel.axis("off")
    panel.set_title(picture_text(board.title.replace("\n", ", ")), fontsize="small")


def draw_energy(panel: Any, boards: Sequence[Board], until: int | None = None) -> None:
    """The energy by steps, with the board that is shown marked; the share of wrong cells where there is no energy."""
    steps = [board.step for board in boards]
    has_energy = boards[0].energy is not None
    values = [float(board.wrong.sum()) if board.energy is None else board.energy for board in boards]
    panel.plot(steps, values, color=COLOURS[0])
    if until is not None:
        panel.plot([steps[until]], [values[until]], color=COLOURS[0], marker="o")
    panel.set_xlabel("steps" if has_energy else "loops")
    panel.set_ylabel("energy" if has_energy else "cells that break a rule")
    panel.grid(**FAINT)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def draw_png(boards: Sequence[Board], walk: Sequence[Board], title: str, file: IO[bytes]) -> None:
    """A few boards, and the energy of the whole walk."""
    plots = pyplot()
    rows = -(-(len(boards) + 1) // BOARDS_A_ROW)
    columns = min(BOARDS_A_ROW, len(boards) + 1)
    figure, panels = plots.subplots(rows, columns, figsize=(3.1 * columns, 3.3 * rows + 0.4), squeeze=False)
    flat = panels.flatten()
    for panel, board in zip(flat, boards, strict=False):
        draw_board(panel, board)
    draw_energy(flat[len(boards)], walk)
    for panel in flat[len(boards) + 1 :]:
        panel.axis("off")
    figure.suptitle(picture_text(title), x=0.01, ha="left", fontsize="medium")
    figure.tight_layout()
    figure.savefig(file, dpi=110, format="png")
    plots.close(figure)


def draw_gif(walk: Sequence[Board], title: str, path: str) -> None:
    """Every step of the walk: the board, and the energy so far. The last frame stays for a while."""
    from matplotlib.animation import PillowWriter

    plots = pyplot()
    figure, (left, right) = plots.subplots(1, 2, figsize=(7, 3.6))
    figure.suptitle(picture_text(title), x=0.01, ha="left", fontsize="medium")
    writer = PillowWriter(fps=FRAMES_PER_SECOND)
    with writer.saving(figure, path, dpi=80):
        for number, board in enumerate(walk):
            left.clear()
            right.clear()
            draw_board(left, board)
            draw_energy(right, walk, number)
            figure.tight_layout()
            # frames of a GIF lie over each other: without a background the ones before would show through
            for _ in range(FRAMES_PER_SECOND * LAST_FRAME_SECONDS if number == len(walk) - 1 else 1):
                writer.grab_frame(facecolor="white")
    plots.close(figure)
