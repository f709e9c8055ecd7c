"""`--plan`: what a run will cost and see, before it costs anything."""

from __future__ import annotations

from config import RunConfig
from core.progress import clock
from data import DataModule
from models import LanguageModel
from training.cost import step_cost
from training.find import device_of, try_batch_size, validation_seconds
from training.optimizers import build_optimizer
from training.trainer import limit, validation_interval

TIMED_STEPS = 11  # the first is a warm-up
STATES = {"adamw": 2, "sgd": 1}  # float32 copies of a weight that the optimizer keeps; adafactor keeps rows and columns


def amount(value: float, unit: str, base: int = 1000) -> str:
    """1234567, "FLOP" -> 1.23 MFLOP"""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(value) < base or prefix == "P":
            break
        value /= base
    return f"{value:,.3g} {prefix}{unit}" if value < base or prefix else f"{value:,.0f} {unit}"


def plan(config: RunConfig, data: DataModule, model: LanguageModel) -> str:
    """Parameters, FLOPs, memory, tokens and steps of the run, one line each."""
    settings, length = config.trainer, config.architecture.context_length
    rows, accumulate = settings.batch_size_per_device, settings.accumulate_grad_batches
    cost = step_cost(model, rows, length)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    processes = settings.cpu_processes
    tokens_per_step = rows * length * accumulate * processes
    per_epoch = max(1, data.batches_per_epoch() // processes)
    batches = min(settings.max_steps * accumulate, (settings.max_epochs or settings.max_steps * accumulate) * per_epoch)
    steps = -(-batches // accumulate)
    states = STATES.get(config.optimizer.optimizer, 0)
    groups = build_optimizer(model, config.optimizer, rows * accumulate * processes).param_groups
    half = 2 if config.trainer.float_precision != "32" else 1
    learnable = data.rows["train"].num_targets
    lines = {
        "parameters": f"{parameters:,}  ("
        + ", ".join(f"{g['name']} {sum(p.numel() for p in g['params']):,}" for g in groups)
        + ")",
        "FLOPs per token": amount(cost.flops / (rows * length), "FLOP") + "  (forward and backward)",
        "FLOPs per step": amount(cost.flops * accumulate * processes, "FLOP"),
        "FLOPs of the run": amount(cost.flops * accumulate * processes * steps, "FLOP"),
        "weights and gradients": amount(8 * parameters, "B", 1024),
        "optimizer": amount(4 * states * parameters, "B", 1024),
        "activations": amount(cost.activation_bytes / half, "B", 1024)
        + f"  (estimate, {rows} rows of {length} on each device)",
        "tokens per step": f"{tokens_per_step:,}",
        "steps": f"{steps:,}",
        "steps per epoch": f"{per_epoch / accumulate:,.4g}",
        "tokens to be seen": f"{tokens_per_step * steps:,}  ({batches / per_epoch:.2f} epochs of {learnable:,})",
    }
    lines["time"] = wall_time(config, data, model, steps)
    width = max(map(len, lines))
    return "\n".join(f"{name:{width}}  {value}" for name, value in lines.items())


def wall_time(config: RunConfig, data: DataModule, model: LanguageModel, steps: int) -> str:
    """How long the run takes on this machine, from a few steps and a batch of validation that are timed now."""
    rows, accumulate = config.trainer.batch_size_per_device, config.trainer.accumulate_grad_batches
    trial = try_batch_size(config, data, model, rows, steps=TIMED_STEPS)
    if trial.note:
        return f"not known: a step with {rows} rows {trial.note}"
    batches = steps * accumulate
    looks = batches_of_validations(config, data, batches)
    training = trial.usual * batches
    validating = looks * validation_seconds(config, data, model, rows) if looks else 0.0
    where = "GPU" if device_of(config).type == "cuda" else "CPU"
    alone = "" if config.trainer.cpu_processes == 1 else ", one process alone"
    return (
        f"about {clock(training + validating)}  (estimate: steps of {trial.usual * accumulate:.3g} s timed just now"
        f" on this {where}{alone}, and {clock(validating)} of validations)"
    )


def batches_of_validations(config: RunConfig, data: DataModule, batches: int) -> int:
    """Batches that all validations of the run read together: before the first step, now and then, and at the end."""
    settings = config.trainer
    at_once = settings.batch_size_per_device * settings.cpu_processes
    sample, whole = (-(-len(rows) // at_once) for rows in (data.sample, data.rows["valid"]))
    bound = limit(config.debugging.limit_val_batches)
    each = sample if bound is None else min(sample, bound) if isinstance(bound, int) else int(sample * bound)
    before = each if settings.val_sanity == -1 else min(each, settings.val_sanity)
    interval = validation_interval(config, max(1, data.batches_per_epoch() // settings.cpu_processes), batches)
    return before + each * -(-batches // interval) + (whole if sample < whole else 0)
