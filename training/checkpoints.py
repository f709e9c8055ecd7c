"""Checkpoints that survive: written whole or not at all, verified when read, exact when resumed.

A checkpoint is the state before a batch is trained on: all earlier batches, their validation included, are done.
One that was saved during a validation says so (`validation_due`), and whoever resumes it begins with that validation.
It holds tensors and plain values only, so reading one never runs code.
"""

from __future__ import annotations

import errno
import pickle
import random
import shlex
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import CheckpointIO

from config.settings import Checkpoint
from core.errors import UserError
from core.files import point, write_atomically
from training.recorder import Recorder
from training.stop import StopRun

KEEP_NEWEST = 2
WINDOW = 50  # steps; to be able to go back, the first checkpoint of each of the last windows is kept
KEEP_WINDOWS = 3


class CheckpointError(UserError):
    """A checkpoint that cannot be used, in one sentence."""


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Verify every byte, then read tensors and plain values; anything else is refused unread."""
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such checkpoint.")
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
        if broken:
            raise CheckpointError(f"{path} is damaged (in {broken}): take an earlier checkpoint of the run.")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise CheckpointError(f"{path} is not a whole checkpoint ({error}): take an earlier one of the run.") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} holds more than tensors and plain values: refused, and nothing in it was run."
        ) from error
    except RuntimeError as error:  # what torch raises where an archive is not one of its own
        raise CheckpointError(f"{path} is not a checkpoint of this toolkit: it is another kind of archive.") from error
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint or "run" not in checkpoint:
        raise CheckpointError(f"{path} is not a checkpoint of this toolkit: it has no record of its run.")
    return checkpoint


def whole_checkpoints(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The checkpoints that are whole, with their content, newest first; damaged ones are named and passed over."""
    for path in sorted(folder.glob("step_*.ckpt"), reverse=True):
        try:
            yield path, read_checkpoint(path)
        except CheckpointError as error:
            print(f"warning: {error}")


