"""Notices a training that goes wrong and, if asked to, takes it back to before it did (--divergence_guard)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from config.settings import Checkpoint, RunConfig
from core.files import append_row, point
from data.stream import skip
from runs import RunFolder
from training.checkpoints import AtomicCheckpointIO, whole_checkpoints
from training.guards import save_batch
from training.optimizers import learning_rates
from training.recorder import MetricsFile
from training.stop import Diverged

MEMORY = 64  # batches that a loss is compared with
WARM_UP = 20  # batches before a loss is judged
SMALLEST_DEVIATION = 0.01  # nats: below that a loss hardly moves, and any change would look large
SUSPECTS = 4  # batches before a spike that may have led to it
LONG = 50  # batches with a negative energy gap, one after the other, that are too many
APART = 50  # batches between two spikes that count as two


class RunningLoss:
    """Mean and standard deviation of the last losses; what is older is forgotten, a wild start for one."""

    def __init__(self, losses: Iterable[float] = ()) -> None:
        self.losses = deque(losses, maxlen=MEMORY)

    @property
    def mean(self) -> float:
        return math.fsum(self.losses) / max(1, len(self.losses))

    @property
    def deviation(self) -> float:
        mean = self.mean
        variance = math.fsum((loss - mean) ** 2 for loss in self.losses) / max(1, len(self.losses))
        return max(math.sqrt(variance), SMALLEST_DEVIATION)

    def deviations_over(self, loss: float) -> float:
        """How far a loss stands over the mean; 0 while there is too little to judge by."""
        return (loss - self.mean) / self.deviation if len(self.losses) >= WARM_UP else 0.0


class Divergence(Exception):
    """Leaves `fit` in order to go back to before batch `first`; the batches up to `last` are not to be seen again.

    events: all troubles of the run so far, this one last. skipped: what the stream of batches leaves out so far.
    """

    def __init__(self, first: int, last: int, events: list[dict[str, Any]], skipped: list[tuple[int, int]]) -> None:
        super().__init__(events[-1]["what"])
        self.first = first
        self.last = last
        self.events = events
        self.skipped = skipped


class DivergenceGuard(pl.Callback):
    """Judges the loss of every batch before it is learnt from, and the gradient's norm after.

    A number that is not finite never reaches a checkpoint: the run goes back or stops. A spike of the loss, or an
    energy that rises along the walk for long, is told (warn) or undone (rollback). All processes judge the mean of
    their numbers, so they decide alike.
    """

    def __init__(self, folder: Path, config: RunConfig, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.config = config
        self.settings = config.checkpoint
        # a --fast_dev_run keeps no checkpoint to go back to
        self.rollback = self.settings.divergence_guard == "rollback" and not config.debugging.fast_dev_run
        self.say = say
        self.usual = RunningLoss()
        self.losses: deque[float] = deque(maxlen=8)
        self.norms: deque[float] = deque(maxlen=8)
        self.rising = 0  # batches in a row with a negative energy gap
        self.last_spike = -APART - 1
        self.events: list[dict[str, Any]] = []
        self.batch: Any = None
        self.batch_idx = 0
        self.loss = math.nan  # of this batch

    def state_dict(self) -> dict[str, Any]:
        lists = {"losses": list(self.losses), "norms": list(self.norms), "events": list(self.events)}
        return {"usual": list(self.usual.losses), "rising": self.rising, "last_spike": self.last_spike, **lists}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = {**self.state_dict(), **state}  # a checkpoint of a run without a guard knows less
        self.usual = RunningLoss(state["usual"])
        self.rising, self.last_spike = state["rising"], state["last_spike"]
        self.losses, self.norms = deque(state["losses"], maxlen=8), deque(state["norms"], maxlen=8)
        self.events = list(state["events"])

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.batch, self.batch_idx = batch, batch_idx

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        value = loss.detach() * trainer.accumulate_grad_batches
        measures = getattr(pl_module, "measures", {})
        pair = torch.stack([value, measures.get("energy_gap", torch.zeros_like(value)).to(value)])
        if trainer.world_size > 1:
            pair = trainer.strategy.reduce(pair, reduce_op="mean")
        self.judge_loss(trainer, *pair.tolist())
        if self.settings.divergence_guard != "off":
            measures["divergences"] = torch.tensor(len(self.events))

    def judge_loss(self, trainer: pl.Trainer, loss: float, gap: float) -> None:
        self.loss = loss
        if not math.isfinite(loss):
            self.stop_or_go_back(trainer, "loss", loss)
        self.losses.append(loss)
        if self.settings.divergence_guard == "off":
            return
        over = self.usual.deviations_over(loss)
        if over <= self.settings.divergence_deviations:
            self.usual.losses.append(loss)
        else:
            new, self.last_spike = self.batch_idx - self.last_spike > APART, self.batch_idx
            what = f"the loss is {loss:.4g}, {over:,.0f} deviations over its mean of {self.usual.mean:.4g}"
            if new or self.rollback:
                self.report(trainer, f"{what} ± {self.usual.deviation:.2g}", 1 + SUSPECTS)
        if gap != 0:  # as it is where a batch takes a single step
            self.rising = self.rising + 1 if gap < 0 else 0
        if self.rising == LONG or (self.rollback and self.rising > LONG):
            what = f"the energy rose along the walk for {LONG} batches in a row: its gap is {gap:.3g}"
            self.report(trainer, what, LONG)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        norm = getattr(pl_module, "gradient_norm", None)
        if norm is None or trainer.fit_loop._should_accumulate():
            return
        if math.isfinite(norm):
            self.norms.append(float(norm))
        # A scaler skips the steps of half precision that overflow: their norm is not a fault.
        elif getattr(trainer.precision_plugin, "scaler", None) is None:
            self.stop_or_go_back(trainer, "gradient norm", float(norm))

    def stop_or_go_back(self, trainer: pl.Trainer, name: str, value: float) -> None:
        """Nothing good follows from a number that is not finite."""
        step = trainer.global_step + (name == "loss")
        if self.rollback:
            self.report(trainer, f"the {name} is {value}", 1 + SUSPECTS, step)
        path = save_batch(self.folder, step, self.batch, trainer.global_rank)
        more = []
        if not self.config.debugging.detect_anomaly:
            more.append("--detect_anomaly names the module where it begins")
        if any((self.folder / "checkpoints").glob("step_*.ckpt")):
            more.append("--resume_training_ckpt last goes on from before it")
        more.append("--divergence_guard rollback goes back by itself and leaves such batches out")
        raise Diverged(
            f"the {name} of step {step} is {value}.\n"
            f"  last finite losses:  {listed(self.losses)}\n"
            f"  last gradient norms: {listed(self.norms)}\n"
            f"  its batch:           {path}\n"
            f"  Usual remedies: {', '.join(self.remedies())}.\n  " + ";\n  ".join(more) + "."
        )

    def remedies(self) -> list[str]:
        """Flags for a run that begins anew; none that is set already."""
        rate, clip = self.config.optimizer.peak_learning_rate, self.config.trainer.gradient_clip_val
        found = [f"--peak_learning_rate {rate / 3:.1g} (now {rate:g})", "more --warm_up_steps"]
        return found if 0 < clip <= 1 else [*found, f"--gradient_clip_val 1 (now {clip:g})"]

    def report(self, trainer: pl.Trainer, what: str, suspects: int, step: int | None = None) -> None:
        """Tell of a trouble; under rollback leave `fit` to go back to before the last `suspects` batches."""
        step = step or trainer.global_step + 1
        measures = getattr(trainer.lightning_module, "measures", {})
        event = {
            "step": step,
            "what": what,
            "loss": finite(self.loss),
            "mean": self.usual.mean,
            "deviation": self.usual.deviation,
            **{name: finite(float(measures[name])) for name in ("energy_gap", "step_size") if name in measures},
            "gradient_norm": self.norms[-1] if self.norms else None,
            "learning_rate": learning_rates(trainer.optimizers[0])["learning_rate"],
        }
        save_batch(self.folder, step, self.batch, trainer.global_rank)
        self.events.append(event)
        if self.rollback:
            if rollbacks(self.events) >= self.settings.divergence_tries:
                self.record(trainer, {**event, "action": "stop"})
                raise Diverged(self.diagnosis())
            skipped = trainer.datamodule.skipped  # type: ignore[attr-defined]
            raise Divergence(self.batch_idx - suspects + 1, self.batch_idx, self.events, skipped)
        self.record(trainer, {**event, "action": "warn"})
        self.say(f"warning: step {step}: {what}; --divergence_guard rollback would go back to before it.")

    def record(self, trainer: pl.Trainer, row: dict[str, Any]) -> None:
        if trainer.is_global_zero:
            append_row(self.folder / "divergence.jsonl", row)

    def diagnosis(self) -> str:
        """What happened each time, and what to try."""
        tries, size = self.settings.divergence_tries, self.config.energy.mcmc_step_size
        again = f"--resume_training_ckpt last --divergence_tries {2 * tries}"
        anew = self.remedies()
        if "step_size" in self.events[-1]:
            if self.settings.divergence_step_size_factor == 1:
                again += " --divergence_step_size_factor 0.5"
            if size != "auto":
                anew.insert(0, f"--mcmc_step_size auto (now {size:g})")
        troubles = [f"  step {event['step']}: {event['what']}\n{details(event)}" for event in self.events]
        return "\n".join(
            [
                f"it diverged again after going back {tries} time{'s' if tries > 1 else ''} (--divergence_tries).",
                *troubles,
                f"  last finite losses: {listed(self.losses)}",
                f"  its batches:        {self.folder}/batch_of_step_*.pt",
                f"  go on before it:    {again}",
                f"  or begin anew with: {', '.join(anew)}",
            ]
        )


def roll_back(folder: RunFolder, divergence: Divergence, settings: Checkpoint) -> None:
    """Make a checkpoint from before the trouble the newest, and let it know of it, so that a resume goes on from there.

    It is written before later ones are removed: killed at any point, the run comes to the same state again.
    """
    found = None
    for found in whole_checkpoints(folder.checkpoints):  # the oldest, where none is old enough
        if found[1]["DataModule"]["batches"] <= divergence.first:
            break
    if found is None:
        raise Diverged(f"{divergence}, and there is no checkpoint in {folder.checkpoints} to go back to.")
    path, checkpoint = found
    data, weights = checkpoint["DataModule"], checkpoint["state_dict"]
    guard = checkpoint["callbacks"].setdefault(DivergenceGuard.__qualname__, {"events": []})
    first, last = max(divergence.first, data["batches"]), divergence.last
    event = divergence.events[-1] | {"back_to": checkpoint["global_step"], "left_out": [first + 1, last + 1]}
    tries, tries_then = 1 + rollbacks(divergence.events), rollbacks(guard["events"])
    guard["events"] = [*divergence.events[:-1], event]
    data["skipped"] = skip(divergence.skipped, first, last)
    told = [f"step {event['step']}: {event['what']}", details(event)]
    told += [f"    back to step {event['back_to']} ({tries} of {settings.divergence_tries} times)"]
    told[-1] += f"; batches {first + 1} to {last + 1} are left out"
    if settings.divergence_step_size_factor < 1:
        weights["step_size"] *= settings.divergence_step_size_factor ** (tries - tries_then)
        told[-1] += f"; the step size is now {float(weights['step_size']):.4g}"
    AtomicCheckpointIO().save_checkpoint(checkpoint, path)
    point(path.with_name("last.ckpt"), path.name)
    for later in folder.checkpoints.glob("step_*.ckpt"):
        if later.name > path.name:
            later.unlink()
    best = folder.checkpoints / "best.ckpt"
    if best.is_symlink() and not best.exists():
        best.unlink()
    MetricsFile.cut(folder.metrics, checkpoint["global_step"])
    append_row(folder.path / "divergence.jsonl", {**event, "action": "rollback"})
    print("\n".join(told), flush=True)


def rollbacks(events: list[dict[str, Any]]) -> int:
    return sum("back_to" in event for event in events)


def details(event: dict[str, Any]) -> str:
    """A line of what was measured beside the loss."""
    names = {"energy_gap": "energy gap", "step_size": "step size", "gradient_norm": "gradient norm before it"}
    known = {**names, "learning_rate": "learning rate"}
    return "    " + ", ".join(
        f"{word} {event[name]:.4g}" for name, word in known.items() if event.get(name) is not None
    )


def listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values) or "none"


def finite(value: float) -> float | None:
    """JSON has no NaN, and a NaN is not equal to itself."""
    return value if math.isfinite(value) else None
