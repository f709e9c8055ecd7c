"""Watches a run while it trains: one line when something looks wrong, and what people usually do about it.

History holds what was measured, in bounded memory. Each rule is a pure function of it that returns a sentence, or None
where all is well. Every threshold is far from what the default run shows: false alarms are soon ignored.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl

from config.task import Alarm, Measure
from core.files import append_row
from runs.notify import notifier
from training.divergence import DivergenceGuard
from training.recorder import Recorder

RECENT = 128  # newest rows, which are not merged
MOST_POINTS = 512  # of the whole run: beyond that, neighbouring rows are merged
MOST_VALIDATIONS = 256
SMOOTH = 10  # rows whose mean is taken for the loss
EVERY = 5  # rows of training metrics between two checks
QUIET_CHECKS = 3  # checks in a row that find nothing, after which an alarm may be raised again


class Point(NamedTuple):
    """A row of training metrics. best_loss: after the descent step that does best; loss itself where there is none."""

    step: int
    loss: float
    best_loss: float
    norm: float
    clipped: float
    rate: float


class Validation(NamedTuple):
    """A validation. values: of the measures that History names. train: the mean training loss of the rows before it."""

    step: int
    loss: float
    values: tuple[float, ...]
    train: float


@dataclass
class History:
    """What a run has measured so far, in bounded memory. Its state keeps the keys that older checkpoints have.

    names: measures of a validation that are stored beside its loss.
    """

    names: tuple[str, ...] = ()
    recent: deque[Point] = field(default_factory=lambda: deque(maxlen=RECENT))
    coarse: list[Point] = field(default_factory=list)  # each the mean of `stride` rows
    stride: int = 1
    partial: list[Point] = field(default_factory=list)
    validations: list[Validation] = field(default_factory=list)
    lowest: tuple[float, int] = (math.inf, 0)  # smoothed loss after the warm-up, and its step

    def add(self, row: dict[str, Any], warm_up_steps: int) -> None:
        """Add a row of metrics.jsonl."""
        if "train_loss" in row:
            steps = [value for name, value in row.items() if name.startswith("train_loss_step_")]
            point = Point(
                *(row["step"], row["train_loss"], min([row["train_loss"], *steps])),
                *(row.get("gradient_norm", 0.0), row.get("clipped_share", 0.0)),
                row.get("learning_rate", row.get("learning_rate/decay", 1.0)),  # its name in older runs
            )
            self.recent.append(point)
            self.partial.append(point)
            if len(self.partial) == self.stride:
                self.coarse.append(mean_point(self.partial))
                self.partial = []
            if len(self.coarse) == MOST_POINTS:
                self.coarse = [mean_point(self.coarse[first : first + 2]) for first in range(0, MOST_POINTS, 2)]
                self.stride *= 2
            if len(self.recent) >= SMOOTH and self.recent[-SMOOTH].step >= warm_up_steps:
                self.lowest = min(self.lowest, (self.level, point.step))
        # A second validation at a step is that of the whole split at the end: not comparable with those of the sample.
        if "valid_loss" in row and row["step"] > (self.validations[-1].step if self.validations else 0):
            train = self.level if self.recent else math.nan
            values = tuple(row.get(f"valid_{name}", math.nan) for name in self.names)
            self.validations.append(Validation(row["step"], row["valid_loss"], values, train))
            if len(self.validations) > MOST_VALIDATIONS:
                del self.validations[1]

    def scale(self, context: AlarmContext) -> float:
        """A change of the loss that matters."""
        return context.scale or abs(self.coarse[0].loss if self.coarse else math.nan)

    @property
    def level(self) -> float:
        """The training loss now, without its noise."""
        losses = [point.loss for point in list(self.recent)[-SMOOTH:]]
        return math.fsum(losses) / len(losses)

    def value(self, validation: Validation, name: str) -> float:
        return validation.values[self.names.index(name)] if name in self.names else math.nan

    def since(self, step: int) -> list[Point]:
        """The recent rows from `step` on."""
        return [point for point in self.recent if point.step >= step]

    def state(self) -> dict[str, Any]:
        return {
            "recent": [tuple(point) for point in self.recent],
            "whole": [tuple(point) for point in self.coarse],
            "pending": [tuple(point) for point in self.partial],
            "validations": [(one.step, one.loss, *one.values, one.train) for one in self.validations],
            "merged": self.stride,
            "lowest": self.lowest,
        }

    @classmethod
    def of(cls, state: dict[str, Any], names: tuple[str, ...]) -> History:
        return cls(
            names,
            deque((Point(*values) for values in state["recent"]), maxlen=RECENT),
            [Point(*values) for values in state["whole"]],
            state["merged"],
            [Point(*values) for values in state["pending"]],
            [Validation(step, loss, tuple(values), train) for step, loss, *values, train in state["validations"]],
            (state["lowest"][0], state["lowest"][1]),
        )


def mean_point(points: Sequence[Point]) -> Point:
    """Several rows merged: the step of the last, the means of the rest."""
    means = np.mean([point[1:] for point in points], axis=0).tolist()
    return Point(points[-1].step, *means)


@dataclass(frozen=True)
class AlarmContext:
    """What does not change in a run.

    clip: 0 for no clipping. floor: a reference by name, and its loss. in_order: rows are not shuffled. scale: a change
    of the loss that matters, in `unit`; None: the first loss. higher: a measure of a validation of which more is
    better. alarms: those of the task.
    """

    warm_up_steps: int = 0
    clip: float = 1.0
    floor: tuple[str, float] | None = None
    in_order: bool = False
    scale: float | None = None
    unit: str = ""
    higher: Measure | None = None
    alarms: tuple[Alarm, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The measures that the rules read beside the loss."""
        own = [self.higher.name] if self.higher else []
        return tuple(dict.fromkeys([*own, *(alarm.measure for alarm in self.alarms)]))


