"""Runs a loader for a while, to measure its speed and to tell whether its memory grows."""

from __future__ import annotations

import ctypes
import gc
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.utils.data import Dataset

from data.module import RowLoader

LOOKS = 40
WARM_UP = 0.4  # share of the looks in which pools and caches are still filling
MEGABYTE = 2**20


@dataclass(frozen=True)
class Watch:
    """What was seen: time to the first batch, batches per second, megabytes of growth per 1,000 batches."""

    first_seconds: float
    rate: float
    growth: float
    grows: bool


class SyntheticRows(Dataset[Tensor]):
    """Random tokens in the shape of the real rows: the loader without the data."""

    def __init__(self, num_rows: int, context_length: int, vocab_size: int) -> None:
        self.num_rows, self.context_length, self.vocab_size = num_rows, context_length, vocab_size

    def __len__(self) -> int:
        return self.num_rows

    def __getitems__(self, indices: Sequence[int]) -> Tensor:
        shape = (len(indices), self.context_length + 1)
        return torch.from_numpy(np.random.default_rng(indices[0]).integers(self.vocab_size, size=shape))


def watch(loader: RowLoader, seconds: float, looks: int = LOOKS) -> Watch:
    """Take batches for so many seconds, and look at the memory meanwhile; the time of the looks is not counted."""
    give_back_memory()
    begin = time.perf_counter()
    batches = iter(loader)
    next(batches)
    start = time.perf_counter()
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    counts: list[int] = []
    memory: list[int] = []
    count, elapsed, looking = 0, 0.0, 0.0
    for count, _ in enumerate(batches, start=1):
        now = time.perf_counter()
        elapsed = now - start - looking
        if elapsed * looks >= seconds * (len(counts) + 1):
            counts.append(count)
            memory.append(own_memory(processes))
            looking += time.perf_counter() - now
        if elapsed > seconds:
            break
    growth, grows = memory_growth(counts, memory, len(processes))
    return Watch(start - begin, count / elapsed, growth, grows)


def give_back_memory() -> None:
    """Return what is free to the system: a leak would fill it first, and stay unseen."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


def own_memory(processes: Sequence[psutil.Process]) -> int:
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
    """Growth in MB per 1,000 batches after the warm-up, and whether it goes on throughout.

    counts, memory: batches taken and bytes held at each look.
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
    # a leak goes on: each quarter adds about as much per batch as the others, however fast the batches came.
    rates = steps / np.maximum(1, np.diff([median(counts[part]) for part in parts]))
    return growth, bool(rates.min() > rates.max() / 3 and steps.sum() > num_processes * MEGABYTE)
