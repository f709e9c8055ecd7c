"""Which variables a process that is started for another run does not inherit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from core import environment
from core.environment import clean_environment, without_run

ROOT = Path(__file__).parents[2]


def test_what_belongs_to_a_job_or_a_run_is_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "PMI_RANK", "SBATCH_OUTPUT", "RANK", "EBT_RUN_DIR", "EBT_LINEAGE"):
        monkeypatch.setenv(name, "1")
    for name in ("SLURM_CONF", "SBATCH_ACCOUNT", "EBT_CACHE", "EBT_NOTIFY"):
        monkeypatch.setenv(name, "2")
    clean = clean_environment()
    assert not {"SLURM_JOB_ID", "PMI_RANK", "SBATCH_OUTPUT", "RANK", "EBT_RUN_DIR", "EBT_LINEAGE"} & clean.keys()
    assert {"SLURM_CONF", "SBATCH_ACCOUNT", "EBT_CACHE", "EBT_NOTIFY"} <= clean.keys()
    assert {"SLURM_JOB_ID", "SBATCH_OUTPUT"} <= without_run().keys() and "EBT_RUN_DIR" not in without_run()


def test_every_variable_of_the_project_is_listed() -> None:
    listed = {value for value in vars(environment).values() if isinstance(value, str) and value.startswith("EBT_")}
    rooms = ("core", "config", "data", "models", "tasks", "training", "inference", "runs", "launch", "job_scripts")
    files = [file for room in rooms for ending in ("py", "sh", "slurm") for file in (ROOT / room).rglob(f"*.{ending}")]
    used = {name for file in files for name in re.findall(r"\bEBT_[A-Z_]+\b", file.read_text())}
    assert used - listed <= {"EBT_NOTIFY_EVENT", "EBT_NOTIFY_RUN", "EBT_NOTIFY_NAME"}
