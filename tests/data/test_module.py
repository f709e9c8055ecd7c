"""The DataModule: positions, limits, errors, and exact resume under the real Lightning loop."""

from __future__ import annotations

import warnings
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor

from core.errors import UserError
from data.module import DataModule
from tests.data.in_memory import make_data, make_store, on_rank
from training.lightning import batches_done


def take(loader: Any, count: int | None = None) -> list[list[list[int]]]:
    return [batch["input_ids"].tolist() for batch in islice(loader, count)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("start", [0, 7, 46, 60])
def test_starting_anywhere_gives_the_batches_of_an_uninterrupted_run(workers: int, start: int) -> None:
    whole = take(make_data(max_steps=60).train_dataloader())
    data = make_data(max_steps=60, num_workers=workers)
    data.start_batch = start
    assert len(whole) == 60
    assert take(data.train_dataloader()) == whole[start:]


def test_the_stream_crosses_epochs_with_a_new_order() -> None:
    data = make_data()
    per_epoch = data.batches_per_epoch()
    assert per_epoch == len(data.rows["train"]) // 4
    batches = take(data.train_dataloader(), 2 * per_epoch)
    first, second = list(chain(*batches[:per_epoch])), list(chain(*batches[per_epoch:]))
    assert first != second
    assert len({tuple(row) for row in first}) == len({tuple(row) for row in second}) == per_epoch * 4


def test_order_follows_the_seed_unless_randomness_is_off() -> None:
    one, two = (take(make_data(seed=seed).train_dataloader(), 3) for seed in (1, 2))
    fixed = [take(make_data(seed=seed, no_randomness_dataloader=True).train_dataloader(), 3) for seed in (1, 2)]
    assert one != two
    assert fixed[0] == fixed[1]


def test_no_shuffle_reads_in_order_and_warns() -> None:
    with pytest.warns(UserWarning, match=r"--no_shuffle: .* for debugging"):
        data = make_data(no_shuffle=True)
    assert take(data.train_dataloader(), 1)[0] == data.rows["train"].__getitems__([0, 1, 2, 3])["input_ids"].tolist()


@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_sees_every_target_once(split: str, world_size: int) -> None:
    tokens: list[int] = []
    for rank in range(world_size):
        data = on_rank(make_data(), rank, world_size)
        loader = data.val_dataloader() if split == "valid" else data.test_dataloader()
        targets = torch.cat([batch["input_ids"][:, 1:].flatten() for batch in loader])
        tokens += targets[targets != data.spec.pad_id].tolist()
    assert len(tokens) == data.rows[split].num_units
    assert sorted(tokens) == sorted(data.rows[split].tokens[1:].tolist())


def test_two_ranks_train_on_what_one_process_with_the_doubled_batch_does() -> None:
    ranks = [take(on_rank(make_data(), rank, 2).train_dataloader(), 30) for rank in (0, 1)]
    one = take(make_data(batch_size_per_device=8).train_dataloader(), 30)
    assert [a + b for a, b in zip(*ranks, strict=True)] == one


@pytest.mark.parametrize(("limit", "expected"), [(1.0, 46), (0.5, 23), (0.001, 1), (5, 5), (1000, 46)])
def test_limit_train_batches(limit: float, expected: int) -> None:
    assert make_data(limit_train_batches=limit).batches_per_epoch() == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"max_steps": 30}, 30),
        ({"max_steps": 30, "accumulate_grad_batches": 3}, 90),
        ({"max_steps": 1000, "max_epochs": 2}, 92),
        ({"max_steps": 10, "max_epochs": 2}, 10),
        ({"max_steps": 1000, "max_epochs": 2, "limit_train_batches": 4}, 8),
    ],
)
def test_total_batches(flags: dict[str, Any], expected: int) -> None:
    data = make_data(**flags)
    assert data.total_batches() == expected
    assert len(take(data.train_dataloader())) == expected


