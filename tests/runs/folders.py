"""Run folders written by hand, in milliseconds, and `python -m runs` called on them."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from config import parse_command_line
from config.record import to_dict
from runs.__main__ import main
from runs.folder import task_record_of
from tests.runs.points import TASK


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
    write_rows(folder / "metrics.jsonl", *(row_at(10 * (index + 1), loss) for index, loss in enumerate(losses)))
    if losses:
        write_rows(folder / "metrics.jsonl", row_at(10 * len(losses), losses[-1]) | measures)
    start = {"attempt": 1, "start": "2026-01-01T12:00:00+0000", "host": "desk", "pid": 1, "first_step": 0}
    write_rows(folder / "attempts.jsonl", start)
    if cause is not None:
        end = {"attempt": 1, "end": "2026-01-01T13:00:00+0000", "last_step": 10 * len(losses), "cause": cause}
        write_rows(folder / "attempts.jsonl", end)
    return folder


def fake_run(
    logs: Path,
    name: str = "tiny",
    seed: int = 0,
    rows: list[dict[str, Any]] | None = None,
    flags: tuple[str, ...] = (),
    offset: float = 0.0,
    steps: int = 200,
    flops: bool = True,
    number: int = 0,
) -> Path:
    """A run folder written by hand, with a loss that falls to 1 + offset."""
    config = to_dict(parse_command_line(["--seed", str(seed), "--logs_dir", str(logs), *flags]))
    config["run"]["run_name"] = name  # a record may have been written by another program, with fewer scruples
    slug = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.")
    path = logs / "runs" / f"{slug}_20260102-0304{number:02}_{seed:06x}"
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "command.txt").write_text("python train_model.py\n")
    if rows is None:
        rows = []
        for step in range(0, steps + 1, 10):
            row: dict[str, Any] = {"step": step, "tokens": 64 * step, "seconds": 0.5 * step, "attempt": 1}
            row |= {"flops": 1e9 * step} if flops else {}
            loss = 1 + offset + 4 * math.exp(-step / 40)
            rows.append({**row, "train_loss": loss, "energy_first": 1.0 + step, "energy_last": -1.0 - step})
            if step % 20 == 0:
                rows.append(
                    {**row, "valid_loss": loss + 0.1, "valid_loss_step_1": loss + 0.3, "valid_loss_step_2": loss}
                )
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    began = {"attempt": 1, "start": "2026-01-02T03:04:05+0000", "first_step": 0}
    ended = {"attempt": 1, "end": "2026-01-02T03:14:05+0000", "last_step": steps, "cause": "finished"}
    (path / "attempts.jsonl").write_text(f"{json.dumps(began)}\n{json.dumps(ended)}\n")
    return path


def make_point_run(
    logs: Path, name: str = "spots", *flags: str, day: int = 1, scores: tuple[float, ...] = (0.5, 0.9, 0.8)
) -> Path:
    """A run of a task from outside, tests/runs/points.py, with a row a score every 10 steps."""
    flags = ("--task", TASK.name, *flags, "--max_steps", "30")
    folder = make_run(logs, name, *flags, day=day, losses=())
    (folder / "task.json").write_text(json.dumps(task_record_of(parse_command_line(list(flags)))))
    write_rows(folder / "metrics.jsonl", *point_rows(scores))
    return folder


def point_rows(scores: tuple[float, ...]) -> list[dict[str, Any]]:
    rows = []
    for number, score in enumerate(scores, 1):
        row = {"step": 10 * number, "epoch": 0.1, "points": 1000 * number, "flops": 1e9 * number, "seconds": 5 * number}
        row |= {"attempt": 1, "train_score": score + 0.1, "noise": 0.3, "valid_rmse/left": 2.0 - score}
        rows.append(row | {"valid_score": score, "valid_near": score / 2, "points_per_second": 200.0 + number})
    return rows


def make_puzzle_run(
    logs: Path, name: str = "thinker", *flags: str, day: int = 1, gain: float = 0.0, steps: int = 1200
) -> Path:
    """A run of a task whose code is not here: puzzles that are solved in 1 to 32 steps, with boards as pictures."""
    folder = make_run(logs, name, *flags, day=day, losses=())
    measures = [
        {"name": "solved", "title": "solved", "unit": "share of puzzles", "better": "higher"},
        {"name": "solved_shifted", "title": "harder ones solved", "unit": "share of puzzles", "better": "higher"},
        {"name": "loss", "title": "loss", "unit": "nats per cell", "better": "lower"},
        {"name": "accuracy", "title": "accuracy", "unit": "share of cells", "better": "higher"},
        {"name": "solved_step_*", "title": "solved after * steps", "unit": "share of puzzles", "better": "higher"},
        {
            "name": "solved_shifted_step_*",
            "title": "harder ones solved after * steps",
            "unit": "share of puzzles",
            "better": "higher",
        },
        {"name": "energy_*", "title": "energy of * puzzles"},
    ]
    task = {"name": "reasoning", "unit": "puzzles", "headline": "valid_solved", "measures": measures}
    (folder / "task.json").write_text(json.dumps(task))
    (folder / "pictures").mkdir()
    for number in range(13):
        step = steps * number // 12
        row = {"step": step, "puzzles": 64 * step, "flops": 1e9 * step, "seconds": step / 10, "attempt": 1}
        write_rows(folder / "metrics.jsonl", {**row, "train_loss": 2.0 - number / 10, "gradient_norm": 1.0 + number})
        write_rows(folder / "metrics.jsonl", {**row, **puzzle_results("valid", number / 12, gain)})
        shade = Image.new("RGB", (180, 120), (20 * number, 90, 160))
        shade.save(folder / "pictures" / f"board_step_{step:07d}.png")
    write_rows(folder / "metrics.jsonl", {**row, **puzzle_results("test", 1.0, gain)})
    Image.new("RGB", (180, 120)).save(folder / "walk.png")
    return folder


def puzzle_results(split: str, trained: float, gain: float) -> dict[str, float]:
    def solved(thinking: int, hard: float) -> float:
        return (0.9 + gain) * trained * (1 - math.exp(-thinking / hard))

    results = {f"solved_step_{number}": solved(number, 4.0) for number in (1, 2, 4, 8, 16, 32)}
    results |= {f"solved_shifted_step_{number}": solved(number, 12.0) for number in (1, 2, 4, 8, 16, 32)}
    results |= {"solved": solved(16, 4.0), "solved_shifted": solved(16, 12.0), "accuracy": 0.5 + 0.4 * trained}
    results |= {"loss": 2.0 - trained, "energy_solved": -3.0 * trained, "energy_unsolved": -trained, "targets": 512.0}
    return {f"{split}_{name}": value for name, value in results.items()}


def row_at(step: int, loss: float) -> dict[str, Any]:
    axes = {"step": step, "epoch": 0.1, "tokens": step * 100, "flops": step * 1e9, "seconds": step * 0.5, "attempt": 1}
    return {**axes, "train_loss": loss + 0.1, "valid_loss": loss, "valid_accuracy": 1 / loss}


def write_rows(path: Path, *rows: dict[str, Any]) -> None:
    with open(path, "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


class Command:
    """`python -m runs`: what it prints, its complaint, or its table as rows of words."""

    def __init__(self, logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.logs, self.capsys = logs, capsys

    def __call__(self, *words: str) -> str:
        assert main([*words, "--logs_dir", str(self.logs)]) == 0
        return self.capsys.readouterr().out

    def refused(self, *words: str) -> str:
        assert main([*words, "--logs_dir", str(self.logs)]) == 2
        out, err = self.capsys.readouterr()
        assert not out
        return err.removesuffix("\n")

    def names(self, *words: str) -> list[str]:
        rows = csv.DictReader(io.StringIO(self("list", "--csv", "--columns", "name", *words)))
        return [row["name"] for row in rows]
