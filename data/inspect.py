"""What --debug_dataloader does: reads through the data, measures the loader's speed and memory, and prints findings.

What is particular to one kind of rows comes from `Rows`: scan, findings, columns, row_text and repeats.
"""

from __future__ import annotations

import ctypes
import gc
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch.utils.data import Dataset

from config.settings import RunConfig
from core.progress import progress
from data.module import Batch, DataModule, Finding, RowLoader, Rows, Scan
from data.stream import evaluation_batches

SCAN_BATCH = 256  # rows
MOST_SCANNED_UNITS = 50_000_000  # of a split
MOST_BATCHES = 1_000_000  # bounds the list of batches, not the time
CHANCE_SHARE = 0.5  # of rows so short that they repeat by chance, this share may
STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
MEMORY_SAMPLES = 40
WARM_UP = 0.4  # share of the samples in which pools and caches are still filling
MEGABYTE = 2**20


def inspect_data(
    config: RunConfig,
    data: DataModule,
    console: Console | None = None,
    seconds: float = 3.0,
    workers_tried: Sequence[int] = (0, 2, 4),
) -> bool:
    """Print what is in the data and how fast it comes; True when nothing is wrong.

    seconds: time that each of the two memory measurements takes; the other measurements take a share of it.
    workers_tried: numbers of loader processes whose speeds are compared.
    """
    console = console or Console()
    train, workers = data.rows["train"], config.data.num_workers
    stream = data.batch_stream(0, MOST_BATCHES)
    synthetic_rows = SyntheticRows(len(train), data.example(1))

    def loader(rows: Dataset[Batch], num_workers: int) -> RowLoader:
        return RowLoader(rows, stream, num_workers, config.data.prefetch_factor)

    num_stages = len(data.rows) + 2 + len(workers_tried)
    with progress("Inspecting the data", "stages", num_stages) as advance, warnings.catch_warnings():
        # PyTorch's remark on more loader processes than cores; whether they help is what is measured here.
        warnings.filterwarnings("ignore", message=".*worker processes in total")

        @contextmanager
        def stage(description: str) -> Iterator[None]:
            advance(0, title=description)
            if not console.is_terminal:
                console.print(f"{description} ...")
            yield
            advance(1)

        scans, by_workers = {}, {}
        for name, rows in data.rows.items():
            with stage(f"reading the rows of {name}"):
                scans[name] = scan_rows(rows, data, seconds)
        with stage("measuring speed and memory"):
            real = measure_loader(loader(train, workers), seconds)
        with stage("measuring speed and memory with synthetic rows"):
            synthetic = measure_loader(loader(synthetic_rows, workers), seconds)
        for number in workers_tried:
            with stage(f"trying --num_workers {number}"):
                by_workers[number] = measure_loader(loader(train, number), seconds / 2, samples=0)
    batch = next(iter(data.train_dataloader()))
    units = train.units(batch)

    console.print(splits_table(data, scans))
    line = f"batch {shapes_of(batch)}; first after {real.first_seconds:.3f} s; then "
    line += f"{real.rate:,.0f} batches/s, {real.rate * units:,.0f} {train.unit}/s with --num_workers {workers}"
    console.print(line, highlight=False, soft_wrap=True)
    print_examples(console, data)
    console.print(workers_table(by_workers, units, train.unit))

    findings = [
        *train.findings(data, batch, scans),
        *check_duplicates(scans, data),
        check_rate(real, synthetic),
        check_memory(real, synthetic, type(train).__name__),
        check_workers(by_workers, workers),
    ]
    for finding in findings:
        verdict = Text(f"{finding.verdict:8}", style=STYLES[finding.verdict])
        console.print(verdict, Text(f"{finding.check}: {finding.text}"), soft_wrap=True)
    problems = sum(finding.verdict == "problem" for finding in findings)
    console.print(Text(f"{problems} problem(s) found.", style=STYLES["problem" if problems else "ok"]))
    return problems == 0


