"""A task from outside of the checkout is kept with its runs, and launch names what it counts and is judged by."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from launch.capsule import Code, add_task
from launch.sweep import plan_rows
from launch.sweep_file import SweepFile, read_sweep
from runs.run import Run, all_runs
from tests.conftest import ROOT
from tests.launch.launcher import wait

TASK = "toylab.mixture"
SMALL = {"task": TASK, "max_steps": 8, "log_every_n_steps": 2, "mcmc_num_steps": 1, "no_wandb": True}
SMALL |= {"val_sanity": 0, "limit_val_batches": 1, "limit_test_batches": 1}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with the toy task, which can be removed."""
    folder = tmp_path / "outside"
    shutil.copytree(ROOT / "tests" / "toy", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def importable(outside: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(outside))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("toylab", "space")]:
        monkeypatch.delitem(sys.modules, name)
    return outside


def launch(*words: str, path: Path | None = None) -> str:
    """What `python -m launch` prints; path: a folder that it finds modules in."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "EBT_"))}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(path) if path else ""}
    command = [sys.executable, "-m", "launch", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait_for_ends(logs: Path, count: int) -> list[Run]:
    """The runs, as soon as all are over; the task's own folder is gone by then."""
    over = ("finished", "failed", "killed", "interrupted", "diverged")
    wait("the end of the runs", lambda: sum(run.state in over for run in all_runs(logs)) == count)
    runs = sorted(all_runs(logs), key=lambda run: run.name)
    for run in runs:
        logs_of_run = [*run.path.glob("*.log"), *run.path.glob("submitit/*.out"), *logs.glob("queue/*.log")]
        assert run.state == "finished", "\n".join(log.read_text() for log in logs_of_run)
    return runs


def check_status(logs: Path, runs: list[Run]) -> None:
    """`launch status` speaks of points, and needs no module of the task."""
    rows: list[dict[str, Any]] = [
        json.loads(line) for line in launch("status", "--json", *logs_flag(logs)).splitlines()
    ]
    assert {row["run"] for row in rows} == {run.run_id for run in runs}
    for row in rows:
        assert row["step"] == row["total_steps"] == 8 and row["points_per_second"] > 0 and row["train_loss"] > 0
        assert "tokens_per_second" not in row
    assert "squared distance" in launch("status", *logs_flag(logs))


def logs_flag(logs: Path) -> list[str]:
    return ["--logs_dir", str(logs)]


def flags(values: dict[str, Any]) -> list[str]:
    return [
        word for name, value in values.items() for word in ([f"--{name}"] if value is True else [f"--{name}={value}"])
    ]


def test_a_run_in_the_background_finds_its_task(tmp_path: Path, outside: Path) -> None:
    logs = tmp_path / "logs"
    launch("submit", "--cluster", "local", *flags(SMALL), "--num_modes=4", *logs_flag(logs), path=outside)
    shutil.rmtree(outside)
    (run,) = runs = wait_for_ends(logs, 1)
    assert run.submission["task_packages"] == {"toylab": str(outside / "toylab")}
    files = [file.name for file in (ROOT / "tests" / "toy" / "toylab").glob("*.py")]
    assert filecmp.cmpfiles(ROOT / "tests" / "toy" / "toylab", run.path / "code" / "toylab", files)[0] == files
    assert run.settings["num_modes"] == 4 and run.task.unit == "points"
    check_status(logs, runs)


def test_a_sweep_trains_every_setting(tmp_path: Path, outside: Path) -> None:
    logs, file = tmp_path / "logs", tmp_path / "corners.yaml"
    file.write_text(json.dumps({"base": SMALL, "grid": {"num_modes": [3, 4]}}))
    table = launch("sweep", str(file), "--cluster", "local", *logs_flag(logs), path=outside)
    assert "2 rows: 2 new; 2 to submit" in table
    shutil.rmtree(outside)
    runs = wait_for_ends(logs, 2)
    assert [run.settings["num_modes"] for run in runs] == [3, 4] and runs[0].swept == {"num_modes": "3"}
    assert all(run.submission["task_packages"].keys() == {"toylab"} for run in runs)
    check_status(logs, runs)


def test_flags_of_the_task_are_known_to_a_sweep(tmp_path: Path, importable: Path) -> None:
    file = tmp_path / "corners.csv"
    file.write_text(f"task,num_modes\n{TASK},3\n{TASK},4\n")
    first, second = plan_rows(read_sweep(file), tmp_path)
    assert (first.name, second.name) == ("corners-num_modes=3", "corners-num_modes=4")
    assert first.identity != second.identity
    file.write_text("num_modes\n3\n")
    with pytest.raises(UserError, match=r"--num_modes is unknown"):
        read_sweep(file)


def test_a_task_without_a_twin(tmp_path: Path, importable: Path) -> None:
    sentence = f"^--with_twin has no effect with --task {TASK}, which has no baseline: remove it.$"
    with pytest.raises(UserError, match=sentence):
        plan_rows(SweepFile("mine", [{"task": TASK}], twin=True), tmp_path)


def test_what_belongs_to_a_package(importable: Path) -> None:
    (importable / "toylab" / "part").mkdir()
    (importable / "toylab" / "part" / "points.txt").write_text("1 2\n")
    (importable / "toylab" / ".env").write_text("KEY=hidden\n")
    code = Code()
    add_task(code, TASK)
    assert code.skipped == ["toylab/.env"]
    assert sorted(code.files) == [
        "toylab/__init__.py",
        "toylab/failing.py",
        "toylab/mixture.py",
        "toylab/mixture_model.py",
        "toylab/part/points.txt",
        "toylab/silent.py",
    ]
    for task in ("language", "tasks.language"):
        code = Code({"tasks/__init__.py": ROOT / "tasks" / "__init__.py"})
        add_task(code, task)
        assert not code.packages, "the checkout has it"


def test_a_module_without_a_package_is_refused(importable: Path) -> None:
    (importable / "space").mkdir()
    shutil.copy(importable / "toylab" / "mixture.py", importable / "space" / "mixture.py")
    with pytest.raises(UserError, match=r"^--task is 'space.mixture': .* add one to the folder 'space'.$"):
        add_task(Code(), "space.mixture")
