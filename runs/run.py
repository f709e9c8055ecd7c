"""A run read from outside, by its folder, and its states. What is missing or damaged there is skipped, never an error.

Nothing here writes or takes a lock, so runs of other people and of newer versions can be read.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from core.errors import UserError
from core.files import rows_of
from runs.attempts import KILLED, merge_attempts
from runs.lock import lock_holder
from runs.metrics import LANGUAGE_TASK, Metric, TaskRecord, number_or, task_from_text

WAITING = ("submitting", "held", "released")
SILENCE = 120.0  # seconds without a heartbeat, and ten times a step, after which a run is called silent
START_UP = 600.0  # seconds without a line in its log after which one that has no step yet is called silent
BEAT = 10.0  # seconds between heartbeats, where steps are shorter
RUN_HELP = "its id, its name, the beginning of its id, its job, or last"  # of a RUN argument, see find_run


class State(NamedTuple):
    """What a state of a run means. over: no process works on it and none will by itself. good: nothing went wrong.

    resumable: the same command continues it. colour: on a terminal. causes: how the causes of attempts.jsonl that lead
    to it begin.
    """

    over: bool
    good: bool
    resumable: bool
    colour: str = ""
    causes: tuple[str, ...] = ()


STATES = {
    "prepared": State(over=False, good=True, resumable=True),
    "waiting": State(over=False, good=True, resumable=True, colour="yellow"),
    "not submitted": State(over=False, good=False, resumable=True, colour="red"),
    "running": State(over=False, good=True, resumable=False, colour="green"),
    "silent": State(over=False, good=False, resumable=False, colour="red"),
    "finished": State(over=True, good=True, resumable=False, causes=("finished",)),
    "interrupted": State(True, False, True, "yellow", ("interrupted", "time limit", "preempted", "requeued", "hung")),
    "killed": State(True, False, True, "red", ("killed", "node failure", "crashed", KILLED)),
    "stopped": State(True, False, True, "", ("stopped",)),
    "cancelled": State(True, False, True, "", ("cancelled",)),
    "diverged": State(True, False, False, "red", ("diverged",)),
    "out of memory": State(True, False, False, "red", ("out of memory",)),
    "failed": State(True, False, False, "red"),
}


class Note(NamedTuple):
    """One entry of a run's journal. time: seconds since the epoch; tag: TRY, RESULT, IDEA, TODO or UPDATE; done: the
    time of the TODO or IDEA that this one ticks off."""

    time: float
    tag: str
    text: str
    done: float | None = None


class Run:
    """One folder of logs/runs/. Properties are read lazily, once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name

    @cached_property
    def config(self) -> dict[str, dict[str, Any]]:
        """{group: {flag: value}}, as config.json has it; other versions may know more flags or fewer."""
        return {group: flags for group, flags in self.read("config.json").items() if isinstance(flags, dict)}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """{flag: value}"""
        return {name: value for flags in self.config.values() for name, value in flags.items()}

    @property
    def name(self) -> str:
        return str(self.settings.get("run_name") or self.run_id)

    @cached_property
    def task_text(self) -> str:
        """task.json as it is; empty where there is none that can be read."""
        try:
            return self.content("task.json").decode()
        except (OSError, ValueError):
            return ""

    @cached_property
    def task(self) -> TaskRecord:
        """What was trained, by task.json; older folders have none and are of language."""
        return task_from_text(self.task_text) if self.task_text else LANGUAGE_TASK

    @cached_property
    def schema(self) -> dict[str, Any]:
        """{column: {title, unit, better}} as it was recorded."""
        return self.read("metrics.schema.json")

    def measure(self, column: str) -> Metric:
        """What a column of metrics.jsonl means: as recorded, else by the task."""
        recorded = self.schema.get(column)
        if not isinstance(recorded, dict) or not isinstance(recorded.get("title"), str):
            return self.task.measure(column)
        better = recorded.get("better")
        return Metric(
            recorded["title"], str(recorded.get("unit") or ""), better if better in ("lower", "higher") else None
        )

    @cached_property
    def attempts(self) -> list[dict[str, Any]]:
        """One dictionary for each attempt: the row of its start, and that of its end unless it runs."""
        return merge_attempts(self.rows("attempts.jsonl"))

    @cached_property
    def heartbeat(self) -> dict[str, Any]:
        """time (seconds), step, total_steps, phase, step_seconds, seconds_left, last losses and speed; as many of
        them as are known."""
        return self.read("heartbeat.json")

    @cached_property
    def job(self) -> dict[str, Any]:
        """The Slurm job: job, array_job, array_task, cluster, starts; empty where there was none."""
        return self.read("job.json")

    @cached_property
    def submission(self) -> dict[str, Any]:
        """How far a submission came: job, error, state (submitting, held, released, failed, unknown, here, cancelled),
        and what was typed: header, script, flags."""
        return self.read("submission.json")

    @property
    def job_name(self) -> str | None:
        """What Slurm calls the job; a task of an array is ARRAY_TASK."""
        if "array_job" in self.job and "array_task" in self.job:
            return f"{self.job['array_job']}_{self.job['array_task']}"
        job = self.job.get("job") or self.submission.get("job")
        return None if job is None else str(job)

    def metrics(self) -> list[dict[str, Any]]:
        """All rows of metrics.jsonl, read at every call; large for a long run."""
        return self.rows("metrics.jsonl")

    @property
    def parent(self) -> str | None:
        """The run that this one repeats or varies, by lineage.json."""
        parent = self.read("lineage.json").get("parent")
        return parent if isinstance(parent, str) else None

    @cached_property
    def swept(self) -> dict[str, Any]:
        """What tells it from the other runs of its sweep, {flag: value}."""
        lineage = self.read("lineage.json")
        changes = lineage.get("changes") if lineage.get("how") == "sweep" else None
        return changes if isinstance(changes, dict) else {}

    @cached_property
    def tags(self) -> list[str]:
        tags = self.read_any("tags.json")
        return [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []

    @cached_property
    def notes(self) -> list[Note]:
        """The journal: what people wrote about the run, in the order in which they did."""
        rows = [row for row in self.rows("journal.jsonl") if isinstance(row.get("text"), str)]
        return [
            Note(seconds_of(row.get("time")), str(row.get("tag")), row["text"], seconds_of(row.get("done")) or None)
            for row in rows
        ]

    def last_metrics(self, size: int = 16_384) -> list[dict[str, Any]]:
        """The last rows of metrics.jsonl, as many as are whole in its last bytes."""
        try:
            with open(self.path / "metrics.jsonl", "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - size))
                return rows_of(file.read())
        except OSError:
            return []

    @property
    def holder(self) -> int:
        """The process that holds the run's lock, as far as this machine can tell; 0 where there is none."""
        return lock_holder(self.path / "lock")

    @property
    def is_held(self) -> bool:
        """Whether a living process holds the run's lock, as far as this machine can tell."""
        return self.holder != 0

    @property
    def started(self) -> float:
        """When the newest attempt began, in seconds since the epoch; 0 where there is none."""
        return seconds_of(self.attempts[-1].get("start")) if self.attempts else 0.0

    @property
    def has_beaten(self) -> bool:
        """Whether the heartbeat is of the newest attempt, and not of one before it."""
        return bool(self.heartbeat) and number_or(self.heartbeat.get("time"), 0.0) >= self.started

    @cached_property
    def last_line(self) -> float:
        """When something was written into a log of the run, in seconds since the epoch; 0 where there is none.

        Progress bars of data preparation are written to the job's own log only.
        """
        times = [0.0]
        job_log = self.job.get("log")
        for log in (*self.path.glob("*.log"), *self.path.glob("submitit/*_log.*"), *([job_log] if job_log else [])):
            with suppress(OSError):
                times.append(os.stat(str(log)).st_mtime)
        return max(times)

    @property
    def seconds_since_heartbeat(self) -> float:
        """Seconds since the last start, heartbeat or, before the first heartbeat, line of a log."""
        last_sign = number_or(self.heartbeat.get("time"), 0.0) if self.has_beaten else self.last_line
        return max(0.0, time.time() - max(self.started, last_sign))

    @property
    def is_silent(self) -> bool:
        step = number_or(self.heartbeat.get("step_seconds"), 0.0)
        return self.seconds_since_heartbeat > (max(SILENCE, 10 * step) if self.has_beaten else START_UP)

    @property
    def state(self) -> str:
        """A name of STATES, by what the folder says; Slurm may know more of a job that waits."""
        last = self.attempts[-1] if self.attempts else {}
        if "start" in last and "end" not in last:
            elsewhere = last.get("host") != platform.node()  # and its lock may not be seen here
            if self.is_held or (elsewhere and self.heartbeat and not self.is_silent):
                return "silent" if self.is_silent else "running"
        ended = state_of_cause(str(last.get("cause", "killed"))) if last else "prepared"
        if ended == "finished":
            return ended
        submitted, since = self.submission.get("state"), seconds_of(self.submission.get("time"))
        if submitted in WAITING and since > seconds_of(last.get("end", last.get("start"))):
            return "waiting"
        if submitted == "cancelled" and since >= seconds_of(last.get("start")):
            return "cancelled"
        return "not submitted" if submitted in ("failed", "unknown") and not last else ended

    @property
    def began(self) -> float:
        """Seconds since the epoch at which the run was made, by its name; else by its folder."""
        words = self.run_id.rsplit("_", 2)
        try:
            return datetime.strptime(words[-2], "%Y%m%d-%H%M%S").timestamp()
        except (ValueError, IndexError, OverflowError):
            try:
                return self.path.stat().st_mtime
            except OSError:
                return 0.0

    def content(self, name: str) -> bytes:
        """The bytes of a file of the folder. Not by pathlib, which would double the time."""
        with open(f"{self.path}/{name}", "rb") as file:
            return file.read()

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a .jsonl file of the folder."""
        try:
            return rows_of(self.content(name))
        except OSError:
            return []

    def read(self, name: str) -> dict[str, Any]:
        content = self.read_any(name)
        return content if isinstance(content, dict) else {}

    def read_any(self, name: str) -> Any:
        try:
            return json.loads(self.content(name))
        except (OSError, ValueError, RecursionError):
            return None


def state_of_cause(cause: str) -> str:
    """The state of a run whose last attempt ended so."""
    return next((name for name, state in STATES.items() if state.causes and cause.startswith(state.causes)), "failed")


def seconds_of(stamp: Any) -> float:
    """Seconds since the epoch of a time in a record, which is a text or seconds; 0 where it is neither."""
    if isinstance(stamp, int | float):
        return float(stamp) if 0 < stamp < 1e12 else 0.0
    try:
        return datetime.strptime(str(stamp), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except (ValueError, OverflowError):
        return 0.0


def run_names(logs: Path) -> list[str]:
    """The folders of every run, the newest first."""
    try:
        with os.scandir(logs / "runs") as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except OSError:
        names = []
    return sorted(names, key=lambda name: name.rsplit("_", 2)[-2:], reverse=True)


def all_runs(logs: Path) -> Iterator[Run]:
    """Every run of a logs folder, the newest first."""
    for name in run_names(logs):
        yield Run(logs / "runs" / name)


def find_run(logs: Path, name: str) -> Run:
    """The run that a person means: its id, its name (the newest of it), a beginning of an id, a job's number, a path,
    or `last`."""
    if os.sep in name and (Path(name) / "config.json").is_file():
        return Run(Path(name))
    runs = list(all_runs(logs))
    if run := match_run(runs, name):
        return run
    raise UserError(unknown_run(logs, name, runs))


def match_run(runs: list[Run], name: str) -> Run | None:
    """The run of this name among `runs`, which are given newest first; see `find_run`."""
    if name == "last" and runs:
        return runs[0]
    for fits in (
        lambda run: run.run_id == name,
        lambda run: run.name == name,
        lambda run: run.job_name == name,
        lambda run: bool(name) and run.run_id.startswith(name),
        lambda run: len(name) >= 4 and run.run_id.endswith(name),
    ):
        if match := next(filter(fits, runs), None):
            return match
    return None


def unknown_run(logs: Path, name: str, runs: list[Run]) -> str:
    """The error about a run that does not exist, with the nearest names."""
    from difflib import get_close_matches

    from core.text import format_value

    if not runs:
        return (
            f"RUN is {format_value(name)}: {format_value(str(logs / 'runs'))} has no runs yet; --logs_dir names "
            "another folder."
        )
    names = list(dict.fromkeys(name for run in runs for name in (run.run_id, run.name)))
    near = get_close_matches(name, names, 3, 0.4) or [run.run_id for run in runs[:3]]
    return f"RUN is {format_value(name)}: there is no such run; choose {', '.join(map(format_value, near))}, or last."
