"""Rows that are no text, through the same DataModule: loaders, order, resume position, several processes, costs."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from core.errors import UserError
from data.inspect import inspect_data
from data.module import Batch, DataModule, Rows, Spec, save_data
from data.stream import EMPTY_ROW, row_order
from tests.conftest import ROOT
from tests.data.in_memory import make_config, on_rank


class Points(Rows):
    """Points of the plane with a label each."""

    unit = "points"

    def __init__(self, count: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.points = torch.from_numpy(generator.normal(size=(count, 2)).astype(np.float32))
        self.num_units = count
        self.identity = {"noise": (0.3, "--noise_level")}

    def __len__(self) -> int:
        return len(self.points)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        index = torch.as_tensor(indices)
        points = self.points[index] if len(self) else torch.empty(len(index), 2)
        points[index == EMPTY_ROW] = torch.nan
        return {"point": points, "label": index % 3}


class Backwards(Points):
    def order(self, seed: int, epoch: int) -> np.ndarray:
        return np.arange(len(self))[::-1]


@dataclass(frozen=True)
class PlaneSpec(Spec):
    scale: np.ndarray
    names: tuple[str, ...] = ("x", "y")
    labels: int = 3


class NoProcessor:
    def save(self, folder: Path) -> None:
        (folder / "normalisation.txt").write_text("none")


def make_points(kind: type[Points] = Points, valid: int = 30, **flags: Any) -> DataModule:
    flags = {"batch_size_per_device": 4, "max_steps": 30, **flags}
    splits = {"train": kind(42, 0), "valid": Points(valid, 1), "test": Points(9, 2)}
    spec = PlaneSpec(np.array([1.0, 2.0], np.float32))
    return DataModule(make_config(**flags), splits, spec, NoProcessor(), "plane", {"train": {"area": 4.0}})


def points(loader: Any) -> list[list[list[float]]]:
    return [batch["point"].tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
def test_training_reads_the_rows_in_the_order_of_seed_and_epoch(workers: int) -> None:
    module = make_points(num_workers=workers)
    rows, order = module.rows["train"], row_order(42, 0, 0)
    first = next(iter(module.train_dataloader()))
    assert torch.equal(first["point"], rows.points[order[:4]]) and first["label"].tolist() == (order[:4] % 3).tolist()
    assert module.batches_per_epoch() == 10 and module.total_batches() == 30
    assert [len(batch) for batch in points(module.val_dataloader())] == [4] * 7 + [2]


def test_rows_may_choose_their_order() -> None:
    first = next(iter(make_points(Backwards).train_dataloader()))["point"]
    assert torch.equal(first, Points(42, 0).points[[41, 40, 39, 38]])


def test_two_processes_share_each_batch_and_every_evaluated_row() -> None:
    ranks = [on_rank(make_points(batch_size_per_device=2), rank, 2) for rank in (0, 1)]
    one, two = (points(module.train_dataloader()) for module in ranks)
    assert [a + b for a, b in zip(one, two, strict=True)] == points(make_points().train_dataloader())
    tested = [np.concatenate(points(module.test_dataloader())) for module in ranks]
    read = np.concatenate(tested)
    assert sorted(map(tuple, read[~np.isnan(read[:, 0])])) == sorted(map(tuple, Points(9, 2).points.tolist()))


def test_a_resumed_stream_goes_on_where_it_was() -> None:
    state = on_rank(make_points(), 0, 1, batches=13).state_dict()
    assert state == {
        **{"batches": 13, "skipped": [], "fingerprint": "plane", "noise": 0.3},
        **{"rows_per_batch": 4, "order_seed": 0, "batches_per_epoch": 10},
    }
    module = make_points()
    module.load_state_dict(state)
    assert points(module.train_dataloader()) == points(make_points().train_dataloader())[13:]
    with pytest.raises(UserError, match=r"noise was 0.5 and is 0.3: set --noise_level back to what that run had."):
        make_points().load_state_dict({**state, "noise": 0.5})
    with pytest.raises(UserError, match="fingerprint was sphere and is plane: set --dataset_name and --dataset_dir"):
        make_points().load_state_dict({**state, "fingerprint": "sphere"})


def test_an_example_has_shapes_and_types_and_no_memory() -> None:
    example = make_points().example(5)
    assert {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in example.items()} == {
        "point": ((5, 2), torch.float32),
        "label": ((5,), torch.int64),
    }
    assert all(tensor.is_meta for tensor in example.values())


def test_a_large_validation_split_is_sampled() -> None:
    module = make_points(valid=40_000)
    assert len(module.sample) == 16_384 and module.rows["valid"].units_of(module.sample) == 16_384


def test_messages_have_no_words_of_language() -> None:
    with pytest.raises(UserError) as error:
        make_points(batch_size_per_device=50)
    expected = "the training split has 42 rows for 1 process(es); choose at most 42, or more data."
    assert str(error.value) == f"--batch_size_per_device is 50: {expected}"
    with pytest.raises(UserError, match=r"the validation split is empty; .* to train without validation\.$"):
        make_points(valid=0)


def test_a_spec_survives_json() -> None:
    spec = make_points().spec
    again = PlaneSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert np.array_equal(again.scale, spec.scale) and again.scale.dtype == np.float32
    assert (again.names, again.labels) == (("x", "y"), 3)
    assert PlaneSpec.from_dict({"scale": spec.to_dict()["scale"], "unknown": 1}).labels == 3


def test_the_record_of_a_run(tmp_path: Path) -> None:
    module = make_points()
    save_data(module, tmp_path)
    record = json.loads((tmp_path / "data.json").read_text())
    assert record["fingerprint"] == "plane" and record["splits"]["valid"] == {"rows": 30, "units": 30}
    assert (tmp_path / "normalisation.txt").is_file() and module.facts["train"]["area"] == 4.0


def test_inspection_of_points() -> None:
    module, page = make_points(), io.StringIO()
    module.rows["test"].points = module.rows["train"].points[3:6]  # their labels too
    console = Console(file=page, width=100)
    assert not inspect_data(module.config, module, console, seconds=0.1, workers_tried=(0,))
    printed = page.getvalue()
    for expected in (
        "points/s",
        "batch point [4, 2] torch.float32, label [4] torch.int64;",
        "row 0 of train: point [2]",
    ):
        assert expected in printed
    assert "problem  rows of train in test: 3 of 3 rows (100.00%), as row 0 of test: point [2], label []; " in printed
    assert "token" not in printed


def test_importing_the_room_costs_no_torch() -> None:
    code = "import sys, data.language.store; assert not {'torch', 'pytorch_lightning'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
