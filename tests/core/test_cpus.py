"""The CPUs of a process, by its affinity, its control groups and Slurm."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.cpus import cgroup_cpus, own_cpus, slurm_cpus
from tests.conftest import ROOT
from tests.support.threads import THREADS


@pytest.mark.parametrize(
    ("variables", "cpus"),
    [
        ({}, None),
        ({"SLURM_CPUS_PER_TASK": "3", "SLURM_CPUS_ON_NODE": "8"}, 3),
        ({"SLURM_CPUS_ON_NODE": "8"}, 8),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x12)"}, 2),
        ({"SLURM_CPUS_ON_NODE": "2", "SLURM_STEP_TASKS_PER_NODE": "1,4(x12),3"}, 1),
        ({"SLURM_CPUS_PER_TASK": "a few"}, None),
    ],
)
def test_what_slurm_gave_the_task(variables: dict[str, str], cpus: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_STEP_TASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert slurm_cpus() == cpus
    assert own_cpus() == min(cpus or 64, own_cpus()) >= 1


@pytest.mark.parametrize(
    ("membership", "files", "cpus"),
    [
        ("0::/a/b\n", {"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2),
        ("0::/a/b\n", {"a/b/cpu.max": "50000 100000\n"}, 1),
        ("0::/a\n", {"a/cpu.max": "max 100000\n"}, math.inf),
        ("3:cpu,cpuacct:/x\n0::/\n", {"cpu/x/cpu.cfs_quota_us": "400000\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, 4),
        ("3:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, math.inf),
        ("2:memory:/x\n", {"cpu/x/cpu.cfs_quota_us": "1\n", "cpu/x/cpu.cfs_period_us": "1\n"}, math.inf),
        ("nonsense\n", {}, math.inf),
    ],
)
def test_what_control_groups_grant(tmp_path: Path, membership: str, files: dict[str, str], cpus: float) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "cgroup").write_text(membership)
    assert min(cgroup_cpus(tmp_path / "cgroup", tmp_path)) == cpus
    assert min(cgroup_cpus(tmp_path / "none", tmp_path)) == math.inf


@pytest.mark.parametrize(("variables", "threads"), [({"SLURM_CPUS_PER_TASK": "1"}, 1), ({"OMP_NUM_THREADS": "2"}, 2)])
def test_a_run_has_as_many_threads_as_its_task_has_cpus(variables: dict[str, str], threads: int) -> None:
    """Also where the process may run on more; a person's own number wins."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMP_"))}
    own |= {"SLURM_CPUS_PER_TASK": "1"} | variables
    done = subprocess.run([sys.executable, "-c", THREADS], cwd=ROOT, env=own, capture_output=True, text=True)
    assert done.stdout.split() == [str(threads)], done.stderr
