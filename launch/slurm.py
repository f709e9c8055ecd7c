"""Slurm's jobs and what they say about a run's state, and which cluster a command works on.

The jobs are read with one squeue, which also knows jobs that ended a few minutes ago; accounting is not needed.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from core.errors import UserError
from core.text import format_short_duration, format_value
from launch.resources import read_resources
from launch.script import DEFAULT_SCRIPT, ROOT, Header, read_header
from runs.attempts import KILLED, REFUSED
from runs.run import START_UP, Run, State, seconds_of
from runs.run import STATES as RUN_STATES
from runs.slurm import run_slurm, slurm_config

TIMEOUT_SECONDS = 5.0  # short, because a table should not wait for a controller that is down
FALLBACK = "states are as the run folders tell"  # if Slurm does not answer
SQUEUE_FIELDS = ("%i", "%T", "%r", "%N", "%P", "%S")
OVER = {  # Slurm's state of a job that is over -> the state of its run
    "CANCELLED": "cancelled",
    "FAILED": "failed",
    "BOOT_FAIL": "failed",
    "LAUNCH_FAILED": "failed",
    "DEADLINE": "failed",
    "TIMEOUT": "interrupted",
    "PREEMPTED": "interrupted",
    "NODE_FAIL": "killed",
    "OUT_OF_MEMORY": "out of memory",
    "COMPLETED": "interrupted",  # though its run is not finished
}
PENDING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
HELD = ("REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
NEVER_STARTS = ("BadConstraints", "DependencyNeverSatisfied")  # reasons of jobs that will never start
COMPLETING = ("COMPLETING", "SIGNALING", "STAGE_OUT")
CAUSE_STATES = ("interrupted", "failed", "killed")
END_CONDITIONS = {"finished": "is finished", "failed": "has failed"}  # what --if asks for, in words
SUSPENDED = ("SUSPENDED", "STOPPED")
ACTIVE = ("running", "silent", "starting", "suspended", "waiting", "queued again", "held")
JOB_STATES = {  # of runs whose job Slurm knows more of than their folder
    "starting": State(over=False, good=True, resumable=False, colour="green"),
    "suspended": State(over=False, good=True, resumable=False, colour="yellow"),
    "queued again": State(over=False, good=True, resumable=False, colour="yellow"),
    "held": State(over=False, good=True, resumable=False, colour="yellow"),
    "lost": State(over=True, good=False, resumable=True, colour="red"),
}
STATES = RUN_STATES | JOB_STATES
CLUSTERS = ("auto", "slurm", "local", "debug")
SLURM_HELP = "an option of sbatch that wins over the header: nodes=2, time=4:00:00, exclusive; may be repeated"
CONFIG_TIMEOUT_SECONDS = 30.0


# -- jobs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One job, or one task of an array (name: 17_3). start: its start time, or the expected one, as Slurm prints it."""

    name: str
    state: str
    reason: str
    nodes: str
    partition: str
    start: str

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def is_held(self) -> bool:
        """Slurm's reasons: JobHeldUser, JobHoldMaxRequeue, launch failed requeued held, job requeued in held state."""
        return self.state in HELD or self.reason.startswith("JobHold") or "held" in self.reason.lower()

    @property
    def expected(self) -> str:
        """The expected start; empty if Slurm has none, or a past time, as for unscheduled jobs."""
        return self.start if self.state in PENDING and not self.is_held and start_time(self) > time.time() else ""


@dataclass(frozen=True)
class SlurmJobs:
    """All jobs by name. problem: why Slurm could not be asked. time: when it was asked."""

    jobs: dict[str, Job] = field(default_factory=dict)
    problem: str = ""
    cluster: str = ""
    time: float = math.inf

    def job_of(self, run: Run) -> Job | None:
        """The run's job. Two clusters may share a file system and use the same job numbers."""
        other = str(run.job.get("cluster", ""))
        if self.cluster and other and other != self.cluster:
            return None
        return self.jobs.get(run.job_name or "")

    def covers(self, run: Run) -> bool:
        """Whether a job of this run that is not listed is certainly gone."""
        other = str(run.job.get("cluster", ""))
        return not self.problem and (not other or other == self.cluster)

    def is_older_than(self, run: Run) -> bool:
        """Whether the run was submitted, started or ended after Slurm was asked, so that its folder is more recent."""
        last = run.attempts[-1] if run.attempts else {}
        times = (run.submission.get("time"), last.get("start"), last.get("end"))
        return max(map(seconds_of, times)) > self.time


