"""Rows of any kind to the loaders of a run, and the position in its stream of batches that a checkpoint keeps.

A task gives three splits of `Rows`, the `Spec` that its model is built from and the `Processor` of its raw input.
"""

from __future__ import annotations

import json
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol, Self

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from config.settings import RunConfig, SplitByShare
from core.errors import UserError
from core.files import write_text
from data.stream import EMPTY_ROW, BatchStream, evaluation_batches, row_order, spread_rows

Batch = dict[str, Tensor]

RECORD = "data.json"  # in a run's folder
SPEC = "spec.json"
SAMPLE_UNITS = 16_384  # of the validation split, enough to tell checkpoints of a run apart


@dataclass(frozen=True)
class Finding:
    """One check's verdict (ok, warning or problem), and what to do about it."""

    check: str
    verdict: str
    text: str


@dataclass(frozen=True)
class Scan:
    """What reading through the rows of a split gave.

    hashes: uint64 [rows], equal for equal rows. numbers: those of `Rows.scan`, each [rows].
    """

    num_rows: int
    hashes: np.ndarray
    numbers: dict[str, np.ndarray]


class Rows(Dataset[Batch]):
    """A split. The same index gives the same row on every machine; EMPTY_ROW gives one that counts nothing.

    num_units: what is learned from or evaluated, in `unit`. identity: what a resumed stream must share, with the flags
    to name: {"context_length": (64, "--context_length")}; source_flags: those that decide which rows there are.
    more_rows, if_empty: the ends of messages about too few rows and about an empty split.
    sample_units: how many of them a validation during training reads.
    """

    unit = "rows"
    num_units: int
    sample_units = SAMPLE_UNITS
    identity: Mapping[str, tuple[Any, str]] = {}
    source_flags = "--dataset_name and --dataset_dir"
    more_rows = "or more data"
    if_empty = ""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """The rows of these indices, one tensor [B, ...] a name."""

    def units(self, batch: Batch) -> int:
        """Units of a batch that are computed, padding included: what a rate per second counts."""
        return len(next(iter(batch.values())))

    def units_of(self, indices: Sequence[int]) -> int:
        """Units of these rows that are evaluated."""
        return len(indices)

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """The order in which training reads the rows in an epoch, [len]."""
        return row_order(len(self), seed, epoch)

    def describe(self) -> str:
        """The rows in a message: `rows of 64 tokens`."""
        return "rows"

    def record(self) -> dict[str, int]:
        """What data.json says of the split."""
        return {"rows": len(self), "units": self.num_units}

    # What --debug_dataloader asks; see data/inspect.py.

    def scan(self, batch: Batch, spec: Any) -> dict[str, np.ndarray]:
        """Numbers of each row that `findings` judges, each [B]. comparable: false where a row repeats by nature."""
        return {}

    def findings(self, data: DataModule, batch: Batch, scans: Mapping[str, Scan]) -> list[Finding]:
        """Checks of this kind of rows. batch: a training batch; scans: of every split."""
        return []

    def columns(self, scan: Scan) -> dict[str, str]:
        """Heading and value of the columns of this split in the table of splits."""
        return {self.unit: f"{self.num_units:,}"}

    def row_text(self, index: int, processor: Any) -> str:
        """A row in one printable line."""
        return ", ".join(f"{name} {list(tensor.shape[1:])}" for name, tensor in self.__getitems__([index]).items())

    def repeats(self) -> tuple[str, bool]:
        """What to do about rows that stand twice, and whether rows are so short that they repeat by chance."""
        return "remove repeated rows", False


