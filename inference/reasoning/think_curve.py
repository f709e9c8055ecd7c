"""`python -m inference think-curve` for puzzles: the share solved by steps, candidates and compute, beside rivals."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from config.settings import Inference
from config.task import SPLITS
from core.files import write_atomically, write_text
from core.progress import progress
from data.reasoning.puzzle import KINDS, PuzzleSet
from inference.intervals import Interval, bootstrap, interval
from inference.loading import ModelFlags, output_folder
from inference.reasoning.puzzle_runs import PuzzleRun, find_rivals, kinds_in, load_puzzle_run, sample_puzzles
from inference.reasoning.think_curve_report import draw, report
from inference.reasoning.thoughts import (
    Thinking,
    ThinkingCost,
    measure_thinking,
    parse_candidates,
    sparse_steps,
    thinking_cost,
)
from inference.think_curve import print_lines
from tasks.reasoning_commands import ThinkCurveFlags

CSV_HEADER = (
    *("kind", "run", "model", "stopped", "steps", "candidates", "flops_per_puzzle"),
    *("solved", "low", "high", "puzzles"),
)
AFTER_STEPS, WHEN_IT_STAYS = "after its steps", "when it stays"


@dataclass(frozen=True)
class Point:
    """One way of thinking. stopped: after a number of steps, or when the energy stays; steps: their mean.

    column: of its share in Shares. mean_steps: by kind of puzzle, where they differ.
    """

    stopped: str
    steps: float
    candidates: int
    cost: ThinkingCost
    column: int
    mean_steps: Mapping[int, float] = field(default_factory=dict)

    def steps_of(self, kind: int | None) -> float:
        """The mean over puzzles of a kind; None is all."""
        return self.steps if kind is None else self.mean_steps.get(kind, self.steps)

    def flops_of(self, kind: int | None) -> float:
        """The mean over puzzles of a kind; None is all."""
        return self.cost.flops(self.steps_of(kind), self.candidates, with_end=self.stopped == WHEN_IT_STAYS)


@dataclass(frozen=True)
class ModelCurve:
    """The points of one run."""

    run: PuzzleRun
    points: list[Point]

    def point(self, steps: int, candidates: int = 1) -> Point:
        wanted = (AFTER_STEPS, steps, candidates)
        return next(each for each in self.points if (each.stopped, each.steps, each.candidates) == wanted)

    @property
    def last(self) -> int:
        """The most steps that it took."""
        return int(max(point.steps for point in self.points))

    @property
    def sparse(self) -> list[Point]:
        """A few numbers of steps with one candidate, that of an evaluation among them."""
        return [self.point(steps) for steps in sparse_steps(self.last, self.run.evaluation_steps)]

    @property
    def every_step(self) -> list[Point]:
        """All numbers of steps with one candidate."""
        return [self.point(steps) for steps in range(1, self.last + 1)]

    @property
    def candidate_counts(self) -> list[int]:
        return sorted({point.candidates for point in self.points})

    @property
    def selection_steps(self) -> list[int]:
        """The numbers of steps whose candidates a table shows."""
        return sorted({min(self.run.evaluation_steps, self.last), self.last})

    @property
    def stays(self) -> list[Point]:
        return [point for point in self.points if point.stopped == WHEN_IT_STAYS]


@dataclass(frozen=True)
class Shares:
    """The share of puzzles of one kind that each point solves. means: [K]; samples: of the bootstrap, paired, [S, K]"""

    kind: int
    rows: int
    means: np.ndarray
    samples: np.ndarray

    @property
    def name(self) -> str:
        return KINDS[self.kind]

    def share(self, point: Point) -> Interval:
        return interval(self.means[point.column], self.samples[:, point.column])

    def gain(self, of: Point, over: Point, comparisons: int = 1) -> Interval:
        """How much more one point solves than another."""
        samples = self.samples[:, of.column] - self.samples[:, over.column]
        return interval(self.means[of.column] - self.means[over.column], samples, comparisons)

    def best(self, points: Sequence[Point]) -> Point:
        """The point that solves most; of equal ones the cheapest."""
        return max(points, key=lambda point: (self.means[point.column], -point.flops_of(self.kind)))


@dataclass(frozen=True)
class ThinkCurveResult:
    """curves: the run's own first, then its rivals'. note: about runs that are missing."""

    curves: list[ModelCurve]
    shares: list[Shares]
    puzzles: str
    stop_change: float
    note: str = ""


def main(model: ModelFlags, command: ThinkCurveFlags, inference: Inference) -> int:
    candidates = parse_candidates(command.candidates)
    run = load_puzzle_run(model)
    rivals, note = find_rivals(run, model, command.compare)
    folder = output_folder(run.loaded, inference)
    puzzles = sample_puzzles(run, command.split, command.rows)
    counts = [candidates if each.has_energy else [1] for each in (run, *rivals)]
    total = sum(
        -(-len(puzzles.given) // command.batch_size) * numbers[-1] * (command.steps if each.thinks else 1)
        for each, numbers in zip((run, *rivals), counts, strict=True)
    )
    curves: list[ModelCurve] = []
    solved: list[np.ndarray] = []  # of each column, [R]
    with progress("Thinking", "steps", total) as advance:
        for each, numbers in zip((run, *rivals), counts, strict=True):
            curves.append(
                measure_curve(
                    each, puzzles, command.steps, numbers, command.stop_change, model.seed, command.batch_size,
                    advance, solved,
                )
            )  # fmt: skip
    what = f"{run.puzzle.spec.dataset}, {SPLITS[command.split]} split"
    shares = [shares_of(kind, puzzles, np.stack(solved, 1)) for kind in kinds_in(puzzles)]
    result = ThinkCurveResult(curves, shares, what, command.stop_change, note)
    about = f"{run.name}, training step {run.loaded.step:,}"
    write_text(folder / "think_curve.csv", csv_text(result))
    write_atomically(folder / "think_curve.png", lambda file: draw(result, about, file))
    print_lines(*report(result, about))
    print(f"drawn in {folder / 'think_curve.png'}, numbers in {folder / 'think_curve.csv'}")
    return 0


def measure_curve(
    run: PuzzleRun,
    puzzles: PuzzleSet,
    steps: int,
    candidates: Sequence[int],
    stop_change: float,
    seed: int,
    batch_size: int,
    advance: Callable[[int], object],
    solved: list[np.ndarray],
) -> ModelCurve:
    """Think, and add what each point solves to `solved`."""
    thinking = measure_thinking(run, puzzles, steps, candidates[-1], seed, batch_size, advance)
    return curve_of(run, thinking, thinking_cost(run, puzzles), candidates, stop_change, puzzles.kind, solved)


def curve_of(
    run: PuzzleRun,
    thinking: Thinking,
    cost: ThinkingCost,
    candidates: Sequence[int],
    stop_change: float,
    kind: np.ndarray,
    solved: list[np.ndarray],
) -> ModelCurve:
    """The points of what a run thought; what they solve is added to `solved`, a column each."""
    points: list[Point] = []

    def add(
        column: np.ndarray, stopped: str, steps: float, number: int, means: Mapping[int, float] | None = None
    ) -> None:
        points.append(Point(stopped, steps, number, cost, len(solved), means or {}))
        solved.append(column)

    for number in candidates:
        best = thinking.best_of(number)
        for step in range(1, thinking.steps + 1):
            add(best[:, step], AFTER_STEPS, step, number)
    if run.thinks and thinking.steps > 1:
        taken = thinking.steps_until_it_stays(stop_change)
        column = thinking.solved[0, np.arange(len(taken)), taken]
        means = {int(each): float(taken[kind == each].mean()) for each in np.unique(kind)}
        add(column, WHEN_IT_STAYS, float(taken.mean()), 1, means)
    return ModelCurve(run, points)


def shares_of(kind: int, puzzles: PuzzleSet, solved: np.ndarray) -> Shares:
    """solved: bool [rows, columns], of all kinds."""
    of_kind = solved[puzzles.kind == kind].astype(float)
    return Shares(kind, len(of_kind), of_kind.mean(0), bootstrap(of_kind[None], np.ones(len(of_kind))))


def csv_text(result: ThinkCurveResult) -> str:
    """A row for each kind and point."""
    file = io.StringIO()
    writer = csv.DictWriter(file, CSV_HEADER, lineterminator="\n")
    writer.writeheader()
    for shares in result.shares:
        for curve in result.curves:
            for point in curve.points:
                share = shares.share(point)
                row: dict[str, Any] = {
                    "kind": shares.name,
                    "run": curve.run.name,
                    "model": curve.run.title,
                    "stopped": point.stopped,
                    "steps": f"{point.steps_of(shares.kind):.6g}",
                    "candidates": point.candidates,
                    "flops_per_puzzle": round(point.flops_of(shares.kind)),
                    "puzzles": shares.rows,
                }
                numbers = zip(("solved", "low", "high"), share, strict=True)
                writer.writerow(row | {name: f"{value:.6f}" for name, value in numbers})
    return file.getvalue()
