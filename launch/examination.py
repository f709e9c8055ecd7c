"""The doctor's job: what it asks Slurm and the nodes for, and what the answers mean."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from core.environment import clean_environment
from core.errors import UserError
from launch.execute import ROOT
from launch.finding import Finding, judged
from launch.machine import memory_and_files, network, port
from launch.rehearse import active_environment
from launch.script import Header, commands_of, options_of, read_text, slurm_quoted
from launch.slurm import GONE, ask
from launch.submit import complaint
from runs.causes import ask_slurm, seconds
from runs.lock import Lock
from runs.notice import kill_wait, settings

DAY = 86400


def probe(logs: Path, header: Header) -> tuple[list[Finding], dict[str, Any]]:
    """What a job of a minute finds, and what goes into a header."""
    desk = Path(tempfile.mkdtemp(prefix="doctor_", dir=logs))
    job, lock = "", Lock(desk / "lock")
    try:
        lock.acquire()
        job = submit(desk, header)
        return examine(Patient(job, desk))
    finally:
        lock.release()
        if job:
            ask("scancel", job, patience=60)
        shutil.rmtree(desk, ignore_errors=True)


def submit(desk: Path, header: Header) -> str:
    """The number of the probe job: it starts its processes, and lives on for a while after them."""
    usual = options_of(read_text(ROOT / "job_scripts" / "train.slurm", "JOB_SCRIPT"))
    lines = ["#!/usr/bin/env bash", *usual, *header.options, "#SBATCH --job-name=doctor", "#SBATCH --time=5"]
    lines += ["#SBATCH --requeue", "#SBATCH --open-mode=append", "#SBATCH --signal=USR1@60"]
    lines += [f'#SBATCH --output="{slurm_quoted(str(desk))}/log"', "set -uo pipefail"]
    lines += ["trap : TERM USR1", f"cd -- {shlex.quote(str(ROOT))} || exit", "source job_scripts/environment.sh"]
    lines += [*commands_of(header), *active_environment(ROOT)]
    lines += ["unset SLURM_CPU_BIND SLURM_EXPORT_ENV", f"desk={shlex.quote(str(desk))}"]
    # What srun inherits by itself is asked first, in a step of its own.
    lines += ['srun bash -c \'env -u OMP_NUM_THREADS nproc > "$0/inherited-$SLURM_PROCID"\' "$desk"']
    lines += ["export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}"]
    lines += ['srun ${EBT_SRUN:-} "${python:?}" -m launch.probe "$desk" & step=$!']
    lines += ["until wait $step; ! kill -0 $step 2>/dev/null; do :; done", 'touch "$desk/over"', "sleep 120"]
    script = desk / "doctor.slurm"
    script.write_text("\n".join(lines) + "\n")
    words = ["sbatch", "--parsable", "--export=ALL", str(script)]
    done = subprocess.run(words, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise UserError(f"{complaint('sbatch', done.stderr)}.")
    return done.stdout.strip().splitlines()[-1].partition(";")[0]


class Patient:
    """The probe job, looked at from here."""

    def __init__(self, job: str, desk: Path) -> None:
        self.job, self.desk = job, desk
        self.console = Console(stderr=True)

    def shown(self) -> dict[str, str]:
        return ask_slurm("job", self.job)

    def wait(self, what: str, condition: Callable[[], bool], patience: float) -> bool:
        """Whether it came to be; a job that waits in the queue is waited for."""
        deadline = time.monotonic() + patience
        with self.console.status(f"job {self.job}: {what} …"):
            while not condition():
                state = self.shown().get("JobState", "")
                if state == "PENDING":
                    deadline = time.monotonic() + patience
                if state in GONE or time.monotonic() > deadline:
                    return condition()
                time.sleep(0.5)
        return True

    def processes(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_bytes()) for file in sorted(self.desk.glob("process-*.json"))]

    def log(self) -> str:
        try:
            return (self.desk / "log").read_text(errors="replace").strip()
        except OSError:
            return ""


def examine(patient: Patient) -> tuple[list[Finding], dict[str, Any]]:
    """The checklist of the job, in the order in which things happen to it."""
    tasks = int(patient.shown().get("NumTasks") or 1)
    patience = 120.0 if tasks == 1 else 300.0  # several find one another first
    if not patient.wait("its processes start", lambda: len(patient.processes()) >= tasks, patience):
        said = patient.log().splitlines()[-1:] or [f"the job is {patient.shown().get('JobState', 'gone')}"]
        return [Finding("job", "fails", f"its processes did not start ({said[0]})", "see the header and SBATCH_*")], {}
    fields, config = patient.shown(), settings()
    sent = time.time()
    ask("scancel", "--signal=USR1", patient.job, patience=60)
    told = patient.wait("signals reach them", lambda: all(p["told"] for p in patient.processes()), 30)
    processes = patient.processes()
    outlived = patient.wait("its script outlives them", (patient.desk / "over").exists, 20)
    partition = ask_slurm("partition", fields.get("Partition", ""))
    findings = [
        Finding("job", "ok", f"{patient.job} on {fields.get('NodeList')}, partition {fields.get('Partition')}"),
        signals(processes, told, sent, outlived),
        grace(partition, config),
        requeue(patient),
        cores(patient, processes),
        *memory_and_files(processes),
        network(processes),
        *([port(processes)] if len(processes) > 1 or processes[0]["port"][0] else []),
        seen_from_nodes(processes),
        environment(processes),
        accounting(config),
        Finding("array limit", "ok", f"tasks are numbered below {config.get('MaxArraySize', '?')}"),
    ]
    learned = {
        "partition": fields.get("Partition"),
        "cores": fields.get("CPUs/Task"),
        "requeue": findings[3].verdict == "ok",
        "time": min(DAY, seconds(partition.get("MaxTime", ""))),
        "account": os.environ.get("SBATCH_ACCOUNT"),
        "tasks": tasks // int(fields.get("NumNodes") or 1),
        "nodes": fields.get("NumNodes"),
        "gpus": gpus(fields.get("Partition", "")),
    }
    return findings, learned


def signals(processes: list[dict[str, Any]], told: bool, sent: float, outlived: bool) -> Finding:
    if not told:
        missed = sum(not process["told"] for process in processes)
        found = f"{missed} of {len(processes)} processes were not told"
        return Finding("signals", "fails", found, "runs cannot save ahead of a limit; --checkpoint_every_n_steps does")
    if not outlived:
        advice = "the script cannot queue its job again: submit it with --resume_training_ckpt last"
        return Finding("signals", "fails", "they end the job's script too", advice)
    late = max(process["told"] - sent for process in processes)
    count = "1 process" if len(processes) == 1 else f"all {len(processes)} processes"
    return Finding("signals", "ok", f"reach {count} within {max(0.1, late):.1f} s; the script outlives them")


def grace(partition: dict[str, str], config: dict[str, str]) -> Finding:
    wait = kill_wait(config)
    if partition.get("PreemptMode", "OFF") == "OFF":
        return Finding("preemption", "ok", f"jobs of this partition stay; a cancelled one has {wait} s")
    if partition["PreemptMode"] == "CANCEL":
        found = (
            f"cancel, with {partition.get('GraceTime', 0)} + {wait} s of notice: Slurm does not bring such a job back"
        )
        again = (
            "its script asks Slurm to where there is a notice; otherwise python -m launch requeue RUN brings it back"
        )
        return Finding("preemption", "look", found, again)
    seconds_left = int(partition.get("GraceTime") or 0) + wait
    found = (
        f"{partition['PreemptMode'].lower()}, with {partition.get('GraceTime', 0)} + {wait} s between notice and end"
    )
    short = "a checkpoint has to be written in half of that, or runs save by the clock"
    return Finding("preemption", "ok" if seconds_left >= 30 else "look", found, short)


def requeue(patient: Patient) -> Finding:
    """Whether a job may be put back into the queue, by doing so."""
    _, problem = ask("scontrol", "requeue", patient.job, patience=60)
    again = not problem and patient.wait("it is queued again", lambda: patient.shown().get("Restarts") == "1", 30)
    no = problem.partition(": states are")[0] or "the job was not queued again"
    advice = "after a time limit, submit again with --resume_training_ckpt last"
    return judged("requeue", again, "allowed, and the job keeps its number", no, advice)


def cores(patient: Patient, processes: list[dict[str, Any]]) -> Finding:
    """CPUs that were asked for, that processes are bound to, and that they use."""
    inherited = [int(file.read_text()) for file in patient.desk.glob("inherited-*")]
    asked, bound = processes[0]["asked"], min(process["cores"] for process in processes)
    used, threads = min(process["own"] for process in processes), processes[0]["threads"]
    inherits = "srun inherits them" if inherited and min(inherited) >= asked else "srun is told, as it inherits fewer"
    where = f"bound to {bound}" if bound <= asked else f"not bound (to {bound} of the node)"
    words = f"{asked} asked for, {where}, {threads or used} used by each process; {inherits}"
    if used < asked:
        return Finding("CPUs", "fails", words, "see --cpus-per-task, and TaskPlugin of the site")
    too_many = threads is not None and threads.isdecimal() and int(threads) > asked
    return Finding("CPUs", "look" if too_many else "ok", words, f"OMP_NUM_THREADS is {threads}; leave it out")


def seen_from_nodes(processes: list[dict[str, Any]]) -> Finding:
    no_lock = [process["host"] for process in processes if not process["is_locked"]]
    not_whole = [process["host"] for process in processes if not process["renames"]]
    if no_lock:
        found = f"a lock of this machine is not seen on {no_lock[0]}"
        return Finding("files of nodes", "look", found, "two jobs on different nodes could write into one run")
    yes = "locks and renames of the log folder hold between this machine and the nodes"
    advice = "put --logs_dir on another file system"
    return judged("files of nodes", not not_whole, yes, f"a rename on {not_whole[:1]} is not whole", advice)


def environment(processes: list[dict[str, Any]]) -> Finding:
    if words := processes[0]["words"]:
        return Finding("Python of jobs", "ok", f"what the header says: {words}")
    other = [process for process in processes if process["python"] != sys.prefix]
    no = f"jobs run {other[0]['python']} and this is {sys.prefix}" if other else ""
    return judged("Python of jobs", not other, "the same as here", no, "activate the environment before submitting")


def accounting(config: dict[str, str]) -> Finding:
    """Everything works without it."""
    _, problem = ask("sacct", "--noheader", "--allocations", "--format=JobID", patience=20)
    if problem or config.get("AccountingStorageType", "").endswith("none"):
        return Finding("accounting", "ok", "none (sacct does not answer); nothing here needs it")
    return Finding("accounting", "ok", "sacct answers")


def gpus(partition: str) -> str | None:
    """How the partition's GPUs are asked for, such as gpu:a100:4."""
    said, _ = ask("sinfo", "--noheader", f"--partition={partition}", "--format=%G", patience=20)
    found = re.search(r"gpu:[\w.:-]+", said)
    return found[0].partition("(")[0] if found else None
