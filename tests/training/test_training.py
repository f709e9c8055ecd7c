"""The ways to train that must give the same numbers, and what a run writes down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core.files import read_rows
from runs.checkpoints import read_checkpoint
from tests.conftest import TrainCommand
from tests.training.faults import UNUSED_LAYER


def losses(train_command: TrainCommand, *flags: str) -> list[float]:
    train_command(*flags)
    return [row["train_loss"] for row in read_rows(train_command.run_folder / "metrics.jsonl") if "train_loss" in row]


@pytest.fixture(scope="module")
def plain(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return losses(TrainCommand(corpus, tmp_path_factory.mktemp("plain")))


def test_accumulated_batches_are_one_large_batch(train_command: TrainCommand, plain: list[float]) -> None:
    split = losses(train_command, "--batch_size_per_device", "2", "--accumulate_grad_batches", "2")
    assert split == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize(
    ("flags", "tolerance"),
    [
        (("--gradient_checkpointing",), 1e-5),
        (("--float_precision", "bf16"), 0.01),
        (("--compile_model",), 1e-3),
        (("--num_workers", "2"), 0),
        (("--optimizer", "adamw", "--lr_schedule", "cosine"), 0),
    ],
)
def test_what_must_not_change_the_losses(
    train_command: TrainCommand, plain: list[float], flags: tuple[str, ...], tolerance: float
) -> None:
    assert losses(train_command, *flags) == pytest.approx(plain, rel=tolerance, abs=0)


@pytest.mark.parametrize("flags", [("--tie_embeddings",), ("--no-tie_embeddings",), ("--no-isolate_documents",)])
def test_other_architectures_train(train_command: TrainCommand, flags: tuple[str, ...]) -> None:
    values = losses(train_command, "--max_steps", "12", *flags)
    assert values[-1] < values[0]


def test_half_precision_without_a_gpu(train_command: TrainCommand) -> None:
    output = train_command("--float_precision", "16", status=2)
    assert "--float_precision is 16: half precision needs a GPU; choose bf16 or 32." in output


def test_a_gpu_that_is_not_there(train_command: TrainCommand) -> None:
    output = train_command("--gpus", "1", status=2)
    assert "--gpus is '1': this machine has no GPU that torch can use; leave the flag out." in output


def test_gradients_by_layer(train_command: TrainCommand) -> None:
    train_command("--log_gradients", "--log_every_n_steps", "2")
    row = [row for row in read_rows(train_command.run_folder / "metrics.jsonl") if "train_loss" in row][-1]
    norms = {name: value for name, value in row.items() if name.startswith("gradient_norm/")}
    assert "gradient_norm/network.blocks.0.attention.query_key_value.weight" in norms
    assert all(value > 0 for value in norms.values())


def test_ddp_and_parameters_without_gradient(corpus: Path, tmp_path: Path) -> None:
    flags = ("--cpu_processes", "2", "--batch_size_per_device", "2")
    TrainCommand(corpus, tmp_path / "b").with_fault(UNUSED_LAYER, *flags, "--find_unused_parameters")
    output = TrainCommand(corpus, tmp_path / "a").with_fault(UNUSED_LAYER, *flags, status=1)
    assert "parameters that were not used in producing the loss" in output


def test_the_run_folder_tells_what_was_run(train_command: TrainCommand) -> None:
    train_command("--run_name", "my run <1>", "--seed", "7")
    folder = train_command.run_folder
    assert folder.name.startswith("my-run-1_")
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    assert config["run"]["run_name"] == "my run <1>" and config["trainer"]["seed"] == 7
    command = (folder / "command.txt").read_text()
    assert "--run_name 'my run <1>'" in command
    assert json.loads((folder / "environment.json").read_text())["packages"]["torch"].startswith("2.13")
    assert set(json.loads((folder / "code.json").read_text())) == {"commit", "branch", "dirty", "untracked"}
    start, *_, end = read_rows(folder / "attempts.jsonl")
    assert start["first_step"] == 0 and end["last_step"] == 6 and end["cause"] == "finished"
    row = read_rows(folder / "metrics.jsonl")[-2]
    assert {"step", "epoch", "tokens", "seconds", "train_loss", "gradient_norm", "clipped_share"} <= row.keys()
    assert "tokens_per_second" in row and [name for name in row if "rate" in name] == ["learning_rate"]


def test_a_random_seed_is_recorded(train_command: TrainCommand) -> None:
    train_command("--is_random_seed")
    assert json.loads((train_command.run_folder / "config.json").read_text())["trainer"]["seed"] != 0


def test_epochs_end_a_run(train_command: TrainCommand) -> None:
    train_command("--max_epochs", "2", "--limit_train_batches", "3", "--max_steps", "100")
    rows = read_rows(train_command.run_folder / "metrics.jsonl")
    assert rows[-1]["step"] == 6 and rows[-1]["epoch"] == 2.0


def test_validation_by_epoch(train_command: TrainCommand) -> None:
    train_command.without("--val_check_interval")("--limit_train_batches", "2", "--check_val_every_n_epoch", "2")
    steps = [row["step"] for row in read_rows(train_command.run_folder / "metrics.jsonl") if "valid_loss" in row]
    assert steps == [0, 4, 6]


SMALL_SAMPLE = "import data.module\ndata.module.Rows.sample_units = 512\n"


def test_training_validates_a_sample_and_its_end_the_whole_split(train_command: TrainCommand) -> None:
    train_command = train_command.without("--limit_val_batches", "--val_check_interval")
    flags = ("--max_steps", "20")
    output = train_command.with_fault(SMALL_SAMPLE, *flags)

    def validations() -> list[tuple[int, float]]:
        rows = read_rows(train_command.run_folder / "metrics.jsonl")
        return [(row["step"], row["valid_targets"]) for row in rows if "valid_loss" in row]

    *sampled, whole = validations()
    assert sampled == [(step, 512) for step in range(0, 21, 2)]
    assert whole[0] == 20 and whole[1] > 2 * 512 and f"of {whole[1]:,.0f} tokens\n" in output
    best = read_checkpoint(train_command.run_folder / "checkpoints" / "best.ckpt")["global_step"]
    rows = [row for row in read_rows(train_command.run_folder / "metrics.jsonl") if row.get("valid_targets") == 512]
    assert min(rows[1:], key=lambda row: row["valid_loss"])["step"] == best
    train_command.with_fault(SMALL_SAMPLE, *flags, "--resume_training_ckpt", "last")
    assert validations() == [*sampled, whole], "what came after the last step is not told twice"
    judged = TrainCommand(train_command.corpus, train_command.logs / "judged").without("--limit_val_batches")
    judged.with_fault(SMALL_SAMPLE, "--goal", "valid_loss<9")
    (first, *_) = [row for row in read_rows(judged.run_folder / "metrics.jsonl") if "valid_loss" in row]
    assert first["valid_targets"] == whole[1], "a goal is met by the whole split"