@pytest.mark.parametrize(("overfit", "count"), [(1, 1), (3, 3), (0.1, 4)])
def test_overfit_batches_are_fixed_and_validated_on(overfit: float, count: int) -> None:
    data = make_data(overfit_batches=overfit, max_steps=3 * count)
    fixed = [data.rows["train"].__getitems__(range(4 * i, 4 * i + 4))["input_ids"].tolist() for i in range(count)]
    assert take(data.train_dataloader()) == fixed * 3
    assert take(data.val_dataloader()) == fixed


@pytest.mark.parametrize("workers", [0, 2])
def test_iterating_draws_nothing_from_the_global_generator(workers: int) -> None:
    data = make_data(num_workers=workers)
    before = torch.get_rng_state()
    take(data.train_dataloader(), 3)
    take(data.val_dataloader(), 3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("store", "flags", "message"),
    [
        (
            {"train": 20},
            {"context_length": 20},
            "--context_length is 20: the training split has only 20 tokens; choose at most 19 or give more data.",
        ),
        ({"train": 0}, {}, "the training split has only 0 tokens"),
        (
            {"train": 65},
            {"batch_size_per_device": 5},
            "--batch_size_per_device is 5: the training split has 4 rows of 16 tokens for 1 process(es); choose",
        ),
        (
            {},
            {"overfit_batches": 47},
            "--overfit_batches is 47: the training split has 46 batches; choose at most 46",
        ),
        (
            {"valid": 1},
            {"validation_split_pct": 0.0},
            "--validation_split_pct is 0: the validation split is empty; choose a larger share, or --limit_val_bat",
        ),
        (
            {"test": 0},
            {"run_testing_after_training": True},
            "--test_split_pct is 0.05: the test split is empty; choose a larger share, or leave out --only_test",
        ),
    ],
)
def test_errors_of_the_person(store: dict[str, Any], flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        make_data(make_store(**store), **flags)
    assert message in str(error.value)


def test_more_processes_than_rows() -> None:
    data = on_rank(make_data(make_store(train=161), batch_size_per_device=6), 0, 2)
    with pytest.raises(UserError, match=r"has 10 rows of 16 tokens for 2 process\(es\); choose at most 5"):
        data.train_dataloader()


@pytest.mark.parametrize(
    ("store", "flags"),
    [
        ({"valid": 0}, {"limit_val_batches": 0}),
        ({"valid": 0}, {"overfit_batches": 2}),
        ({"test": 0}, {}),
        ({"train": 0, "valid": 0}, {"only_test": True}),
    ],
)
def test_a_split_that_nobody_asks_for_may_be_empty(store: dict[str, Any], flags: dict[str, Any]) -> None:
    make_data(make_store(**store), **flags)


def test_state_goes_on_after_the_batches_done() -> None:
    state = on_rank(make_data(), 0, 2, batches=17).state_dict()
    data = on_rank(make_data(), 0, 2)
    data.load_state_dict(state)
    assert data.start_batch == 17
    assert take(data.train_dataloader(), 3) == take(on_rank(make_data(), 0, 2).train_dataloader(), 20)[17:]


def test_the_same_rows_per_batch_may_be_shared_out_anew() -> None:
    data = make_data(batch_size_per_device=8)
    data.load_state_dict(on_rank(make_data(), 0, 2, batches=5).state_dict())
    assert data.start_batch == 5


@pytest.mark.parametrize(
    ("store", "flags", "message"),
    [
        ({"fingerprint": "other"}, {}, "fingerprint was content and is other: set --dataset_name, --dataset_dir, "),
        ({}, {"context_length": 8}, "context_length was 16 and is 8: set --context_length back"),
        ({}, {"batch_size_per_device": 5}, "rows_per_batch was 4 and is 5: set --batch_size_per_device, --gpus and "),
        ({}, {"seed": 1}, "order_seed was 0 and is 1: set --seed, --no_shuffle, --no_randomness_dataloader and "),
        ({}, {"overfit_batches": 2}, "order_seed was 0 and is None: set --seed"),
        ({}, {"limit_train_batches": 7}, "batches_per_epoch was 46 and is 7: set --limit_train_batches and "),
    ],
)
def test_a_changed_stream_is_refused(store: dict[str, Any], flags: dict[str, Any], message: str) -> None:
    state = on_rank(make_data(), 0, 1, batches=17).state_dict()
    data = make_data(make_store(**store), **flags)
    with pytest.raises(UserError) as error:
        data.load_state_dict(state)
    assert message in str(error.value)
    assert str(error.value).startswith("--resume_training_ckpt: ")
    assert data.start_batch == 0


def test_testing_a_checkpoint_does_not_care_about_its_stream() -> None:
    state = on_rank(make_data(), 0, 1, batches=17).state_dict()
    data = on_rank(make_data(batch_size_per_device=7), 0, 1, fn="test")
    data.load_state_dict(state)
    assert data.start_batch == 0


class Recorder(pl.LightningModule):
    """Learns nothing and keeps what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[list[list[int]]] = []

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        self.seen.append(batch["input_ids"].tolist())
        return self.weight * 1.0

    def validation_step(self, batch: dict[str, Tensor]) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder: Path, data: DataModule, ckpt_path: Path | None = None, stop: int | None = None) -> Recorder:
    """Train with a checkpoint every 3 steps; stop: leave after so many steps of this attempt, as if killed."""
    model = Recorder()

    class Kill(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
            if len(model.seen) == stop:
                raise InterruptedError

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=data.config.trainer.max_steps,
        max_epochs=-1,
        accumulate_grad_batches=data.config.trainer.accumulate_grad_batches,
        val_check_interval=5,
        check_val_every_n_epoch=None,
        limit_val_batches=1,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[ModelCheckpoint(folder, every_n_train_steps=3, save_top_k=-1, filename="{step}"), Kill()],
    )
    data.count_batches = partial(batches_done, trainer)
    try:
        trainer.fit(model, datamodule=data, ckpt_path=ckpt_path, weights_only=True)
    except InterruptedError:
        assert stop is not None
    return model


@pytest.mark.filterwarnings("ignore:.*many workers", "ignore:The dirpath has changed", "ignore:.*LeafSpec")
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_run_goes_on_with_the_batches_it_would_have(tmp_path: Path, workers: int, accumulate: int) -> None:
    flags: dict[str, Any]
    flags = {"max_steps": 20, "accumulate_grad_batches": accumulate, "limit_train_batches": 9, "num_workers": workers}
    whole = fit(tmp_path / "whole", make_data(**flags)).seen
    assert len(whole) == 20 * accumulate
    fit(tmp_path / "first", make_data(**flags), stop=8 * accumulate)
    second = fit(tmp_path / "second", make_data(**flags), tmp_path / "first" / "step=6.ckpt", stop=7 * accumulate)
    assert second.seen == whole[6 * accumulate : 13 * accumulate]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*not resumable.*")
        third = fit(tmp_path / "third", make_data(**flags), tmp_path / "second" / "step=12.ckpt")
    assert third.seen == whole[12 * accumulate :]
    early = fit(tmp_path / "early", make_data(**flags), tmp_path / "first" / "step=6.ckpt")
    assert early.seen == whole[6 * accumulate :]


@pytest.mark.filterwarnings("ignore:.*many workers", "ignore:The dirpath has changed", "ignore:.*LeafSpec")
def test_a_finished_run_can_be_made_longer(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", make_data(max_steps=24)).seen
    fit(tmp_path / "short", make_data(max_steps=12))
    longer = fit(tmp_path / "longer", make_data(max_steps=24), tmp_path / "short" / "step=12.ckpt")
    assert longer.seen == whole[12:]
