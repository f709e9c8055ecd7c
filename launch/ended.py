"""`launch ended RUN LOG STATUS FLAGS`: what a job's script does when its processes have ended badly.

It writes down the end of those that could not do so themselves, names who ended first, and says by its exit status
whether the run goes on: 0, it does. FLAGS are the run's, of which --notify is used.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from core.files import append_row, read_rows
from launch.prepare import check_progress
from runs import RunFolder
from runs.attempts import merged, slurm_job
from runs.causes import OUT_OF_MEMORY, ask_slurm, by_slurm, goes_on, job_name
from runs.console import START
from runs.notify import tell_once
from runs.signals import GOES_ON

TAIL = 65_536  # bytes of a log in which srun tells how processes ended
# srun's words for a process that ended badly, such as `srun: error: n2: task 1: Killed`
ENDED = re.compile(r"^srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)[\d,-]*: (?P<how>.+)$", re.MULTILINE)
BY_SIGNAL = {  # the first that srun's words begin with
    "Killed": "out of memory or killed",
    "Out Of Memory": "out of memory",
    "Aborted": "crashed: aborted (SIGABRT)",
    "Bus error": "crashed: bus error (SIGBUS)",
    "Segmentation fault": "error: segmentation fault",
}
BY_STATUS = {134: "Aborted", 135: "Bus error", 137: "Killed", 139: "Segmentation fault"}
SPEECHLESS = ("out of memory", "killed", "error: segmentation")  # ends of which the log has no word of ours
ECHOES = (f"Exited with exit code {GOES_ON}", "Terminated")  # of a process that left because another had ended


def ended_command(argv: list[str]) -> int:
    folder, log, status = RunFolder.open(Path(argv[0])), tail(Path(argv[1])), int(argv[2])
    folder.lock()  # or one of them lives
    speechless = any("start" in row and "end" not in row for row in merged(read_rows(folder.attempts)))
    last = note_end(folder, log, status)
    cause = str(last.get("cause") or "")
    if not goes_on(status, cause):
        if cause.startswith(SPEECHLESS):
            print(f"not queued again: {cause}{who_ended(last)}; python -m launch why {folder.run_id} says more")
        if (speechless or "attempt" not in last) and last.get("cause") not in (None, "cancelled"):
            # Who could still speak has told it; what a person did is no news.
            tell_once(
                folder.path, "failure", f"ended at step {last.get('last_step', folder.newest_step)}: {last['cause']}."
            )
        return 1
    check_progress(folder.path)
    return 0


def who_ended(attempt: dict[str, Any]) -> str:
    return f" (task {attempt['ended_rank']} on {attempt['ended_on']})" if "ended_on" in attempt else ""


def tail(log: Path) -> str:
    """The end of the job's log, from where this start of it begins."""
    text = ""
    with suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, os.path.getsize(log) - TAIL))
        text = file.read().decode(errors="replace")
    starts = [found.start() for found in START.finditer(text)]
    return text[starts[-1] :] if starts else text


def note_end(folder: RunFolder, log: str, status: int) -> dict[str, Any]:
    """The attempt of this start, whose end is on record now; only the cause where it began none."""
    who, cause = first_end(log, status)
    if cause != "out of memory":
        cause = by_the_cluster() or cause
    attempts = merged(read_rows(folder.attempts))
    last = attempts[-1] if attempts else {}
    job = slurm_job()
    if any(last.get(key) != job.get(key) for key in ("job", "restart")):  # it ended before its attempt began
        return {"cause": cause}
    if "start" in last and "end" not in last:
        folder.close_killed(cause)
    elif cause and str(last.get("cause", "")).startswith("crashed"):  # process 0 knew that one died, and not how
        append_row(folder.attempts, {"attempt": last["attempt"], "cause": cause})
    newest = merged(read_rows(folder.attempts))[-1:]
    if newest and who and str(newest[0].get("cause")) not in ("finished", "time limit", "preempted", "requeued"):
        append_row(folder.attempts, {"attempt": newest[0]["attempt"], **who})
        newest[0] |= who
    return newest[0] if newest else {}


def first_end(log: str, status: int) -> tuple[dict[str, Any], str | None]:
    """Who ended first of those that ended badly, and why as far as the log tells."""
    ends = [found for found in ENDED.finditer(log) if not found["how"].startswith(ECHOES)]
    how = ends[0]["how"] if ends else BY_STATUS.get(status, "")
    who = {"ended_on": ends[0]["node"], "ended_rank": int(ends[0]["rank"])} if ends else {}
    if OUT_OF_MEMORY.search(log.encode()):
        return who, "out of memory"
    return who, next((cause for words, cause in BY_SIGNAL.items() if how.startswith(words)), None)


def by_the_cluster() -> str | None:
    """What Slurm says of the job's end; None where it says nothing."""
    job = slurm_job()
    name = job_name(job)
    return by_slurm(ask_slurm("job", name), int(job.get("restart", 0))) if name else None