def noise_of(values: Sequence[float]) -> float:
    """Standard deviation of what changes from one value to the next, so that a trend does not count."""
    return float(np.std(np.diff(values))) / math.sqrt(2) if len(values) > 2 else 0.0


def check_overconfidence(history: History, context: AlarmContext) -> str | None:
    """The loss rises while another measure gets better."""
    validations, measure = history.validations, context.higher
    if len(validations) < 4 or measure is None:
        return None
    best, last = min(validations, key=lambda one: one.loss), validations[-1]
    rising = validations[-3].loss < validations[-2].loss < last.loss and last.loss > 1.01 * best.loss
    before, now = history.value(best, measure.name), history.value(last, measure.name)
    if not rising or not now > before + 0.001 * (measure.scale or 1.0):
        return None
    return (
        f"the validation loss rose from {best.loss:.3f} at step {best.step} to {last.loss:.3f}, while {measure.title} "
        f"rose from {measure.format(before)} to {measure.format(now)}: more answers are right, and the wrong ones are "
        "too sure"
    )


def check_overfitting(history: History, context: AlarmContext) -> str | None:
    """The training loss keeps falling, and that of validation does not follow."""
    validations = history.validations[-4:]
    if len(validations) < 4:
        return None
    gaps = [one.loss - one.train for one in validations]
    first, last = validations[0], validations[-1]
    least = max(0.05 * history.scale(context), 0.03 * last.loss)
    grew = gaps[0] < gaps[1] < gaps[2] < gaps[3] and gaps[3] - gaps[0] > least
    if not grew or gaps[3] <= 0 or last.train >= first.train or last.loss < 0.998 * validations[1].loss:
        return None
    return (
        f"since step {first.step} the training loss fell from {first.train:.3f} to {last.train:.3f}, and that of "
        f"validation went from {first.loss:.3f} to {last.loss:.3f}: the model memorises its training data"
    )


