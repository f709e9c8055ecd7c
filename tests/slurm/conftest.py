"""A cluster of the tests' own, for the one worker that runs them, and a checkout to launch from."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing
from tests.slurm.jobs import Launcher


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes in a folder with a short name (munge's socket must not have a long one), gone at the end."""
    lacking = [f"no {name}" for name in missing()] + ([] if os.geteuid() == 0 else ["not root"])
    if lacking:
        sentence = f"A real Slurm is needed ({', '.join(lacking)}): as root, apt-get install slurm-wlm munge."
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)
    cluster = Cluster(Path(tempfile.mkdtemp(prefix="ebt-slurm-", dir="/tmp")))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def launcher(cluster: Cluster, tmp_path: Path) -> Launcher:
    cluster.stop_jobs()
    return Launcher(cluster, tmp_path / "check out")
