"""attempts.jsonl: an attempt that could not say how it ended gets its last row from the next one."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import parse_command_line
from core.errors import UserError
from core.files import append_row, read_rows
from runs import RunFolder
from runs.attempts import cause_by_slurm, merge_attempts
from runs.process import EXIT_RESUMABLE, signals
from runs.slurm import parse_duration

ENDED = {"attempt": 1, "end": "x", "last_step": 3, "cause": "finished"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    for name in ("LOCAL_RANK", "SLURM_PROCID", "RANK", "EBT_RUN_DIR", "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID"):
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
    assert end == {"attempt": 2, "last_step": last, "steps_lost": last - max([0, *saved]), "cause": "killed"}
    assert len(taken_up(folder)) == 4, "once"


def test_a_record_that_was_cut_in_a_row_is_still_closed(folder: RunFolder) -> None:
    append_row(folder.attempts, {"attempt": 1, "start": "x", "first_step": 0})
    with open(folder.attempts, "ab") as file:
        file.write(b'{"attempt": 1, "end": "20')
    rows = taken_up(folder)
    assert [row.get("cause") for row in rows] == [None, "killed"]


def test_how_an_attempt_ends(folder: RunFolder) -> None:
    config = parse_command_line([])
    (folder.checkpoints / "step_00000004.ckpt").touch()
    endings: list[tuple[type[BaseException], tuple[Any, ...], str]] = [
        (KeyboardInterrupt, (), "stopped by hand"),
        (SystemExit, (EXIT_RESUMABLE,), "interrupted"),
        (SystemExit, (1,), "error: exit status 1"),
        (MemoryError, (), "out of memory"),
        (RuntimeError, ("[enforce fail] DefaultCPUAllocator: can't allocate memory",), "out of memory"),
        (type("OutOfMemoryError", (RuntimeError,), {}), ("CUDA out of memory",), "out of memory"),
        (RuntimeError, ("shapes differ",), "error: RuntimeError"),
        (UserError, ("--text_field is 'x':\nno such field.",), "refused: --text_field is 'x': no such field."),
    ]
    for kind, words, _ in endings:
        with pytest.raises(kind), folder.attempt(config, 4):
            raise kind(*words)
    rows = read_rows(folder.attempts)
    assert [row["attempt"] for row in rows] == [number for number in range(1, 9) for _ in range(2)]
    assert [row["cause"] for row in rows if "end" in row] == [cause for *_, cause in endings]
    assert {row["last_step"] for row in rows if "end" in row} == {4}, "no trace of a later step"


def test_steps_lost_are_those_since_the_checkpoint_that_the_next_attempt_goes_on_from(folder: RunFolder) -> None:
    config = parse_command_line([])
    for step in (6, 8):
        (folder.checkpoints / f"step_{step:08}.ckpt").touch()
    append_row(folder.metrics, {"step": 9})
    with pytest.raises(RuntimeError), folder.attempt(config, 0):
        raise RuntimeError
    assert merge_attempts(read_rows(folder.attempts))[0]["steps_lost"] == 1
    with folder.attempt(config, 6) as attempt:  # the checkpoint of step 8 was damaged
        assert merge_attempts(read_rows(folder.attempts))[0]["steps_lost"] == 3
        attempt.end(12, "finished")
    with folder.attempt(config, 8):  # of a run that was finished none is lost
        pass
    assert merge_attempts(read_rows(folder.attempts))[1] | {"start": 0, "end": 0, "host": 0, "pid": 0} == {
        **{"attempt": 2, "first_step": 6, "start": 0, "host": 0, "pid": 0, "end": 0},
        **{"last_step": 12, "steps_lost": 0, "cause": "finished"},
    }


def test_the_sign_of_life_of_a_killed_attempt_counts(folder: RunFolder) -> None:
    with folder.attempt(parse_command_line([]), 2):
        pass
    sign = folder.path / "heartbeat.json"
    for when, last in ((time.time() + 5, 40), (0, 2)):  # the second is that of an attempt before it
        sign.write_text(json.dumps({"time": when, "step": 40}))
        assert folder.last_seen_step(merge_attempts(read_rows(folder.attempts))[0]) == last
    sign.write_text("{")
    assert folder.last_seen_step(merge_attempts(read_rows(folder.attempts))[0]) == 2


SCONTROL = """\
#!/bin/bash
[[ "$1 $2 $3 $4" == "show job 17 --oneliner" ]] && echo "JobId=17 JobName=a=b c FIELDS TimeLimit=01:00:00"
"""


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Inside of job 17, of which Slurm says this."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def says(fields: str) -> None:
        (tmp_path / "scontrol").write_text(SCONTROL.replace("FIELDS", fields))
        (tmp_path / "scontrol").chmod(0o755)

    return says


ENDINGS = [
    ("JobState=RUNNING Restarts=1 PreemptTime=2026-01-02T00:00:00 StartTime=2026-01-01T23:00:00", "preempted"),
    ("JobState=RUNNING Restarts=1 PreemptTime=2026-01-01T00:00:00 StartTime=2026-01-01T23:00:00", None),  # earlier
    ("JobState=RUNNING Restarts=1 PreemptTime=None StartTime=2026-01-01T23:00:00", None),
    ("JobState=COMPLETING Restarts=2", "requeued"),
    ("JobState=PENDING Restarts=2", "requeued"),
    ("JobState=COMPLETING Restarts=1 RunTime=00:59:59", "cancelled"),
    ("JobState=COMPLETING Restarts=1 RunTime=01:00:02", "time limit"),
    ("JobState=CANCELLED Restarts=1", "cancelled"),
    ("JobState=TIMEOUT Restarts=1", "time limit"),
    ("JobState=NODE_FAIL Restarts=1", "node failure"),
    ("JobState=OUT_OF_MEMORY Restarts=1", "out of memory"),
]


@pytest.mark.parametrize(("fields", "cause"), ENDINGS)
def test_slurm_tells_why_it_sent_a_signal(
    folder: RunFolder, job: Callable[[str], None], fields: str, cause: str | None
) -> None:
    job(fields)
    with folder.attempt(parse_command_line([]), 0) as attempt:
        attempt.end(3, "interrupted: SIGTERM")
    assert merge_attempts(read_rows(folder.attempts))[0]["cause"] == (cause or "interrupted: SIGTERM")


KILLED = [
    ({}, "0", "node failure"),  # queued again, and no word from its processes
    ({"signal": "SIGTERM"}, "0", "requeued"),
    ({"signal": "SIGUSR1"}, "0", "time limit"),
    ({}, "1", "killed"),  # by a script that outlived it
    ({"job": "18"}, "0", "killed"),  # Slurm has forgotten it
    ({"job": "18", "signal": "SIGTERM"}, "0", "interrupted: SIGTERM"),
    ({"job": "17", "array_job": "17", "array_task": "3"}, "0", "killed"),
]


@pytest.mark.parametrize(("traces", "restart", "cause"), KILLED)
def test_why_an_attempt_was_killed(
    folder: RunFolder, job: Callable[[str], None], traces: dict[str, str], restart: str, cause: str
) -> None:
    job("JobState=RUNNING Restarts=1")
    append_row(folder.attempts, {"attempt": 1, "start": "x", "job": "17", "restart": restart, **traces})
    assert taken_up(folder)[-1]["cause"] == cause


def test_a_job_of_before_is_asked_after(
    folder: RunFolder, job: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    job("JobState=CANCELLED Restarts=0")
    monkeypatch.setenv("SLURM_JOB_ID", "40")
    append_row(folder.attempts, {"attempt": 1, "start": "x", "job": "17"})
    assert taken_up(folder)[-1]["cause"] == "cancelled"


def test_a_signal_is_on_record_at_once(folder: RunFolder) -> None:
    with folder.attempt(parse_command_line([]), 0):
        assert signals.on_signal is not None
        signals.on_signal("SIGTERM")
        row = merge_attempts(read_rows(folder.attempts))[0]
        assert row["signal"] == "SIGTERM" and row["signal_time"] >= row["start"] and "end" not in row


@given(st.integers(0, 9), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_durations(days: int, hours: int, minutes: int, second: int) -> None:
    expected = ((days * 24 + hours) * 60 + minutes) * 60 + second
    assert parse_duration(f"{days}-{hours:02}:{minutes:02}:{second:02}") == expected
    assert parse_duration(f"{days * 24 + hours}:{minutes:02}:{second:02}") == expected


@given(st.text(max_size=12))
def test_what_is_no_duration_is_endless(text: str) -> None:
    assert parse_duration(text) == float("inf") or text[:1].isdigit()


SAID = st.sampled_from(["", "None", "3", "COMPLETING", "RUNNING", "N/A", "2026-01-01T00:00:00", "²"])
FIELDS = st.sampled_from(["JobState", "Restarts", "PreemptTime", "StartTime", "RunTime", "TimeLimit"])


@given(st.dictionaries(FIELDS, SAID))
def test_no_answer_of_slurm_is_an_error(fields: dict[str, str]) -> None:
    assert cause_by_slurm(fields, 0) in (None, "preempted", "requeued", "cancelled", "time limit")
