"""What a run takes from its machine, sampled in the background: CPU, memory, GPU, disk and waiting for the loader.

Usage writes the samples to usage.jsonl; pure functions over these rows say what they add up to and what to change.
"""

from __future__ import annotations

import gc
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import psutil
import pytorch_lightning as pl
import torch

from config import RunConfig
from config.record import values_of
from core.cpus import own_cpus
from core.files import append_row, read_rows, write_json
from core.text import format_bytes
from data.inspect import memory_growth, private_memory
from training.recorder import Recorder, write_rows

JOIN_SECONDS = 10.0  # for the last sample; a file system that hangs must not hold the end of a run
STARVED = 0.1  # share of the time spent on waiting for batches that is worth a change
TIGHT = 0.1  # share of memory left free that is little
USABLE = 0.8  # share of the free memory that a larger batch may count on
LARGEST_BATCH = 4096
SMALLEST_LEAK = 32 * 2**20  # bytes; a smaller growth is caches and fragments
FEWEST_STEPS = 16  # with samples, before a growth is judged
LEAK_SHARE = 0.03  # of the memory held
JITTER = 1.1  # CPU time is counted in ticks: so much over the number of cores is still possible
Row = dict[str, Any]


@dataclass(frozen=True)
class SamplingRate:
    """How often a run is sampled: often at first, so that a short run has samples, and rarely enough to cost nothing.

    shortest, longest: seconds between samples. cost_factor: a pause is at least so many times as long as a sample took.
    most: samples of a run; beyond that every second one is dropped, and they come half as often. tensor_seconds,
    tensor_cost_factor: the same for counts of live tensors, which look at every object.
    """

    shortest: float = 1.0
    longest: float = 10.0
    cost_factor: float = 300.0
    most: int = 2000
    tensor_seconds: float = 60.0
    tensor_cost_factor: float = 1000.0

    def pause(self, elapsed: float, cost: float) -> float:
        """Seconds to the next sample. elapsed: since the first. cost: seconds that the last one took."""
        return max(self.shortest, self.cost_factor * cost, min(self.longest, elapsed / 30))

    def tensor_pause(self, cost: float) -> float:
        """Seconds to the next count of tensors. cost: seconds that the last one took."""
        return max(self.tensor_seconds, self.tensor_cost_factor * cost)


SAMPLING_RATE = SamplingRate()


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
            # A single process shares no page with another of the run: no walk over its pages is needed.
            alone = self.own.memory_info()
            memory = private_memory(tree) if len(tree) > 1 else alone.rss - getattr(alone, "shared", 0)
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


def memory_limits() -> Iterator[float]:
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
    """How many tensors Python has held for a while; a leak of losses or activations shows here.

    Only in the training thread: whoever holds a tuple while another thread still builds it makes that thread fail
    (`SystemError: bad argument to internal function`). For the same reason only objects that survived collections are
    looked at: a tuple in the making is young.
    """
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects(generation=2))


