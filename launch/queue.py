"""`python -m launch queue`: a list of jobs that run one after another on this machine, in the background.

`logs/queue/` has a file for each job with its command and state, and its log beside it. One worker process, in its own
session, works through them; after a reboot, `python -m launch queue` continues with what is left.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from config.flags import SettingsError
from core.commands import CommandParser
from core.environment import clean_environment
from core.errors import UserError
from core.files import write_json
from core.text import format_short_duration, format_value, plural
from launch.capsule import make_capsule
from launch.script import DEFAULT_SCRIPT, ROOT
from launch.submit import SubmitRequest, validate
from launch.sweep_file import read_file
from runs.lock import Lock, as_record, is_alive
from runs.process import EXIT_RESUMABLE
from runs.run import Run

STOP_TIMEOUT_SECONDS = 60.0  # for a run to save its state
TABLE_WIDTH = 120  # of the table if the terminal's width is not known
PURPOSE = """\
Run a list of jobs one after another on this machine, in the background.

  python -m launch queue FILE          add the jobs of a file, and start: a command a line, or a sweep (YAML, CSV)
  python -m launch queue add WORDS…    add one command
  python -m launch queue               continue with what is left, after a reboot for example
  python -m launch queue status        what is done, what runs, what waits
  python -m launch queue stop          tell the job that runs to save its state, and stop; the others wait

`python train_model.py FLAGS` is checked when it is added, kept with its code, and resumes where it was interrupted."""
UNFINISHED = ("waiting", "running")


def queue(argv: list[str]) -> int:
    """The command."""
    parser = CommandParser("python -m launch queue", PURPOSE, usage=argparse.SUPPRESS)
    parser.add_argument("what", nargs="?", metavar="FILE", default="start", help=argparse.SUPPRESS)
    end = argv.index("add") + 1 if "add" in argv else len(argv)  # the words after `add` are a command
    parser.add_argument("--slurm", action="append", help=argparse.SUPPRESS)
    options, words = parser.parse_args(argv[:end]), argv[end:]
    if options.slurm:
        raise UserError(
            "--slurm has no effect on the queue of this machine: python -m launch sweep FILE --slurm NAME=VALUE "
            "submits a file of runs to Slurm."
        )
    what, logs = options.what, Path(options.logs_dir).absolute()
    if what == "work":
        return work(logs)
    if what == "status":
        show_jobs(logs)
    elif what == "stop":
        stop(logs)
    elif what == "start":
        start(logs)
        show_jobs(logs)
    elif what == "add":
        if not words:
            raise UserError("add is not followed by a command: python -m launch queue add python train_model.py FLAGS.")
        add_commands(logs, [(1, words)], "")
        start(logs)
    elif Path(what).suffix.lower() in (".yaml", ".yml", ".csv"):
        from launch.sweep import sweep
        from launch.sweep_file import read_sweep

        if read_sweep(Path(what)).study is not None:  # it runs in the foreground, so here as a job of the queue
            file = str(Path(what).absolute())
            words = ["python", "-m", "launch", "sweep", file, "--cluster", "local", "--logs_dir", str(logs)]
            add_commands(logs, [(1, words)], "")
            start(logs)
            return 0
        return sweep([what, "--cluster", "local", "--logs_dir", str(logs)])
    else:
        add_commands(logs, read_commands(Path(what)), "line {}: ")
        start(logs)
    return 0


# -- adding ----------------------------------------------------------------------------------------------------------


def read_commands(path: Path) -> list[tuple[int, list[str]]]:
    """(line number, words) of the commands in a file; quotes and # comments as in a shell."""
    text = read_file(path, "give a file of commands, or add, status, start or stop", "write a command a line")
    commands, problems = [], []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            if words := shlex.split(line, comments=True):
                commands.append((number, words))
        except ValueError as problem:
            problems.append(f"line {number}: {format_value(line)} has {str(problem).lower()}: correct it.")
    if problems:
        raise SettingsError(problems)
    if not commands:
        raise UserError(f"FILE is {str(path)!r}: it has no commands; write one a line.")
    return commands


