"""A checkout of the tests' own: this code, with a train_model.py that only records what it received."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.conftest import ROOT

FOLDERS = ("core", "config", "tasks", "runs", "launch", "job_scripts")
RECORDING_TRAIN_MODEL = """\
import json, os, sys
record = {"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ), "code": __file__}
open(os.path.join(os.environ["EBT_JOB_RUN_DIR"], "received.json"), "w").write(json.dumps(record))
process = os.path.join(os.environ["EBT_JOB_RUN_DIR"], "process-" + os.environ.get("SLURM_PROCID", ""))
open(process, "w").write(os.environ.get("EBT_RANDOM_SEED", ""))
sys.exit(int(os.environ.get("EXIT_WITH", "0")))
"""
SCRIPT = "job_scripts/nlp/pretrain/ebt_s1.sh"
RECORD = {"config.json", "command.txt", "code.json", "code.diff", "environment.json", "job_script.slurm", "code"}
# Words of a command line that a shell, Python or Slurm could misread.
WORDS = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
    | st.sampled_from(
        ["$(touch gone)", "`touch gone`", "'; touch gone; '", "\n#SBATCH --x\ntouch gone\n", "*", "~", "!!"]
    )
    | st.text("'\"\\$`\n ;&|#", max_size=12),
    max_size=5,
)


class Checkout:
    """The folder, and slurm_executor.sh in it."""

    def __init__(self, root: Path) -> None:
        self.root, self.logs = root, root / "logs"
        root.mkdir(parents=True)
        for name in filter(lambda name: (ROOT / name).is_dir(), FOLDERS):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy2(ROOT / "slurm_executor.sh", root)
        (root / "train_model.py").write_text(RECORDING_TRAIN_MODEL)
        self.programs = root.parent / "programs"
        self.programs.mkdir()

    def environment(self, more: dict[str, str] | None = None) -> dict[str, str]:
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "EBT_", "CONDA"))}
        path = f"{self.programs}:{Path(sys.executable).parent}:/usr/bin:/bin"
        return variables | {"VIRTUAL_ENV": sys.prefix, "PATH": path} | (more or {})

    def execute(self, *words: str, status: int = 0, more: dict[str, str] | None = None) -> str:
        """All that slurm_executor.sh printed; `status` is what it must exit with."""
        command = ["bash", str(self.root / "slurm_executor.sh"), *words]
        done = subprocess.run(command, cwd="/", env=self.environment(more), capture_output=True, text=True, timeout=120)
        output = done.stdout + done.stderr
        assert done.returncode == status, f"status {done.returncode}, not {status}:\n{output}"
        return output

    def program(self, name: str, text: str) -> None:
        """A program that stands for one of Slurm's."""
        (self.programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.programs / name).chmod(0o755)

    def script(self, text: str, name: str = "mine.sh") -> str:
        path = self.root / "job_scripts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return f"job_scripts/{name}"

    @property
    def run(self) -> Path:
        (run,) = (self.logs / "runs").iterdir()
        return run

    def received(self) -> dict[str, Any]:
        """What the last train_model.py received: argv, cwd, env, and the path of its code."""
        return json.loads((self.run / "received.json").read_bytes())

    def submission(self) -> dict[str, Any]:
        return json.loads((self.run / "submission.json").read_bytes())
