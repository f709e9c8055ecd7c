"""Run folders written by hand: what a training leaves behind, in milliseconds."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from config import parse_command_line
from config.record import to_dict


@cache
def settings_text(*flags: str) -> str:
    return json.dumps(to_dict(parse_command_line(list(flags))))


def make_run(
    logs: Path,
    name: str = "try",
    *flags: str,
    day: int = 1,
    losses: tuple[float, ...] = (3.0, 2.0),
    cause: str | None = "finished",
    **measures: float,
) -> Path:
    """A run begun on that day, with a row a loss every 10 steps; measures: in its last row; cause: None if it runs."""
    folder = logs / "runs" / f"{name}_202601{day:02}-120000_{day:02}abcd"
    folder.mkdir(parents=True)
    config = json.loads(settings_text(*flags, "--run_name", name, "--max_steps", str(10 * len(losses) or 1)))
    (folder / "config.json").write_text(json.dumps(config))
    write_rows(folder / "metrics.jsonl", *(row_at(10 * (place + 1), loss) for place, loss in enumerate(losses)))
    if losses:
        write_rows(folder / "metrics.jsonl", row_at(10 * len(losses), losses[-1]) | measures)
    start = {"attempt": 1, "start": "2026-01-01T12:00:00+0000", "host": "desk", "pid": 1, "first_step": 0}
    write_rows(folder / "attempts.jsonl", start)
    if cause is not None:
        end = {"attempt": 1, "end": "2026-01-01T13:00:00+0000", "last_step": 10 * len(losses), "cause": cause}
        write_rows(folder / "attempts.jsonl", end)
    return folder


def row_at(step: int, loss: float) -> dict[str, Any]:
    place = {"step": step, "epoch": 0.1, "tokens": step * 100, "flops": step * 1e9, "seconds": step * 0.5, "attempt": 1}
    return {**place, "train_loss": loss + 0.1, "valid_loss": loss, "valid_accuracy": 1 / loss}


def write_rows(path: Path, *rows: dict[str, Any]) -> None:
    with open(path, "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
