"""attempts.jsonl: an attempt that could not say how it ended gets its last row from the next one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from config import parse_command_line
from runs import RunFolder
from runs.files import append_row, read_rows
from runs.signals import GOES_ON

ENDED = {"attempt": 1, "end": "x", "last_step": 3, "cause": "finished"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    for name in ("LOCAL_RANK", "SLURM_PROCID", "RANK", "EBT_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    folder = RunFolder.create(parse_command_line(["--logs_dir", str(tmp_path)]))
    monkeypatch.setenv("EBT_JOB_RUN_DIR", str(folder.path))
    monkeypatch.setenv("EBT_RUN_DIR", "")  # set by for_run, and taken away after the test
    return folder


def taken_up(folder: RunFolder) -> list[dict[str, Any]]:
    """The rows after another process took the run up."""
    config = parse_command_line(["--logs_dir", str(folder.path.parent.parent)])
    RunFolder.for_run(config)
    return read_rows(folder.attempts)


def test_a_run_without_attempts_has_nothing_to_close(folder: RunFolder) -> None:
    assert taken_up(folder) == [] and not folder.attempts.exists()


def test_an_attempt_that_ended_is_left_alone(folder: RunFolder) -> None:
    rows = [{"attempt": 1, "start": "x", "first_step": 0}, ENDED]
    for row in rows:
        append_row(folder.attempts, row)
    assert taken_up(folder) == rows


@pytest.mark.parametrize(("steps", "saved", "last"), [([], [], 2), ([3, 7], [], 7), ([3], [2, 4], 4), ([9], [8], 9)])
def test_a_killed_attempt_is_closed(folder: RunFolder, steps: list[int], saved: list[int], last: int) -> None:
    for row in ({"attempt": 1, "start": "x", "first_step": 0}, ENDED, {"attempt": 2, "start": "y", "first_step": 2}):
        append_row(folder.attempts, row)
    for step in steps:
        append_row(folder.metrics, {"step": step})
    with open(folder.metrics, "ab") as file:
        file.write(b'{"step": 5')  # what it was writing when it was killed
    for step in saved:
        (folder.checkpoints / f"step_{step:08}.ckpt").touch()
    os.utime(folder.attempts, (0, 1_700_000_000))
    os.utime(folder.metrics, (0, 1_700_000_060))
    *before, end = taken_up(folder)
    assert len(before) == 3
    assert end.pop("end").startswith("2023-11-1"), "when it was last seen alive, not when that was found"
    assert end == {"attempt": 2, "last_step": last, "cause": "killed"}
    assert len(taken_up(folder)) == 4, "once"


def test_a_record_that_was_cut_in_a_row_is_still_closed(folder: RunFolder) -> None:
    append_row(folder.attempts, {"attempt": 1, "start": "x", "first_step": 0})
    with open(folder.attempts, "ab") as file:
        file.write(b'{"attempt": 1, "end": "20')
    rows = taken_up(folder)
    assert [row.get("cause") for row in rows] == [None, "killed"]


def test_how_an_attempt_ends(folder: RunFolder) -> None:
    config = parse_command_line([])
    endings: list[tuple[type[BaseException], tuple[Any, ...], str]] = [
        (KeyboardInterrupt, (), "stopped by hand"),
        (SystemExit, (GOES_ON,), "interrupted"),
        (SystemExit, (1,), "error: exit status 1"),
        (MemoryError, (), "error: MemoryError"),
    ]
    for kind, words, _ in endings:
        with pytest.raises(kind), folder.attempt(config, 4):
            raise kind(*words)
    rows = read_rows(folder.attempts)
    assert [row["attempt"] for row in rows] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [row["cause"] for row in rows if "end" in row] == [cause for *_, cause in endings]
    assert json.loads(folder.attempts.read_text().splitlines()[-1])["cause"] == "error: MemoryError"
