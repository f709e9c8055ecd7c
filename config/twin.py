"""The twin of a run: its size, data, order of batches and seed with the model that its task compares with."""

from __future__ import annotations

import math

from config.record import twin_config, values_of
from config.settings import RunConfig
from config.task import TaskFacts, find_task

STRETCHED = ("max_steps", "max_epochs", "warm_up_steps", "max_scheduling_steps")


def twin_title(task: TaskFacts) -> str:
    """The twin's model as people call it: Transformer++."""
    name = task.twin.get("model_name")
    return "twin" if name is None else task.models[name]


def twin_slug(task: TaskFacts, flops_ratio: float = 1.0) -> str:
    """The twin in the name of a run or a file: transformer++."""
    return twin_title(task).lower().replace(" ", "-") + ("" if flops_ratio == 1 else "-flops")


def baseline_config(config: RunConfig, flops_ratio: float = 1.0) -> RunConfig:
    """The same run with the twin's model: its size, data, order of batches and seed, and the size's recommended rate.

    flops_ratio: how many times as many steps it takes; the schedule of the learning rate is stretched with them.
    """
    name = config.run.run_name.encode()[:180].decode(errors="ignore")[:80]
    changes = {"run_name": f"{name}-{twin_slug(find_task(config.run.task), flops_ratio)}"}
    values = values_of(config)
    if flops_ratio != 1:
        for flag in STRETCHED:
            if values[flag] is not None:
                stretched = values[flag] * flops_ratio
                changes[flag] = math.ceil(stretched) if flag == "max_epochs" else max(1, round(stretched))
    return twin_config(config, changes)
