"""A task from outside the house (tests/toy) trains, resumes and is read like any other, and no room knows it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from config.record import from_dict
from core.files import read_rows
from runs.wandb import offline_runs
from tasks import find_task
from tests.conftest import ROOT
from tests.support import warm
from tests.support.reading_wandb import WandbFile

TOY = ROOT / "tests" / "toy"
ROOMS = ("core", "config", "data", "models", "tasks", "training", "runs", "launch", "inference")
TRAINED = (
    *("--max_steps", "60", "--mcmc_num_steps", "2", "--randomize_mcmc_num_steps", "1", "--log_every_n_steps", "3"),
    *("--langevin_dynamics_noise", "0.01", "--checkpoint_every_n_steps", "7", "--run_testing_after_training"),
    *("--val_check_interval", "20", "--resume_training_ckpt", "last_or_new"),
)
TIMED = ("seconds", "time", "points_per_second", "loader_wait_share", "attempt")


@dataclass(frozen=True)
class Toy:
    """Programs of the house in a process that finds the toy, with a logs folder of their own."""

    logs: Path
    task: str = "toylab.mixture"

    def __call__(self, *words: str, status: int = 0, **variables: str) -> str:
        """`python WORDS...`: what it printed; `status` is what it must exit with."""
        environment = {**os.environ, "PYTHONPATH": str(TOY), **variables}
        command = [sys.executable, *words]
        done = warm.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
        output = done.stdout + done.stderr
        assert done.returncode == status, f"exit status {done.returncode}, not {status}:\n{output}"
        return output

    def train(self, *flags: str, status: int = 0, **variables: str) -> str:
        words = ("train_model.py", "--task", self.task, "--no_wandb", "--logs_dir", str(self.logs), *flags)
        return self(*words, status=status, **variables)

    @property
    def run_folder(self) -> Path:
        (folder,) = (self.logs / "runs").glob("[!.]*")
        return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Toy, str]:
    """A toy run that was trained and tested in one piece, and what it printed."""
    toy = Toy(tmp_path_factory.mktemp("toy") / "logs")
    return toy, toy.train(*TRAINED)


def trace(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMED} for row in read_rows(folder / "metrics.jsonl")]


def final(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


def digest(value: Any) -> Any:
    """Tensors as plain values, so that `==` compares them."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: digest(part) for key, part in value.items()}
    return [digest(part) for part in value] if isinstance(value, (list, tuple)) else value


def assert_equal_runs(folder: Path, whole: Path) -> None:
    assert trace(folder) == trace(whole)
    one, other = final(whole), final(folder)
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "rng"):
        assert digest(one[part]) == digest(other[part]), part


def pictures(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((folder / "pictures").glob("*"))}


def test_it_trains_in_its_own_words(trained: tuple[Toy, str]) -> None:
    toy, output = trained
    assert "512 points to learn from" in output and "FLOPs are not counted" not in output
    line = r"step +60  test squared distance 0\.\d{4} square units, near its corner [\d.]+%, .*, of 512 points"
    assert re.search(line, output)
    assert "left as it is" in output and "shown: a point" in output and "points/s" in output
    assert "token" not in output and "nats" not in output
    assert f"--task toylab.mixture --logs_dir {toy.logs} --resume_training_ckpt last" in output


def test_its_folder_says_what_it_is(trained: tuple[Toy, str]) -> None:
    folder = trained[0].run_folder
    rows = read_rows(folder / "metrics.jsonl")
    assert rows[-1]["points"] == 60 * 16 and "test_near" in rows[-1] and rows[-1]["flops"] > 0
    assert not any("token" in name for row in rows for name in row)
    task = json.loads((folder / "task.json").read_bytes())
    assert (task["name"], task["unit"], task["headline"]) == ("toylab.mixture", "points", "valid_loss")
    schema = json.loads((folder / "metrics.schema.json").read_bytes())
    assert schema["valid_near"] == {
        "title": "validation near its corner",
        "unit": "share of points",
        "better": "higher",
    }
    assert schema["points_per_second"]["unit"] == "points per second"
    assert json.loads((folder / "spec.json").read_bytes()) == {} == final(folder)["run"]["spec"]


def test_it_is_found_and_ranked(trained: tuple[Toy, str]) -> None:
    toy = trained[0]
    logs = ("--logs_dir", str(toy.logs))
    assert toy.run_folder.name in toy("-m", "runs", "list", "--where", "valid_near>0.01", *logs)
    assert "None of the 1 runs" in toy("-m", "runs", "list", "--where", "valid_near>2", *logs)
    assert "validation near its corner" in toy("-m", "runs", "best", "valid_near", *logs)


def test_its_page_opens_in_the_browser(trained: tuple[Toy, str]) -> None:
    if shutil.which("chromium") is None:
        sentence = "chromium is needed: apt-get install chromium."
        pytest.fail(sentence) if os.environ.get("CI") == "true" else pytest.skip(sentence)
    logs, run = trained[0].logs, trained[0].run_folder.name
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000", "--dump-dom"]
    page = (logs / "pages" / f"{run}.html").resolve().as_uri()
    shown = subprocess.run([*command, page], capture_output=True, text=True, timeout=120).stdout
    for words in ("Best validation squared distance", "square units", "Near its corner", "Points"):
        assert words in shown


