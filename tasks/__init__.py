"""What can be learned: one module per task, which says all that the other rooms have to know of it.

A module here imports no torch; what needs it is imported inside the methods. `find_task` gives the TASK of a module.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from config import RunConfig
from config import task as facts
from core.errors import UserError


class Task(facts.TaskFacts):
    """The facts of a task, and what needs torch: its data, its model, and what they are compared with."""

    def data(self, config: RunConfig) -> Any:
        """Splits, spec and processor."""
        raise NotImplementedError

    def model(self, config: RunConfig, spec: Any) -> Any:
        """The model of --model_name, built from frozen facts alone."""
        raise NotImplementedError

    def processor(self, config: RunConfig, folder: Path) -> Any:
        """What turns raw input into a batch and a prediction into what a person reads; from a run folder alone."""
        raise NotImplementedError

    def references(self, data: Any, split: str, units: int) -> dict[str, dict[str, float]]:
        """{"bigram counts": {"loss": 2.27}} on the same targets; the first is what a model must beat."""
        return {}

    def shifted(self, data: Any) -> Any:
        """Rows of another distribution, to think about; None where there are none."""
        return None

    def show(self, showing: Any) -> None:
        """Print and draw what the model does."""


def find_task(name: str) -> Task:
    """The task of a run, ready to build its data and its model."""
    task = facts.find_task(name)
    if not isinstance(task, Task):
        raise UserError(f"--task is {name!r}: its TASK has no data and no model; make it a tasks.Task.")
    return task
