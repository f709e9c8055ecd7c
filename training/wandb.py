"""A logger for Weights & Biases that writes from its own thread: training neither waits for W&B nor fails with it.

Without a login or a network it writes into the run folder, and `python -m runs sync` uploads that.
"""

from __future__ import annotations

import atexit
import os
import queue
import shlex
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers.logger import Logger
from torch import Tensor

from config import RunConfig
from core.files import read_rows
from core.progress import CLEAR_LINE, Screen
from runs import RunFolder, is_first_process
from runs.pictures import pictures_by_step
from runs.process import EXIT_RESUMABLE
from runs.run import Run
from runs.wandb import (
    Rows,
    client,
    close_wandb,
    log_checkpoints,
    log_results,
    offline_runs,
    open_wandb,
    picture_row,
    rows_by_step,
    why_offline,
)

INIT_SECONDS = 20.0
CLOSE_SECONDS = 60.0
HURRIED_CLOSE_SECONDS = 10.0  # a run that fails or that a signal ends has little time
BYTES_PER_SECOND = 1e6  # the end waits for an upload at least this fast
MOST_QUEUED = 1000  # rows; more than this, and W&B hangs
BINS = 64


def wandb_logger(config: RunConfig, folder: RunFolder) -> WandbLogger | None:
    """The W&B logger of this run, or None where W&B is off; prints one line about it."""
    if config.logging.no_wandb or not is_first_process() or os.environ.get("WANDB_MODE") == "disabled":
        return None
    try:
        return WandbLogger(folder, offline=config.logging.wandb_offline, console=config.logging.console_log_filename)
    except Exception as error:
        print_line(f"could not begin ({reason(error)}): the run continues without it.", Run(folder.path))
        tear_down()
        return None


class WandbLogger(Logger):
    """Queues rows and pictures and sends them from its thread; the first error ends W&B, not the run."""

    def __init__(self, folder: RunFolder, offline: bool, console: str, close_seconds: float = CLOSE_SECONDS) -> None:
        """console: name of the log file. close_seconds: that the end of a run waits for W&B, uploads apart."""
        super().__init__()
        self.close_seconds = close_seconds
        self.run = Run(folder.path)
        self.wandb_run, self.is_online = self.open(offline)
        earlier = self.run.metrics()
        self.rows = Rows(self.wandb_run, earlier, self.run.task)
        self.console = folder.path / console
        is_new = self.is_online and not self.wandb_run.resumed
        self.console_read = 0 if is_new else int(getattr(sys.stdout, "began", 0))
        self.alarms_read = len(read_rows(folder.path / "alarms.jsonl"))
        self.first_step: int | None = None
        self.went_back = False  # to an earlier step, of which W&B keeps the abandoned rows
        self.is_off = False
        self.is_closed = False
        self.tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.work, name="wandb", daemon=True)
        self.thread.start()
        pictures = pictures_by_step(folder.path)
        self.send(lambda: self.catch_up(earlier, pictures))
        atexit.register(self.close, 1)

    def open(self, offline: bool) -> tuple[Any, bool]:
        """W&B's run object, and whether it is online."""
        why = "--wandb_offline" if offline else "WANDB_MODE" if os.environ.get("WANDB_MODE") == "offline" else ""
        why = why or why_offline() or ""
        limits = {"init_timeout": INIT_SECONDS, "finish_timeout": self.close_seconds, "finish_timeout_raises": True}
        if not why:
            try:
                wandb_run = open_wandb(self.run, self.run.path, self.run.run_id, offline=False, **limits)
                print(f"W&B: {wandb_run.url}")
                return wandb_run, True
            except Exception as error:
                why = reason(error)
                tear_down()  # the id is in use otherwise
        wandb_run = open_wandb(self.run, self.run.path, self.run.run_id, offline=True, **limits)
        print_line(f"offline, {why}; its files stay in the run folder.", self.run)
        return wandb_run, False

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def version(self) -> str:
        return self.run.run_id

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """All settings were sent when the run was opened."""

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.send(lambda: self.log_row({"step": step, **metrics}))

    def log_histograms(self, histograms: dict[str, tuple[np.ndarray, np.ndarray]], step: int) -> None:
        """histograms: {name: (counts, edges)}"""

        def log() -> None:
            build = client().Histogram
            self.log_row({"step": step} | {name: build(np_histogram=one) for name, one in histograms.items()})

        self.send(log)

    def log_pictures(self, pictures: dict[str, Path], step: int) -> None:
        """pictures: {name: PNG file}, drawn at this step."""
        if pictures:
            self.send(lambda: self.log_row(picture_row(pictures, step)))

    def send(self, task: Callable[[], object]) -> None:
        """Queue a task for the thread; never waits."""
        if self.is_off or self.is_closed:
            return
        if self.tasks.qsize() > MOST_QUEUED:
            self.give_up("it takes no more rows")
        self.tasks.put(task)

    def work(self) -> None:
        while (task := self.tasks.get()) is not None:
            if not self.is_off:
                try:
                    task()
                except Exception as error:
                    self.give_up(reason(error))
                    with suppress(Exception):
                        close_wandb(self.wandb_run, 1)  # with what it has received so far

    def catch_up(self, earlier: list[dict[str, Any]], pictures: dict[str, dict[int, Path]]) -> None:
        """Send the rows and pictures of earlier attempts that W&B does not have."""
        if self.is_online:
            for row in rows_by_step(earlier, pictures):
                if row["step"] >= self.wandb_run.starting_step:
                    self.rows.log(row)

    def log_row(self, row: dict[str, Any]) -> None:
        self.went_back |= row["step"] < self.rows.step
        self.rows.log(row)
        self.first_step = row["step"] if self.first_step is None else self.first_step
        self.send_output_and_alarms()

    def send_output_and_alarms(self) -> None:
        """Send what was printed and which alarms were raised since the last call."""
        if size_of(self.console) > self.console_read:
            with open(self.console, "rb") as file:
                file.seek(self.console_read)
                printed = file.read()
            lines = printed[: printed.rfind(b"\n") + 1]
            self.wandb_run.write_logs(lines.decode(errors="replace"))
            self.console_read += len(lines)
        alarms = read_rows(self.run.path / "alarms.jsonl")
        for alarm in alarms[self.alarms_read :] if self.is_online else []:
            self.wandb_run.alert(str(alarm.get("kind")), f"{alarm.get('text')} {alarm.get('advice')}")
        self.alarms_read = len(alarms)

    def close(self, status: int) -> None:
        """Send the results and close the run of W&B, within a time limit; `status`: exit status of the run."""
        atexit.unregister(self.close)
        if self.is_closed:
            return
        limit = HURRIED_CLOSE_SECONDS if status else self.close_seconds
        if self.is_online and not status:
            checkpoints = [self.run.path / "checkpoints" / f"{name}.ckpt" for name in ("best", "last")]
            limit += sum(map(size_of, checkpoints)) / BYTES_PER_SECOND
        self.send(lambda: self.end(status))
        self.is_closed = True
        self.tasks.put(None)
        self.thread.join(limit)
        if self.thread.is_alive():
            self.give_up(f"it did not take everything within {limit:.0f} s")
        if self.is_off:
            tear_down()

    def end(self, status: int) -> None:
        try:
            self.send_output_and_alarms()
            log_results(self.rows, self.run)
            if status == 0:
                log_checkpoints(self.wandb_run, self.run, Path(self.wandb_run.settings.sync_dir))
            elif status == EXIT_RESUMABLE:
                self.wandb_run.mark_preempting()
        finally:
            close_wandb(self.wandb_run, status)
        *earlier, done = offline_runs(self.run.path)
        if not self.went_back:
            done.mark_complete(self.rows.step if self.first_step is None else self.first_step, self.rows.step)
        if self.is_online:  # and so have the rows of those before it, see catch_up
            for synced in (*earlier, done):
                synced.mark_synced()

    def give_up(self, why: str) -> None:
        """From here on without W&B; printed once."""
        if not self.is_off:
            self.is_off = True
            print_line(f"stopped ({why}){'' if self.is_closed else ': the run continues without it'}.", self.run)


