"""--notify of a job: told once through a requeue, and the address in no file."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.runs.hook import TOKEN, Hook, hook
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import TRANSFORMER, Job, attempts, wait

__all__ = ["hook"]
pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def quiet(cluster: Cluster) -> None:
    cluster.stop_jobs()


def test_a_job_that_is_queued_again_and_one_that_is_killed(
    cluster: Cluster, corpus: Path, tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the one is told once, and that of the other, which cannot speak, by its script."""
    monkeypatch.setenv("EBT_NOTIFY", "")  # it has to come from the command line
    flags = [*TRANSFORMER, "--max_steps", "60", "--dataset_dir", str(corpus), "--notify", hook.url]
    job, other = Job(cluster, tmp_path / "one", flags), Job(cluster, tmp_path / "other", flags)
    job.wait_for_steps(1, 5)
    cluster.run("scancel", "--signal=USR1", job.id)
    other.wait_for_steps(1, 5)
    os.kill(attempts(other.folder)[0]["pid"], signal.SIGKILL)  # its nodes are this machine
    other.wait_for_state("FAILED")
    job.wait_for_state("COMPLETED")
    assert [attempt["cause"] for attempt in attempts(job.folder)] == ["time limit", "finished"]
    wait("both to be told", lambda: len(hook.notices) == 2)
    end, failure = sorted(hook.notices, key=lambda notice: str(notice["event"]))
    assert (end["event"], end["job"], end["run"]) == ("end", job.id, job.folder.name)
    assert failure["run"] == other.folder.name and "out of memory or killed." in failure["text"]
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not [file for file in files if TOKEN.encode() in file.read_bytes()]
