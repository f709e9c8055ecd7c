"""How long `train_model.py --help` takes, and the start of a training up to its first step."""

from __future__ import annotations

import tempfile
from functools import partial

from benchmarks.measure import Measurement, best_seconds, run_python

ONE_STEP = "--no_wandb --max_steps 1 --warm_up_steps 0 --val_sanity 0 --limit_val_batches 0"


def run() -> list[Measurement]:
    with tempfile.TemporaryDirectory() as logs:
        first_step = partial(run_python, "train_model.py", *ONE_STEP.split(), "--logs_dir", logs)
        note = "best of 3; one step of the default model and exit, cache warm"
        return [
            Measurement(
                "--help", best_seconds(partial(run_python, "train_model.py", "--help")), "s", "best of 3; whole process"
            ),
            Measurement("start to first step", best_seconds(first_step), "s", note),
        ]
