"""--plan: what a run will cost, without training it: parameters, FLOPs, memory, steps and time."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from statistics import fmean

import torch

from config import RunConfig
from core.text import format_amount, format_clock
from data.module import DataModule
from models.model import Batch, Model
from tasks import Task
from training.cost import costs_if_counted
from training.devices import device_of
from training.find import TRIAL_STEPS, step_seconds, training_batches, try_batch_size
from training.optimizers import build_optimizer
from training.trainer import batch_limit, validation_interval

TIMED_STEPS = 11  # the first is a warm-up
STATES = {"adamw": 2, "sgd": 1}  # float32 copies of a weight in the optimizer; adafactor has rows and columns only


def plan(task: Task, config: RunConfig, data: DataModule, model: Model) -> str:
    """Parameters, FLOPs, memory, units and steps of the run, one line each."""
    settings, train = config.trainer, data.rows["train"]
    rows, accumulate = settings.batch_size_per_device, settings.accumulate_grad_batches
    example = data.example(rows)
    units = train.units(example)
    costs = costs_if_counted(model, example).values()
    flops, activations = fmean_or_none(c.flops for c in costs), fmean_or_none(c.activation_bytes for c in costs)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    processes = settings.cpu_processes
    units_per_step = units * accumulate * processes
    per_epoch = max(1, data.batches_per_epoch() // processes)
    batches = min(settings.max_steps * accumulate, (settings.max_epochs or settings.max_steps * accumulate) * per_epoch)
    steps = -(-batches // accumulate)
    states = STATES.get(config.optimizer.optimizer, 0)
    groups = build_optimizer(model, config.optimizer, rows * accumulate * processes).param_groups
    epochs = f"{batches / per_epoch:.2f}"
    half = 2 if config.trainer.float_precision != "32" else 1
    lines = {
        "parameters": f"{parameters:,}  ("
        + ", ".join(f"{g['name']} {sum(p.numel() for p in g['params']):,}" for g in groups)
        + ")",
        f"FLOPs per {task.one_unit}": counted(flops, 1 / units) + "  (forward and backward)",
        "FLOPs per step": counted(flops, accumulate * processes),
        "FLOPs of the run": counted(flops, accumulate * processes * steps),
        "weights and gradients": format_amount(8 * parameters, "B", 1024),
        "optimizer": format_amount(4 * states * parameters, "B", 1024),
        "activations": counted(activations, 1 / half, "B", 1024)
        + f"  (estimate, {rows} {train.describe()} on each device)",
        f"{task.unit} per step": f"{units_per_step:,}",
        "steps": f"{steps:,}",
        "steps per epoch": f"{per_epoch / accumulate:,.4g}",
        f"{task.unit} to be seen": f"{units_per_step * steps:,}  ({epochs} epochs of {train.num_units:,})",
    }
    lines["time"] = wall_time(config, data, model, steps)
    width = max(map(len, lines))
    return "\n".join(f"{name:{width}}  {value}" for name, value in lines.items())


def fmean_or_none(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return fmean(numbers) if numbers else None


def counted(amount: float | None, factor: float, unit: str = "FLOP", base: int = 1000) -> str:
    """`factor` times an amount; None: it could not be counted."""
    return "not known" if amount is None else format_amount(amount * factor, unit, base)


def wall_time(config: RunConfig, data: DataModule, model: Model, steps: int) -> str:
    """How long the run takes on this machine: a few steps and a batch of validation are timed now."""
    rows, accumulate = config.trainer.batch_size_per_device, config.trainer.accumulate_grad_batches
    trial = try_batch_size(config, data, model, rows, steps=TIMED_STEPS)
    if trial.note:
        return f"not known: a step with {rows} rows {trial.note}"
    batches = steps * accumulate
    validation_batches = batches_of_validations(config, data, batches)
    training = trial.mean_seconds * batches
    validating = 0.0
    if validation_batches:
        validating = validation_batches * validation_seconds(config, data, model, rows)
    device = "GPU" if device_of(config).type == "cuda" else "CPU"
    alone = "" if config.trainer.cpu_processes == 1 else ", one process alone"
    return (
        f"about {format_clock(training + validating)}  (estimate: steps of {trial.mean_seconds * accumulate:.3g} s"
        f" timed just now on this {device}{alone}, and {format_clock(validating)} of validations)"
    )


def validation_seconds(config: RunConfig, data: DataModule, model: Model, batch_size: int) -> float:
    """How long a batch of a validation takes on average."""
    model = copy.deepcopy(model).to(device_of(config))

    @torch.no_grad()
    def validate(batch: Batch) -> None:
        model.validation_step({name: tensor.to(model.device) for name, tensor in batch.items()}, 0)

    return fmean(step_seconds(training_batches(data, batch_size, 1 + TRIAL_STEPS), validate))


def batches_of_validations(config: RunConfig, data: DataModule, batches: int) -> int:
    """Batches that all validations of the run read together: before the first step, now and then, and at the end."""
    settings = config.trainer
    rows_per_batch = settings.batch_size_per_device * settings.cpu_processes
    sample, full = (-(-len(rows) // rows_per_batch) for rows in (data.sample, data.rows["valid"]))
    bound = batch_limit(config.debugging.limit_val_batches)
    each = sample if bound is None else min(sample, bound) if isinstance(bound, int) else int(sample * bound)
    before = each if settings.val_sanity == -1 else min(each, settings.val_sanity)
    interval = validation_interval(config, max(1, data.batches_per_epoch() // settings.cpu_processes), batches)
    return before + each * -(-batches // interval) + (full if sample < full else 0)
