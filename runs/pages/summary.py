"""A run as one row of the list of all runs."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any
from urllib.parse import quote

from runs.comparing import rehearsal_of
from runs.pages.curves import Column, extremes, last, spark
from runs.reading import Run
from runs.summary import NOT_COMPARED

# What people look for first, when it differs.
KEY_SETTINGS = (
    *("model_name", "model_size", "recipe", "ebt_type", "mcmc_num_steps", "mcmc_step_size", "peak_learning_rate"),
    *(
        "batch_size_per_device",
        "context_length",
        "dataset_name",
        "tokenizer",
        "truncate_mcmc",
        "no_mcmc_detach",
        "seed",
    ),
)
PLACES = ("step", "epoch", "tokens", "seconds", "flops")
MEASURED = ("metrics", "spark", *PLACES)


def measured(columns: dict[str, Column]) -> dict[str, Any]:
    """What a row tells of metrics.jsonl."""
    return {
        "metrics": extremes(columns),
        "spark": spark(columns),
        **{name: last(columns, name) for name in PLACES},
    }


def row_of(run: Run, known: dict[str, Any]) -> dict[str, Any]:
    """The row of a run; `known` has what was measured, or an older row."""
    return {
        "id": run.run_id,
        "file": file_of(run),
        "name": run.name,
        "state": run.state,
        "cause": str(run.attempts[-1].get("cause", "")) if run.attempts else "",
        "began": run.began,
        "total": run.settings.get("max_steps"),
        "job": run.job_name,
        "tags": run.tags,
        "rehearsal": rehearsal_of(run.settings.get),
        "archived": os.path.exists(run.path / "archived"),
        "attempts": len(run.attempts),
        "parent": run.parent,
        "note": next((note.text.strip().split("\n")[0] for note in run.notes), None),
        "alarms": len(run.rows("alarms.jsonl")),
        "notes": len(run.notes),
        "settings": {name: value for name, value in run.settings.items() if name not in NOT_COMPARED},
        **{name: known.get(name) for name in MEASURED},
    }


def file_of(run: Run) -> str:
    """The run's id as a part of an address, whatever letters it has; in scripts it stands for the run."""
    return quote(os.fsencode(run.run_id), safe="")


def differing(rows: list[dict[str, Any]]) -> list[str]:
    """The settings that are not the same in all runs: the well-known first, then those that vary most; those of
    a few runs only come last."""
    values: dict[str, Counter[str]] = {}
    for row in rows:
        for name, value in row["settings"].items():
            values.setdefault(name, Counter())[repr(value)] += 1
    varied = {name: counts for name, counts in values.items() if len(counts) > 1 or counts.total() < len(rows)}
    order = {name: place for place, name in enumerate(KEY_SETTINGS)}
    rare = {name: max(counts.values()) > 0.9 * len(rows) for name, counts in varied.items()}
    return sorted(varied, key=lambda name: (rare[name], order.get(name, len(order)), -len(varied[name]), name))
