"""Learning rate over time, as a factor on each group's own rate."""

from __future__ import annotations

import math
from collections.abc import Callable

from config.settings import Optimizer


def warm_up_steps(settings: Optimizer, total_steps: int) -> int:
    """Steps in which the rate rises."""
    end = settings.max_scheduling_steps or total_steps
    warm = end // 10 if settings.warm_up_steps is None else settings.warm_up_steps
    return max(warm, round(0.3 * end)) if settings.lr_schedule == "one_cycle" else warm


def schedule(settings: Optimizer, total_steps: int) -> Callable[[int], float]:
    """Step number to factor: a linear warm-up, then the chosen shape down to 1 / min_lr_scale.

    One factor serves every parameter group, so their rates keep their ratio at every step.
    """
    start, floor = 1 / settings.warm_up_base_lr_divider, 1 / settings.min_lr_scale
    end, warm = settings.max_scheduling_steps or total_steps, warm_up_steps(settings, total_steps)

    def factor(step: int) -> float:
        if step < warm:
            way = step / warm
            if settings.lr_schedule == "one_cycle":
                way = (1 - math.cos(math.pi * way)) / 2
            return start + (1 - start) * way
        way = min(1.0, (step - warm) / max(1, end - warm))
        if settings.lr_schedule == "constant":
            return 1.0
        if settings.lr_schedule == "linear":
            return 1 + (floor - 1) * way
        return floor + (1 - floor) * (1 + math.cos(math.pi * way)) / 2

    return factor
