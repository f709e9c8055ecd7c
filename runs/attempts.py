"""attempts.jsonl: which process worked on a run, when, from which step to which, and why it ended.

An attempt has a few rows, which are merged; later ones complete or correct earlier ones. Each row is one write, so a
process killed at any point leaves whole rows.

Causes: finished, time limit, preempted, requeued, node failure, out of memory, out of memory or killed, cancelled,
diverged, stopped, stopped by hand, hung, crashed: HOW for machine trouble, error: WHAT, refused: SENTENCE for what a
person can put right. Where nothing more is known: `interrupted: SIGNAL` if the state was saved, else `killed`.
"""

from __future__ import annotations

import os
import platform
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from core.files import append_row, read_rows
from runs.process import EXIT_RESUMABLE, signals
from runs.ranks import is_first_process
from runs.slurm import job_name, parse_duration, scontrol_show, slurm_job

if TYPE_CHECKING:
    from runs.folder import RunFolder

REFUSED = "refused: "
KILLED = "out of memory or killed"  # the cause where the kernel or a person killed the process
CAUSE_OF_JOB_STATE = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "time limit",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node failure",
    "OUT_OF_MEMORY": "out of memory",
}
# What srun and the step's daemon print about a process that the kernel killed for its memory.
OUT_OF_MEMORY = re.compile(rb"oom.?kill|Out Of Memory", re.IGNORECASE)


class Attempt:
    """One process's work on a run, as rows of attempts.jsonl."""

    def __init__(self, folder: RunFolder, first_step: int) -> None:
        self.folder = folder
        self.first_step = first_step
        self.earlier = merge_attempts(read_rows(folder.attempts))
        self.number = 1 + sum("start" in row for row in self.earlier)
        self.row: dict[str, Any] = {"attempt": self.number, "first_step": first_step}
        self.ended = False

    def begin(self) -> None:
        last = self.earlier[-1] if self.earlier else {}
        if isinstance(last.get("last_step"), int) and last.get("cause") != "finished":
            lost = max(0, last["last_step"] - self.first_step)
            if lost != last.get("steps_lost"):  # it resumes from a checkpoint that is not the newest
                append_row(self.folder.attempts, {"attempt": last["attempt"], "steps_lost": lost})
        self.row |= {"start": stamp(time.time()), "host": platform.node(), "pid": os.getpid(), **slurm_job()}
        append_row(self.folder.attempts, self.row)
        signals.on_signal = self.record_signal

    def record_signal(self, name: str) -> None:
        """Record a signal as it comes, in case the process is killed before it has saved its state."""
        with suppress(OSError):
            append_row(
                self.folder.attempts, {"attempt": self.number, "signal": name, "signal_time": stamp(time.time())}
            )

    def end(self, step: int | None, cause: str) -> None:
        """Record the end, once. step: the last one; None where the caller does not know it."""
        if not is_first_process() or self.ended:
            return
        self.ended = True
        signals.on_signal = None
        last_step = self.folder.last_seen_step(self.row) if step is None else step
        self.folder.record_end(self.number, last_step, cause, time.time())
        if cause.startswith("interrupted") and (job := job_name(slurm_job())):
            # Slurm is queried after the row is written: it may kill this process before it answers.
            slurm_cause = cause_by_slurm(scontrol_show("job", job), int(slurm_job().get("restart", 0)))
            if slurm_cause:
                append_row(self.folder.attempts, {"attempt": self.number, "cause": slurm_cause})


def merge_attempts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One dictionary for each attempt, in order."""
    attempts: dict[int, dict[str, Any]] = {}
    for row in rows:
        if isinstance(row.get("attempt"), int):
            attempts.setdefault(row["attempt"], {}).update(row)
    return [attempts[number] for number in sorted(attempts)]


def stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(seconds))


def cause_by_slurm(fields: dict[str, str], restart: int) -> str | None:
    """Why Slurm ends this start (its `restart`-th) of a job, or ended it; None where it does not say.

    A job that is preempted without a grace time looks like one that a person requeued.
    """
    state, preempted, restarts = (fields.get(name, "") for name in ("JobState", "PreemptTime", "Restarts"))
    if preempted[:1].isdigit() and preempted >= fields.get("StartTime", "9"):  # and not in an earlier attempt
        return "preempted"
    if restarts.isdecimal() and int(restarts) > restart:
        return "requeued"
    if state == "COMPLETING":  # it has been signalled and has not ended yet
        late = parse_duration(fields.get("RunTime", "0")) >= parse_duration(fields.get("TimeLimit", ""))
        return "time limit" if late else "cancelled"
    return CAUSE_OF_JOB_STATE.get(state)


def cause_of_killed(attempt: dict[str, Any], now: dict[str, Any]) -> str:
    """The cause of an attempt that could not record its end. now: the job of the process that records it."""
    signal = attempt.get("signal")
    restart = attempt.get("restart") or 0
    if signal in ("SIGUSR1", "SIGINT"):
        return "time limit" if signal == "SIGUSR1" else "stopped by hand"
    if job_name(attempt) is not None and job_name(attempt) == job_name(now):
        if int(now.get("restart") or 0) > int(restart):
            return "requeued" if signal else "node failure"
    elif (name := job_name(attempt)) and (cause := cause_by_slurm(scontrol_show("job", name), int(restart))):
        return cause
    return f"interrupted: {signal}" if signal else "killed"


def is_resumable(status: int, cause: str) -> bool:
    """Whether a run that ended so is worth another start. 138 and 143: a signal came before Python listened."""
    return status in (EXIT_RESUMABLE, 138, 143) or cause == "hung" or cause.startswith("crashed")


def cause_of_error(error: BaseException) -> str:
    """Why an attempt ended that raised this."""
    if isinstance(own := getattr(error, "cause", None), str):
        return own
    if loader := re.search(r"DataLoader worker \(pid\S* ?\d+\) is killed by signal: ([\w ]+)", str(error)):
        how = KILLED if loader[1] == "Killed" else f"crashed: {loader[1].lower()}"
        return f"{how}: a process of the data loader"
    short = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if short or "can't allocate memory" in str(error):  # torch's words where the CPU's memory ends
        return "out of memory"
    return (
        f"{REFUSED}{' '.join(str(error).split())}" if isinstance(error, UserError) else f"error: {type(error).__name__}"
    )
