"""The queue of one machine: one job after another, told to stop, killed, and taken up again."""

from __future__ import annotations

import json
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import UserError
from launch.queue import QueueJob, Worker, add, queue_jobs, read_commands
from tests.launch.launcher import Launcher, wait

LONG = "python train_model.py --run_name long --no_wandb"


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(tmp_path / "it's a launcher")


def states(launcher: Launcher) -> list[str]:
    return [job.state for job in queue_jobs(launcher.logs)]


def worker_of(launcher: Launcher) -> int:
    return int(json.loads((launcher.logs / "queue" / "worker.json").read_bytes())["process"])


def test_jobs_run_in_their_order_and_are_never_executed_by_a_shell(launcher: Launcher) -> None:
    file = launcher.file(
        "night.txt", "# tonight\necho 'a  b' '$(touch gone)'\n\nfalse\nsh -c 'echo $PPID; pwd' # where\n"
    )
    output = launcher.launch("queue", file)
    assert "3 jobs are in the queue" in output and "the queue runs in the background (process " in output
    wait("its end", lambda: states(launcher) == ["done", "failed", "done"])
    first, _, third = queue_jobs(launcher.logs)
    assert first.log.read_text() == "a  b $(touch gone)\n" and not list(launcher.root.rglob("gone"))
    assert third.log.read_text() == f"{worker_of(launcher)}\n{launcher.root}\n"
    wait("the end of the process", lambda: "the queue runs" not in launcher.launch("queue", "status"))
    output = launcher.launch("queue", "status")
    assert "echo 'a  b' '$(touch gone)'" in output and "failed" in output and "000001.log" in output
    assert "the queue is empty" in launcher.launch("queue", "start")
    assert "the queue does not run" in launcher.launch("queue", "stop")


def test_it_stops_when_told_and_goes_on_later(launcher: Launcher) -> None:
    launcher.tell("waits", "long")
    launcher.launch("queue", "add", *LONG.split(), "--seed", "-1", status=2)
    launcher.launch("queue", "add", *LONG.split())
    assert "1 job is in the queue\nthe queue runs" in launcher.launch("queue", "add", "echo", "add", "--logs_dir", "x")
    wait("its start", lambda: len(launcher.starts("long")) == 1)
    (start,) = launcher.starts("long")
    assert start["session"] != os.getsid(0), "the end of a terminal is not its end"
    assert start["code"].startswith(str(launcher.runs()[0].path)), "it runs the code as it was"
    output = launcher.launch("queue", "stop")
    assert "stopped; 2 jobs are left, and python -m launch queue continues with them" in output
    assert states(launcher) == ["waiting", "waiting"] and launcher.runs()[0].state == "interrupted"
    assert "the queue does not run: python -m launch queue continues with what is left" in launcher.launch(
        "queue", "status"
    )
    launcher.launch("queue")
    wait("its end", lambda: states(launcher) == ["done", "done"])
    assert [row["first_step"] for row in launcher.starts("long")] == [0, 1], "it went on in its folder"
    assert queue_jobs(launcher.logs)[1].log.read_text() == "add --logs_dir x\n"


def test_a_queue_that_is_killed_goes_on_and_does_not_begin_a_job_twice(launcher: Launcher) -> None:
    launcher.tell("waits", "long")
    launcher.launch("queue", "add", *LONG.split())
    wait("its start", lambda: len(launcher.starts("long")) == 1)
    os.kill(worker_of(launcher), signal.SIGKILL)
    wait("its death", lambda: "the queue does not run" in launcher.launch("queue", "status"))
    launcher.launch("queue")
    wait("the next one", lambda: "the queue runs" in launcher.launch("queue", "status"))
    assert len(launcher.starts("long")) == 1, "the job of the one before it lives"
    os.killpg(queue_jobs(launcher.logs)[0].record["process"], signal.SIGKILL)  # as a reboot does
    wait("its end", lambda: states(launcher) == ["done"])
    assert len(launcher.starts("long")) == 2 and launcher.runs()[0].state == "finished"


