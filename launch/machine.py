"""What a machine offers to the processes of a run: shared memory, open files, space, and a way to one another."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launch.finding import Finding

LOW = 5e9  # bytes of free disk below which a doctor frowns
FEW_INODES = 10_000
FULL = 0.9  # share of a quota
SHARED = Path("/dev/shm")
LEAST_SHARED = 1e9
LEAST_OPEN = 4096
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def facts() -> dict[str, Any]:
    """Of the machine that this process runs on, for JSON."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "host": platform.node(),
        "shared": shutil.disk_usage(SHARED).free if SHARED.is_dir() else 0,
        "open_files": [size if size != resource.RLIM_INFINITY else 2**31 for size in (soft, hard)],
        "address": own_address(),
        "interfaces": interfaces(),
        "chosen": {name: os.environ[name] for name in INTERFACES if name in os.environ},
        "port": wanted_port(),
    }


def wanted_port() -> tuple[str | None, bool]:
    """MASTER_PORT, where somebody set it, and whether nobody has it."""
    wanted = os.environ.get("MASTER_PORT")
    try:
        with socket.create_server(("", int(wanted or 0))):
            return wanted, True
    except (OSError, ValueError, OverflowError):
        return wanted, False


def own_address() -> str:
    """What this machine's name stands for: where Gloo listens, unless it is told an interface."""
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


def memory_and_files(machines: Sequence[dict[str, Any]]) -> list[Finding]:
    """Shared memory and open files, where there is least of them."""
    least = min(machines, key=lambda machine: machine["shared"])
    few = min(machines, key=lambda machine: machine["open_files"][0])
    soft, hard = few["open_files"]
    batches = "loader processes hand batches over in it; --num_workers 0, or start the container with more (--shm-size)"
    more = f"ulimit -n {hard} in the header" if hard > soft else "ask the site for more"
    return [
        Finding(
            "shared memory",
            "ok" if least["shared"] >= LEAST_SHARED else "look",
            f"{least['shared'] / 1e9:,.1f} GB free in {SHARED} of {least['host']}",
            batches,
        ),
        Finding(
            "open files",
            "ok" if soft >= LEAST_OPEN else "look",
            f"{soft:,} at a time on {few['host']}",
            f"many loader processes may need more: {more}",
        ),
    ]


def space(what: str, folder: Path) -> Finding:
    """Bytes and files that are free, and what is left of a quota."""
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        return Finding(what, "look", f"{folder} cannot be seen ({error.strerror})", "set HOME to a folder of yours")
    free, inodes = disk.f_bavail * disk.f_frsize, disk.f_favail
    count = f", {inodes:,} more files" if disk.f_files else ""  # some file systems do not count them
    found = f"{free / 1e9:,.0f} GB{count} free"
    low = free < LOW or (disk.f_files > 0 and inodes < FEW_INODES)
    for used, most, unit in quotas(folder):
        found += f"; quota: {used:,} of {most:,} {unit}"
        low = low or used > FULL * most
    return Finding(what, "look" if low else "ok", found, "remove what is not needed, or ask for more")


def quotas(folder: Path) -> list[tuple[int, int, str]]:
    """(used, allowed, unit) of this person's quotas there, as far as a program of the site tells."""
    user = str(os.getuid())
    said = answer("lfs", "quota", "-q", "-u", user, str(folder)) or answer("quota", "-w", "-u", user)
    found = []
    for line in said.splitlines():
        # FILESYSTEM blocks soft hard [grace] files soft hard [grace]; blocks of 1 kB, * where there are too many
        numbers = [int(word.rstrip("*")) for word in line.split()[1:] if word.rstrip("*").isdecimal()]
        if len(numbers) == 6 and belongs(folder, line.split()[0]):
            blocks, soft, hard, files, soft_files, hard_files = numbers
            found += [(blocks // 10**6, limit // 10**6, "GB") for limit in [hard or soft] if limit]
            found += [(files, limit, "files") for limit in [hard_files or soft_files] if limit]
    return found


def belongs(folder: Path, file_system: str) -> bool:
    """Whether the folder lies on it; named by a path of the file system, or by its device."""
    if Path(file_system).is_dir():
        return os.stat(file_system).st_dev == os.stat(folder).st_dev
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            device, place = line.split()[:2]
            if device == file_system and os.path.isdir(place):
                return os.stat(place).st_dev == os.stat(folder).st_dev
    return False


def answer(*words: str) -> str:
    """What a program prints, whatever its exit status; nothing where there is none."""
    try:
        return subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def network(machines: Sequence[dict[str, Any]]) -> Finding:
    """Whether the processes of the probe job could add numbers together, and by which interface they speak."""
    first = machines[0]
    nodes = len({machine["node"] for machine in machines})
    names = [name for name, address in first["interfaces"].items() if address == first["address"]]
    chosen = ", ".join(f"{name}={value}" for name, value in first["chosen"].items())
    way = chosen or f"{first['host']} is {first['address'] or 'no known name'}" + "".join(f" ({n})" for n in names[:1])
    if len(machines) == 1:
        return Finding("network", "ok", f"{way}; not tried, as one process is alone: a header with --nodes=2 tries it")
    usable = [name for name, address in first["interfaces"].items() if not address.startswith("127.")]
    advice = f"export {'= and '.join(INTERFACES)}= in the header, with one of {', '.join(usable) or 'its interfaces'}"
    if problems := [machine["reduced"] for machine in machines if isinstance(machine["reduced"], str)]:
        found = f"{way}; {len(machines)} processes cannot compute together ({problems[0]})"
        return Finding("network", "fails", found, advice)
    slowest = max(machine["reduced"] for machine in machines)
    found = f"{way}; {len(machines)} processes on {nodes} nodes added numbers over Gloo in {slowest:.1f} s"
    return Finding("network", "ok", found)


def port(machines: Sequence[dict[str, Any]]) -> Finding:
    """Where processes meet: a free port that the first of them chooses, unless somebody chose one."""
    wanted, is_free = machines[0]["port"]
    if wanted is None:
        return Finding("port", "ok", "processes meet at a free one, which the first of them chooses")
    found = f"MASTER_PORT is {wanted}, which is {'free' if is_free else 'taken'} on {machines[0]['host']}"
    return Finding("port", "ok" if is_free else "look", found, "leave it out, and a free one is chosen")
