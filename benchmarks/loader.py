"""The loader: its rate, its memory over many epochs, and the time to start at any position of a run."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import islice
from statistics import median
from typing import Any

import psutil

from config import parse_command_line
from config.settings import RunConfig, Text, Transformer
from data.inspect import MEGABYTE, measure_loader, private_memory
from data.language.build import packed_data
from data.language.store import TokenStore, open_store
from data.module import DataModule

EPOCHS = 20


def run() -> list[dict[str, Any]]:
    """Rows of name, value, unit and note."""
    config = parse_command_line([])
    store = open_store(config[Text])
    return [*rates(config, store), *memory_over_epochs(config, store), *start_times(config, store)]


def build(config: RunConfig, store: TokenStore, num_workers: int, max_steps: int) -> DataModule:
    return packed_data(
        replace(
            config,
            data=replace(config.data, num_workers=num_workers),
            trainer=replace(config.trainer, max_steps=max_steps),
        ),
        store,
    )


def rates(config: RunConfig, store: TokenStore) -> list[dict[str, Any]]:
    """Tokens per second; the two settings take turns, so that a busy moment hits both."""
    found: dict[int, list[float]] = {0: [], 2: []}
    for _ in range(3):
        for number, seen in found.items():
            data = build(config, store, number, max_steps=1_000_000)
            rate = measure_loader(data.train_dataloader(), seconds=1.5, samples=0).rate
            seen.append(rate * data.batch_size * config[Transformer].context_length)
    note = f"median of 3; rows of {config[Transformer].context_length}, {config.trainer.batch_size_per_device} a batch"
    return [row(f"loader, --num_workers {number}", median(seen), "tokens/s", note) for number, seen in found.items()]


def memory_over_epochs(config: RunConfig, store: TokenStore) -> list[dict[str, Any]]:
    """Memory of this process and two loader processes at the end of the first and of the last epoch."""
    per_epoch = build(config, store, 2, max_steps=1).batches_per_epoch()
    batches = iter(build(config, store, 2, max_steps=EPOCHS * per_epoch).train_dataloader())
    held = []
    for _ in range(EPOCHS):
        for _ in islice(batches, per_epoch):
            pass
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        held.append(private_memory(processes) / MEGABYTE)
    note = "this process and 2 loader processes, without mapped files"
    return [
        row("memory after epoch 1", held[0], "MB", note),
        row(f"memory after epoch {EPOCHS}", held[-1], "MB", note),
    ]


def start_times(config: RunConfig, store: TokenStore) -> list[dict[str, Any]]:
    """Seconds from the store to the first batch of a run that goes on at a position."""
    found: dict[int, list[float]] = {10: [], 10_000: []}
    for _ in range(5):
        for position, seen in found.items():
            begin = time.perf_counter()
            data = build(config, store, 0, max_steps=position + 1)
            data.start_batch = position
            next(iter(data.train_dataloader()))
            seen.append(time.perf_counter() - begin)
    return [row(f"start at batch {at:,}", 1000 * median(seen), "ms", "median of 5") for at, seen in found.items()]


def row(name: str, value: float, unit: str, note: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "note": note}


if __name__ == "__main__":
    for result in run():
        print(f"{result['name']:28} {result['value']:16,.2f} {result['unit']:10} {result['note']}")
