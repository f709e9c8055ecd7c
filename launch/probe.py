"""What a machine offers to the processes of a run, and the doctor's probe job, which measures it on the nodes.

`python -m launch.probe FOLDER` writes FOLDER/process-RANK.json, then waits for SIGUSR1 and records when it came.
`python -m launch.probe FOLDER add` adds numbers together with the other processes, and prints how long that took.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from core.cpus import bound_cpus, own_cpus, slurm_cpus
from core.environment import PYTHON, SRUN
from core.files import write_json
from core.text import format_bytes
from runs.lock import Lock

MIN_FREE_BYTES = 5e9  # below this, a warning
MIN_INODES = 10_000
QUOTA_WARNING = 0.9  # share of a quota
SHARED_MEMORY = Path("/dev/shm")
MIN_SHARED_BYTES = 1e9
MIN_OPEN_FILES = 4096
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
SIGNAL_TIMEOUT_SECONDS = 120.0
RENDEZVOUS_TIMEOUT_SECONDS = 60.0  # for processes to connect, after torch is imported


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's checklist. verdict: ok, look (a warning) or fails. advice: what to do if not ok."""

    name: str
    verdict: str
    message: str
    advice: str = ""


def pass_or_fail(name: str, is_good: bool, good: str, bad: str, advice: str) -> Finding:
    """good, bad: the message of either verdict."""
    return Finding(name, "ok", good) if is_good else Finding(name, "fails", bad, advice)


# -- a machine -------------------------------------------------------------------------------------------------------


def machine_facts() -> dict[str, Any]:
    """Facts of this machine, for JSON."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "host": platform.node(),
        "shared_memory": shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0,
        "open_files": [size if size != resource.RLIM_INFINITY else 2**31 for size in (soft, hard)],
        "address": own_address(),
        "interfaces": interfaces(),
        "interface_variables": {name: os.environ[name] for name in INTERFACE_VARIABLES if name in os.environ},
        "port": requested_port(),
    }


def requested_port() -> tuple[str | None, bool]:
    """MASTER_PORT, if set, and whether it is free."""
    number = os.environ.get("MASTER_PORT")
    try:
        with socket.create_server(("", int(number or 0))):
            return number, True
    except (OSError, ValueError, OverflowError):
        return number, False


def own_address() -> str:
    """The address of this machine's name, where Gloo listens unless an interface is given."""
    with suppress(OSError):
        return socket.gethostbyname(platform.node())
    return ""


def interfaces() -> dict[str, str]:
    """Name and IPv4 address of each interface that is up."""
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    return {
        name: address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if name in up and address.family == socket.AF_INET
    }


def check_memory_and_files(machines: Sequence[dict[str, Any]]) -> list[Finding]:
    """Shared memory and open files of the machine that has least."""
    least_memory = min(machines, key=lambda machine: machine["shared_memory"])
    fewest_files = min(machines, key=lambda machine: machine["open_files"][0])
    soft, hard = fewest_files["open_files"]
    more_memory = "batches pass through it; use --num_workers 0, or start the container with more (--shm-size)"
    more_files = f"ulimit -n {hard} in the header" if hard > soft else "ask the site for more"
    return [
        Finding(
            "shared memory",
            "ok" if least_memory["shared_memory"] >= MIN_SHARED_BYTES else "look",
            f"{format_bytes(least_memory['shared_memory'])} free in {SHARED_MEMORY} of {least_memory['host']}",
            more_memory,
        ),
        Finding(
            "open files",
            "ok" if soft >= MIN_OPEN_FILES else "look",
            f"{soft:,} at a time on {fewest_files['host']}",
            f"many loader processes may need more: {more_files}",
        ),
    ]


def check_space(name: str, folder: Path, min_free_bytes: float = MIN_FREE_BYTES) -> Finding:
    """Free bytes and inodes, and the use of quotas."""
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        return Finding(name, "look", f"{folder} cannot be seen ({error.strerror})", "set HOME to a folder of yours")
    free, inodes = disk.f_bavail * disk.f_frsize, disk.f_favail
    count = f", {inodes:,} more files" if disk.f_files else ""  # some file systems do not count them
    message = f"{format_bytes(free)}{count} free"
    low = free < min_free_bytes or (disk.f_files > 0 and inodes < MIN_INODES)
    for used, most, unit in quotas(folder):
        message += f"; quota: {used:,} of {most:,} {unit}"
        low = low or used > QUOTA_WARNING * most
    return Finding(name, "look" if low else "ok", message, "remove what is not needed, or ask for more")


