"""A sign of life every few seconds, so that a run that hangs is told from one that is slow."""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from core.files import write_text
from runs.reading import BEAT
from training.recorder import Recorder


class Heartbeat(pl.Callback):
    """Writes heartbeat.json from the loop itself: a process that waits forever for another writes no more."""

    def __init__(self, path: Path, recorder: Recorder, total_steps: int) -> None:
        self.path, self.recorder, self.total_steps = path, recorder, total_steps
        self.last: tuple[float, int, int, float] | None = None  # time, step, tokens, seconds
        self.beaten = 0.0
        self.pace: dict[str, float] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.beat(trainer, "training")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if time.time() - self.beaten >= BEAT:
            self.beat(trainer, "training")

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.beat(trainer, "validation")

    def on_validation_batch_end(self, trainer: pl.Trainer, *rest: Any, **more: Any) -> None:
        if time.time() - self.beaten >= BEAT:
            self.beat(trainer, "validation")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.beat(trainer, "training")

    def on_test_batch_end(self, trainer: pl.Trainer, *rest: Any, **more: Any) -> None:
        if time.time() - self.beaten >= BEAT:
            self.beat(trainer, "test")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.beat(trainer, "trained")

    def beat(self, trainer: pl.Trainer, phase: str) -> None:
        """Write where the run stands; a disk that is full costs the sign, not the run."""
        self.beaten = now = time.time()
        if not trainer.is_global_zero or trainer.sanity_checking:
            return
        step, recorder = trainer.global_step, self.recorder
        if self.last and step > self.last[1] and recorder.seconds > self.last[3]:
            steps, seconds = step - self.last[1], recorder.seconds - self.last[3]
            self.pace = {
                "tokens_per_second": (recorder.tokens - self.last[2]) / seconds,
                "step_seconds": seconds / steps,
                "seconds_left": max(0, self.total_steps - step) * (now - self.last[0]) / steps,
            }
        if not self.last or step > self.last[1]:
            self.last = (now, step, recorder.tokens, recorder.seconds)
        row: dict[str, Any] = {"time": now, "phase": phase, "step": step, "total_steps": self.total_steps, **self.pace}
        row["train_loss"] = recorder.last_loss
        row["valid_loss"] = recorder.results.get("valid", {}).get("loss", math.nan)
        known = {name: value for name, value in row.items() if not (isinstance(value, float) and math.isnan(value))}
        with suppress(OSError):
            write_text(self.path, json.dumps(known) + "\n", sync=False)
