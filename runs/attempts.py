"""attempts.jsonl: who worked on a run, when, from which step to which, and why it ended.

A few rows an attempt; together they tell of it, later ones completing or correcting earlier. Each is one write, so that
a process killed at any point leaves whole rows.
"""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from core.files import append_row, read_rows
from runs import causes
from runs.processes import is_first_process
from runs.signals import listener

if TYPE_CHECKING:
    from runs.folder import RunFolder


class Attempt:
    """One process's work on a run, as rows of attempts.jsonl."""

    def __init__(self, folder: RunFolder, first_step: int) -> None:
        self.folder = folder
        self.first_step = first_step
        self.earlier = merged(read_rows(folder.attempts))
        self.number = 1 + sum("start" in row for row in self.earlier)
        self.row: dict[str, Any] = {"attempt": self.number, "first_step": first_step}
        self.ended = False

    def begin(self) -> None:
        last = self.earlier[-1] if self.earlier else {}
        if isinstance(last.get("last_step"), int) and last.get("cause") != "finished":
            lost = max(0, last["last_step"] - self.first_step)
            if lost != last.get("steps_lost"):  # the checkpoint to go on from was not the newest
                append_row(self.folder.attempts, {"attempt": last["attempt"], "steps_lost": lost})
        self.row |= {"start": stamp(time.time()), "host": platform.node(), "pid": os.getpid(), **slurm_job()}
        append_row(self.folder.attempts, self.row)
        listener.tell = self.note_signal

    def note_signal(self, name: str) -> None:
        """One that is killed before it has saved its state was at least told so."""
        with suppress(OSError):
            append_row(self.folder.attempts, {"attempt": self.number, "signal": name, "told": stamp(time.time())})

    def end(self, step: int | None, cause: str) -> None:
        """step: the last one; None where the caller does not know it."""
        if not is_first_process() or self.ended:
            return
        self.ended = True
        listener.tell = None
        self.folder.note_end(self.number, self.folder.seen_step(self.row) if step is None else step, cause, time.time())
        if cause.startswith("interrupted") and (job := causes.job_name(slurm_job())):
            # Written first, asked after: Slurm may not leave the time to wait for its answer.
            why = causes.by_slurm(causes.ask_slurm("job", job), int(slurm_job().get("restart", 0)))
            if why:
                append_row(self.folder.attempts, {"attempt": self.number, "cause": why})


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One dictionary an attempt, in their order."""
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        if isinstance(row.get("attempt"), int):
            found.setdefault(row["attempt"], {}).update(row)
    return [found[number] for number in sorted(found)]


def slurm_job() -> dict[str, Any]:
    """The job that this process belongs to: its id, how often it was queued again, and its nodes."""
    names = {"job": "SLURM_JOB_ID", "array_job": "SLURM_ARRAY_JOB_ID", "array_task": "SLURM_ARRAY_TASK_ID"}
    names |= {"restart": "SLURM_RESTART_COUNT", "nodes": "SLURM_JOB_NODELIST", "cluster": "SLURM_CLUSTER_NAME"}
    return {key: os.environ[name] for key, name in names.items() if name in os.environ}


def stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(seconds))
