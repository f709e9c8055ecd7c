"""What the page of one run says in words: settings, attempts, script, diff, journal, log, pictures."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from config.flags import FLAGS
from config.record import from_dict, values_of
from core.errors import UserError
from runs.comparing import DATA, LIMITS, TOKENIZER, measured_on, rehearsal_of
from runs.pages.curves import curves_of, read_columns
from runs.reading import Run, number
from runs.summary import NOT_COMPARED, UNFINISHED, Summary

LONGEST = 100_000  # characters of one text; the file itself is a click away
TAIL = 200  # lines of the log
ROWS = 200  # notes, samples and alarms, the newest
ANCESTORS = 20
SENTENCE = 500  # characters of the line that says why a run failed
FINE = ("finished", "running", "prepared", "waiting")


def details_of(run: Run, words: Summary | None = None) -> dict[str, Any]:
    """Everything but the curves, as far as the folder has it; `words` are what can be said about it."""
    path = run.path
    names = sorted(entry.name for entry in os.scandir(path) if entry.is_file())
    log = log_of(path, names, str(run.settings.get("console_log_filename") or "console.log"))
    failure = failure_of(run, log.get("tail", ""))
    return {
        "id": run.run_id,
        "name": run.name,
        "state": run.state,
        "failure": failure,
        "began": run.began,
        "heartbeat": run.heartbeat,
        "job": run.job_name,
        "command": text_of(path / "command.txt").strip(),
        "settings": settings_of(run),
        "rehearsal": rehearsal_of(run.settings.get),
        "measured_on": kinds_of(run),
        "attempts": run.attempts,
        "lineage": lineage_of(run),
        "tags": run.tags,
        "summary": words.summary if words else [],
        "takeaways": [text for text in words.takeaways if not text.startswith(UNFINISHED)] if words else [],
        "journal": [note._asdict() for note in run.notes[-ROWS:]],
        "alarms": sorted(run.rows("alarms.jsonl") + run.rows("divergence.jsonl"), key=step_of)[-ROWS:],
        "samples": run.rows("samples.jsonl")[-ROWS:],
        "usage": {**run.read("usage.json"), **curves_of(read_columns(path / "usage.jsonl"), {})},
        "pictures": [name for name in names if name.endswith(".png")],
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
    if state in FINE:
        return None
    last = run.attempts[-1] if run.attempts else {}
    cause = str(last.get("cause") or state)
    lines = [line.strip() for line in log.split("\n") if line.strip()]
    said = ""
    if cause.startswith("error: "):
        error = re.compile(rf"([\w.]+\.)?{re.escape(cause.removeprefix('error: '))}\b")
        said = next((line for line in reversed(lines) if error.match(line)), lines[-1] if lines else "")
    return {"cause": cause, "said": said[:SENTENCE], "step": last.get("last_step", run.heartbeat.get("step"))}


def step_of(row: dict[str, Any]) -> float:
    return number(row.get("step"), 0.0)


def settings_of(run: Run) -> list[dict[str, Any]]:
    """One entry a flag; `changed` where it is unlike the default of that model and size."""
    defaults = defaults_for(run.settings)
    return [
        {
            "group": group,
            "name": name,
            "value": value,
            "default": defaults.get(name),
            "compared": name not in NOT_COMPARED,
            "changed": name not in defaults or defaults[name] != value,
            "help": FLAGS[name].help if name in FLAGS else "",
        }
        for group, flags in run.config.items()
        for name, value in flags.items()
    ]


def kinds_of(run: Run) -> dict[str, dict[str, Any]] | None:
    """What must be the same in two runs whose losses are compared; nothing where its settings are not known."""
    kinds = {"data": DATA, "limits": LIMITS, "tokenizer": TOKENIZER}
    told = {kind: {name: measured_on(run.settings, name) for name in names} for kind, names in kinds.items()}
    return told if run.settings else None


def defaults_for(settings: dict[str, Any]) -> dict[str, Any]:
    """Every flag as it would be if only the model and its size had been chosen; its recipe sets some, too."""
    named = ("model_name", "model_size", "recipe")
    chosen: dict[str, Any] = {name: settings[name] for name in named if name in settings}
    for tree in (chosen, {}):
        try:
            values = values_of(from_dict(tree))
        except UserError:  # another version's
            continue
        values |= {name: FLAGS[name].default for name in named}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {}


def lineage_of(run: Run) -> list[dict[str, Any]]:
    """The run's parent, that one's parent, and so on, with what each step changed."""
    chain: list[dict[str, Any]] = []
    seen = {run.run_id}
    while len(chain) < ANCESTORS:
        step = run.read("lineage.json")
        parent = step.get("parent")
        if not isinstance(parent, str) or parent in seen or Path(parent).name != parent:
            break
        seen.add(parent)
        run = Run(run.path.parent / parent)
        chain.append({"parent": parent, "name": run.name, "how": step.get("how"), "changes": step.get("changes")})
        chain[-1]["here"] = run.path.is_dir()
    return chain


def text_of(path: Path, longest: int = LONGEST) -> str:
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
        file.seek(max(0, size - LONGEST))
        text = file.read().decode(errors="replace")
    # A progress bar writes its line again and again, each time after a \r.
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return {"file": name, "tail": "\n".join(lines[-TAIL:]), "cut": "yes" if len(lines) > TAIL or size > LONGEST else ""}
