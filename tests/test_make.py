"""The Makefile in a checkout of the tests' own: what it installs into, and what it leaves alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

NOTES = '#!/bin/sh\necho "$0 $*" >>"$NOTES"\ncase "$*" in *sys.prefix*) echo "$PREFIX" ;; esac\n'


class Copy:
    """A folder with the Makefile; whatever its Python is asked to do is noted, not done."""

    def __init__(self, root: Path) -> None:
        self.root, self.notes = root / "checkout", root / "notes"
        (self.root / "tests").mkdir(parents=True)
        for name in ("Makefile", "setup.cfg", "pyproject.toml", ".gitignore"):
            shutil.copy(ROOT / name, self.root)
        shutil.copytree(ROOT / "tests" / "slurm", self.root / "tests" / "slurm")
        (self.root / "tests" / "__init__.py").touch()

    def environment(self, folder: Path, made_in: Path | None = None) -> Path:
        """A .venv whose programs say that they belong to `made_in`."""
        (folder / "bin").mkdir(parents=True)
        for name in ("python", "pip"):
            (folder / "bin" / name).write_text(f"{NOTES}# {made_in or folder}/bin/python\n")
            (folder / "bin" / name).chmod(0o755)
        return folder

    def make(self, *words: str, prefix: Path | None = None, path: str = os.environ["PATH"]) -> tuple[int, str]:
        command = [str(shutil.which("make")), *words, f"PYTHON={sys.executable}"]
        more = {"NOTES": str(self.notes), "PREFIX": str(prefix or self.root / ".venv"), "PATH": path}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")} | more
        done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    @property
    def installs(self) -> int:
        return self.notes.read_text().count("pip install") if self.notes.exists() else 0


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_set_up_installs_into_the_folders_own_environment_once(copy: Copy) -> None:
    copy.environment(copy.root / ".venv")
    assert copy.make("setup")[0] == 0 and copy.installs == 2
    assert copy.make("setup")[0] == 0 and copy.installs == 2, "nothing changed, so nothing is installed"


@pytest.mark.parametrize("target", ["setup", "test", "lint", "train"])
def test_a_linked_environment_is_refused(copy: Copy, tmp_path: Path, target: str) -> None:
    other = copy.environment(tmp_path / "other" / ".venv")
    (other / "installed").touch()
    (copy.root / ".venv").symlink_to(other)
    status, output = copy.make(target)
    assert status == 2 and copy.installs == 0
    assert f".venv is a link to {other}" in output and "make clean setup" in output


def test_an_environment_of_another_folder_is_refused(copy: Copy, tmp_path: Path) -> None:
    copy.environment(copy.root / ".venv", made_in=tmp_path / "other" / ".venv")
    status, output = copy.make("setup")
    assert status == 2 and copy.installs == 0 and "belongs to another folder" in output and "make clean setup" in output


def test_a_python_of_another_folder_is_refused(copy: Copy, tmp_path: Path) -> None:
    copy.environment(copy.root / ".venv")
    status, output = copy.make("setup", prefix=tmp_path / "other" / ".venv")
    assert status == 2 and copy.installs == 0 and "belongs to another folder" in output


def test_clean_removes_a_link_and_not_what_it_leads_to(copy: Copy, tmp_path: Path) -> None:
    other = copy.environment(tmp_path / "other" / ".venv")
    (copy.root / ".venv").symlink_to(other)
    assert copy.make("clean")[0] == 0
    assert not (copy.root / ".venv").is_symlink() and (other / "bin" / "pip").exists()


@pytest.mark.parametrize("target", ["slurm-up", "slurm-down"])
def test_slurm_targets_install_nothing(copy: Copy, target: str) -> None:
    (copy.root / ".venv").symlink_to("nowhere")
    status, output = copy.make("--dry-run", target)
    assert (status, output.split()[1:]) == (0, ["-m", "tests.slurm.cluster", target.removeprefix("slurm-")])


def test_slurm_up_says_what_installs_a_missing_part(copy: Copy, tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "sh").symlink_to("/bin/sh")
    status, output = copy.make("slurm-up", path=str(tmp_path / "programs"))
    assert status == 2 and not (copy.root / ".venv").exists()
    assert "sbatch" in output and "apt-get install slurm-wlm munge" in output and "Traceback" not in output


@pytest.mark.parametrize("name", [".venv", "logs"])
def test_a_link_instead_of_a_folder_leaves_a_checkout_clean(copy: Copy, tmp_path: Path, name: str) -> None:
    (copy.root / name).symlink_to(tmp_path)
    subprocess.run(["git", "init", "--quiet"], cwd=copy.root, check=True)
    listed = ["git", "ls-files", "--others", "--exclude-standard"]
    untracked = subprocess.run(listed, cwd=copy.root, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "Makefile" in untracked and name not in untracked
