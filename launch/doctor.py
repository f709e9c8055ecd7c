"""`python -m launch doctor`: what this cluster does to jobs, by checks here, Slurm's settings and a probe job."""

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
from rich.table import Table
from rich.text import Text

from core.commands import CommandParser
from core.environment import SRUN
from core.errors import UserError
from core.text import format_value
from launch.probe import (
    Finding,
    check_memory_and_files,
    check_network,
    check_port,
    check_space,
    is_locked,
    is_rename_whole,
    machine_facts,
    pass_or_fail,
)
from launch.script import (
    HEADERS,
    ROOT,
    Header,
    JobScript,
    active_environment,
    header_commands,
    quote_for_slurm,
    read_text,
    sbatch_lines,
    sbatch_options,
)
from launch.slurm import OVER, choose_cluster, header_for
from launch.submission import sbatch
from runs.lock import Lock
from runs.slurm import kill_wait, parse_duration, run_slurm, scontrol_show, slurm_config

HEADER_DIR = ROOT / HEADERS
COLOURS = {"ok": "green", "look": "yellow", "fails": "red"}
WARNING_SECONDS = 120  # before a time limit
DAY = 86400


def doctor(argv: list[str], header_dir: Path = HEADER_DIR) -> int:
    """The command; 1 if something fails. header_dir: where --header_out writes."""
    parser = CommandParser("python -m launch doctor", "Find out in a minute what this cluster does to jobs.")
    parser.add_argument("--header", metavar="NAME", help="ask Slurm for what job_scripts/headers/NAME.slurm says")
    parser.add_argument(
        "--header_out", metavar="NAME", help="write what was learned to job_scripts/headers/NAME.slurm, for submissions"
    )
    options = parser.parse_args(argv)
    out = header_path(options.header_out, header_dir)
    header = slurm_header(options.header)
    if out is not None and header is None:
        raise UserError(f"--header_out is {options.header_out!r}: without Slurm there is nothing to put into a header.")
    logs = Path(options.logs_dir).absolute()
    findings = [*check_files(logs), check_space("home", Path.home()), check_python()]
    if header is None:
        findings += check_memory_and_files([machine_facts()])
    else:
        job_findings, header_values = run_probe(logs, header)
        findings += job_findings
        if out is not None and header_values:
            out.write_text(header_text(header_values))
    Console().print(checklist(findings))
    if header is None:
        print("There is no Slurm here: signals, requeueing, nodes and accounting were not checked.")
    if out is not None and out.exists():
        print(f"wrote {format_value(os.path.relpath(out))}: bash slurm_executor.sh {out.stem} JOB_SCRIPT takes it")
    return int(any(finding.verdict == "fails" for finding in findings))


def slurm_header(name: str | None) -> Header | None:
    """The header for the probe job; None without Slurm."""
    if choose_cluster("auto") == "slurm":
        return header_for(name, "slurm")
    if name is not None:
        raise UserError(f"--header is {name!r}: there is no Slurm here that could be asked for it; leave it out.")
    return None


def header_path(name: str | None, header_dir: Path) -> Path | None:
    """The path of a new header; an existing one is not overwritten."""
    if name is None:
        return None
    if not re.fullmatch(r"\w[\w-]*", name):
        raise UserError(f"--header_out is {name!r}: give a name of letters, digits, _ and -, without .slurm.")
    path = header_dir / f"{name}.slurm"
    if path.exists():
        raise UserError(f"--header_out is {name!r}: {HEADERS}/{name}.slurm exists; choose another name, or remove it.")
    return path


def checklist(findings: list[Finding]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        text = finding.message + (f": {finding.advice}" if finding.advice and finding.verdict != "ok" else "")
        table.add_row(Text(finding.verdict, COLOURS[finding.verdict]), finding.name, Text(format_value(text)))
    return table


def check_files(logs: Path) -> list[Finding]:
    """The log folder, its locks and renames, and the free space, as seen from this machine."""
    try:
        logs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="doctor_", dir=logs) as folder:
            lock = Path(folder) / "lock"
            words = [sys.executable, "-c", HOLD_LOCK, str(lock)]
            holder = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert holder.stdout is not None
            is_by_file = holder.stdout.read(1) == b"f"  # once it has the lock
            is_respected = is_locked(lock)
            holder.kill()
            holder.communicate()
            is_freed = not is_locked(lock)
            is_whole = is_rename_whole(Path(folder), "renamed")
    except OSError as error:
        advice = "choose a folder that you can write to, with --logs_dir"
        return [Finding("log folder", "fails", f"{logs} cannot be written to ({error.strerror})", advice)]
    by_files = "none of this file system; files that name their process are used instead, and are respected"
    no_lock = "two processes could write into one run; put --logs_dir on another file system"
    return [
        Finding("log folder", "ok", str(logs)),
        Finding("locks", "look", by_files, "ask the site to mount it with flock, or put --logs_dir on another")
        if is_by_file and is_respected and is_freed
        else pass_or_fail(
            "locks", is_respected and is_freed, "respected, and freed when their process dies", "not respected", no_lock
        ),
        pass_or_fail(
            "renames", is_whole, "whole or not at all", "not whole", "a checkpoint could be lost; use another disk"
        ),
        check_space("disk", logs),
    ]


