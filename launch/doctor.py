"""`python -m launch doctor`: what this cluster does to jobs, found out by asking it and by one small job."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from core.commands import CommandParser
from core.errors import UserError
from core.text import shown
from launch.cluster import choose_cluster, header_for
from launch.examination import probe
from launch.execute import ROOT
from launch.finding import Finding, judged
from launch.machine import facts, memory_and_files, space
from launch.probe import is_locked, renames
from launch.rehearse import active_environment
from launch.script import HEADERS, Header

HERE = Path(__file__).resolve().parent.parent  # where `runs` is imported from
COLOURS = {"ok": "green", "look": "yellow", "fails": "red"}
LEAD = 120  # seconds of warning ahead of a time limit


def doctor(argv: list[str]) -> int:
    """The command; 1 if something fails."""
    parser = CommandParser("python -m launch doctor", "Find out in a minute what this cluster does to jobs.")
    parser.add_argument("--header", metavar="NAME", help="ask Slurm for what job_scripts/headers/NAME.slurm says")
    parser.add_argument(
        "--header_out", metavar="NAME", help="write what was learned to job_scripts/headers/NAME.slurm, for submissions"
    )
    options = parser.parse_args(argv)
    out = header_path(options.header_out)
    header = asked_header(options.header)
    if out is not None and header is None:
        raise UserError(f"--header_out is {options.header_out!r}: without Slurm there is nothing to put into a header.")
    logs = Path(options.logs_dir).absolute()
    findings = [*files(logs), space("home", Path.home()), python()]
    if header is None:
        findings += memory_and_files([facts()])
    else:
        job, learned = probe(logs, header)
        findings += job
        if out is not None and learned:
            out.write_text(header_text(learned))
    Console().print(checklist(findings))
    if header is None:
        print("There is no Slurm here: signals, requeueing, nodes and accounting were not looked at.")
    if out is not None and out.exists():
        print(f"wrote {shown(os.path.relpath(out))}: bash slurm_executor.sh {out.stem} JOB_SCRIPT takes it")
    return int(any(finding.verdict == "fails" for finding in findings))


def asked_header(name: str | None) -> Header | None:
    """What to ask Slurm for; None where there is no Slurm."""
    if choose_cluster("auto") == "slurm":
        return header_for(name, "slurm")
    if name is not None:
        raise UserError(f"--header is {name!r}: there is no Slurm here that could be asked for it; leave it out.")
    return None


def header_path(name: str | None) -> Path | None:
    """Where a header of this name goes; nobody's is overwritten."""
    if name is None:
        return None
    if not re.fullmatch(r"\w[\w-]*", name):
        raise UserError(f"--header_out is {name!r}: give a name of letters, digits, _ and -, without .slurm.")
    path = ROOT / HEADERS / f"{name}.slurm"
    if path.exists():
        raise UserError(f"--header_out is {name!r}: {HEADERS}/{name}.slurm exists; choose another name, or remove it.")
    return path


def checklist(findings: list[Finding]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        words = finding.found + (f": {finding.advice}" if finding.advice and finding.verdict != "ok" else "")
        table.add_row(Text(finding.verdict, COLOURS[finding.verdict]), finding.what, Text(shown(words)))
    return table


def files(logs: Path) -> list[Finding]:
    """The log folder, its locks and renames, and the space that is left, as this machine sees them."""
    try:
        logs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="doctor_", dir=logs) as folder:
            lock = Path(folder) / "lock"
            words = [sys.executable, "-c", HOLD, str(lock)]
            holder = subprocess.Popen(words, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert holder.stdout is not None
            by_file = holder.stdout.read(1) == b"f"  # it has the lock
            kept = is_locked(lock)
            holder.kill()
            holder.communicate()
            freed = not is_locked(lock)
            whole = renames(Path(folder), "renamed")
    except OSError as error:
        advice = "choose a folder that you can write to, with --logs_dir"
        return [Finding("log folder", "fails", f"{logs} cannot be written to ({error.strerror})", advice)]
    by_files = "none of this file system; files that name their process stand for them, and are respected"
    no_lock = "two processes could write into one run; put --logs_dir on another file system"
    return [
        Finding("log folder", "ok", str(logs)),
        Finding("locks", "look", by_files, "ask the site to mount it with flock, or put --logs_dir on another")
        if by_file and kept and freed
        else judged("locks", kept and freed, "respected, and freed when their process dies", "not respected", no_lock),
        judged("renames", whole, "whole or not at all", "not whole", "a checkpoint could be lost; use another disk"),
        space("disk", logs),
    ]


HOLD = """\
import pathlib, sys, time
from runs.lock import Lock
lock = Lock(pathlib.Path(sys.argv[1]))
lock.acquire()
print("f" if lock.is_by_file else "k", end="", flush=True)
time.sleep(60)
"""


def python() -> Finding:
    lines = active_environment(ROOT)
    if lines:
        return Finding("Python", "ok", f"{sys.version.split()[0]} in {sys.prefix}")
    return Finding(
        "Python", "look", f"{sys.executable}, in no environment", "activate the one that jobs should be run with"
    )


def header_text(learned: dict[str, Any]) -> str:
    """A header with what was learned; every line says what it is for."""
    limit = int(learned["time"])
    clock = f"{limit // 3600:02}:{limit % 3600 // 60:02}:{limit % 60:02}"
    lead = max(1, min(LEAD, limit // 4))
    lines = ["# shellcheck shell=bash", "# What `python -m launch doctor` learned of this cluster."]
    lines += ["# Where jobs go: `sinfo` lists the partitions.", f"#SBATCH --partition={learned['partition']}"]
    if learned["account"]:
        lines += ["# Who pays.", f"#SBATCH --account={learned['account']}"]
    lines += ["# How many machines.", f"#SBATCH --nodes={learned['nodes']}"]
    lines += ["# Processes on each machine: as many as GPUs, or one.", f"#SBATCH --ntasks-per-node={learned['tasks']}"]
    if learned["gpus"]:
        lines += ["# GPUs of each machine: remove one # to ask for them.", f"##SBATCH --gres={learned['gpus']}"]
    lines += ["# CPU cores for each process.", f"#SBATCH --cpus-per-task={learned['cores']}"]
    lines += ["# How long it may run at a time; it goes on in the next attempt.", f"#SBATCH --time={clock}"]
    lines += ["# How many seconds before that limit it is told to save its state.", f"#SBATCH --signal=USR1@{lead}"]
    if learned["requeue"]:
        lines += ["# It may be put back into the queue.", "#SBATCH --requeue"]
    else:
        lines += ["# This cluster does not put jobs back into the queue.", "#SBATCH --no-requeue"]
    return "\n".join(lines) + "\n"
