"""All that touches Lightning's internals. It is pinned to a minor version; a new one is tested against this file.

Everything else in training/ uses its documented interface: Trainer, Callback, Logger, CheckpointIO, ClusterEnvironment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.plugins.io import CheckpointIO
from torch import Tensor


def is_accumulating(trainer: pl.Trainer) -> bool:
    """Whether the batch just trained on was not the last one of its optimizer step."""
    return trainer.fit_loop._should_accumulate()


def batches_begun(trainer: pl.Trainer) -> int:
    """Training batches of the whole run, the present one included."""
    return trainer.fit_loop.epoch_loop.total_batch_idx + 1


def batches_done(trainer: pl.Trainer) -> int:
    """Training batches of the whole run that a checkpoint saved now contains."""
    # `processed` and not `completed`, which Lightning counts up only after the callbacks that save checkpoints.
    return trainer.fit_loop.epoch_loop.batch_progress.total.processed  # type: ignore[attr-defined]


def has_gradient_scaler(trainer: pl.Trainer) -> bool:
    """Whether half precision skips steps whose gradient overflows."""
    return getattr(trainer.precision_plugin, "scaler", None) is not None


def loop_state(loops: dict[str, Any], step: int) -> dict[str, Any]:
    """Lightning's loop counters as if the loop were about to begin, as many batches into the run as were completed.

    The whole run is one Lightning epoch (the loader crosses the data's epochs itself), so all that has to
    survive is how many batches and optimizer steps were taken. Lightning restores a loop that was interrupted
    half-way by heuristics; this form needs none.
    """
    fit = dict(loops["fit_loop"])
    completed = fit["epoch_loop.batch_progress"]["total"]["completed"]

    def counts(value: int) -> dict[str, int]:
        return {"ready": value, "started": value, "processed": value, "completed": value}

    fit["state_dict"] = {}
    fit["epoch_progress"] = {"total": counts(0), "current": counts(0)}
    fit["epoch_loop.state_dict"] = {"_batches_that_stepped": step}
    batches = counts(completed)
    fit["epoch_loop.batch_progress"] = {"total": batches, "current": dict(batches), "is_last_batch": False}
    fit["epoch_loop.val_loop.batch_progress"] = {"total": counts(0), "current": counts(0), "is_last_batch": False}
    return {**loops, "fit_loop": fit}


def run_validation(trainer: pl.Trainer) -> None:
    """Run a validation now, from inside `fit` and before its first batch."""
    trainer.validating = True
    trainer.fit_loop.epoch_loop.val_loop.restarting = False
    trainer.fit_loop.epoch_loop.val_loop.run()
    trainer.training = True


def disable_signal_handlers(trainer: pl.Trainer) -> None:
    """Lightning's own handlers would end the run, or hang in it, where ours only record the signal."""
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]


def add_callbacks(trainer: pl.Trainer, callbacks: Iterable[pl.Callback]) -> None:
    """Callbacks that could be built only when the trainer knew its processes."""
    trainer.callbacks += list(callbacks)  # type: ignore[attr-defined]


def add_logger(trainer: pl.Trainer, logger: Logger) -> None:
    trainer.loggers = [*trainer.loggers, logger]


def set_checkpoint_io(trainer: pl.Trainer, checkpoint_io: CheckpointIO) -> None:
    trainer.strategy.checkpoint_io = checkpoint_io


def started_its_processes(trainer: pl.Trainer) -> bool:
    """Whether Lightning itself started the other processes of this run, if there are any."""
    environment = getattr(trainer.strategy, "cluster_environment", None)
    return trainer.world_size == 1 or isinstance(environment, LightningEnvironment)


def mean_over_processes(trainer: pl.Trainer, value: Tensor) -> Tensor:
    return trainer.strategy.reduce(value, reduce_op="mean") if trainer.world_size > 1 else value


def any_process(trainer: pl.Trainer, condition: bool) -> bool:
    """Whether the condition holds on any process of the run."""
    return trainer.strategy.reduce_boolean_decision(condition, all=False) if trainer.world_size > 1 else condition


def wait_for_all_processes(trainer: pl.Trainer) -> None:
    trainer.strategy.barrier()