def scan_rows(rows: Rows, data: DataModule, seconds: float) -> Scan:
    """Read the rows in order, each once, until the end or for at most so many seconds."""
    example = rows.__getitems__([0]) if len(rows) else data.example(1)
    count = min(len(rows), MOST_SCANNED_UNITS // rows.units(example))
    weights = hash_weights(example)
    hashes: list[np.ndarray] = []
    numbers: dict[str, list[np.ndarray]] = {}
    end = time.perf_counter() + seconds
    for batch in RowLoader(rows, evaluation_batches(range(count), SCAN_BATCH)):
        hashes.append(hash_rows(batch, weights))
        for name, values in rows.scan(batch, data.spec).items():
            numbers.setdefault(name, []).append(values)
        if time.perf_counter() > end:
            break
    if not hashes:  # the names of the numbers, for a split without rows
        empty = {name: torch.empty(0, *tensor.shape[1:], dtype=tensor.dtype) for name, tensor in example.items()}
        return Scan(0, np.empty(0, np.uint64), rows.scan(empty, data.spec))
    return Scan(
        num_rows=sum(map(len, hashes)),
        hashes=np.concatenate(hashes),
        numbers={name: np.concatenate(values) for name, values in numbers.items()},
    )


def hash_weights(example: Batch) -> dict[str, np.ndarray]:
    """An odd number for each value of a row."""
    generator = np.random.default_rng(0)
    sizes = {name: tensor[0].numel() for name, tensor in example.items()}
    return {name: generator.integers(2**63, size=size, dtype=np.uint64) * 2 + 1 for name, size in sizes.items()}


def hash_rows(batch: Batch, weights: Mapping[str, np.ndarray]) -> np.ndarray:
    """uint64 [B], equal for equal rows."""
    total = np.zeros(len(next(iter(batch.values()))), np.uint64)
    for name, tensor in batch.items():
        values = tensor.numpy().reshape(len(tensor), -1)
        if values.dtype.kind == "f":  # by its bits
            values = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
        total += (values.astype(np.uint64) * weights[name]).sum(axis=1, dtype=np.uint64)
    return total


def shapes_of(batch: Batch) -> str:
    """Shape and type of every tensor; their names where there are several."""
    shapes = {name: f"{list(tensor.shape)} {tensor.dtype}" for name, tensor in batch.items()}
    return ", ".join(f"{name} {shape}" if len(shapes) > 1 else shape for name, shape in shapes.items())


def check_duplicates(scans: Mapping[str, Scan], data: DataModule) -> list[Finding]:
    """Rows that stand twice in a split or in two splits; those that spoil training or its measure are problems."""
    remedy, by_chance = data.rows["train"].repeats()
    comparable = {name: scan.numbers.get("comparable", np.ones(scan.num_rows, bool)) for name, scan in scans.items()}
    hashes = {name: scan.hashes[comparable[name]] for name, scan in scans.items()}
    findings = []

    def add(check: str, name: str, position: int, count: int, tolerated: float) -> None:
        share, row = count / len(hashes[name]), int(np.flatnonzero(comparable[name])[position])
        verdict = "problem" if share > (CHANCE_SHARE if by_chance else tolerated) else "warning"
        text = f"{count:,} of {len(hashes[name]):,} rows ({share:.2%}), as {row_line(data, name, row)}; {remedy}"
        findings.append(Finding(check, verdict, text))

    for name, own in hashes.items():
        _, first, counts = np.unique(own, return_index=True, return_counts=True)
        if len(counts) < len(own):
            position, repeats = int(first[counts.argmax()]), len(own) - len(counts)
            add(f"rows repeated in {name}", name, position, repeats, 0.01 if name == "train" else 1)
    for one, other in combinations(hashes, 2):
        shared = np.flatnonzero(np.isin(hashes[other], hashes[one]))
        if len(shared):
            add(f"rows of {one} in {other}", other, int(shared[0]), len(shared), 0 if one == "train" else 1)
    return findings or [Finding("duplicates", "ok", "no row stands twice in a split or in two splits")]


def check_rate(real: LoaderRate, synthetic: LoaderRate) -> Finding:
    share = real.rate / synthetic.rate
    text = f"{real.rate:,.0f} batches/s, {share:.2g} of the {synthetic.rate:,.0f} that come without data"
    if share < 0.05:
        return Finding("speed", "problem", f"{text}: reading rows is slow; keep the cache on a local disk")
    return Finding("speed", "ok", text)


def check_memory(real: LoaderRate, synthetic: LoaderRate, rows: str) -> Finding:
    """rows: the name of their class."""
    text = f"{real.growth:+.2f} MB per 1,000 batches, {synthetic.growth:+.2f} with synthetic rows"
    if real.grows and synthetic.grows:
        return Finding("memory", "problem", f"growing, {text}: both grow, so the leak is in the code of the loader")
    if real.grows:
        remedy = f"it grows here and not with synthetic rows, so the leak is in the data path ({rows} or its split)"
        return Finding("memory", "problem", f"growing, {text}: {remedy}")
    return Finding("memory", "ok", f"flat, {text}")


def check_workers(by_workers: dict[int, LoaderRate], current: int) -> Finding:
    best = max(measured.rate for measured in by_workers.values())
    # The fewest that come near the best: a loader process costs memory and a start.
    advised = min(number for number, measured in by_workers.items() if measured.rate >= 0.9 * best)
    text = f"--num_workers {advised} is fastest here"
    if current in by_workers and by_workers[current].rate < best / 2:
        return Finding("workers", "warning", f"{text}, more than twice as fast as {current}")
    return Finding("workers", "ok", text)


def splits_table(data: DataModule, scans: Mapping[str, Scan]) -> Table:
    table = Table(title="splits")
    own = {name: rows.columns(scans[name]) for name, rows in data.rows.items()}
    for heading in ("split", "rows", "looked at", *own["train"]):
        table.add_column(heading, justify="left" if heading == "split" else "right")
    for name, rows in data.rows.items():
        table.add_row(name, f"{len(rows):,}", f"{scans[name].num_rows:,}", *own[name].values())
    return table


def workers_table(by_workers: Mapping[int, LoaderRate], units: int, unit: str) -> Table:
    """units: in a batch."""
    table = Table(title="loader processes")
    for heading in ("--num_workers", "first batch", "batches/s", f"{unit}/s"):
        table.add_column(heading, justify="right")
    for number, measured in by_workers.items():
        rates = f"{measured.rate:,.0f}", f"{measured.rate * units:,.0f}"
        table.add_row(str(number), f"{measured.first_seconds:.3f} s", *rates)
    return table


def print_examples(console: Console, data: DataModule) -> None:
    """Show the beginning of the first, a middle and the last training row."""
    last = len(data.rows["train"]) - 1
    for row in sorted({0, last // 2, last}):
        console.print(Text(row_line(data, "train", row, width=console.width)), no_wrap=True, overflow="crop")


def row_line(data: DataModule, name: str, row: int, width: int = 80) -> str:
    """A row in one printable line of at most so many characters."""
    label = f"row {row} of {name}: "
    return label + data.rows[name].row_text(row, data.processor)[: max(width - len(label), 0)]


@dataclass(frozen=True)
class LoaderRate:
    """Time to the first batch, batches per second, megabytes of growth per 1,000 batches."""

    first_seconds: float
    rate: float
    growth: float
    grows: bool


class SyntheticRows(Dataset[Batch]):
    """Random numbers in the shape of the real rows: the loader without the data."""

    def __init__(self, num_rows: int, example: Batch) -> None:
        self.num_rows, self.example = num_rows, example

    def __len__(self) -> int:
        return self.num_rows

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        generator = np.random.default_rng(indices[0])
        batch = {}
        for name, tensor in self.example.items():
            shape = (len(indices), *tensor.shape[1:])
            numbers = generator.random(shape) if tensor.is_floating_point() else generator.integers(100, size=shape)
            batch[name] = torch.from_numpy(numbers).to(tensor.dtype)
        return batch


def measure_loader(loader: RowLoader, seconds: float, samples: int = MEMORY_SAMPLES) -> LoaderRate:
    """Take batches for so many seconds, and sample the memory meanwhile; the time of sampling is not counted."""
    trim_memory()
    begin = time.perf_counter()
    batches = iter(loader)
    next(batches)
    start = time.perf_counter()
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    counts: list[int] = []
    memory: list[int] = []
    count, elapsed, sampling = 0, 0.0, 0.0
    for count, _ in enumerate(batches, start=1):
        now = time.perf_counter()
        elapsed = now - start - sampling
        if elapsed * samples >= seconds * (len(counts) + 1):
            counts.append(count)
            memory.append(private_memory(processes))
            sampling += time.perf_counter() - now
        if elapsed > seconds:
            break
    growth, grows = memory_growth(counts, memory, len(processes))
    return LoaderRate(start - begin, count / elapsed, growth, grows)


def trim_memory() -> None:
    """Return free memory to the system: a leak would fill it first, and stay unseen."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


def private_memory(processes: Sequence[psutil.Process]) -> int:
    """Bytes that the processes hold together, without the pages of mapped files, which are a cache."""
    total = 0
    for process in processes:
        try:
            # Forked processes share pages until one writes; only the proportional share counts each page once.
            share = re.search(r"Pss_Anon:\s+(\d+) kB", Path(f"/proc/{process.pid}/smaps_rollup").read_text())
        except OSError:
            share = None
        if share:
            total += int(share[1]) * 1024
        elif process.is_running():
            info = process.memory_info()
            total += info.rss - getattr(info, "shared", 0)
    return total


def memory_growth(counts: Sequence[int], memory: Sequence[int], num_processes: int) -> tuple[float, bool]:
    """Growth in MB per 1,000 batches after the warm-up, and whether it continues throughout.

    counts, memory: batches taken and bytes held at each sample.
    """
    skip = int(len(counts) * WARM_UP)
    counts, memory = counts[skip:], memory[skip:]
    if len(counts) < 8:
        return 0.0, False
    growth = float(np.polyfit(counts, np.array(memory) / MEGABYTE, 1)[0] * 1000)
    quarter = len(memory) // 4
    parts = [slice(part * quarter, (part + 1) * quarter) for part in range(4)]
    steps = np.diff([median(memory[part]) for part in parts])
    # A pool that fills makes one step, and new processes grow less and less until they have what they need;
    # a leak continues: each quarter adds about as much per batch as the others, however fast the batches came.
    rates = steps / np.maximum(1, np.diff([median(counts[part]) for part in parts]))
    return growth, bool(rates.min() > rates.max() / 3 and steps.sum() > num_processes * MEGABYTE)
