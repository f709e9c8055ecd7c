"""Run folders that commit 18d3aad left are listed, shown, drawn and resumed.

tests/golden/old_runs has six of them, trained on the synthetic text: a finished Transformer++; one that was resumed
(--recipe laptop); one with a replay buffer (--recipe s2); one with BPE tokens; one that a divergence rolled back; and
one that was a job of Slurm (--recipe s1). Each has its last checkpoint only. old_NAME.json has what they give four
steps later. Here losses are compared to four digits: CPUs round differently. `make golden` compares bit for bit, on
the machine where the numbers were recorded.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.golden.record import FOLDER, OLD_RUNS, resume_command, rows_of
from tests.support import warm


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logs = tmp_path_factory.mktemp("old") / "logs"
    shutil.copytree(FOLDER / "old_runs", logs / "runs", symlinks=True)
    return logs


def command(*words: str) -> str:
    done = warm.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_they_are_listed(logs: Path) -> None:
    runs = json.loads(command("-m", "runs", "list", "--json", "--logs_dir", str(logs)))
    assert {run["name"]: run["state"] for run in runs} == dict.fromkeys(OLD_RUNS, "finished")
    assert {run["name"] for run in runs if run["attempts"] > 1} == {"resumed"}


@pytest.mark.parametrize("name", OLD_RUNS)
def test_they_are_shown(logs: Path, name: str) -> None:
    shown = command("-m", "runs", "show", name, "--logs_dir", str(logs))
    assert OLD_RUNS[name].name in shown and "valid_loss" in shown and "finished" in shown


def test_they_have_pages(logs: Path) -> None:
    command("-m", "runs", "page", "--logs_dir", str(logs))
    overview = (logs / "pages" / "runs.js").read_text()
    for folder in OLD_RUNS.values():
        assert folder.name in overview
        assert (logs / "pages" / f"{folder.name}.html").exists()


@pytest.mark.parametrize("name", OLD_RUNS)
def test_they_resume_to_the_same_numbers(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "runs" / OLD_RUNS[name].name
    shutil.copytree(OLD_RUNS[name], folder, symlinks=True)
    command(*resume_command(tmp_path, name))
    expected = json.loads((FOLDER / f"old_{name}.json").read_text())["metrics"]
    rows = rows_of(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [row["step"] for row in expected]
    for row, golden in zip(rows, expected, strict=True):
        for measure in {"train_loss", "valid_loss"} & golden.keys():
            assert row[measure] == pytest.approx(golden[measure], rel=1e-4), (row["step"], measure)
