"""How many CPUs a process should use: the least of its affinity, its control groups' quotas and what Slurm gave it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def own_cpus() -> int:
    """The least of the process's affinity, the quotas of its control groups and the CPUs that Slurm gave its task.

    Slurm's number also counts where nodes do not bind tasks. It is the same in every attempt of a job, on any node. So
    is the number of threads then, on which the last bits of results depend.
    """
    bound = bound_cpus()
    return max(1, int(min(bound, slurm_cpus() or bound, *cgroup_cpus(Path("/proc/self/cgroup"), CGROUPS))))


def bound_cpus() -> int:
    """CPUs that the process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def slurm_cpus() -> int | None:
    """CPUs of this Slurm task, None outside of Slurm; without --cpus-per-task, an equal share of its node's."""
    with suppress(KeyError, ValueError):
        return int(os.environ["SLURM_CPUS_PER_TASK"])
    with suppress(KeyError, ValueError):
        tasks = re.findall(r"\d+(?!\d*\))", os.environ.get("SLURM_STEP_TASKS_PER_NODE", "1"))  # 2(x3),1
        return max(1, int(os.environ["SLURM_CPUS_ON_NODE"]) // max(map(int, tasks)))
    return None


def cgroup_cpus(membership: Path, root: Path) -> Iterator[float]:
    """CPU quotas of this process's control groups (v1 or v2), from its own group up; a part of a CPU counts as one.

    membership: /proc/self/cgroup; root: where control groups are mounted.
    """
    yield math.inf
    with suppress(OSError, ValueError):
        for line in membership.read_text().splitlines():
            _, names, group = line.split(":", 2)
            if names and "cpu" not in names.split(","):
                continue
            top = root / (names and "cpu")
            for folder in (top / group.lstrip("/"), *(top / group.lstrip("/")).parents):
                with suppress(OSError, ValueError):
                    yield quota(folder, names == "")
                if folder == top:
                    break


def quota(folder: Path, is_version_2: bool) -> float:
    if is_version_2:
        limit, period = (folder / "cpu.max").read_text().split()  # "max 100000" or "150000 100000"
    else:
        limit, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    return math.inf if limit in ("max", "-1") else math.ceil(int(limit) / int(period))
