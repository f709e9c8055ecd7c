"""Saves checkpoints atomically, keeps the newest and the best, restores random states; runs/checkpoints.py reads them.

A checkpoint is the state before a batch is trained on: all earlier batches, their validation included, are done.
One that was saved during a validation says so (`validation_due`), and the attempt that resumes it begins with that
validation. It holds tensors and plain values only.
"""

from __future__ import annotations

import errno
import random
import shlex
import time
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import CheckpointIO

from config.settings import Checkpoint
from core.files import replace_symlink, write_atomically
from runs.checkpoints import checkpoint_path, read_checkpoint, saved_checkpoints, step_of
from training.errors import RunStopped
from training.lightning import loop_state, run_validation
from training.recorder import Recorder

KEEP_NEWEST = 2
WINDOW = 50  # steps
KEEP_WINDOWS = 3  # with --divergence_guard rollback: the first checkpoint of each of the last windows is kept too


class ErrorRecordingFile:
    """A file that remembers the error of a failed write; torch raises a RuntimeError without it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        try:
            return self.file.write(content)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def write_checkpoint(checkpoint: dict[str, Any], file: IO[bytes]) -> None:
    recording = ErrorRecordingFile(file)
    try:
        torch.save(checkpoint, recording)  # type: ignore[arg-type]
    except RuntimeError:
        if recording.error is not None:
            raise recording.error from None
        raise


class AtomicCheckpointIO(CheckpointIO):
    """Lightning writes and reads checkpoints with it."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        write_atomically(Path(path), lambda file: write_checkpoint(checkpoint, file))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def rng_state() -> dict[str, Any]:
    """Every random generator of this process, as tensors and plain values."""
    _, key, position, has_gauss, cached = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (torch.from_numpy(np.asarray(key, dtype=np.int64)), int(position), int(has_gauss), float(cached)),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def set_rng_state(state: dict[str, Any]) -> None:
    key, position, has_gauss, cached = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state(("MT19937", key.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


class CheckpointNotWritten(RunStopped):
    """The disk refused a checkpoint."""

    cause = "error: a checkpoint could not be written"


class Checkpoints(pl.Callback):
    """Saves every n steps, after one of the best validations, and at the end; keeps the newest and the best."""

    def __init__(self, folder: Path, settings: Checkpoint, run: dict[str, Any], recorder: Recorder) -> None:
        self.folder = folder
        self.settings = settings
        self.run = run  # run id and settings, written into every checkpoint
        self.recorder = recorder  # a callback that comes before this one
        self.best: list[tuple[float, int]] = []  # (value, step) of the best, best first
        self.saved_step = -1
        self.candidate: float | None = None  # the monitored value of a validation since the last save
        self.resumed_rng: dict[str, Any] | None = None
        self.rng_before_validation: dict[str, Any] | None = None  # while one runs
        self.validation_due = False  # of the checkpoint that was loaded
        self.seconds = 0.0  # that the last save took
        self.saved_at = time.monotonic()
        self.rollback = settings.divergence_guard == "rollback"
        self.start_is_due = False  # a checkpoint before the first batch

    def state_dict(self) -> dict[str, Any]:
        return {"best": list(self.best)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = [(value, step) for value, step in state["best"] if self.path(step).exists()]

    def path(self, step: int) -> Path:
        return checkpoint_path(self.folder, step)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        own = self.rng_before_validation or rng_state()
        states = [own]
        if trainer.world_size > 1:
            states = [{}] * trainer.world_size
            torch.distributed.all_gather_object(states, own)
        checkpoint["rng"] = states
        checkpoint["validation_due"] = self.rng_before_validation is not None
        checkpoint["run"] = self.run
        checkpoint["loops"] = loop_state(checkpoint["loops"], trainer.global_step)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.saved_step = checkpoint["global_step"]
        self.candidate = None
        self.validation_due = checkpoint.get("validation_due", False)
        if trainer.global_rank < len(checkpoint["rng"]):
            self.resumed_rng = checkpoint["rng"][trainer.global_rank]

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Run the validation in which an earlier attempt was interrupted, with the random numbers it had."""
        if not self.validation_due:
            return
        self.validation_due = False
        if self.resumed_rng is not None:
            set_rng_state(self.resumed_rng)
        run_validation(trainer)
        self.resumed_rng = rng_state()
        self.start_is_due = True  # replaces the checkpoint that has validation_due

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.rng_before_validation = rng_state()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.rng_before_validation = None
        if not trainer.sanity_checking:
            self.candidate = self.recorder.measured.get(self.settings.checkpoint_monitor_string)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # A rollback needs a checkpoint to return to.
        self.start_is_due = self.rollback and not saved_checkpoints(self.folder)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.resumed_rng is not None:
            set_rng_state(self.resumed_rng)
            self.resumed_rng = None
        every, step = self.settings.checkpoint_every_n_steps, trainer.global_step
        due = every > 0 and step > 0 and step % every == 0 and step != self.saved_step
        if due or self.start_is_due or self.is_among_best(self.candidate):
            self.save(trainer)
        self.candidate, self.start_is_due = None, False

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.global_step != self.saved_step or self.is_among_best(self.candidate):
            self.save(trainer)

    def is_among_best(self, value: float | None) -> bool:
        keep = self.settings.save_top_k_ckpts
        if value is None or value != value or keep == 0:
            return False
        # of equal ones the later, which has learned more: a share of right answers stays at 1
        return len(self.best) < keep or self.badness(value) <= self.badness(self.best[-1][0])

    def badness(self, value: float) -> float:
        return value if self.settings.checkpoint_monitor_mode == "min" else -value

    def save(self, trainer: pl.Trainer) -> None:
        self.recorder.flush(trainer)  # the guard judges every batch before it reaches a checkpoint
        step = trainer.global_step
        if self.is_among_best(self.candidate):
            assert self.candidate is not None
            self.best = sorted([(self.candidate, step), *self.best], key=lambda entry: self.badness(entry[0]))
            self.best = self.best[: self.settings.save_top_k_ckpts]
        self.candidate = None
        began = time.monotonic()
        try:
            trainer.save_checkpoint(self.path(step), weights_only=False)
        except (OSError, RuntimeError) as error:  # torch reports a failed write as RuntimeError
            raise CheckpointNotWritten(self.explain(step, error)) from error
        self.saved_step = step
        self.saved_at = time.monotonic()
        self.seconds = self.saved_at - began
        if trainer.is_global_zero:
            replace_symlink(self.folder / "last.ckpt", self.path(step).name)
            if self.best:
                replace_symlink(self.folder / "best.ckpt", self.path(self.best[0][1]).name)
            self.prune()

    def explain(self, step: int, error: Exception) -> str:
        earlier = saved_checkpoints(self.folder)
        what = f"the checkpoint of step {step} could not be written ({str(error).splitlines()[0]})"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            quota = ", or your quota of it," if error.errno == errno.EDQUOT else ""
            what = f"disk full: the disk{quota} of {self.folder} has no room for the checkpoint of step {step}"
        if not earlier:
            return f"{what}. There is no earlier checkpoint: free some space and start again."
        safe = earlier[-1]
        return (
            f"{what}. Everything up to step {step_of(safe)} is saved in {safe}: free some space and resume "
            f"with\n  python train_model.py --resume_training_ckpt {shlex.quote(str(safe))}"
        )

    def prune(self) -> None:
        """Remove what is neither new nor among the best, and temporary files of killed writes."""
        for temporary in self.folder.glob(".*.tmp"):
            temporary.unlink(missing_ok=True)
        files = saved_checkpoints(self.folder)
        keep = {self.path(step) for _, step in self.best} | set(files[-KEEP_NEWEST:])
        if self.rollback:
            firsts = {step_of(file) // WINDOW: file for file in reversed(files)}
            keep |= set(list(firsts.values())[:KEEP_WINDOWS])
        for file in files:
            if file not in keep:
                file.unlink(missing_ok=True)
