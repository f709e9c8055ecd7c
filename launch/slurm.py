"""What Slurm says of all jobs, asked once and not waited for long, and what that makes of a run's state.

Nothing here needs accounting: squeue alone is asked, which also knows jobs that ended a few minutes ago.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from core.environment import clean_environment
from core.text import shown
from runs.causes import REFUSED
from runs.reading import KILLED, START_UP, Run, seconds_of

PATIENCE = 5.0  # seconds: who looks at a table does not want to wait for a controller that is down
INSTEAD = "states are as the run folders tell"
FIELDS = ("%i", "%T", "%r", "%N", "%P", "%S")
GONE = {  # Slurm's word for a job that is over -> ours
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
WAITS = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
HOLDS = ("REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
NEVER = ("BadConstraints", "DependencyNeverSatisfied")  # reasons of jobs that wait for what will not come
ENDS = ("COMPLETING", "SIGNALING", "STAGE_OUT")
CAUSED = ("interrupted", "failed", "killed")
AFTER = {"finished": "is finished", "failed": "has failed"}  # submission.json's word for what a run waits for
STOPPED = ("SUSPENDED", "STOPPED")
LIVE = ("running", "silent", "starting", "suspended", "waiting", "queued again", "held")
STATES = (
    *LIVE,
    *("prepared", "lost", "not submitted", "interrupted", "killed", "failed", "diverged", "out of memory"),
    *("stopped", "cancelled", "finished"),
)


@dataclass(frozen=True)
class Job:
    """One job, or one task of an array (name: 17_3). start: when it began, or is expected to; Slurm's text."""

    name: str
    state: str
    reason: str
    nodes: str
    partition: str
    start: str

    @property
    def is_over(self) -> bool:
        return self.state in GONE

    @property
    def is_held(self) -> bool:
        """Slurm's words: JobHeldUser, JobHoldMaxRequeue, launch failed requeued held, job requeued in held state."""
        return self.state in HOLDS or self.reason.startswith("JobHold") or "held" in self.reason.lower()

    @property
    def expected(self) -> str:
        """When Slurm means to start it; of a job that is not scheduled it may name a moment that is past."""
        return self.start if self.state in WAITS and not self.is_held and began(self) > time.time() else ""


@dataclass(frozen=True)
class Answer:
    """All jobs by name; `problem` says why they could not be asked for; `time`: when that was."""

    jobs: dict[str, Job] = field(default_factory=dict)
    problem: str = ""
    cluster: str = ""
    time: float = math.inf

    def job_of(self, run: Run) -> Job | None:
        """The run's job. Two clusters may share a file system, and their jobs have the same numbers."""
        other = str(run.job.get("cluster", ""))
        if self.cluster and other and other != self.cluster:
            return None
        return self.jobs.get(run.job_name or "")

    def is_about(self, run: Run) -> bool:
        """Whether a job of this run that is not among them is gone for certain."""
        other = str(run.job.get("cluster", ""))
        return not self.problem and (not other or other == self.cluster)

    def is_older(self, run: Run) -> bool:
        """Whether the run was submitted, began or ended since, so that its folder knows more."""
        last = run.attempts[-1] if run.attempts else {}
        times = (run.submission.get("time"), last.get("start"), last.get("end"))
        return max(map(seconds_of, times)) > self.time


@dataclass(frozen=True)
class Standing:
    """A run's state, what there is to add to it, its nodes, and when Slurm means to start it (Slurm's text)."""

    state: str
    detail: str = ""
    nodes: str = ""
    expected: str = ""

    def __str__(self) -> str:
        between = " " if self.detail.startswith("for ") else ": "
        return f"{self.state}{between}{self.detail}" if self.detail else self.state


def ask(*words: str, patience: float = PATIENCE) -> tuple[str, str]:
    """What one of Slurm's commands prints, or why it does not."""
    if shutil.which(words[0]) is None:
        return "", f"no Slurm on this machine: {INSTEAD}"
    try:
        done = subprocess.run(words, env=clean_environment(), capture_output=True, timeout=patience)
    except subprocess.TimeoutExpired:
        return "", f"Slurm's controller did not answer ({words[0]}: nothing within {patience:g} s): {INSTEAD}"
    except OSError as error:
        return "", f"{words[0]} cannot be run ({error.strerror}): {INSTEAD}"
    if done.returncode:
        said = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        return "", f"no answer from Slurm ({shown(said.split('error: ')[-1].split('fatal: ')[-1])}): {INSTEAD}"
    return done.stdout.decode(errors="replace"), ""


