"""What a think-curve found: losses at points of steps and candidates, with what they cost and how sure they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inference.flops import ThinkingCost
from inference.intervals import Interval, interval
from inference.loading import Loaded
from inference.texts import Text

Point = tuple[int, int]  # steps, candidates


@dataclass(frozen=True)
class Baseline:
    """A Transformer++ to compare with. loaded: None where there is no trained one; why: what to say then."""

    loaded: Loaded | None
    flops: float
    why: str = ""

    @property
    def name(self) -> str:
        assert self.loaded is not None
        return self.loaded.folder.run_id if self.loaded.folder else self.loaded.checkpoint.name


@dataclass(frozen=True)
class Curve:
    """What was found on one text, in nats per token.

    columns: where each point stands. by_seed: [seeds, K] mean losses; samples: [samples, K] of the bootstrap, paired.
    baseline: column of the Transformer++, if there is one.
    """

    text: Text
    columns: dict[Point, int]
    by_seed: np.ndarray
    samples: np.ndarray
    baseline: int | None

    @property
    def means(self) -> np.ndarray:
        return self.by_seed.mean(0)

    def loss(self, column: int) -> Interval:
        return interval(self.means[column], self.samples[:, column])

    def gain(self, of: int, over: int, comparisons: int = 1) -> Interval:
        """How much less the loss of one column is than that of another."""
        with np.errstate(invalid="ignore"):
            return interval(self.means[over] - self.means[of], self.samples[:, over] - self.samples[:, of], comparisons)

    def best(self, points: list[Point]) -> Point:
        losses = [self.means[self.columns[point]] for point in points]
        return points[int(np.argmin(np.where(np.isfinite(losses), losses, np.inf)))]


@dataclass(frozen=True)
class Study:
    """All that is drawn and told. trained: steps of an evaluation; drawn: fewest and most steps in training."""

    curves: list[Curve]
    cost: ThinkingCost
    baseline: Baseline
    trained: int
    drawn: tuple[int, int]
    steps: int
    candidates: int
    seeds: list[int]
    choice: str

    @property
    def walk(self) -> list[Point]:
        return [(step, 1) for step in range(1, self.steps + 1)]

    def choices(self, steps: int) -> list[Point]:
        return [(steps, candidate) for candidate in range(1, self.candidates + 1)]

    @property
    def chosen_after(self) -> list[int]:
        """The numbers of steps after which candidates are chosen among."""
        return sorted({self.trained, self.steps}) if self.candidates > 1 else []

    def ratio(self, point: Point) -> float:
        """FLOPs of a point in those of a Transformer++."""
        return self.cost.flops(*point) / self.baseline.flops