def add_commands(logs: Path, commands: Sequence[tuple[int, list[str]]], prefix: str) -> None:
    """Add all commands, or none if one is wrong. prefix: of a problem, with {} for the line number."""
    checked = []
    problems = []
    for number, words in commands:
        try:
            checked.append(check_command(words))
        except UserError as error:
            problems += [prefix.format(number) + line for line in str(error).split("\n")]
    if problems:
        raise SettingsError(problems)
    entries: list[dict[str, Any]] = []
    for words, request in checked:
        entry: dict[str, Any] = {"words": words, "title": shlex.join(words)}
        if request is not None:
            config, write_script = validate(request)
            run = make_capsule(request, config, write_script).path
            entry = {"words": ["bash", str(run / "job_script.slurm")], "title": run.name, "run": str(run)}
        entries.append(entry)
    add(logs, entries)
    print(f"{are_jobs(len(entries))} in the queue")


def check_command(words: list[str]) -> tuple[list[str], SubmitRequest | None]:
    """The command, checked; for train_model.py also the request for its capsule."""
    if words[0] in ("python", "python3"):
        words = [sys.executable, *words[1:]]
    if shutil.which(words[0], path=os.environ.get("PATH")) is None:
        raise UserError(
            f"{format_value(words[0])} is no program of this machine: write a command, such as python train_model.py."
        )
    if words[:1] != [sys.executable] or words[1:2] != ["train_model.py"]:
        return words, None
    request = SubmitRequest(["python", *words[1:]], None, DEFAULT_SCRIPT, words[2:], False)
    validate(request)
    return words, request


def are_jobs(count: int) -> str:
    return f"{plural(count, 'job')} {'is' if count == 1 else 'are'}"


def add_runs(logs: Path, runs: Sequence[Path], evaluate: bool) -> int:
    """Add runs that have a capsule to the queue; the number of jobs."""
    entries: list[dict[str, Any]] = []
    for run in runs:
        entries.append({"words": ["bash", str(run / "job_script.slurm")], "title": run.name, "run": str(run)})
        if evaluate:
            words = [sys.executable, "-m", "inference", "evaluate", "--run", str(run)]
            entries.append(
                {"words": words, "title": f"evaluate {run.name}", "needs": str(run), "folder": str(run / "code")}
            )
    add(logs, entries)
    return len(entries)


def add(logs: Path, entries: Sequence[dict[str, Any]]) -> None:
    queue_dir = logs / "queue"
    try:
        queue_dir.mkdir(parents=True, exist_ok=True)
        with locked(queue_dir / "adding.lock"):
            first = max((job.number for job in queue_jobs(logs)), default=0) + 1
            for number, entry in enumerate(entries, first):
                write_json(queue_dir / f"{number:06}.json", {**entry, "state": "waiting"})
    except OSError as error:
        raise UserError(
            f"{format_value(str(queue_dir))} cannot be written to ({error.strerror}): nothing was added."
        ) from None


# -- starting, stopping, looking -------------------------------------------------------------------------------------


def start(logs: Path) -> None:
    """Start the worker, unless it runs or there is nothing to do."""
    if not any(job.state in UNFINISHED for job in queue_jobs(logs)):
        print("the queue is empty")
        return
    if (process := worker_process(logs)) is None:
        with open(logs / "queue" / "worker.log", "ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "launch", "queue", "--logs_dir", str(logs), "work"],
                cwd=ROOT,
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        process = worker.pid
    print(f"the queue runs in the background (process {process})")


def stop(logs: Path) -> None:
    process = worker_process(logs)
    if process is None:
        print("the queue does not run")
        return
    os.kill(process, signal.SIGTERM)
    print("the queue stops; the job that runs saves its state first", flush=True)
    deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
    while worker_process(logs) is not None and time.monotonic() < deadline:
        time.sleep(0.1)
    left = sum(job.state in UNFINISHED for job in queue_jobs(logs))
    if worker_process(logs) is None:
        print(f"stopped; {left} jobs are left, and python -m launch queue continues with them")
    else:
        print("it still saves; python -m launch queue status shows when it is done")


def show_jobs(logs: Path) -> None:
    """Print one line per job."""
    jobs = queue_jobs(logs)
    if not jobs:
        print("the queue is empty: python -m launch queue FILE adds the jobs of a file")
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(console.width, TABLE_WIDTH))
    table = Table(box=None, pad_edge=False)
    for heading in ("job", "what", "state", "took", "log"):
        table.add_column(heading, justify="right" if heading in ("job", "took") else "left", overflow="fold")
    for job in jobs:
        start, end = job.record.get("start"), job.record.get("end")
        until = end or (time.time() if job.state == "running" else None)
        duration = format_short_duration(until - start) if start and until else ""
        error = f": {job.record['error']}" if job.record.get("error") else ""
        log = os.path.relpath(job.log) if job.log.exists() else ""
        table.add_row(
            str(job.number), Text(format_value(job.record.get("title"))), Text(job.state + error), duration, Text(log)
        )
    console.print(table)
    process = worker_process(logs)
    if process is not None:
        print(f"the queue runs (process {process})")
    elif any(job.state in UNFINISHED for job in jobs):
        print("the queue does not run: python -m launch queue continues with what is left")