HOLD_LOCK = """\
import pathlib, sys, time
from runs.lock import Lock
lock = Lock(pathlib.Path(sys.argv[1]))
lock.acquire()
print("f" if lock.is_by_file else "k", end="", flush=True)
time.sleep(60)
"""


def check_python() -> Finding:
    lines = active_environment(ROOT)
    if lines:
        return Finding("Python", "ok", f"{sys.version.split()[0]} in {sys.prefix}")
    return Finding(
        "Python", "look", f"{sys.executable}, in no environment", "activate the one that jobs should be run with"
    )


def header_text(values: dict[str, Any]) -> str:
    """A header with what was learned; every option has a comment."""
    limit = int(values["time"])
    clock = f"{limit // 3600:02}:{limit % 3600 // 60:02}:{limit % 60:02}"
    lead = max(1, min(WARNING_SECONDS, limit // 4))
    lines = ["# shellcheck shell=bash", "# What `python -m launch doctor` learned of this cluster."]
    lines += ["# Where jobs go: `sinfo` lists the partitions.", f"#SBATCH --partition={values['partition']}"]
    if values["account"]:
        lines += ["# Who pays.", f"#SBATCH --account={values['account']}"]
    lines += ["# How many machines.", f"#SBATCH --nodes={values['nodes']}"]
    lines += ["# Processes on each machine: as many as GPUs, or one.", f"#SBATCH --ntasks-per-node={values['tasks']}"]
    if values["gpus"]:
        lines += ["# GPUs of each machine: remove one # to ask for them.", f"##SBATCH --gres={values['gpus']}"]
    lines += ["# CPU cores for each process.", f"#SBATCH --cpus-per-task={values['cores']}"]
    lines += ["# How long it may run at a time; it resumes in the next attempt.", f"#SBATCH --time={clock}"]
    lines += [
        "# How many seconds before that limit it gets a signal to save its state.",
        f"#SBATCH --signal=USR1@{lead}",
    ]
    if values["requeue"]:
        lines += ["# It may be put back into the queue.", "#SBATCH --requeue"]
    else:
        lines += ["# This cluster does not put jobs back into the queue.", "#SBATCH --no-requeue"]
    return "\n".join(lines) + "\n"


# -- the probe job ---------------------------------------------------------------------------------------------------


def run_probe(logs: Path, header: Header) -> tuple[list[Finding], dict[str, Any]]:
    """The findings of a short job, and the values for a header."""
    work_dir = Path(tempfile.mkdtemp(prefix="doctor_", dir=logs))
    job, lock = "", Lock(work_dir / "lock")
    try:
        lock.acquire()
        job = submit_probe(work_dir, header)
        return examine(ProbeJob(job, work_dir))
    finally:
        lock.release()
        if job:
            run_slurm("scancel", job, timeout=60)
        shutil.rmtree(work_dir, ignore_errors=True)


def submit_probe(work_dir: Path, header: Header) -> str:
    """Submit the probe job; its number. Its script outlives its processes by two minutes."""
    defaults = sbatch_lines(read_text(ROOT / "job_scripts" / "train.slurm", "JOB_SCRIPT"))
    own = ("--job-name=doctor", "--time=5", "--requeue", "--open-mode=append", "--signal=USR1@60")
    output = f'--output="{quote_for_slurm(str(work_dir))}/log"'
    options = [("", defaults), ("", header.options), sbatch_options(*own, output)]
    lines = [
        "set -uo pipefail",
        "trap : TERM USR1",
        f"cd -- {shlex.quote(str(ROOT))} || exit",
        "source job_scripts/environment.sh",
    ]
    lines += [*header_commands(header), *active_environment(ROOT)]
    lines += ["unset SLURM_CPU_BIND SLURM_EXPORT_ENV", f"work_dir={shlex.quote(str(work_dir))}"]
    # First, in its own step: the CPUs that srun inherits without SRUN_CPUS_PER_TASK.
    lines += ['srun bash -c \'env -u OMP_NUM_THREADS nproc > "$0/inherited-$SLURM_PROCID"\' "$work_dir"']
    lines += ["export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}"]
    lines += [f'srun ${{{SRUN}:-}} "${{python:?}}" -m launch.probe "$work_dir" & step=$!']
    lines += ["until wait $step; ! kill -0 $step 2>/dev/null; do :; done", 'touch "$work_dir/over"', "sleep 120"]
    script = work_dir / "doctor.slurm"
    script.write_text(JobScript(options, lines).text)
    return sbatch([str(script)], ROOT)


class ProbeJob:
    """The probe job as seen from here."""

    def __init__(self, job: str, work_dir: Path) -> None:
        self.job, self.work_dir = job, work_dir
        self.console = Console(stderr=True)

    def fields(self) -> dict[str, str]:
        return scontrol_show("job", self.job)

    def wait(self, what: str, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait for a condition; whether it came true. The time in the queue does not count."""
        deadline = time.monotonic() + timeout
        with self.console.status(f"job {self.job}: {what} …"):
            while not condition():
                state = self.fields().get("JobState", "")
                if state == "PENDING":
                    deadline = time.monotonic() + timeout
                if state in OVER or time.monotonic() > deadline:
                    return condition()
                time.sleep(0.5)
        return True

    def processes(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_bytes()) for file in sorted(self.work_dir.glob("process-*.json"))]

    def log(self) -> str:
        try:
            return (self.work_dir / "log").read_text(errors="replace").strip()
        except OSError:
            return ""


def examine(probe_job: ProbeJob) -> tuple[list[Finding], dict[str, Any]]:
    """The findings of the job, in the order of events, and the values for a header."""
    tasks = int(probe_job.fields().get("NumTasks") or 1)
    timeout = 120.0 if tasks == 1 else 300.0  # several processes connect first
    if not probe_job.wait("its processes start", lambda: len(probe_job.processes()) >= tasks, timeout):
        last_line = probe_job.log().splitlines()[-1:] or [f"the job is {probe_job.fields().get('JobState', 'gone')}"]
        return [
            Finding("job", "fails", f"its processes did not start ({last_line[0]})", "see the header and SBATCH_*")
        ], {}
    fields, config = probe_job.fields(), slurm_config()
    sent_at = time.time()
    run_slurm("scancel", "--signal=USR1", probe_job.job, timeout=60)
    all_signalled = probe_job.wait(
        "signals reach them", lambda: all(p["signal_time"] for p in probe_job.processes()), 30
    )
    processes = probe_job.processes()
    script_lives = probe_job.wait("its script outlives them", (probe_job.work_dir / "over").exists, 20)
    partition = scontrol_show("partition", fields.get("Partition", ""))
    findings = [
        Finding("job", "ok", f"{probe_job.job} on {fields.get('NodeList')}, partition {fields.get('Partition')}"),
        check_signals(processes, all_signalled, sent_at, script_lives),
        check_preemption(partition, config),
        check_requeue(probe_job),
        check_cpus(probe_job, processes),
        *check_memory_and_files(processes),
        check_network(processes),
        *([check_port(processes)] if len(processes) > 1 or processes[0]["port"][0] else []),
        check_files_of_nodes(processes),
        check_python_of_jobs(processes),
        check_accounting(config),
        Finding("array limit", "ok", f"tasks are numbered below {config.get('MaxArraySize', '?')}"),
    ]
    header_values = {
        "partition": fields.get("Partition"),
        "cores": fields.get("CPUs/Task"),
        "requeue": findings[3].verdict == "ok",
        "time": min(DAY, parse_duration(partition.get("MaxTime", ""))),
        "account": os.environ.get("SBATCH_ACCOUNT"),
        "tasks": tasks // int(fields.get("NumNodes") or 1),
        "nodes": fields.get("NumNodes"),
        "gpus": gpu_option(fields.get("Partition", "")),
    }
    return findings, header_values


def check_signals(processes: list[dict[str, Any]], all_signalled: bool, sent_at: float, script_lives: bool) -> Finding:
    """all_signalled: every process got the signal. script_lives: the job's script outlived its processes."""
    if not all_signalled:
        missed = sum(not process["signal_time"] for process in processes)
        message = f"{missed} of {len(processes)} processes got no signal"
        return Finding(
            "signals", "fails", message, "runs cannot save ahead of a limit; --checkpoint_every_n_steps does"
        )
    if not script_lives:
        advice = "the script cannot queue its job again: submit it with --resume_training_ckpt last"
        return Finding("signals", "fails", "they end the job's script too", advice)
    delay = max(process["signal_time"] - sent_at for process in processes)
    count = "1 process" if len(processes) == 1 else f"all {len(processes)} processes"
    return Finding("signals", "ok", f"reach {count} within {max(0.1, delay):.1f} s; the script outlives them")


def check_preemption(partition: dict[str, str], config: dict[str, str]) -> Finding:
    wait = kill_wait(config)
    if partition.get("PreemptMode", "OFF") == "OFF":
        return Finding("preemption", "ok", f"jobs of this partition stay; a cancelled one has {wait} s")
    if partition["PreemptMode"] == "CANCEL":
        message = (
            f"cancel, with {partition.get('GraceTime', 0)} + {wait} s of notice: Slurm does not bring such a job back"
        )
        advice = "with notice its script asks Slurm for that; otherwise python -m launch requeue RUN brings it back"
        return Finding("preemption", "look", message, advice)
    seconds_left = int(partition.get("GraceTime") or 0) + wait
    message = (
        f"{partition['PreemptMode'].lower()}, with {partition.get('GraceTime', 0)} + {wait} s between notice and end"
    )
    advice = "a checkpoint has to be written in half of that; otherwise runs save at intervals"
    return Finding("preemption", "ok" if seconds_left >= 30 else "look", message, advice)


def check_requeue(probe_job: ProbeJob) -> Finding:
    """Whether a job can be requeued, by doing so."""
    _, problem = run_slurm("scontrol", "requeue", probe_job.job, timeout=60)
    is_requeued = not problem and probe_job.wait(
        "it is queued again", lambda: probe_job.fields().get("Restarts") == "1", 30
    )
    bad = problem or "the job was not queued again"
    advice = "after a time limit, submit again with --resume_training_ckpt last"
    return pass_or_fail("requeue", is_requeued, "allowed, and the job keeps its number", bad, advice)


def check_cpus(probe_job: ProbeJob, processes: list[dict[str, Any]]) -> Finding:
    """CPUs that are requested, that processes are bound to, and that they use."""
    inherited = [int(file.read_text()) for file in probe_job.work_dir.glob("inherited-*")]
    requested, bound = processes[0]["requested_cpus"], min(process["bound_cpus"] for process in processes)
    used, threads = min(process["usable_cpus"] for process in processes), processes[0]["threads"]
    inherits = (
        "srun inherits them" if inherited and min(inherited) >= requested else "given to srun, which inherits fewer"
    )
    where = f"bound to {bound}" if bound <= requested else f"not bound (to {bound} of the node)"
    message = f"{requested} asked for, {where}, {threads or used} used by each process; {inherits}"
    if used < requested:
        return Finding("CPUs", "fails", message, "see --cpus-per-task, and TaskPlugin of the site")
    too_many = threads is not None and threads.isdecimal() and int(threads) > requested
    return Finding("CPUs", "look" if too_many else "ok", message, f"OMP_NUM_THREADS is {threads}; leave it out")


def check_files_of_nodes(processes: list[dict[str, Any]]) -> Finding:
    no_lock = [process["host"] for process in processes if not process["is_locked"]]
    not_whole = [process["host"] for process in processes if not process["is_rename_whole"]]
    if no_lock:
        message = f"a lock of this machine is not seen on {no_lock[0]}"
        return Finding("files of nodes", "look", message, "two jobs on different nodes could write into one run")
    good = "locks and renames of the log folder hold between this machine and the nodes"
    advice = "put --logs_dir on another file system"
    return pass_or_fail("files of nodes", not not_whole, good, f"a rename on {not_whole[:1]} is not whole", advice)


def check_python_of_jobs(processes: list[dict[str, Any]]) -> Finding:
    if command := processes[0]["python_command"]:
        return Finding("Python of jobs", "ok", f"what the header says: {command}")
    other = [process for process in processes if process["python"] != sys.prefix]
    bad = f"jobs run {other[0]['python']} and this is {sys.prefix}" if other else ""
    return pass_or_fail(
        "Python of jobs", not other, "the same as here", bad, "activate the environment before submitting"
    )


def check_accounting(config: dict[str, str]) -> Finding:
    """Whether there is accounting; nothing depends on it."""
    _, problem = run_slurm("sacct", "--noheader", "--allocations", "--format=JobID", timeout=20)
    if problem or config.get("AccountingStorageType", "").endswith("none"):
        return Finding("accounting", "ok", "none (sacct does not answer); nothing here needs it")
    return Finding("accounting", "ok", "sacct answers")


def gpu_option(partition: str) -> str | None:
    """The value of --gres for the partition's GPUs, such as gpu:a100:4."""
    output, _ = run_slurm("sinfo", "--noheader", f"--partition={partition}", "--format=%G", timeout=20)
    match = re.search(r"gpu:[\w.:-]+", output)
    return match[0].partition("(")[0] if match else None
