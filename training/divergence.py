"""--divergence_guard: detects a training that diverges, and warns or rolls it back to a checkpoint before that."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from config.record import values_of
from config.settings import Checkpoint, RunConfig
from config.task import Measure, loss_of, measure_of
from core.files import append_row, replace_symlink
from data.stream import exclude_batches
from runs import RunFolder
from runs.checkpoints import saved_checkpoints, valid_checkpoints
from training.checkpoints import AtomicCheckpointIO
from training.debugging import save_batch
from training.errors import RunDiverged
from training.lightning import has_gradient_scaler, is_accumulating, mean_over_processes
from training.optimizers import learning_rates
from training.recorder import MetricsFile

WINDOW = 64  # batches that a loss is compared with
WARM_UP = 20  # batches before a loss is judged
SMALLEST_DEVIATION = 0.01  # of the scale of the loss: where it hardly moves, any change would look large
SUSPECTS = 4  # batches before a spike that may have led to it
MOST_NEGATIVE = 50  # batches in a row in which a measure that must be positive is negative
SPIKE_DISTANCE = 50  # batches; nearer spikes count as one


class RunningLoss:
    """Mean and standard deviation of the last losses; an unsteady start is soon out of the window.

    scale: a change of the loss that matters.
    """

    def __init__(self, losses: Iterable[float] = (), scale: float = 1.0) -> None:
        self.losses = deque(losses, maxlen=WINDOW)
        self.scale = scale

    @property
    def mean(self) -> float:
        return math.fsum(self.losses) / max(1, len(self.losses))

    @property
    def deviation(self) -> float:
        mean = self.mean
        variance = math.fsum((loss - mean) ** 2 for loss in self.losses) / max(1, len(self.losses))
        return max(math.sqrt(variance), SMALLEST_DEVIATION * self.scale)

    def deviations_over(self, loss: float) -> float:
        """Standard deviations between a loss and the mean; 0 during the warm-up."""
        return (loss - self.mean) / self.deviation if len(self.losses) >= WARM_UP else 0.0


class RollbackRequested(Exception):
    """Leaves `fit` for a rollback to before batch `first`; the batches up to `last` are skipped from then on.

    events: all divergences of the run so far, this one last. skipped: ranges of batches that are skipped already.
    """

    def __init__(self, first: int, last: int, events: list[dict[str, Any]], skipped: list[tuple[int, int]]) -> None:
        super().__init__(events[-1]["what"])
        self.first = first
        self.last = last
        self.events = events
        self.skipped = skipped


@dataclass
class PendingBatch:
    """A batch whose numbers are still on the device.

    values: the loss and the measures that must be positive. norm: of the gradient, where the batch completed a step.
    """

    batch: Any
    batch_idx: int
    step: int
    measures: dict[str, Tensor]
    values: Tensor
    norm: Tensor | None = None


class DivergenceGuard(pl.Callback):
    """Judges the loss of every batch before the backward pass, and the gradient norm after the step.

    A number that is not finite never reaches a checkpoint: the run rolls back or stops. A spike of the loss, or a
    measure that must be positive (the energy drop along a walk) and is negative for many batches, is reported (warn) or
    undone (rollback). All processes judge the mean of their numbers, so they decide alike.

    deferred: numbers stay on the device, without a sync at every step, until `judge_pending` is called: before a row is
    logged, before a validation and before every save. A rollback then returns to before the first bad batch.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        positive: Sequence[str],
        measures: Sequence[Measure],
        print_line: Callable[[str], None],
        deferred: bool = False,
    ) -> None:
        """positive: measures of a training step that must not stay negative. measures: of the task; the scale of
        the loss is the first loss where they name none."""
        self.folder = folder
        self.config = config
        self.positive = positive
        self.declared = measures
        self.scale = loss_of(measures).scale
        self.settings = config.checkpoint
        # a --fast_dev_run leaves no checkpoint to return to
        self.rollback = self.settings.divergence_guard == "rollback" and not config.debugging.fast_dev_run
        self.print_line = print_line
        self.loss_window = RunningLoss(scale=self.scale or 0.0)
        self.losses: deque[float] = deque(maxlen=8)
        self.norms: deque[float] = deque(maxlen=8)
        self.negative_batches = 0  # batches in a row in which one that must be positive is negative
        self.last_spike = -SPIKE_DISTANCE - 1
        self.events: list[dict[str, Any]] = []
        self.deferred = deferred
        self.pending: list[PendingBatch] = []
        # Of the batch that is judged:
        self.batch: Any = None
        self.batch_idx = 0
        self.step = 1  # the optimizer step that it belongs to
        self.measures: dict[str, Tensor] = {}
        self.loss = math.nan

    def state_dict(self) -> dict[str, Any]:
        lists = {"losses": list(self.losses), "norms": list(self.norms), "events": list(self.events)}
        return {
            "usual": list(self.loss_window.losses),
            "rising": self.negative_batches,
            "last_spike": self.last_spike,
            "scale": self.loss_window.scale,
            **lists,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = {**self.state_dict(), **state}  # a checkpoint of a run without a guard has less
        self.loss_window = RunningLoss(state["usual"], self.scale or state["scale"])
        self.negative_batches, self.last_spike = state["rising"], state["last_spike"]
        self.losses, self.norms = deque(state["losses"], maxlen=8), deque(state["norms"], maxlen=8)
        self.events = list(state["events"])
        self.pending = []  # a rollback abandons them

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.batch, self.batch_idx, self.step = batch, batch_idx, trainer.global_step + 1

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        value = loss.detach() * trainer.accumulate_grad_batches
        measures = self.measures = getattr(pl_module, "measured", {})
        absent = torch.zeros_like(value)
        values = torch.stack([value, *(measures.get(name, absent).to(value) for name in self.positive)])
        if self.deferred:
            self.pending.append(PendingBatch(self.batch, self.batch_idx, self.step, dict(measures), values))
        else:
            self.judge_loss(trainer, *mean_over_processes(trainer, values).tolist())
        if self.settings.divergence_guard != "off":
            measures["divergences"] = torch.tensor(len(self.events))

    def judge_loss(self, trainer: pl.Trainer, loss: float, *positive: float) -> None:
        """positive: values of the measures that must be positive; 0 is ignored, as the energy gap of a single step."""
        self.loss = loss
        if not math.isfinite(loss):
            self.stop_or_roll_back(trainer, "loss", loss)
        self.losses.append(loss)
        if not self.loss_window.scale:
            self.loss_window.scale = abs(loss)
        if self.settings.divergence_guard == "off":
            return
        over = self.loss_window.deviations_over(loss)
        if over <= self.settings.divergence_deviations:
            self.loss_window.losses.append(loss)
        else:
            is_new, self.last_spike = self.batch_idx - self.last_spike > SPIKE_DISTANCE, self.batch_idx
            what = f"the loss is {loss:.4g}, {over:,.0f} deviations over its mean of {self.loss_window.mean:.4g}"
            if is_new or self.rollback:
                self.report(trainer, f"{what} ± {self.loss_window.deviation:.2g}", 1 + SUSPECTS)
        negative = {name: value for name, value in zip(self.positive, positive, strict=True) if value < 0}
        if any(positive):
            self.negative_batches = self.negative_batches + 1 if negative else 0
        if self.negative_batches == MOST_NEGATIVE or (self.rollback and self.negative_batches > MOST_NEGATIVE):
            values = ", ".join(f"{self.title(name)} is {value:.3g}" for name, value in negative.items())
            self.report(trainer, f"negative for {MOST_NEGATIVE} batches in a row: the {values}", MOST_NEGATIVE)

    def title(self, name: str) -> str:
        measure = measure_of(name, self.declared)
        return measure.title if measure else name.replace("_", " ")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        norm = getattr(pl_module, "gradient_norm", None)
        if norm is None or is_accumulating(trainer):
            return
        if self.deferred and self.pending:
            self.pending[-1].norm = norm.clone()
        else:
            self.judge_norm(trainer, float(norm))

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.judge_pending(trainer)

    def judge_pending(self, trainer: pl.Trainer) -> None:
        """Judge the batches whose numbers are still on the device, in their order; all processes call it together."""
        if not self.pending:
            return
        pending, self.pending = self.pending, []
        current = (self.batch, self.batch_idx, self.step, self.measures)
        means = mean_over_processes(trainer, torch.stack([entry.values for entry in pending])).tolist()
        on_device = [entry.norm for entry in pending if entry.norm is not None]
        norms = iter(torch.stack(on_device).tolist() if on_device else [])
        for entry, values in zip(pending, means, strict=True):
            self.batch, self.batch_idx = entry.batch, entry.batch_idx
            self.step, self.measures = entry.step, entry.measures
            self.judge_loss(trainer, *values)
            if entry.norm is not None:
                self.judge_norm(trainer, next(norms))
        self.batch, self.batch_idx, self.step, self.measures = current

    def judge_norm(self, trainer: pl.Trainer, norm: float) -> None:
        if math.isfinite(norm):
            self.norms.append(norm)
        # A scaler skips steps of half precision whose gradient overflows: their norm is no fault.
        elif not has_gradient_scaler(trainer):
            self.stop_or_roll_back(trainer, "gradient norm", norm)

    def stop_or_roll_back(self, trainer: pl.Trainer, name: str, value: float) -> None:
        """A number is not finite: roll back, or stop with a message."""
        if self.rollback:
            self.report(trainer, f"the {name} is {value}", 1 + SUSPECTS)
        path = save_batch(self.folder, self.step, self.batch, trainer.global_rank)
        advice = []
        if not self.config.debugging.detect_anomaly:
            advice.append("--detect_anomaly names the module where it begins")
        if saved_checkpoints(self.folder / "checkpoints"):
            advice.append("--resume_training_ckpt last resumes from before it")
        advice.append("--divergence_guard rollback rolls back by itself and skips such batches")
        raise RunDiverged(
            f"the {name} of step {self.step} is {value}.\n"
            f"  last finite losses:  {listed(self.losses)}\n"
            f"  last gradient norms: {listed(self.norms)}\n"
            f"  its batch:           {path}\n"
            f"  Usual remedies: {', '.join(self.remedies())}.\n  " + ";\n  ".join(advice) + "."
        )

    def remedies(self) -> list[str]:
        """Flags for a new run; none that is set already."""
        rate, clip = self.config.optimizer.peak_learning_rate, self.config.trainer.gradient_clip_val
        flags = [f"--peak_learning_rate {rate / 3:.1g} (now {rate:g})", "more --warm_up_steps"]
        return flags if 0 < clip <= 1 else [*flags, f"--gradient_clip_val 1 (now {clip:g})"]

    def report(self, trainer: pl.Trainer, what: str, suspects: int) -> None:
        """Record and print an event; with rollback, leave `fit` to return to before the last `suspects` batches."""
        step, measures = self.step, self.measures
        event: dict[str, Any] = {
            "step": step,
            "what": what,
            "loss": finite(self.loss),
            "mean": self.loss_window.mean,
            "deviation": self.loss_window.deviation,
            **{name: finite(float(measures[name])) for name in (*self.positive, "step_size") if name in measures},
            "gradient_norm": self.norms[-1] if self.norms else None,
            "learning_rate": learning_rates(trainer.optimizers[0])["learning_rate"],
        }
        save_batch(self.folder, step, self.batch, trainer.global_rank)
        self.events.append(event)
        if self.rollback:
            if rollbacks(self.events) >= self.settings.divergence_tries:
                self.record(trainer, {**event, "action": "stop"})
                raise RunDiverged(self.diagnosis())
            skipped = trainer.datamodule.skipped  # type: ignore[attr-defined]
            raise RollbackRequested(self.batch_idx - suspects + 1, self.batch_idx, self.events, skipped)
        self.record(trainer, {**event, "action": "warn"})
        self.print_line(f"warning: step {step}: {what}; --divergence_guard rollback would roll back to before it.")

    def record(self, trainer: pl.Trainer, row: dict[str, Any]) -> None:
        if trainer.is_global_zero:
            append_row(self.folder / "divergence.jsonl", row)

    def diagnosis(self) -> str:
        """What happened each time, and what to try."""
        tries, size = self.settings.divergence_tries, values_of(self.config).get("mcmc_step_size", "auto")
        resume = f"--resume_training_ckpt last --divergence_tries {2 * tries}"
        restart = self.remedies()
        if "step_size" in self.events[-1]:
            if self.settings.divergence_step_size_factor == 1:
                resume += " --divergence_step_size_factor 0.5"
            if size != "auto":
                restart.insert(0, f"--mcmc_step_size auto (now {size:g})")
        events = [f"  step {event['step']}: {event['what']}\n{details(event)}" for event in self.events]
        return "\n".join(
            [
                f"it diverged again after rolling back {tries} time{'s' if tries > 1 else ''} (--divergence_tries).",
                *events,
                f"  last finite losses: {listed(self.losses)}",
                f"  its batches:        {self.folder}/batch_of_step_*.pt",
                f"  resume before it:   {resume}",
                f"  or a new run with:  {', '.join(restart)}",
            ]
        )


def restore_before(folder: RunFolder, request: RollbackRequested, settings: Checkpoint) -> None:
    """Make a checkpoint from before the event the newest, and write the event into it, so that a resume starts there.

    It is written before later ones are removed: killed at any point, the run comes to the same state again.
    """
    target = None
    for target in valid_checkpoints(folder.checkpoints):  # the oldest, where none is old enough
        if target[1]["DataModule"]["batches"] <= request.first:
            break
    if target is None:
        raise RunDiverged(
            f"{request}, and there is no checkpoint in {folder.checkpoints} to go back to: start a new run."
        )
    path, checkpoint = target
    data, weights = checkpoint["DataModule"], checkpoint["state_dict"]
    guard = checkpoint["callbacks"].setdefault(DivergenceGuard.__qualname__, {"events": []})
    first, last = max(request.first, data["batches"]), request.last
    event = request.events[-1] | {"back_to": checkpoint["global_step"], "left_out": [first + 1, last + 1]}
    tries, tries_then = 1 + rollbacks(request.events), rollbacks(guard["events"])
    guard["events"] = [*request.events[:-1], event]
    data["skipped"] = exclude_batches(request.skipped, first, last)
    lines = [f"step {event['step']}: {event['what']}", details(event)]
    lines += [f"    back to step {event['back_to']} ({tries} of {settings.divergence_tries} times)"]
    lines[-1] += f"; batches {first + 1} to {last + 1} are skipped"
    if settings.divergence_step_size_factor < 1:
        weights["step_size"] *= settings.divergence_step_size_factor ** (tries - tries_then)
        lines[-1] += f"; the step size is now {float(weights['step_size']):.4g}"
    AtomicCheckpointIO().save_checkpoint(checkpoint, path)
    replace_symlink(path.with_name("last.ckpt"), path.name)
    for later in saved_checkpoints(folder.checkpoints):
        if later.name > path.name:
            later.unlink()
    best = folder.checkpoints / "best.ckpt"
    if best.is_symlink() and not best.exists():
        best.unlink()
    MetricsFile.truncate_after(folder.metrics, checkpoint["global_step"])
    append_row(folder.path / "divergence.jsonl", {**event, "action": "rollback"})
    print("\n".join(lines), flush=True)


def rollbacks(events: list[dict[str, Any]]) -> int:
    return sum("back_to" in event for event in events)


def details(event: dict[str, Any]) -> str:
    """A line of what was measured beside the loss."""
    in_first_line = ("step", "what", "loss", "mean", "deviation", "back_to", "left_out")
    titles = {"gradient_norm": "gradient norm before it"}
    return "    " + ", ".join(
        f"{titles.get(name, name.replace('_', ' '))} {value:.4g}"
        for name, value in event.items()
        if name not in in_first_line and value is not None
    )


def listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values) or "none"


def finite(value: float) -> float | None:
    """None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None