# -- the worker ------------------------------------------------------------------------------------------------------


class QueueJob:
    """One file of the queue.

    Its record has the command (words), a title, the folder to run it in, its state, the run that it trains, the run
    that has to be finished first (needs), the exit status, start and end, and the process with its time of creation.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = int(path.stem)
        try:
            record = json.loads(path.read_bytes())
        except (OSError, ValueError):
            record = {}
        self.record: dict[str, Any] = record if isinstance(record, dict) else {}

    @property
    def state(self) -> str:
        return str(self.record.get("state", "damaged"))

    @property
    def log(self) -> Path:
        return self.path.with_suffix(".log")

    @property
    def run(self) -> Run | None:
        return Run(Path(self.record["run"])) if self.record.get("run") else None

    def save_state(self, state: str, **more: Any) -> None:
        self.record |= {"state": state, **more}
        write_json(self.path, self.record)


def queue_jobs(logs: Path) -> list[QueueJob]:
    return [QueueJob(path) for path in sorted((logs / "queue").glob("[0-9]*.json"), key=lambda path: int(path.stem))]


def unfinished_runs(logs: Path) -> set[Path]:
    """The runs that wait or run in this queue."""
    return {Path(job.record["run"]) for job in queue_jobs(logs) if job.state in UNFINISHED and job.record.get("run")}


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold a lock, which is released if this process dies."""
    lock = Lock(path)
    lock.acquire(wait)
    try:
        yield
    finally:
        lock.release()


def worker_process(logs: Path) -> int | None:
    """The process id of the worker; None if none is alive."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads((logs / "queue" / "worker.json").read_bytes())
        if is_alive(record):
            return int(record["process"])
    return None


class Worker:
    """Runs the jobs of the queue. A signal to stop is passed on to the job, and its end is awaited."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.is_stopping = False
        self.process: subprocess.Popen[bytes] | None = None

    def end(self, number: int, frame: FrameType | None) -> None:
        self.is_stopping = True
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)

    def work(self) -> None:
        while not self.is_stopping:
            job = next((job for job in queue_jobs(self.logs) if job.state in UNFINISHED), None)
            if job is None:
                return
            if job.state == "running" and not self.wait_for_orphan(job):
                continue
            self.run(job)

    def wait_for_orphan(self, job: QueueJob) -> bool:
        """Wait for a job that an earlier worker started; whether it has to be run again."""
        while is_alive(job.record) and not self.is_stopping:
            time.sleep(0.5)
        if self.is_stopping:
            return False
        if job.run is None:
            job.save_state("failed", error="the machine or the queue ended, and its end was not seen")
            return False
        if job.run.state == "finished":
            job.save_state("done", end=time.time())
        return job.run.state != "finished"

    def run(self, job: QueueJob) -> None:
        needed_run = job.record.get("needs")
        if needed_run and Run(Path(needed_run)).state != "finished":
            job.save_state("skipped", error="its run is not finished")
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
                job.save_state("failed", error=str(error.strerror))
                return
        job.save_state("running", start=time.time(), **as_record(self.process.pid))
        if self.is_stopping:  # the signal came before the process was known
            self.end(signal.SIGTERM, None)
        status = self.process.wait()
        self.process = None
        is_finished = status == 0 or (job.run is not None and job.run.state == "finished")
        if self.is_stopping and not is_finished:
            job.save_state("waiting", status=status)
        else:
            state = "done" if is_finished else "stopped" if status == EXIT_RESUMABLE else "failed"
            job.save_state(state, status=status, end=time.time())


def work(logs: Path) -> int:
    """The worker's process: runs until the queue is empty or a signal stops it."""
    queue_dir = logs / "queue"
    worker = Worker(logs)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, worker.end)
    try:
        with locked(queue_dir / "worker.lock", wait=False):
            write_json(queue_dir / "worker.json", as_record(os.getpid()))
            worker.work()
    except BlockingIOError:
        pass  # another worker runs
    return 0
