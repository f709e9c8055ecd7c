"""What W&B gets of a run: the real client, its files read back, through a requeue; runs that lose W&B on the way."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import torch

import training.wandb
from config import SettingsError, parse_command_line
from config.record import to_dict
from core.files import append_row, read_rows, write_json
from launch.job import prepare
from runs import RunFolder
from runs.process import EXIT_RESUMABLE
from runs.run import Run
from runs.wandb import offline_runs
from tests.conftest import TrainCommand
from tests.support.reading_wandb import WandbFile
from tests.support.wandb_server import Page, wandb_server
from training.wandb import WandbLogger, histogram, wandb_logger

pytestmark = pytest.mark.xdist_group("wandb")  # one process: its fixture trains twice
AT_BATCH_4 = """
    from training.recorder import Recorder
    start = Recorder.on_train_batch_start
    def at_batch_4(self, trainer, model, batch, batch_idx):
        if batch_idx == 4:
            fault()
        start(self, trainer, model, batch, batch_idx)
    Recorder.on_train_batch_start = at_batch_4
"""
TOLD_TO_END = "def fault():\n    import os, signal; os.kill(os.getpid(), signal.SIGTERM)\n"
WANDB_DIES = """
def fault():
    import psutil
    (core,) = [child for child in psutil.Process().children() if child.name() == "wandb-core"]
    core.kill()
    core.wait()
"""
NO_MODULE = """
    import atexit, sys
    atexit.register(lambda: print("wandb is loaded:", "wandb" in sys.modules))
"""


def planted(fault: str) -> str:
    from textwrap import dedent

    return fault + dedent(AT_BATCH_4)


class Requeued(NamedTuple):
    """A run of 6 steps, told to end at 4 while it was offline; it went on online."""

    folder: Path
    first: str
    second: str
    page: Page


@pytest.fixture(scope="module")
def nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """Nobody is logged in, whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        patch.setenv("NETRC", str(tmp_path_factory.mktemp("home") / "nobody"))
        yield patch


