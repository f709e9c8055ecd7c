"""Uploading the W&B files of run folders: which pieces, in which order, and when a clean page is written instead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from core.files import append_row, write_json, write_text
from runs.run import Run
from runs.wandb import OfflineRun, Rows, SyncAction, close_wandb, offline_runs, open_wandb, rebuild, sync_action
from tests.conftest import ROOT
from tests.support.reading_wandb import WandbFile
from tests.support.wandb_server import Server, wandb_server

KEY = 40 * "a"
OFFLINE = OfflineRun(Path("offline-run-1/run-x.wandb"), is_online=False, is_synced=False, steps=(1, 10))
NEXT = replace(OFFLINE, file=Path("offline-run-2/run-x.wandb"), steps=(11, 20))
OVERLAPS = replace(NEXT, steps=(8, 20))
KILLED = replace(OFFLINE, steps=None)
SENT = replace(OFFLINE, is_online=True, is_synced=True)
BROKEN = replace(KILLED, is_online=True)
ASK = ": --rebuild makes a clean page beside that one"


@pytest.mark.parametrize(
    ("pieces", "options", "expected"),
    [
        ([], {}, ("nothing", "it has no W&B files", "")),
        ([OFFLINE], {"is_running": True}, ("nothing", "it is still running", "")),
        ([SENT], {}, ("nothing", "W&B has it", "")),
        ([OFFLINE], {}, ("upload", "one piece", "")),
        ([OFFLINE, NEXT], {}, ("upload", "2 of 2 pieces", "")),
        ([SENT, NEXT], {}, ("upload", "1 of 2 pieces", "")),
        ([KILLED], {}, ("rebuild", "a process of it was killed", "x")),
        ([KILLED, NEXT], {}, ("rebuild", "a process of it was killed", "x")),
        ([OFFLINE, OVERLAPS], {}, ("rebuild", "steps were trained twice", "x")),
        ([SENT, OVERLAPS], {}, ("ask", f"W&B has a part of it, and steps were trained twice{ASK}", "")),
        ([BROKEN], {}, ("ask", f"W&B has a part of it, and its upload broke off{ASK}", "")),
        ([OFFLINE, replace(NEXT, is_synced=True)], {},
         ("ask", f"W&B has a part of it, and a later piece is there already{ASK}", "")),
        ([], {"rebuild": True}, ("rebuild", "as asked", "x")),
        ([OFFLINE, NEXT], {"rebuild": True}, ("rebuild", "as asked", "x")),
        ([SENT, OVERLAPS], {"rebuild": True}, ("rebuild", "as asked", "x-rebuilt1")),
        ([SENT], {"rebuild": True, "again": 2}, ("rebuild", "as asked", "x-rebuilt3")),
    ],
)  # fmt: skip
def test_what_is_planned(pieces: list[OfflineRun], options: dict[str, int], expected: tuple[str, str, str]) -> None:
    action = sync_action("x", pieces, **options)  # type: ignore[arg-type]
    assert (action.kind, action.why, action.page) == expected


some_pieces = st.lists(
    st.builds(
        OfflineRun,
        st.integers().map(lambda number: Path(f"run-{number}")),
        is_online=st.booleans(),
        is_synced=st.booleans(),
        steps=st.none() | st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda two: (min(two), max(two))),
    ),
    max_size=4,
)


@given(some_pieces, st.booleans(), st.integers(0, 2))
def test_no_plan_sends_a_row_twice(pieces: list[OfflineRun], is_rebuild: bool, again: int) -> None:
    action: SyncAction = sync_action("x", pieces, rebuild=is_rebuild, again=again)
    assert not any(piece.is_synced for piece in action.pieces)
    if action.kind == "upload":
        steps = [piece.steps for piece in pieces]
        assert None not in steps
        flat = [step for both in steps if both for step in sorted(set(both))]
        assert flat == sorted(set(flat)), "the steps of all pieces follow each other"
    if action.page == "x":
        assert not any(piece.is_synced or piece.is_online for piece in pieces), "W&B has nothing of it yet"


@pytest.fixture
def server() -> Iterator[Server]:
    with wandb_server() as started:
        yield started


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A finished run of 40 steps that was stopped at 20, written by hand."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "nobody"))
    folder = tmp_path / "logs" / "runs" / "mine_20260101-000000_abcdef"
    logging = {"wandb_project": "p", "wandb_entity": None, "wandb_tags": ["a"], "wandb_checkpoints": "last"}
    write_text_in(folder, "console.log", "first line\nlast line\n")
    write_json(folder / "config.json", {"run": {"run_name": "mine", "seed": 7}, "logging": logging})
    write_json(folder / "code.json", {"commit": "abc", "branch": "main", "dirty": False})
    write_text_in(folder, "command.txt", "python train_model.py --seed 7\n")
    write_text_in(folder, "checkpoints/step_00000040.ckpt", "weights")
    (folder / "checkpoints" / "last.ckpt").symlink_to("step_00000040.ckpt")
    for step in (10, 20, 30, 40):
        append_row(folder / "metrics.jsonl", {"step": step, "attempt": 1 + (step > 20), "train_loss": 10 / step})
    append_row(folder / "metrics.jsonl", {"step": 40, "valid_loss": 0.5, "time": 1.8e9})
    (folder / "pictures").mkdir()
    for step in (10, 40):
        Image.new("L", (4, 4), step).save(folder / "pictures" / f"board_step_{step:07d}.png")
    append_row(folder / "usage.jsonl", {"step": 20, "time": 1.8e9, "cpu_percent": 50.0})
    append_row(folder / "samples.jsonl", {"step": 40, "prompt": "The", "text": " end"})
    append_row(folder / "attempts.jsonl", {"attempt": 2, "end": "later", "last_step": 40, "cause": "finished"})
    return Run(folder)


def write_text_in(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    write_text(folder / name, text)


def leave_piece(run: Run, steps: list[int], is_whole: bool = True) -> None:
    """What a process that trained these steps offline leaves behind."""
    while offline_runs(run.path) and offline_runs(run.path)[-1].file.parent.name.split("-")[2] == time.strftime(
        "%Y%m%d_%H%M%S"
    ):
        time.sleep(0.1)  # W&B names its folders by the second
    page = open_wandb(run, run.path, run.run_id, offline=True, x_disable_stats=True)
    rows = Rows(page)
    for step in steps:
        rows.log({"step": step, "train_loss": 10 / step})
    close_wandb(page, 0)
    if is_whole:
        offline_runs(run.path)[-1].mark_complete(steps[0], steps[-1])


def sync(run: Run, *words: str, url: str = "", status: int = 0) -> str:
    """What `python -m runs sync` prints, a person being logged in at this server."""
    logged_in = {"WANDB_BASE_URL": url, "WANDB_API_KEY": KEY} if url else {}
    command = [sys.executable, "-m", "runs", "sync", *words, "--logs_dir", str(run.path.parent.parent)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **logged_in}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_pieces_that_follow_each_other_become_one_page(run: Run, server: Server) -> None:
    leave_piece(run, [10, 20])
    leave_piece(run, [30, 40])
    assert sync(run, "--dry_run") == f"{run.run_id}: would upload, 2 of 2 pieces.\n"
    assert sync(run, url=server.url) == f"{run.run_id}: uploaded, 2 of 2 pieces.\n"
    assert (run.path / "wandb" / "logs").is_dir() and not (ROOT / "wandb").exists(), "all stays in the run folder"
    page = server.pages[run.run_id]
    assert page.steps == [10, 20, 30, 40]
    assert page.config["seed"] == 7 and page.config["command"] == "python train_model.py --seed 7"
    assert sync(run, run.run_id) == f"{run.run_id}: nothing uploaded, W&B has it.\n"
    assert sync(run).startswith("None of the 1 runs in ")


def test_a_run_in_overlapping_pieces_is_rebuilt_from_its_metrics(run: Run, server: Server) -> None:
    leave_piece(run, [10, 20, 30], is_whole=False)
    leave_piece(run, [30, 40])
    message = f"{run.run_id}: a clean page {run.run_id} from metrics.jsonl, a process of it was killed.\n"
    assert sync(run, url=server.url) == message
    page = server.pages[run.run_id]
    assert page.steps == [10, 20, 30, 40]
    assert page.history[-1]["train_loss"] == 0.25 and page.history[-1]["valid_loss"] == 0.5
    assert page.history[1]["usage/cpu_percent"] == 50
    assert "first line\n" in page.console and page.exit_code == 0
    assert {f"checkpoint-{run.run_id}:{alias}" for alias in ("last", "step-40")} <= set(page.artifacts)
    assert sync(run, "mine") == f"{run.run_id}: nothing uploaded, W&B has it.\n"


def test_what_is_rebuilt_is_a_whole_run(run: Run) -> None:
    (run.path / "metrics.jsonl").open("a").write('{"step": 50, "train')  # a crash in the middle of a row
    file = WandbFile(rebuild(run, run.run_id))
    assert (file.run_id, file.project, file.name, file.tags) == (run.run_id, "p", "mine", ["a"])
    assert [row["_step"] for row in file.history] == [10, 20, 30, 40]
    assert [row["train_loss"] for row in file.history] == [1, 0.5, 10 / 30, 0.25]
    assert file.history[-1]["_timestamp"] == 1.8e9, "the time of the run, not of the upload"
    assert file.config["seed"] == 7 and file.config["code"]["commit"] == "abc"
    assert file.summary["best/valid_loss"] == 0.5
    assert file.console == "first line\nlast line\n"
    assert {"config.json", "command.txt", "code.json", "samples.jsonl"} <= set(file.files)
    assert any("samples" in name for name in file.files if name.startswith("media/table"))
    assert file.exit_code == 0 and file.stats == 0
    drawn = {row["_step"]: row["pictures/board.caption"] for row in file.history if "pictures/board.caption" in row}
    assert drawn == {10: "board_step_0000010.png", 40: "board_step_0000040.png"}
    assert sum(name.startswith("media/images/pictures/board") for name in file.files) == 2


def test_without_a_server_or_a_login_it_says_so_at_once(run: Run) -> None:
    leave_piece(run, [10, 20])
    output = sync(run, url="http://127.0.0.1:9", status=1)
    assert output.startswith("W&B: http://127.0.0.1:9 cannot be reached (") and output.count("\n") == 1
    assert output.endswith("): nothing was uploaded, 1 run waits; call this again later.\n")
    assert sync(run, status=1) == (
        "W&B: nobody is logged in (`wandb login`): nothing was uploaded, 1 run waits; call this again later.\n"
    )
    assert sync(run, "--dry_run") == f"{run.run_id}: would upload, one piece.\n", "nothing was marked"


def test_wrong_words_are_answered_in_one_sentence(run: Run) -> None:
    assert sync(run, "yours", status=2).startswith("RUN is yours: there is no such run; choose")
    output = sync(run, "--rebuild", status=2)
    assert output == "--rebuild without RUN: name the runs to rebuild: python -m runs sync --help lists the options.\n"


def test_a_broken_marker_is_a_piece_without_one(run: Run) -> None:
    piece = run.path / "wandb" / "offline-run-20260101_000000-x" / "run-x.wandb"
    piece.parent.mkdir(parents=True)
    piece.touch()
    for content in ("{", "[]", json.dumps({"first_step": 1}), json.dumps({"first_step": "a", "last_step": 2})):
        (piece.parent / "whole.json").write_text(content)
        assert offline_runs(run.path) == [OfflineRun(piece, is_online=False, is_synced=False)]
