"""Ends a run that hangs, so that its job is queued again instead of wasting its time.

A process that waits for another in a collective, or a loader that waits for a lock, shows nothing and uses its GPUs.
Every step, batch and checkpoint is a heartbeat; a thread beside the training compares the time since the last one with
the longest pause of the run itself.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import psutil
import pytorch_lightning as pl

from core.environment import JOB_RUN_DIR
from runs.process import EXIT_RESUMABLE
from runs.ranks import process_rank
from training.peers import Peers, own_stacks

FIRST_MINUTES = 60.0  # before the first heartbeats: data, compilation, the first step
LEAST_MINUTES = 20.0
PAUSE_FACTOR = 20  # times the longest pause of the run
OTHERS_FACTOR = 1.25  # the others wait longer than process 0, which asks them for their stacks unless it hangs itself
POLL_SECONDS = 1.0  # between two looks at the time of the last heartbeat
DEBUGGERS = ("pdb.py", "bdb.py", "ipdb", "pydevd", "debugpy")


class HangWatch(pl.Callback):
    """Ends the run when no heartbeat came for too long.

    minutes: allowed without a heartbeat; None: measured from the run, 0: no limit. end: records the end of the attempt.
    """

    def __init__(
        self,
        minutes: float | None,
        peers: Peers,
        end: Callable[[str], None],
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self.minutes, self.peers, self.end, self.poll_seconds = minutes, peers, end, poll_seconds
        self.last_heartbeat = 0.0  # time; 0: none is expected
        self.longest = 0.0  # seconds between two heartbeats
        self.beats = 0
        self.main = threading.main_thread().ident
        self.thread: threading.Thread | None = None

    @property
    def allowed_seconds(self) -> float:
        """Seconds without a heartbeat after which the run counts as hung."""
        usual = max(60 * LEAST_MINUTES, PAUSE_FACTOR * self.longest) if self.minutes is None else 60 * self.minutes
        first = 60 * FIRST_MINUTES if self.beats < 3 else 0.0  # even with --hang_minutes: a step may be compiled
        return max(usual, first) * (OTHERS_FACTOR if process_rank() else 1.0)

    def beat(self) -> None:
        now = time.monotonic()
        if self.last_heartbeat and self.beats:
            self.longest = max(self.longest, now - self.last_heartbeat)
        self.last_heartbeat = now
        self.beats += 1

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.last_heartbeat = time.monotonic()
        if self.thread is None and self.minutes != 0:
            self.thread = threading.Thread(target=self.watch, daemon=True)
            self.thread.start()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.last_heartbeat = 0.0

    def on_train_batch_start(self, *args: Any, **more: Any) -> None:
        self.beat()

    def on_train_batch_end(self, *args: Any, **more: Any) -> None:
        self.beat()

    def on_validation_batch_end(self, *args: Any, **more: Any) -> None:
        self.beat()

    def on_test_batch_end(self, *args: Any, **more: Any) -> None:
        self.beat()

    def on_save_checkpoint(self, *args: Any, **more: Any) -> None:
        self.beat()

    def watch(self) -> None:
        checked = time.monotonic()
        while True:
            time.sleep(self.poll_seconds)
            now = time.monotonic()
            if self.last_heartbeat and now - checked > 10 * self.poll_seconds:
                self.last_heartbeat += now - checked  # the whole process was suspended: that time does not count
            checked = now
            silent = now - self.last_heartbeat if self.last_heartbeat else 0.0
            if silent > self.allowed_seconds and not is_debugged(self.main):
                self.give_up(silent)

    def give_up(self, silent: float) -> None:
        """Print all stacks, record the end, and end all processes; the job is queued again."""
        rank = process_rank()
        longest = f"; the longest pause before was {self.longest:.1f} s" if self.longest else ""
        lines = [f"\nno heartbeat for {silent / 60:.1f} minutes{longest}: the run hangs and is ended."]
        if JOB_RUN_DIR not in os.environ:
            lines[0] += " Resume it with the same command and --resume_training_ckpt last."
        for name, text in {f"process {rank}": own_stacks(), **self.peers.stacks()}.items():
            lines += [f"stacks of {name}:", *(f"  {line}" for line in text.rstrip().splitlines())]
        self.leave("\n".join(lines), "hung")

    def stuck(self, event: str) -> None:
        """Another process ended, and this one waits for it."""
        self.leave(f"\n{event}, and this process waits for it: the run is ended.", f"crashed: {event}")

    def leave(self, message: str, cause: str) -> None:
        print(message, file=sys.stderr, flush=True)
        self.end(cause)
        self.peers.end_all(EXIT_RESUMABLE)
        for child in psutil.Process().children(recursive=True):  # loaders, and processes that Lightning started
            child.kill()
        sys.stdout.flush()
        os._exit(EXIT_RESUMABLE)


def is_debugged(main_thread: int | None) -> bool:
    """Whether the main thread is stopped in a debugger, where a person may think as long as they like."""
    frame: FrameType | None = sys._current_frames().get(main_thread or 0)
    while frame is not None:
        if any(name in frame.f_code.co_filename for name in DEBUGGERS):
            return True
        frame = frame.f_back
    return False
