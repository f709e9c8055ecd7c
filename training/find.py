"""--find_batch_size and --find_lr: try batch sizes and learning rates; they leave no run."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import psutil
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import nn

from config import RunConfig
from config.record import values_of
from core.progress import progress
from data.module import DataModule
from data.stream import row_order
from models.model import Batch, Model
from runs.pictures import FAINT, GREY, pyplot
from tasks import Task
from training.cost import costs_if_counted
from training.devices import device_of
from training.optimizers import build_optimizer
from training.usage import LARGEST_BATCH, USABLE

TRIAL_STEPS = 3
LONGEST_TRIAL = 20.0  # seconds after which no further step of a trial is taken
LR_STEPS = 100
LR_FROM, LR_TO = 1e-6, 1.0
RISE = 0.02  # of the whole fall: a loss so much over its lowest has begun to rise
SAFETY = 10  # a rate that holds for a whole run is so much below the one where the loss begins to rise


def training_batches(data: DataModule, batch_size: int, count: int) -> Iterator[Batch]:
    """`count` batches of shuffled training rows; more than there are begin again."""
    rows = data.rows["train"]
    order = row_order(len(rows), seed=0, epoch=0)
    for number in range(count):
        positions = (number * batch_size + np.arange(batch_size)) % len(rows)
        yield rows.__getitems__(order[positions].tolist())


def take_step(config: RunConfig, model: Model, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    """One training step as the trainer takes it; returns the loss."""
    device = next(model.parameters()).device
    dtype = {"bf16": torch.bfloat16, "16": torch.float16}.get(config.trainer.float_precision)
    with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
        loss = model.training_step({name: tensor.to(device) for name, tensor in batch.items()}, 0)
    loss.backward()
    if config.trainer.gradient_clip_val:
        nn.utils.clip_grad_norm_(model.parameters(), config.trainer.gradient_clip_val)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


@dataclass(frozen=True)
class Trial:
    """Measurements of one batch size; a note instead of numbers where it did not fit.

    seconds: of the fastest step. mean_seconds: longer than that on a machine with other work.
    """

    batch_size: int
    seconds: float = 0.0
    mean_seconds: float = 0.0
    units_per_second: float = 0.0
    memory: int = 0
    note: str = ""


def try_batch_size(
    config: RunConfig,
    data: DataModule,
    model: Model,
    batch_size: int,
    advance: Callable[[int], None] = lambda rows: None,
    steps: int = TRIAL_STEPS,
) -> Trial:
    """A few steps with this batch size, of which the first is a warm-up."""
    device, example = device_of(config), data.example(batch_size)
    activations = max((cost.activation_bytes for cost in costs_if_counted(model, example).values()), default=0)
    weights = 16 * sum(parameter.numel() for parameter in model.parameters())  # with gradients and AdamW's two states
    if device.type == "cpu" and weights + activations > memory_of(device):
        return Trial(batch_size, memory=activations, note="needs more memory than is free")
    model = copy.deepcopy(model).to(device)
    optimizer = build_optimizer(model, config.optimizer, batch_size)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    batches = training_batches(data, batch_size, steps)
    try:
        times = step_seconds(batches, partial(take_step, config, model, optimizer), partial(advance, batch_size))
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        return Trial(batch_size, memory=activations, note="out of memory")
    memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else activations
    return Trial(batch_size, min(times), fmean(times), data.rows["train"].units(example) / min(times), memory)


def step_seconds(
    batches: Iterable[Batch], step: Callable[[Batch], object], advance: Callable[[], None] = lambda: None
) -> list[float]:
    """Seconds of each step but the first, a warm-up; slow steps are not all taken. advance: called once a batch."""
    times: list[float] = []
    for batch in batches:
        if sum(times) < LONGEST_TRIAL:
            start = time.perf_counter()
            step(batch)
            times.append(time.perf_counter() - start)
        advance()
    return times[1:] or times


def memory_of(device: torch.device) -> float:
    """Bytes that a trial may use."""
    free = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else psutil.virtual_memory().available
    return USABLE * free


def rows_left(last: Trial, longest: float, memory: float) -> int:
    """Rows that will still be tried, if time and memory grow as the batch does."""
    rows, size = 0, last.batch_size
    while size < LARGEST_BATCH and last.seconds * size <= longest * last.batch_size:
        size *= 2
        if last.memory * size > memory * last.batch_size:
            break
        rows += TRIAL_STEPS * size
    return rows


def find_batch_size(task: Task, config: RunConfig, data: DataModule, model: Model, longest: float = 8.0) -> list[Trial]:
    """Double the batch until it does not fit (or a step takes `longest` seconds) and print a row for each size."""
    trials: list[Trial] = []
    size, rows = 1, 0
    with progress("Trying batch sizes", "rows") as advance:
        while size <= LARGEST_BATCH:
            trials.append(try_batch_size(config, data, model, size, advance))
            if trials[-1].note or trials[-1].seconds > longest:
                break
            rows += TRIAL_STEPS * size
            advance(0, rows + rows_left(trials[-1], longest, memory_of(device_of(config))))
            size *= 2
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("rows", "s per step", f"{task.unit}/s", "memory", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for trial in trials:
        speed = ("-", "-") if trial.note else (f"{trial.seconds:.3f}", f"{trial.units_per_second:,.0f}")
        table.add_row(str(trial.batch_size), *speed, f"{trial.memory / 2**30:.2f} GiB", trial.note)
    Console().print(table)
    fitting = [trial for trial in trials if not trial.note]
    if not fitting:
        print("not even one row fits: choose a smaller --model_size or shorter rows, or --gradient_checkpointing.")
        return trials
    best = max(trial.units_per_second for trial in fitting)
    smallest = next(trial for trial in fitting if trial.units_per_second >= 0.9 * best)
    rate = config.optimizer.peak_learning_rate
    current = config.trainer.batch_size_per_device
    largest = "largest that fits" if trials[-1].note else "largest tried"
    if trials[-1].seconds > longest:
        largest += " (a step got slow before memory ran out)"
    print(f"{largest}: {fitting[-1].batch_size}. Smallest within 10% of the best speed: {smallest.batch_size}.")
    print(
        f"The learning rate goes with it: --peak_learning_rate {rate:g} is for {current} rows per step; for AdamW\n"
        f"scale it by the square root of the change: {rate * (smallest.batch_size / current) ** 0.5:.2g} for "
        f"{smallest.batch_size} rows, "
        f"{rate * (fitting[-1].batch_size / current) ** 0.5:.2g} for {fitting[-1].batch_size}; --find_lr checks it."
    )
    return trials


def find_lr(task: Task, config: RunConfig, data: DataModule, model: Model, picture: Path) -> float:
    """Raise the learning rate from step to step until the loss diverges; plot it and suggest a rate below that."""
    model = copy.deepcopy(model).to(device_of(config))
    rows = config.trainer.batch_size_per_device
    model.calibrate({name: tensor.to(model.device) for name, tensor in next(training_batches(data, rows, 1)).items()})
    optimizer = build_optimizer(model, config.optimizer, rows, model.learning_rates())
    ratios = [group["lr"] / config.optimizer.peak_learning_rate for group in optimizer.param_groups]
    rates: list[float] = []
    losses: list[float] = []
    smooth: list[float] = []
    batches = training_batches(data, rows, LR_STEPS)
    with progress("Learning rate range test", "steps", LR_STEPS) as advance:
        for number, batch in enumerate(batches):
            rate = LR_FROM * (LR_TO / LR_FROM) ** (number / (LR_STEPS - 1))
            for group, ratio in zip(optimizer.param_groups, ratios, strict=True):
                group["lr"] = rate * ratio
            loss = take_step(config, model, optimizer, batch)
            rates.append(rate)
            losses.append(loss)
            smooth.append(loss if not smooth else 0.8 * smooth[-1] + 0.2 * loss)
            advance(1)
            if not loss < 2 * losses[0]:
                break
    rising, suggestion = suggest(rates, smooth)
    loss_measure = task.measures(values_of(config))[0]
    label = ", ".join(filter(None, (f"training {loss_measure.title}", loss_measure.unit)))
    draw_range_test(rates, losses, smooth, rising, suggestion, picture, label)
    print(f"--find_lr: the loss falls until a rate of about {rising:.1e}; a tenth of that holds for a whole run:")
    print(f"           try --peak_learning_rate {suggestion:.1g} (now {config.optimizer.peak_learning_rate:g});")
    print(f"           the curve is in {picture}")
    return suggestion


def suggest(rates: list[float], smooth: list[float]) -> tuple[float, float]:
    """The last rate before the smoothed loss rises and does not fall again, and the rate to train with.

    The steepest point is not used: the loss falls steepest early, at any rate, and training at that rate is slow.
    """
    lowest = min(smooth)
    near = lowest + RISE * (smooth[0] - lowest)
    rising = max((rate for rate, loss in zip(rates, smooth, strict=True) if loss <= near), default=rates[0])
    return rising, rising / SAFETY


def draw_range_test(
    rates: list[float],
    losses: list[float],
    smooth: list[float],
    rising: float,
    suggestion: float,
    picture: Path,
    label: str,
) -> None:
    plots = pyplot()
    figure, axes = plots.subplots(figsize=(7, 4))
    axes.semilogx(rates, losses, **FAINT, label="loss")
    axes.semilogx(rates, smooth, color="C0", label="smoothed")
    axes.axvline(rising, color=GREY, linestyle=":", label=f"begins to rise at {rising:.1e}")
    axes.axvline(suggestion, color="C1", linestyle="--", label=f"suggestion {suggestion:.1e}")
    axes.set_ylim(min(losses) - 0.1 * abs(losses[0]), losses[0] + 0.3 * abs(losses[0]))
    axes.set_xlabel("learning rate")
    axes.set_ylabel(label)
    axes.legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=120)
    plots.close(figure)