def check_plateau(history: History, context: AlarmContext) -> str | None:
    """The second half of the run so far gained less than 1 %, though the learning rate is still high."""
    points = history.coarse
    if not points:
        return None
    begin = max(context.warm_up_steps, points[-1].step // 2)
    window = [point for point in points if point.step >= begin]
    peak = max(point.rate for point in points)
    if len(window) < 50 or min(point.rate for point in window) < 0.5 * peak:
        return None
    third = len(window) // 3
    losses = [point.loss for point in window]
    before, now = float(np.mean(losses[:third])), float(np.mean(losses[-third:]))
    error = noise_of(losses) * math.sqrt(2 / third)
    gain = before - now
    if gain + 2 * error > 0.01 * now or gain < -0.05 * now:
        return None
    return f"the training loss is {now:.3f}, as it was {before:.3f} about step {window[third // 2].step}"


def check_oscillation(history: History, context: AlarmContext) -> str | None:
    """The loss goes up and down, far more than from batch to batch."""
    window = history.since(context.warm_up_steps)[-64:]
    if len(window) < 32:
        return None
    losses = np.array([point.loss for point in window[-(len(window) // 2) * 2 :]])
    pairs = losses.reshape(-1, 2)
    noise = float(np.std(pairs[:, 1] - pairs[:, 0])) / math.sqrt(2)
    swing = max(0.05 * float(losses.mean()), 5 * noise)
    turns, low, high = turning_points(pairs.mean(axis=1).tolist(), swing)
    if turns < 4:
        return None
    return (
        f"the training loss swings between about {low:.3f} and {high:.3f}, {turns} times since step {window[0].step}, "
        "which is more than its noise"
    )


def turning_points(values: Sequence[float], swing: float) -> tuple[int, float, float]:
    """How often a curve turns by at least `swing`; the mean of its lows and of its highs."""
    ends: list[float] = []
    direction, extreme = 0, values[0]
    for value in values[1:]:
        if (direction >= 0 and value > extreme) or (direction <= 0 and value < extreme):
            direction = direction or (1 if value > extreme else -1)
            extreme = value
        elif abs(value - extreme) >= swing:
            ends.append(extreme)
            direction, extreme = (1 if value > extreme else -1), value
    ends.append(extreme)
    middle = (min(ends) + max(ends)) / 2
    lows, highs = [end for end in ends if end <= middle], [end for end in ends if end > middle]
    return len(ends) - 1, float(np.mean(lows or ends)), float(np.mean(highs or ends))


def check_divergence(history: History, context: AlarmContext) -> str | None:
    """The loss rises steadily, too slowly for the divergence guard, which judges single batches."""
    losses = [point.loss for point in history.since(context.warm_up_steps)]
    if len(losses) < 3 * SMOOTH or not math.isfinite(history.lowest[0]):
        return None
    lowest, step = history.lowest
    level = min(np.reshape(losses[-3 * SMOOTH :], (3, SMOOTH)).mean(axis=1))  # where it swings, it comes back
    if level < 1.1 * lowest or level - lowest < 6 * noise_of(losses) / math.sqrt(SMOOTH):
        return None
    return f"the training loss has risen from {lowest:.3f} at step {step} to {level:.3f}"


def check_clipping(history: History, context: AlarmContext) -> str | None:
    """Most steps have their gradient cut to a small part of its length."""
    window = history.since(context.warm_up_steps)[-50:]
    if not context.clip or len(window) < 20:
        return None
    share, norm = float(np.mean([point.clipped for point in window])), float(np.median([p.norm for p in window]))
    if share <= 0.5 or norm < 5 * context.clip:
        return None
    return (
        f"the gradient is clipped at {share:.0%} of the steps since step {window[0].step}, and its norm is "
        f"{norm:.3g} where {context.clip:g} is allowed: the length of a step no longer tells anything"
    )


def check_alarm(alarm: Alarm, history: History, context: AlarmContext) -> str | None:
    """A measure of the last validation is lower than the task allows."""
    validations = [one for one in history.validations if one.step >= max(50, context.warm_up_steps)]
    value = history.value(validations[-1], alarm.measure) if validations else math.nan
    return alarm.text.format(value) if value < alarm.below else None


def check_unlearned(history: History, context: AlarmContext) -> str | None:
    """No better than a reference that learns nothing of the context."""
    if context.floor is None:
        return None
    name, floor = context.floor
    begin = max(200, 2 * context.warm_up_steps)
    if not history.recent or history.recent[-1].step < begin or len(history.recent) < SMOOTH:
        return None
    loss = float(np.mean([point.best_loss for point in list(history.recent)[-SMOOTH:]]))
    if history.validations and history.validations[-1].step >= begin:
        loss = min(loss, history.validations[-1].loss)
    if not loss > floor - 0.01 * history.scale(context):
        return None
    amount = f"{loss:.3f} {context.unit}".rstrip()
    return f"the loss is {amount}, and that of the reference {name!r} is {floor:.3f}: the model has not learned yet"


def check_shuffled(history: History, context: AlarmContext) -> str | None:
    """Training rows are read in stored order."""
    return "the settings have the training rows read in order" if context.in_order else None


class AlarmRule(NamedTuple):
    """How a kind of trouble is detected, and what people usually do about it."""

    check: Callable[[History, AlarmContext], str | None]
    advice: str


ALARM_RULES = {
    "overconfidence": AlarmRule(
        check_overconfidence,
        "keep the checkpoint of the best loss (--early_stop 3 ends there), raise --weight_decay, or bring more data; "
        "where only {title} counts, --checkpoint_monitor_string valid_{name} --checkpoint_monitor_mode max",
    ),
    "overfitting": AlarmRule(
        check_overfitting,
        "more data, --early_stop 3, a smaller --model_size, more --weight_decay, or fewer --max_epochs",
    ),
    "plateau": AlarmRule(
        check_plateau,
        "lower the learning rate (a schedule that ends earlier: --max_scheduling_steps), or try a larger --model_size; "
        "--find_lr shows which rates move the loss",
    ),
    "oscillation": AlarmRule(
        check_oscillation,
        "a third of the --peak_learning_rate, larger batches (--accumulate_grad_batches), more warm-up",
    ),
    "divergence": AlarmRule(
        check_divergence,
        "a third of the --peak_learning_rate, more --warm_up_steps, --gradient_clip_val 1, --mcmc_step_size auto; "
        "--divergence_guard rollback goes back by itself",
    ),
    "clipping": AlarmRule(
        check_clipping,
        "look where the gradient comes from (--log_gradients), lower --mcmc_step_size or "
        "--weight_initialization_gain, or allow more with --gradient_clip_val",
    ),
    "unlearned": AlarmRule(
        check_unlearned,
        "check that rows are whole (--debug_dataloader) and that a few batches can be learnt (--overfit_batches 1); "
        "--find_lr finds a rate",
    ),
    "not shuffled": AlarmRule(
        check_shuffled, "leave out --no_shuffle, or shuffle the files: in order, a model follows what it read last"
    ),
}


def rules_of(context: AlarmContext) -> dict[str, AlarmRule]:
    """The rules for every task, with the names of this task's measures, and the rules of the task itself."""
    rules = dict(ALARM_RULES)
    if context.higher is not None:
        check, advice = rules["overconfidence"]
        advice = advice.format(title=context.higher.title, name=context.higher.name)
        rules["overconfidence"] = AlarmRule(check, advice)
    return rules | {alarm.kind: AlarmRule(partial(check_alarm, alarm), alarm.advice) for alarm in context.alarms}


class Alarms(pl.Callback):
    """Reads the rows that the recorder writes; an alarm is raised once, and again only if it went away and came back.

    Its state in a checkpoint is named Health.
    """

    state_key = "Health"

    def __init__(
        self,
        folder: Path,
        recorder: Recorder,
        context: AlarmContext,
        guard: DivergenceGuard,
        print_line: Callable[[str], None],
    ) -> None:
        self.path = folder / "alarms.jsonl"
        self.context = context
        self.guard = guard
        self.print_line = print_line
        self.rules = rules_of(context)
        self.history = History(context.names)
        self.rows = 0
        self.divergences = 0  # events of the guard that were recorded here
        self.active: dict[str, int] = {}  # kinds that were raised, and for how many checks each has been quiet
        recorder.readers.append(self.read)

    def state_dict(self) -> dict[str, Any]:
        names = ("rows", "divergences", "active")
        return {"history": self.history.state(), **{name: getattr(self, name) for name in names}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history = History.of(state["history"], self.context.names)
        self.rows, self.divergences, self.active = state["rows"], state["divergences"], dict(state["active"])

    def read(self, row: dict[str, Any]) -> None:
        """Add a row of metrics; every few rows, and after every validation, check all rules."""
        self.history.add(row, self.context.warm_up_steps)
        self.rows += "train_loss" in row
        if "valid_loss" in row or self.rows % EVERY == 0:
            self.check_all(row["step"])

    def check_all(self, step: int) -> None:
        """Check every rule, and record the new events of the divergence guard."""
        for kind, (check, advice) in self.rules.items():
            self.update(step, kind, check(self.history, self.context), advice)
        new = self.guard.events[self.divergences :]
        self.divergences = len(self.guard.events)
        for event in new:  # the guard has printed it itself
            self.write_alarm(event["step"], "divergence", event["what"], ALARM_RULES["divergence"].advice)

    def update(self, step: int, kind: str, text: str | None, advice: str) -> None:
        if text is None:
            if kind in self.active:
                self.active[kind] += 1
                if self.active[kind] >= QUIET_CHECKS:
                    del self.active[kind]
            return
        is_new = kind not in self.active
        self.active[kind] = 0
        if is_new:
            alarm = self.write_alarm(step, kind, text, advice)
            self.print_line(f"alarm, step {step}: {kind}: {alarm['text']}\n  {alarm['advice']}")

    def write_alarm(self, step: int, kind: str, text: str, advice: str) -> dict[str, Any]:
        alarm = {"step": step, "time": round(time.time(), 3), "kind": kind}
        alarm |= {"text": f"{text}.", "advice": f"Usual remedies: {advice}."}
        with suppress(OSError):  # a full disk must not end the run
            append_row(self.path, alarm)
        notifier.tell("alarm", f"alarm, step {step}: {kind}: {alarm['text']} {alarm['advice']}")
        return alarm