def quotas(folder: Path) -> list[tuple[int, int, str]]:
    """(used, allowed, unit) of this user's quotas, if a quota program tells."""
    user = str(os.getuid())
    output = program_output("lfs", "quota", "-q", "-u", user, str(folder)) or program_output("quota", "-w", "-u", user)
    limits = []
    for line in output.splitlines():
        # FILESYSTEM blocks soft hard [grace] files soft hard [grace]; blocks of 1 kB, * where there are too many
        numbers = [int(word.rstrip("*")) for word in line.split()[1:] if word.rstrip("*").isdecimal()]
        if len(numbers) == 6 and is_on(folder, line.split()[0]):
            blocks, soft, hard, files, soft_files, hard_files = numbers
            limits += [(blocks // 10**6, limit // 10**6, "GB") for limit in [hard or soft] if limit]
            limits += [(files, limit, "files") for limit in [hard_files or soft_files] if limit]
    return limits


def is_on(folder: Path, file_system: str) -> bool:
    """Whether the folder lies on a file system, which is named by one of its paths or by its device."""
    if Path(file_system).is_dir():
        return os.stat(file_system).st_dev == os.stat(folder).st_dev
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            device, mount_point = line.split()[:2]
            if device == file_system and os.path.isdir(mount_point):
                return os.stat(mount_point).st_dev == os.stat(folder).st_dev
    return False


def program_output(*words: str) -> str:
    """What a program prints, whatever its exit status; empty if it does not exist."""
    try:
        return subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def check_network(machines: Sequence[dict[str, Any]]) -> Finding:
    """Whether the processes of the probe job could run an all-reduce, and by which interface."""
    first = machines[0]
    nodes = len({machine["node"] for machine in machines})
    names = [name for name, address in first["interfaces"].items() if address == first["address"]]
    variables = ", ".join(f"{name}={value}" for name, value in first["interface_variables"].items())
    interface = variables or f"{first['host']} is {first['address'] or 'no known name'}" + "".join(
        f" ({n})" for n in names[:1]
    )
    if len(machines) == 1:
        return Finding(
            "network", "ok", f"{interface}; not tried, as one process is alone: a header with --nodes=2 tries it"
        )
    usable = [name for name, address in first["interfaces"].items() if not address.startswith("127.")]
    choices = ", ".join(usable) or "its interfaces"
    advice = f"export {'= and '.join(INTERFACE_VARIABLES)}= in the header, with one of {choices}"
    if problems := [machine["all_reduce"] for machine in machines if isinstance(machine["all_reduce"], str)]:
        message = f"{interface}; {len(machines)} processes cannot compute together ({problems[0]})"
        return Finding("network", "fails", message, advice)
    slowest = max(machine["all_reduce"] for machine in machines)
    message = f"{interface}; {len(machines)} processes on {nodes} nodes added numbers over Gloo in {slowest:.1f} s"
    return Finding("network", "ok", message)


def check_port(machines: Sequence[dict[str, Any]]) -> Finding:
    """The rendezvous port: a free one that the first process chooses, unless MASTER_PORT is set."""
    number, is_free = machines[0]["port"]
    if number is None:
        return Finding("port", "ok", "processes meet at a free one, which the first of them chooses")
    message = f"MASTER_PORT is {number}, which is {'free' if is_free else 'taken'} on {machines[0]['host']}"
    return Finding("port", "ok" if is_free else "look", message, "leave it out, and a free one is chosen")


# -- a process of the probe job --------------------------------------------------------------------------------------


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


def is_rename_whole(folder: Path, name: str) -> bool:
    """Whether a rename replaces a file with all of the new content, and leaves nothing of the new name."""
    old, new = folder / f"{name}.old", folder / f"{name}.new"
    old.write_text("old")
    new.write_text("new")
    os.replace(new, old)
    is_whole = old.read_text() == "new" and not new.exists()
    old.unlink()
    return is_whole


def process_facts(folder: Path, rank: str) -> dict[str, Any]:
    return machine_facts() | {
        "node": os.environ.get("SLURMD_NODENAME"),
        "python": sys.prefix,
        "python_command": " ".join(os.environ.get(name, "") for name in (SRUN, PYTHON)).strip(),
        "bound_cpus": bound_cpus(),
        "requested_cpus": slurm_cpus() or 1,
        "usable_cpus": own_cpus(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "is_locked": is_locked(folder / "lock"),
        "is_rename_whole": is_rename_whole(folder, f"process-{rank}"),
        "signal_time": None,
    }


def measure_all_reduce(folder: Path) -> float | str:
    """Seconds of an all-reduce over Gloo among all processes of the step; an error message if it failed."""
    words = [sys.executable, "-m", "launch.probe", str(folder), "add"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=3 * RENDEZVOUS_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no answer within {3 * RENDEZVOUS_TIMEOUT_SECONDS:.0f} s"
    return (
        (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        if done.returncode
        else float(done.stdout)
    )


def all_reduce(folder: Path) -> NoReturn:
    """The all-reduce, in a separate process, which may hang or die."""
    import torch
    import torch.distributed

    rank, size, file = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"]), folder / "rendezvous.json"
    if rank == 0:
        with socket.create_server(("", 0)) as server:
            port = server.getsockname()[1]
        write_json(file, {"host": os.environ["SLURMD_NODENAME"], "port": port})
    deadline = time.monotonic() + RENDEZVOUS_TIMEOUT_SECONDS
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    rendezvous = json.loads(file.read_bytes())
    began = time.monotonic()
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{rendezvous['host']}:{rendezvous['port']}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=RENDEZVOUS_TIMEOUT_SECONDS),
    )
    numbers = torch.ones(1000)
    torch.distributed.all_reduce(numbers)
    if numbers.tolist() != [size] * 1000:
        sys.exit(f"the sum of {size} ones is {numbers[0]:g}")
    print(time.monotonic() - began, flush=True)
    os._exit(0)  # Gloo's threads do not survive an orderly end


def main(folder: Path) -> int:
    rank = os.environ.get("SLURM_PROCID", "0")
    received: list[float] = []
    signal.signal(signal.SIGUSR1, lambda *_: received.append(time.time()))
    facts = process_facts(folder, rank)
    if int(os.environ.get("SLURM_NTASKS", 1)) > 1:
        facts["all_reduce"] = measure_all_reduce(folder)
    write_json(folder / f"process-{rank}.json", facts)
    deadline = time.monotonic() + SIGNAL_TIMEOUT_SECONDS
    while not received and time.monotonic() < deadline:
        time.sleep(0.05)
    write_json(folder / f"process-{rank}.json", facts | {"signal_time": received[0] if received else None})
    return 0 if received else 1


if __name__ == "__main__":
    sys.exit(all_reduce(Path(sys.argv[1])) if sys.argv[2:] else main(Path(sys.argv[1])))
