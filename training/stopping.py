"""When a run ends: at its last step, when its goal is met (--goal), or when it stopped improving (--early_stop)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl

from config import RunConfig
from config.task import Goal
from runs.notify import notifier
from training.recorder import Recorder

GOAL_UNMET = 3  # exit status


class EarlyStop(pl.Callback):
    """--goal and --early_stop, after every validation; all processes see the same numbers, so they end together.

    reason: why the run ended early, for attempts.jsonl; empty until then. Its state in a checkpoint is named Ending.
    """

    state_key = "Ending"

    def __init__(self, config: RunConfig, recorder: Recorder, print_line: Callable[[str], None]) -> None:
        self.goal = Goal.parse(config.trainer.goal) if config.trainer.goal else None
        self.patience = config.trainer.early_stop
        self.monitor = config.checkpoint.checkpoint_monitor_string
        self.smaller_is_better = config.checkpoint.checkpoint_monitor_mode == "min"
        self.recorder = recorder
        self.print_line = print_line
        self.best: float | None = None  # of the monitored metric
        self.since = 0  # validations since the best value
        self.nearest: tuple[float, int] | None = None  # to the goal: value and step
        self.met_at: int | None = None
        self.reason = ""

    def state_dict(self) -> dict[str, Any]:
        names = ("monitor", "best", "since", "nearest", "met_at")
        return {"goal": str(self.goal), **{name: getattr(self, name) for name in names}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["monitor"] == self.monitor:  # a resume may watch something else, or have another goal
            self.best, self.since = state["best"], state["since"]
        if state["goal"] == str(self.goal):
            self.nearest, self.met_at = state["nearest"], state["met_at"]

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking and trainer.state.fn == "fit":  # and not the whole split's, after it
            self.check(trainer, self.recorder.measured)

    def check(self, trainer: pl.Trainer, measured: dict[str, float]) -> None:
        step = trainer.global_step
        if self.goal is not None and (value := measured.get(self.goal.metric)) is not None:
            if self.nearest is None or self.goal.is_nearer(value, self.nearest[0]):
                self.nearest = (value, step)
            if self.goal.is_met(value):
                self.met_at = step
                sentence = f"--goal {self.goal} is met at step {step}: it is {value:.4f}."
                notifier.tell("goal", sentence)
                self.stop(trainer, "goal met", sentence)
        if self.patience and (value := measured.get(self.monitor)) is not None:
            better = self.best is None or (value < self.best if self.smaller_is_better else value > self.best)
            self.best, self.since = (value, 0) if better else (self.best, self.since + 1)
            if self.since >= self.patience:
                sentence = f"--early_stop {self.patience}: {self.monitor} did not get better than {self.best:.4f} for"
                sentence += f" {self.since} validation{'s' if self.since > 1 else ''}; the run ends at step {step}."
                self.stop(trainer, "no longer getting better", sentence)

    def stop(self, trainer: pl.Trainer, reason: str, sentence: str) -> None:
        if not self.reason:
            self.reason = reason
            trainer.should_stop = True
            self.print_line(sentence)

    @property
    def cause(self) -> str:
        """What attempts.jsonl says of the end."""
        return f"finished: {self.reason}" if self.reason else "finished"

    def verdict(self) -> tuple[int, str]:
        """Exit status and a sentence at the end of the run."""
        if self.goal is None:
            return 0, ""
        if self.met_at is not None:
            return 0, f"--goal {self.goal} was met at step {self.met_at}."
        nearest = (
            "it was never measured"
            if self.nearest is None
            else "the nearest was {:.4f} at step {}".format(*self.nearest)
        )
        return GOAL_UNMET, f"--goal {self.goal} was not met: {nearest}."


class StopAtEnd(pl.Callback):
    """Asks Lightning to stop at the last step, which makes it validate there."""

    def __init__(self, total_steps: int) -> None:
        self.total_steps = total_steps

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step >= self.total_steps:
            trainer.should_stop = True
