"""Why an attempt ended, in the words of attempts.jsonl, as far as Slurm and the traces of the attempt tell.

finished, time limit, preempted, requeued, node failure, out of memory, out of memory or killed, cancelled, diverged,
stopped, stopped by hand, hung, crashed: HOW of what is nobody's fault, error: WHAT, refused: SENTENCE of what a person
can put right; where nobody knows more, `interrupted: SIGNAL` of one that saved its state and `killed` of another.
"""

from __future__ import annotations

import re
import subprocess
from typing import Any

from core.errors import UserError
from runs.signals import GOES_ON

REFUSED = "refused: "
PATIENCE = 10  # seconds that Slurm may take to answer
ENDED = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "time limit",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node failure",
    "OUT_OF_MEMORY": "out of memory",
}
# What srun and the step's daemon say of a process that the kernel killed for its memory.
OUT_OF_MEMORY = re.compile(rb"oom.?kill|Out Of Memory", re.IGNORECASE)


def job_name(job: dict[str, Any]) -> str | None:
    """What Slurm calls it; the number alone would stand for all tasks of an array."""
    return f"{job['array_job']}_{job['array_task']}" if "array_job" in job else job.get("job")


def ask_slurm(*what: str) -> dict[str, str]:
    """What `scontrol show` says, as {name: value}; empty where it does not answer. A value ends at a space."""
    try:
        words = ["scontrol", "show", *what, "--oneliner"]
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(re.findall(r"(?:^|\s)([\w:/]+)=(\S*)", done.stdout)) if done.returncode == 0 else {}


def seconds(duration: str) -> float:
    """1-02:03:04, 02:03:04 or 03:04 as seconds; what is no duration, such as UNLIMITED, is endless."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", duration):
        return float("inf")
    days, _, clock = duration.rpartition("-")
    total = 0
    for part in clock.split(":"):
        total = 60 * total + int(part)
    return float(86400 * int(days or 0) + total)


def by_slurm(fields: dict[str, str], restart: int) -> str | None:
    """Why Slurm ends this start (its `restart`-th) of a job, or ended it; None where it does not say.

    A job that is preempted without a grace time cannot be told from one that a person requeued.
    """
    state, preempted, restarts = (fields.get(name, "") for name in ("JobState", "PreemptTime", "Restarts"))
    if preempted[:1].isdigit() and preempted >= fields.get("StartTime", "9"):  # and not in an earlier attempt
        return "preempted"
    if restarts.isdecimal() and int(restarts) > restart:
        return "requeued"
    if state == "COMPLETING":  # told to end, and not there yet
        late = seconds(fields.get("RunTime", "0")) >= seconds(fields.get("TimeLimit", ""))
        return "time limit" if late else "cancelled"
    return ENDED.get(state)


def of_a_killed(attempt: dict[str, Any], now: dict[str, Any]) -> str:
    """Why an attempt ended that could not say so; `now` is the job of the process that found it."""
    told = attempt.get("signal")
    before = attempt.get("restart") or 0
    if told in ("SIGUSR1", "SIGINT"):
        return "time limit" if told == "SIGUSR1" else "stopped by hand"
    if job_name(attempt) is not None and job_name(attempt) == job_name(now):
        if int(now.get("restart") or 0) > int(before):
            return "requeued" if told else "node failure"
    elif (name := job_name(attempt)) and (cause := by_slurm(ask_slurm("job", name), int(before))):
        return cause
    return f"interrupted: {told}" if told else "killed"


def goes_on(status: int, cause: str) -> bool:
    """Whether a run that ended so is worth another start. 138 and 143: a signal came before Python listened."""
    return status in (GOES_ON, 138, 143) or cause == "hung" or cause.startswith("crashed")


def of_error(error: BaseException) -> str:
    """Why an attempt ended that raised this."""
    if isinstance(own := getattr(error, "cause", None), str):
        return own
    if loader := re.search(r"DataLoader worker \(pid\S* ?\d+\) is killed by signal: ([\w ]+)", str(error)):
        how = "out of memory or killed" if loader[1] == "Killed" else f"crashed: {loader[1].lower()}"
        return f"{how}: a process of the data loader"
    short = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if short or "can't allocate memory" in str(error):  # torch's words where the CPU's memory ends
        return "out of memory"
    return (
        f"{REFUSED}{' '.join(str(error).split())}" if isinstance(error, UserError) else f"error: {type(error).__name__}"
    )