@dataclass(frozen=True)
class Spec:
    """Facts that a model is built from: a frozen dataclass of plain values and small arrays."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: {"dtype": value.dtype.name, "values": value.tolist()} if isinstance(value, np.ndarray) else value
            for name, value in values.items()
        }

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Self:
        """From what `to_dict` gave, also after JSON made lists of tuples."""
        values = {field.name: tree[field.name] for field in fields(cls) if field.name in tree}
        for name, value in values.items():
            if isinstance(value, dict) and value.keys() == {"dtype", "values"}:
                values[name] = np.array(value["values"], value["dtype"])
            elif isinstance(value, list):
                values[name] = tuple(value)
        return cls(**values)


class Processor(Protocol):
    """Raw input to a batch, a prediction to what a person can look at: tokenizer, normalisation, list of answers."""

    def save(self, folder: Path) -> Mapping[str, Any] | None:
        """Write its files into a run's folder; what is returned is added to data.json."""


class NoProcessor:
    """Of data whose rows are batches already."""

    def save(self, folder: Path) -> None: ...


def collate(batch: Batch) -> Batch:
    """`__getitems__` gives whole batches already."""
    return batch


class RowLoader(DataLoader[Batch]):
    """The rows whose indices `batches` names."""

    def __init__(
        self, rows: Dataset[Batch], batches: Iterable[list[int]], num_workers: int = 0, prefetch_factor: int = 2
    ) -> None:
        super().__init__(
            rows,
            batch_sampler=batches,
            collate_fn=collate,  # type: ignore[arg-type]  # a batch, where rows are fetched all at once
            num_workers=num_workers,
            prefetch_factor=prefetch_factor if num_workers else None,
            persistent_workers=num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            # Its own generator: making an iterator must not draw from the one that the model's noise comes from.
            generator=torch.Generator(),
        )


