"""The door: how long --help and the way to the first step take."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def run() -> list[dict[str, Any]]:
    """Rows of name, value, unit and note; the best of three each, as a person's second try."""
    return [
        {"name": "--help", "value": best_of(["--help"]), "unit": "s", "note": "best of 3; whole process"},
        {
            "name": "start to first step",
            "value": best_of(first_step_flags()),
            "unit": "s",
            "note": "best of 3; one step of the default model and exit, cache warm",
        },
    ]


def first_step_flags() -> list[str]:
    return ["--no_wandb", "--max_steps", "1", "--warm_up_steps", "0", "--val_sanity", "0", "--limit_val_batches", "0"]


def best_of(flags: list[str]) -> float:
    with tempfile.TemporaryDirectory() as logs:
        command = [sys.executable, "train_model.py", *flags]
        if "--help" not in flags:
            command += ["--logs_dir", logs]
        times = []
        for _ in range(3):
            start = time.perf_counter()
            subprocess.run(
                command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ
            )
            times.append(time.perf_counter() - start)
    return min(times)
