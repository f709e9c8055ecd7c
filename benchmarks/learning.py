"""How well models learn, with three seeds each: language (kinds of energy, Transformer++ beside them), then puzzles.

Every run is a `python train_model.py` of its own, on one thread, as many at a time as there are cores. Groups are
compared at equal steps; one at equal FLOPs takes as many more steps as its own are cheaper. Half an hour on two cores,
and a quarter more for the puzzles.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import torch

from benchmarks import puzzles
from benchmarks.measure import ROOT, Sheet
from config import parse_command_line
from config.settings import Transformer
from core.cpus import own_cpus
from core.progress import print_note
from data.language.build import TextSpec
from models.language import LanguageModel
from tasks.language import TASK
from training.cost import batch_costs

SEEDS, STEPS, VOCABULARY = (0, 1, 2), 1000, 258
PLAIN, EBT = "--model_name baseline_transformer", "--model_name ebt"
SCALAR = f"{EBT} --model_size 4xs --recipe laptop"


@dataclass(frozen=True)
class Arm:
    """A model and its flags. equal_flops: the arm of the group whose FLOPs it spends; None: it takes as many steps."""

    group: str
    name: str
    flags: str
    equal_flops: str | None = None


ARMS = (
    Arm("tiny, 4 x 96", "Transformer++", f"{PLAIN} --model_size tiny"),
    Arm("tiny, 4 x 96", "EBT, residual", f"{EBT} --model_size tiny"),
    Arm("tiny, 4 x 96", "Transformer++, equal FLOPs", f"{PLAIN} --model_size tiny", "EBT, residual"),
    Arm("tiny, 4 x 96", "Transformer++, 5 blocks", f"{PLAIN} --model_size tiny --num_transformer_blocks 5"),
    Arm("4xs, 2 x 128", "Transformer++", f"{PLAIN} --model_size 4xs"),
    Arm("4xs, 2 x 128", "EBT, residual", f"{EBT} --model_size 4xs"),
    Arm("4xs, 2 x 128", "Transformer++, 3 blocks", f"{PLAIN} --model_size 4xs --num_transformer_blocks 3"),
    Arm("4xs, scalar energy", "loss on the last step, full graph", SCALAR),
    Arm("4xs, scalar energy", "truncated", f"{SCALAR} --truncate_mcmc --no-mcmc_last_step_loss"),
    Arm(
        "4xs, scalar energy",
        "truncated, equal FLOPs",
        f"{SCALAR} --truncate_mcmc --no-mcmc_last_step_loss",
        "loss on the last step, full graph",
    ),
)


def run() -> list[Sheet]:
    return [language(), *puzzles.run()]


def language(arms: Sequence[Arm] = ARMS, seeds: Sequence[int] = SEEDS, steps: int = STEPS, more: str = "") -> Sheet:
    flops = {(arm.group, arm.name): step_flops(f"{arm.flags} {more}") for arm in arms}
    counts = {}
    for arm in arms:
        own, other = (flops[arm.group, name] for name in (arm.name, arm.equal_flops or arm.name))
        counts[arm] = round(steps * other / own)
    with tempfile.TemporaryDirectory() as logs, ThreadPoolExecutor(own_cpus()) as pool:
        jobs = {
            (arm, seed): pool.submit(train, f"{arm.flags} {more} --seed {seed} --max_steps {counts[arm]}", logs)
            for arm in arms
            for seed in seeds
        }
        losses: dict[Arm, list[float]] = {arm: [] for arm in arms}
        for number, ((arm, seed), job) in enumerate(jobs.items(), 1):
            losses[arm].append(job.result())
            print_note(f"learning {number}/{len(jobs)}: {arm.group}: {arm.name}, seed {seed}: {losses[arm][-1]:.4f}")
    rows = []
    for arm in arms:
        by_seed, total = losses[arm], counts[arm] * flops[arm.group, arm.name]
        spread = f"{stdev(by_seed):.4f}" if len(by_seed) > 1 else "-"
        each = " ".join(f"{loss:.4f}" for loss in by_seed)
        cells = (f"{parameters(f'{arm.flags} {more}'):,}", f"{counts[arm]:,}", f"{total / 1e12:.2f}")
        rows.append((arm.group, arm.name, *cells, f"{mean(by_seed):.4f}", spread, each))
    title = (
        f"validation loss in nats per byte of pydocs, {len(seeds)} seeds; spread is the standard deviation over seeds"
    )
    headings = ("shape", "arm", "parameters", "steps", "TFLOP", "loss", "spread", "by seed")
    return Sheet(title, headings, rows, frozenset({"shape", "arm", "by seed"}))


def model_of(flags: str) -> tuple[LanguageModel, int, int]:
    config = parse_command_line(flags.split())
    model = TASK.model(config, TextSpec(VOCABULARY, VOCABULARY - 2, VOCABULARY - 1))
    return model, config.trainer.batch_size_per_device, config[Transformer].context_length


def step_flops(flags: str) -> float:
    model, rows, length = model_of(flags)
    shapes = {"input_ids": torch.empty(rows, length + 1, dtype=torch.int64, device="meta")}
    return mean(cost.flops for cost in batch_costs(model, shapes).values())


def parameters(flags: str) -> int:
    return sum(parameter.numel() for parameter in model_of(flags)[0].parameters())


def train(flags: str, logs: str) -> float:
    """The validation loss at the end of a run."""
    name = f"learning-{abs(hash(flags))}"
    plain = f"--no_wandb --val_sanity 0 --val_check_interval 1.0 --checkpoint_every_n_steps 0 --run_name {name}"
    command = [sys.executable, "train_model.py", *plain.split(), "--logs_dir", logs, *flags.split()]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
    (metrics,) = Path(logs).glob(f"runs/{name}_*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [row["valid_loss"] for row in rows if "valid_loss" in row][-1]
