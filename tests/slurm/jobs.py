"""Jobs on the test cluster: submitted by sbatch, slurm_executor.sh or `python -m launch`, watched, interrupted."""

from __future__ import annotations

import json
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
from tests.launch.checkout import Checkout
from tests.slurm.cluster import Cluster

SCRIPT = ROOT / "job_scripts" / "train.slurm"
PATIENCE = 150.0  # seconds that a busy machine may take for anything
SMALL = [
    *("--no_wandb", "--embedding_dim", "32", "--num_transformer_blocks", "2", "--multiheaded_attention_heads", "2"),
    *("--context_length", "16", "--batch_size_per_device", "4", "--warm_up_steps", "2", "--log_every_n_steps", "1"),
    *("--limit_val_batches", "2", "--val_check_interval", "100", "--dataset_name", "text"),
]
TINY = [*SMALL, "--max_steps", "300"]
TRANSFORMER = [*SMALL, "--model_name", "baseline_transformer", "--max_steps", "400"]
NASTY = """it's "a" 100%j $(touch gone) `touch gone` é *"""
# A run without a model: it holds its folder, writes heartbeats and listens to signals as train_model.py does.
STAYS = """\
import json, sys, time
from config import parse_command_line
from runs import RunFolder
from runs.process import signals
config = parse_command_line(sys.argv[1:])
signals.listen()
folder = RunFolder.for_run(config)
with folder.attempt(config, 0):
    beat = {"time": time.time(), "step": 3, "total_steps": 10, "train_loss": 2.5}
    (folder.path / "heartbeat.json").write_text(json.dumps(beat))
    print("it has begun", flush=True)
    time.sleep(300)
"""


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


def wait(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.05)


class Job:
    """A job of train.slurm, its log and runs in `folder`, which the test owns. more: variables of its environment."""

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
        match = re.search(rf"\b{name}=(\S*)", line)
        assert match, line
        return match.group(1)

    def log(self) -> str:
        return "".join(file.read_text() for file in sorted(self.output.glob("slurm-*.out")))

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"timed out waiting for {what}:\n{self.log()}"
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


class Submitted:
    """A job that slurm_executor.sh submitted."""

    def __init__(self, cluster: Cluster, output: str) -> None:
        self.cluster = cluster
        (self.id,) = re.findall(r"^job id  (\d+)$", output, re.MULTILINE)
        (log,) = re.findall(r"^log     (.+)$", output, re.MULTILINE)
        self.log = Path(log)
        self.run = self.log.parent

    def show(self, name: str) -> str:
        line = self.cluster.run("scontrol", "show", "job", self.id, "--oneliner")
        return re.findall(rf"\b{name}=(\S*)", line)[0]

    def wait_for_state(self, state: str) -> None:
        def reached() -> bool:
            now = self.show("JobState")
            assert now == state or now not in ("FAILED", "COMPLETED", "CANCELLED"), f"{now}: {self.log.read_text()}"
            return now == state

        wait(state, reached)


class Launcher:
    """A checkout and the commands in it."""

    def __init__(self, cluster: Cluster, root: Path) -> None:
        self.cluster, self.checkout = cluster, Checkout(root)
        (self.checkout.root / "train_model.py").write_text(STAYS)

    def launch(self, *words: str, more: dict[str, str] | None = None) -> str:
        environment = self.checkout.environment(self.cluster.environment | (more or {}))
        command = [sys.executable, "-m", "launch", *words]
        done = subprocess.run(command, cwd=self.checkout.root, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def status(self) -> dict[str, Any]:
        (line,) = self.launch("status", "--json").splitlines()
        return json.loads(line)
