"""Jobs of job_scripts/train.slurm on the test cluster: submitted, watched, interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from core.files import read_rows
from tests.conftest import ROOT
from tests.slurm.cluster import Cluster

SCRIPT = ROOT / "job_scripts" / "train.slurm"
PATIENCE = 150.0  # seconds that a busy machine may take for anything


def environment(cluster: Cluster | None = None) -> dict[str, str]:
    """This Python as an active environment, outside of any job."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "EBT_JOB"))}
    mine |= {"VIRTUAL_ENV": sys.prefix, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return mine | (cluster.environment if cluster else {})


def losses(folder: Path) -> list[tuple[int, float]]:
    """Step and loss of every row that was logged while training."""
    return [(row["step"], row["train_loss"]) for row in read_rows(folder / "metrics.jsonl") if "train_loss" in row]


def attempts(folder: Path) -> list[dict[str, Any]]:
    """One dictionary an attempt, of its first and its last row."""
    merged: dict[int, dict[str, Any]] = {}
    for row in read_rows(folder / "attempts.jsonl"):
        merged.setdefault(row["attempt"], {}).update(row)
    return list(merged.values())


class Job:
    """A job with its log and its runs in `folder`, a folder of the test's own. more: variables of its environment."""

    def __init__(self, cluster: Cluster, folder: Path, flags: list[str], *options: str, **more: str) -> None:
        self.cluster, self.logs = cluster, folder / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        self.output = folder
        words = ["sbatch", "--parsable", f"--output={folder}/slurm-%x-%j.out", *options]
        words += ["job_scripts/train.slurm", *flags, "--logs_dir", str(self.logs)]
        # As if from a shell in another job's step, where all that srun tells its processes is inherited.
        enclosing = {"SLURM_STEP_ID": "3", "SLURM_PROCID": "1", "SLURM_CPU_BIND": "mask_cpu:0x2", "SLURM_NTASKS": "7"}
        enclosing |= {"SLURM_MEM_PER_CPU": "100", "SLURM_MEM_PER_GPU": "7", "SLURM_GPUS": "2"}
        enclosing |= {"SLURM_STEP_NUM_TASKS": "7", "SLURM_TRES_PER_TASK": "cpu:7"}
        submitter = {**environment(cluster), **enclosing, **more}
        done = subprocess.run(words, cwd=ROOT, env=submitter, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        self.id = done.stdout.strip()

    def show(self, name: str, job: str | None = None) -> str:
        """One field of what Slurm says of the job."""
        line = self.cluster.run("scontrol", "show", "job", job or self.id, "--oneliner")
        found = re.search(rf"\b{name}=(\S*)", line)
        assert found, line
        return found.group(1)

    def log(self) -> str:
        return "".join(file.read_text() for file in sorted(self.output.glob("slurm-*.out")))

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"waited for {what} in vain:\n{self.log()}"
            time.sleep(0.05)

    def wait_for_words(self, words: str, times: int) -> None:
        self.wait(f"{words!r}, {times} times", lambda: self.log().count(words) == times)

    def wait_for_state(self, state: str, job: str | None = None) -> None:
        self.wait(state, lambda: self.show("JobState", job) == state)

    def folders(self) -> list[Path]:
        return sorted((self.logs / "runs").glob("[!.]*"))

    @property
    def folder(self) -> Path:
        (folder,) = self.folders()
        return folder

    def wait_for_steps(self, attempt: int, count: int, folder: Path | None = None) -> None:
        """Until this attempt has trained so many steps."""

        def trained() -> bool:
            if folder is None and not self.folders():
                return False
            rows = read_rows((folder or self.folder) / "metrics.jsonl")
            return sum(row["attempt"] == attempt and "train_loss" in row for row in rows) >= count

        self.wait(f"{count} steps of attempt {attempt}", trained)

    def kill_everything(self) -> None:
        """SIGKILL to all of the job's processes and the daemons above them, as when their node loses its power."""
        mark = {f"SLURM_JOB_ID={self.id}".encode(), f"SLURM_CONF={self.cluster.configuration}".encode()}
        doomed = set()
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark <= set((entry / "environ").read_bytes().split(b"\0")):
                    parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                    doomed.add(int(entry.name))
                    if Path(f"/proc/{parent}/comm").read_text().startswith("slurmstepd"):
                        doomed.add(parent)
        assert doomed
        for process in doomed:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
