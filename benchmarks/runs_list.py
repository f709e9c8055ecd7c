"""`python -m runs list` over ten thousand runs: from the index, and with the index rebuilt."""

from __future__ import annotations

import json
import random
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.measure import Measurement, best_seconds, run_python, seconds
from config import parse_command_line
from config.record import to_dict

RUNS = 10_000
ROWS = 80  # of metrics: a run of 800 steps, a row every ten
QUERY = ("--where", "ebt_type=time_embed and valid_loss<2", "--sort", "-valid_loss")


def run(runs: int = RUNS, tries: int = 3) -> list[Measurement]:
    with tempfile.TemporaryDirectory() as logs:
        write_runs(Path(logs), runs)
        list_runs = partial(run_python, "-m", "runs", "list", "--logs_dir", logs)
        first = seconds(list_runs)
        all_runs, query = (best_seconds(call, tries) for call in (list_runs, partial(list_runs, *QUERY)))
    note = f"{runs:,} runs of {ROWS} rows; whole process"
    return [
        Measurement("runs list, index rebuilt", first, "s", note),
        Measurement("runs list", all_runs, "s", f"best of {tries}; {note}"),
        Measurement("runs list --where --sort", query, "s", f"best of {tries}; {note}"),
    ]


def write_runs(logs: Path, runs: int) -> None:
    """Folders as trainings leave them: each with settings, rows and a seed of its own."""
    draw = random.Random(0)
    config = to_dict(parse_command_line([]))
    rows = [row_of(step * 10, draw) for step in range(ROWS)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    start = {"attempt": 1, "start": "2026-01-01T12:00:00+0000", "host": "desk", "first_step": 0}
    end = {"attempt": 1, "end": "2026-01-01T13:00:00+0000", "last_step": 800, "cause": "finished"}
    for number in range(runs):
        day = time.strftime("%Y%m%d-%H%M%S", time.gmtime(1.7e9 + 3600 * number))
        folder = logs / "runs" / f"run-{number % 997}_{day}_{number:06x}"
        folder.mkdir(parents=True)
        config["run"]["run_name"] = f"run-{number % 997}"
        config["trainer"]["seed"] = number
        config["energy"]["ebt_type"] = draw.choice(["default", "time_embed", "adaln"])
        config["optimizer"]["peak_learning_rate"] = draw.choice([0.001, 0.002, 0.003])
        (folder / "config.json").write_text(json.dumps(config, indent=1))
        (folder / "attempts.jsonl").write_text(f"{json.dumps(start)}\n{json.dumps(end)}\n")
        (folder / "metrics.jsonl").write_text(text + json.dumps(row_of(800, draw) | validation(draw)) + "\n")


def row_of(step: int, draw: random.Random) -> dict[str, float]:
    """As wide as a row of an EBT."""
    names = ("train_loss", "gradient_norm", "clipped_share", "tokens_per_second", "learning_rate", "energy_first")
    more = (
        "energy_last",
        "energy_gap",
        "energy_gradient_norm",
        "step_size",
        "thinking_gain",
        "learning_rate/step_size",
    )
    position = {
        "step": step,
        "epoch": 0.1,
        "tokens": step * 1024,
        "flops": step * 1e9,
        "seconds": step / 2,
        "time": 1.7e9,
    }
    return position | {"attempt": 1} | {name: 3 * draw.random() for name in names + more}


def validation(draw: random.Random) -> dict[str, float]:
    names = ("loss", "perplexity", "accuracy", "top5", "loss_step_1", "loss_step_2", "thinking_gain", "bits_per_byte")
    return {f"valid_{name}": 1 + 2 * draw.random() for name in names}
