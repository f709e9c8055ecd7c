"""Measures a run while it trains: one row of metrics every n steps and after every validation.

A row holds where it was measured (step, epoch, units, FLOPs and seconds of training so far, time, attempt) and what.
Beside it: model.json for programs and model.txt for people, which say what is trained and on how much hardware.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers.logger import Logger
from torch import Tensor, nn

from config.task import Measure, derived, evaluation_line
from core.files import append_row, read_rows, write_json, write_text
from data.module import DataModule
from models.model import Model
from runs import is_first_process
from runs.metrics import schema
from runs.pictures import remove_pictures_after
from runs.run import Run
from training.lightning import batches_begun, is_accumulating, mean_over_processes
from training.optimizers import learning_rates

UNITS = "tokens"  # the key in checkpoints of the units trained on, whatever they are
DEPTH = 3  # levels of modules that model.txt names


class MetricsFile(Logger):
    """metrics.jsonl: one JSON object a row, append-only; metrics.schema.json beside it says what its columns mean."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.columns: dict[str, None] = {}  # in the order of their appearance
        with suppress(OSError, ValueError):  # of earlier attempts
            self.columns = dict.fromkeys(json.loads(self.schema.read_bytes()))

    @property
    def schema(self) -> Path:
        return self.path.with_name("metrics.schema.json")

    @property
    def name(self) -> str:
        return self.path.parent.name

    @property
    def version(self) -> str:
        return ""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The settings are in config.json."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        row = {"step": step, **metrics}
        append_row(self.path, row)
        if row.keys() - self.columns.keys():
            self.columns |= dict.fromkeys(row)
            with suppress(OSError):  # a full disk must not end the run
                write_json(self.schema, schema(self.columns, Run(self.path.parent).task))

    @staticmethod
    def truncate_after(path: Path, step: int) -> None:
        """Drop rows, alarms and pictures after `step`, and a half-written last line: a resumed run makes them again."""
        remove_pictures_after(path.parent, step)
        for file in (path, path.with_name("alarms.jsonl")):
            if file == path or file.exists():
                rows = [row for row in read_rows(file) if row.get("step", 0) <= step]
                # The validation of the full split and the test, after the last step, are run again.
                at_step = [row for row in rows if row.get("step") == step]
                repeated = [row for row in at_step if "valid_loss" in row][1:]
                repeated += [row for row in at_step if "test_loss" in row]
                rows = [row for row in rows if not any(row is other for other in repeated)]
                write_rows(file, rows)

    @staticmethod
    def drop_validation(path: Path, step: int) -> None:
        """Drop the row of a validation that will run again."""
        write_rows(path, [row for row in read_rows(path) if row.get("step") != step or "valid_loss" not in row])


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Replace a file of rows, one JSON object a line."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