class Usage(pl.Callback):
    """Samples a run while it trains into usage.jsonl, and sums up in usage.json what that says.

    The thread only reads: it takes no lock, so loader processes may be forked at any time, and an error in it costs
    samples and never the run.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        recorder: Recorder,
        row_bytes: float,
        rate: SamplingRate = SAMPLING_RATE,
    ) -> None:
        self.path = folder / "usage.jsonl"
        self.config = config
        self.recorder = recorder
        self.row_bytes = row_bytes  # activations of one row of a batch
        self.rate = rate
        self.step = 0
        self.rows: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.thread: threading.Thread | None = None
        self.ended = threading.Event()
        self.counted = (time.monotonic(), 0.0)  # when tensors were counted last, and how long that took
        self.tensors: int | None = None  # counted since the last sample
        self.waited = (0.0, 0.0)  # seconds waited and seconds of training at the last sample
        self.least_free = psutil.virtual_memory().available
        self.factor = 1.0  # samples come so many times more rarely than at first

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            self.begin()

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any, **more: Any) -> None:
        self.step = trainer.global_step
        if self.thread is not None:
            self.count_tensors()

    def count_tensors(self) -> None:
        """Count live tensors for the next sample, if the last count is long ago."""
        last, took = self.counted
        if time.monotonic() - last > self.rate.tensor_pause(took):
            start = time.thread_time()
            self.tensors = live_tensors()
            self.counted = (time.monotonic(), time.thread_time() - start)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.end()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.end()

    def begin(self) -> None:
        self.rows = self.earlier_samples()
        self.waited = (self.recorder.waited, self.recorder.seconds)
        self.ended.clear()
        self.thread = threading.Thread(target=self.sample_until_end, name="usage", daemon=True)
        self.thread.start()

    def earlier_samples(self) -> list[dict[str, Any]]:
        """The samples of earlier attempts."""
        try:
            return read_rows(self.path)[-self.rate.most :]
        except OSError:
            return []

    def end(self) -> None:
        """Take a last sample and write the summary."""
        if self.thread is None:
            return
        self.ended.set()
        self.thread.join(timeout=JOIN_SECONDS)
        self.thread = None
        with suppress(Exception):
            self.summary = summarise(self.rows, self.machine(), self.config)
            write_json(self.path.with_name("usage.json"), self.summary)

    def sample_until_end(self) -> None:
        """The thread's work."""
        processes, began, cost = Processes(), time.monotonic(), 0.0
        ended = False
        while not ended:
            ended = self.ended.wait(self.factor * self.rate.pause(time.monotonic() - began, cost))
            start = time.thread_time()
            with suppress(Exception):
                self.take_sample(processes)
            cost = time.thread_time() - start

    def take_sample(self, processes: Processes) -> None:
        """One sample, in memory and in the file."""
        row = {"time": round(time.time(), 3), "step": self.step, "attempt": self.recorder.attempt}
        row |= {**processes.sample(), **gpu_sample()}
        waited, seconds = self.recorder.waited, self.recorder.seconds
        if seconds > self.waited[1]:
            row["loader_wait_share"] = round((waited - self.waited[0]) / (seconds - self.waited[1]), 4)
            self.waited = (waited, seconds)
        self.least_free = min(self.least_free, psutil.virtual_memory().available)
        tensors, self.tensors = self.tensors, None
        if tensors is not None:
            row["tensors"] = tensors
        self.rows.append(row)
        with suppress(OSError):
            if len(self.rows) < self.rate.most:
                append_row(self.path, row)
            else:
                self.rows, self.factor = self.rows[1::2], 2 * self.factor
                write_rows(self.path, self.rows)

    def machine(self) -> Machine:
        """The machine that the run had."""
        gpu = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_initialized() else 0
        total = psutil.virtual_memory().total
        return Machine(
            cores=psutil.cpu_count() or 1,
            memory_bytes=total,
            allowed_bytes=min(total, *memory_limits()),
            free_bytes=self.least_free,
            gpu_memory_bytes=gpu,
            row_bytes=self.row_bytes,
            unit=self.recorder.unit,
            units_per_second=self.recorder.units / max(1e-9, self.recorder.seconds),
            wait_share=self.recorder.waited / max(1e-9, self.recorder.seconds),
            own_cores=own_cpus(),
        )


@dataclass(frozen=True)
class Machine:
    """The machine that a run had.

    memory_bytes: of the machine. allowed_bytes: of it to this run. free_bytes: least that the machine had left free.
    row_bytes: memory that one row of a batch takes. own_cores: of the run's task; all of the machine's where 0.
    """

    cores: int
    memory_bytes: int
    allowed_bytes: float
    free_bytes: int
    gpu_memory_bytes: int = 0
    row_bytes: float = 0.0
    unit: str = "units"
    units_per_second: float = 0.0
    wait_share: float = 0.0
    own_cores: int = 0


@dataclass(frozen=True)
class Verdict:
    """kind: loader, memory, leak or impossible. good: nothing needs to change."""

    kind: str
    text: str
    good: bool


