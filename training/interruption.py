"""A run that receives a signal saves its state between two batches, on all processes together, and stops."""

from __future__ import annotations

import os
import shlex
import signal
import time
from typing import Any

import pytorch_lightning as pl

from core.environment import JOB_RUN_DIR
from core.files import append_row, read_rows
from runs import RunFolder
from runs.process import EXIT_BY_HAND, EXIT_RESUMABLE, signals
from runs.slurm import shortest_grace_period
from training.checkpoints import Checkpoints
from training.errors import RunStopped
from training.lightning import any_process, disable_signal_handlers, is_accumulating

GRACE_FACTOR = 2  # a checkpoint fits into the grace period if that is so many times as long
SAVE_SECONDS = 300.0  # between checkpoints, at least, where it does not fit
SAVE_SHARE = 0.05  # of the time that these checkpoints may take


class Interrupted(RunStopped):
    """The state is saved and can be resumed."""

    def __init__(self, step: int, folder: RunFolder) -> None:
        by_hand = signals.received is signal.SIGINT
        if JOB_RUN_DIR in os.environ and not by_hand:  # Ctrl-C: nothing starts it again
            how = ", and the job resumes from there when it is queued again."
        else:
            saved = str(folder.checkpoints / "last.ckpt")
            how = f". Resume with:\n  python train_model.py --resume_training_ckpt {shlex.quote(saved)}"
        super().__init__(f"{signals.why}; step {step} is saved{how}")
        self.cause = signals.cause
        self.status = EXIT_BY_HAND if by_hand else EXIT_RESUMABLE


class InterruptionCallback(pl.Callback):
    """Saves and stops at the next batch after a signal; also saves by the clock where the grace period is too short.

    A signal during a validation stops it too: the next attempt begins with that validation.
    """

    def __init__(self, checkpoints: Checkpoints, folder: RunFolder, attempt: int) -> None:
        self.checkpoints = checkpoints
        self.folder = folder
        self.attempt = attempt
        self.grace_period: tuple[int, str] | None = None  # seconds, and before what: time limit or preemption
        self.recorded = 0.0  # seconds of a checkpoint as last written to attempts.jsonl
        self.save_seconds: float | None = None  # between checkpoints; set on the first process, which decides for all

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """From here to the end of training a signal is only recorded."""
        disable_signal_handlers(trainer)
        signals.training = stage == "fit"

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.checkpoints.saved_at = time.monotonic()
        if trainer.is_global_zero:
            self.grace_period = shortest_grace_period(self.folder.path)
            rows = read_rows(self.folder.attempts)
            earlier = [row["checkpoint_seconds"] for row in rows if isinstance(row.get("checkpoint_seconds"), float)]
            if earlier:
                self.save_by_clock_if_slow(max(earlier[-3:]))

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx % trainer.accumulate_grad_batches:  # gradients of an unfinished step are not in a checkpoint
            return
        self.record_duration(trainer)
        late = self.save_seconds is not None and time.monotonic() - self.checkpoints.saved_at > self.save_seconds
        if any_process(trainer, signals.received is not None or late):
            if self.checkpoints.saved_step != trainer.global_step:
                self.checkpoints.save(trainer)
            self.record_duration(trainer)
            if any_process(trainer, signals.received is not None):
                raise Interrupted(trainer.global_step, self.folder)

    def on_validation_batch_start(self, trainer: pl.Trainer, *rest: Any, **more: Any) -> None:
        # The last validation is not cut short: after the last step nothing would run it again.
        if not signals.training or trainer.sanity_checking or trainer.should_stop:
            return
        if is_accumulating(trainer) or not any_process(trainer, signals.received is not None):
            return
        if self.checkpoints.saved_step != trainer.global_step:
            self.checkpoints.save(trainer)
        self.record_duration(trainer)
        raise Interrupted(trainer.global_step, self.folder)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        signals.training = False
        self.record_duration(trainer)

    def record_duration(self, trainer: pl.Trainer) -> None:
        """Record how long a checkpoint takes: the first time, and when it takes much longer."""
        seconds = self.checkpoints.seconds
        if trainer.is_global_zero and seconds > 1.5 * self.recorded:
            self.recorded = seconds
            append_row(self.folder.attempts, {"attempt": self.attempt, "checkpoint_seconds": round(seconds, 3)})
            self.save_by_clock_if_slow(seconds)

    def save_by_clock_if_slow(self, taken: float) -> None:
        """Warn where a checkpoint does not fit into the grace period, and save by the clock from then on."""
        if self.grace_period is None or GRACE_FACTOR * taken <= self.grace_period[0]:
            return
        grace_seconds, event = self.grace_period
        is_first, self.save_seconds = self.save_seconds is None, max(SAVE_SECONDS, taken / SAVE_SHARE)
        if is_first:
            print(
                f"warning: a checkpoint took {taken:.0f} s, and between the warning of {event} and the end this job "
                f"has {grace_seconds} s: that may be too short to save in, so it also saves every "
                f"{self.save_seconds:.0f} s. Ask for more with sbatch "
                f"--signal=USR1@{4 * GRACE_FACTOR * round(taken + 1)}, or on a partition with a longer grace time.",
                flush=True,
            )
