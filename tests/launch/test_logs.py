"""python -m launch logs: one log across attempts and jobs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.files import append_row
from launch.__main__ import main
from launch.logs import RunLog, follow
from runs.process import ATTEMPT_MARK, attempt_mark
from runs.run import Run
from tests.launch.run_folders import Programs, began, ended, logs, programs, stamp, write_run

__all__ = ["logs", "programs"]


def mark(ago: float, job: str = "") -> str:
    return f"== {stamp(ago)} on n1{f' as job {job}' if job else ''} ==\n"


def printed_lines(capsys: pytest.CaptureFixture[str], logs: Path, *words: str) -> list[str]:
    assert main(["logs", "--logs_dir", str(logs), "one", *words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def run(logs: Path) -> Path:
    """Two attempts in one job, between them a start that came to nothing, then one without a job."""
    attempts = [began(1, 890, job="7"), ended(1, "requeued", 700), began(2, 490, job="7", first_step=5)]
    attempts += [ended(2, "killed", 300), began(3, 90, first_step=8), ended(3, "finished", 10)]
    run = write_run(logs, "one", *attempts, job={"job": "7"})
    text = (
        mark(900, "7")
        + "first\nbar 1\rbar 2\r\x1b[2Kdone\n"
        + mark(600, "7")
        + "in vain\n"
        + mark(500, "7")
        + "second\n"
    )
    (run / "slurm-7.log").write_text(text)
    copy = mark(895, "7") + "first\n" + mark(495, "7") + "second\n" + mark(100) + "third\n" + "no end"
    (run / "console.log").write_text(copy)
    return run


def test_one_log_with_a_line_between_attempts(run: Path, logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed_lines(capsys, logs)
    text = [line for line in lines if "────" not in line]
    assert text == ["first", "done", "in vain", "second", "third", "no end"], "what the job's log has is said once"
    marks = [line for line in lines if "────" in line]
    assert marks[0].startswith("──── attempt 1, ") and marks[0].endswith(", job 7, from step 0 ────")
    assert "attempt" not in marks[1], "it ended before it could begin an attempt"
    assert marks[2].startswith("──── attempt 2, ") and marks[2].endswith(", job 7, from step 5 ────")
    assert marks[3].startswith("──── attempt 3, ") and marks[3].endswith(", from step 8 ────") and "job" not in marks[3]
    assert printed_lines(capsys, logs, "--attempt", "2")[1:] == ["second"]
    assert (
        printed_lines(capsys, logs, "--lines", "2") == ["third", "no end"]
        and printed_lines(capsys, logs, "--lines", "0") == []
    )


def test_another_process_has_a_log_of_its_own(run: Path, logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "rank_1.log").write_text(mark(895, "7") + "first of the second\n" + mark(95) + "third of the second\n")
    shown = printed_lines(capsys, logs, "--rank", "1")
    assert shown[0].startswith("──── attempt 1") and shown[1] == "first of the second"
    assert shown[2].startswith("──── attempt 3") and shown[3:] == ["third of the second"]
    assert "second" in printed_lines(capsys, logs) and "first of the second" not in printed_lines(capsys, logs)
    assert main(["logs", "--logs_dir", str(logs), "one", "--rank", "2"]) == 2
    assert capsys.readouterr().err.endswith("has 0, 1.\n")


def test_a_log_wherever_sbatch_was_told_to_write_it(logs: Path, tmp_path: Path, capsys: Any) -> None:
    elsewhere = tmp_path / "slurm-ebt-7.out"
    elsewhere.write_text("from before there were marks\n")
    run = write_run(logs, "one", began(1, job="7"), ended(1, "finished"), job={"job": "7", "log": str(elsewhere)})
    (run / "console.log").write_text("a copy\n")
    assert printed_lines(capsys, logs)[1:] == ["from before there were marks"]
    elsewhere.unlink()
    assert printed_lines(capsys, logs)[1:] == ["a copy"]


def test_what_submitit_kept_of_a_run_that_did_not_come_far(logs: Path, capsys: Any) -> None:
    run = write_run(logs, "one")
    (run / "submitit").mkdir()
    (run / "submitit" / "99_0_log.out").write_text("no module named torch\n")
    assert printed_lines(capsys, logs)[1:] == ["no module named torch"]
    (run / "console.log").write_text("it came further\n")
    assert printed_lines(capsys, logs)[1:] == ["it came further"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["one", "--attempt", "4"], "--attempt is 4: choose 1 to 3."),
        (["one", "--lines", "-1"], "--lines is -1: give a number of at least 0."),
        (["one", "--attempt", "1", "-f"], "--attempt and -f do not go together: -f follows the newest attempt;"),
        (["two"], "two_20261116-000002_000002 has no log yet: python -m launch why two_20261116-000002_000002"),
        (["two", "--attempt", "1"], "--attempt is 1: it has none yet."),
    ],
)  # fmt: skip
def test_mistakes(run: Path, logs: Path, capsys: Any, words: list[str], sentence: str) -> None:
    write_run(logs, "two", number=2)
    assert main(["logs", "--logs_dir", str(logs), *words]) == 2
    assert sentence in capsys.readouterr().err


def test_following_through_a_requeue_to_the_end(
    logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.queue("7|RUNNING|None|n1|main|N/A")
    run = write_run(logs, "one", submission={"state": "released", "job": "7", "time": stamp(100)}, job={"job": "7"})
    log, attempts = run / "slurm-7.log", run / "attempts.jsonl"
    printed: list[str] = []

    def write() -> None:
        def until(words: str) -> None:
            deadline = time.monotonic() + 60
            while words not in "".join(printed):  # a line may be read in two pieces
                printed.append(capsys.readouterr().out)
                assert time.monotonic() < deadline
                time.sleep(0.02)

        log.write_text(mark(50, "7") + "first\nhalf a")
        append_row(attempts, began(1, 49, job="7"))
        until("first")
        with log.open("a") as file:
            file.write(" line\n")
        programs.queue("7|PENDING|BeginTime||main|N/A")
        append_row(attempts, ended(1, "requeued", 40))
        until("half a line")
        with log.open("a") as file:
            file.write(mark(20, "7") + "second\n")
        append_row(attempts, began(2, 19, job="7"))
        until("second")
        with log.open("a") as file:
            file.write("the end\n")
        append_row(attempts, ended(2, "finished", 0))

    writer = threading.Thread(target=write)
    writer.start()
    follow(Run(run), RunLog(Run(run)), poll_seconds=0.02, squeue_seconds=0.0)
    writer.join()
    lines = ("".join(printed) + capsys.readouterr().out).splitlines()
    assert [line for line in lines if "────" not in line] == ["first", "half a line", "second", "the end"]
    assert sum("────" in line for line in lines) == 2


def test_following_a_run_that_waits_does_not_ask_slurm_twice_a_second(
    logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.queue("7|PENDING|BeginTime||main|N/A")
    run = write_run(logs, "one", began(1, job="7"), ended(1, "requeued", 40), job={"job": "7"})
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 20:
            append_row(run / "attempts.jsonl", ended(1, "finished", 0))

    monkeypatch.setattr("launch.logs.time.sleep", sleep)
    assert main(["logs", "-f", "--logs_dir", str(logs), "one"]) == 0
    assert len(pauses) >= 20 and len(programs.calls("squeue")) == 2, "at first, and when its folder says something else"


def test_the_mark_is_read_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    inside: Callable[[str, str], None] = monkeypatch.setenv
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    assert (match := ATTEMPT_MARK.fullmatch(attempt_mark())) and match["job"] is None
    inside("SLURM_JOB_ID", "9")
    assert (match := ATTEMPT_MARK.fullmatch(attempt_mark())) and match["job"] == "9"
    inside("SLURM_ARRAY_JOB_ID", "7")
    inside("SLURM_ARRAY_TASK_ID", "3")
    assert (match := ATTEMPT_MARK.fullmatch(attempt_mark())) and match["job"] == "7_3"
