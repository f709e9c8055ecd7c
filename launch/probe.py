"""The processes of the doctor's job: what a process on a node finds there, written down for who sent it.

`python -m launch.probe DESK` writes DESK/process-RANK.json, then waits for SIGUSR1 and notes when it came.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

from config.cpus import asked_cpus, bound_cpus, own_cpus
from runs.files import write_json
from runs.lock import Lock

PATIENCE = 120.0  # seconds to wait for the signal


def is_locked(path: Path) -> bool:
    """Whether a lock that another process holds, perhaps on another machine, is respected here."""
    lock = Lock(path)
    try:
        lock.acquire()
    except BlockingIOError:
        return True
    finally:
        lock.release()
    return False


def renames(folder: Path, name: str) -> bool:
    """Whether a file takes the place of another at once, with its own content."""
    old, new = folder / f"{name}.old", folder / f"{name}.new"
    old.write_text("old")
    new.write_text("new")
    os.replace(new, old)
    whole = old.read_text() == "new" and not new.exists()
    old.unlink()
    return whole


def findings(desk: Path, rank: str) -> dict[str, Any]:
    return {
        "host": platform.node(),
        "python": sys.prefix,
        "words": " ".join(os.environ.get(name, "") for name in ("EBT_SRUN", "EBT_PYTHON")).strip(),
        "cores": bound_cpus(),
        "asked": asked_cpus() or 1,
        "own": own_cpus(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "is_locked": is_locked(desk / "lock"),
        "renames": renames(desk, f"process-{rank}"),
        "told": None,
    }


def main(desk: Path) -> int:
    rank = os.environ.get("SLURM_PROCID", "0")
    told: list[float] = []
    signal.signal(signal.SIGUSR1, lambda *_: told.append(time.time()))
    found = findings(desk, rank)
    write_json(desk / f"process-{rank}.json", found)
    deadline = time.monotonic() + PATIENCE
    while not told and time.monotonic() < deadline:
        time.sleep(0.05)
    write_json(desk / f"process-{rank}.json", found | {"told": told[0] if told else None})
    return 0 if told else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
