"""Shows a trained model of puzzles: one being solved step by step, how many are solved by steps, and energies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, NamedTuple

import numpy as np
import torch
from rich.console import Console

from core.errors import or_report
from core.files import write_atomically
from data.module import Batch
from data.reasoning.puzzle import IN_DISTRIBUTION, KINDS, SHIFTED, Puzzle, PuzzleSet
from models.reasoning import PuzzlePredictions, Thought
from runs.pictures import FAINT, GREY, pyplot
from tasks import Showing
from tasks.reasoning import THINKING, Thinking
from tasks.show.board import Board, draw_board, draw_png, side_by_side
from tasks.show.walk import mark_steps

PUZZLES = 64  # of each kind, whose answers are counted
FIXED_PUZZLES = 4  # of the validation split, drawn at every step that is shown: half of them harder ones
SEARCHED = 32  # harder puzzles among which one that is solved in the course of the walk is looked for
WIDTH = 100  # columns of the terminal that boards take at most


class Walk(NamedTuple):
    """Puzzles and what a model thought of them. answers: [T, B, N]. energies: [T, B], or None."""

    puzzle: Puzzle
    puzzles: PuzzleSet
    steps: list[int]
    answers: np.ndarray
    energies: np.ndarray | None

    @property
    def solved(self) -> np.ndarray:
        """bool [T, B]"""
        return np.stack([self.puzzle.solved(self.puzzles, answer) for answer in self.answers])

    def boards(self, row: int) -> list[Board]:
        """One for each step."""
        boards = []
        for number, step in enumerate(self.steps):
            answer = self.answers[number, row]
            energy = None if self.energies is None else float(self.energies[number, row])
            board = Board.of(self.puzzle, self.puzzles, row, answer, "", step, energy)
            boards.append(board.named(title_of(board)))
        return boards


def title_of(board: Board) -> str:
    """What stands above a board: its step, its energy, and what is wrong."""
    wrong = int(board.wrong.sum())
    energy = "" if board.energy is None else f", energy {board.energy:.2f}"
    return f"step {board.step}{energy}\n" + ("solved" if not wrong else f"{wrong} cells wrong")


def rows_of_kind(showing: Showing, kind: int, count: int) -> np.ndarray:
    """Indices of some validation puzzles of a kind, from all over it; none where there are none."""
    rows = np.flatnonzero(showing.data.rows["valid"].puzzles.kind == kind)
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int))] if len(rows) else rows


def think(showing: Showing, rows: Sequence[int] | np.ndarray, steps: int) -> Walk:
    """Let the model think on these validation puzzles."""
    model, split = showing.model, showing.data.rows["valid"]
    assert isinstance(model, PuzzlePredictions)
    batch: Batch = {name: tensor.to(model.device) for name, tensor in split.__getitems__(list(rows)).items()}
    thoughts: list[Thought] = list(model.think(batch, steps))
    with torch.no_grad():
        answers = np.stack([model.answer_of(thought.logits, batch).cpu().numpy() for thought in thoughts])
    energies = [thought.energy.float().cpu().numpy() for thought in thoughts if thought.energy is not None]
    puzzles = split.puzzles.rows(np.asarray(rows))
    numbers = [thought.steps for thought in thoughts]
    return Walk(split.puzzle, puzzles, numbers, answers, np.stack(energies) if energies else None)


def show_reasoning(showing: Showing) -> None:
    """Print and draw what the model does with held-out puzzles. A part that fails is reported, and the next runs."""
    or_report("a puzzle being solved", lambda: show_puzzle(showing))
    or_report("the puzzles solved by steps", lambda: show_shares(showing))


def evaluation_steps(showing: Showing) -> int:
    """How many steps or loops an evaluation takes; 1 for a model that does not think in steps."""
    thinks = showing.config.run.model_name in THINKING["model_name"]
    return showing.config[Thinking].evaluation_steps if thinks else 1


def show_puzzle(showing: Showing) -> None:
    """A harder puzzle, board after board: one that is solved on the way, if there is one."""
    rows = rows_of_kind(showing, SHIFTED, SEARCHED)
    walk = think(showing, rows if len(rows) else range(SEARCHED), evaluation_steps(showing))
    solved = walk.solved
    first = np.where(solved[-1], solved.argmax(axis=0), -1)  # the step that solved it; -1: it is not solved
    row = int(first.argmax())
    boards = walk.boards(row)
    some = [boards[number] for number in spread(len(boards), int(first[row]))]
    showing.say(
        f"\na harder puzzle of the validation split, step by step ({walk.puzzle.spec.dataset}; ! breaks a rule)"
    )
    for line in side_by_side(some, min(WIDTH, Console().width), marks=True):
        showing.say(f"  {line.plain}".rstrip())
    picture = showing.folder / "puzzle.png"
    title = f"{walk.puzzle.spec.dataset}, after {showing.step} steps of training"
    write_atomically(picture, lambda file: draw_png(some, boards, title, file))
    showing.say(f"  drawn in {picture}")


def spread(count: int, solved_at: int) -> list[int]:
    """Which of `count` boards to show: the first, those after 1, 2, 4 ... steps, the one that is solved, the last."""
    numbers = {0, count - 1, *(2**power for power in range(count.bit_length()) if 2**power < count)}
    return sorted(numbers | ({solved_at} if solved_at > 0 else set()))


def show_shares(showing: Showing) -> None:
    """Solved puzzles by the number of steps, up to twice those of an evaluation, and the energies along them."""
    usual = evaluation_steps(showing)
    walks = {}
    for kind in (IN_DISTRIBUTION, SHIFTED):
        rows = rows_of_kind(showing, kind, PUZZLES)
        if len(rows):
            walks[kind] = think(showing, rows, 2 * usual if usual > 1 else 1)
    if usual == 1:
        return  # the table of results has what there is to say
    steps = [step for step in next(iter(walks.values())).steps if step and (step & (step - 1)) == 0]
    showing.say(f"\nsolved by steps, {PUZZLES} puzzles of each kind; * is the number of steps that validation takes")
    names = [f"{step}{'*' if step == usual else ''}" for step in steps]
    showing.say(f"  {'steps':18}{''.join(f'{name:>8}' for name in names)}")
    for kind, walk in walks.items():
        shares = dict(zip(walk.steps, walk.solved.mean(axis=1), strict=True))
        showing.say(f"  {KINDS[kind]:18}{''.join(f'{shares[step]:8.0%}' for step in steps)}")
    if any(walk.energies is not None for walk in walks.values()):
        picture = showing.folder / "energy.png"
        write_atomically(picture, lambda file: draw_energies(walks, usual, file))
        showing.say(f"  energy along the walk, of solved and unsolved puzzles: {picture}")


def draw_energies(walks: dict[int, Walk], usual: int, file: object) -> None:
    """The energy by steps, of the puzzles that are solved in the end and of the others: mean and middle half."""
    plots = pyplot()
    figure, panels = plots.subplots(1, len(walks), figsize=(5 * len(walks), 4), squeeze=False)
    for panel, (kind, walk) in zip(panels[0], walks.items(), strict=True):
        assert walk.energies is not None
        solved = walk.solved[-1]
        mark_steps(panel, usual)
        for name, rows, colour in (("solved", solved, "C2"), ("not solved", ~solved, "C3")):
            if rows.any():
                energies = walk.energies[:, rows]
                low, high = np.percentile(energies, (25, 75), axis=1)
                panel.fill_between(walk.steps, low, high, color=colour, alpha=0.2, linewidth=0)
                label = f"{name}, {int(rows.sum())} puzzles"
                panel.plot(walk.steps, energies.mean(axis=1), color=colour, label=label)
        panel.set_title(KINDS[kind], loc="left", fontweight="bold")
        panel.set_xlabel("steps")
        panel.set_ylabel("energy (the model's own unit)")
        panel.grid(**FAINT)
        panel.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(file, dpi=110, format="png")
    plots.close(figure)


def show_boards(showing: Showing) -> None:
    """Draw the model's answers to a few fixed validation puzzles by now."""
    half = FIXED_PUZZLES // 2
    rows = [*rows_of_kind(showing, IN_DISTRIBUTION, half), *rows_of_kind(showing, SHIFTED, half)]
    walk = think(showing, rows, evaluation_steps(showing))

    def draw(file: IO[bytes]) -> None:
        plots = pyplot()
        figure, panels = plots.subplots(1, len(rows), figsize=(2.6 * len(rows), 3.2), squeeze=False)
        for number, panel in enumerate(panels[0]):
            board = walk.boards(number)[-1]
            wrong, kind = int(board.wrong.sum()), KINDS[int(walk.puzzles.kind[number])]
            draw_board(panel, board.named(f"{kind}: " + ("solved" if not wrong else f"{wrong} wrong")))
        steps = f" after {walk.steps[-1]} steps" if walk.steps[-1] > 1 else ""
        figure.suptitle(f"answers{steps}", x=0.01, ha="left", fontsize="medium", color=GREY)
        figure.tight_layout()
        figure.savefig(file, dpi=90, format="png")
        plots.close(figure)

    showing.save_picture("boards", draw)