@pytest.fixture(scope="module")
def requeued(corpus: Path, nobody: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Requeued:
    train_command = TrainCommand(corpus, tmp_path_factory.mktemp("wandb") / "logs").ebt(
        "--wandb_watch", "--wandb_watch_log_freq", "2"
    )
    train_command.tiny.remove("--no_wandb")
    flags = ("--log_gradients", "--wandb_checkpoints", "both", "--wandb_tags", "a", "b", "--wandb_project", "tests")
    with pytest.MonkeyPatch.context() as patch, wandb_server() as server:
        folder = prepare(train_command.command(*flags)[2:])
        patch.setenv("EBT_JOB_RUN_DIR", str(folder))
        (folder / "job_script.slurm").write_text("#!/bin/bash\n")
        first = train_command.with_fault(planted(TOLD_TO_END), *flags, status=EXIT_RESUMABLE)
        append_row(folder / "alarms.jsonl", {"step": 3, "kind": "plateau", "text": "It stands.", "advice": "Wait."})
        patch.setenv("WANDB_BASE_URL", server.url)
        patch.setenv("WANDB_API_KEY", 40 * "a")
        second = train_command(*flags)
        return Requeued(folder, first, second, server.pages[folder.name])


def test_offline_it_says_so_in_one_line(requeued: Requeued) -> None:
    (line,) = [line for line in requeued.first.splitlines() if "W&B" in line or "wandb" in line]
    logs, run = requeued.folder.parent.parent, requeued.folder.name
    assert line == (
        "W&B: offline, nobody is logged in (`wandb login`); its files stay in the run folder. "
        f"Upload later: python -m runs sync {run} --logs_dir {logs}"
    )
    assert "Traceback" not in requeued.first


def test_the_first_piece_holds_the_whole_record(requeued: Requeued) -> None:
    wandb_file = WandbFile(offline_runs(requeued.folder)[0].file)
    assert (wandb_file.run_id, wandb_file.project, wandb_file.tags) == (requeued.folder.name, "tests", ["a", "b"])
    for name, value in Run(requeued.folder).settings.items():
        assert name in wandb_file.config and wandb_file.config[name] == value, name
    assert wandb_file.config["command"] == (requeued.folder / "command.txt").read_text().strip() != ""
    assert set(wandb_file.config["code"]) == {"commit", "branch", "dirty", "untracked"}
    model = wandb_file.config["model"]
    assert model["parameters"] > 100_000 and (model["devices_per_node"], model["nodes"]) == (1, 1)
    assert {"config.json", "code.diff", "job_script.slurm", "model.txt", "environment.json"} <= set(wandb_file.files)
    assert wandb_file.exit_code == EXIT_RESUMABLE and wandb_file.preempting
    assert offline_runs(requeued.folder)[0].steps == (0, 4), requeued.first
    assert wandb_file.stats > 0, "system usage"
    printed = (requeued.folder / "console.log").read_text()
    assert "parameters" in wandb_file.console and wandb_file.console in printed, "what was printed, and once"


def test_the_first_piece_holds_every_row(requeued: Requeued) -> None:
    wandb_file = WandbFile(offline_runs(requeued.folder)[0].file)
    rows = [row for row in read_rows(requeued.folder / "metrics.jsonl") if row["attempt"] == 1 and "train_loss" in row]
    history = [row for row in wandb_file.history if "train_loss" in row]
    assert [row["_step"] for row in history] == [row["step"] for row in rows] == [1, 2, 3, 4]
    for row, sent in zip(rows, history, strict=True):
        assert {name: sent[name] for name in row if name != "step"} == {
            name: pytest.approx(value) for name, value in row.items() if name != "step"
        }
    assert any(name.startswith("learning_rate/") for name in history[0])
    assert any(name.startswith("gradient_norm/") for name in history[-1])


def test_histograms_of_all_parameters_and_their_gradients(requeued: Requeued) -> None:
    """The model is differentiated twice, has a parameter without dimensions, and norms."""
    history = {row["_step"]: row for row in WandbFile(offline_runs(requeued.folder)[0].file).history}
    parameters = {name for name in history[2] if name.startswith("parameters/") and name.endswith(".values")}
    gradients = {name for name in history[2] if name.startswith("gradients/") and name.endswith(".values")}
    checkpoint = torch.load(requeued.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert {f"gradients/{name}.values" for name in checkpoint if "norm" in name or name == "step_size"} <= gradients
    for name in gradients:
        values = history[2][name]
        assert len(values) == 64 and sum(values) == checkpoint[name[len("gradients/") : -len(".values")]].numel(), name
    assert {name.replace("gradients/", "parameters/") for name in gradients} <= parameters
    assert [step for step, row in history.items() if any(name.startswith("gradients/") for name in row)] == [2, 4]


def test_a_requeue_goes_on_with_the_same_page(requeued: Requeued) -> None:
    """The second attempt was online: it sent what the first could not, and then its own."""
    page, rows = requeued.page, read_rows(requeued.folder / "metrics.jsonl")
    assert page.steps == sorted({row["step"] for row in rows}), "each step once"
    losses = {row["step"]: row["train_loss"] for row in rows if "train_loss" in row}
    assert {row["_step"]: row["train_loss"] for row in page.history if "train_loss" in row} == pytest.approx(losses)
    assert page.config["wandb_tags"] == ["a", "b"] and page.exit_code == 0
    assert "resuming from step 4" in page.console and "run folder" in page.console
    assert {"attempts.jsonl", "alarms.jsonl", "job_script.slurm"} <= set(page.files)
    name = f"checkpoint-{requeued.folder.name}"
    assert {f"{name}:best", f"{name}:last", f"{name}:step-6"} <= set(page.artifacts)
    assert page.summary["number_of_alarms"] == 1 and page.summary["best/valid_loss"] > 0
    assert [piece.is_online for piece in offline_runs(requeued.folder)] == [False, True]
    assert all(piece.is_synced for piece in offline_runs(requeued.folder)), "nothing is left to upload"
    assert f"W&B: {os.environ.get('WANDB_BASE_URL', 'http://')}" in requeued.second


def test_a_run_outlives_wandb(corpus: Path, tmp_path: Path, nobody: pytest.MonkeyPatch) -> None:
    train_command = TrainCommand(corpus, tmp_path)
    train_command.tiny.remove("--no_wandb")
    output = train_command.with_fault(planted(WANDB_DIES), "--wandb_offline")
    lines = [line for line in output.splitlines() if line.startswith("W&B: ")]
    assert len(lines) == 2 and lines[0].startswith("W&B: offline, --wandb_offline; its files stay")
    assert lines[1].startswith("W&B: stopped (") and "): the run continues without it. Upload later: python" in lines[1]
    assert "Traceback" not in output
    folder = next((tmp_path / "runs").iterdir())
    assert [row["step"] for row in read_rows(folder / "metrics.jsonl") if "train_loss" in row] == [1, 2, 3, 4, 5, 6]
    assert [piece.steps for piece in offline_runs(folder)] == [None], "incomplete"


def test_no_wandb_loads_none_of_it(train_command: TrainCommand) -> None:
    output = train_command.with_fault(NO_MODULE, "--fast_dev_run")
    assert "wandb is loaded: False" in output
    assert not list(train_command.run_folder.glob("wandb*"))
    assert (train_command.run_folder / "model.txt").read_text().startswith("module")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--wandb_project", "a/b"],
         "--wandb_project is 'a/b': W&B takes at most 128 characters, and none of / \\ # ? % :."),
        (["--wandb_tags", 65 * "a"], "W&B takes tags of at most 64 characters."),
        (["--wandb_checkpoints", "all"], "--wandb_checkpoints is 'all': choose none, best, last or both."),
        (["--wandb_watch_log_freq", "5"],
         "--wandb_watch_log_freq has no effect without --wandb_watch: remove it, or add --wandb_watch."),
    ],
)  # fmt: skip
def test_what_wandb_would_refuse_is_refused_before_the_run(flags: list[str], problem: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(problem)):
        parse_command_line(flags)


