"""Locks where the file system has some and where it has none: one writer at a time, and the dead hold nothing."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runs import RunFolder
from runs.folder import RunError
from runs.index import load
from runs.lock import Lock, is_holder_alive, lock_holder, owner_file, write_heartbeats
from runs.run import Run
from tests.conftest import ROOT, TrainCommand
from tests.runs.folders import make_run

NO_LOCKS = """
import errno, fcntl, os
def refuse(*_):
    raise OSError(errno.{0}, os.strerror(errno.{0}))
fcntl.lockf = fcntl.flock = refuse
"""
HOLD = """
import pathlib, sys, time
from runs.lock import Lock
mine = Lock(pathlib.Path(sys.argv[1]), heartbeat_seconds=0.1)
try:
    mine.acquire(wait=len(sys.argv) > 2)
except BlockingIOError:
    sys.exit("held")
print("mine", flush=True)
time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 100)
"""
WARNING = ": this file system has no locks (No locks available): a file that names its process is used instead.\n"


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    ask = fcntl.fcntl
    monkeypatch.setattr(fcntl, "lockf", refuse)
    monkeypatch.setattr(
        fcntl, "fcntl", lambda file, what, *more: refuse() if what == fcntl.F_GETLK else ask(file, what)
    )


def start(path: Path, *words: str, code: str = NO_LOCKS.format("ENOLCK") + HOLD) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, str(path), *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def held(path: Path, code: str = NO_LOCKS.format("ENOLCK") + HOLD) -> Iterator[subprocess.Popen[str]]:
    process = start(path, code=code)
    assert process.stdout is not None and process.stdout.readline() == "mine\n", process.communicate()
    yield process
    process.kill()
    process.communicate()


def of_another_machine(path: Path, **more: str) -> Path:
    record = {"machine": "elsewhere", "host": "n7", "process": os.getpid(), "token": "x", **more}
    owner_file(path).write_text(json.dumps(record))
    return owner_file(path)


def test_a_run_has_one_writer_and_the_dead_hold_nothing(
    tmp_path: Path, no_locks: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, cause=None)
    with held(run / "lock") as process:
        assert Run(run).holder == process.pid and Run(run).state in ("running", "silent")
        with pytest.raises(RunError, match=f"another process is writing run {run.name}: wait for it, stop it, or"):
            RunFolder(run).lock()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not Run(run).is_held and owner_file(run / "lock").exists()
    folder = RunFolder(run)
    folder.lock()
    assert Run(run).holder == os.getpid()
    RunFolder(run).lock()  # the same process
    assert capsys.readouterr().err == f"{run}{WARNING}", "said once"
    del folder
    assert not owner_file(run / "lock").exists() and not Run(run).is_held


def test_of_several_at_once_one_has_it(tmp_path: Path, no_locks: None) -> None:
    """Also where all of them find the file of a dead one."""
    path = tmp_path / "lock"
    with held(path) as process:
        process.kill()
        process.wait()
    others = [start(path) for _ in range(5)]
    deadline = time.monotonic() + 60
    while sum(process.poll() is None for process in others) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (winner,) = (process for process in others if process.poll() is None)
    assert lock_holder(path) == winner.pid
    winner.kill()
    assert [process.communicate()[0] for process in others].count("mine\n") == 1
    assert [file.name for file in tmp_path.iterdir() if "owner." in file.name] == []


def test_who_waits_gets_it(tmp_path: Path, no_locks: None) -> None:
    others = [start(tmp_path / "lock", "0.1") for _ in range(3)]
    assert [process.communicate()[0] for process in others] == ["mine\n"] * 3
    assert not owner_file(tmp_path / "lock").exists()


def test_another_machine_has_to_give_a_sign_of_life(
    tmp_path: Path, no_locks: None, capsys: pytest.CaptureFixture[str]
) -> None:
    owner, over = of_another_machine(tmp_path / "lock"), threading.Event()
    record = json.loads(owner.read_text())
    living = threading.Thread(target=write_heartbeats, args=(owner, record, over, 0.1))
    living.start()
    with pytest.raises(BlockingIOError, match="n7 has it"):
        Lock(tmp_path / "lock", silence_seconds=1.0).acquire()
    assert lock_holder(tmp_path / "lock", silence_seconds=1.0) == -1
    over.set()
    living.join()
    mine = Lock(tmp_path / "lock", silence_seconds=1.0)
    mine.acquire()
    assert lock_holder(tmp_path / "lock") == os.getpid()
    assert f"{owner} is of n7: waiting up to 1 s for its heartbeat\n" in capsys.readouterr().err


def test_an_earlier_start_of_the_same_job_is_over(
    tmp_path: Path, no_locks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    of_another_machine(tmp_path / "lock", job="17")
    Lock(tmp_path / "lock", silence_seconds=1000.0).acquire()
    of_another_machine(tmp_path / "lock", job="17", restart="1")
    record = {"machine": "elsewhere", "job": "17", "restart": "1"}
    assert not is_holder_alive(owner_file(tmp_path / "lock"), record, silence_seconds=0.5)


def test_a_node_that_sees_locks_respects_one_that_does_not(tmp_path: Path) -> None:
    with held(tmp_path / "lock"):
        with pytest.raises(BlockingIOError):
            Lock(tmp_path / "lock").acquire()
        assert lock_holder(tmp_path / "lock") > 0
    mine = Lock(tmp_path / "lock")
    mine.acquire()
    assert not mine.is_by_file and not owner_file(tmp_path / "lock").exists()


def test_who_lost_its_lock_ends(tmp_path: Path) -> None:
    with held(tmp_path / "lock") as process:
        process.send_signal(signal.SIGSTOP)
        owner = of_another_machine(tmp_path / "lock")
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 1 and "another process took this run's lock" in errors
        assert owner.exists(), "and leaves the other's alone"


def test_the_index_is_done_without(
    tmp_path: Path, no_locks: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path)
    assert [record.run_id for record in load(tmp_path)] and not (tmp_path / "index.sqlite").exists()
    words = "this file system has no locks: No locks available"
    assert (
        capsys.readouterr().err == f"{tmp_path}/index.sqlite cannot be used ({words}): reading the folders instead.\n"
    )


def test_it_trains_and_the_doctor_says_what_it_found(train_command: TrainCommand, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_LOCKS.format("ENOSYS"))
    own = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "COLUMNS": "300"}
    done = subprocess.run(train_command.command(), cwd=ROOT, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("this file system has no locks (Function not implemented)") == 1
    assert not owner_file(train_command.run_folder / "lock").exists()
    words = [sys.executable, "-m", "launch", "doctor", "--logs_dir", str(train_command.logs)]
    own["PATH"] = str(tmp_path)  # without Slurm
    output = subprocess.run(words, cwd=ROOT, env=own, capture_output=True, text=True).stdout
    finding = "look locks none of this file system; files that name their process are used instead, and are respected"
    assert f"{finding}: ask the site to mount it with flock" in " ".join(output.split()), output
