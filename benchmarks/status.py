"""`python -m launch status` over as many run folders as a year leaves."""

from __future__ import annotations

import json
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.measure import Measurement, best_seconds, run_python
from config.parser import parse_command_line
from config.record import to_dict

RUNS = 5000


def run() -> list[Measurement]:
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder), RUNS)
        status = partial(run_python, "-m", "launch", "status", "--logs_dir", folder)
        note = f"best of 3; whole process, {RUNS:,} run folders"
        return [
            Measurement("status", best_seconds(status), "s", note),
            Measurement("status --all", best_seconds(partial(status, "--all")), "s", note),
        ]


def write_runs(logs: Path, count: int) -> None:
    """Most finished, after up to three attempts; one in a hundred runs, waits, failed or was killed."""
    settings = json.dumps(to_dict(parse_command_line([])), indent=1)
    now = time.time()
    for number in range(count):
        began = now - 3600 * number
        run = logs / "runs" / f"run-{number % 37}_{stamp(began, '%Y%m%d-%H%M%S')}_{number:06x}"
        (run / "checkpoints").mkdir(parents=True)
        (run / "config.json").write_text(settings)
        submission = {"typed": ["a100", "job_scripts/train.slurm"], "state": "released", "time": stamp(began)}
        (run / "submission.json").write_text(json.dumps(submission | {"job": str(number)}))
        kind = number % 100
        if kind == 1:
            continue  # it waits, as far as its folder knows
        (run / "job.json").write_text(json.dumps({"job": str(number), "starts": [0]}))
        (run / "metrics.jsonl").write_text('{"step": 100, "train_loss": 2.0, "attempt": 1}\n' * 50)
        beat = {"time": now, "phase": "training", "step": 900, "total_steps": 1000, "train_loss": 2.0}
        (run / "heartbeat.json").write_text(json.dumps(beat | {"tokens_per_second": 1e4, "seconds_left": 60.0}))
        cause = {2: "error: ValueError", 3: "killed"}.get(kind, "finished")
        rows = []
        for attempt in range(1, 2 + number % 3):
            rows.append({"attempt": attempt, "start": stamp(began), "host": "n1", "pid": 1, "job": str(number)})
            rows.append({"attempt": attempt, "end": stamp(began + 60), "last_step": 900, "cause": "interrupted"})
        rows[-1]["cause"] = cause
        (run / "attempts.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows[: -1 if kind == 4 else None])
        )


def stamp(seconds: float, form: str = "%Y-%m-%dT%H:%M:%S%z") -> str:
    return time.strftime(form, time.localtime(seconds))
