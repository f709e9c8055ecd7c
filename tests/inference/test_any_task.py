"""A run of a task from outside the house is evaluated and drawn by the same commands as any other."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import train_model
from config.flags import flag
from config.task import Command, find_task
from core.files import read_rows
from inference.__main__ import main
from tests.conftest import ROOT
from tests.support import warm

TOY = ROOT / "tests" / "toy"
STEPS = 12


@pytest.fixture(scope="module")
def toy_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logs = tmp_path_factory.mktemp("toy") / "logs"
    words = ["train_model.py", "--task", "toylab.mixture", "--no_wandb", "--logs_dir", str(logs), "--run_name", "toy"]
    words += ["--max_steps", str(STEPS), "--mcmc_num_steps", "2", "--val_check_interval", str(STEPS)]
    done = warm.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(TOY)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (logs / "runs").glob("[!.]*")
    return folder


@pytest.fixture(autouse=True)
def toy_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOY))


def evaluate(run: Path, out: Path, *flags: str) -> dict[str, Any]:
    assert main(["evaluate", "--run", str(run), "--infer_output_dir", str(out), *flags]) == 0
    return read_rows(out / "evaluation.jsonl")[-1]


def test_evaluate_repeats_the_validation_of_the_training(
    toy_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = evaluate(toy_run, tmp_path)
    trained = next(old for old in reversed(read_rows(toy_run / "metrics.jsonl")) if "valid_loss" in old)
    assert (row["task"], row["split"], row["step"]) == ("toylab.mixture", "valid", STEPS)
    for name in ("loss", "near", "targets", "loss_step_1", "loss_step_2", "thinking_gain"):
        assert row["results"][name] == pytest.approx(trained[f"valid_{name}"], rel=1e-5, abs=1e-7)
    printed = capsys.readouterr().out
    assert "validation split, 512 points" in printed and "left as it is" in printed
    assert "squared distance" in printed and "token" not in printed


def test_evaluate_walks_as_the_flags_ask(toy_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual = evaluate(toy_run, tmp_path, "--split", "test", "--limit", "40")["results"]
    same = evaluate(toy_run, tmp_path, "--split", "test", "--limit", "40", "--infer_ebt_num_steps", "2")
    assert same["settings"] == {"limit": 40, "infer_ebt_num_steps": 2}
    for name, value in usual.items():
        assert name == "seconds" or same["results"][name] == pytest.approx(value, rel=1e-5, abs=1e-7)
    assert "the first 40 points" in capsys.readouterr().out
    longer = evaluate(toy_run, tmp_path, "--split", "test", "--infer_ebt_num_steps", "4")["results"]
    assert longer["loss_step_4"] == pytest.approx(longer["loss"], rel=1e-5) and longer["mean_steps"] == 4
    assert longer["energy_last"] < longer["energy_first"]
    noisy = ("--infer_langevin_dynamics_noise", "0.1", "--infer_generated_samples")
    one, four = (evaluate(toy_run, tmp_path, *noisy, count)["results"] for count in ("1", "4"))
    assert four["energy_last"] < one["energy_last"]
    careful = ("--infer_accept_lower_energies", "--infer_ebt_stop_change", "1000", "--infer_ebt_num_steps", "5")
    assert evaluate(toy_run, tmp_path, *careful)["results"]["mean_steps"] < 5


def test_the_door_of_training_evaluates_too(toy_run: Path, tmp_path: Path) -> None:
    checkpoint = toy_run / "checkpoints" / "last.ckpt"
    words = ["--only_test", "--only_test_model_ckpt", str(checkpoint), "--execution_mode", "inference", "--no_wandb"]
    words += ["--infer_output_dir", str(tmp_path), "--limit_test_batches", "0.5"]
    assert train_model.main([*words, "--task", "toylab.mixture"]) == 0
    row = read_rows(tmp_path / "evaluation.jsonl")[-1]
    assert row["split"] == "test" and row["results"]["targets"] == 256
    assert train_model.main(words) == 0  # the checkpoint says what its task is


def test_think_curve(
    toy_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["think-curve", "--run", str(toy_run), "--infer_output_dir", str(tmp_path), "--rows", "512"]
    assert main([*words, "--steps", "1"]) == 2
    assert "this model's evaluation takes 2; choose 2 or more." in capsys.readouterr().err
    monkeypatch.setattr(type(find_task("toylab.mixture")), "shifted", lambda self, data: data.rows["test"])
    assert main([*words, "--steps", "3", "--batch_size", "128", "--baseline", str(toy_run)]) == 0
    printed = capsys.readouterr().out
    assert "one seed" in printed and "IN-DISTRIBUTION" in printed and "SHIFTED" in printed
    assert "squared distance, square units" in printed and "on the shifted data" in printed
    assert (tmp_path / "think_curve.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "think_curve.csv").open()))
    means = {(row["sample"], row["model"], row["steps"]): float(row["loss"]) for row in rows if row["seed"] == "mean"}
    for sample, split in (("in-distribution", "valid"), ("shifted", "test")):
        expected = evaluate(toy_run, tmp_path, "--split", split)["results"]
        assert means[sample, "energy", "2"] == pytest.approx(expected["loss"], rel=1e-4)
        assert means[sample, "energy", "1"] == pytest.approx(expected["loss_step_1"], rel=1e-4)
        assert means[sample, "baseline", ""] == pytest.approx(expected["loss"], rel=1e-4)


def test_a_command_that_its_task_does_not_have(toy_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--run", str(toy_run), "--prompt", "x"]) == 2
    offer = "choose evaluate or think-curve, or another run."
    assert capsys.readouterr().err.strip() == f"--run {toy_run} is a toylab.mixture run, which has no generate: {offer}"
    assert main(["landscape", "--logs_dir", str(toy_run.parent.parent)]) == 2
    newest = "The newest run is a toylab.mixture run, which has no landscape"
    assert capsys.readouterr().err.strip() == f"{newest}: {offer}"


@dataclass(frozen=True)
class Greeting:
    """how to greet"""

    word: str = flag("hello", "what to say")


def greet(model: Any, command: Greeting, inference: Any) -> int:
    print(f"{command.word} {Path(model.run).name}")
    return 0


def test_a_command_of_a_task_from_outside(
    toy_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command(f"{__name__}:greet", Greeting, "greet a run")
    monkeypatch.setattr(type(find_task("toylab.mixture")), "commands", {"greet": command})
    assert main(["greet", "--run", str(toy_run), "--word", "good morning"]) == 0
    assert capsys.readouterr().out.strip() == f"good morning {toy_run.name}"


def test_commands_are_listed_and_found_without_torch(toy_run: Path) -> None:
    script = (
        "import sys; from inference.__main__ import main\n"
        "from inference.commands import find_command\n"
        "assert main(['--help']) == 0\n"
        f"assert find_command('evaluate', ['--run', {str(toy_run)!r}]).target == 'inference.evaluate:main'\n"
        "assert find_command('evaluate', ['--help']).target == 'inference.language.evaluate:main'\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(TOY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(f"python -m inference {name} " in done.stdout for name in ("generate", "evaluate", "think-curve"))