def test_only_one_works(launcher: Launcher) -> None:
    launcher.tell("waits", "long")
    launcher.launch("queue", "add", *LONG.split())
    wait("its start", lambda: len(launcher.starts("long")) == 1)
    process = worker_of(launcher)
    launcher.launch("queue", "work")
    launcher.launch("queue", "start")
    assert worker_of(launcher) == process and len(launcher.starts("long")) == 1
    launcher.launch("queue", "stop")


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (
            f"{LONG} --max_stepz 3\necho fine\nnosuchprogram x\n",
            [
                "line 1: --max_stepz is unknown: did you mean --max_steps?",
                "line 3: nosuchprogram is no program of this machine",
            ],
        ),
        ("echo 'a\n", ["line 1: echo 'a has no closing quotation: correct it."]),
        ("# nothing\n", ["it has no commands; write one a line."]),
        (
            f"{LONG} --resume_training_ckpt no.ckpt\n",
            ["line 1: --resume_training_ckpt is 'no.ckpt': there is no such file"],
        ),
    ],
)
def test_files_that_cannot_be_queued(launcher: Launcher, text: str, sentences: list[str]) -> None:
    output = launcher.launch("queue", launcher.file("night.txt", text), status=2)
    assert all(sentence in output for sentence in sentences), output
    assert not launcher.logs.exists(), "all of them, or none"


def test_mistakes_at_the_door(launcher: Launcher) -> None:
    for words, sentence in {
        (
            "nosuchfile",
        ): "FILE is 'nosuchfile': there is no such file; give a file of commands, or add, status, start or stop.",
        ("add",): "add is not followed by a command: python -m launch queue add python train_model.py FLAGS.",
        ("status", "x"): "unrecognized arguments: x",
    }.items():
        assert sentence in launcher.launch("queue", *words, status=2)
    (launcher.root / "bytes.txt").write_bytes(b"\xff")
    assert "FILE is 'bytes.txt': it is not a UTF-8 text; write a command a line." in launcher.launch(
        "queue", "bytes.txt", status=2
    )
    assert "the queue is empty: python -m launch queue FILE adds the jobs of a file" in launcher.launch(
        "queue", "status"
    )


def test_a_folder_that_cannot_be_written_to() -> None:
    with pytest.raises(UserError, match=r"queue cannot be written to \(Not a directory\): nothing was added"):
        add(Path("/dev/null"), [{"words": ["true"]}])


@settings(max_examples=80, deadline=None)
@given(
    words=st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0"), min_size=1), min_size=1
    )
)
def test_words_are_read_as_a_shell_would(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "night.txt"
    path.write_text(shlex.join(words) + "\n")
    assert read_commands(path) == [(1, words)]


@settings(max_examples=40, deadline=None)
@given(
    ends=st.lists(
        st.tuples(
            st.sampled_from(["waiting", "running", "done", "failed"]), st.booleans(), st.sampled_from([0, 1, 75])
        ),
        max_size=6,
    )
)
def test_every_open_job_ends_and_no_other_is_touched(tmp_path_factory: pytest.TempPathFactory, ends: list[Any]) -> None:
    """Whatever state a reboot left them in."""
    logs = tmp_path_factory.mktemp("logs")
    (logs / "queue").mkdir()
    for number, (state, has_run, status) in enumerate(ends, 1):
        record: dict[str, Any] = {
            "words": ["bash", "-c", f"exit {status}"],
            "state": state,
            "process": 2**22 + 1,
            "created": 1.0,
        }
        if has_run:
            record["run"] = str(logs)
        (logs / "queue" / f"{number:06}.json").write_text(json.dumps(record))
    Worker(logs).work()
    words = {0: "done", 1: "failed", 75: "stopped"}
    for job, (state, has_run, status) in zip(queue_jobs(logs), ends, strict=True):
        again = state == "waiting" or (state == "running" and has_run)
        assert job.state == (words[status] if again else "failed" if state == "running" else state)


def test_a_damaged_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / "000001.json").write_text("{")
    assert [job.state for job in queue_jobs(tmp_path)] == ["damaged"] and QueueJob(
        tmp_path / "queue" / "000002.json"
    ).record == {}
    Worker(tmp_path).work()
