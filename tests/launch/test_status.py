"""python -m launch status: one state from two witnesses, a table that fits, and an answer whatever is down."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.text import format_compact, format_short_time, shortened
from launch.__main__ import main
from launch.slurm import OVER, PENDING, SQUEUE_FIELDS, STATES, Job, RunStatus, SlurmJobs, jobs_of, read_jobs, status_of
from runs.run import Run, all_runs
from tests.launch.run_folders import Programs, began, ended, logs, programs, stamp, write_run

__all__ = ["logs", "programs"]
SOON = "2099-01-01T00:00:00"
SENT = {"state": "released", "job": "7", "time": stamp(2000)}
BEAT = {"time": time.time() - 665, "step": 40, "total_steps": 100, "train_loss": 2.5, "tokens_per_second": 12_345.0}


def hour_ago() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 3600))


def shown_by(capsys: pytest.CaptureFixture[str], logs: Path, *words: str) -> str:
    assert main(["status", "--logs_dir", str(logs), *words]) == 0
    return capsys.readouterr().out


def row(capsys: pytest.CaptureFixture[str], logs: Path, *words: str) -> dict[str, Any]:
    (line,) = shown_by(capsys, logs, *words, "--json").splitlines()
    return json.loads(line)


# -- one state from two witnesses ------------------------------------------------------------------------------------

FIRST = began(1, 900, job="7")
AFTER = {"after": {"run": "first_1_2", "if": "finished"}}


@pytest.mark.parametrize(
    ("attempts", "submission", "queue", "state"),
    [
        ([], SENT, "7|PENDING|Priority||main|N/A", "waiting: Priority"),
        ([], SENT, "7|PENDING|None||main|N/A", "waiting"),
        ([], SENT, "7|PENDING|JobHeldUser||main|N/A", "held: JobHeldUser"),
        ([], SENT, "7|PENDING|launch failed requeued held||main|HOUR_AGO", "held: launch failed requeued held"),
        ([], SENT, "7|PENDING|job requeued in held state||main|HOUR_AGO", "held: job requeued in held state"),
        ([FIRST, ended(1, "killed")], SENT, "7|PENDING|JobHoldMaxRequeue||main|HOUR_AGO", "held: JobHoldMaxRequeue"),
        ([], SENT, "7|SPECIAL_EXIT|None||main|HOUR_AGO", "held: SPECIAL_EXIT"),
        ([], SENT, "7|PENDING|BadConstraints||main|HOUR_AGO", "waiting: never starts (BadConstraints)"),
        ([], SENT, "7|PENDING|Dependency||main|N/A", "waiting: Dependency"),
        ([], SENT | AFTER, "7|PENDING|Dependency||main|N/A", "waiting: until first_1_2 is finished"),
        ([], SENT, "7|RUNNING|None|n1|main|NOW", "starting"),
        ([], SENT, "7|RUNNING|None|n1|main|HOUR_AGO", "silent for 1h 00m"),
        ([], SENT, "7|CANCELLED|None||main|HOUR_AGO", "cancelled"),
        ([], SENT, "7|FAILED|None|n1|main|HOUR_AGO", "failed"),
        ([], SENT, "7|TIMEOUT|None|n1|main|HOUR_AGO", "interrupted: TIMEOUT"),
        ([], SENT, "8|PENDING|Priority||main|N/A", "lost: its job left the queue and recorded nothing"),
        ([], {"state": "failed", "error": "no"}, "", "not submitted"),
        ([], {"state": "cancelled", "time": stamp()}, "", "cancelled"),
        ([FIRST], SENT, "7|RUNNING|None|n1|main|HOUR_AGO", "silent for 11m"),
        ([FIRST, ended(1, "hung")], SENT, "7|COMPLETED|None|n1|main|HOUR_AGO", "interrupted: hung"),
        ([FIRST, ended(1, "crashed: SIGABRT")], SENT, "7|FAILED|None|n1|main|HOUR_AGO", "killed: crashed: SIGABRT"),
        ([FIRST, ended(1, "out of memory or killed")], SENT, "7|FAILED|None|n1|main|HOUR_AGO",
         "killed: perhaps out of memory"),
        ([FIRST], SENT | {"time": FIRST["start"]}, "", "killed"),
        ([FIRST], SENT | {"time": stamp()}, "", "lost: its job left the queue and recorded nothing"),
        ([FIRST], SENT, "7|SUSPENDED|None|n1|main|HOUR_AGO", "suspended"),
        ([FIRST], SENT, "7|NODE_FAIL|None|n1|main|HOUR_AGO", "killed"),
        ([FIRST], SENT, "7|OUT_OF_MEMORY|None|n1|main|HOUR_AGO", "out of memory"),
        ([FIRST, ended(1, "preempted")], SENT, "7|PENDING|BeginTime||main|N/A", "queued again: BeginTime"),
        ([FIRST, ended(1, "preempted")], SENT, "7|COMPLETING|None|n1|main|HOUR_AGO", "interrupted: preempted"),
        ([FIRST, ended(1, "preempted")], SENT, "7|RUNNING|None|n1|main|HOUR_AGO", "interrupted: preempted"),
        ([FIRST, ended(1, "preempted")], SENT, f"7|RUNNING|None|n1|main|{SOON}", "starting"),
        ([FIRST, ended(1, "interrupted: USR1")], SENT, "7|COMPLETED|None|n1|main|HOUR_AGO", "interrupted: USR1"),
        ([FIRST, ended(1, "error: ValueError")], SENT, "7|FAILED|None|n1|main|HOUR_AGO", "failed: ValueError"),
        ([FIRST, ended(1, "error: ValueError")], SENT | {"time": stamp()}, "7|PENDING|None||main|N/A", "queued again"),
        ([FIRST, ended(1, "finished")], SENT, "7|RUNNING|None|n1|main|N/A", "finished"),
        ([FIRST, ended(1, "requeued")], {"state": "cancelled", "time": stamp()}, "", "cancelled"),
    ],
)  # fmt: skip
def test_a_state_of_two_witnesses(
    logs: Path,
    programs: Programs,
    capsys: pytest.CaptureFixture[str],
    attempts: list[dict[str, Any]],
    submission: dict[str, Any],
    queue: str,
    state: str,
) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    # a name that has the time in it would not be the same twice
    programs.queue(queue.replace("HOUR_AGO", hour_ago()).replace("NOW", now))
    write_run(logs, "one", *attempts, submission=submission, heartbeat=BEAT | {"time": time.time() - 665})
    values = row(capsys, logs)
    text = str(RunStatus(values["state"], values["detail"] or ""))
    assert text == state or (values["state"] == "silent" and text.startswith(state))


def test_a_task_of_an_array_is_its_own_job(logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    programs.queue("17_3|PENDING|Resources||main|N/A", "17_4|RUNNING|None|n2|main|N/A", "17|RUNNING|None|n1|main|N/A")
    job = {"job": "21", "array_job": "17", "array_task": "3"}
    write_run(logs, "one", began(1, job="21"), ended(1, "requeued"), job=job)
    values = row(capsys, logs)
    assert (values["job"], values["state"], values["detail"]) == ("17_3", "queued again", "Resources")
    assert "--array" in programs.calls("squeue")[0]


def test_the_same_number_on_another_cluster_is_another_job(
    logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.queue("7|PENDING|Resources||main|N/A")
    write_run(logs, "one", submission=SENT, job={"job": "7", "cluster": "far"})
    assert row(capsys, logs)["state"] == "waiting" and row(capsys, logs)["detail"] is None
    programs.queue("7|PENDING|Resources||main|N/A", cluster="far")
    assert row(capsys, logs)["detail"] == "Resources"


TEXT = st.text(st.characters(exclude_characters="|\n", exclude_categories=["Cs"]), max_size=12).map(str.strip)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(TEXT.filter(bool), TEXT.filter(bool), TEXT, TEXT, TEXT, TEXT),
        unique_by=lambda job: job[0],
        max_size=5,
    )
)
def test_what_squeue_prints_is_read(jobs: list[tuple[str, ...]]) -> None:
    output = "".join("|".join(job) + "\n" for job in jobs)
    assert list(read_jobs(output).values()) == [Job(*job) for job in jobs]


@given(st.text(max_size=200))
def test_whatever_squeue_prints_is_read(output: str) -> None:
    for name, job in read_jobs(output).items():
        assert name == job.name and len(SQUEUE_FIELDS) == 6


ROWS = st.lists(
    st.fixed_dictionaries({"attempt": st.integers(1, 3)}, optional={
        "start": st.sampled_from([stamp(900), "yesterday"]), "end": st.sampled_from([stamp(30), None]),
        "cause": st.sampled_from(["finished", "killed", "error: x", "", "cancelled"]), "nodes": TEXT,
    }),
    max_size=3,
)  # fmt: skip
WORDS = st.sampled_from([*OVER, *PENDING, "RUNNING", "COMPLETING", "SUSPENDED", "SOMETHING_NEW"])


@given(ROWS, WORDS, st.sampled_from(["released", "cancelled", "failed", "here", None, 3]), TEXT)
def test_every_run_has_a_state_of_the_list(rows: list[dict[str, Any]], word: str, submitted: Any, start: str) -> None:
    run = Run(Path("nowhere/a_1_2"))
    run.__dict__.update(attempts=rows, submission={"state": submitted, "job": "7"}, job={}, heartbeat={})
    now = status_of(run, SlurmJobs({"7": Job("7", word, "None", "n1", "main", start)}))
    assert now.state in STATES


# -- runs that have no step yet --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("began_ago", "beat_ago", "line_ago", "state"),
    [
        (300, None, 300, "running"),
        (3000, None, 200, "running"),  # data is prepared: its log tells
        (3000, None, 700, "silent for 11m"),
        (3000, 200, 0, "silent for 3m"),  # it has made steps, so its log does not count
        (300, 3000, 300, "running"),  # the heartbeat of the attempt before it
        (700, 3000, 700, "silent for 11m"),
    ],
)
@pytest.mark.parametrize("here", [True, False])
def test_a_run_without_a_step_is_silent_after_a_while(
    logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, here: bool,
    began_ago: float, beat_ago: float | None, line_ago: float, state: str,
) -> None:  # fmt: skip
    programs.queue(f"7|RUNNING|None|n1|main|{hour_ago()}")
    sent, job = SENT | {"time": stamp(4000)}, {"job": "7", "log": str(logs / "l")}
    run = write_run(logs, "one", began(1, began_ago, job="7"), submission=sent, job=job)
    if beat_ago is not None:
        (run / "heartbeat.json").write_text(json.dumps({"time": time.time() - beat_ago, "step": 3}))
    (logs / "l").touch()
    os.utime(logs / "l", (0, time.time() - line_ago))
    monkeypatch.setattr(Run, "holder", 17 if here else 0)
    values = row(capsys, logs)
    assert str(RunStatus(values["state"], values["detail"] or "")).startswith(state)


# -- Slurm that is not there, or does not answer ---------------------------------------------------------------------


def test_no_slurm(logs: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("PATH", str(programs.folder))
    write_run(logs, "one", submission=SENT)
    output = shown_by(capsys, logs)
    assert "waiting" in output and output.endswith("no Slurm on this machine: states are as the run folders tell\n")


def test_slurm_is_not_asked_where_no_run_needs_it(logs: Path, programs: Programs, capsys: Any) -> None:
    programs.queue()
    write_run(logs, "one", began(1), ended(1, "finished"), submission=SENT)
    write_run(logs, "two", began(1), ended(1, "killed"), number=1)
    assert "Slurm" not in shown_by(capsys, logs) and not programs.calls("squeue")


def test_a_controller_that_is_down(logs: Path, programs: Programs, capsys: Any) -> None:
    programs.put("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    write_run(logs, "one", submission=SENT)
    assert "no answer from Slurm (Unable to contact slurm controller): states are as" in shown_by(capsys, logs)
    programs.put("squeue", "sleep 60")
    problem = jobs_of(all_runs(logs), timeout=0.2).problem
    assert problem.startswith("Slurm's controller did not answer (squeue: nothing within 0.2 s): states are as the run")


# -- the table -------------------------------------------------------------------------------------------------------


@pytest.fixture
def many(logs: Path, programs: Programs) -> Path:
    programs.queue("900|RUNNING|None|n[1-4]|main|N/A", "901|PENDING|QOSMaxJobsPerUserLimit||main|N/A")
    write_run(logs, "live-" + "x" * 50, began(1, job="900"), number=0, job={"job": "900"},
              heartbeat=BEAT | {"time": time.time(), "seconds_left": 7200.0})  # fmt: skip
    write_run(logs, "waits", number=1, submission=SENT | {"job": "901"})
    for number in range(2, 30):
        write_run(logs, f"done{number}", began(1), ended(1, "finished"), number=number, heartbeat=BEAT)
    return logs


def test_live_runs_first_then_the_newest(many: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    head, *lines = shown_by(capsys, many).splitlines()
    assert head.split() == ["run", "job", "state", "node", "step", "loss", "tokens/s", "left", "tries"]
    assert lines[0].split()[:4] == ["waits_20261116-000001_000001", "901", "waiting:", "QOSMaxJobsPerUserLimit"]
    assert lines[1].split()[1:] == ["900", "running", "n[1-4]", "40/100", "2.500", "12.3k", "2h", "00m", "1"]
    assert lines[2].startswith("done29_") and lines[21].startswith("done10_") and len(lines) == 23
    assert lines[22] == "and 8 older: --all shows them"
    assert len(shown_by(capsys, many, "--all").splitlines()) == 31
    assert len(shown_by(capsys, many, "--state", "live").splitlines()) == 3
    assert len(shown_by(capsys, many, "--state", "finished").splitlines()) == 29
    assert shown_by(capsys, many, "--state", "held").endswith("has no runs whose state is held.\n")
    assert shown_by(capsys, many, "done7", "901").splitlines()[1].startswith("waits")


@pytest.mark.parametrize("width", [80, 200])
def test_the_table_fits(many: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = shown_by(capsys, many).splitlines()
    assert max(map(len, lines)) <= width
    live = next(line for line in lines if line.startswith("live-"))
    assert ("x" * 50 + "_20261116-000000_000000" in live) == (width == 200)
    assert "000000 " in live and "40/100" in live and " 2h 00m " in live, "the end of its id finds it"


def test_swept_values_are_shown_rather_than_the_name_made_of_them(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for number, rate in enumerate((0.001, 0.002)):
        lineage = {"parent": None, "how": "sweep", "changes": {"peak_learning_rate": rate, "seed": 1}, "sweep": "rates"}
        write_run(logs, f"rates-plr={rate}-s=1-{'x' * 40}", began(1), ended(1, "finished"), number=number,
                  heartbeat=BEAT, lineage=lineage)  # fmt: skip
    write_run(logs, "other", began(1), ended(1, "finished"), number=5, lineage={"how": "rerun", "changes": {"seed": 2}})
    head, other, second, first = shown_by(capsys, logs).splitlines()
    assert head.split()[:4] == ["run", "peak_learning_rate", "seed", "state"] and "job" not in head, "nobody has a job"
    assert first.split()[1:4] == ["0.001", "1", "finished"] and second.split()[1:3] == ["0.002", "1"]
    assert first.split()[0].endswith("000000") and other.split()[1] == "finished"
    monkeypatch.setenv("COLUMNS", "56")
    head, *lines = shown_by(capsys, logs).splitlines()
    assert head.split()[1:3] == ["pea…rate", "seed"] and lines[2].split()[1:3] == ["0.001", "1"]
    assert max(map(len, lines)) <= 56
    assert row(capsys, logs, "000001")["swept"] == {"peak_learning_rate": 0.002, "seed": 1}


def test_every_task_has_its_own_columns(
    logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    programs.queue("1|RUNNING|None|n1|main|N/A", "2|RUNNING|None|n1|main|N/A")
    alive = {"time": time.time(), "step": 40, "total_steps": 100}
    write_run(logs, "words", began(1, job="1"), number=0, job={"job": "1"}, heartbeat=BEAT | alive)
    measures = [{"name": "near", "title": "points that are near", "unit": "share of points", "better": "higher"}]
    task = {"name": "toylab.mixture", "unit": "points", "headline": "valid_near", "measures": measures}
    beat = alive | {"train_loss": 9.0, "valid_near": 0.75, "points_per_second": 50_000.0}
    points = write_run(logs, "points", began(1, job="2"), number=1, job={"job": "2"}, heartbeat=beat)
    (points / "task.json").write_text(json.dumps(task))
    head, first, second = shown_by(capsys, logs).splitlines()
    assert head.split("step ")[1].split() == ["points", "that", "are", "near", "loss", "points/s", "tokens/s", "tries"]
    assert first.split()[-4:] == ["40/100", "0.750", "50.0k", "1"]
    assert second.split()[-4:] == ["40/100", "2.500", "12.3k", "1"]
    values = row(capsys, logs, "000001")
    assert (values["valid_near"], values["points_per_second"]) == (0.75, 50_000.0)
    assert not {"train_loss", "valid_loss", "tokens_per_second"} & values.keys()


def test_an_empty_folder_and_a_damaged_run(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "runs has no runs." in " ".join(shown_by(capsys, logs).split())
    run = write_run(logs, "broken")
    for name in ("config.json", "heartbeat.json", "attempts.jsonl", "submission.json", "job.json", "metrics.jsonl"):
        (run / name).write_bytes(b'{"step": \xff\n[1]\n')
    assert "prepared" in shown_by(capsys, logs)


def test_a_run_without_heartbeat_is_shown_by_its_metrics(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(logs, "old", began(1), {"attempt": 1, "end": stamp(), "cause": "finished"})
    (run / "metrics.jsonl").write_text('{"step": 80, "train_loss": 1.5}\n{"step": 90, "valid_loss": 2.0}\n')
    values = row(capsys, logs)
    assert (values["step"], values["total_steps"], values["train_loss"], values["valid_loss"]) == (90, 100, 1.5, 2.0)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--state", "sleepy"], "argument --state: invalid choice: 'sleepy'"),
        (["--watch", "0"], "argument --watch: '0' is no number of seconds from 0.1 to 86400: python -m launch"),
        (["nobody"], "RUN is nobody: "),
    ],
)  # fmt: skip
def test_mistakes(logs: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str) -> None:
    write_run(logs, "one")
    assert main(["status", "--logs_dir", str(logs), *words]) == 2
    assert sentence in capsys.readouterr().err


def test_watching_looks_again_until_it_is_stopped(logs: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(logs, "one")
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("launch.status.time.sleep", sleep)
    output = shown_by(capsys, logs, "--watch", "2")
    assert output.count("one_2026") == 3 and pauses == [2, 2, 2]
    assert output.count("read from the run folders every 2 s") == 3


def test_watching_asks_slurm_every_30_seconds_for_all_runs_at_once(
    logs: Path, programs: Programs, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    programs.queue("7|PENDING|Priority||main|N/A", "8|PENDING|Priority||main|N/A")
    run = write_run(logs, "one", submission=SENT)
    write_run(logs, "two", submission=SENT | {"job": "8"}, number=8)
    start, pauses, really_sleep = time.time(), [], time.sleep

    def sleep(seconds: float) -> None:
        if seconds < 1:  # a program is waited for
            return really_sleep(seconds)
        pauses.append(seconds)
        if len(pauses) == 2:  # it begins, and another is submitted, while Slurm's answer is of before
            write_run(logs, "three", submission=SENT | {"job": "9", "time": stamp(-4)}, number=9)
            (run / "attempts.jsonl").write_text(json.dumps(began(1, -4, job="7")) + "\n")
            (run / "heartbeat.json").write_text(json.dumps({"time": time.time() + 4, "step": 1}))
        if len(pauses) == 8:
            raise KeyboardInterrupt

    clock = time.time
    monkeypatch.setattr("launch.status.time.sleep", sleep)
    monkeypatch.setattr("time.time", lambda: clock() + 5 * len(pauses))
    looks = shown_by(capsys, logs, "--watch").split("run    ")[1:]
    assert len(looks) == 8 and len(programs.calls("squeue")) == 2 and clock() - start < 20
    assert "Slurm's answer is 25 s old (asked every 30 s, run folders every 5 s)" in looks[5]
    assert "Slurm's answer is 0 s old" in looks[6]
    assert looks[1].count("waiting: Priority") == 2
    assert looks[2].count("waiting: Priority") == 1 and " running " in looks[2] and " waiting\n" in looks[2]
    assert "lost: " in looks[6], "Slurm was asked, and does not know it"


def test_the_expected_start(logs: Path, programs: Programs, capsys: Any) -> None:
    programs.queue(f"7|PENDING|Priority||main|{SOON}", f"8|PENDING|JobHeldUser||main|{SOON}",
                   f"9|PENDING|BadConstraints||main|{hour_ago()}")  # fmt: skip
    for job in (7, 8, 9):
        write_run(logs, f"r{job}", submission=SENT | {"job": str(job)}, number=job)
    values = [json.loads(line)["expected_start"] for line in shown_by(capsys, logs, "--json").splitlines()]
    assert values == [None, None, SOON]
    head, *rows = shown_by(capsys, logs).splitlines()
    assert [line[head.index("starts") :].split()[:1] for line in rows] == [[], [], ["2099-01-01"]]
    today = datetime.now()
    assert format_short_time(today.strftime("%Y-%m-%dT23:59:00")) == "23:59"
    assert format_short_time((today + timedelta(days=2)).strftime("%Y-%m-%dT09:05:00")).endswith(" 09:05")


@given(st.floats(0, 1e15))
def test_numbers_stay_short(value: float) -> None:
    assert len(format_compact(value)) <= 5


@given(st.text("ab-_", max_size=99), st.integers(9, 40), st.sampled_from([0, 6]))
def test_shortened(text: str, width: int, end: int) -> None:
    short = shortened(text, width, end)
    if len(text) <= width:
        assert short == text
    else:
        first, _, last = short.rpartition("…")
        assert len(short) == width and text.startswith(first) and text.endswith(last) and len(last) == end
