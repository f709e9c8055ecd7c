"""Callbacks that flags add to find a fault: anomaly detection, unused parameters, garbage collection at fixed steps."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from training.errors import RunDiverged


def save_batch(folder: Path, step: int, batch: Any, rank: int = 0) -> Path:
    """Save the batch of a step for a person to look at, into the run folder."""
    path = folder / f"batch_of_step_{step:08d}{f'_rank_{rank}' if rank else ''}.pt"
    torch.save(batch, path)
    return path


class Anomaly(pl.Callback):
    """Names the first module whose output, or first parameter whose gradient, is not finite (--detect_anomaly)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.batch: Any = None
        self.step = 1
        self.handles: list[Any] = []

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for name, module in pl_module.named_modules():
            if not any(module.children()):
                self.handles.append(module.register_forward_hook(self.forward_hook(name)))
        for name, parameter in pl_module.named_parameters():
            if parameter.requires_grad:
                self.handles.append(parameter.register_post_accumulate_grad_hook(self.gradient_hook(name)))

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.batch, self.step = batch, trainer.global_step + 1

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def forward_hook(self, name: str) -> Any:
        def check(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, Tensor) and output.is_floating_point() and not bool(output.isfinite().all()):
                tensors = [x for x in inputs if isinstance(x, Tensor) and x.is_floating_point()]
                clean = all(bool(x.isfinite().all()) for x in tensors)
                bad = [n for n, p in module.named_parameters() if not bool(p.isfinite().all())]
                why = (
                    f"its parameter {bad[0]} is not finite"
                    if bad
                    else f"its inputs were {'' if clean else 'not '}finite"
                )
                self.stop(f"the output of {name} ({type(module).__name__}) is not finite; {why}")

        return check

    def gradient_hook(self, name: str) -> Any:
        def check(parameter: Tensor) -> None:
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
                self.stop(f"the gradient of {name} is not finite")

        return check

    def stop(self, what: str) -> None:
        path = save_batch(self.folder, self.step, self.batch)
        raise RunDiverged(f"--detect_anomaly: at step {self.step}, {what}.\n  its batch: {path}")


class UnusedParameters(pl.Callback):
    """Lists parameters that got no gradient from the first batch (--debug_unused_parameters)."""

    def __init__(self) -> None:
        self.is_done = False

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.is_done:
            return
        self.is_done = True
        unused = [n for n, p in pl_module.named_parameters() if p.requires_grad and p.grad is None]
        if not unused:
            print("--debug_unused_parameters: every trainable parameter got a gradient.")
            return
        print(f"--debug_unused_parameters: {len(unused)} trainable parameter(s) got no gradient:")
        for name in unused:
            print(f"  {name}")
        print(
            "  They never learn, weigh down the optimizer and the checkpoint, and make DDP wait for a gradient that\n"
            "  never comes: use them in the loss, freeze or delete them, or pass --find_unused_parameters."
        )


class GarbageCollection(pl.Callback):
    """Collects garbage at fixed steps only, so that all processes pause together."""

    def __init__(self, every: int) -> None:
        self.every = every

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        gc.disable()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % self.every == 0:
            gc.collect()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        gc.enable()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        gc.enable()
