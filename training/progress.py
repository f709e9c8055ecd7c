"""How far a run is: the line that moves on a terminal, and heartbeat.json for other programs."""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from core.files import write_text
from core.progress import Screen, bar_text
from core.text import format_clock
from runs.run import BEAT
from training.recorder import Recorder

REDRAW_SECONDS = 0.2
LINE_SECONDS = 20.0


class Progress(pl.Callback):
    """The line of a training run: on a terminal one that moves, elsewhere one now and then."""

    def __init__(self, recorder: Recorder, total_steps: int) -> None:
        self.recorder = recorder
        self.total_steps = total_steps
        self.screen = Screen()
        self.shown_at = 0.0  # when the line was drawn last
        self.start: tuple[float, int] | None = None  # time and step of this process's first batch
        self.counted = (0, 0.0)  # units and seconds of training when it was drawn last

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.start is None:
            self.start = (time.monotonic(), trainer.global_step)
            self.shown_at = self.start[0]
            self.counted = (self.recorder.units, self.recorder.seconds)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now, step = time.monotonic(), trainer.global_step
        if not trainer.is_global_zero or now - self.shown_at < (
            REDRAW_SECONDS if self.screen.is_terminal else LINE_SECONDS
        ):
            return
        assert self.start is not None
        self.shown_at = now
        units, seconds = self.recorder.units - self.counted[0], self.recorder.seconds - self.counted[1]
        self.counted = (self.recorder.units, self.recorder.seconds)
        steps = step - self.start[1]
        left = (now - self.start[0]) / steps * (self.total_steps - step) if steps else 0.0
        position = f"step {step}/{self.total_steps}  loss {self.recorder.last_loss:.4f}"
        line = f"{position}  {units / max(1e-9, seconds):,.0f} {self.recorder.unit}/s  {format_clock(left)} left"
        if self.screen.is_terminal:
            self.screen.draw(f"{bar_text(step / self.total_steps)}  {line}")
        else:
            print(line, flush=True)

    def print_line(self, line: str) -> None:
        """Print a line while the moving one is shown."""
        self.screen.clear()
        print(line, flush=True)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.screen.draw("validating …")

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.screen.clear()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.screen.clear()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.screen.clear()
        self.start = None  # a rollback resumes from an earlier step


class Heartbeat(pl.Callback):
    """Writes heartbeat.json every few seconds, from the training loop itself: a process that hangs writes no more."""

    def __init__(self, path: Path, recorder: Recorder, total_steps: int) -> None:
        self.path, self.recorder, self.total_steps = path, recorder, total_steps
        self.last: tuple[float, int, int, float] | None = None  # time, step, units, seconds
        self.written_at = 0.0
        self.pace: dict[str, float] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.write_heartbeat(trainer, "training")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if time.time() - self.written_at >= BEAT:
            self.write_heartbeat(trainer, "training")

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.write_heartbeat(trainer, "validation")

    def on_validation_batch_end(self, trainer: pl.Trainer, *rest: Any, **more: Any) -> None:
        if time.time() - self.written_at >= BEAT:
            self.write_heartbeat(trainer, "validation")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.write_heartbeat(trainer, "training")

    def on_test_batch_end(self, trainer: pl.Trainer, *rest: Any, **more: Any) -> None:
        if time.time() - self.written_at >= BEAT:
            self.write_heartbeat(trainer, "test")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.write_heartbeat(trainer, "trained")

    def write_heartbeat(self, trainer: pl.Trainer, phase: str) -> None:
        """Write where the run stands; a full disk must not end the run."""
        self.written_at = now = time.time()
        if not trainer.is_global_zero or trainer.sanity_checking:
            return
        step, recorder = trainer.global_step, self.recorder
        if self.last and step > self.last[1] and recorder.seconds > self.last[3]:
            steps, seconds = step - self.last[1], recorder.seconds - self.last[3]
            self.pace = {
                f"{recorder.unit}_per_second": (recorder.units - self.last[2]) / seconds,
                "step_seconds": seconds / steps,
                "seconds_left": max(0, self.total_steps - step) * (now - self.last[0]) / steps,
            }
        if not self.last or step > self.last[1]:
            self.last = (now, step, recorder.units, recorder.seconds)
        row: dict[str, Any] = {"time": now, "phase": phase, "step": step, "total_steps": self.total_steps, **self.pace}
        row["train_loss"] = recorder.last_loss
        row["valid_loss"] = recorder.results.get("valid", {}).get("loss", math.nan)
        measured = {name: value for name, value in row.items() if not (isinstance(value, float) and math.isnan(value))}
        with suppress(OSError):
            write_text(self.path, json.dumps(measured) + "\n", sync=False)
