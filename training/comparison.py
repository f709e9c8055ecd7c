"""--compare_baseline: the Transformer++ of the same size beside the EBT, for as many steps and for as many FLOPs."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from pytorch_lightning.plugins.environments import LightningEnvironment
from rich import box
from rich.console import Console
from rich.table import Table

from config import RunConfig
from config.flags import FLAGS
from config.record import from_dict, to_dict, to_yaml
from core.files import read_rows, write_text
from data import DataModule
from models import build_model
from runs import RunFolder
from training.cost import batch_costs
from training.plan import amount
from training.trainer import Training

DOOR = Path(__file__).resolve().parent.parent / "train_model.py"
BASELINE = "baseline_transformer"
# Its own: a rate found for another model would not be honest, and it begins anew under a name of its own.
OWN = (
    *("model_name", "run_name", "peak_learning_rate", "config", "resume_training_ckpt", "is_random_seed"),
    *("goal", "early_stop"),
)
STRETCHED = (
    *(("trainer", "max_steps"), ("trainer", "max_epochs")),
    *(("optimizer", "warm_up_steps"), ("optimizer", "max_scheduling_steps")),
)
NEARLY_EQUAL = 0.05
EQUAL_STEPS, EQUAL_FLOPS = "Transformer++, equal steps", "Transformer++, equal FLOPs"
# What tells a process that it belongs to this run.
THIS_RUN = (
    *("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("EBT_RUN_DIR", "EBT_JOB_RUN_DIR", "EBT_LINEAGE"),
)


def twin_of(config: RunConfig, flops_ratio: float = 1.0) -> RunConfig:
    """The same run with a Transformer++: its size, data, order of batches and seed, and the size's recommended rate.

    flops_ratio: how many times as many steps it takes; the schedule of the learning rate is stretched with them.
    """
    tree = to_dict(config)
    for name, flag in FLAGS.items():
        if name in OWN or BASELINE not in flag.needs.get("model_name", (BASELINE,)):
            del tree[flag.group][name]
    name = config.run.run_name.encode()[:180].decode(errors="ignore")[:80]
    suffix = "transformer++" if flops_ratio == 1 else "transformer++-flops"
    tree["run"] |= {"model_name": BASELINE, "run_name": f"{name}-{suffix}"}
    if flops_ratio != 1:
        for group, flag_name in STRETCHED:
            if tree[group][flag_name] is not None:
                stretched = tree[group][flag_name] * flops_ratio
                tree[group][flag_name] = math.ceil(stretched) if flag_name == "max_epochs" else max(1, round(stretched))
    return from_dict(tree)


def compare_with_baseline(config: RunConfig, folder: RunFolder, data: DataModule, training: Training) -> None:
    """Train the twins in processes of their own and print all; what goes wrong there does not fail this run."""
    try:
        twin = twin_of(config)
        (_, own), (_, plain) = (size_and_flops(each, data) for each in (config, twin))
        ratio = own / plain
        twins = {EQUAL_STEPS: twin}
        if abs(ratio - 1) > NEARLY_EQUAL:
            twins[EQUAL_FLOPS] = twin_of(config, ratio)
        runs = {config.run.model_name: (config, folder)}
        for name, each in twins.items():
            other = train_twin(name, each, folder, training)
            if other is None:
                return
            runs[name] = (each, other)
        print_comparison(runs, data, training, ratio)
    except KeyboardInterrupt:
        print("--compare_baseline: stopped by hand; the run before it is finished and kept", file=sys.stderr)
    except Exception as error:
        print(f"--compare_baseline: no comparison: {type(error).__name__}: {error}", file=sys.stderr)


def train_twin(name: str, twin: RunConfig, folder: RunFolder, training: Training) -> RunFolder | None:
    """The folder of the twin's run; None where there is none, with a line that says why."""
    settings = folder.path / ("transformer++.yaml" if name == EQUAL_STEPS else "transformer++-flops.yaml")
    write_text(settings, to_yaml(twin))
    trainer = training.trainer
    environment = getattr(trainer.strategy, "cluster_environment", None)
    if trainer.world_size > 1 and not isinstance(environment, LightningEnvironment):
        print(f"--compare_baseline: train it as a job of its own: python train_model.py --config {settings}")
        return None
    print(f"\n--compare_baseline: {name}, {twin.trainer.max_steps:,} steps: {twin.run.run_name}\n")
    sys.stdout.flush()
    torch.cuda.empty_cache()
    command = [sys.executable, str(DOOR), "--config", str(settings)]
    own = {name: value for name, value in os.environ.items() if name not in THIS_RUN}
    status = subprocess.run(command, env=own).returncode
    other = RunFolder.newest(twin.logging.logs_dir, twin.run.run_name, may_begin=True)
    if status or other is None:
        print(f"--compare_baseline: the Transformer++ ended with status {status}: no comparison", file=sys.stderr)
        return None
    return other


def print_comparison(
    runs: dict[str, tuple[RunConfig, RunFolder]], data: DataModule, training: Training, ratio: float
) -> None:
    title = "valid split, nats per token and bits per byte"
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, title=title, title_justify="left")
    for heading in ("", "parameters", "steps", "tokens", "FLOP", "seconds", "nats", "bits"):
        # of 80 columns a name takes two lines rather than a digit of the numbers
        table.add_column(heading, justify="right" if heading else "left", no_wrap=bool(heading))
    for name, (config, folder) in runs.items():
        parameters, per_step = size_and_flops(config, data)
        flops = per_step * config.trainer.accumulate_grad_batches * training.trainer.world_size
        row = final_row(folder)
        table.add_row(
            *(name, f"{parameters:,}", f"{row['step']:,}", f"{row['tokens']:,}", amount(row["step"] * flops, "")),
            *(f"{row['seconds']:,.0f}", f"{row['valid_loss']:.4f}", f"{row['valid_bits_per_byte']:.4f}"),
        )
    print()
    Console().print(table)
    print(
        f"A step of the EBT takes {ratio:.1f} times the FLOPs of one of the Transformer++, on the same text. With equal"
    )
    print("FLOPs the Transformer++ takes so many more steps. Seconds are of training, without validation.")


def final_row(folder: RunFolder) -> dict[str, Any]:
    """The newest value of everything that a run wrote down."""
    merged: dict[str, Any] = {"valid_loss": math.nan, "valid_bits_per_byte": math.nan}
    for row in read_rows(folder.metrics):
        merged |= row
    return merged


def size_and_flops(config: RunConfig, data: DataModule) -> tuple[int, float]:
    """Parameters of the model, and FLOPs of a batch: their mean where the number of its steps is drawn."""
    words = data.tokenizer
    model = build_model(config, words.vocab_size, words.separator_id, words.pad_id)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    costs = batch_costs(model, config.trainer.batch_size_per_device, config.architecture.context_length)
    return parameters, mean(cost.flops for cost in costs.values())
