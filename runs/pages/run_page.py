"""What the pages show of one run: its row in the list of all runs, and its own page without the curves."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from config.record import flags_shown_first, record_flags
from config.task import SPLITS
from config.task_flags import all_flags
from runs.compare import LIMITS, measured_on, rehearsal_of
from runs.index import IndexedRun
from runs.metrics import Best, TaskRecord, number_or
from runs.pages.curves import curves_of, plain, read_columns
from runs.pictures import pictures_by_step
from runs.run import STATES, Run
from runs.summary import UNFINISHED, Summary, default_settings

MAX_TEXT = 100_000  # characters of one text; the page links to the file
LOG_LINES = 200  # lines of the log
ROWS = 200  # notes, samples and alarms, the newest
MAX_ANCESTORS = 20
MAX_SENTENCE = 500  # characters of the line that says why a run failed


def details_of(run: Run, words: Summary | None = None, best: Best | None = None) -> dict[str, Any]:
    """Everything but the curves, as far as the folder has it. words: its summary. best: its best values."""
    path = run.path
    names = sorted(entry.name for entry in os.scandir(path) if entry.is_file())
    log = log_of(path, names, str(run.settings.get("console_log_filename") or "console.log"))
    failure = failure_of(run, log.get("tail", ""))
    return {
        "id": run.run_id,
        "name": run.name,
        "task": task_for_scripts(run.task),
        "state": run.state,
        "failure": failure,
        "began": run.began,
        "heartbeat": run.heartbeat,
        "job": run.job_name,
        "command": text_of(path / "command.txt").strip(),
        "settings": settings_of(run),
        "best": (best or {}).get(run.task.headline),
        "rehearsal": rehearsal_of(run.settings.get),
        "measured_on": settings_that_decide(run),
        "attempts": run.attempts,
        "lineage": lineage_of(run),
        "tags": run.tags,
        "summary": words.summary if words else [],
        "takeaways": [text for text in words.takeaways if not text.startswith(UNFINISHED)] if words else [],
        "journal": [note._asdict() for note in run.notes[-ROWS:]],
        "alarms": sorted(run.rows("alarms.jsonl") + run.rows("divergence.jsonl"), key=step_of)[-ROWS:],
        "samples": run.rows("samples.jsonl")[-ROWS:],
        "usage": {**run.read("usage.json"), **curves_of(read_columns(path / "usage.jsonl"), {}, run.task)},
        "pictures": [name for name in names if name.endswith(".png")],
        "pictures_by_step": {
            name: [[step, file.name] for step, file in files.items()] for name, files in pictures_by_step(path).items()
        },
        "script": text_of(path / "job_script.slurm"),
        "code": run.read("code.json"),
        "diff": text_of(path / "code.diff"),
        "environment": run.read("environment.json"),
        "log": log,
        "missing": [name for name in ("config.json", "attempts.jsonl", "metrics.jsonl") if name not in names],
    }


def failure_of(run: Run, log: str) -> dict[str, Any] | None:
    """Why a run did not finish: the cause, and the line of its log that says more; None where it may yet finish."""
    state = run.state
    if STATES[state].good:
        return None
    last = run.attempts[-1] if run.attempts else {}
    cause = str(last.get("cause") or state)
    lines = [line.strip() for line in log.split("\n") if line.strip()]
    line_of_log = ""
    if cause.startswith("error: "):
        error = re.compile(rf"([\w.]+\.)?{re.escape(cause.removeprefix('error: '))}\b")
        line_of_log = next((line for line in reversed(lines) if error.match(line)), lines[-1] if lines else "")
    return {
        "cause": cause,
        "line": line_of_log[:MAX_SENTENCE],
        "step": last.get("last_step", run.heartbeat.get("step")),
    }


def step_of(row: dict[str, Any]) -> float:
    return number_or(row.get("step"), 0.0)


def settings_of(run: Run) -> list[dict[str, Any]]:
    """One entry a flag; `changed` where it is unlike the default of that model and size."""
    defaults = default_settings(run.settings)
    return [
        {
            "group": group,
            "name": name,
            "value": value,
            "default": defaults.get(name),
            "compared": name not in record_flags(),
            "changed": name not in defaults or defaults[name] != value,
            "help": all_flags()[name].help if name in all_flags() else "",
        }
        for group, flags in run.config.items()
        for name, value in flags.items()
    ]


def settings_that_decide(run: Run) -> dict[str, dict[str, Any]] | None:
    """The settings that must be equal in runs whose losses are compared; None where the run has no settings."""
    kinds = {"data": run.task.decides["data"], "limits": LIMITS, "unit": run.task.decides["unit"]}
    settings = {kind: {name: measured_on(run.settings, name) for name in names} for kind, names in kinds.items()}
    return settings if run.settings else None


def lineage_of(run: Run) -> list[dict[str, Any]]:
    """The run's parent, that one's parent, and so on, with what each step changed."""
    chain: list[dict[str, Any]] = []
    ancestors = {run.run_id}
    while len(chain) < MAX_ANCESTORS:
        step = run.read("lineage.json")
        parent = step.get("parent")
        if not isinstance(parent, str) or parent in ancestors or Path(parent).name != parent:
            break
        ancestors.add(parent)
        run = Run(run.path.parent / parent)
        chain.append({"parent": parent, "name": run.name, "how": step.get("how"), "changes": step.get("changes")})
        chain[-1]["here"] = run.path.is_dir()
    return chain


def text_of(path: Path, longest: int = MAX_TEXT) -> str:
    """A text file, cut after `longest` characters."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(longest + 1)
    except OSError:
        return ""
    return text if len(text) <= longest else f"{text[:longest]}\n… cut here: the rest is in {path.name}"


