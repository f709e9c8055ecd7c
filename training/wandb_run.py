"""A run's page on Weights & Biases, written from a thread of its own: training neither waits for W&B nor fails with it.

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
from runs import RunFolder, is_first_process
from runs.reading import Run
from runs.signals import GOES_ON
from runs.wandb_page import Rows, client, close_page, log_checkpoints, log_results, open_page, pieces_of, why_offline

INIT_SECONDS = 20.0
CLOSE_SECONDS = 60.0
HURRY_SECONDS = 10.0  # a run that was told to end has little time
BYTES_PER_SECOND = 1e6  # an upload at least this fast is waited for
WAITING_ROWS = 1000  # more than this, and W&B hangs
BINS = 64


def wandb_run(config: RunConfig, folder: RunFolder) -> WandbRun | None:
    """The page of this run, or None where there is to be none; says in one line which it is."""
    if config.logging.no_wandb or not is_first_process() or os.environ.get("WANDB_MODE") == "disabled":
        return None
    try:
        return WandbRun(folder, offline=config.logging.wandb_offline, console=config.logging.console_log_filename)
    except Exception as error:
        say(f"could not begin ({reason(error)}): the run goes on without it.", Run(folder.path))
        tear_down()
        return None


class WandbRun(Logger):
    """Takes rows and pictures at once and hands them on when W&B takes them; the first error ends W&B, not the run."""

    def __init__(self, folder: RunFolder, offline: bool, console: str) -> None:
        super().__init__()
        self.run = Run(folder.path)
        self.page, self.is_online = self.begin(offline)
        earlier = self.run.metrics()
        self.rows = Rows(self.page, earlier)
        self.console = folder.path / console
        is_new = self.is_online and not self.page.resumed
        self.console_read = 0 if is_new else int(getattr(sys.stdout, "began", 0))
        self.alarms_read = len(read_rows(folder.path / "alarms.jsonl"))
        self.first_step: int | None = None
        self.went_back = False  # to an earlier step, of which W&B keeps the abandoned rows
        self.is_off = False
        self.is_closed = False
        self.tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.work, name="wandb", daemon=True)
        self.thread.start()
        self.send(lambda: self.catch_up(earlier))
        atexit.register(self.close, 1)

    def begin(self, offline: bool) -> tuple[Any, bool]:
        """The page, and whether it is online."""
        why = "--wandb_offline" if offline else "WANDB_MODE" if os.environ.get("WANDB_MODE") == "offline" else ""
        why = why or why_offline() or ""
        limits = {"init_timeout": INIT_SECONDS, "finish_timeout": CLOSE_SECONDS, "finish_timeout_raises": True}
        if not why:
            try:
                page = open_page(self.run, self.run.path, self.run.run_id, offline=False, **limits)
                print(f"W&B: {page.url}")
                return page, True
            except Exception as error:
                why = reason(error)
                tear_down()  # the id is in use otherwise
        page = open_page(self.run, self.run.path, self.run.run_id, offline=True, **limits)
        say(f"offline, {why}; its files stay in the run folder.", self.run)
        return page, False

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def version(self) -> str:
        return self.run.run_id

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """All settings went with the opening of the page."""

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.send(lambda: self.log_row({"step": step, **metrics}))

    def log_histograms(self, counted: dict[str, tuple[np.ndarray, np.ndarray]], step: int) -> None:
        """counted: {name: (counts, edges)}"""

        def log() -> None:
            kind = client().Histogram
            self.log_row({"step": step} | {name: kind(np_histogram=both) for name, both in counted.items()})

        self.send(log)

    def send(self, task: Callable[[], object]) -> None:
        """Hand a task to the thread; never waits."""
        if self.is_off or self.is_closed:
            return
        if self.tasks.qsize() > WAITING_ROWS:
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
                        close_page(self.page, 1)  # what it was given, it may keep

    def catch_up(self, earlier: list[dict[str, Any]]) -> None:
        """Send the rows that earlier attempts measured and could not hand over."""
        if self.is_online:
            for row in earlier:
                if isinstance(row.get("step"), int) and row["step"] >= self.page.starting_step:
                    self.rows.log(row)

    def log_row(self, row: dict[str, Any]) -> None:
        self.went_back |= row["step"] < self.rows.step
        self.rows.log(row)
        self.first_step = row["step"] if self.first_step is None else self.first_step
        self.follow()

    def follow(self) -> None:
        """Send what was printed and what gave alarm since the last time."""
        if size_of(self.console) > self.console_read:
            with open(self.console, "rb") as file:
                file.seek(self.console_read)
                printed = file.read()
            lines = printed[: printed.rfind(b"\n") + 1]
            self.page.write_logs(lines.decode(errors="replace"))
            self.console_read += len(lines)
        alarms = read_rows(self.run.path / "alarms.jsonl")
        for alarm in alarms[self.alarms_read :] if self.is_online else []:
            self.page.alert(str(alarm.get("kind")), f"{alarm.get('text')} {alarm.get('advice')}")
        self.alarms_read = len(alarms)

    def close(self, status: int) -> None:
        """Send the results, end the page and wait for that, but not long; `status` is how the run ended."""
        atexit.unregister(self.close)
        if self.is_closed:
            return
        limit = HURRY_SECONDS if status else CLOSE_SECONDS
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
            self.follow()
            log_results(self.rows, self.run)
            if status == 0:
                log_checkpoints(self.page, self.run, Path(self.page.settings.sync_dir))
            elif status == GOES_ON:
                self.page.mark_preempting()
        finally:
            close_page(self.page, status)
        *earlier, done = pieces_of(self.run.path)
        if not self.went_back:
            done.mark_whole(self.rows.step if self.first_step is None else self.first_step, self.rows.step)
        if self.is_online:  # and so have the rows of those before it, see catch_up
            for synced in (*earlier, done):
                synced.mark_synced()

    def give_up(self, why: str) -> None:
        """From here on without W&B; said once."""
        if not self.is_off:
            self.is_off = True
            say(f"stopped ({why}){'' if self.is_closed else ': the run goes on without it'}.", self.run)


def say(what: str, run: Run) -> None:
    """One line, and how to upload what W&B does not have."""
    logs = run.path.parent.parent
    again = ["python", "-m", "runs", "sync", run.run_id] + (["--logs_dir", str(logs)] if str(logs) != "logs" else [])
    start = "\r\x1b[2K" if sys.__stderr__ is not None and sys.__stderr__.isatty() else ""  # over a moving bar
    print(f"{start}W&B: {what} Upload later: {shlex.join(again)}", flush=True)


def reason(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:160]}" if words else type(error).__name__


def tear_down() -> None:
    """End W&B's process and its hold on our exit, whatever state they are in."""
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

    def __init__(self, page: WandbRun, every: int) -> None:
        self.page, self.every = page, every

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any) -> None:
        step = trainer.global_step + 1
        if step % self.every == 0:
            tensors = {f"parameters/{name}": value for name, value in pl_module.named_parameters()}
            gradients = {f"gradients/{name}": value.grad for name, value in pl_module.named_parameters()}
            counted = {name: histogram(value) for name, value in (tensors | gradients).items() if value is not None}
            self.page.log_histograms({name: both for name, both in counted.items() if both is not None}, step)


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
