"""The loader: its rate, its memory over many epochs, and the time to start at any position of a run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice
from statistics import median

import psutil

from benchmarks.measure import Measurement, seconds
from config import parse_command_line
from config.settings import RunConfig, Text, Transformer
from data.inspect import MEGABYTE, measure_loader, private_memory
from data.language.build import packed_data
from data.language.store import TokenStore, open_store
from data.module import DataModule

EPOCHS = 20


def run() -> list[Measurement]:
    config = parse_command_line([])
    store = open_store(config[Text])
    return [*loader_rates(config, store), *memory_over_epochs(config, store), *start_times(config, store)]


def build(config: RunConfig, store: TokenStore, num_workers: int, max_steps: int) -> DataModule:
    return packed_data(
        replace(
            config,
            data=replace(config.data, num_workers=num_workers),
            trainer=replace(config.trainer, max_steps=max_steps),
        ),
        store,
    )


def loader_rates(config: RunConfig, store: TokenStore) -> list[Measurement]:
    """Tokens per second; the two settings take turns, so that a busy moment hits both."""
    rates: dict[int, list[float]] = {0: [], 2: []}  # by --num_workers
    for _ in range(3):
        for number, measured in rates.items():
            data = build(config, store, number, max_steps=1_000_000)
            rate = measure_loader(data.train_dataloader(), seconds=1.5, samples=0).rate
            measured.append(rate * data.batch_size * config[Transformer].context_length)
    note = f"median of 3; rows of {config[Transformer].context_length}, {config.trainer.batch_size_per_device} a batch"
    return [
        Measurement(f"loader, --num_workers {number}", median(measured), "tokens/s", note)
        for number, measured in rates.items()
    ]


def memory_over_epochs(config: RunConfig, store: TokenStore) -> list[Measurement]:
    """Memory of this process and two loader processes at the end of the first and of the last epoch."""
    per_epoch = build(config, store, 2, max_steps=1).batches_per_epoch()
    batches = iter(build(config, store, 2, max_steps=EPOCHS * per_epoch).train_dataloader())
    megabytes = []
    for _ in range(EPOCHS):
        for _ in islice(batches, per_epoch):
            pass
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        megabytes.append(private_memory(processes) / MEGABYTE)
    note = "this process and 2 loader processes, without mapped files"
    return [
        Measurement("memory after epoch 1", megabytes[0], "MB", note),
        Measurement(f"memory after epoch {EPOCHS}", megabytes[-1], "MB", note),
    ]


def start_times(config: RunConfig, store: TokenStore) -> list[Measurement]:
    """Seconds from the store to the first batch of a run that resumes at a position."""
    times: dict[int, list[float]] = {10: [], 10_000: []}  # by position

    def first_batch(position: int) -> None:
        data = build(config, store, 0, max_steps=position + 1)
        data.start_batch = position
        next(iter(data.train_dataloader()))

    for _ in range(5):
        for position, measured in times.items():
            measured.append(seconds(partial(first_batch, position)))
    return [
        Measurement(f"start at batch {position:,}", 1000 * median(measured), "ms", "median of 5")
        for position, measured in times.items()
    ]


if __name__ == "__main__":
    for name, value, unit, note in run():
        print(f"{name:28} {value:16,.2f} {unit:10} {note}")
