"""What the job scripts do where there is no Slurm, and that a shell understands them all."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from config import parse_command_line
from tests.conftest import ROOT, TrainCommand
from tests.slurm.jobs import environment

SCRIPTS = sorted([*ROOT.glob("job_scripts/**/*.s*"), *ROOT.glob("*.sh"), ROOT / ".ci/run", ROOT / "job_scripts/python"])


def test_train_slurm_with_plain_bash(train_command: TrainCommand) -> None:
    flags = train_command.command("--run_name", """a "run" of 'mine'""")[2:]
    command = ["bash", str(ROOT / "job_scripts" / "train.slurm"), *flags]
    done = subprocess.run(command, cwd="/", env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert train_command.run_folder.name.startswith("a-run-of-mine_")
    assert not (train_command.run_folder / "job.json").exists()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_shellcheck(script: Path) -> None:
    if shutil.which("shellcheck") is None:
        sentence = "shellcheck is needed: apt-get install shellcheck."
        pytest.fail(sentence) if os.environ.get("CI") == "true" else pytest.skip(sentence)
    done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "job_scripts" / "train.slurm"]
SUBMITTED = re.compile(r"^(?:#   )?sbatch ([^`\n]*?)job_scripts/train\.slurm([^`\n\[]*)$", re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "flags"), [command for page in PAGES for command in SUBMITTED.findall(page.read_text())]
)
def test_every_submission_of_the_pages_parses(options: str, flags: str) -> None:
    parse_command_line(shlex.split(flags))
    assert all(word.startswith("--") for word in shlex.split(options)[::2])


def test_submissions_are_found() -> None:
    assert len(SUBMITTED.findall((ROOT / "docs" / "slurm.md").read_text())) >= 8