def summarise(rows: Sequence[Row], machine: Machine, config: RunConfig) -> dict[str, Any]:
    """The content of usage.json."""
    possible, impossible = drop_impossible(rows, machine)
    stats: dict[str, Any] = {"samples": len(rows), "cores": machine.cores, "memory_limit_bytes": machine.allowed_bytes}
    stats |= {"unit": machine.unit, f"{machine.unit}_per_second": machine.units_per_second}
    stats |= {"loader_wait_share": machine.wait_share}
    for name in ("cpu_percent", "memory_bytes", "gpu_percent", "gpu_memory_bytes"):
        if values := column(possible, name):
            stats |= {f"{name}_mean": mean(values), f"{name}_peak": max(values)}
    if machine.gpu_memory_bytes:
        stats["gpu_memory_limit_bytes"] = machine.gpu_memory_bytes
    stats |= {name: column(possible, name)[-1] for name in ("read_bytes", "written_bytes") if column(possible, name)}
    candidates = [
        loader_verdict(machine, config),
        memory_verdict(possible, machine, config),
        leak_verdict(possible),
        *impossible,
    ]
    verdicts = [verdict for verdict in candidates if verdict is not None]
    return {"stats": stats, "verdicts": [vars(verdict) for verdict in verdicts]}


def column(rows: Sequence[Row], name: str) -> list[float]:
    return [row[name] for row in rows if name in row]


def drop_impossible(rows: Sequence[Row], machine: Machine) -> tuple[list[Row], list[Verdict]]:
    """The samples without impossible values, and a verdict for each column that had some."""
    limits = {
        "cpu_percent": (0.0, 100 * machine.cores * JITTER, f"CPU of {{}} % on {machine.cores} core(s)"),
        "memory_bytes": (0.0, machine.memory_bytes, f"memory of {{}} bytes of {machine.memory_bytes}"),
        "gpu_percent": (0.0, 100.0, "GPU utilisation of {} %"),
        "gpu_memory_bytes": (0.0, machine.gpu_memory_bytes or math.inf, "GPU memory of {} bytes"),
        "loader_wait_share": (0.0, JITTER, "{} of the time spent on waiting for batches"),
        "read_bytes": (0.0, math.inf, "{} bytes read"),
        "written_bytes": (0.0, math.inf, "{} bytes written"),
    }
    wrong: dict[str, list[float]] = {}
    possible = []
    for row in rows:
        bad = {name for name, (low, high, _) in limits.items() if name in row and not low <= row[name] <= high}
        for name in bad:
            wrong.setdefault(name, []).append(row[name])
        possible.append({name: value for name, value in row.items() if name not in bad})
    return possible, [
        Verdict(
            "impossible",
            f"{limits[name][2].format(f'{worst(values):,.6g}')} cannot be true "
            f"({len(values)} of {len(rows)} samples): they are ignored.",
            False,
        )
        for name, values in wrong.items()
    ]


def worst(values: Sequence[float]) -> float:
    return max(values, key=lambda value: math.inf if math.isnan(value) else abs(value))


def loader_verdict(machine: Machine, config: RunConfig) -> Verdict:
    share, workers = machine.wait_share, config.data.num_workers
    if share < STARVED:
        return Verdict("loader", f"the loader keeps up: batches were waited for in {share:.1%} of the time.", True)
    cores = machine.own_cores or machine.cores
    if workers < cores - 1 or workers == 0:
        suggested = min(max(1, 2 * workers), max(1, cores - 1))
        change = f"--num_workers {suggested} (now {workers})"
    else:
        change = f"--prefetch_factor {2 * config.data.prefetch_factor} (now {config.data.prefetch_factor})"
    if values_of(config).get("pretokenize_dataset") is False:
        change = f"--pretokenize_dataset, or {change}"
    return Verdict(
        "loader",
        f"starved by the loader: {share:.0%} of the time was spent on waiting for batches; try {change}; "
        "--debug_dataloader measures it.",
        False,
    )