class StreamLoader(RowLoader):
    """The training loader: yields what remains of the run, and is as long as the whole run.

    Lightning adds the batches of earlier attempts to those it fetched and compares with the length. It takes a
    loader with the two state methods for resumable; the position itself is in the DataModule's state.
    wait_seconds: time that training has spent on waiting for batches.
    """

    wait_seconds = 0.0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # the trainer needs no more of it
        batches = super().__iter__()
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            self.wait_seconds += time.perf_counter() - start
            if batch is None:
                return
            yield batch

    def __len__(self) -> int:
        assert isinstance(self.batch_sampler, BatchStream)
        return self.batch_sampler.stop

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class DataModule(pl.LightningDataModule):
    """Loaders, order of batches and exact resume for train, valid and test of any task; not subclassed.

    rows: the splits. spec: what the model is built from. processor: of raw input. The task knows their types.
    fingerprint: of the content. facts: numbers of each split that measures are derived from. origin: where the data
    came from, beyond the flags.
    sample: rows of the validation split that validations during training read; the same for every batch size.
    start_batch: batches of the run that are done; the training loader begins there.
    count_batches: gives the batches of the run that are done by now; `training` sets it.
    skipped: ranges of the stream that are not trained on, because the loss diverged there.
    """

    rows: dict[str, Any]
    spec: Any
    processor: Any

    def __init__(
        self,
        config: RunConfig,
        splits: Mapping[str, Rows],
        spec: Spec,
        processor: Processor,
        fingerprint: str,
        facts: Mapping[str, Mapping[str, float]] | None = None,
        origin: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.rows = dict(splits)
        self.spec = spec
        self.processor = processor
        self.fingerprint = fingerprint
        self.facts = facts or {}
        self.origin = origin or {}
        self.batch_size = config.trainer.batch_size_per_device
        self.sample = self._validation_sample()
        self.start_batch = 0
        self.count_batches: Callable[[], int] = lambda: self.start_batch
        self.skipped: list[tuple[int, int]] = []
        self._check_splits()
        if config.data.no_shuffle:
            warnings.warn("--no_shuffle: training reads the rows in order, which is for debugging only.", stacklevel=2)

    @property
    def world_size(self) -> int:
        return self.trainer.world_size if self.trainer else 1

    @property
    def rank(self) -> int:
        return self.trainer.global_rank if self.trainer else 0

    @property
    def order_seed(self) -> int | None:
        """Seed of the order of the training rows; None where they are read in order."""
        if self.config.data.no_shuffle or self.config.debugging.overfit_batches:
            return None
        return 0 if self.config.data.no_randomness_dataloader else self.config.trainer.seed

    def batches_per_epoch(self) -> int:
        """Training batches of an epoch on each process; rows that fill no batch are left to the next epoch's order."""
        rows, needed = self.rows["train"], self.world_size * self.batch_size
        if needed > len(rows):
            raise UserError(
                f"--batch_size_per_device is {self.batch_size}: the training split has {len(rows):,} "
                f"{rows.describe()} for {self.world_size} process(es); choose at most "
                f"{len(rows) // self.world_size}, {rows.more_rows}."
            )
        full = len(rows) // needed
        overfit, limit = self.config.debugging.overfit_batches, self.config.debugging.limit_train_batches
        if overfit > full:
            raise UserError(
                f"--overfit_batches is {overfit:g}: the training split has {full:,} batches; choose at most {full}, "
                "or a smaller --batch_size_per_device."
            )
        if overfit:
            return int(overfit) if overfit >= 1 else max(1, int(overfit * full))
        return min(full, int(limit)) if limit > 1 else max(1, int(limit * full))

    def total_batches(self) -> int:
        """Training batches of the whole run on each process."""
        trainer = self.config.trainer
        total = trainer.max_steps * trainer.accumulate_grad_batches
        return total if trainer.max_epochs is None else min(total, trainer.max_epochs * self.batches_per_epoch())

    def batch_stream(self, start: int, stop: int, skipped: Sequence[tuple[int, int]] = ()) -> BatchStream:
        """Batches start to stop-1 of the training run, for this process."""
        return BatchStream(
            len(self.rows["train"]),
            self.batch_size,
            batches_per_epoch=self.batches_per_epoch(),
            start=start,
            stop=stop,
            skipped=skipped,
            seed=self.order_seed or 0,
            shuffle=self.order_seed is not None,
            world_size=self.world_size,
            rank=self.rank,
            order=self.rows["train"].order,
        )

    def example(self, rows: int) -> Batch:
        """A batch of this many rows on the meta device, to count costs on: shapes and types without memory."""
        train = self.rows["train"]
        batch = train.__getitems__([0 if len(train) else EMPTY_ROW])
        return {
            name: torch.empty(rows, *tensor.shape[1:], dtype=tensor.dtype, device="meta")
            for name, tensor in batch.items()
        }

    def train_dataloader(self) -> StreamLoader:
        settings = self.config.data
        stream = self.batch_stream(self.start_batch, self.total_batches(), self.skipped)
        return StreamLoader(self.rows["train"], stream, settings.num_workers, settings.prefetch_factor)

    def val_dataloader(self) -> RowLoader:
        if not self.config.debugging.overfit_batches:
            return self._evaluation_loader("valid", self.validation_rows)
        settings = self.config.data
        fixed = self.batch_stream(0, self.batches_per_epoch())
        return RowLoader(self.rows["train"], fixed, settings.num_workers, settings.prefetch_factor)

    def test_dataloader(self) -> RowLoader:
        return self._evaluation_loader("test", range(len(self.rows["test"])))

    def state_dict(self) -> dict[str, Any]:
        """The position in the stream, and what it depends on."""
        identity = {key: value for key, (value, _) in self._stream_identity().items()}
        return {"batches": self.count_batches(), "skipped": self.skipped, **identity}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume after the batches that a checkpoint has seen; those to come must be the ones it would have had."""
        if self.trainer is not None and self.trainer.state.fn != "fit":
            return
        now = self._stream_identity()
        changed = [key for key, (value, _) in now.items() if state_dict[key] != value]
        if changed:
            raise UserError(
                "--resume_training_ckpt: the batches to come would not be those of the run that is resumed. "
                + " ".join(
                    f"{key} was {state_dict[key]} and is {now[key][0]}: set {now[key][1]} back to what that run had."
                    for key in changed
                )
            )
        self.start_batch = state_dict["batches"]
        self.skipped = [(first, end) for first, end in state_dict.get("skipped", [])]

    def _stream_identity(self) -> dict[str, tuple[Any, str]]:
        """What the stream of batches depends on, with the flags that decide it."""
        rows: Rows = self.rows["train"]
        return {
            "fingerprint": (self.fingerprint, rows.source_flags),
            **rows.identity,
            "rows_per_batch": (
                self.world_size * self.batch_size,
                "--batch_size_per_device, --gpus and --cpu_processes",
            ),
            "order_seed": (
                self.order_seed,
                "--seed, --no_shuffle, --no_randomness_dataloader and --overfit_batches",
            ),
            "batches_per_epoch": (self.batches_per_epoch(), "--limit_train_batches and --overfit_batches"),
        }

    @property
    def validation_rows(self) -> Sequence[int]:
        """Rows that a validation reads: the sample while the run trains."""
        is_training = self.trainer is None or self.trainer.state.fn == "fit"
        return self.sample if is_training else range(len(self.rows["valid"]))

    def _validation_sample(self) -> Sequence[int]:
        """All rows, where they are few, and where flags set the number of batches or a goal."""
        rows = self.rows["valid"]
        debugging = self.config.debugging
        fixed = debugging.limit_val_batches is not None or debugging.fast_dev_run or self.config.trainer.goal
        if fixed or not len(rows):
            return range(len(rows))
        count = -(-rows.sample_units // rows.units(rows.__getitems__([0])))
        return range(len(rows)) if len(rows) <= 2 * count else spread_rows(len(rows), count)

    def _evaluation_loader(self, name: str, rows: Sequence[int]) -> RowLoader:
        settings = self.config.data
        batches = evaluation_batches(rows, self.batch_size, self.world_size, self.rank)
        return RowLoader(self.rows[name], batches, settings.num_workers, settings.prefetch_factor)

    def _check_splits(self) -> None:
        """Refuse a split that cannot give what this run needs of it, before anything is built."""
        debugging, testing = self.config.debugging, self.config.testing
        valid, test = self.rows["valid"], self.rows["test"]
        if not testing.only_test:
            self.batches_per_epoch()
            if debugging.limit_val_batches != 0 and not debugging.overfit_batches and not len(valid):
                share, remedy = self._share_of("validation_split_pct")
                raise UserError(
                    f"{share}the validation split is empty; choose {remedy}--limit_val_batches 0 to train without "
                    f"validation{valid.if_empty}."
                )
        needs_test = testing.only_test or testing.run_testing_after_training
        if needs_test and debugging.limit_test_batches and not len(test):
            share, remedy = self._share_of("test_split_pct")
            raise UserError(
                f"{share}the test split is empty; {'choose ' if remedy else ''}{remedy}leave out --only_test and "
                f"--run_testing_after_training{test.if_empty}."
            )

    def _share_of(self, name: str) -> tuple[str, str]:
        """The start of a message about an empty split and a remedy, where a flag says how large the split is."""
        if not isinstance(self.config.data, SplitByShare):
            return "", ""
        return f"--{name} is {getattr(self.config.data, name):g}: ", "a larger share, or "


def save_data(data: DataModule, run: Path) -> None:
    """Write data.json, spec.json and the processor's files into a run's folder, so that a copy can be used elsewhere.

    The record comes last, so that what it names is there.
    """
    saved = data.processor.save(run) or {}
    write_text(run / SPEC, json.dumps(data.spec.to_dict(), indent=1) + "\n")
    splits = {name: rows.record() for name, rows in data.rows.items()}
    record = {"fingerprint": data.fingerprint, "origin": dict(data.origin), "splits": splits, **saved}
    write_text(run / RECORD, json.dumps(record, indent=1) + "\n")


def read_spec(run: Path, spec_class: str) -> Spec:
    """What the model of a run was built from. spec_class: module:class"""
    try:
        tree = json.loads((run / SPEC).read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{run / SPEC} cannot be read ({error}): copy it from where the run was trained.") from error
    spec: Spec = resolve_name(spec_class).from_dict(tree)
    return spec