@pytest.fixture
def folder(tmp_path: Path, nobody: pytest.MonkeyPatch) -> RunFolder:
    config = parse_command_line([])
    run_folder = RunFolder(tmp_path / "logs" / "runs" / "mine_20260101-000000_abcdef")
    run_folder.path.mkdir(parents=True)
    write_json(run_folder.path / "config.json", to_dict(config))
    (run_folder.path / "console.log").touch()
    return run_folder


def test_the_first_error_ends_wandb_and_not_the_run(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = WandbLogger(folder, offline=True, console="console.log")
    calls = []

    def broken(*words: object, **more: object) -> None:
        calls.append(words)
        raise OSError("no space left on device")

    monkeypatch.setattr(page.wandb_run, "log", broken)
    for step in range(5):
        page.log_metrics({"train_loss": 1.0}, step)
    while not page.is_off:
        time.sleep(0.01)
    page.close(0)
    lines = capsys.readouterr().out.splitlines()
    assert len(calls) == 1 and len(lines) == 2
    assert lines[1].startswith("W&B: stopped (OSError: no space left on device): the run continues without it. Upload")


def test_an_alarm_reaches_people_who_are_online(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    alarm = {"step": 1, "time": 1.0, "kind": "plateau", "text": "The loss stands still.", "advice": "Wait."}
    append_row(folder.path / "alarms.jsonl", {**alarm, "kind": "of an earlier attempt"})
    page = WandbLogger(folder, offline=True, console="console.log")
    page.is_online = True
    alerts: list[tuple[str, str]] = []
    monkeypatch.setattr(page.wandb_run, "alert", lambda *words: alerts.append(words))
    page.log_metrics({"train_loss": 1.0}, 1)
    append_row(folder.path / "alarms.jsonl", alarm)
    page.log_metrics({"train_loss": 1.0}, 2)
    page.close(0)
    assert alerts == [("plateau", "The loss stands still. Wait.")]


def test_a_run_that_went_back_is_to_be_rebuilt(folder: RunFolder) -> None:
    """W&B keeps the rows that a rollback abandons, and refuses those that replace them."""
    page = WandbLogger(folder, offline=True, console="console.log")
    for step, loss in ((1, 1.0), (2, 9.0), (3, 99.0), (2, 0.9), (3, 0.8)):
        page.log_metrics({"train_loss": loss}, step)
    page.close(0)
    (piece,) = offline_runs(folder.path)
    assert [row["train_loss"] for row in WandbFile(piece.file).history] != [1.0, 0.9, 0.8]
    assert piece.steps is None


def test_wandb_that_hangs_is_not_waited_for(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    page = WandbLogger(folder, offline=True, console="console.log", close_seconds=0.5)
    for child in psutil.Process().children():
        if child.name() == "wandb-core":
            os.kill(child.pid, signal.SIGSTOP)
    began = time.monotonic()
    for step in range(800):
        page.log_metrics({f"metric_{number}": 1.0 for number in range(50)}, step)
    assert time.monotonic() - began < 20
    page.close(0)
    assert time.monotonic() - began < 60
    assert "W&B: stopped (it did not take everything within 0 s)" in capsys.readouterr().out
    assert not [child for child in psutil.Process().children() if child.name() == "wandb-core" and child.is_running()]


def test_a_page_that_cannot_begin_is_done_without(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*words: object, **more: object) -> None:
        raise RuntimeError("no service")

    monkeypatch.setattr(training.wandb, "open_wandb", broken)
    config = parse_command_line(["--wandb_offline"])
    assert wandb_logger(config, folder) is None
    output = capsys.readouterr().out
    assert output.startswith(
        "W&B: could not begin (RuntimeError: no service): the run continues without it. Upload later"
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 1.0, 1.0], (1, 2, 3, 0.0, 1.0)),
        ([2.0, 2.0], (0, 0, 2, 1.5, 2.5)),
        ([float("nan"), 1.0, float("inf"), 3.0], (1, 1, 2, 1.0, 3.0)),
    ],
)
def test_a_histogram_counts_what_is_finite(values: list[float], expected: tuple[float, ...]) -> None:
    counted = histogram(torch.tensor(values, dtype=torch.bfloat16))
    assert counted is not None
    counts, edges = counted
    assert (counts[0], counts[-1], counts.sum(), edges[0], edges[-1]) == expected and len(edges) == 65


def test_a_histogram_of_nothing_is_none() -> None:
    assert histogram(torch.tensor([float("nan")])) is None and histogram(torch.zeros(0)) is None
