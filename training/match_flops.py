"""--match_flops: as many steps, or blocks, as give a run the training FLOPs of another run, or a given number of them.

The steps are chosen, and where --max_steps is given too, the blocks. What is chosen becomes part of the run's settings,
so a resumed run and a repeated one take it from the record.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch

from config import RunConfig
from config.flags import NUMBER
from config.record import defaults_like, values_of
from core.errors import UserError
from core.text import format_amount, format_value
from data.module import DataModule
from runs.run import Run, all_runs, match_run, unknown_run
from tasks import Task
from training.cost import batch_costs
from training.devices import process_count

BLOCKS = "num_transformer_blocks"
LEAST_SHARE = 0.9  # of the FLOPs of one block, which the budget must have where blocks are chosen


class Budget(NamedTuple):
    """FLOPs of training, and whose they are in the line that is printed."""

    flops: float
    source: str


def match_flops(task: Task, config: RunConfig, data: DataModule, folder: Path | None = None) -> RunConfig:
    """The settings with the steps or blocks that --match_flops asks for, which `data` has from now on, too.

    folder: of the run itself, which cannot be the one that is meant by a name.
    """
    wanted = config.trainer.match_flops
    if wanted is None:
        return config
    budget = find_budget(wanted, Path(config.logging.logs_dir), folder)
    source = config.sources.get("max_steps", "default")
    if source.startswith("--"):
        print(f"--match_flops: not matched, since {source} sets --max_steps")
        return config
    values = values_of(config)
    is_default = values["max_steps"] == defaults_like(values)["max_steps"]
    typed = source == "command line" or (source == "file" and not is_default)
    matched = blocks_for if typed else steps_for
    config, text, flops = matched(budget, config, lambda one: step_flops(task, one, data))
    print(
        f"--match_flops: {text} for {format_amount(flops, 'FLOP')}, {difference(flops / budget.flops)} {budget.source}"
    )
    data.config = config
    return config


def find_budget(wanted: str, logs: Path, own: Path | None) -> Budget:
    """The FLOPs that a number or the name of a run stands for."""
    if NUMBER.fullmatch(wanted):
        return Budget(float(wanted), f"the {format_amount(float(wanted), 'FLOP')} asked for")
    if os.sep in wanted and (Path(wanted) / "config.json").is_file():
        return Budget(run_flops(Run(Path(wanted))), f"those of {Path(wanted).name}")
    runs = [run for run in all_runs(logs) if own is None or run.run_id != own.name]
    run = match_run(runs, wanted)
    if run is None:
        raise UserError(unknown_run(logs, wanted, runs).replace("RUN is", "--match_flops is", 1))
    return Budget(run_flops(run), f"those of {run.run_id}")


def run_flops(run: Run) -> float:
    """The training FLOPs of a run at its end; of one that is not finished, as many as its steps so far foretell."""
    rows = [row for row in run.last_metrics() if row.get("flops") and row.get("step")]
    if not rows:
        raise UserError(
            f"--match_flops is {format_value(run.run_id)}: it has recorded no FLOPs of training yet; wait for its "
            "first rows of metrics, or give a number such as 2.8e12."
        )
    flops, step = float(rows[-1]["flops"]), int(rows[-1]["step"])
    return flops if run.state == "finished" else flops * max(1.0, int(run.settings.get("max_steps") or 0) / step)


def step_flops(task: Task, config: RunConfig, data: DataModule) -> float:
    """FLOPs of an optimizer step on all processes: the mean where the number of steps of a walk, or of loops, is drawn.

    It changes no random number of the run.
    """
    with torch.random.fork_rng(devices=[]):
        model = task.model(config, data.spec)
        costs = batch_costs(model, data.example(config.trainer.batch_size_per_device))
    flops = fmean(cost.flops for cost in costs.values())
    return flops * config.trainer.accumulate_grad_batches * process_count(config)


Count = Callable[[RunConfig], float]


def steps_for(budget: Budget, config: RunConfig, count: Count) -> tuple[RunConfig, str, float]:
    """The settings with the number of steps nearest to the budget, what was chosen in words, and its FLOPs."""
    per_step = count(config)
    steps = round(budget.flops / per_step)
    if steps < 1:
        raise UserError(
            f"--match_flops is {format_value(config.trainer.match_flops)}: one step of this model takes "
            f"{format_amount(per_step, 'FLOP')}, more than {format_amount(budget.flops, 'FLOP')}; give a larger "
            "number, or a smaller model or batch."
        )
    warm_up = config.optimizer.warm_up_steps
    if warm_up is not None and warm_up > (config.optimizer.max_scheduling_steps or steps):
        raise UserError(
            f"--warm_up_steps is {warm_up}, over the {steps} steps that --match_flops "
            f"{format_value(config.trainer.match_flops)} gives: leave it out, or give at most {steps}."
        )
    return config.with_values({"max_steps": steps}), f"--max_steps {steps}", steps * per_step


def blocks_for(budget: Budget, config: RunConfig, count: Count) -> tuple[RunConfig, str, float]:
    """The same with the number of blocks; the steps are as given."""
    steps = config.trainer.max_steps
    if BLOCKS not in values_of(config):
        raise UserError(
            f"--match_flops and --max_steps are both given, and --task {config.run.task} has no --{BLOCKS} to choose: "
            "remove one of them."
        )
    one, two = (steps * count(config.with_values({BLOCKS: blocks})) for blocks in (1, 2))
    if budget.flops < LEAST_SHARE * one:
        raise UserError(
            f"--match_flops is {format_value(config.trainer.match_flops)}: with --max_steps {steps} and one block this "
            f"model takes {format_amount(one, 'FLOP')}, more than {format_amount(budget.flops, 'FLOP')}; give fewer "
            "steps, or leave --max_steps out."
        )
    blocks = max(1, round(1 + (budget.flops - one) / (two - one)))  # every block costs the same
    return config.with_values({BLOCKS: blocks}), f"--{BLOCKS} {blocks}", one + (blocks - 1) * (two - one)


def difference(ratio: float) -> str:
    """How near that is: "0.4% more than"."""
    if abs(ratio - 1) < 0.0005:
        return "as many as"
    return f"{abs(ratio - 1):.1%} {'more' if ratio > 1 else 'less'} than"
