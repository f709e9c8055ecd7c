"""--debug_dataloader: each fault it is for is planted, and its verdict must find it."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from torch import Tensor

import data.inspect
import data.module
from data.inspect import inspect_data, memory_growth, row_line
from data.language.rows import PackedRows
from data.language.store import TokenStore
from data.module import Batch, DataModule
from tests.data.in_memory import make_data, make_split, make_store

SCRIPT = Path(__file__).parents[2] / "job_scripts" / "debug" / "debug_dataloader.sh"


def look(module: DataModule, seconds: float = 0.2, workers_tried: tuple[int, ...] = (0,)) -> tuple[bool, str]:
    """The answer and what was printed. Starting loader processes takes long: one test looks at the table of them."""
    page = io.StringIO()
    console = Console(file=page, width=100)
    return inspect_data(module.config, module, console, seconds, workers_tried), page.getvalue()


def verdicts(page: str) -> dict[str, str]:
    """Verdict of each check."""
    words = ("ok ", "warning ", "problem ")
    lines = [line.split(maxsplit=1) for line in page.splitlines() if line.startswith(words) and ":" in line]
    return {text.split(":")[0]: verdict for verdict, text in lines}


def long_rows(store: TokenStore | None = None, **flags: Any) -> DataModule:
    """Rows long enough that a repeat is no chance."""
    return make_data(store or make_store(train=40_000, valid=3000, test=3000), context_length=200, **flags)


def with_split(store: TokenStore, name: str, tokens: np.ndarray) -> TokenStore:
    return replace(store, splits={**store.splits, name: make_split(tokens)})


def plant(module: DataModule, kind: type[PackedRows]) -> DataModule:
    """Training rows of another class over the same tokens."""
    rows = module.rows["train"]
    module.rows["train"] = kind(make_split(rows.tokens), rows.context_length, rows.pad_id)
    return module


class LeakingRows(PackedRows):
    """Keeps copies of every batch it ever gave."""

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        batch = super().__getitems__(indices)
        self.__dict__.setdefault("copies", []).append(batch["input_ids"].repeat(8, 1))
        return batch


class SlowRows(PackedRows):
    def __getitems__(self, indices: Sequence[int]) -> Batch:
        time.sleep(0.02)
        return super().__getitems__(indices)


class NarrowRows(PackedRows):
    def __getitems__(self, indices: Sequence[int]) -> Batch:
        return {"input_ids": super().__getitems__(indices)["input_ids"].int()}


def test_healthy_data() -> None:
    fine, page = look(long_rows(), workers_tried=(0, 2, 4))
    assert fine
    assert verdicts(page) == dict.fromkeys(
        ["batch", "token ids", "padding", "duplicates", "speed", "memory", "workers"], "ok"
    )
    assert "0 problem(s) found." in page
    for expected in ("200", "40,000", "[4, 201] torch.int64", "batches/s", "tokens/s", "row 0 of train: ", "flat"):
        assert expected in page
    assert "--num_workers 0 is fastest here" in page


@pytest.mark.parametrize(("workers", "seconds"), [(0, 0.5), (2, 3)])  # new processes grow at first, without a leak
def test_a_leak_in_the_data(workers: int, seconds: float) -> None:
    fine, page = look(plant(long_rows(num_workers=workers), LeakingRows), seconds)
    assert not fine
    assert verdicts(page)["memory"] == "problem"
    assert "it grows here and not with synthetic rows, so the leak is in the data path" in page


def test_a_leak_in_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[Tensor] = []

    def leak(batch: Batch) -> Batch:
        batches.extend(tensor.repeat(8, 1) for tensor in batch.values())
        return batch

    monkeypatch.setattr(data.module, "collate", leak)
    fine, page = look(long_rows(), seconds=0.5)
    assert not fine
    assert verdicts(page)["memory"] == "problem"
    assert "both grow, so the leak is in the code of the loader" in page


def test_growth_is_told_from_a_step_and_from_noise() -> None:
    counts = list(range(100, 6100, 100))
    noise = np.random.default_rng(0).integers(-200_000, 200_000, size=60)
    flat = 10**9 + noise
    step = flat + np.where(np.arange(60) > 40, 20 * 2**20, 0)
    leak = flat + np.arange(60) * 2**17  # 128 KB in 100 batches
    warming = flat + 10 * 2**20 * (1 - np.exp(-np.arange(60) / 10))
    for held in (flat, step, warming):
        assert memory_growth(counts, held.tolist(), 1)[1] is False
    growth, grows = memory_growth(counts, leak.tolist(), 1)
    assert grows and growth == pytest.approx(1.25, abs=0.1)
    assert memory_growth([1, 2], [1, 10**9], 1) == (0.0, False)


def test_a_token_out_of_range() -> None:
    store = make_store(train=40_000, valid=3000)
    store.splits["valid"].tokens[705] = 300
    fine, page = look(long_rows(store))
    assert not fine
    assert verdicts(page)["token ids"] == "problem"
    assert "row 3 of valid holds 300, allowed is 0 to 257" in page


@pytest.mark.parametrize("name", ["valid", "test"])
def test_a_training_row_in_another_split(name: str) -> None:
    store = make_store(train=40_000)
    fine, page = look(long_rows(with_split(store, name, store.splits["train"].tokens[2000:2300])))
    assert not fine
    assert verdicts(page)[f"rows of train in {name}"] == "problem"
    assert f"row 0 of {name}: " in page and "remove repeated documents" in page


def test_a_test_row_in_validation_is_a_warning() -> None:
    store = make_store(train=40_000)
    fine, page = look(long_rows(with_split(store, "valid", store.splits["test"].tokens[:401])))
    assert fine
    assert verdicts(page)["rows of valid in test"] == "warning"


@pytest.mark.parametrize(("copies", "expected"), [(1, "warning"), (10, "problem")])
def test_repeated_training_rows(copies: int, expected: str) -> None:
    tokens = make_store(train=40_000).splits["train"].tokens
    for copy in range(1, copies + 1):
        tokens[copy * 2000 : copy * 2000 + 201] = tokens[:201]
    fine, page = look(long_rows(with_split(make_store(), "train", tokens)))
    assert verdicts(page)["rows repeated in train"] == expected
    assert f"{copies} of 200 rows" in page
    assert fine == (expected == "warning")


def test_short_rows_may_repeat_by_chance() -> None:
    store = make_store(train=2960)
    fine, page = look(make_data(with_split(store, "valid", np.append(store.splits["train"].tokens[:17], range(100)))))
    assert fine
    assert verdicts(page)["rows of train in valid"] == "warning"
    assert "rows of 16 bytes repeat by chance" in page


def test_plain_rows_are_not_compared() -> None:
    blank = np.full(2000, 32)
    store = with_split(with_split(make_store(train=40_000), "valid", blank), "test", blank)
    fine, page = look(long_rows(store))
    assert fine
    assert verdicts(page)["duplicates"] == "ok"


def test_a_slow_loader() -> None:
    fine, page = look(plant(long_rows(), SlowRows))
    assert not fine
    assert verdicts(page)["speed"] == "problem"
    assert "reading rows is slow" in page


def test_a_batch_of_another_type() -> None:
    fine, page = look(plant(long_rows(), NarrowRows))
    assert not fine
    assert verdicts(page)["batch"] == "problem"
    assert "torch.int32 instead of [4, 201], torch.int64" in page


def test_empty_evaluation_splits() -> None:
    fine, page = look(long_rows(make_store(train=40_000, valid=0, test=0), limit_val_batches=0))
    assert fine
    assert verdicts(page)["duplicates"] == "ok"


def test_text_is_shown_escaped_and_cut() -> None:
    text = b"[red]one\ntwo\x1b[31m" + bytes(range(97, 123)) * 100
    module = make_data(with_split(make_store(), "train", np.frombuffer(text, np.uint8)), context_length=100)
    shown = row_line(module, "train", 0, width=60)
    assert shown.startswith(r"row 0 of train: '[red]one\ntwo\x1b[31mabc")
    assert len(shown) == 60
    assert row_line(module, "train", 0, width=100) in look(module)[1]


@pytest.mark.parametrize("active", [True, False])
def test_the_script_passes_its_flags_on(tmp_path: Path, active: bool) -> None:
    script = tmp_path / "job_scripts" / "debug" / SCRIPT.name
    shutil.copytree(SCRIPT.parent.parent, tmp_path / "job_scripts")
    for folder in ("bin", ".venv/bin"):
        python = tmp_path / folder / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\necho {folder} "$PWD" "$@"\n')
        python.chmod(0o755)
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"} | ({"VIRTUAL_ENV": "active"} if active else {})
    command = ["bash", str(script), "--num_workers", "2"]
    ran = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=True)
    folder = "bin" if active else ".venv/bin"
    expected = f"{folder} {tmp_path} train_model.py --debug_dataloader --no_wandb --num_workers 2"
    assert ran.stdout.strip() == expected
