"""The line that moves while a run trains: step, loss, speed, time left."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytorch_lightning as pl

from core.progress import clock
from training.recorder import Recorder

REDRAW_SECONDS = 0.2
LINE_SECONDS = 20.0


class Progress(pl.Callback):
    """A bar on a terminal; elsewhere a line now and then."""

    def __init__(self, recorder: Recorder, total_steps: int) -> None:
        self.recorder = recorder
        self.total_steps = total_steps
        self.screen = sys.__stderr__ if sys.__stderr__ is not None and sys.__stderr__.isatty() else None
        self.shown = 0.0  # when the line was drawn last
        self.began: tuple[float, int] | None = None  # time and step of this process's first batch
        self.counted = (0, 0.0)  # tokens and seconds of training when it was drawn last

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.began is None:
            self.began = (time.monotonic(), trainer.global_step)
            self.shown = self.began[0]
            self.counted = (self.recorder.tokens, self.recorder.seconds)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now, step = time.monotonic(), trainer.global_step
        if not trainer.is_global_zero or now - self.shown < (REDRAW_SECONDS if self.screen else LINE_SECONDS):
            return
        assert self.began is not None
        self.shown = now
        tokens, seconds = self.recorder.tokens - self.counted[0], self.recorder.seconds - self.counted[1]
        self.counted = (self.recorder.tokens, self.recorder.seconds)
        steps = step - self.began[1]
        left = (now - self.began[0]) / steps * (self.total_steps - step) if steps else 0.0
        place = f"step {step}/{self.total_steps}  loss {self.recorder.last_loss:.4f}"
        words = f"{place}  {tokens / max(1e-9, seconds):,.0f} tokens/s  {clock(left)} left"
        if self.screen:
            done = round(24 * step / self.total_steps)
            self.draw(f"\r\x1b[2K{'━' * done}{'─' * (24 - done)}  {words}")
        else:
            print(words, flush=True)

    def say(self, words: str) -> None:
        """Print a line of its own while the bar is shown."""
        self.clear()
        print(words, flush=True)

    def clear(self) -> None:
        self.draw("\r\x1b[2K")

    def draw(self, text: str) -> None:
        if self.screen:
            try:
                self.screen.write(text)
                self.screen.flush()
            except OSError:  # the terminal is gone
                self.screen = None

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.clear()
        self.draw("validating …")

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.clear()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.clear()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.clear()
        self.began = None  # it may go on from an earlier step
