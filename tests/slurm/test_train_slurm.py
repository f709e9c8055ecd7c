"""job_scripts/train.slurm on a real cluster: whatever ends an attempt, the run is the one never interrupted."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.slurm.cluster import Cluster, stop
from tests.slurm.jobs import SCRIPT, SMALL, TRANSFORMER, Job, attempts, environment, losses

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(900)]

# Noise, a random number of steps and the replay buffer have to survive too.
EBT = [*SMALL, "--max_steps", "240", "--checkpoint_every_n_steps", "20", "--langevin_dynamics_noise", "0.1"]
EBT += [
    "--recipe",
    "laptop",
    "--randomize_mcmc_num_steps",
    "2",
    "--mcmc_replay_buffer",
    "--mcmc_replay_buffer_size",
    "6",
]


@pytest.fixture(scope="module")
def data(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The corpus in a folder whose name a shell would stumble over."""
    folder = tmp_path_factory.mktemp("data") / """it's "here"; $(touch gone) *"""
    shutil.copytree(corpus, folder)
    return ["--dataset_dir", str(folder)]


@pytest.fixture(autouse=True)
def quiet(cluster: Cluster) -> None:
    """Each test begins with an empty cluster."""
    cluster.stop_jobs()


class Uninterrupted:
    """The same run outside of Slurm, beside the job."""

    def __init__(self, logs: Path, *flags: str) -> None:
        self.logs = logs
        command = [sys.executable, "train_model.py", *flags, "--logs_dir", str(logs)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def losses(self) -> list[tuple[int, float]]:
        output, _ = self.process.communicate()
        assert self.process.returncode == 0, output
        (folder,) = (self.logs / "runs").iterdir()
        rows = losses(folder)
        assert [step for step, _ in rows] == list(range(1, len(rows) + 1))
        return rows


def test_a_run_survives_preemption_and_the_end_of_its_node(cluster: Cluster, data: list[str], tmp_path: Path) -> None:
    """What no user can do to a job; the rest of what may happen to it is drilled in test_drill.py."""
    job, whole = Job(cluster, tmp_path, [*EBT, *data]), Uninterrupted(tmp_path / "whole", *EBT, *data)

    job.wait_for_steps(1, 5)  # preempted with a grace time, by a job that needs its node
    node = job.show("BatchHost")
    cluster.run("sbatch", "--partition=urgent", f"--nodelist={node}", "--output=/dev/null", "--wrap", "true")
    # The node's power is cut: all is killed, the node's daemon too. Marking the node as down spares the wait until the
    # controller finds that out by itself; it queues the job again, and the other node takes it.
    job.wait_for_steps(2, 30)
    node = job.show("BatchHost")
    stop(int((cluster.folder / f"slurmd-{node}.pid").read_text()), signal.SIGKILL)
    job.kill_everything()
    cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=power")
    job.wait_for_steps(3, 1)
    cluster.start_node(node)
    job.wait_for_state("COMPLETED")

    rows = attempts(job.folder)
    assert [row["cause"] for row in rows] == ["preempted", "node failure", "finished"]
    assert [row.get("restart", "0") for row in rows] == ["0", "1", "2"]
    assert {row["job"] for row in rows} == {job.id}
    assert rows[1]["first_step"] == rows[0]["last_step"] and rows[0]["steps_lost"] == 0
    lost = rows[1]["last_step"] - rows[2]["first_step"]
    assert 0 <= lost == rows[1]["steps_lost"] <= 20, "no more is lost than since the last checkpoint"
    assert losses(job.folder) == whole.losses()

    assert (job.folder / "job_script.slurm").read_bytes() == SCRIPT.read_bytes()
    record = json.loads((job.folder / "job.json").read_bytes())
    assert record["job"] == job.id and record["starts"] == [row["first_step"] for row in rows]
    settings = json.loads((job.folder / "config.json").read_bytes())
    assert settings["data"]["dataset_dir"] == data[1], "words reach train_model.py as they were typed"
    assert not (ROOT / "gone").exists()
    log = job.log()
    assert log.count(f"run folder  {job.folder}\n") == 4, "one log has all attempts, and the report at the end"
    assert log.count(f"job {job.id} was interrupted and is queued again") == 1, "after the grace"


def test_two_nodes(cluster: Cluster, data: list[str], tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, [*TRANSFORMER, *data], "--nodes=2")
    whole = Uninterrupted(tmp_path / "whole", *TRANSFORMER, *data, "--cpu_processes", "2")
    job.wait_for_steps(1, 20)
    cluster.run("scontrol", "requeue", job.id)
    job.wait_for_state("COMPLETED")
    first, second = attempts(job.folder)
    assert first["nodes"] == "n[1-2]" and first["cause"] == "requeued" and second["cause"] == "finished"
    assert losses(job.folder) == whole.losses()


def test_an_array_is_several_runs(cluster: Cluster, data: list[str], tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, [*TRANSFORMER, *data], "--array=0-1")
    job.wait("two runs", lambda: len(job.folders()) == 2)
    records = {folder: json.loads((folder / "job.json").read_bytes()) for folder in job.folders()}
    # The task that Slurm also calls by the whole array's number is the one that could take the other along.
    ((interrupted, record),) = [(folder, record) for folder, record in records.items() if record["job"] == job.id]
    (other,) = records.keys() - {interrupted}
    job.wait_for_steps(1, 20, interrupted)
    cluster.run("scancel", "--signal=USR1", f"{job.id}_{record['array_task']}")
    for task_record in records.values():
        job.wait_for_state("COMPLETED", f"{job.id}_{task_record['array_task']}")
    assert [row["cause"] for row in attempts(interrupted)] == ["time limit", "finished"]
    assert [row["cause"] for row in attempts(other)] == ["finished"]
    assert len(job.folders()) == 2 and losses(interrupted) == losses(other)
    assert [step for step, _ in losses(interrupted)] == list(range(1, 401))


def test_a_wrong_flag_fails_at_once(cluster: Cluster, data: list[str], tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, [*TRANSFORMER, *data, "--max_stepz", "5"])
    job.wait_for_state("FAILED")
    assert "--max_stepz" in job.log() and "did you mean --max_steps?" in job.log()
    assert not job.folders() and "train_model.py ended" not in job.log()


def test_a_job_that_gets_nowhere_is_given_up(cluster: Cluster, data: list[str], tmp_path: Path) -> None:
    """Three starts, each interrupted before its first step, as with a time limit shorter than the start takes."""
    job = Job(cluster, tmp_path, [*TRANSFORMER, *data])

    def tell(start: int) -> bool:
        """Until the step has its process there is nobody to hear it, so it is told again."""
        if job.log().count("train_model.py ended with status") >= start:
            return True
        with suppress(RuntimeError):
            cluster.run("scancel", "--signal=USR1", f"{job.id}.0")
        time.sleep(1)
        return False

    for start in range(1, 4):
        job.wait_for_words("run folder  ", start)
        job.wait(f"the end of start {start}", partial(tell, start))
    job.wait_for_state("FAILED")
    log = job.log()
    assert "warning: this job starts from step 0 again, 2 times now: it was ended before a later step was saved." in log
    assert "the job started 3 times from step 0 and was ended before a later step was saved: it is not queued" in log
    assert log.count("was interrupted and is queued again") == 2 and not losses(job.folder)
