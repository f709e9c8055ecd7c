"""The loaders of a run, and the position in its stream of batches that a checkpoint keeps."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from config.settings import RunConfig
from data.errors import DataError
from data.rows import PackedRows, as_batch
from data.store import TokenStore
from data.stream import BatchStream, evaluation_batches, spread_rows

SAMPLE_TARGETS = 16_384  # of the validation split, enough to tell checkpoints of a run apart

FEW_DOCUMENTS = 20  # of which a usual share may well be none


class RowLoader(DataLoader[Tensor]):
    """Batches {"input_ids": int64 [B, S+1]} of the rows that `batches` names."""

    def __init__(
        self, rows: Dataset[Tensor], batches: Iterable[list[int]], num_workers: int = 0, prefetch_factor: int = 2
    ) -> None:
        super().__init__(
            rows,
            batch_sampler=batches,
            collate_fn=as_batch,  # type: ignore[arg-type]  # a tensor, where rows are fetched all at once
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
    waited: seconds that training has spent on waiting for batches.
    """

    waited = 0.0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # whoever trains needs no more of it
        batches = super().__iter__()
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            self.waited += time.perf_counter() - start
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
    """Rows and loaders of the three splits.

    tokenizer, fingerprint, origin: of the store. rows: PackedRows of train, valid and test.
    sample: rows of the validation split that validations during training read; the same for every batch size.
    start_batch: batches of the run that are done; the training loader begins there.
    skipped: ranges of the stream that are not trained on, because the loss diverged there.
    """

    def __init__(self, config: RunConfig, store: TokenStore) -> None:
        super().__init__()
        self.config = config
        self.tokenizer = store.tokenizer
        self.fingerprint = store.fingerprint
        self.origin = store.origin
        self.context_length = config.architecture.context_length
        self.batch_size = config.trainer.batch_size_per_device
        self.rows = {
            name: PackedRows(split, self.context_length, store.tokenizer.pad_id) for name, split in store.splits.items()
        }
        self.sample = self._validation_sample()
        self.start_batch = 0
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
        """Training batches of an epoch on each process; the last incomplete one is left to the next epoch's order."""
        rows, needed = len(self.rows["train"]), self.world_size * self.batch_size
        if needed > rows:
            raise DataError(
                f"--batch_size_per_device is {self.batch_size}: the training split has {rows:,} rows of "
                f"{self.context_length} tokens for {self.world_size} process(es); choose at most "
                f"{rows // self.world_size}, a smaller --context_length, or more data."
            )
        full = rows // needed
        overfit, limit = self.config.debugging.overfit_batches, self.config.debugging.limit_train_batches
        if overfit > full:
            raise DataError(
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
        )

    def train_dataloader(self) -> StreamLoader:
        settings = self.config.data
        stream = self.batch_stream(self.start_batch, self.total_batches(), self.skipped)
        return StreamLoader(self.rows["train"], stream, settings.num_workers, settings.prefetch_factor)

    def val_dataloader(self) -> RowLoader:
        if not self.config.debugging.overfit_batches:
            return self._evaluation_loader("valid", self.validated)
        settings = self.config.data
        fixed = self.batch_stream(0, self.batches_per_epoch())
        return RowLoader(self.rows["train"], fixed, settings.num_workers, settings.prefetch_factor)

    def test_dataloader(self) -> RowLoader:
        return self._evaluation_loader("test", range(len(self.rows["test"])))

    def state_dict(self) -> dict[str, Any]:
        """The position in the stream, and what it depends on."""
        assert self.trainer is not None
        # `processed` and not `completed`, which Lightning counts up only after the callbacks that save checkpoints.
        total: Any = self.trainer.fit_loop.epoch_loop.batch_progress.total
        return {"batches": total.processed, "skipped": self.skipped, **self._stream_identity()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after the batches that a checkpoint has seen; those to come must be the ones it would have had."""
        if self.trainer is not None and self.trainer.state.fn != "fit":
            return
        flags = {
            "fingerprint": "--dataset_name, --dataset_dir, --text_field, --max_documents, --tokenizer, "
            "--validation_split_pct and --test_split_pct",
            "context_length": "--context_length",
            "rows_per_batch": "--batch_size_per_device, --gpus and --cpu_processes",
            "order_seed": "--seed, --no_shuffle, --no_randomness_dataloader and --overfit_batches",
            "batches_per_epoch": "--limit_train_batches and --overfit_batches",
        }
        now = self._stream_identity()
        changed = [key for key in flags if state_dict[key] != now[key]]
        if changed:
            raise DataError(
                "--resume_training_ckpt: the batches to come would not be those of the run it goes on from. "
                + " ".join(
                    f"{key} was {state_dict[key]} and is {now[key]}: set {flags[key]} back to what that run had."
                    for key in changed
                )
            )
        self.start_batch = state_dict["batches"]
        self.skipped = [(first, end) for first, end in state_dict.get("skipped", [])]

    def _stream_identity(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "context_length": self.context_length,
            "rows_per_batch": self.world_size * self.batch_size,
            "order_seed": self.order_seed,
            "batches_per_epoch": self.batches_per_epoch(),
        }

    @property
    def validated(self) -> Sequence[int]:
        """Rows that a validation reads: the sample while the run trains."""
        trains = self.trainer is None or self.trainer.state.fn == "fit"
        return self.sample if trains else range(len(self.rows["valid"]))

    def _validation_sample(self) -> Sequence[int]:
        """All, where they are few, and where a person says how many batches, or what they are to reach."""
        rows, wanted = len(self.rows["valid"]), -(-SAMPLE_TARGETS // self.context_length)
        chosen = self.config.debugging.limit_val_batches is not None or self.config.debugging.fast_dev_run
        if chosen or self.config.trainer.goal or rows <= 2 * wanted:
            return range(rows)
        return spread_rows(rows, wanted)

    def _evaluation_loader(self, name: str, rows: Sequence[int]) -> RowLoader:
        settings = self.config.data
        batches = evaluation_batches(rows, self.batch_size, self.world_size, self.rank)
        return RowLoader(self.rows[name], batches, settings.num_workers, settings.prefetch_factor)

    def _check_splits(self) -> None:
        """Say before anything is built that a split cannot give what this run wants of it."""
        debugging, testing = self.config.debugging, self.config.testing
        documents = sum(rows.num_documents for rows in self.rows.values())
        few = f" (of documents, which are not cut, there are only {documents})" if documents < FEW_DOCUMENTS else ""
        if not testing.only_test:
            tokens = len(self.rows["train"].tokens)
            if self.context_length >= tokens:
                raise DataError(
                    f"--context_length is {self.context_length}: the training split has only {tokens:,} tokens; "
                    f"choose at most {max(tokens - 1, 0)} or give more data."
                )
            self.batches_per_epoch()
            if debugging.limit_val_batches != 0 and not debugging.overfit_batches and not len(self.rows["valid"]):
                raise DataError(
                    f"--validation_split_pct is {self.config.data.validation_split_pct:g}: the validation split is "
                    f"empty; choose a larger share, or --limit_val_batches 0 to train without validation{few}."
                )
        wants_test = testing.only_test or testing.run_testing_after_training
        if wants_test and debugging.limit_test_batches and not len(self.rows["test"]):
            raise DataError(
                f"--test_split_pct is {self.config.data.test_split_pct:g}: the test split is empty; choose a larger "
                f"share, or leave out --only_test and --run_testing_after_training{few}."
            )