def jobs_of(runs: Iterable[Run], timeout: float = TIMEOUT_SECONDS) -> SlurmJobs:
    """The jobs of these runs' owners. Slurm is not asked if no run has a job. timeout: seconds of each call."""
    owners, clusters = set(), set()
    for run in runs:
        if run.job_name is not None:
            clusters.add(run.job.get("cluster"))
            try:
                owners.add(str(run.path.stat().st_uid))
            except OSError:
                owners.add(str(os.getuid()))
    if not owners:
        return SlurmJobs()
    squeue_time = time.time()
    everything = ("--noheader", "--array", "--all", "--states=all", f"--user={','.join(sorted(owners))}")
    output, problem = run_slurm("squeue", *everything, f"--format={'|'.join(SQUEUE_FIELDS)}", timeout=timeout)
    if problem:
        return SlurmJobs(problem=f"{problem}: {FALLBACK}", time=squeue_time)
    cluster = slurm_config(timeout).get("ClusterName", "") if clusters - {None} else ""
    return SlurmJobs(read_jobs(output), cluster=cluster, time=squeue_time)


def read_jobs(output: str) -> dict[str, Job]:
    """The jobs in squeue's output; malformed lines are skipped."""
    jobs = {}
    for line in output.split("\n"):
        words = [word.strip() for word in line.split("|")]
        if len(words) == len(SQUEUE_FIELDS) and words[0] and words[1]:
            jobs[words[0]] = Job(*words)
    return jobs


# -- the status of a run ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunStatus:
    """A run's state, details of it, its nodes, and the expected start as Slurm prints it."""

    state: str
    detail: str = ""
    nodes: str = ""
    expected: str = ""

    def __str__(self) -> str:
        between = " " if self.detail.startswith("for ") else ": "
        return f"{self.state}{between}{self.detail}" if self.detail else self.state


def status_of(run: Run, jobs: SlurmJobs, state: str = "") -> RunStatus:
    """The status of a run by its folder and by Slurm. state: that of the folder, if it was read already."""
    state = state or run.state
    last = run.attempts[-1] if run.attempts else {}
    nodes = str(last.get("nodes") or last.get("host") or "")
    if state == "finished" or jobs.is_older_than(run):
        return RunStatus(state, detail_of(run, state), nodes)
    job = jobs.job_of(run)
    if job is None:
        if state == "waiting" and run.job_name is not None and jobs.covers(run):
            return RunStatus("lost", "its job left the queue and recorded nothing")
        return RunStatus(state, detail_of(run, state), nodes)
    if job.state in PENDING:
        if job.is_held:
            return RunStatus("held", job.state if job.reason == "None" else job.reason)
        return RunStatus("queued again" if run.attempts else "waiting", pending_reason(run, job), expected=job.expected)
    nodes = job.nodes or nodes
    if job.state in SUSPENDED:
        return RunStatus("suspended", "", nodes)
    if job.is_over:
        if str(last.get("cause")).startswith(("crashed", KILLED)):  # more specific than Slurm's FAILED
            return RunStatus(state, detail_of(run, state), nodes)
        if state in ("waiting", "running", "silent", "killed", "interrupted", "prepared"):
            over = OVER[job.state]
            detail = "" if over == job.state.replace("_", " ").lower() else job.state
            return RunStatus(over, detail_of(run, state) if state == over else detail, nodes)
        return RunStatus(state, detail_of(run, state), nodes)
    if state in ("running", "silent"):
        return RunStatus(state, detail_of(run, state), nodes)
    if state == "killed" and seconds_of(last.get("start")) >= start_time(job):  # its node's locks are not visible here
        alive = "silent" if run.is_silent else "running"
        return RunStatus(alive, detail_of(run, alive), nodes)
    ended_at = run.submission.get("time") if state == "cancelled" else last.get("end")
    if job.state in COMPLETING or (ended_at is not None and seconds_of(ended_at) >= start_time(job)):
        return RunStatus(state, detail_of(run, state), nodes)
    quiet = time.time() - max(start_time(job), run.last_line)
    if quiet > START_UP:
        return RunStatus("silent", f"for {format_short_duration(quiet)}", nodes)
    return RunStatus("starting", "", nodes)


