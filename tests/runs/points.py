"""A task that no room knows: `--task tests.runs.points`. Its folders are made and read, nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from config.flags import flag
from config.task import Measure, TaskFacts


@dataclass(frozen=True)
class Points:
    """the corners and the noise"""

    num_modes: int = flag(3, "corners of the polygon", low=2, decides="data")
    noise_level: float = flag(0.3, "standard deviation of the noise", above=0)


class PointsTask(TaskFacts):
    name = "tests.runs.points"
    unit = "points"
    models: ClassVar = {"ebt": "energy model"}
    groups = (Points,)
    defaults: ClassVar = {
        "dataset_name": "corners",
        "checkpoint_monitor_string": "valid_score",
        "checkpoint_monitor_mode": "max",
    }

    def measures(self, values: Mapping[str, Any]) -> tuple[Measure, ...]:
        return (
            Measure("score", "score", "share of points", "higher"),
            Measure("near", "near its corner", "share of points", "higher"),
            Measure("rmse/*", "error of *", "mm", "lower", scale=1.0),
            Measure("noise", "level of the noise", "mm", split=False),
        )


TASK = PointsTask()
