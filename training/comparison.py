"""--compare_baseline: the Transformer++ of the same size, trained on the same batches, beside the EBT."""

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
from data import DataModule
from models import build_model
from runs import RunFolder
from runs.files import read_rows, write_text
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
# What tells a process that it belongs to this run.
THIS_RUN = (
    *("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("EBT_RUN_DIR", "EBT_JOB_RUN_DIR", "EBT_LINEAGE"),
)


def twin_of(config: RunConfig) -> RunConfig:
    """The same run with a Transformer++: its size, data, batches, steps and seed, and the size's recommended rate."""
    tree = to_dict(config)
    for name, flag in FLAGS.items():
        if name in OWN or BASELINE not in flag.needs.get("model_name", (BASELINE,)):
            del tree[flag.group][name]
    name = config.run.run_name.encode()[:180].decode(errors="ignore")[:80]
    tree["run"] |= {"model_name": BASELINE, "run_name": f"{name}-transformer++"}
    return from_dict(tree)


def compare_with_baseline(config: RunConfig, folder: RunFolder, data: DataModule, training: Training) -> None:
    """Train the twin in a process of its own and print both; what goes wrong there does not fail this run."""
    try:
        twin = twin_of(config)
        settings = folder.path / "transformer++.yaml"
        write_text(settings, to_yaml(twin))
        trainer = training.trainer
        environment = getattr(trainer.strategy, "cluster_environment", None)
        if trainer.world_size > 1 and not isinstance(environment, LightningEnvironment):
            print(f"--compare_baseline: train it as a job of its own: python train_model.py --config {settings}")
            return
        print(f"\n--compare_baseline: the Transformer++ of this size, on the same batches: {twin.run.run_name}\n")
        sys.stdout.flush()
        torch.cuda.empty_cache()
        command = [sys.executable, str(DOOR), "--config", str(settings)]
        own = {name: value for name, value in os.environ.items() if name not in THIS_RUN}
        status = subprocess.run(command, env=own).returncode
        other = RunFolder.newest(twin.logging.logs_dir, twin.run.run_name)
        if status or other is None:
            print(f"--compare_baseline: the Transformer++ ended with status {status}: no comparison", file=sys.stderr)
            return
        print_comparison({config.run.model_name: (config, folder), "Transformer++": (twin, other)}, data, training)
    except KeyboardInterrupt:
        print("--compare_baseline: stopped by hand; the run before it is finished and kept", file=sys.stderr)
    except Exception as error:
        print(f"--compare_baseline: no comparison: {type(error).__name__}: {error}", file=sys.stderr)


def print_comparison(runs: dict[str, tuple[RunConfig, RunFolder]], data: DataModule, training: Training) -> None:
    title = "valid split, nats per token and bits per byte"
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, title=title, title_justify="left")
    for heading in ("", "parameters", "steps", "tokens", "FLOP", "seconds", "nats", "bits"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    flops = []
    for name, (config, folder) in runs.items():
        parameters, per_step = size_and_flops(config, data)
        flops.append(per_step * config.trainer.accumulate_grad_batches * training.trainer.world_size)
        row = final_row(folder)
        table.add_row(
            *(name, f"{parameters:,}", f"{row['step']:,}", f"{row['tokens']:,}", amount(row["step"] * flops[-1], "")),
            *(f"{row['seconds']:,.0f}", f"{row['valid_loss']:.4f}", f"{row['valid_bits_per_byte']:.4f}"),
        )
    print()
    Console().print(table)
    print(
        f"Both saw the same text, but a step of the EBT takes {flops[0] / flops[1]:.1f} times the FLOPs of one of the"
    )
    print("Transformer++. Seconds are of training, without validation.")


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