class Recorder(pl.Callback):
    """Collects loss, gradient norm and speed, and hands them to the loggers and the progress line."""

    def __init__(
        self,
        log_every: int,
        attempt: int,
        unit: str,
        measures: Sequence[Measure],
        data: DataModule,
        batches_per_epoch: int,
        total_steps: int,
        expected_targets: Callable[[str], int | None],
        log_gradients: bool = False,
        batch_flops: dict[int, int] | None = None,
        deferred: bool = False,
    ) -> None:
        """log_every: steps between rows. unit: of the task, such as tokens; it names what is counted. expected_targets:
        how many targets an evaluation of a split must have read; None: unknown. batch_flops: of a batch on one process,
        by the number of steps down the energy. deferred: losses and norms stay on the device until `flush`, without a
        sync at every step."""
        self.log_every = log_every
        self.attempt = attempt
        self.unit = unit
        self.measures = measures
        self.data = data
        self.batches_per_epoch = batches_per_epoch
        self.total_steps = total_steps
        self.expected_targets = expected_targets
        self.log_gradients = log_gradients
        self.batch_flops = batch_flops or {}
        self.deferred = deferred
        self.pending_losses: list[Tensor] = []
        self.pending_norms: list[Tensor] = []
        self.before_flush: list[Callable[[pl.Trainer], None]] = []  # the divergence guard judges these batches first
        self.readers: list[Callable[[dict[str, Any]], None]] = []  # called with every row that is written
        self.units = 0
        self.flops = 0
        self.seconds = 0.0  # of training
        self.waited = 0.0  # seconds of these spent waiting for batches
        self.losses: list[float] = []  # of the steps since the last row
        self.norms: list[float] = []
        self.layer_norms: dict[str, float] = {}
        self.first_loss = math.nan
        self.last_loss = math.nan
        self.results: dict[str, dict[str, float]] = {}  # of the last evaluation, by split
        self.clock = 0.0  # time up to which `seconds` counts; 0: after a validation, from the next batch on
        self.loader_clock = 0.0  # the loader's seconds of waiting up to which `waited` counts
        self.interval = (0, 0.0, 0.0)  # units, seconds and seconds waited at the last row

    def state_dict(self) -> dict[str, Any]:
        names = ("flops", "seconds", "waited", "losses", "norms", "first_loss", "last_loss")
        return {UNITS: self.units, **{name: getattr(self, name) for name in names}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, "units" if name == UNITS else name, list(value) if isinstance(value, list) else value)
        self.interval = (self.units, self.seconds, self.waited)
        self.clock = 0.0
        self.pending_losses, self.pending_norms = [], []  # a rollback abandons them

    def flush(self, trainer: pl.Trainer) -> None:
        """Read what is still on the device; all processes call it together, before a row and before every save."""
        for judge in self.before_flush:
            judge(trainer)
        if self.pending_losses:
            losses = mean_over_processes(trainer, torch.stack(self.pending_losses)).tolist()
            self.losses += losses
            self.last_loss = losses[-1]
            if math.isnan(self.first_loss):
                self.first_loss = losses[0]
        if self.pending_norms:
            self.norms += torch.stack(self.pending_norms).tolist()
        self.pending_losses, self.pending_norms = [], []

    @property
    def units_per_second(self) -> float:
        units, seconds, _ = self.interval
        return (self.units - units) / max(1e-9, self.seconds - seconds)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # Time between batches counts (the loader's), time in validation and checkpoints does not.
        if not self.clock:
            self.clock = time.perf_counter()
            self.loader_clock = getattr(trainer.train_dataloader, "wait_seconds", 0.0)

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any) -> None:
        if self.log_gradients and (trainer.global_step + 1) % self.log_every == 0:
            self.layer_norms = {
                f"gradient_norm/{name}": float(parameter.grad.norm())
                for name, parameter in pl_module.named_parameters()
                if parameter.grad is not None
            }

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs["loss"].detach() * trainer.accumulate_grad_batches
        norm = getattr(pl_module, "gradient_norm", None)
        is_step, step = not is_accumulating(trainer), trainer.global_step
        row_is_due = is_step and (step % self.log_every == 0 or step == self.total_steps)
        if self.deferred:
            self.pending_losses.append(loss)
            if is_step:
                self.pending_norms.append(torch.zeros_like(loss) if norm is None else norm.to(loss))
            if row_is_due:
                self.flush(trainer)
        else:
            self.losses.append(float(mean_over_processes(trainer, loss)))
        self.units += self.data.rows["train"].units(batch) * trainer.world_size
        steps = int(getattr(pl_module, "measured", {}).get("steps", 0))
        # Processes may draw different numbers of steps; this one's is taken for all.
        self.flops += self.batch_flops.get(steps, 0) * trainer.world_size
        now, waited = time.perf_counter(), getattr(trainer.train_dataloader, "wait_seconds", 0.0)
        self.seconds, self.clock = self.seconds + now - self.clock, now
        self.waited, self.loader_clock = self.waited + waited - self.loader_clock, waited
        if is_step and not self.deferred:
            self.norms.append(float(norm or 0.0))
            self.last_loss = self.losses[-1]
            if math.isnan(self.first_loss):
                self.first_loss = self.last_loss
        if row_is_due:
            self.log_row(trainer, step)

    def log_row(self, trainer: pl.Trainer, step: int) -> None:
        measures = getattr(trainer.lightning_module, "measured", {})
        clip = trainer.gradient_clip_val or math.inf
        row = {
            "train_loss": math.fsum(self.losses) / len(self.losses),
            "gradient_norm": math.fsum(self.norms) / len(self.norms),
            "clipped_share": sum(norm > clip for norm in self.norms) / len(self.norms),
            f"{self.unit}_per_second": self.units_per_second,
            "loader_wait_share": (self.waited - self.interval[2]) / max(1e-9, self.seconds - self.interval[1]),
            **learning_rates(trainer.optimizers[0]),
            **self.layer_norms,
            **{name: float(value) for name, value in measures.items()},
        }
        self.write(trainer, step, row)
        self.interval = (self.units, self.seconds, self.waited)
        self.losses, self.norms = [], []

    def write(self, trainer: pl.Trainer, step: int, row: dict[str, float]) -> None:
        if not trainer.is_global_zero:
            return
        epoch = batches_begun(trainer) / self.batches_per_epoch
        shared = {
            "epoch": round(epoch, 4),
            self.unit: self.units,
            **({"flops": self.flops} if self.batch_flops else {}),
            "seconds": round(self.seconds, 3),
            "time": round(time.time(), 3),
            "attempt": self.attempt,
        }
        for logger in trainer.loggers:
            logger.log_metrics({**shared, **row}, step)
        for read in self.readers:
            read({"step": step, **shared, **row})

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.log_evaluation(trainer, pl_module, "valid")

    @property
    def measured(self) -> dict[str, float]:
        """The results of the last validation, under the names of its row."""
        return {f"valid_{name}": value for name, value in self.results.get("valid", {}).items()}

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.log_evaluation(trainer, pl_module, "test")

    def log_evaluation(self, trainer: pl.Trainer, pl_module: pl.LightningModule, split: str) -> None:
        """Write and print the results of an evaluation."""
        assert isinstance(pl_module, Model)
        result = derived(self.measures, pl_module.results, self.data.facts.get(split, {}))
        expected = self.expected_targets(split)
        assert expected in (None, result["targets"]), f"{split}: {result['targets']} targets read of {expected}"
        self.results[split] = result
        self.write(trainer, trainer.global_step, {f"{split}_{name}": value for name, value in result.items()})
        if trainer.is_global_zero:
            line = f"{split} {evaluation_line(self.measures, result)}, of {result['targets']:,.0f} {self.unit}"
            print(f"step {trainer.global_step:>6}  {line}")
        self.clock = 0.0


def record_model(folder: Path, model: pl.LightningModule, trainer: pl.Trainer) -> None:
    if not is_first_process():
        return
    parameters = list(model.parameters())
    sizes = {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "trainable_parameters": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        "bytes": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        "accelerator": type(trainer.accelerator).__name__.removesuffix("Accelerator").lower(),
        "devices_per_node": trainer.num_devices,
        "nodes": trainer.num_nodes,
        "processes": trainer.world_size,
        "precision": str(trainer.precision),
    }
    write_json(folder / "model.json", sizes)
    write_text(folder / "model.txt", module_table(model))


def module_table(model: nn.Module) -> str:
    """A line a module: name, kind, parameters; modules without parameters are skipped."""
    rows = [("module", "kind", "parameters"), ("(all)", type(model).__name__, size_of(model))]
    for name, module in model.named_modules():
        if name and name.count(".") < DEPTH and any(True for _ in module.parameters()):
            rows.append((name, type(module).__name__, size_of(module)))
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "".join(f"{name:{first}}  {kind:{second}}  {size:>15}\n" for name, kind, size in rows)


def size_of(module: nn.Module) -> str:
    return f"{sum(parameter.numel() for parameter in module.parameters()):,}"
