"""What `python -m launch drill` plants into a run's first attempt, so that its interruption comes at a known moment.

EBT_DRILL=pause:STEP waits there for a signal, kill:STEP kills all of the job's processes, save:STEP does so in the
middle of writing that step's checkpoint, abort:STEP crashes the last process as NCCL's watchdog does, hang:STEP lets it
sleep for ever; random hangs in whichever step the file `hang_in_the_drill` is found, and kills itself as soon as
`kill_in_the_drill` is: what Slurm calls SIGKILL is a SIGTERM first. Nobody else sets it.
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

from core.files import write_atomically
from runs.signals import listener
from training.checkpoints import AtomicCheckpointIO

DRILL = "EBT_DRILL"
READY = "ready_for_the_drill"  # a file of the run folder
HANG, KILL = "hang_in_the_drill", "kill_in_the_drill"
PATIENCE = 300.0  # seconds that whoever drills may take to send its signal


def rehearsal(folder: Path, attempt: int) -> list[pl.Callback]:
    """The callback that a drill asks for; none in any other run, and none when the run goes on."""
    way, _, step = os.environ.get(DRILL, "").partition(":")
    if way == "random":
        return [Rehearsal(folder, way, 0)]
    return [Rehearsal(folder, way, int(step))] if way and attempt == 1 else []


class Rehearsal(pl.Callback):
    """Brings a run into trouble."""

    def __init__(self, folder: Path, way: str, step: int) -> None:
        self.folder, self.way, self.step = folder, way, step
        if way == "random":
            threading.Thread(target=self.wait_for_the_end, daemon=True).start()

    def wait_for_the_end(self) -> None:
        while not (self.folder / KILL).exists():
            time.sleep(0.01)
        with suppress(FileNotFoundError):
            (self.folder / KILL).unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.way == "save":
            trainer.strategy.checkpoint_io = HalfWritten(self.step)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.way == "random" and is_last(trainer) and (self.folder / HANG).exists():
            (self.folder / HANG).unlink()
            hang()
        if self.way == "random" or trainer.global_step != self.step:
            return
        if self.way == "abort" and is_last(trainer):
            os.abort()
        if self.way == "hang" and is_last(trainer):
            hang()
        if self.way == "kill":
            if trainer.local_rank:  # two that stop each other would wait for ever
                time.sleep(PATIENCE)
            kill_everything()
        if self.way == "pause":
            (self.folder / READY).touch()
            deadline = time.monotonic() + PATIENCE
            while listener.asked is None and time.monotonic() < deadline:
                time.sleep(0.01)


def is_last(trainer: pl.Trainer) -> bool:
    """The others wait for it, as they do for one that has really crashed or hung."""
    return trainer.global_rank == trainer.world_size - 1


def hang() -> None:
    """Until somebody ends this process; a signal is noted and does not help."""
    while True:
        time.sleep(PATIENCE)


class HalfWritten(AtomicCheckpointIO):
    """Dies in the middle of the checkpoint of `step`."""

    def __init__(self, step: int) -> None:
        self.step = step

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if checkpoint["global_step"] != self.step:
            return super().save_checkpoint(checkpoint, path, storage_options)
        whole = io.BytesIO()
        torch.save(checkpoint, whole)

        def write_half(file: Any) -> None:
            file.write(whole.getbuffer()[: len(whole.getbuffer()) // 2])
            file.flush()
            kill_everything()

        write_atomically(Path(path), write_half)


def kill_everything() -> None:
    """SIGKILL to all processes of the job on this node, its script among them; without a job, to the process group.

    They are stopped first and this one is deaf: when a node ends, nobody is left to be told of it, while here Slurm
    sends SIGTERM to what is left of a step as soon as the first of its processes is gone.
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
