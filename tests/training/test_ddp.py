"""Two processes are one process with the doubled batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.files import read_rows
from tests.conftest import Door


def test_two_processes_equal_one_with_the_doubled_batch(corpus: Path, tmp_path: Path) -> None:
    one, two = Door(corpus, tmp_path / "one"), Door(corpus, tmp_path / "two")
    one("--batch_size_per_device", "4", "--limit_val_batches", "1.0")
    output = two("--batch_size_per_device", "2", "--cpu_processes", "2", "--limit_val_batches", "1.0")
    alone, together = (read_rows(door.run_folder / "metrics.jsonl") for door in (one, two))
    assert len(alone) == len(together) == 8, "one process writes, once"
    for a, b in zip(alone, together, strict=True):
        assert a["step"] == b["step"] and a["tokens"] == b["tokens"]
        for name in ("train_loss", "valid_loss", "gradient_norm", "valid_accuracy"):
            assert (name in a) == (name in b)
            assert a.get(name, 0) == pytest.approx(b.get(name, 0), rel=2e-4), (name, a["step"])
        assert a.get("valid_targets") == b.get("valid_targets"), "every validation token once"
    assert output.count("step      6  valid loss") == 1
    assert "step      6  valid loss" in (two.run_folder / "console.log").read_text()
    assert (two.run_folder / "rank_1.log").read_text().startswith("== "), "each process has a log of its own"
    assert not (one.run_folder / "rank_1.log").exists()


def test_two_processes_resume(corpus: Path, tmp_path: Path) -> None:
    whole, pieces = Door(corpus, tmp_path / "whole"), Door(corpus, tmp_path / "pieces")
    flags = ("--batch_size_per_device", "2", "--cpu_processes", "2", "--max_scheduling_steps", "6")
    whole(*flags)
    pieces(*flags, "--max_steps", "3")
    pieces(*flags, "--max_steps", "6", "--resume_training_ckpt", "last")
    losses = [
        [row["train_loss"] for row in read_rows(door.run_folder / "metrics.jsonl") if "train_loss" in row]
        for door in (whole, pieces)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 6


def test_a_resume_with_other_batches_is_refused(corpus: Path, tmp_path: Path) -> None:
    door = Door(corpus, tmp_path)
    door("--batch_size_per_device", "2", "--cpu_processes", "2")
    output = door(
        "--resume_training_ckpt",
        "last",
        "--batch_size_per_device",
        "2",
        "--cpu_processes",
        "1",
        "--max_steps",
        "9",
        status=2,
    )
    assert "rows_per_batch was 4 and is 2" in output
