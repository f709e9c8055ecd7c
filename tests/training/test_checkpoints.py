"""Checkpoints: refused when damaged or foreign, kept on a full disk, the newest and the best of a run."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from config import parse_command_line
from config.settings import Checkpoint
from runs.checkpoints import CheckpointError, read_checkpoint
from tests.conftest import TrainCommand
from training.checkpoints import Checkpoints, write_checkpoint


class Payload:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


def test_a_checkpoint_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil.ckpt"
    torch.save({"state_dict": {}, "run": {}, "payload": Payload()}, path)
    with pytest.raises(
        CheckpointError, match=r"holds more than tensors and plain values: refused, and nothing in it was run"
    ):
        read_checkpoint(path)
    assert not (tmp_path / "executed").exists()


def test_not_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "notes.ckpt"
    path.write_text("my notes")
    with pytest.raises(CheckpointError, match="is not a whole checkpoint"):
        read_checkpoint(path)
    torch.save({"weights": torch.ones(3)}, path)
    with pytest.raises(CheckpointError, match="is not a checkpoint of this toolkit: it has no record of its run"):
        read_checkpoint(path)
    with pytest.raises(CheckpointError, match="there is no such checkpoint"):
        read_checkpoint(tmp_path / "nothing.ckpt")


FULL_DISK = """
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    import training.checkpoints
    save = training.checkpoints.Checkpoints.save
    def save_on_a_full_disk(self, trainer):
        if trainer.global_step == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        save(self, trainer)
    training.checkpoints.Checkpoints.save = save_on_a_full_disk
"""


def test_a_full_disk_keeps_the_last_good_checkpoint(train_command: TrainCommand) -> None:
    output = train_command.with_fault(
        FULL_DISK, "--checkpoint_every_n_steps", "2", "--limit_val_batches", "0", status=1
    )
    assert "the run stopped: the checkpoint of step 4 could not be written" in output
    good = train_command.run_folder / "checkpoints" / "step_00000002.ckpt"
    assert f"Everything up to step 2 is saved in {good}: free some space and resume with\n" in output
    assert f"  python train_model.py --resume_training_ckpt {good}\n" in output and "Traceback" not in output
    assert read_checkpoint(good)["global_step"] == 2
    assert "resuming from step 2" in train_command("--resume_training_ckpt", "last")


def test_a_full_disk_is_called_so(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, parse_command_line([]).checkpoint, {}, None)  # type: ignore[arg-type]
    with open("/dev/full", "wb", buffering=0) as file, pytest.raises(OSError) as caught:
        write_checkpoint({"weights": torch.zeros(100_000)}, file)
    (tmp_path / "step_00000002.ckpt").touch()
    words = checkpoints.explain(4, caught.value)
    assert words.startswith(f"disk full: the disk of {tmp_path} has no room for the checkpoint of step 4. Everything")
    quota = checkpoints.explain(4, OSError(errno.EDQUOT, "Disk quota exceeded"))
    assert quota.startswith(f"disk full: the disk, or your quota of it, of {tmp_path} has no room")


def test_every_measured_metric_can_choose_the_best(train_command: TrainCommand) -> None:
    train_command("--max_steps", "2", "--checkpoint_monitor_string", "valid_bits_per_byte")
    assert (train_command.run_folder / "checkpoints" / "best.ckpt").resolve().name == "step_00000002.ckpt"


def test_newest_and_best_are_kept(train_command: TrainCommand) -> None:
    train_command(
        "--max_steps", "8", "--checkpoint_every_n_steps", "1", "--val_check_interval", "4", "--save_top_k_ckpts", "1"
    )
    names = sorted(path.name for path in (train_command.run_folder / "checkpoints").iterdir())
    assert names == ["best.ckpt", "last.ckpt", "step_00000007.ckpt", "step_00000008.ckpt"]
    assert (train_command.run_folder / "checkpoints" / "last.ckpt").resolve().name == "step_00000008.ckpt"


def test_the_best_stays_when_it_gets_worse(train_command: TrainCommand) -> None:
    flags = ("--checkpoint_every_n_steps", "1", "--val_check_interval", "2", "--checkpoint_monitor_mode", "max")
    train_command("--max_steps", "8", "--checkpoint_monitor_string", "valid_loss", *flags)
    assert (train_command.run_folder / "checkpoints" / "best.ckpt").resolve().name == "step_00000002.ckpt"


def test_weights_of_another_model(train_command: TrainCommand) -> None:
    train_command()
    checkpoint = str(train_command.run_folder / "checkpoints" / "last.ckpt")
    flags = ("--execution_mode", "finetune", "--finetuning_model_ckpt", checkpoint)
    output = train_command(*flags, "--ffn_dim_multiplier", "2", status=2)
    assert "--finetuning_model_ckpt: its weights do not fit this model: network.blocks.0.feed_forward" in output
    assert "use the same --task, --model_size and other flags of the model." in output


def test_finetuning_starts_from_the_weights_and_tests_them(train_command: TrainCommand) -> None:
    train_command("--embedding_dim", "64", "--max_steps", "20")
    checkpoint = str(train_command.run_folder / "checkpoints" / "last.ckpt")
    output = train_command("--only_test", "--only_test_model_ckpt", checkpoint)
    assert "test loss" in output and "unigram counts" in output
    tuned = TrainCommand(train_command.corpus, train_command.logs / "tuned")
    output = tuned("--execution_mode", "finetune", "--finetuning_model_ckpt", checkpoint)
    first = next(line for line in output.splitlines() if "valid loss" in line)
    assert float(first.split("valid loss ")[1].split()[0]) < 4.5, "an untrained model starts at 5.5 or more"


def test_of_equally_good_checkpoints_the_later_is_the_best(tmp_path: Path) -> None:
    settings = Checkpoint(checkpoint_monitor_string="valid_accuracy", checkpoint_monitor_mode="max")
    checkpoints = Checkpoints(tmp_path, settings, {}, SimpleNamespace(flush=lambda trainer: None))  # type: ignore[arg-type]
    trainer = SimpleNamespace(global_step=0, is_global_zero=False, save_checkpoint=lambda *_, **__: None)
    for step, accuracy in enumerate((0.5, 1.0, 1.0, 0.9), 1):
        checkpoints.candidate, trainer.global_step = accuracy, step
        checkpoints.save(trainer)  # type: ignore[arg-type]
    assert checkpoints.best == [(1.0, 3)]
