"""The processes of the doctor's job: what a process on a node finds there, written down for who sent it.

`python -m launch.probe DESK` writes DESK/process-RANK.json, then waits for SIGUSR1 and notes when it came.
`python -m launch.probe DESK add` adds numbers together with the other processes, and prints how long that took.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from config.cpus import asked_cpus, bound_cpus, own_cpus
from core.files import write_json
from launch.machine import facts
from runs.lock import Lock

PATIENCE = 120.0  # seconds to wait for the signal
TOGETHER = 60.0  # seconds in which processes find one another; torch is imported before


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
    return facts() | {
        "node": os.environ.get("SLURMD_NODENAME"),
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


def added(desk: Path) -> float | str:
    """Seconds in which all processes of the step added numbers over Gloo; in words where they could not."""
    words = [sys.executable, "-m", "launch.probe", str(desk), "add"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=3 * TOGETHER)
    except subprocess.TimeoutExpired:
        return f"no answer within {3 * TOGETHER:.0f} s"
    return (
        (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        if done.returncode
        else float(done.stdout)
    )


def add(desk: Path) -> NoReturn:
    """In a process of its own, which may hang or die."""
    import torch
    import torch.distributed

    rank, size, where = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"]), desk / "meeting.json"
    if rank == 0:
        with socket.create_server(("", 0)) as server:
            number = server.getsockname()[1]
        write_json(where, {"host": os.environ["SLURMD_NODENAME"], "port": number})
    deadline = time.monotonic() + TOGETHER
    while not where.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    meeting = json.loads(where.read_bytes())
    began = time.monotonic()
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{meeting['host']}:{meeting['port']}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=TOGETHER),
    )
    numbers = torch.ones(1000)
    torch.distributed.all_reduce(numbers)
    if numbers.tolist() != [size] * 1000:
        sys.exit(f"the sum of {size} ones is {numbers[0]:g}")
    print(time.monotonic() - began, flush=True)
    os._exit(0)  # Gloo's threads do not survive an orderly end


def main(desk: Path) -> int:
    rank = os.environ.get("SLURM_PROCID", "0")
    told: list[float] = []
    signal.signal(signal.SIGUSR1, lambda *_: told.append(time.time()))
    found = findings(desk, rank)
    if int(os.environ.get("SLURM_NTASKS", 1)) > 1:
        found["reduced"] = added(desk)
    write_json(desk / f"process-{rank}.json", found)
    deadline = time.monotonic() + PATIENCE
    while not told and time.monotonic() < deadline:
        time.sleep(0.05)
    write_json(desk / f"process-{rank}.json", found | {"told": told[0] if told else None})
    return 0 if told else 1


if __name__ == "__main__":
    sys.exit(add(Path(sys.argv[1])) if sys.argv[2:] else main(Path(sys.argv[1])))
