"""`python -m launch queue`: a list of jobs, one after another on this machine, whatever becomes of the terminal.

`logs/queue/` has a file for each job with its words and how far it came, and its log beside it. One process, in a
session of its own, works through them; after a reboot, `python -m launch queue` goes on with what is left.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from config.flags import SettingsError
from core.commands import CommandParser
from core.environment import clean_environment
from core.errors import UserError
from core.files import write_json
from core.text import shown
from launch.cluster import USUAL
from launch.execute import ROOT, Order, checked, make_capsule
from launch.queue_worker import OPEN, jobs, locked, work, worker
from launch.slurm import duration

PATIENCE = 60.0  # seconds that a run may take to save its state
WIDTH = 120  # of the table where the screen is not known
PURPOSE = """\
Run a list of jobs one after another on this machine, in the background.

  python -m launch queue FILE          add the jobs of a file, and start: a command a line, or a sweep (YAML, CSV)
  python -m launch queue add WORDS…    add one command
  python -m launch queue               go on with what is left, after a reboot for example
  python -m launch queue status        what is done, what runs, what waits
  python -m launch queue stop          tell the job that runs to save its state, and stop; the others wait

`python train_model.py FLAGS` is checked when it is added, kept with its code, and goes on where it was interrupted."""


def queue(argv: list[str]) -> int:
    """The door."""
    parser = CommandParser("python -m launch queue", PURPOSE, usage=argparse.SUPPRESS)
    parser.add_argument("what", nargs="?", metavar="FILE", default="start", help=argparse.SUPPRESS)
    place = argv.index("add") + 1 if "add" in argv else len(argv)  # what follows are words of a command
    parser.add_argument("--slurm", action="append", help=argparse.SUPPRESS)
    options, words = parser.parse_args(argv[:place]), argv[place:]
    if options.slurm:
        raise UserError(
            "--slurm has no effect on the queue of this machine: python -m launch sweep FILE --slurm NAME=VALUE "
            "submits a file of runs to Slurm."
        )
    what, logs = options.what, Path(options.logs_dir).absolute()
    if what == "work":
        return work(logs)
    if what == "status":
        show(logs)
    elif what == "stop":
        stop(logs)
    elif what == "start":
        start(logs)
        show(logs)
    elif what == "add":
        if not words:
            raise UserError("add is not followed by a command: python -m launch queue add python train_model.py FLAGS.")
        add_commands(logs, [(1, words)], "")
        start(logs)
    elif Path(what).suffix.lower() in (".yaml", ".yml", ".csv"):
        from launch.sweep import sweep

        return sweep([what, "--cluster", "local", "--logs_dir", str(logs)])
    else:
        add_commands(logs, read_commands(Path(what)), "line {}: ")
        start(logs)
    return 0


# -- adding ----------------------------------------------------------------------------------------------------------


def read_commands(path: Path) -> list[tuple[int, list[str]]]:
    """The commands of a file, with the numbers of their lines; quotes as in a shell, and # begins a remark."""
    try:
        lines = path.read_text().split("\n")
    except FileNotFoundError:
        raise UserError(
            f"FILE is {str(path)!r}: there is no such file; give a file of commands, or add, status, start or stop."
        ) from None
    except UnicodeError:
        raise UserError(f"FILE is {str(path)!r}: it is not a UTF-8 text; write a command a line.") from None
    except OSError as error:
        raise UserError(f"FILE is {str(path)!r}: it cannot be read ({error.strerror}).") from None
    found, problems = [], []
    for number, line in enumerate(lines, 1):
        try:
            if words := shlex.split(line, comments=True):
                found.append((number, words))
        except ValueError as problem:
            problems.append(f"line {number}: {shown(line)} has {str(problem).lower()}: correct it.")
    if problems:
        raise SettingsError(problems)
    if not found:
        raise UserError(f"FILE is {str(path)!r}: it has no commands; write one a line.")
    return found


