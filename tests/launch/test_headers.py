"""The commands of a header: what they bring reaches the run, and one that fails stops the job in a sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from launch.doctor import check_python_of_jobs
from launch.script import Header, active_environment, job_script
from tests.conftest import ROOT

NAME = "job_scripts/headers/mine.slurm"
STOPPED = "ended with status {}; correct that line, or add || true where it may fail\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with a snapshot whose script prints what it was given."""
    run = tmp_path / "a run"
    scripts = run / "code" / "job_scripts"
    scripts.mkdir(parents=True)
    for name in ("environment.sh", "under_slurm.sh", "python"):
        shutil.copy(ROOT / "job_scripts" / name, scripts / name)
    text = 'source job_scripts/environment.sh\nexec "${python:?}" train_model.py "$@"\n'
    (scripts / "mine.sh").write_text(text)
    program(tmp_path / "bin" / "python", 'echo "python $*; $SET"')
    return run


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def ran(run: Path, *commands: str, entering: tuple[str, ...] = (), **more: str) -> tuple[int, str, str]:
    """Status, output and errors of the job's script, where there is no Slurm."""
    text = job_script(Header(NAME, [], list(commands)), "job_scripts/mine.sh", "", ["--x", "a b"], run, list(entering))
    own = {"PATH": f"{run.parent}/bin:/usr/bin:/bin", "EBT_STEP_OF": "none", "VIRTUAL_ENV": "/active"} | more
    (run / "job_script.slurm").write_text(text)
    done = subprocess.run(["bash", str(run / "job_script.slurm")], env=own, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "commands",
    [
        ["module purge", "module --force purge"],
        ["export X=$(false)", "[[ -n $NOWHERE ]] && echo no", "if false; then :; fi", "false || true"],
        ["source failing.sh"],
    ],
)
def test_harmless_commands(run: Path, commands: list[str]) -> None:
    (run / "code" / "failing.sh").write_text("false\ntrue\n")
    assert ran(run, *commands) == (0, "python train_model.py --x a b; \n", "")


@pytest.mark.parametrize(
    ("command", "status", "before"),
    [
        ("module load cuda", 127, f"there is no `module` on {os.uname().nodename}\n"),
        ("false | true", 1, ""),
        ("test -e nowhere", 1, ""),
    ],
)
def test_a_command_that_fails_stops_the_job(run: Path, command: str, status: int, before: str) -> None:
    exit_status, output, errors = ran(run, "module purge", command, "echo not reached")
    assert (exit_status, output) == (1, "") and errors == before + f"{NAME}: `{command}` {STOPPED.format(status)}"


def test_modules_of_login_shells_are_found(run: Path) -> None:
    init = run.parent / "modules" / "init" / "bash"
    init.parent.mkdir(parents=True)
    init.write_text('module() { [[ $2 != none ]] && export SET="$SET$UNSET $*"; }\n')
    home = str(init.parent.parent)
    assert ran(run, "module purge", "module load a", MODULESHOME=home)[1].endswith(";  purge load a\n")
    assert ran(run, "module load none", MODULESHOME=home)[2] == f"{NAME}: `module load none` {STOPPED.format(1)}"


def test_a_python_of_several_words(run: Path) -> None:
    program(run.parent / "bin" / "apptainer", '[[ $3 == "an image.sif" ]] && shift 3 && exec "$@"')
    command = """export EBT_PYTHON='apptainer exec --nv "an image.sif" python'"""
    assert ran(run, command) == (0, "python train_model.py --x a b; \n", "")


def test_a_conda_environment_is_entered_with_its_activate_scripts(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = run.parent / "conda env"
    scripts = prefix / "etc" / "conda" / "activate.d"
    scripts.mkdir(parents=True)
    (scripts / "gdal.sh").write_text('export SET="$CONDA_PREFIX/share $NOT_SET"\n')
    program(prefix / "bin" / "python", 'echo "conda $SET"')
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv("CONDA_PREFIX", str(prefix))
    entering = tuple(active_environment(run))
    assert ran(run, entering=entering, VIRTUAL_ENV="") == (0, f"conda {prefix}/share \n", "")
    shutil.rmtree(scripts)
    assert ran(run, entering=entering, VIRTUAL_ENV="") == (0, "conda \n", "")


def test_the_doctor_takes_the_python_of_a_container_for_meant() -> None:
    process = {"python": "/usr", "python_command": "apptainer exec x.sif python"}
    assert check_python_of_jobs([process]).message == "what the header says: apptainer exec x.sif python"
