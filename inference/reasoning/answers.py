"""Right and wrong answers of puzzles, and what models think of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from data.reasoning.puzzle import SEVERAL, Puzzle, PuzzleSet
from inference.intervals import Interval, bootstrap, interval
from inference.reasoning.puzzle_runs import PuzzleRun, blank_cells, on_device
from inference.reasoning.thoughts import Thinking, measure_thinking
from inference.verification import auroc
from tasks.reasoning_commands import VerifyFlags

ONE_CELL, SEVERAL_CELLS, OWN, OTHER_PUZZLE = "one cell changed", "several cells changed", "its own wrong", "of another"
SORTS = (ONE_CELL, SEVERAL_CELLS, OWN, OTHER_PUZZLE)
SORT_TEXTS = {
    ONE_CELL: "one cell changed",
    SEVERAL_CELLS: "several cells changed",
    OWN: "the model's own wrong answers, on its way or at its end",
    OTHER_PUZZLE: "an answer of another puzzle, with the clues of this one",
}
CHANGED = (2, 6)  # cells of SEVERAL_CELLS: from, to
VALID = 4  # right answers of a puzzle at most
TRIES = 4  # draws for each wrong answer wanted, since one that happens to be right does not count
STAYS = 1e-6  # of the energy's fall: a change below it is neither up nor down


Answers = list[np.ndarray]  # of each puzzle, an int array with a row for each answer


@dataclass
class Within:
    """Scores of answers to the same puzzle. right: by row; wrong: by sort, then row. Higher is believed more."""

    right: list[np.ndarray]
    wrong: dict[str, list[np.ndarray]]

    def aurocs(self, sort: str) -> np.ndarray:
        """The AUROC of each puzzle, [R]; nan where it has no such answer."""
        return np.array([auroc(right, wrong) for right, wrong in zip(self.right, self.wrong[sort], strict=True)])

    def all_aurocs(self) -> np.ndarray:
        """The same for all sorts together."""
        wrong = [np.concatenate(parts) for parts in zip(*self.wrong.values(), strict=True)]
        return np.array([auroc(right, other) for right, other in zip(self.right, wrong, strict=True)])


@dataclass(frozen=True)
class Across:
    """What a run believes of its own last answers. scores: by name, [R]; higher is believed more. solved: bool [R]"""

    solved: np.ndarray
    scores: dict[str, np.ndarray]


@dataclass(frozen=True)
class Verification:
    """One run. falls: shares of the steps by which the energy falls, stays and rises, None without an energy.

    energies: of all walks [R, T + 1], None without.
    """

    run: PuzzleRun
    steps: int
    within: Within
    across: Across
    falls: tuple[float, float, float] | None
    energies: np.ndarray | None


@dataclass(frozen=True)
class VerifyResult:
    """runs: the run itself, then those it is compared with."""

    runs: list[Verification]
    kind: np.ndarray
    puzzles: str
    note: str = ""
    kinds: list[int] = field(default_factory=list)

    def rows_of(self, kind: int | None) -> np.ndarray:
        """Rows of a kind, bool [R]; None is all."""
        return np.ones(len(self.kind), bool) if kind is None else self.kind == kind


def steps_of(run: PuzzleRun, steps: int | None) -> int:
    return (steps or run.evaluation_steps) if run.thinks else 1


def right_answers(puzzle: Puzzle, puzzles: PuzzleSet) -> Answers:
    """Valid answers of each puzzle: the stored one, and others where it has several."""
    answers = []
    for row in range(len(puzzles)):
        stored = puzzles.answer[row : row + 1].astype(np.int64)
        valid = stored[puzzle.solved(puzzles.rows([row]), stored)]
        if puzzles.kind[row] == SEVERAL:
            others = puzzle.answers(puzzles, row, VALID)
            valid = np.unique(np.concatenate([valid, *(other[None] for other in others)]), axis=0)[:VALID]
        answers.append(valid)
    return answers


def made_answers(puzzle: Puzzle, puzzles: PuzzleSet, right: Answers, count: int, seed: int) -> dict[str, Answers]:
    """Wrong answers that every model is shown: changed ones, and those of other puzzles. All break a rule."""
    rng = np.random.default_rng(seed)
    blanks, symbols = blank_cells(puzzles), len(puzzle.spec.symbols)
    made: dict[str, Answers] = {ONE_CELL: [], SEVERAL_CELLS: [], OTHER_PUZZLE: []}
    for row in range(len(puzzles)):
        cells = np.flatnonzero(blanks[row])
        tries: dict[str, list[np.ndarray]] = {sort: [] for sort in made}
        for number in rng.integers(CHANGED[0], CHANGED[1] + 1, TRIES * count if len(right[row]) else 0):
            for sort, changed in ((ONE_CELL, 1), (SEVERAL_CELLS, int(number))):
                if len(cells) >= changed:
                    chosen = rng.choice(cells, changed, replace=False)
                    tries[sort].append(with_changes(right[row][0], chosen, symbols, rng))
            other = int(rng.integers(len(puzzles)))
            if len(right[other]) and (puzzles.real[other] == puzzles.real[row]).all():
                given = puzzles.given[row]
                tries[OTHER_PUZZLE].append(np.where(given >= 0, given, right[other][0]).astype(np.int64))
        for sort, answers in tries.items():
            made[sort].append(wrong_ones(puzzle, puzzles, row, answers, count))
    return made


def with_changes(answer: np.ndarray, cells: np.ndarray, symbols: int, rng: np.random.Generator) -> np.ndarray:
    """The answer with another symbol in each of these cells."""
    changed = answer.copy()
    changed[cells] = (changed[cells] + rng.integers(1, symbols, len(cells))) % symbols
    return changed


def wrong_ones(puzzle: Puzzle, puzzles: PuzzleSet, row: int, answers: list[np.ndarray], count: int) -> np.ndarray:
    """Those of the answers that break a rule, each once and at most so many, a row each."""
    if not answers:
        return np.zeros((0, puzzles.given.shape[1]), np.int64)
    _, first = np.unique(np.stack(answers), axis=0, return_index=True)
    different = np.stack(answers)[np.sort(first)]
    return np.asarray(different[~puzzle.solved(puzzles.rows([row] * len(different)), different)][:count])


def verify_run(
    run: PuzzleRun,
    puzzles: PuzzleSet,
    right: Answers,
    made: dict[str, Answers],
    command: VerifyFlags,
    seed: int,
    advance: Callable[[int], object],
) -> Verification:
    """Let a run think on the puzzles, and score all answers with it."""
    steps = steps_of(run, command.steps)
    own: list[list[np.ndarray]] = [[] for _ in range(len(puzzles))]

    def observe(rows: np.ndarray, _: int, step: int, answers: np.ndarray) -> None:
        for row, answer in zip(rows.tolist(), answers, strict=True):
            own[row].append(answer)

    thinking = measure_thinking(run, puzzles, steps, 1, seed, command.batch_size, advance, observe)
    # the last ones first: they are the model's most considered mistakes
    wrong = made | {
        OWN: [wrong_ones(run.puzzle, puzzles, row, each[::-1], command.answers) for row, each in enumerate(own)]
    }
    within = Within(
        score_answers(run, puzzles, right, command.batch_size),
        {sort: score_answers(run, puzzles, wrong[sort], command.batch_size) for sort in SORTS},
    )
    energies = None if thinking.energy is None else thinking.energy[0]
    falls = None if energies is None else shares_of_falls(energies)
    return Verification(run, steps, within, across_puzzles(run, puzzles, thinking, command), falls, energies)


def across_puzzles(run: PuzzleRun, puzzles: PuzzleSet, thinking: Thinking, command: VerifyFlags) -> Across:
    """The scores of the last answers."""
    confidence = thinking.confidence[0, :, -1]
    scores = {}
    if thinking.energy is not None:
        energy = thinking.energy[0, :, -1]
        energy = np.where(np.isfinite(energy), energy, np.inf)
        scores["energy"] = -energy
        scores["energy per blank cell"] = -energy / np.maximum(1, blank_cells(puzzles).sum(1))
    else:
        answers = [answer[None] for answer in thinking.answer[0]]
        scores["log p of its answer"] = np.concatenate(score_answers(run, puzzles, answers, command.batch_size))
    scores["softmax confidence"] = np.where(np.isfinite(confidence), confidence, -np.inf)
    return Across(thinking.solved[0, :, -1], scores)


@torch.no_grad()
def score_answers(run: PuzzleRun, puzzles: PuzzleSet, answers: Answers, batch_size: int) -> list[np.ndarray]:
    """answer_scores of each puzzle's answers, one array a puzzle.

    Without an energy a puzzle is thought about once for all its answers: they are not part of what the model sees.
    """
    scores: list[np.ndarray] = [np.zeros(0)] * len(puzzles)
    rows = np.repeat(np.arange(len(puzzles)), [len(each) for each in answers])
    if not len(rows):
        return scores
    flat = np.concatenate(answers)
    values = np.zeros(len(rows))
    if run.has_energy:
        for start in range(0, len(rows), 4 * batch_size):  # one pass without a gradient: more fit than in a walk
            part = slice(start, start + 4 * batch_size)
            batch = on_device(run, puzzles.batch(rows[part]))
            with run.loaded.autocast():
                score = run.model.answer_scores(batch, torch.from_numpy(flat[part]).to(run.model.device))
            values[part] = score.float().cpu()
    else:
        for start in range(0, len(puzzles), batch_size):
            indices = np.arange(start, min(start + batch_size, len(puzzles)))
            log_p_BNV = log_probabilities(run, on_device(run, puzzles.batch(indices)))
            (chosen,) = np.nonzero((rows >= indices[0]) & (rows <= indices[-1]))
            log_p = log_p_BNV[torch.from_numpy(rows[chosen] - start)]
            blank = torch.from_numpy(blank_cells(puzzles.rows(rows[chosen])))
            of_answer = log_p.gather(-1, torch.from_numpy(flat[chosen]).clamp(min=0)[..., None]).squeeze(-1)
            values[chosen] = of_answer.where(blank, 0).sum(-1)
    ends = np.cumsum([len(each) for each in answers])
    return np.split(values, ends[:-1])


def log_probabilities(run: PuzzleRun, batch: dict[str, Tensor]) -> Tensor:
    """After the passes of an evaluation, [B, N, V] on the CPU."""
    with run.loaded.autocast():
        *_, thought = run.model.think(batch, run.evaluation_steps)
    log_p: Tensor = thought.logits.float().log_softmax(-1).cpu()
    return log_p


def shares_of_falls(energies: np.ndarray) -> tuple[float, float, float]:
    """Shares of all steps of all walks, [R, T + 1], by which the energy falls, stays and rises."""
    change = np.diff(energies, axis=1)
    scale = STAYS * np.abs(energies.max(1) - energies.min(1))[:, None]
    falls, rises = (change < -scale).mean(), (change > scale).mean()
    return float(falls), float(1 - falls - rises), float(rises)


def within_interval(aurocs: np.ndarray, rows: np.ndarray) -> tuple[Interval, int]:
    """The mean AUROC of the puzzles of these rows (bool [R]) that have one, and how many those are."""
    values = aurocs[rows]
    values = values[np.isfinite(values)]
    if not len(values):
        return Interval(np.nan, np.nan, np.nan), 0
    return interval(values.mean(), bootstrap(values[None, :, None], np.ones(len(values)))[:, 0]), len(values)