def pending_reason(run: Run, job: Job) -> str:
    """Slurm's reason; for a run submitted with --after, the run that it waits for."""
    reason = "" if job.reason == "None" else job.reason
    if reason == "Dependency" and (before := waits_until(run)):
        return before
    return f"never starts ({reason})" if reason in NEVER_STARTS else reason


def waits_until(run: Run) -> str:
    """What --after waits for, such as `until try_20261116-123000_2e65ff is finished`; empty without --after."""
    after = run.submission.get("after")
    if not isinstance(after, dict):
        return ""
    return f"until {format_value(str(after.get('run')))} {END_CONDITIONS.get(str(after.get('if')), 'has ended')}"


def detail_of(run: Run, state: str) -> str:
    """Details of a state: how long a run is silent, or what an attempt recorded about its end."""
    if state == "silent":
        return f"for {format_short_duration(run.seconds_since_heartbeat)}"
    if state == "waiting":
        return waits_until(run)
    cause = str(run.attempts[-1].get("cause", "")) if run.attempts else ""
    if cause.startswith(KILLED):
        return "perhaps out of memory"
    if cause.startswith(REFUSED):
        return cause.removeprefix(REFUSED).partition(": ")[0]  # the first part, such as "--text_field is 'text'"
    return cause.removeprefix("error: ").removeprefix(f"{state}: ") if state in CAUSE_STATES and cause != state else ""


def start_time(job: Job) -> float:
    """Seconds since the epoch; Slurm prints local times."""
    try:
        return datetime.strptime(job.start, "%Y-%m-%dT%H:%M:%S").timestamp()
    except ValueError:
        return 0.0


# -- the cluster -----------------------------------------------------------------------------------------------------


def choose_cluster(requested: str) -> str:
    """slurm, local or debug. If Slurm is there but does not answer, it raises: a login node should not train."""
    if requested not in ("auto", "slurm"):
        return requested
    if shutil.which("sbatch") is None:
        if requested == "slurm":
            raise UserError(
                "--cluster is slurm: there is no sbatch on this machine; choose local, or go to a login node."
            )
        return "local"
    _, problem = run_slurm("scontrol", "show", "config", timeout=CONFIG_TIMEOUT_SECONDS)
    if not problem:
        return "slurm"
    if requested == "slurm" or re.search("contact|onnect|did not answer", problem):
        raise UserError(f"{problem}: try again later, or run on this machine with --cluster local.")
    # Slurm's programs without a configuration: there is no cluster
    note = f"Slurm is installed here but not set up ({message_in(problem)}): what is submitted runs on this machine."
    print(note, file=sys.stderr)
    return "local"


def message_in(problem: str) -> str:
    """Slurm's message, which is in parentheses at the end of a problem."""
    match = re.search(r"\((.*)\)$", problem)
    return match.group(1) if match else problem


def largest_array() -> int:
    """The largest number of tasks of an array; Slurm's default if the configuration is not readable."""
    size = slurm_config(CONFIG_TIMEOUT_SECONDS).get("MaxArraySize", "")
    return max(1, int(size) if size.isdecimal() else 1001)


def header_for(name: str | None, cluster: str, resources: Sequence[str] = ()) -> Header | None:
    """The header of that name, or an empty one, which leaves it to the script; None without Slurm.

    resources: the words after --slurm.
    """
    options = read_resources(resources)
    if cluster != "slurm":
        for flag, value in (("header", name), ("slurm", " ".join(resources))):
            if value:
                raise UserError(
                    f"--{flag} is {value!r}: it has no effect with --cluster {cluster}; remove one of them."
                )
        return None
    return replace(read_header(ROOT, name) if name is not None else Header(DEFAULT_SCRIPT, [], []), resources=options)