def newest_checkpoint(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    return next(whole_checkpoints(folder), None)


class Watched:
    """A file that remembers what was wrong with it, of which torch only says that something was."""

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


def save_watched(checkpoint: dict[str, Any], file: IO[bytes]) -> None:
    watched = Watched(file)
    try:
        torch.save(checkpoint, watched)  # type: ignore[arg-type]
    except RuntimeError:
        if watched.error is not None:
            raise watched.error from None
        raise


class AtomicCheckpointIO(CheckpointIO):
    """How Lightning writes and reads our checkpoints."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        write_atomically(Path(path), lambda file: save_watched(checkpoint, file))

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


def between_batches(loops: dict[str, Any], step: int) -> dict[str, Any]:
    """Lightning's loop counters as if it were about to begin, `done` batches into the run.

    The whole run is one Lightning epoch (the loader crosses the data's epochs itself), so all that has to
    survive is how many batches and optimizer steps were taken. Lightning's own record of a loop that was
    interrupted half-way is a matter of heuristics; this form is not.
    """
    fit = dict(loops["fit_loop"])
    done = fit["epoch_loop.batch_progress"]["total"]["completed"]

    def counts(value: int) -> dict[str, int]:
        return {"ready": value, "started": value, "processed": value, "completed": value}

    fit["state_dict"] = {}
    fit["epoch_progress"] = {"total": counts(0), "current": counts(0)}
    fit["epoch_loop.state_dict"] = {"_batches_that_stepped": step}
    fit["epoch_loop.batch_progress"] = {"total": counts(done), "current": counts(done), "is_last_batch": False}
    fit["epoch_loop.val_loop.batch_progress"] = {"total": counts(0), "current": counts(0), "is_last_batch": False}
    return {**loops, "fit_loop": fit}


class NotSaved(StopRun):
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
        self.candidate: float | None = None  # measured since the last save
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
        return self.folder / f"step_{step:08d}.ckpt"

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        mine = self.rng_before_validation or rng_state()
        states = [mine]
        if trainer.world_size > 1:
            states = [{}] * trainer.world_size
            torch.distributed.all_gather_object(states, mine)
        checkpoint["rng"] = states
        checkpoint["validation_due"] = self.rng_before_validation is not None
        checkpoint["run"] = self.run
        checkpoint["loops"] = between_batches(checkpoint["loops"], trainer.global_step)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.saved_step = checkpoint["global_step"]
        self.candidate = None
        self.validation_due = checkpoint.get("validation_due", False)
        if trainer.global_rank < len(checkpoint["rng"]):
            self.resumed_rng = checkpoint["rng"][trainer.global_rank]

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The validation that an interrupted attempt owes, with the random numbers it had."""
        if not self.validation_due:
            return
        self.validation_due = False
        if self.resumed_rng is not None:
            set_rng_state(self.resumed_rng)
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.restarting = False
        trainer.fit_loop.epoch_loop.val_loop.run()
        trainer.training = True
        self.resumed_rng = rng_state()
        self.start_is_due = True  # the one that says so is replaced

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.rng_before_validation = rng_state()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.rng_before_validation = None
        if not trainer.sanity_checking:
            self.candidate = self.recorder.measured.get(self.settings.checkpoint_monitor_string)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # There has to be one to go back to.
        self.start_is_due = self.rollback and not any(self.folder.glob("step_*.ckpt"))

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
        return len(self.best) < keep or self.badness(value) < self.badness(self.best[-1][0])

    def badness(self, value: float) -> float:
        return value if self.settings.checkpoint_monitor_mode == "min" else -value

    def save(self, trainer: pl.Trainer) -> None:
        step = trainer.global_step
        if self.is_among_best(self.candidate):
            assert self.candidate is not None
            self.best = sorted([*self.best, (self.candidate, step)], key=lambda entry: self.badness(entry[0]))
            self.best = self.best[: self.settings.save_top_k_ckpts]
        self.candidate = None
        began = time.monotonic()
        try:
            trainer.save_checkpoint(self.path(step), weights_only=False)
        except (OSError, RuntimeError) as error:  # torch reports a failed write as RuntimeError
            raise NotSaved(self.explain(step, error)) from error
        self.saved_step = step
        self.saved_at = time.monotonic()
        self.seconds = self.saved_at - began
        if trainer.is_global_zero:
            point(self.folder / "last.ckpt", self.path(step).name)
            if self.best:
                point(self.folder / "best.ckpt", self.path(self.best[0][1]).name)
            self.prune()

    def explain(self, step: int, error: Exception) -> str:
        earlier = sorted(self.folder.glob("step_*.ckpt"))
        what = f"the checkpoint of step {step} could not be written ({str(error).splitlines()[0]})"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            quota = ", or your quota of it," if error.errno == errno.EDQUOT else ""
            what = f"disk full: the disk{quota} of {self.folder} has no room for the checkpoint of step {step}"
        if not earlier:
            return f"{what}. There is no earlier checkpoint: free some space and start again."
        safe = earlier[-1]
        return (
            f"{what}. Safe is all up to step {int(safe.stem[len('step_') :])}, in {safe}: free some space and go on "
            f"with\n  python train_model.py --resume_training_ckpt {shlex.quote(str(safe))}"
        )

    def prune(self) -> None:
        """Remove what is neither new nor among the best, and what killed writes left behind."""
        for half in self.folder.glob(".*.tmp"):
            half.unlink(missing_ok=True)
        files = sorted(self.folder.glob("step_*.ckpt"))
        wanted = {self.path(step) for _, step in self.best} | set(files[-KEEP_NEWEST:])
        if self.rollback:
            firsts = {int(file.stem[len("step_") :]) // WINDOW: file for file in reversed(files)}
            wanted |= set(list(firsts.values())[:KEEP_WINDOWS])
        for file in files:
            if file not in wanted:
                file.unlink(missing_ok=True)