def print_line(message: str, run: Run) -> None:
    """One line, and how to upload what W&B does not have."""
    logs = run.path.parent.parent
    sync = ["python", "-m", "runs", "sync", run.run_id] + (["--logs_dir", str(logs)] if str(logs) != "logs" else [])
    start = CLEAR_LINE if Screen().is_terminal else ""  # over the moving line of the training
    print(f"{start}W&B: {message} Upload later: {shlex.join(sync)}", flush=True)


def reason(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:160]}" if words else type(error).__name__


def tear_down() -> None:
    """End W&B's process and its exit hook, whatever state they are in."""
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if child.name() == "wandb-core":
                child.kill()
                child.wait(5)
    with suppress(Exception):
        client().teardown()


def size_of(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


class Histograms(pl.Callback):
    """--wandb_watch: how parameters and gradients are distributed, every so many steps.

    Counted from what the step itself left behind, after the backward pass and before clipping. Hooks into the graph, as
    wandb.watch sets them, would also fire while an energy is differentiated by its prediction.
    """

    def __init__(self, logger: WandbLogger, every: int) -> None:
        self.logger, self.every = logger, every

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any) -> None:
        step = trainer.global_step + 1
        if step % self.every == 0:
            tensors = {f"parameters/{name}": value for name, value in pl_module.named_parameters()}
            gradients = {f"gradients/{name}": value.grad for name, value in pl_module.named_parameters()}
            histograms = {name: histogram(value) for name, value in (tensors | gradients).items() if value is not None}
            self.logger.log_histograms({name: one for name, one in histograms.items() if one is not None}, step)


def histogram(values: Tensor) -> tuple[np.ndarray, np.ndarray] | None:
    """Counts and edges of the finite values; None where there are none."""
    flat = values.detach().float().flatten()
    finite = flat[torch.isfinite(flat)]
    if not len(finite):
        return None
    low, high = (float(end) for end in torch.aminmax(finite))
    if low == high:
        low, high = low - 0.5, high + 0.5
    counts = torch.histc(finite, BINS, low, high)
    return counts.cpu().numpy(), np.linspace(low, high, BINS + 1)
