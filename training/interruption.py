"""A run that is asked to stop saves its state between two batches, on all processes together."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl

from runs.signals import GOES_ON, listener
from training.checkpoints import Checkpoints
from training.stop import StopRun


class Interrupted(StopRun):
    """The state is saved, and the same command goes on from it."""

    status = GOES_ON

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.cause = listener.cause


class Interruption(pl.Callback):
    """Saves and stops at the next batch after a signal."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """From here to the end of training a signal is only noted; Lightning's own handlers would stop or hang."""
        trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
        listener.training = stage == "fit"

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx % trainer.accumulate_grad_batches:  # gradients of an unfinished step are not in a checkpoint
            return
        asked = listener.asked is not None
        if trainer.world_size > 1:
            asked = trainer.strategy.reduce_boolean_decision(asked, all=False)
        if not asked:
            return
        if self.checkpoints.saved_step != trainer.global_step:
            self.checkpoints.save(trainer)
        raise Interrupted(
            f"{listener.why}; step {trainer.global_step} is saved, and the same command goes on from there."
        )

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        listener.training = False
