"""What a job's script finds out when its processes have ended: who ended first, why, and whether the run goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from config import parse_command_line
from core.files import append_row, read_rows
from launch.__main__ import main
from runs import RunFolder
from runs.attempts import cause_of_error, is_resumable, merge_attempts

HOLD = """\
import fcntl, sys, time
file = open(sys.argv[1], "a+")
fcntl.lockf(file, fcntl.LOCK_EX)
print("it is held", flush=True)
time.sleep(60)
"""
MARK = "== 2026-11-18T09:00:00+0000 on n1 as job 17 ==\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "EBT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = RunFolder.create(parse_command_line(["--logs_dir", str(tmp_path)]))
    append_row(folder.attempts, {"attempt": 1, "start": "x", "job": "17", "first_step": 0})
    return folder


def slurm_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str) -> None:
    stand_in = tmp_path / "scontrol"
    stand_in.write_text(f"#!/bin/sh\necho {words}\n")
    stand_in.chmod(0o755)


@pytest.mark.parametrize(
    ("output", "status", "cause", "who", "again"),
    [
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=17.0.", 137, "out of memory", None, False),
        ("srun: error: n1: task 0: Out Of Memory", 137, "out of memory", ("n1", 0), False),
        ("srun: error: n1: task 0: Killed", 137, "out of memory or killed", ("n1", 0), False),
        ("", 137, "out of memory or killed", None, False),
        ("srun: error: n2: task 1: Aborted (core dumped)", 134, "crashed: aborted (SIGABRT)", ("n2", 1), True),
        ("srun: error: n2: tasks 4-7: Bus error", 135, "crashed: bus error (SIGBUS)", ("n2", 4), True),
        ("srun: error: n1: task 0: Segmentation fault", 139, "error: segmentation fault", ("n1", 0), False),
        # Who left because another had ended says nothing; whose own error came first decides.
        (
            "srun: error: n1: task 0: Exited with exit code 75\nsrun: error: n2: task 1: Killed",
            137,
            "out of memory or killed",
            ("n2", 1),
            False,
        ),
        (
            "srun: error: n2: task 1: Exited with exit code 1\nsrun: error: n1: task 0: Aborted",
            134,
            "killed",
            ("n2", 1),
            False,
        ),
    ],
)
def test_the_end_of_an_attempt(
    folder: RunFolder, tmp_path: Path, output: str, status: int, cause: str, who: tuple[str, int] | None, again: bool
) -> None:
    log = tmp_path / "log"
    log.write_text(f"{MARK}srun: error: n9: task 9: Killed\nof an earlier start\n{MARK}{'words' * 9000}\n{output}\n")
    assert main(["ended", str(folder.path), str(log), str(status)]) == (0 if again else 1)
    assert main(["ended", str(folder.path), str(tmp_path / "no log"), str(status)]) == (0 if again else 1)
    (row,) = merge_attempts(read_rows(folder.attempts))
    assert row["cause"] == cause and (row.get("ended_on"), row.get("ended_rank")) == (who or (None, None))
    assert sum("end" in row for row in read_rows(folder.attempts)) == 1


def test_slurm_knows_better_than_the_log(folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_says(monkeypatch, tmp_path, "JobId=17 JobState=COMPLETING RunTime=02:00:00 TimeLimit=02:00:00 Restarts=0")
    (tmp_path / "log").write_text("srun: error: n1: task 0: Killed\n")
    assert main(["ended", str(folder.path), str(tmp_path / "log"), "137"]) == 1
    assert merge_attempts(read_rows(folder.attempts))[0]["cause"] == "time limit"


def test_process_0_knew_that_another_died_and_the_log_how(folder: RunFolder, tmp_path: Path) -> None:
    folder.record_end(1, 5, "crashed: task 1 on n2 died", 0.0)
    (tmp_path / "log").write_text(
        "srun: error: n2: task 1: Killed\nsrun: error: n1: task 0: Exited with exit code 75\n"
    )
    assert main(["ended", str(folder.path), str(tmp_path / "log"), "137"]) == 1
    (row,) = merge_attempts(read_rows(folder.attempts))
    assert (row["cause"], row["ended_on"], row["last_step"]) == ("out of memory or killed", "n2", 5)


def test_a_crash_before_the_attempt_begins(folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is judged by itself, and what the attempt before it said stays."""
    append_row(folder.attempts, {"attempt": 1, "end": "x", "cause": "time limit", "last_step": 5})
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    before = read_rows(folder.attempts)
    for output, status, again in (("Aborted", 134, 0), ("Killed", 137, 1)):
        (tmp_path / "log").write_text(f"{MARK}srun: error: n1: task 0: {output}\n")
        assert main(["ended", str(folder.path), str(tmp_path / "log"), str(status)]) == again
    assert read_rows(folder.attempts) == before


def test_what_was_said_stays(folder: RunFolder, tmp_path: Path) -> None:
    """A run that has its cause keeps it, whatever srun says of processes that it ended later."""
    folder.record_end(1, 5, "hung", 0.0)
    (tmp_path / "log").write_text("srun: error: n2: task 1: Killed\n")
    assert main(["ended", str(folder.path), str(tmp_path / "log"), "137"]) == 0, "and goes on"
    assert merge_attempts(read_rows(folder.attempts))[0]["cause"] == "hung"


@pytest.mark.parametrize(
    ("error", "cause", "again"),
    [
        (RuntimeError("DataLoader worker (pid 41) is killed by signal: Killed. "), "out of memory or killed", False),
        (RuntimeError("DataLoader worker (pid(s) 41) is killed by signal: Bus error. It"), "crashed: bus error", True),
        (ValueError("x"), "error: ValueError", False),
    ],
)
def test_errors_and_what_follows(error: Exception, cause: str, again: bool) -> None:
    assert cause_of_error(error).startswith(cause) and is_resumable(1, cause_of_error(error)) is again


def test_a_run_that_somebody_writes_is_left_alone(folder: RunFolder, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder.path / "lock")], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        assert main(["ended", str(folder.path), str(tmp_path / "log"), "137"]) == 2
        other.kill()
    assert "end" not in merge_attempts(read_rows(folder.attempts))[0]
