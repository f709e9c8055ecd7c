"""How many CPUs a process should use, by what it is bound to, its control groups and Slurm."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def own_cpus() -> int:
    """The fewest of what the process is bound to, its control groups allow and Slurm gave its task.

    Slurm's number counts where nodes do not bind tasks, too. It is the same in every attempt of a job, whatever node it
    comes to, and with it the number of threads, on which the last bits of results depend.
    """
    bound = bound_cpus()
    return max(1, int(min(bound, asked_cpus() or bound, *granted(Path("/proc/self/cgroup"), CGROUPS))))


def bound_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def asked_cpus() -> int | None:
    """What Slurm gave this task, where it says so; a step without --cpus-per-task shares its node's CPUs equally."""
    with suppress(KeyError, ValueError):
        return int(os.environ["SLURM_CPUS_PER_TASK"])
    with suppress(KeyError, ValueError):
        tasks = re.findall(r"\d+(?!\d*\))", os.environ.get("SLURM_STEP_TASKS_PER_NODE", "1"))  # 2(x3),1
        return max(1, int(os.environ["SLURM_CPUS_ON_NODE"]) // max(map(int, tasks)))
    return None


def granted(membership: Path, root: Path) -> Iterator[float]:
    """CPUs that control groups of either version grant this process, from its own up; a share counts as one."""
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
        most, period = (folder / "cpu.max").read_text().split()  # "max 100000" or "150000 100000"
    else:
        most, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    return math.inf if most in ("max", "-1") else math.ceil(int(most) / int(period))
