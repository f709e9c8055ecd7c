"""What is trained and on how much hardware, in the run folder: model.json for programs, model.txt for people."""

from __future__ import annotations

from pathlib import Path

import pytorch_lightning as pl
from torch import nn

from core.files import write_json, write_text
from runs import is_first_process

DEPTH = 3  # levels of modules that model.txt names


def record_model(folder: Path, model: pl.LightningModule, trainer: pl.Trainer) -> None:
    if not is_first_process():
        return
    parameters = list(model.parameters())
    sizes = {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "trainable_parameters": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        "bytes": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        "accelerator": type(trainer.accelerator).__name__.removesuffix("Accelerator").lower(),
        "devices_per_node": trainer.num_devices,
        "nodes": trainer.num_nodes,
        "processes": trainer.world_size,
        "precision": str(trainer.precision),
    }
    write_json(folder / "model.json", sizes)
    write_text(folder / "model.txt", module_table(model))


def module_table(model: nn.Module) -> str:
    """A line a module: name, kind, parameters; those without parameters are left out."""
    rows = [("module", "kind", "parameters"), ("(all)", type(model).__name__, size_of(model))]
    for name, module in model.named_modules():
        if name and name.count(".") < DEPTH and any(True for _ in module.parameters()):
            rows.append((name, type(module).__name__, size_of(module)))
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "".join(f"{name:{first}}  {kind:{second}}  {size:>15}\n" for name, kind, size in rows)


def size_of(module: nn.Module) -> str:
    return f"{sum(parameter.numel() for parameter in module.parameters()):,}"
