"""--notify of a job: told once through a requeue, and the address in no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs.test_notify import TOKEN, Hook, hook
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import Job, attempts
from tests.slurm.test_train_slurm import TRANSFORMER

__all__ = ["hook"]
pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def quiet(cluster: Cluster) -> None:
    cluster.stop_jobs()


def test_a_job_that_is_queued_again_and_then_gives_up(
    cluster: Cluster, corpus: Path, tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is told once; one that comes no further in three starts is told of by its script."""
    monkeypatch.setenv("EBT_NOTIFY", "")  # it has to come from the command line
    flags = [*TRANSFORMER, "--max_steps", "60", "--dataset_dir", str(corpus), "--notify", hook.url]
    job = Job(cluster, tmp_path / "one", flags)
    job.wait_for_steps(1, 5)
    cluster.run("scancel", "--signal=USR1", job.id)
    job.wait_for_state("COMPLETED")
    assert [attempt["cause"] for attempt in attempts(job.folder)] == ["time limit", "finished"]
    (notice,) = hook.notices
    assert (notice["event"], notice["job"], notice["run"]) == ("end", job.id, job.folder.name)
    files = [file for file in (tmp_path / "one").rglob("*") if file.is_file()]
    assert not [file for file in files if TOKEN.encode() in file.read_bytes()]
    (job.folder / "job.json").write_text('{"job": "0", "starts": [60, 60, 60]}')
