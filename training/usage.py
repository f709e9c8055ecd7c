"""What a run takes from its machine, sampled in the background: CPU, memory, GPU, disk and waiting for the loader."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytorch_lightning as pl
import torch

from config import RunConfig
from config.cpus import own_cpus
from core.files import append_row, read_rows, write_json, write_text
from data.watch import own_memory
from training.recorder import Recorder
from training.verdicts import Machine, summarise

SOONEST, LATEST = 1.0, 10.0  # seconds between samples: often at first, so that a short run has some
COST_SHARE = 300  # and at least so many times as long as a sample takes
MOST_SAMPLES = 2000  # of a run; beyond that every second one is dropped, and they come half as often
JOIN_SECONDS = 10.0  # for the last sample; a file system that hangs must not hold the end of a run
TENSOR_SECONDS = 60.0  # between counts of live tensors, which look at every object
TENSOR_SHARE = 1000  # and so many times as long as a count takes


class Processes:
    """CPU time and disk traffic of this process and all that it started, those that ended meanwhile included."""

    def __init__(self) -> None:
        self.own = psutil.Process()
        self.seconds: dict[tuple[int, float], float] = {}  # CPU time by process
        self.traffic: dict[tuple[int, float], tuple[int, int]] = {}  # bytes read and written by process
        self.before = self.first = self.read()

    def read(self) -> dict[str, float]:
        """Totals since each process began, and the memory that all hold now."""
        tree = [self.own]
        with suppress(psutil.Error):
            tree += self.own.children(recursive=True)
        for process in tree:
            with suppress(psutil.Error, OSError):
                key = (process.pid, process.create_time())
                times = process.cpu_times()
                self.seconds[key] = times.user + times.system
                counters = process.io_counters()
                self.traffic[key] = (counters.read_bytes, counters.write_bytes)
        memory = 0
        with suppress(psutil.Error, OSError):
            # A process alone shares no page with another of the run: then it is told without a walk over all its pages.
            alone = self.own.memory_info()
            memory = own_memory(tree) if len(tree) > 1 else alone.rss - getattr(alone, "shared", 0)
        return {
            "clock": time.perf_counter(),
            "cpu_seconds": sum(self.seconds.values()),
            "memory_bytes": memory,
            "read_bytes": sum(read for read, _ in self.traffic.values()),
            "written_bytes": sum(written for _, written in self.traffic.values()),
        }

    def sample(self) -> dict[str, Any]:
        """CPU since the last sample in percent of one core, memory now, disk traffic since the first."""
        now, before = self.read(), self.before
        self.before = now
        passed = max(1e-6, now["clock"] - before["clock"])
        return {
            "cpu_percent": round(100 * (now["cpu_seconds"] - before["cpu_seconds"]) / passed, 1),
            "memory_bytes": now["memory_bytes"],
            "read_bytes": now["read_bytes"] - self.first["read_bytes"],
            "written_bytes": now["written_bytes"] - self.first["written_bytes"],
        }


def allowances() -> Iterator[float]:
    """Bytes of memory that Slurm or a container allows this process, where one of them does."""
    yield float(os.environ.get("SLURM_MEM_PER_NODE") or "inf") * 2**20
    with suppress(OSError, ValueError):
        group = Path("/proc/self/cgroup").read_text().partition("0::/")[2].split("\n")[0]
        for folder in ("/sys/fs/cgroup", f"/sys/fs/cgroup/{group}"):
            with suppress(OSError, ValueError):
                yield float((Path(folder) / "memory.max").read_text())


def gpu_sample() -> dict[str, float]:
    """Mean utilisation and the fullest memory of the GPUs that torch sees; nothing where there are none."""
    if not torch.cuda.is_initialized():
        return {}
    try:
        devices = range(torch.cuda.device_count())
        return {
            "gpu_percent": sum(torch.cuda.utilization(device) for device in devices) / len(devices),
            "gpu_memory_bytes": max(torch.cuda.device_memory_used(device) for device in devices),
        }
    except Exception:  # a driver that does not answer costs the numbers
        return {}


def live_tensors() -> int:
    """How many tensors Python holds; a leak of losses or activations shows here."""
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


class Usage(pl.Callback):
    """Samples a run while it trains into usage.jsonl, and sums up in usage.json what that says.

    The thread only looks: it takes no lock, so loader processes may be forked at any time, and whatever goes wrong
    in it costs samples and never the run.
    """

    def __init__(self, folder: Path, config: RunConfig, recorder: Recorder, row_bytes: float) -> None:
        self.path = folder / "usage.jsonl"
        self.config = config
        self.recorder = recorder
        self.row_bytes = row_bytes  # what the backward pass keeps for one row of a batch
        self.step = 0
        self.rows: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.thread: threading.Thread | None = None
        self.ended = threading.Event()
        self.counted = (time.monotonic(), 0.0)  # when tensors were counted last, and how long that took
        self.waited = (0.0, 0.0)  # seconds waited and seconds of training at the last sample
        self.least_free = psutil.virtual_memory().available
        self.factor = 1.0  # samples come so many times more rarely than at first

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            self.begin()

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any, **more: Any) -> None:
        self.step = trainer.global_step

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.end()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.end()

    def begin(self) -> None:
        self.rows = self.kept()
        self.waited = (self.recorder.waited, self.recorder.seconds)
        self.ended.clear()
        self.thread = threading.Thread(target=self.watch, name="usage", daemon=True)
        self.thread.start()

    def kept(self) -> list[dict[str, Any]]:
        """The samples of earlier attempts."""
        try:
            return read_rows(self.path)[-MOST_SAMPLES:]
        except OSError:
            return []

    def end(self) -> None:
        """Take a last sample, and sum up."""
        if self.thread is None:
            return
        self.ended.set()
        self.thread.join(timeout=JOIN_SECONDS)
        self.thread = None
        with suppress(Exception):
            self.summary = summarise(self.rows, self.machine(), self.config)
            write_json(self.path.with_name("usage.json"), self.summary)

    def watch(self) -> None:
        """What the thread does."""
        processes, began, cost = Processes(), time.monotonic(), 0.0
        ended = False
        while not ended:
            pause = max(SOONEST, COST_SHARE * cost, min(LATEST, (time.monotonic() - began) / 30))
            ended = self.ended.wait(self.factor * pause)
            start = time.thread_time()
            with suppress(Exception):
                self.take(processes)
            cost = time.thread_time() - start

    def take(self, processes: Processes) -> None:
        """One sample, in memory and in the file."""
        row = {"time": round(time.time(), 3), "step": self.step, "attempt": self.recorder.attempt}
        row |= {**processes.sample(), **gpu_sample()}
        waited, seconds = self.recorder.waited, self.recorder.seconds
        if seconds > self.waited[1]:
            row["loader_wait_share"] = round((waited - self.waited[0]) / (seconds - self.waited[1]), 4)
            self.waited = (waited, seconds)
        self.least_free = min(self.least_free, psutil.virtual_memory().available)
        last, took = self.counted
        if time.monotonic() - last > max(TENSOR_SECONDS, TENSOR_SHARE * took):
            start = time.thread_time()
            row["tensors"] = live_tensors()
            self.counted = (time.monotonic(), time.thread_time() - start)
        self.rows.append(row)
        with suppress(OSError):
            if len(self.rows) < MOST_SAMPLES:
                append_row(self.path, row)
            else:
                self.rows, self.factor = self.rows[1::2], 2 * self.factor
                write_text(self.path, "".join(json.dumps(row) + "\n" for row in self.rows))

    def machine(self) -> Machine:
        """What there was to use."""
        gpu = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_initialized() else 0
        total = psutil.virtual_memory().total
        return Machine(
            cores=psutil.cpu_count() or 1,
            memory_bytes=total,
            allowed_bytes=min(total, *allowances()),
            free_bytes=self.least_free,
            gpu_memory_bytes=gpu,
            row_bytes=self.row_bytes,
            tokens_per_second=self.recorder.tokens / max(1e-9, self.recorder.seconds),
            wait_share=self.recorder.waited / max(1e-9, self.recorder.seconds),
            own_cores=own_cpus(),
        )
