"""What a run has measured so far, in as little memory after a month as after an hour."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

RECENT = 128  # rows that are kept as they are
MOST_POINTS = 512  # of the whole run: beyond that, neighbours are merged
MOST_VALIDATIONS = 256
SMOOTH = 10  # rows whose mean is taken for the loss


class Point(NamedTuple):
    """A row of training metrics. best_loss: after the descent step that does best; loss itself where there is none."""

    step: int
    loss: float
    best_loss: float
    norm: float
    clipped: float
    rate: float


class Validation(NamedTuple):
    """A validation. train: the mean training loss of the rows before it."""

    step: int
    loss: float
    accuracy: float
    spread: float
    train: float


@dataclass
class History:
    """What a run has measured so far, in bounded memory."""

    recent: deque[Point] = field(default_factory=lambda: deque(maxlen=RECENT))
    whole: list[Point] = field(default_factory=list)  # each the mean of `merged` rows
    merged: int = 1
    pending: list[Point] = field(default_factory=list)
    validations: list[Validation] = field(default_factory=list)
    lowest: tuple[float, int] = (math.inf, 0)  # smoothed loss after the warm-up, and its step

    def add(self, row: dict[str, Any], warm_up_steps: int) -> None:
        """Take in a row of metrics.jsonl."""
        if "train_loss" in row:
            steps = [value for name, value in row.items() if name.startswith("train_loss_step_")]
            point = Point(
                *(row["step"], row["train_loss"], min([row["train_loss"], *steps])),
                *(row.get("gradient_norm", 0.0), row.get("clipped_share", 0.0)),
                row.get("learning_rate", row.get("learning_rate/decay", 1.0)),  # its name in older runs
            )
            self.recent.append(point)
            self.pending.append(point)
            if len(self.pending) == self.merged:
                self.whole.append(mean_point(self.pending))
                self.pending = []
            if len(self.whole) == MOST_POINTS:
                self.whole = [mean_point(self.whole[place : place + 2]) for place in range(0, MOST_POINTS, 2)]
                self.merged *= 2
            if len(self.recent) >= SMOOTH and self.recent[-SMOOTH].step >= warm_up_steps:
                self.lowest = min(self.lowest, (self.level, point.step))
        # A second one at a step is the whole split's at the end, and no change of the sample's.
        if "valid_loss" in row and row["step"] > (self.validations[-1].step if self.validations else 0):
            train = self.level if self.recent else math.nan
            measured = (row.get("valid_accuracy", math.nan), row.get("valid_spread", math.nan), train)
            self.validations.append(Validation(row["step"], row["valid_loss"], *measured))
            if len(self.validations) > MOST_VALIDATIONS:
                del self.validations[1]

    @property
    def level(self) -> float:
        """The training loss now, without its noise."""
        losses = [self.recent[place].loss for place in range(-min(SMOOTH, len(self.recent)), 0)]
        return math.fsum(losses) / len(losses)

    def since(self, step: int) -> list[Point]:
        """The recent rows from `step` on."""
        return [point for point in self.recent if point.step >= step]

    def state(self) -> dict[str, Any]:
        return {
            "recent": [tuple(point) for point in self.recent],
            "whole": [tuple(point) for point in self.whole],
            "pending": [tuple(point) for point in self.pending],
            "validations": [tuple(one) for one in self.validations],
            "merged": self.merged,
            "lowest": self.lowest,
        }

    @classmethod
    def of(cls, state: dict[str, Any]) -> History:
        return cls(
            deque((Point(*values) for values in state["recent"]), maxlen=RECENT),
            [Point(*values) for values in state["whole"]],
            state["merged"],
            [Point(*values) for values in state["pending"]],
            [Validation(*values) for values in state["validations"]],
            (state["lowest"][0], state["lowest"][1]),
        )


def mean_point(points: Sequence[Point]) -> Point:
    """Where several rows stand for one: the last one's step, and the means of the rest."""
    means = np.mean([point[1:] for point in points], axis=0).tolist()
    return Point(points[-1].step, *means)
