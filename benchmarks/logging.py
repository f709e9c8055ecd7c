"""What recording a run costs: the share of the training time that metrics, heartbeat, alarms and usage take."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytorch_lightning as pl

from benchmarks.measure import Measurement
from config import parse_command_line
from runs import RunFolder
from runs.attempts import Attempt
from tasks.language import TASK
from training.health import Alarms
from training.peers import Peers
from training.progress import Heartbeat
from training.recorder import Recorder
from training.trainer import Training, prepare_process
from training.usage import Usage

STEPS = 200
FLAGS = ("--no_wandb", "--val_sanity", "0", "--limit_val_batches", "0", "--checkpoint_every_n_steps", "0")
HOOKS = ("on_train_start", "on_train_batch_start", "on_train_batch_end", "on_before_zero_grad")
PARTS: dict[type[pl.Callback], str] = {
    Recorder: "metrics",
    Heartbeat: "heartbeat",
    Alarms: "health",
    Usage: "usage",
}


def run(*flags: str) -> list[Measurement]:
    with tempfile.TemporaryDirectory() as logs:
        spent, training = measure(["--logs_dir", logs, "--max_steps", str(STEPS), *FLAGS, *flags])
    note = "share of the time of training; steps of the default model"
    shares = {f"logging: {name}": 100 * seconds / training for name, seconds in spent.items()}
    shares["logging: all of it"] = sum(shares.values())
    return [Measurement(name, share, "%", note) for name, share in shares.items()]


def measure(flags: list[str]) -> tuple[dict[str, float], float]:
    """Seconds that each part took, and seconds of training."""
    config = parse_command_line(flags)
    prepare_process(config)
    data = TASK.data(config)
    model = TASK.model(config, data.spec)
    folder = RunFolder.for_run(config)
    training = Training(TASK, config, folder, data, model, Attempt(folder, 0), Peers(), calibrate=True)
    spent = dict.fromkeys(PARTS.values(), 0.0)
    for callback in training.trainer.callbacks:  # type: ignore[attr-defined]
        if part := PARTS.get(type(callback)):
            for hook in HOOKS:
                setattr(callback, hook, timed(getattr(callback, hook), part, spent, time.perf_counter))
    reads = {"health": 0.0}
    training.recorder.readers = [timed(read, "health", reads, time.perf_counter) for read in training.recorder.readers]
    sampler: Any = training.usage
    sampler.take_sample = timed(sampler.take_sample, "usage", spent, time.thread_time)
    training.fit(None)
    spent["metrics"] -= reads["health"]  # the recorder calls the alarms
    spent["health"] += reads["health"]
    return spent, training.recorder.seconds


def timed(
    call: Callable[..., Any], part: str, spent: dict[str, float], clock: Callable[[], float]
) -> Callable[..., Any]:
    """The same function, whose time is added up."""

    @wraps(call)
    def wrapper(*args: Any, **named: Any) -> Any:
        start = clock()
        try:
            return call(*args, **named)
        finally:
            spent[part] += clock() - start

    return wrapper