def test_its_model_is_built_from_its_folder_alone(trained: tuple[Toy, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOY))
    folder = trained[0].run_folder
    config = from_dict(json.loads((folder / "config.json").read_bytes()))
    task = find_task(config.run.task)
    model = task.model(config, task.spec(config, folder))
    model.load_weights(final(folder)["state_dict"])
    task.processor(config, folder).save(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "toylab"]:
        del sys.modules[name]


def test_killed_and_resumed_it_is_the_same_to_the_bit(trained: tuple[Toy, str], tmp_path: Path) -> None:
    whole, pieces = trained[0], Toy(tmp_path / "logs")
    pieces.train(*TRAINED, status=-signal.SIGKILL, EBT_DRILL="save:28")
    output = pieces.train(*TRAINED)
    assert "resuming from step 21" in output
    assert_equal_runs(pieces.run_folder, whole.run_folder)
    assert pictures(pieces.run_folder) == pictures(whole.run_folder)


def test_it_is_drawn_by_training_step(trained: tuple[Toy, str]) -> None:
    drawn = pictures(trained[0].run_folder)
    assert list(drawn) == [f"plane_step_{step:07d}.png" for step in (0, 20, 40, 60)]
    assert all(picture.startswith(b"\x89PNG") for picture in drawn.values())
    assert len(set(drawn.values())) == 4, "each shows the model of its step"


@pytest.mark.parametrize("task", ["toylab.silent", "toylab.failing"])
def test_what_is_drawn_during_training_does_not_change_it(trained: tuple[Toy, str], tmp_path: Path, task: str) -> None:
    other = Toy(tmp_path / "logs", task)
    output = other.train(*TRAINED)
    assert_equal_runs(other.run_folder, trained[0].run_folder)
    sentence = "could not show the model during training: OSError: [Errno 28] No space left on device"
    assert output.count(sentence) == (task == "toylab.failing"), "an error is reported once"
    assert bool(pictures(other.run_folder)) == (task == "toylab.failing")


def test_many_validations_are_shown_about_a_dozen_times(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "logs")
    toy.train("--max_steps", "50", "--val_check_interval", "2", "--goal", "valid_loss<0", status=3)
    steps = [int(name[-11:-4]) for name in pictures(toy.run_folder)]
    assert steps == [0, *range(6, 51, 4)]
    (toy.run_folder / "pictures" / "plane_step_0000099.png").touch()
    toy.train("--resume_training_ckpt", "last", "--max_steps", "60", "--goal", "valid_loss<100")
    steps = [int(name[-11:-4]) for name in pictures(toy.run_folder)]
    assert steps[-2:] == [50, 52], "the goal is met at step 52: the last validation is shown"


def test_of_two_processes_the_first_draws(tmp_path: Path) -> None:
    logs, flags = tmp_path / "logs", ("--cpu_processes", "2", "--max_steps", "4", "--val_check_interval", "2")
    drawing, silent = Toy(logs / "drawing"), Toy(logs / "silent", "toylab.silent")
    assert "could not show" not in drawing.train(*flags)
    silent.train(*flags)
    assert list(pictures(drawing.run_folder)) == [f"plane_step_{step:07d}.png" for step in (0, 2, 4)]
    assert_equal_runs(drawing.run_folder, silent.run_folder)


def test_wandb_has_its_pictures_by_step(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "logs")
    toy("train_model.py", "--task", toy.task, "--wandb_offline", "--logs_dir", str(toy.logs), "--max_steps", "20")
    (piece,) = offline_runs(toy.run_folder)
    history = WandbFile(piece.file).history
    drawn = [row["pictures/plane.caption"] for row in history if "pictures/plane.caption" in row]
    assert drawn == list(pictures(toy.run_folder)) and len(drawn) == 11
    validated = {row["_step"] for row in history if "valid_loss" in row}
    assert validated == {row["_step"] for row in history if "pictures/plane.caption" in row}


def test_a_rehearsal_draws_nothing(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "logs")
    toy.train("--fast_dev_run")
    assert not (toy.run_folder / "pictures").exists()


def test_the_tools_speak_of_points(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "logs")
    output = toy.train("--plan", "--find_lr", "--find_batch_size")
    for words in ("FLOPs per point", "points per step", "points to be seen", "points/s", "try --peak_learning_rate"):
        assert words in output
    assert (toy.logs / "find_lr.png").exists() and not (toy.logs / "runs").exists()
    assert "0 problem(s) found" in toy.train("--debug_dataloader")


def test_its_measures_end_and_judge_a_run(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "logs")
    best = ("--checkpoint_monitor_string", "valid_near", "--checkpoint_monitor_mode", "max", "--early_stop", "2")
    output = toy.train("--max_steps", "60", "--goal", "valid_near>0.1", *best, "--compare_baseline")
    assert "--goal valid_near>0.1 was met at step" in output
    assert "--compare_baseline: --task toylab.mixture has no model to compare with" in output
    assert "choose valid_loss, valid_near" in toy.train("--goal", "valid_accuracy>0.1", status=2)


def test_a_few_batches_are_memorised(tmp_path: Path) -> None:
    output = Toy(tmp_path / "logs").train("--overfit_batches", "1", "--max_steps", "9", status=1)
    assert "--overfit_batches: the loss went from" in output


def test_no_room_names_it() -> None:
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*") if file.suffix in (".py", ".js", ".html")]
    assert len(files) > 100
    assert not [file for file in files if re.search("toylab|MixtureTask", file.read_text())]
