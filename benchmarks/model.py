"""The model: step time and how much of the machine's own matrix-product rate a training step reaches."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from config import parse_command_line
from config.settings import Transformer
from data.language.build import TextSpec
from tasks.language import TASK
from training.cost import step_cost
from training.optimizers import build_optimizer

ROUNDS = 5


def run() -> list[dict[str, Any]]:
    """Rows of name, value, unit and note for the default model and for xs, both at context 256."""
    torch.set_flush_denormal(True)
    return [
        *utilisation("default model", [], 16),
        *utilisation("xs", ["--model_name", "baseline_transformer", "--model_size", "xs"], 16),
    ]


def utilisation(name: str, flags: list[str], batch_size: int) -> list[dict[str, Any]]:
    """Steps and matrix products take turns, so that a busy moment hits both; the best of each counts."""
    config = parse_command_line([*flags, "--batch_size_per_device", str(batch_size)])
    length = config[Transformer].context_length
    model = TASK.model(config, TextSpec(258, 256, 257))
    optimizer = build_optimizer(model, config.optimizer, batch_size)
    batch = {"input_ids": torch.randint(0, 256, (batch_size, length + 1))}
    flops = step_cost(model, {"input_ids": batch["input_ids"].to("meta")}).flops
    square = torch.randn(2048, 2048)

    def step() -> None:
        model.training_step(batch, 0).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    steps, products = [], []
    for _ in range(ROUNDS):
        steps.append(seconds(step))
        products.append(min(seconds(lambda: square @ square) for _ in range(5)))
    best, peak = min(steps), 2 * 2048**3 / min(products)
    size = f"{config.run.model_size}, {batch_size} rows of {length}"
    return [
        {"name": f"step of {name}", "value": best, "unit": "s", "note": size},
        {"name": f"rate of {name}", "value": batch_size * length / best, "unit": "tokens/s", "note": size},
        {
            "name": f"FLOP/s of {name}",
            "value": flops / best / 1e9,
            "unit": "GFLOP/s",
            "note": f"{flops / 1e9:.1f} GFLOP a step",
        },
        {
            "name": "matrix products",
            "value": peak / 1e9,
            "unit": "GFLOP/s",
            "note": "float32, 2048 x 2048, in turns with the steps",
        },
        {
            "name": f"utilisation of {name}",
            "value": 100 * flops / best / peak,
            "unit": "%",
            "note": "share of the matrix-product rate",
        },
    ]


def seconds(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
