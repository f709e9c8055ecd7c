"""The twin of a run: its size, data, order of batches and seed with the model that its task compares with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from .record import flag_named, from_dict, is_used, plain_value, values_of
from .settings import RunConfig
from .task import TaskFacts, find_task

# A twin has its own name and rate: one that was tuned for another model would not be fair. It starts at step 0.
NOT_OF_TWIN = (
    *("model_name", "run_name", "peak_learning_rate", "config", "resume_training_ckpt", "is_random_seed"),
    *("goal", "early_stop", "match_flops"),
)
# Flags in steps or epochs, which grow with a twin that takes more steps.
STRETCHED = ("max_steps", "max_epochs", "warm_up_steps", "max_scheduling_steps")


class HasTwin(Protocol):
    """A task, or what task.json of a run says of it."""

    @property
    def models(self) -> Mapping[str, str]: ...

    @property
    def twin(self) -> Mapping[str, Any]: ...


def twin_title(task: HasTwin) -> str:
    """The twin's model as people call it: Transformer++."""
    name = task.twin.get("model_name")
    return "twin" if name is None else task.models[name]


def twin_slug(task: HasTwin, flops_ratio: float = 1.0) -> str:
    """The twin in the name of a run or a file: transformer++."""
    return twin_title(task).lower().replace(" ", "-") + ("" if flops_ratio == 1 else "-flops")


def twin_values(task: TaskFacts, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the task's twin: those that its model uses, too, and what makes it the twin."""
    twin = dict(task.twin)
    return {name: value for name, value in values.items() if is_used(flag_named(name, values), twin)} | twin


def twin_config(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """The twin of a run: its size, data, order of batches and seed, its own name and rate, with these changes."""
    values = {name: plain_value(value) for name, value in values_of(config).items() if name not in NOT_OF_TWIN}
    return from_dict(twin_values(find_task(config.run.task), values) | dict(changes))


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
