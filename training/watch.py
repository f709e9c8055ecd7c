"""Ends a run that hangs, so that it is queued again instead of burning the night.

A process that waits for another in a collective, or a loader that waits for a lock, shows nothing and uses its GPUs.
Every step, batch and checkpoint is a sign of life; a thread beside the training judges their absence by the longest
pause that the run itself has made.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytorch_lightning as pl

from runs.processes import JOB_RUN_DIR, process_rank
from runs.signals import GOES_ON
from training.company import Company
from training.stacks import is_debugged, own_stacks

FIRST_MINUTES = 60.0  # before the first sign of life: data, compilation, the first step
LEAST_MINUTES = 20.0
PAUSES = 20  # times the longest pause of the run
LATER = 1.25  # the others leave it to process 0, which asks them for their stacks, unless it hangs itself
LOOK = 1.0  # seconds


class Watch(pl.Callback):
    """minutes: allowed without a sign of life; None: measured, 0: no limit. end: notes the attempt's end."""

    def __init__(self, minutes: float | None, company: Company, end: Callable[[str], None]) -> None:
        self.minutes, self.company, self.end = minutes, company, end
        self.seen = 0.0  # when there was a sign of life; 0: nothing is waited for
        self.longest = 0.0  # seconds between two
        self.signs = 0
        self.main = threading.main_thread().ident
        self.thread: threading.Thread | None = None

    @property
    def patience(self) -> float:
        """Seconds."""
        usual = max(60 * LEAST_MINUTES, PAUSES * self.longest) if self.minutes is None else 60 * self.minutes
        first = 60 * FIRST_MINUTES if self.signs < 3 else 0.0  # whatever is chosen: a first step may be compiled
        return max(usual, first) * (LATER if process_rank() else 1.0)

    def sign(self) -> None:
        now = time.monotonic()
        if self.seen and self.signs:
            self.longest = max(self.longest, now - self.seen)
        self.seen = now
        self.signs += 1

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.seen = time.monotonic()
        if self.thread is None and self.minutes != 0:
            self.thread = threading.Thread(target=self.look_for_ever, daemon=True)
            self.thread.start()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.seen = 0.0

    def on_train_batch_start(self, *args: Any, **more: Any) -> None:
        self.sign()

    def on_train_batch_end(self, *args: Any, **more: Any) -> None:
        self.sign()

    def on_validation_batch_end(self, *args: Any, **more: Any) -> None:
        self.sign()

    def on_test_batch_end(self, *args: Any, **more: Any) -> None:
        self.sign()

    def on_save_checkpoint(self, *args: Any, **more: Any) -> None:
        self.sign()

    def look_for_ever(self) -> None:
        looked = time.monotonic()
        while True:
            time.sleep(LOOK)
            now = time.monotonic()
            if self.seen and now - looked > 10 * LOOK:
                self.seen += now - looked  # the whole process was suspended: that time does not count
            looked = now
            silent = now - self.seen if self.seen else 0.0
            if silent > self.patience and not is_debugged(self.main):
                self.give_up(silent)

    def give_up(self, silent: float) -> None:
        """Stacks into the log, a note of the end, and all processes leave; the job is queued again."""
        rank = process_rank()
        longest = f"; the longest pause before was {self.longest:.1f} s" if self.longest else ""
        lines = [f"\nno sign of life for {silent / 60:.1f} minutes{longest}: the run hangs and is ended."]
        if JOB_RUN_DIR not in os.environ:
            lines[0] += " It goes on with the same command and --resume_training_ckpt last."
        for name, text in {f"process {rank}": own_stacks(), **self.company.stacks()}.items():
            lines += [f"stacks of {name}:", *(f"  {line}" for line in text.rstrip().splitlines())]
        self.leave("\n".join(lines), "hung")

    def stuck(self, words: str) -> None:
        """Another process is gone, and this one waits for it."""
        self.leave(f"\n{words}, and this process waits for it: the run is ended.", f"crashed: {words}")

    def leave(self, words: str, cause: str) -> None:
        print(words, file=sys.stderr, flush=True)
        self.end(cause)
        self.company.end_all(GOES_ON)
        for child in psutil.Process().children(recursive=True):  # loaders, and processes that Lightning started
            child.kill()
        sys.stdout.flush()
        os._exit(GOES_ON)
