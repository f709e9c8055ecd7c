"""A run that is asked to stop saves its state between two batches, on all processes together."""

from __future__ import annotations

import os
import shlex
import signal
import time
from typing import Any

import pytorch_lightning as pl

from core.files import append_row, read_rows
from runs import RunFolder
from runs.folder import JOB_RUN_DIR
from runs.notice import shortest
from runs.signals import BY_HAND, GOES_ON, listener
from training.checkpoints import Checkpoints
from training.stop import StopRun

MARGIN = 2  # times what a checkpoint takes has to fit into the notice that a job gets
CLOCK = 300.0  # seconds between checkpoints where it does not
SHARE = 0.05  # of the time that checkpoints by the clock may take


class Interrupted(StopRun):
    """The state is saved, and can be gone on from."""

    def __init__(self, step: int, folder: RunFolder) -> None:
        by_hand = listener.asked is signal.SIGINT
        if JOB_RUN_DIR in os.environ and not by_hand:  # what a person stopped nobody starts again
            how = ", and the job goes on from there when it is queued again."
        else:
            saved = str(folder.checkpoints / "last.ckpt")
            how = f". Go on with:\n  python train_model.py --resume_training_ckpt {shlex.quote(saved)}"
        super().__init__(f"{listener.why}; step {step} is saved{how}")
        self.cause = listener.cause
        self.status = BY_HAND if by_hand else GOES_ON


class Interruption(pl.Callback):
    """Saves and stops at the next batch after a signal; saves by the clock where a signal may come too late for that.

    A batch of a validation is such a batch too: the attempt after it begins with that validation.
    """

    def __init__(self, checkpoints: Checkpoints, folder: RunFolder, attempt: int) -> None:
        self.checkpoints = checkpoints
        self.folder = folder
        self.attempt = attempt
        self.notice: tuple[int, str] | None = None
        self.noted = 0.0  # seconds of a checkpoint that attempts.jsonl has
        self.every: float | None = None  # seconds between checkpoints; the first process's decides

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """From here to the end of training a signal is only noted; Lightning's own handlers would stop or hang."""
        trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
        listener.training = stage == "fit"

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.checkpoints.saved_at = time.monotonic()
        if trainer.is_global_zero:
            self.notice = shortest(self.folder.path)
            rows = read_rows(self.folder.attempts)
            earlier = [row["checkpoint_seconds"] for row in rows if isinstance(row.get("checkpoint_seconds"), float)]
            if earlier:
                self.judge(max(earlier[-3:]))

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx % trainer.accumulate_grad_batches:  # gradients of an unfinished step are not in a checkpoint
            return
        self.note_duration(trainer)
        late = self.every is not None and time.monotonic() - self.checkpoints.saved_at > self.every
        if self.agreed(trainer, listener.asked is not None or late):
            if self.checkpoints.saved_step != trainer.global_step:
                self.checkpoints.save(trainer)
            self.note_duration(trainer)
            if self.agreed(trainer, listener.asked is not None):
                raise Interrupted(trainer.global_step, self.folder)

    def on_validation_batch_start(self, trainer: pl.Trainer, *rest: Any, **more: Any) -> None:
        # The last validation is not cut short: where all is trained, nothing would run it again.
        if not listener.training or trainer.sanity_checking or trainer.should_stop:
            return
        if trainer.fit_loop._should_accumulate() or not self.agreed(trainer, listener.asked is not None):
            return
        if self.checkpoints.saved_step != trainer.global_step:
            self.checkpoints.save(trainer)
        self.note_duration(trainer)
        raise Interrupted(trainer.global_step, self.folder)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        listener.training = False
        self.note_duration(trainer)

    @staticmethod
    def agreed(trainer: pl.Trainer, wanted: bool) -> bool:
        """Whether any process wants it."""
        return trainer.strategy.reduce_boolean_decision(wanted, all=False) if trainer.world_size > 1 else wanted

    def note_duration(self, trainer: pl.Trainer) -> None:
        """Write down how long a checkpoint takes: the first time, and when it takes much longer."""
        taken = self.checkpoints.seconds
        if trainer.is_global_zero and taken > 1.5 * self.noted:
            self.noted = taken
            append_row(self.folder.attempts, {"attempt": self.attempt, "checkpoint_seconds": round(taken, 3)})
            self.judge(taken)

    def judge(self, taken: float) -> None:
        """Warn where a checkpoint does not fit into the notice, and save by the clock from then on."""
        if self.notice is None or MARGIN * taken <= self.notice[0]:
            return
        seconds, what = self.notice
        if self.every is None:
            print(
                f"warning: a checkpoint took {taken:.0f} s, and between the warning of {what} and the end this job has "
                f"{seconds} s: that may be too short to save in, so it also saves every {max(CLOCK, taken / SHARE):.0f}"
                f" s. Ask for more with sbatch --signal=USR1@{4 * MARGIN * round(taken + 1)}, or on a partition with a "
                "longer grace time.",
                flush=True,
            )
        self.every = max(CLOCK, taken / SHARE)
