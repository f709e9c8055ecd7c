"""Two processes are one process with the doubled batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.files import read_rows
from tests.conftest import TrainCommand


def test_two_processes_equal_one_with_the_doubled_batch(corpus: Path, tmp_path: Path) -> None:
    one, two = TrainCommand(corpus, tmp_path / "one"), TrainCommand(corpus, tmp_path / "two")
    one("--batch_size_per_device", "4", "--limit_val_batches", "1.0")
    output = two("--batch_size_per_device", "2", "--cpu_processes", "2", "--limit_val_batches", "1.0")
    alone, together = (read_rows(train_command.run_folder / "metrics.jsonl") for train_command in (one, two))
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
    whole, pieces = TrainCommand(corpus, tmp_path / "whole"), TrainCommand(corpus, tmp_path / "pieces")
    flags = ("--batch_size_per_device", "2", "--cpu_processes", "2", "--max_scheduling_steps", "6")
    whole(*flags)
    pieces(*flags, "--max_steps", "3")
    pieces(*flags, "--max_steps", "6", "--resume_training_ckpt", "last")
    losses = [
        [row["train_loss"] for row in read_rows(train_command.run_folder / "metrics.jsonl") if "train_loss" in row]
        for train_command in (whole, pieces)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 6


def test_a_resume_with_other_batches_is_refused(corpus: Path, tmp_path: Path) -> None:
    train_command = TrainCommand(corpus, tmp_path)
    train_command("--batch_size_per_device", "2", "--cpu_processes", "2")
    output = train_command(
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
