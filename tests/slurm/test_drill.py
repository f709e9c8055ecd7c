"""`launch drill` and `launch doctor` on a real cluster, as a person calls them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from launch.doctor import doctor
from launch.drill import CASES
from launch.script import sbatch_lines
from tests.conftest import ROOT
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import environment

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(900)]

SMALL = [
    *("--embedding_dim", "32", "--num_transformer_blocks", "2", "--multiheaded_attention_heads", "2"),
    *("--context_length", "16", "--batch_size_per_device", "4", "--warm_up_steps", "2", "--dataset_name", "text"),
    *("--langevin_dynamics_noise", "0.1", "--randomize_mcmc_num_steps", "1", "--save_top_k_ckpts", "0"),
]


@pytest.fixture(autouse=True)
def quiet(cluster: Cluster) -> None:
    """Each test begins with an empty cluster."""
    cluster.stop_jobs()


def test_the_drill(cluster: Cluster, corpus: Path, tmp_path: Path) -> None:
    """Every way to end an attempt, each with a run of its own, compared with an uninterrupted one."""
    command = [sys.executable, "-m", "launch", "drill", *SMALL, "--dataset_dir", str(corpus)]
    command += ["--header", "local_cpu", "--logs_dir", str(tmp_path / "logs")]
    done = subprocess.run(command, cwd=ROOT, env=environment(cluster), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.rstrip().endswith("pass")]
    assert rows[0] == ["uninterrupted", "1", "pass"] and rows[-1] == ["cancelled", "1", "0", "pass"]
    lost = {"crashed (SIGABRT)": "2", "hung": "2", "node failure (SIGKILL)": "2", "killed while saving": "5"}
    assert [row[-3:] for row in rows[1:-1]] == [["2", lost.get(case.name, "0"), "pass"] for case in CASES[:-1]]
    assert "cancelled: done" in done.stderr
    assert not list((tmp_path / "logs").iterdir()), "nothing is left of it"
    assert not cluster.run("squeue", "-h").strip()


def test_the_doctor(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environment(cluster).items():
        monkeypatch.setenv(name, value)
    headers = tmp_path / "job_scripts" / "headers"
    headers.mkdir(parents=True)
    monkeypatch.setenv("COLUMNS", "200")
    assert doctor(["--logs_dir", str(tmp_path / "logs"), "--header_out", "ours"], headers) == 0
    output = capsys.readouterr().out
    for words in (
        "signals         reach 1 process within",
        "look  preemption      requeue, with 15 + 12 s between notice and end",
        "requeue         allowed, and the job keeps its number",
        "CPUs            2 asked for, bound to 2, 1 used by each process",
        "files of nodes  locks and renames of the log folder hold between this machine and the nodes",
        "Python of jobs  the same as here",
        "accounting      none (sacct does not answer); nothing here needs it",
        "array limit     tasks are numbered below 2001",
    ):
        assert words in output, output
    options = sbatch_lines((headers / "ours.slurm").read_text())
    assert {"#SBATCH --partition=main", "#SBATCH --cpus-per-task=2", "#SBATCH --requeue"} <= set(options)
    cluster.wait_until_idle()
    assert not list((tmp_path / "logs").iterdir())