def log_of(path: Path, names: list[str], console: str) -> dict[str, str]:
    """The end of the newest log: the console's, or that of the Slurm job."""
    logs = [name for name in names if name == console or (name.startswith("slurm-") and name.endswith(".log"))]
    if not logs:
        return {}
    name = console if console in logs else max(logs, key=lambda name: (path / name).stat().st_mtime)
    with open(path / name, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - MAX_TEXT))
        text = file.read().decode(errors="replace")
    # A progress bar writes its line again and again, each time after a \r.
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return {
        "file": name,
        "tail": "\n".join(lines[-LOG_LINES:]),
        "cut": "yes" if len(lines) > LOG_LINES or size > MAX_TEXT else "",
    }


AXES = ("step", "epoch", "seconds", "flops")  # and the unit of the task


def row_of(record: IndexedRun, spark: list[float | None], has_page: bool) -> dict[str, Any]:
    """The row of a run in the list."""
    facts, task = record.facts, record.task
    names = [
        name
        for name, value in record.last.items()
        if name not in task.axes and "/" not in name and (math.isfinite(value) or name in record.best)
    ]
    best = {name: record.best.get(name, (None, None)) if task.sign(name) else (None, None) for name in names}
    return {
        "id": record.run_id,
        "file": file_of(record.run_id),
        "name": record.name,
        "task": task.name,
        "state": record.state,
        "cause": facts["cause"],
        "began": record.began,
        "total": record.settings.get("max_steps"),
        "job": facts["job"],
        "tags": facts["tags"],
        "rehearsal": record.value("rehearsal"),
        "archived": record.is_archived,
        "attempts": facts["attempts"],
        "parent": facts["parent"],
        "note": facts["note"],
        "alarms": facts["alarms"],
        "notes": facts["notes"],
        "settings": {name: value for name, value in record.settings.items() if name not in record_flags()},
        "metrics": {name: [*rounded(record.last[name], best[name][0]), best[name][1]] for name in names},
        "spark": spark,
        **{name: record.last.get(name) for name in (*AXES, task.unit)},
        "page": has_page,
    }


def rounded(*values: float | None) -> list[float | None]:
    """Seven digits of each, as JSON has them; None for what is not finite."""
    return [None if value is None else plain([value], 7)[0] for value in values]


def task_for_scripts(task: TaskRecord) -> dict[str, Any]:
    """What the scripts of the pages need to know of a task. label: of the headline's measure, without a split."""
    columns = {split: task.headline_on(split) for split in SPLITS}
    facts = facts_of(task)
    return {
        "name": task.name,
        "unit": task.unit,
        "headline": task.headline,
        "label": task.label,
        "columns": columns,
        "facts": facts,
        "measures": {name: asdict(task.measure(name)) for name in (*columns.values(), *facts)},
    }


def facts_of(task: TaskRecord) -> list[str]:
    """The columns beside the headline that a page begins with: the first and the last of which more is better."""
    higher = [f"valid_{each.name}" for each in task.measures if each.split and each.better == "higher"]
    names = [name for name in dict.fromkeys(higher) if "*" not in name and name != task.headline]
    return list(dict.fromkeys([*names[:1], *names[-1:]]))


def file_of(run_id: str) -> str:
    """The run's id as a part of an address, whatever letters it has; in scripts it stands for the run."""
    return quote(os.fsencode(run_id), safe="")


def differing(rows: list[dict[str, Any]]) -> list[str]:
    """The settings that are not the same in all runs: those that tables show first, then those that vary most; those of
    a few runs only come last."""
    values: dict[str, Counter[str]] = {}
    for row in rows:
        for name, value in row["settings"].items():
            values.setdefault(name, Counter())[repr(value)] += 1
    varied = {name: counts for name, counts in values.items() if len(counts) > 1 or counts.total() < len(rows)}
    order = {name: rank for rank, name in enumerate(flags_shown_first())}
    rare = {name: max(counts.values()) > 0.9 * len(rows) for name, counts in varied.items()}
    return sorted(varied, key=lambda name: (rare[name], order.get(name, len(order)), -len(varied[name]), name))
