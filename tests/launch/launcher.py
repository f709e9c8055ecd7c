"""`python -m launch` in a checkout of the tests' own, whose train_model.py keeps a run's record and trains nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runs.run import Run, all_runs
from tests.launch.checkout import Checkout

# Behaves as told by the files `fails` and `waits` beside the logs: ends with 1, or lasts until it is told to end.
PRETENDING_TRAIN_MODEL = """\
import json, os, signal, sys, time
run = os.environ["EBT_JOB_RUN_DIR"]
logs = os.path.dirname(os.path.dirname(run))
attempts = os.path.join(run, "attempts.jsonl")
number = 1 + sum("start" in line for line in open(attempts)) if os.path.exists(attempts) else 1
keys = {"job": "SLURM_JOB_ID", "array_job": "SLURM_ARRAY_JOB_ID", "array_task": "SLURM_ARRAY_TASK_ID"}
job = {key: os.environ[name] for key, name in keys.items() if name in os.environ}
def note(**row):
    with open(attempts, "a") as file:
        file.write(json.dumps({"attempt": number, **row}) + "\\n")
def end(cause, status):
    note(end=time.strftime("%Y-%m-%dT%H:%M:%S%z"), last_step=number, cause=cause)
    sys.exit(status)
for name in ("SIGUSR1", "SIGTERM"):
    signal.signal(getattr(signal, name), lambda *_: end("interrupted: " + name, 75))
note(start=time.strftime("%Y-%m-%dT%H:%M:%S%z"), argv=sys.argv[1:], cuda=os.environ.get("CUDA_VISIBLE_DEVICES"),
     session=os.getsid(0), code=__file__, first_step=number - 1, **job)
open(os.path.join(run, "checkpoints", f"step_{number:08}.ckpt"), "w")
is_set = lambda what: os.path.exists(os.path.join(logs, what)) and open(os.path.join(logs, what)).read() in run
if is_set("waits") and number == 1:
    time.sleep(120)
end("error: ValueError", 1) if is_set("fails") else end("finished", 0)
"""
STUDY = """\
base: {no_wandb: true, max_steps: 10}
contestants:
  ours: {flags: {model_size: 4xs}, grid: {peak_learning_rate: [1e-3, 3e-3]}}
  theirs: {flags: {model_name: baseline_transformer, model_size: 4xs}, grid: {peak_learning_rate: [1e-3, 3e-3]}}
tune: {by: valid_loss, seeds: [1]}
confirm: {seeds: [11, 12, 13], measures: [test_loss]}
"""
# As PRETENDING_TRAIN_MODEL, with numbers: the loss is lowest at 3e-3 for `ours` and at 1e-3 for `theirs`.
MEASURING_TRAIN_MODEL = PRETENDING_TRAIN_MODEL.replace(
    'end("error: ValueError", 1) if',
    """\
flags = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word)
rate, seed = float(flags["peak_learning_rate"]), int(flags["seed"])
is_ours = "model_name" not in flags
loss = (1.0 if is_ours else 2.0) + (0.5 if is_ours == (rate == 1e-3) else 0.0)
row = {"step": 10, "valid_loss": loss, "flops": 1000, "seconds": 2.5}
if "--run_testing_after_training" in sys.argv:
    row["test_loss"] = loss + seed / 1000
with open(os.path.join(run, "metrics.jsonl"), "a") as file:
    file.write(json.dumps(row) + "\\n")
with open(os.path.join(run, "model.json"), "w") as file:
    file.write('{"parameters": 1234}')
if is_set("diverges"):
    end("diverged: loss is nan", 1)
end("error: ValueError", 1) if""",
)


class Launcher(Checkout):
    """The folder, and `python -m launch` in it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        (root / "train_model.py").write_text(PRETENDING_TRAIN_MODEL)

    def launch(self, *words: str, status: int = 0, more: dict[str, str] | None = None) -> str:
        """All that it printed; `status` is what it must exit with."""
        done = subprocess.run(
            [sys.executable, "-m", "launch", *words],
            cwd=self.root,
            env=self.environment(more),
            capture_output=True,
            text=True,
            timeout=120,
        )
        output = done.stdout + done.stderr
        assert done.returncode == status, f"status {done.returncode}, not {status}:\n{output}"
        assert "Traceback" not in output
        return output

    def file(self, name: str, text: str) -> str:
        (self.root / name).write_text(text)
        return name

    def tell(self, what: str, which: str) -> None:
        """Let the runs with this in their name fail, or wait."""
        self.logs.mkdir(exist_ok=True)
        (self.logs / what).write_text(which)

    def runs(self) -> list[Run]:
        """In the order in which they were made."""
        return list(all_runs(self.logs))[::-1]

    def run_named(self, name: str) -> Run:
        return next(run for run in reversed(self.runs()) if run.name == name)

    def starts(self, name: str) -> list[dict[str, Any]]:
        """The starts of a run."""
        path = self.run_named(name).path / "attempts.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [row for row in rows if "start" in row]


def wait(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.05)
