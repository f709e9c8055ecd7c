"""Watches a run while it trains, and says in a line when something looks wrong and what people usually do about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from core.files import append_row
from runs.notify import notifier
from training.alarms import KINDS, ORDER_ADVICE, Facts
from training.divergence import DivergenceGuard
from training.history import History
from training.order import Order
from training.recorder import Recorder

EVERY = 5  # rows of training metrics between two looks
GONE = 3  # looks without a trouble after which it may be told again


class Health(pl.Callback):
    """Reads what the recorder writes; each trouble is told once, and again only if it went away and came back."""

    def __init__(
        self,
        folder: Path,
        recorder: Recorder,
        facts: Facts,
        guard: DivergenceGuard,
        say: Callable[[str], None],
        in_order: bool = False,
        look_at_order: bool = True,
    ) -> None:
        self.path = folder / "alarms.jsonl"
        self.facts = facts
        self.guard = guard
        self.say = say
        self.in_order = in_order  # the settings say that rows are read in order
        self.look_at_order = look_at_order
        self.history = History()
        self.order = Order()
        self.rows = 0
        self.divergences = 0  # of the guard's that were taken over
        self.active: dict[str, int] = {}  # kinds that were told, and for how many looks they are gone
        recorder.readers.append(self.read)

    def state_dict(self) -> dict[str, Any]:
        names = ("rows", "divergences", "active")
        return {"history": self.history.state(), **{name: getattr(self, name) for name in names}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history = History.of(state["history"])
        self.rows, self.divergences, self.active = state["rows"], state["divergences"], dict(state["active"])
        self.order = Order()  # going back, a run meets batches that it has seen

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.look_at_order and trainer.is_global_zero:
            self.order.see(batch["input_ids"].cpu().numpy())

    def read(self, row: dict[str, Any]) -> None:
        """Take in a row of metrics and, now and then, look."""
        self.history.add(row, self.facts.warm_up_steps)
        self.rows += "train_loss" in row
        if "valid_loss" in row or self.rows % EVERY == 0:
            self.look(row["step"])

    def look(self, step: int) -> None:
        """Find what is wrong now, and tell what was not told yet."""
        for kind, (find, advice) in KINDS.items():
            self.judge(step, kind, find(self.history, self.facts), advice)
        in_order = "the settings have the training rows read in order" if self.in_order else None
        if self.look_at_order:
            self.judge(step, "not shuffled", in_order or self.order.trouble(), ORDER_ADVICE)
        new = self.guard.events[self.divergences :]
        self.divergences = len(self.guard.events)
        for event in new:  # the guard has told it itself
            self.record(event["step"], "divergence", event["what"], KINDS["divergence"].advice)

    def judge(self, step: int, kind: str, text: str | None, advice: str) -> None:
        if text is None:
            if kind in self.active:
                self.active[kind] += 1
                if self.active[kind] >= GONE:
                    del self.active[kind]
            return
        known = kind in self.active
        self.active[kind] = 0
        if not known:
            alarm = self.record(step, kind, text, advice)
            self.say(f"alarm, step {step}: {kind}: {alarm['text']}\n  {alarm['advice']}")

    def record(self, step: int, kind: str, text: str, advice: str) -> dict[str, Any]:
        alarm = {"step": step, "time": round(time.time(), 3), "kind": kind}
        alarm |= {"text": f"{text}.", "advice": f"Usual remedies: {advice}."}
        with suppress(OSError):  # a full disk costs the note, not the run
            append_row(self.path, alarm)
        notifier.tell("alarm", f"alarm, step {step}: {kind}: {alarm['text']} {alarm['advice']}")
        return alarm
