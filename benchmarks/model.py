"""The model: step time and how much of the machine's own matrix-product rate a training step reaches."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from benchmarks.measure import Measurement, best_seconds, seconds
from config import parse_command_line
from config.settings import Transformer
from data.language.build import TextSpec
from models.model import Batch, Model
from tasks.language import TASK
from training.cost import step_cost
from training.optimizers import build_optimizer

ROUNDS = 5


def run() -> list[Measurement]:
    """The default model and xs, both at context 256."""
    torch.set_flush_denormal(True)
    return [
        *utilisation("default model", [], 16),
        *utilisation("xs", ["--model_name", "baseline_transformer", "--model_size", "xs"], 16),
    ]


def train_step(model: Model, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    model.training_step(batch, 0).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def utilisation(name: str, flags: list[str], batch_size: int) -> list[Measurement]:
    """Steps and matrix products take turns, so that a busy moment hits both; the best of each counts."""
    config = parse_command_line([*flags, "--batch_size_per_device", str(batch_size)])
    length = config[Transformer].context_length
    model = TASK.model(config, TextSpec(258, 256, 257))
    optimizer = build_optimizer(model, config.optimizer, batch_size)
    batch = {"input_ids": torch.randint(0, 256, (batch_size, length + 1))}
    flops = step_cost(model, {"input_ids": batch["input_ids"].to("meta")}).flops
    square = torch.randn(2048, 2048)
    steps, products = [], []
    for _ in range(ROUNDS):
        steps.append(seconds(partial(train_step, model, optimizer, batch)))
        products.append(best_seconds(lambda: square @ square, 5))
    best, peak = min(steps), 2 * 2048**3 / min(products)
    size = f"{config.run.model_size}, {batch_size} rows of {length}"
    return [
        Measurement(f"step of {name}", best, "s", size),
        Measurement(f"rate of {name}", batch_size * length / best, "tokens/s", size),
        Measurement(f"FLOP/s of {name}", flops / best / 1e9, "GFLOP/s", f"{flops / 1e9:.1f} GFLOP a step"),
        Measurement("matrix products", peak / 1e9, "GFLOP/s", "float32, 2048 x 2048, in turns with the steps"),
        Measurement(f"utilisation of {name}", 100 * flops / best / peak, "%", "share of the matrix-product rate"),
    ]
