"""The Transformer++ twin of a run: the same size, data, order of batches and seed, to compare an EBT with."""

from __future__ import annotations

import math

from config.record import twin_config, values_of
from config.settings import RunConfig

STRETCHED = ("max_steps", "max_epochs", "warm_up_steps", "max_scheduling_steps")


def baseline_config(config: RunConfig, flops_ratio: float = 1.0) -> RunConfig:
    """The same run with a Transformer++: its size, data, order of batches and seed, and the size's recommended rate.

    flops_ratio: how many times as many steps it takes; the schedule of the learning rate is stretched with them.
    """
    name = config.run.run_name.encode()[:180].decode(errors="ignore")[:80]
    changes = {"run_name": f"{name}-{'transformer++' if flops_ratio == 1 else 'transformer++-flops'}"}
    values = values_of(config)
    if flops_ratio != 1:
        for flag in STRETCHED:
            if values[flag] is not None:
                stretched = values[flag] * flops_ratio
                changes[flag] = math.ceil(stretched) if flag == "max_epochs" else max(1, round(stretched))
    return twin_config(config, changes)