def memory_verdict(rows: Sequence[Row], machine: Machine, config: RunConfig) -> Verdict | None:
    """How much memory is left, and the batch that it would hold."""
    on_gpu = bool(machine.gpu_memory_bytes and column(rows, "gpu_memory_bytes"))
    used = max(column(rows, "gpu_memory_bytes" if on_gpu else "memory_bytes"), default=0)
    limit = machine.gpu_memory_bytes if on_gpu else machine.allowed_bytes
    free = max(0, limit - used) if on_gpu else max(0, min(machine.free_bytes, limit - used))
    if not used:
        return None
    batch = config.trainer.batch_size_per_device
    name = "GPU memory" if on_gpu else "memory"
    if free < TIGHT * limit:
        return Verdict(
            "memory",
            f"{name} is nearly full: {format_bytes(free)} of {format_bytes(limit)} were left free at the least; "
            f"a smaller --batch_size_per_device (now {batch}) with more --accumulate_grad_batches makes room.",
            False,
        )
    left = f"{format_bytes(free)} of {format_bytes(limit)} stayed free"
    room = f"{name} has room: {format_bytes(used)} at the most, and {left}"
    if machine.row_bytes:
        rows_more = USABLE * free / machine.row_bytes
        larger = min(LARGEST_BATCH, 2 ** int(math.log2(batch + rows_more)))
        if larger > batch:
            more = "or more" if larger == LARGEST_BATCH else "or so"
            room += (
                f"; it would hold --batch_size_per_device {larger} {more} (now {batch}), "
                "and --find_batch_size tells whether that is faster"
            )
    return Verdict("memory", f"{room}.", True)


def leak_verdict(rows: Sequence[Row]) -> Verdict | None:
    """Whether the memory grew to the end, and with it the number of tensors."""
    samples = [row for row in last_attempt(rows) if "memory_bytes" in row]
    steps, memory = [row["step"] for row in samples], [row["memory_bytes"] for row in samples]
    if len(set(steps)) < FEWEST_STEPS:
        return None
    growth, grows = memory_growth(steps, memory, 1)
    grown = growth * 2**20 / 1000 * (steps[-1] - steps[len(steps) * 2 // 5]) if grows else 0.0
    if grown < max(SMALLEST_LEAK, LEAK_SHARE * memory[-1]):
        return None
    counts = column(samples, "tensors")
    settled = counts[len(counts) // 3 :]
    if len(settled) < 2:
        what = "too short a run to tell whether data or tensors; --debug_dataloader looks at the data alone"
    elif settled[-1] > settled[0] + max(10, 0.05 * settled[0]):
        what = f"tensors: {settled[0]:,} were alive, and {settled[-1]:,} at the end; look for losses or outputs"
        what += " that are kept without .detach()"
    else:
        what = "data: the number of tensors does not grow with it; look for lists, dictionaries and caches that grow in"
        what += " the dataset or a callback"
    return Verdict("leak", f"leak suspected, {growth:,.0f} MiB in 1,000 steps ({what}).", False)


def last_attempt(rows: Sequence[Row]) -> list[Row]:
    """The samples of the newest process: each begins with little memory."""
    return [row for row in rows if row.get("attempt") == rows[-1].get("attempt")]


def stats_lines(summary: dict[str, Any]) -> Iterator[str]:
    """The lines at the end of a run: statistics, and what should change. usage.json has the rest."""
    stats = summary.get("stats", {})
    if not stats.get("samples"):
        return
    parts = [f"about {stats[stats['unit'] + '_per_second']:,.0f} {stats['unit']}/s"]
    if "cpu_percent_mean" in stats:
        parts.append(f"CPU {stats['cpu_percent_mean']:.0f} of {100 * stats['cores']} %")
    if "memory_bytes_peak" in stats:
        parts.append(
            f"memory {format_bytes(stats['memory_bytes_peak'])} of {format_bytes(stats['memory_limit_bytes'])}"
        )
    if {"gpu_percent_mean", "gpu_memory_bytes_peak", "gpu_memory_limit_bytes"} <= stats.keys():
        memory = f"{format_bytes(stats['gpu_memory_bytes_peak'])} of {format_bytes(stats['gpu_memory_limit_bytes'])}"
        parts.append(f"GPU {stats['gpu_percent_mean']:.0f} %, its memory {memory}")
    yield f"stats       {', '.join(parts)}"
    yield from (f"!!          {verdict['text']}" for verdict in summary["verdicts"] if not verdict["good"])
