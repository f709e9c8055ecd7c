"""A run folder is complete: copied to where neither its dataset nor a cache is, it can be used and gone on with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from core.files import read_rows
from inference.__main__ import main
from tests.conftest import TrainCommand

SMALL = ("--num_transformer_blocks", "1", "--embedding_dim", "16", "--multiheaded_attention_heads", "2")


@pytest.fixture(scope="module")
def moved(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The copy of a run with a tokenizer trained for it, and where its dataset lies now."""
    folder = tmp_path_factory.mktemp("moved")
    train_command = TrainCommand(shutil.copytree(corpus, folder / "texts"), folder / "logs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EBT_CACHE", str(folder / "cache"))
        train_command(*SMALL, "--tokenizer", "bpe:300", "--limit_val_batches", "1.0", "--max_steps", "4")
    copy = shutil.copytree(
        train_command.run_folder, folder / "elsewhere" / train_command.run_folder.name, symlinks=True
    )
    (folder / "texts").rename(folder / "found")
    shutil.rmtree(folder / "logs")
    shutil.rmtree(folder / "cache")
    return copy, folder / "found"


@pytest.fixture(autouse=True)
def another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBT_CACHE", str(tmp_path / "cache"))


def test_it_generates_without_its_dataset(moved: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    copy, _ = moved
    assert main(["generate", "--run", str(copy), "--prompt", "The ", "--infer_max_gen_len", "3"]) == 0
    assert capsys.readouterr().out.strip()


def test_it_is_evaluated_where_its_dataset_is_found(
    moved: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, dataset = moved
    command = ["evaluate", "--run", str(copy), "--infer_output_dir", str(tmp_path)]
    assert main(command) == 2
    assert capsys.readouterr().err.strip().endswith(": no such file or folder; check the path.")
    assert main([*command, "--dataset_dir", str(dataset)]) == 0
    (row,) = read_rows(tmp_path / "evaluation.jsonl")
    validated = [row["valid_loss"] for row in read_rows(copy / "metrics.jsonl") if "valid_loss" in row]
    assert row["results"]["loss"] == pytest.approx(min(validated), rel=1e-5), "on the split that it was validated on"


def test_it_goes_on_where_its_dataset_is_found(moved: tuple[Path, Path], tmp_path: Path) -> None:
    copy, dataset = moved
    copy = shutil.copytree(copy, tmp_path / copy.name, symlinks=True)
    train_command = TrainCommand(dataset, tmp_path / "logs").without("--max_steps")
    resumed = ("--resume_training_ckpt", str(copy / "checkpoints" / "last.ckpt"), "--max_steps", "5")
    assert "resuming from step 4" in train_command(*SMALL, *resumed, "--limit_val_batches", "1.0")
    assert json.loads((copy / "data.json").read_text())["tokenizer"]["name"] == "bpe:300"


def test_another_text_is_tuned_with_the_tokenizer_of_the_weights(moved: tuple[Path, Path], tmp_path: Path) -> None:
    copy, dataset = moved
    (tmp_path / "other").mkdir()
    for number, file in enumerate(sorted(dataset.iterdir())):
        (tmp_path / "other" / f"{number}.txt").write_text(file.read_text().upper())
    train_command = TrainCommand(tmp_path / "other", tmp_path / "logs")
    weights = ("--execution_mode", "finetune", "--finetuning_model_ckpt", str(copy / "checkpoints" / "last.ckpt"))
    train_command(*SMALL, *weights, "--max_steps", "2")
    records = [json.loads((run / "data.json").read_text()) for run in (copy, train_command.run_folder)]
    assert records[0]["tokenizer"] == records[1]["tokenizer"]
    assert records[0]["fingerprint"] != records[1]["fingerprint"]


def test_a_folder_of_an_earlier_version_finds_its_tokenizer_with_its_dataset(
    moved: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, dataset = moved
    old = shutil.copytree(copy, tmp_path / copy.name, symlinks=True)
    (old / "data.json").unlink()
    (old / "tokenizer.json").write_text("damaged")
    command = ["generate", "--run", str(old), "--prompt", "The ", "--infer_max_gen_len", "3", "--infer_temp", "0"]
    assert main(command) == 2 and "no such file or folder" in capsys.readouterr().err
    data_path = Path(json.loads((old / "config.json").read_text())["data"]["dataset_dir"])
    data_path.symlink_to(dataset)
    try:
        assert main(command) == 0
        text = capsys.readouterr().out
        assert main([*command[:2], str(copy), *command[3:]]) == 0
        assert capsys.readouterr().out == text
    finally:
        data_path.unlink()
