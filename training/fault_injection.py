"""Faults that `python -m launch drill` injects into a run's first attempt, so that it is interrupted at a known step.

Only a drill sets EBT_DRILL:
  pause:STEP  waits at that step for a signal
  kill:STEP   kills all processes of the job
  save:STEP   kills them in the middle of writing that step's checkpoint
  abort:STEP  crashes the last process, as NCCL's watchdog does
  hang:STEP   makes the last process sleep for ever
  random      hangs as soon as the file `hang_in_the_drill` appears in the run folder, and kills itself as soon as
              `kill_in_the_drill` does: Slurm would send SIGTERM before its SIGKILL
"""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from core.environment import DRILL
from core.files import write_atomically
from runs.process import signals
from training.checkpoints import AtomicCheckpointIO
from training.lightning import set_checkpoint_io

READY = "ready_for_the_drill"  # a file of the run folder
HANG, KILL = "hang_in_the_drill", "kill_in_the_drill"
SIGNAL_SECONDS = 300.0  # that the drill may take to send its signal


def fault_injector(folder: Path, attempt: int) -> list[pl.Callback]:
    """The callback that a drill asks for; none in any other run, and none in later attempts."""
    fault, _, step = os.environ.get(DRILL, "").partition(":")
    if fault == "random":
        return [FaultInjector(folder, fault, 0)]
    return [FaultInjector(folder, fault, int(step))] if fault and attempt == 1 else []


class FaultInjector(pl.Callback):
    """Injects one fault. step: optimizer steps before it; not used by `random`."""

    def __init__(self, folder: Path, fault: str, step: int) -> None:
        self.folder, self.fault, self.step = folder, fault, step
        if fault == "random":
            threading.Thread(target=self.wait_for_kill, daemon=True).start()

    def wait_for_kill(self) -> None:
        while not (self.folder / KILL).exists():
            time.sleep(0.01)
        with suppress(FileNotFoundError):
            (self.folder / KILL).unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.fault == "save":
            set_checkpoint_io(trainer, HalfWrittenCheckpoint(self.step))

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.fault == "random" and is_last(trainer) and (self.folder / HANG).exists():
            (self.folder / HANG).unlink()
            hang()
        if self.fault == "random" or trainer.global_step != self.step:
            return
        if self.fault == "abort" and is_last(trainer):
            os.abort()
        if self.fault == "hang" and is_last(trainer):
            hang()
        if self.fault == "kill":
            if trainer.local_rank:  # two that stop each other would wait for ever
                time.sleep(SIGNAL_SECONDS)
            kill_everything()
        if self.fault == "pause":
            (self.folder / READY).touch()
            deadline = time.monotonic() + SIGNAL_SECONDS
            while signals.received is None and time.monotonic() < deadline:
                time.sleep(0.01)


def is_last(trainer: pl.Trainer) -> bool:
    """The others wait for the last process, as they do for one that has really crashed or hung."""
    return trainer.global_rank == trainer.world_size - 1


def hang() -> None:
    """Until this process is killed; a signal is only recorded."""
    while True:
        time.sleep(SIGNAL_SECONDS)


class HalfWrittenCheckpoint(AtomicCheckpointIO):
    """Kills the job in the middle of writing the checkpoint of `step`."""

    def __init__(self, step: int) -> None:
        self.step = step

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if checkpoint["global_step"] != self.step:
            return super().save_checkpoint(checkpoint, path, storage_options)
        content = io.BytesIO()
        torch.save(checkpoint, content)

        def write_half(file: Any) -> None:
            file.write(content.getbuffer()[: len(content.getbuffer()) // 2])
            file.flush()
            kill_everything()

        write_atomically(Path(path), write_half)


def kill_everything() -> None:
    """SIGKILL to all processes of the job on this node, its script among them; without a job, to the process group.

    They are stopped first, and this one ignores signals: when a node fails, no process receives any, while here Slurm
    sends SIGTERM to the rest of a step as soon as the first of its processes is gone.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        os.killpg(0, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    mark = f"SLURM_JOB_ID={job}".encode()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended, or it is another user's
                if int(entry.name) != os.getpid() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), number)
    os.kill(os.getpid(), signal.SIGKILL)
