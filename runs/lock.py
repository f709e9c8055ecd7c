"""One process at a time: a lock of the kernel or, on a file system without locks, a file that names its process.

Lustre without flock and some network file systems refuse every lock. There the lock at PATH is PATH.owner, which can be
created once only. Its process touches it every few seconds, so that another machine, which cannot look for the process,
can tell that it lives.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import secrets
import struct
import sys
import tempfile
import threading
import time
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from runs.slurm import slurm_job

UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
HEARTBEAT_SECONDS = 5.0  # between heartbeats
SILENCE_SECONDS = 60.0  # without a heartbeat, after which a process of another machine counts as dead
NO_LOCKS = "this file system has no locks"
LOST = "{}: another process took this run's lock, as this one wrote no heartbeat: it ends here.\n"
OwnerRecord = dict[str, Any]


class Lock:
    """Held from `acquire` until the end of this object or of its process, however it ends."""

    def __init__(
        self, path: Path, heartbeat_seconds: float = HEARTBEAT_SECONDS, silence_seconds: float = SILENCE_SECONDS
    ) -> None:
        self.path, self.owner = path, owner_file(path)
        self.heartbeat_seconds, self.silence_seconds = heartbeat_seconds, silence_seconds
        self.file: IO[str] | None = None
        self.is_by_file = False  # the kernel could not help
        self.end: Any = None

    def acquire(self, wait: bool = False) -> None:
        """BlockingIOError where another has it. wait: until it is free."""
        self.file = open(self.path, "a+")  # noqa: SIM115 (held until the process ends)
        try:
            # lockf and not flock: loader processes that outlive a killed run must not hold its lock.
            fcntl.lockf(self.file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except PermissionError as error:
            raise BlockingIOError(*error.args) from None
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            warn_once(self.path.parent, str(error.strerror))
            self.is_by_file = True
        # Another node may see this file system without the locks that this one sees.
        while self.owner.exists() or self.is_by_file:
            record = {"machine": machine(), "host": platform.node(), "token": secrets.token_hex(8)}
            record |= as_record(os.getpid()) | slurm_job()
            if self.is_by_file and create_owner_file(self.owner, record):
                self.end = weakref.finalize(self, release, self.owner, record, over := threading.Event())
                arguments = (self.owner, record, over, self.heartbeat_seconds)
                threading.Thread(target=write_heartbeats, args=arguments, daemon=True).start()
                return
            held_by = read_owner(self.owner)
            if held_by.get("process") == os.getpid() and held_by.get("machine") == machine():
                return  # this very process
            if not self.owner.exists():
                continue  # gone in between
            if not is_holder_alive(self.owner, held_by, self.silence_seconds):
                remove_stale(self.owner, held_by)
            elif not wait:
                raise BlockingIOError(errno.EAGAIN, f"{held_by.get('host')} has it")
            time.sleep(0.2 if wait else 0)

    def release(self) -> None:
        if self.end is not None:
            self.end()
        if self.file is not None:
            self.file.close()


def owner_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.owner")


def lock_holder(path: Path, silence_seconds: float = SILENCE_SECONDS) -> int:
    """The process that holds the lock, as far as this machine can tell: 0 for none, -1 for one of another machine."""
    with suppress(OSError), open(path, "rb") as file:
        # F_GETLK asks and takes nothing; a lock tried and given back could turn a starting run away.
        question = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, process = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, question))
        if kind != fcntl.F_UNLCK:
            return process or -1
    owner = owner_file(path)
    try:
        silent = time.time() - owner.stat().st_mtime
    except OSError:
        return 0
    record = read_owner(owner)
    if record.get("machine") == machine():
        return int(record["process"]) if is_alive(record) else 0
    return -1 if silent < silence_seconds else 0


def lack_of_locks(folder: Path) -> OSError | None:
    """Why files of this folder cannot be locked; nothing where they can, or where nothing can be written."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return OSError(f"{NO_LOCKS}: {error.strerror}") if error.errno in UNSUPPORTED else None
    return None


@cache
def warn_once(folder: Path, reason: str) -> None:
    print(f"{folder}: {NO_LOCKS} ({reason}): a file that names its process is used instead.", file=sys.stderr)


def create_owner_file(owner: Path, record: OwnerRecord) -> bool:
    try:
        file = os.open(owner, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    with open(file, "w") as text:
        text.write(json.dumps(record))
    return True


def read_owner(owner: Path) -> OwnerRecord:
    """Nothing where there is no such file, or where it is being written."""
    with suppress(OSError, ValueError):
        record = json.loads(owner.read_bytes())
        if isinstance(record, dict):
            return record
    return {}


def is_holder_alive(owner: Path, record: OwnerRecord, silence_seconds: float = SILENCE_SECONDS) -> bool:
    """Whether the process that an owner's file names is alive; one of another machine has to show a heartbeat."""
    if record.get("machine") == machine():
        return is_alive(record)
    now = slurm_job()
    if "job" in now and record.get("job") == now["job"] and int(record.get("restart", 0)) < int(now.get("restart", 0)):
        return False  # of this job, before it was queued again
    first, deadline = last_heartbeat(owner), time.monotonic() + silence_seconds
    host = record.get("host", "another machine")
    words = f"waiting up to {silence_seconds:.0f} s for its heartbeat"
    print(f"{owner} is of {host}: {words}", file=sys.stderr, flush=True)
    while time.monotonic() < deadline:
        time.sleep(min(1.0, silence_seconds / 10))
        if last_heartbeat(owner) != first:
            return owner.exists()
    return False


def last_heartbeat(owner: Path) -> int:
    """When it was last, by the file system's clock; opened, or a network file system tells what it remembers."""
    try:
        with open(owner, "rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return 0


def remove_stale(owner: Path, record: OwnerRecord) -> None:
    """Remove the file of a dead process, unless another process has replaced it meanwhile."""
    aside = owner.with_name(f"{owner.name}.{secrets.token_hex(4)}")
    with suppress(OSError):
        os.rename(owner, aside)
        if read_owner(aside) != record:
            with suppress(OSError):
                os.link(aside, owner)
        aside.unlink()


def write_heartbeats(
    owner: Path, record: OwnerRecord, over: threading.Event, seconds: float = HEARTBEAT_SECONDS
) -> None:
    """Touch the owner's file every `seconds`. A process that was paused for long may have lost the lock: it ends."""
    while not over.wait(seconds):
        with suppress(OSError):
            if read_owner(owner) == record:
                os.utime(owner)
            elif owner.parent.exists() and not over.is_set():
                os.write(2, LOST.format(owner).encode())
                os._exit(1)


def release(owner: Path, record: OwnerRecord, over: threading.Event) -> None:
    over.set()
    if record["process"] == os.getpid() and read_owner(owner) == record:
        owner.unlink(missing_ok=True)


def machine() -> str:
    """Identifies where a process number is valid: this boot of this kernel, and its process namespace."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def is_alive(record: OwnerRecord) -> bool:
    """Whether the very process of this record lives; its number alone may be another's by now."""
    import psutil

    try:
        process = psutil.Process(int(record["process"]))
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - float(record["created"])) < 2
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False


def as_record(process: int) -> OwnerRecord:
    import psutil

    try:
        return {"process": process, "created": psutil.Process(process).create_time()}
    except psutil.Error:
        return {"process": process}
