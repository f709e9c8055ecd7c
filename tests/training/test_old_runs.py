"""Run folders that an earlier version left: they go on to the same numbers, or are refused with a sentence.

tests/training/old_runs has two of them, with fixed steps, saved after 6 of 12 steps, and the losses they had.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from core.files import read_rows
from tests.conftest import ROOT
from tests.support import warm

OLD = Path(__file__).parent / "old_runs"


def resume(logs: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    (checkpoint,) = (folder / "checkpoints").iterdir()
    command = [sys.executable, "train_model.py", "--no_wandb", "--logs_dir", str(logs)]
    return warm.run(
        [*command, "--resume_training_ckpt", str(checkpoint)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


def take(logs: Path, name: str, **energy: Any) -> Path:
    """The old run in the logs of this test, with these energy flags in its record."""
    folder = logs / "runs" / f"{name}_20260101-000000_000000"
    (folder / "checkpoints").mkdir(parents=True)
    shutil.copy(OLD / name / "config.json", folder)
    checkpoint = torch.load(OLD / name / "step_00000006.ckpt", weights_only=True)
    record = json.loads((folder / "config.json").read_text())
    for tree in (checkpoint["run"]["config"], record):
        assert "version" not in tree
        tree["energy"] |= energy
    (folder / "config.json").write_text(json.dumps(record))
    torch.save(checkpoint, folder / "checkpoints" / "step_00000006.ckpt")
    return folder


@pytest.mark.parametrize("name", ["s1", "laptop"])
def test_an_old_run_goes_on_to_the_same_numbers(tmp_path: Path, name: str) -> None:
    folder = take(tmp_path, name)
    done = resume(tmp_path, folder)
    assert done.returncode == 0, done.stderr
    losses = {row["step"]: row["train_loss"] for row in read_rows(folder / "metrics.jsonl") if "train_loss" in row}
    expected = json.loads((OLD / name / "losses.json").read_text())
    assert sorted(losses) == list(range(7, 13))
    for step, loss in losses.items():
        assert loss == pytest.approx(expected[str(step)], rel=1e-5), step
    record = json.loads((folder / "config.json").read_text())
    assert record["version"] == 2 and record["energy"]["energy_form"] == "scalar"
    assert record["energy"]["mcmc_last_step_loss"] == (name == "laptop") and not record["energy"]["truncate_mcmc"]


@pytest.mark.parametrize(
    ("energy", "sentence"),
    [
        ({"randomize_mcmc_step_size_scale": 2.0}, "a size was drawn for each step; now it is drawn once for a walk"),
        ({"mcmc_replay_buffer": True}, "old rows replaced those of a batch; now they are appended"),
        ({"randomize_mcmc_num_steps": 2}, "now each landscape is repeated"),
    ],
)
def test_an_old_run_that_would_train_otherwise_is_refused(
    tmp_path: Path, energy: dict[str, Any], sentence: str
) -> None:
    done = resume(tmp_path, take(tmp_path, "laptop", **energy))
    (flag,) = energy
    assert done.returncode == 2
    assert f"was made by an earlier version, in which --{flag} meant another thing" in done.stderr
    assert sentence in done.stderr and "start a new run" in done.stderr
