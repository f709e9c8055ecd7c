"""Parameter groups, the optimizer over them and its learning rate schedule."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from config.settings import Optimizer

MAIN_GROUPS = ("decay", "no_decay")  # their rate is the learning rate itself, without a multiplier
OLD_NAME = re.compile(r"x[\d.e+-]+")  # of the step size's group in older checkpoints, such as x1500


def parameter_groups(
    model: nn.Module, learning_rate: float, weight_decay: float, multipliers: dict[str, float] | None = None
) -> list[dict[str, Any]]:
    """Every trainable parameter in exactly one group: matrices decay; norms, biases and scalars do not.

    multipliers: of the learning rate, by the name of a parameter or of a module that has it; the longest name counts.
    """
    multipliers = multipliers or {}
    groups: dict[tuple[str, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decays = parameter.ndim >= 2
        label = longest_prefix(name, multipliers) or ("decay" if decays else "no_decay")
        rate, decay = learning_rate * multipliers.get(label, 1.0), weight_decay if decays else 0.0
        group = groups.setdefault((label, decay), {"name": label, "lr": rate, "weight_decay": decay, "params": []})
        group["params"].append(parameter)
    return list(groups.values())


def longest_prefix(name: str, prefixes: Iterable[str]) -> str | None:
    """The longest of these names of parameters and modules that is this parameter's, or that of a module around it."""
    return max((prefix for prefix in prefixes if f"{name}.".startswith(f"{prefix}.")), key=len, default=None)


def learning_rates(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The present rates, by names that are the same in every run: learning_rate, learning_rate/step_size."""
    rates = {}
    for group in optimizer.param_groups:
        name = "step_size" if OLD_NAME.fullmatch(group["name"]) else group["name"]
        rates["learning_rate" if name in MAIN_GROUPS else f"learning_rate/{name}"] = group["lr"]
    return dict(sorted(rates.items()))


def learning_rate(settings: Optimizer, rows_per_step: int) -> float:
    return settings.peak_learning_rate * (rows_per_step / 256 if settings.lr_scaling_rule else 1)


def build_optimizer(
    model: nn.Module, settings: Optimizer, rows_per_step: int, multipliers: dict[str, float] | None = None
) -> torch.optim.Optimizer:
    groups = parameter_groups(model, learning_rate(settings, rows_per_step), settings.weight_decay, multipliers)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, betas=(settings.beta1, settings.beta2), fused=True)
    if settings.optimizer == "adafactor":
        return torch.optim.Adafactor(groups)
    return torch.optim.SGD(groups, momentum=0.9, fused=True)


def optimizer_and_schedule(
    model: nn.Module,
    settings: Optimizer,
    rows_per_step: int,
    total_steps: int,
    multipliers: dict[str, float] | None = None,
) -> dict[str, Any]:
    """What Lightning's configure_optimizers returns."""
    optimizer = build_optimizer(model, settings, rows_per_step, multipliers)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(settings, total_steps))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


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
            progress = step / warm
            if settings.lr_schedule == "one_cycle":
                progress = (1 - math.cos(math.pi * progress)) / 2
            return start + (1 - start) * progress
        progress = min(1.0, (step - warm) / max(1, end - warm))
        if settings.lr_schedule == "constant":
            return 1.0
        if settings.lr_schedule == "linear":
            return 1 + (floor - 1) * progress
        return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2

    return factor