def add_commands(logs: Path, commands: Sequence[tuple[int, list[str]]], place: str) -> None:
    """All of them, or none when one of them is wrong. place: how a problem says where it is."""
    ready = []
    problems = []
    for number, words in commands:
        try:
            ready.append(judged(words))
        except UserError as error:
            problems += [place.format(number) + line for line in str(error).split("\n")]
    if problems:
        raise SettingsError(problems)
    entries: list[dict[str, Any]] = []
    for words, order in ready:
        entry: dict[str, Any] = {"words": words, "title": shlex.join(words)}
        if order is not None:
            config, write_script = checked(order)
            run = make_capsule(order, config, write_script).path
            entry = {"words": ["bash", str(run / "job_script.slurm")], "title": run.name, "run": str(run)}
        entries.append(entry)
    add(logs, entries)
    print(f"{len(entries)} {'job is' if len(entries) == 1 else 'jobs are'} in the queue")


def judged(words: list[str]) -> tuple[list[str], Order | None]:
    """A command that can be run; one of train_model.py as an order to keep and run it."""
    if words[0] in ("python", "python3"):
        words = [sys.executable, *words[1:]]
    if shutil.which(words[0], path=os.environ.get("PATH")) is None:
        raise UserError(
            f"{shown(words[0])} is no program of this machine: write a command, such as python train_model.py."
        )
    if words[:1] != [sys.executable] or words[1:2] != ["train_model.py"]:
        return words, None
    order = Order(["python", *words[1:]], None, USUAL, words[2:], False)
    checked(order)
    return words, order


def add_runs(logs: Path, runs: Sequence[Path], evaluate: bool) -> int:
    """Put runs that are kept already into the queue; how many jobs that makes."""
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
    desk = logs / "queue"
    try:
        desk.mkdir(parents=True, exist_ok=True)
        with locked(desk / "adding.lock"):
            first = max((job.number for job in jobs(logs)), default=0) + 1
            for number, entry in enumerate(entries, first):
                write_json(desk / f"{number:06}.json", {**entry, "state": "waiting"})
    except OSError as error:
        raise UserError(f"{shown(str(desk))} cannot be written to ({error.strerror}): nothing was added.") from None


# -- starting, stopping, looking -------------------------------------------------------------------------------------


def start(logs: Path) -> None:
    """Start the process that works through the queue, unless it runs or there is nothing to do."""
    if not any(job.state in OPEN for job in jobs(logs)):
        print("the queue is empty")
        return
    if (process := worker(logs)) is None:
        with open(logs / "queue" / "worker.log", "ab") as log:
            begun = subprocess.Popen(
                [sys.executable, "-m", "launch", "queue", "--logs_dir", str(logs), "work"],
                cwd=ROOT,
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        process = begun.pid
    print(f"the queue runs in the background (process {process})")


def stop(logs: Path) -> None:
    process = worker(logs)
    if process is None:
        print("the queue does not run")
        return
    os.kill(process, signal.SIGTERM)
    print("told to stop; the job that runs saves its state first", flush=True)
    deadline = time.monotonic() + PATIENCE
    while worker(logs) is not None and time.monotonic() < deadline:
        time.sleep(0.1)
    left = sum(job.state in OPEN for job in jobs(logs))
    if worker(logs) is None:
        print(f"stopped; {left} jobs are left, and python -m launch queue goes on with them")
    else:
        print("it still saves; python -m launch queue status shows when it is done")


def show(logs: Path) -> None:
    """A line a job."""
    found = jobs(logs)
    if not found:
        print("the queue is empty: python -m launch queue FILE adds the jobs of a file")
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(console.width, WIDTH))
    table = Table(box=None, pad_edge=False)
    for heading in ("job", "what", "state", "took", "log"):
        table.add_column(heading, justify="right" if heading in ("job", "took") else "left", overflow="fold")
    for job in found:
        begun, ended = job.record.get("start"), job.record.get("end")
        took = duration((ended or time.time()) - begun) if begun and (ended or job.state == "running") else ""
        error = f": {job.record['error']}" if job.record.get("error") else ""
        log = os.path.relpath(job.log) if job.log.exists() else ""
        table.add_row(str(job.number), Text(shown(job.record.get("title"))), Text(job.state + error), took, Text(log))
    console.print(table)
    process = worker(logs)
    if process is not None:
        print(f"the queue runs (process {process})")
    elif any(job.state in OPEN for job in found):
        print("the queue does not run: python -m launch queue goes on with what is left")