def ask_for_jobs(runs: Iterable[Run]) -> Answer:
    """The jobs of these runs' owners; nothing is asked where no run has a job."""
    owners, clusters = set(), set()
    for run in runs:
        if run.job_name is not None:
            clusters.add(run.job.get("cluster"))
            try:
                owners.add(str(run.path.stat().st_uid))
            except OSError:
                owners.add(str(os.getuid()))
    if not owners:
        return Answer()
    asked = time.time()
    everything = ("--noheader", "--array", "--all", "--states=all", f"--user={','.join(sorted(owners))}")
    said, problem = ask("squeue", *everything, f"--format={'|'.join(FIELDS)}")
    if problem:
        return Answer(problem=problem, time=asked)
    return Answer(read_jobs(said), cluster=own_cluster() if clusters - {None} else "", time=asked)


def read_jobs(said: str) -> dict[str, Job]:
    """The lines of squeue; one that is not as it should be is passed over."""
    jobs = {}
    for line in said.split("\n"):
        words = [word.strip() for word in line.split("|")]
        if len(words) == len(FIELDS) and words[0] and words[1]:
            jobs[words[0]] = Job(*words)
    return jobs


def own_cluster() -> str:
    said, _ = ask("scontrol", "show", "config")
    found = [line.partition("=")[2].strip() for line in said.splitlines() if line.startswith("ClusterName")]
    return found[0] if found else ""


def standing(run: Run, answer: Answer, state: str = "") -> Standing:
    """Where the run stands, by its folder (state, if it is known already) and by Slurm."""
    state = state or run.state
    last = run.attempts[-1] if run.attempts else {}
    nodes = str(last.get("nodes") or last.get("host") or "")
    if state == "finished" or answer.is_older(run):
        return Standing(state, detail_of(run, state), nodes)
    job = answer.job_of(run)
    if job is None:
        if state == "waiting" and run.job_name is not None and answer.is_about(run):
            return Standing("lost", "its job left the queue without a word")
        return Standing(state, detail_of(run, state), nodes)
    if job.state in WAITS:
        if job.is_held:
            return Standing("held", job.state if job.reason == "None" else job.reason)
        return Standing("queued again" if run.attempts else "waiting", waits_for(run, job), expected=job.expected)
    nodes = job.nodes or nodes
    if job.state in STOPPED:
        return Standing("suspended", "", nodes)
    if job.is_over:
        if str(last.get("cause")).startswith(("crashed", KILLED)):  # which says more than Slurm's FAILED
            return Standing(state, detail_of(run, state), nodes)
        if state in ("waiting", "running", "silent", "killed", "interrupted", "prepared"):
            over = GONE[job.state]
            said = "" if over == job.state.replace("_", " ").lower() else job.state
            return Standing(over, detail_of(run, state) if state == over else said, nodes)
        return Standing(state, detail_of(run, state), nodes)
    if state in ("running", "silent"):
        return Standing(state, detail_of(run, state), nodes)
    if state == "killed" and seconds_of(last.get("start")) >= began(job):  # on a node whose locks are not seen here
        alive = "silent" if run.is_silent else "running"
        return Standing(alive, detail_of(run, alive), nodes)
    told = run.submission.get("time") if state == "cancelled" else last.get("end")
    if job.state in ENDS or (told is not None and seconds_of(told) >= began(job)):
        return Standing(state, detail_of(run, state), nodes)
    quiet = time.time() - max(began(job), run.last_line)
    return Standing(*("silent", f"for {duration(quiet)}") if quiet > START_UP else ("starting", ""), nodes)


def waits_for(run: Run, job: Job) -> str:
    """Slurm's reason; of a run that was submitted to follow another one, which."""
    reason = "" if job.reason == "None" else job.reason
    if reason == "Dependency" and (before := follows(run)):
        return before
    return f"never starts ({reason})" if reason in NEVER else reason


def follows(run: Run) -> str:
    """The end of which run it waits for, as in `until try_20261116-123000_2e65ff is finished`; empty for none."""
    after = run.submission.get("after")
    if not isinstance(after, dict):
        return ""
    return f"until {shown(str(after.get('run')))} {AFTER.get(str(after.get('if')), 'has ended')}"


def detail_of(run: Run, state: str) -> str:
    """How long a silent run is silent, and what an attempt says of its end beyond the one word."""
    if state == "silent":
        return f"for {duration(run.silence)}"
    if state == "waiting":
        return follows(run)
    cause = str(run.attempts[-1].get("cause", "")) if run.attempts else ""
    if cause.startswith(KILLED):
        return "perhaps out of memory"
    if cause.startswith(REFUSED):
        return cause.removeprefix(REFUSED).partition(": ")[0]  # what is wrong, as in "--text_field is 'text'"
    return cause.removeprefix("error: ").removeprefix(f"{state}: ") if state in CAUSED and cause != state else ""


def began(job: Job) -> float:
    """Slurm's times are of this machine's zone."""
    try:
        return datetime.strptime(job.start, "%Y-%m-%dT%H:%M:%S").timestamp()
    except ValueError:
        return 0.0


def duration(seconds: float) -> str:
    """Two units at most: 12s, 3m 20s, 4h 05m, 2d 03h."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02}h"
