"""Works through the queue of this machine: one process, one job after another, each noted in its file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from core.environment import clean_environment
from core.files import write_json
from launch.execute import ROOT
from runs.lock import Lock, as_record, is_alive
from runs.reading import Run
from runs.signals import GOES_ON

OPEN = ("waiting", "running")


class Job:
    """One file of the queue: words, title, folder, state, run, needs, status, start, end, process, created."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = int(path.stem)
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError):
            found = {}
        self.record: dict[str, Any] = found if isinstance(found, dict) else {}

    @property
    def state(self) -> str:
        return str(self.record.get("state", "damaged"))

    @property
    def log(self) -> Path:
        return self.path.with_suffix(".log")

    @property
    def run(self) -> Run | None:
        return Run(Path(self.record["run"])) if self.record.get("run") else None

    def note(self, state: str, **more: Any) -> None:
        self.record |= {"state": state, **more}
        write_json(self.path, self.record)


def jobs(logs: Path) -> list[Job]:
    return [Job(path) for path in sorted((logs / "queue").glob("[0-9]*.json"), key=lambda path: int(path.stem))]


def unfinished_runs(logs: Path) -> set[Path]:
    """The runs that wait or run here."""
    return {Path(job.record["run"]) for job in jobs(logs) if job.state in OPEN and job.record.get("run")}


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold a lock that is given back when this process dies."""
    lock = Lock(path)
    lock.acquire(wait)
    try:
        yield
    finally:
        lock.release()


def worker(logs: Path) -> int | None:
    """The process that works through the queue."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads((logs / "queue" / "worker.json").read_bytes())
        if is_alive(record):
            return int(record["process"])
    return None


class Worker:
    """Works through the queue; told to end, it tells its job to end, and waits until that has saved its state."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.is_told_to_end = False
        self.process: subprocess.Popen[bytes] | None = None

    def end(self, number: int, frame: FrameType | None) -> None:
        self.is_told_to_end = True
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)

    def work(self) -> None:
        while not self.is_told_to_end:
            job = next((job for job in jobs(self.logs) if job.state in OPEN), None)
            if job is None:
                return
            if job.state == "running" and not self.see_to_the_end(job):
                continue
            self.run(job)

    def see_to_the_end(self, job: Job) -> bool:
        """What a worker before this one began: wait while it lives; whether it has to be run again."""
        while is_alive(job.record) and not self.is_told_to_end:
            time.sleep(0.5)
        if self.is_told_to_end:
            return False
        if job.run is None:
            job.note("failed", error="the machine or the queue ended, and nobody saw how it went on")
            return False
        if job.run.state == "finished":
            job.note("done", end=time.time())
        return job.run.state != "finished"

    def run(self, job: Job) -> None:
        needed = job.record.get("needs")
        if needed and Run(Path(needed)).state != "finished":
            job.note("left out", error="its run is not finished")
            return
        with open(job.log, "ab") as log:
            try:
                self.process = subprocess.Popen(
                    job.record["words"],
                    cwd=job.record.get("folder", ROOT),
                    env=clean_environment() | {"PYTHONDONTWRITEBYTECODE": "1"},  # a snapshot stays as it is
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                job.note("failed", error=str(error.strerror))
                return
        job.note("running", start=time.time(), **as_record(self.process.pid))
        if self.is_told_to_end:  # in between
            self.end(signal.SIGTERM, None)
        status = self.process.wait()
        self.process = None
        is_finished = status == 0 or (job.run is not None and job.run.state == "finished")
        if self.is_told_to_end and not is_finished:
            job.note("waiting", status=status)
        else:
            state = "done" if is_finished else "stopped" if status == GOES_ON else "failed"
            job.note(state, status=status, end=time.time())


def work(logs: Path) -> int:
    """Until there is nothing left, or it is told to end."""
    desk = logs / "queue"
    own = Worker(logs)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, own.end)
    try:
        with locked(desk / "worker.lock", wait=False):
            write_json(desk / "worker.json", as_record(os.getpid()))
            own.work()
    except BlockingIOError:
        pass  # another was faster
    return 0
