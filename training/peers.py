"""The processes of one srun stay connected, so that none of them waits for one that has ended.

Process 0 listens at an address that it writes into the run folder. Each of the others keeps one connection to it while
it runs, so that the end of a process is known at once and with it which one ended first: the error that the others get
("connection reset") names no process. Over the same connection process 0 sends the port of torch.distributed, asks for
stacks, and ends all processes together. A message is a line of JSON. Nothing here imports torch.
"""

from __future__ import annotations

import faulthandler
import json
import os
import platform
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from config import RunConfig
from core.files import write_json
from runs import RunFolder
from runs.attempts import cause_of_error
from runs.process import EXIT_RESUMABLE
from runs.ranks import Step, srun_step
from runs.slurm import slurm_job
from training.errors import RunStopped

FILE = "processes.json"
POLL_SECONDS = 0.2
PY_SPY_SECONDS = 20.0
LOST_CONNECTION = re.compile(
    r"connection (reset|closed|refused)|closed by peer|broken pipe|gloo|nccl",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Timings:
    """Seconds that the processes of a run wait for each other.

    join: for the next process to connect. exit: for a process to end by itself after another one did. report: for
    process 0 to write its report. stacks: for all to send their stacks. cause: for the news of which process ended,
    once a connection broke.
    """

    join: float = 60.0
    exit: float = 20.0
    report: float = 1800.0
    stacks: float = 10.0
    cause: float = 3.0


TIMINGS = Timings()


class Crashed(RunStopped):
    """Another process ended. The job script, which sees how it ended, decides whether the run resumes."""

    status = EXIT_RESUMABLE

    def __init__(self, event: str) -> None:
        super().__init__(f"{event}; the saved state can be resumed.")
        self.cause = f"crashed: {event}"


class Connection:
    """A TCP connection that sends and receives lines of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):  # a node may vanish
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
        self.socket = connection
        self.reader = connection.makefile("rb")

    def send(self, **message: Any) -> None:
        with suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when the other end is gone."""
        try:
            line = self.reader.readline()
            return dict(json.loads(line)) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self.socket.close()


class Peers:
    """The other processes of a run; this base class is for a process without any.

    stuck: called when another process ended and this one still waits for it.
    """

    stuck: Callable[[str], None] | None = None

    def stacks(self) -> dict[str, str]:
        """The stacks of the other processes, by their names."""
        return {}

    def end_all(self, status: int) -> None:
        """End the other processes at once, with this status."""

    def crash(self, error: BaseException) -> Crashed | None:
        """What ended the run, if this error only says that another process is gone; None for an error of its own."""
        return None

    def leave(self, cause: str | None = None) -> None:
        """This process is about to end. cause: its error, if that is why."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.leave(None if error is None else cause_of_error(error))


class FirstProcess(Peers):
    """Process 0, which is connected to all others."""

    def __init__(self, step: Step, folder: Path, timings: Timings = TIMINGS) -> None:
        self.step, self.timings = step, timings
        self.connections: dict[int, Connection] = {}
        self.hosts: dict[int, str] = {}
        self.causes: dict[int, str] = {}  # why a process left; empty: at its regular end
        self.dead_ranks: list[int] = []  # without a message, in the order of their ends
        self.answers: dict[int, str] = {}
        self.changed = threading.Condition()
        self.leaving = False
        self.server = socket.create_server(("", 0), backlog=step.tasks)
        self.server.settimeout(POLL_SECONDS)
        self.token = secrets.token_hex(8)
        requested = os.environ.get("MASTER_PORT")
        self.port = checked_port(int(requested)) if requested else free_port()
        self.file = folder / FILE
        address = {"address": step.first_node, "port": self.server.getsockname()[1], "token": self.token}
        write_json(self.file, {**identity(), **address})

    def connect(self) -> None:
        """Wait until all have connected."""
        try:
            self.wait_for_all()
        finally:
            self.server.close()
            self.file.unlink(missing_ok=True)
        for rank, connection in self.connections.items():
            connection.send(port=self.port)
            threading.Thread(target=self.listen, args=(rank, connection), daemon=True).start()
        os.environ["MASTER_PORT"] = str(self.port)

    def wait_for_all(self) -> None:
        last_contact = time.monotonic()
        while len(self.connections) < self.step.tasks - 1:
            with suppress(TimeoutError):
                accepted, _ = self.server.accept()
                last_contact = self.admit(Connection(accepted)) or last_contact
            if time.monotonic() - last_contact > self.timings.join:
                missing = [rank for rank in range(1, self.step.tasks) if rank not in self.connections]
                names = f"task {missing[0]}" if len(missing) == 1 else f"{len(missing)} tasks, {missing[0]} the first,"
                self.end_all(EXIT_RESUMABLE)
                raise Crashed(f"{names} of {self.step.tasks} never came")

    def admit(self, connection: Connection) -> float | None:
        """The time, if it is a process of this run."""
        connection.socket.settimeout(5)
        hello = connection.receive() or {}
        connection.socket.settimeout(None)
        rank = hello.get("rank")
        if hello.get("token") != self.token or not isinstance(rank, int):
            connection.close()
            return None
        self.connections[rank], self.hosts[rank] = connection, str(hello.get("host"))
        return time.monotonic()

    def listen(self, rank: int, connection: Connection) -> None:
        while (message := connection.receive()) is not None:
            with self.changed:
                if "leaves" in message:
                    self.causes[rank] = str(message["leaves"] or "")
                if "stacks" in message:
                    self.answers[rank] = str(message["stacks"])
                self.changed.notify_all()
        with self.changed:
            if rank not in self.causes:
                self.dead_ranks.append(rank)
            self.changed.notify_all()
        if not self.leaving and (event := self.first_end()):
            time.sleep(self.timings.exit)  # most of the time the error of the lost connection comes by itself
            while not self.leaving and self.stuck is None:  # it has not begun to train
                time.sleep(POLL_SECONDS)
            if not self.leaving and self.stuck is not None:
                self.stuck(event)

    def name(self, rank: int) -> str:
        return f"task {rank} on {self.hosts.get(rank, 'an unknown node')}"

    def first_end(self) -> str:
        """Which process ended first of those that should not have."""
        if self.dead_ranks:
            return f"{self.name(self.dead_ranks[0])} died"
        failed = next((rank for rank, cause in self.causes.items() if cause), None)
        return f"{self.name(failed)} ended with {self.causes[failed]}" if failed is not None else ""

    def crash(self, error: BaseException) -> Crashed | None:
        if not is_lost_connection(error):
            return None
        with self.changed:
            self.changed.wait_for(lambda: bool(self.dead_ranks or any(self.causes.values())), self.timings.cause)
        failed = next((cause for cause in self.causes.values() if cause), "")
        if self.dead_ranks or not failed:
            return Crashed(self.first_end() or "the connection to another process was lost")
        return PeerFailed(self.first_end(), failed)

    def stacks(self) -> dict[str, str]:
        for connection in self.connections.values():
            connection.send(stacks=True)
        with self.changed:
            self.changed.wait_for(lambda: set(self.answers) >= set(self.connections), self.timings.stacks)
        silent = "it does not answer: stopped, or its machine hangs"
        return {self.name(rank): self.answers.get(rank, silent) for rank in sorted(self.connections)}

    def end_all(self, status: int) -> None:
        self.leaving = True
        for connection in self.connections.values():
            connection.send(end=status)

    def leave(self, cause: str | None = None) -> None:
        self.leaving = True  # the others hear of it when this process is gone, and not before


class PeerFailed(Crashed):
    """Another process failed with an error of its own: it would come again, so the run is not resumed."""

    status = 1

    def __init__(self, event: str, cause: str) -> None:
        super().__init__(event)
        self.args = (f"{event}; its own log is rank_N.log of the run folder.",)
        self.cause = cause


class OtherProcess(Peers):
    """A process that is not the first."""

    def __init__(self, step: Step, folder: Path, timings: Timings = TIMINGS) -> None:
        self.step, self.timings = step, timings
        self.over = threading.Event()  # process 0 is gone
        self.leaving = False
        self.connection = self.open(folder / FILE)

    def open(self, file: Path) -> Connection:
        """Connect to process 0."""
        deadline = time.monotonic() + self.timings.join
        while time.monotonic() < deadline:
            with suppress(OSError, ValueError, KeyError):
                os.listdir(file.parent)  # makes a network file system refresh the folder
                content = json.loads(file.read_bytes())
                if {name: content.get(name) for name in identity()} == identity():
                    address = (content["address"], content["port"])
                    connection = Connection(socket.create_connection(address, timeout=10))
                    connection.send(rank=self.step.rank, host=node_name(), token=content["token"])
                    return connection
            time.sleep(POLL_SECONDS)
        raise Crashed(f"task 0 of {self.step.tasks} never came")

    def connect(self) -> None:
        port = (self.connection.receive() or {}).get("port")  # process 0 waits for a limited time, so this ends too
        if port is None:
            raise Crashed("process 0 ended before all had met")
        os.environ["MASTER_PORT"] = str(port)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        while (message := self.connection.receive()) is not None:
            if "stacks" in message:
                self.connection.send(stacks=own_stacks())
            if "end" in message:
                os._exit(int(message["end"]))
        self.over.set()
        if not self.leaving:
            time.sleep(self.timings.exit)
            print(f"process 0 ended, and so does process {self.step.rank}", file=sys.stderr, flush=True)
            os._exit(EXIT_RESUMABLE)

    def crash(self, error: BaseException) -> Crashed | None:
        return Crashed("the connection to another process was lost") if is_lost_connection(error) else None

    def leave(self, cause: str | None = None) -> None:
        """Wait until process 0 has written its report: srun kills the others some time after the first end."""
        self.leaving = True
        self.connection.send(leaves=cause or "")
        if cause is None:
            self.over.wait(self.timings.report)


def connect(folder: RunFolder, config: RunConfig, timings: Timings = TIMINGS) -> Peers:
    """All processes of this run, once they are connected; a missing one ends the attempt."""
    if (step := srun_step()) is None:
        return Peers()
    try:
        peers = (FirstProcess if step.rank == 0 else OtherProcess)(step, folder.path, timings)
        peers.connect()
    except Crashed as crash:
        print(f"\nthe run stopped: {crash}", file=sys.stderr)
        with suppress(Crashed), folder.attempt(config, folder.newest_step):
            raise
        raise SystemExit(crash.status) from None
    return peers


def identity() -> dict[str, Any]:
    """What identifies this start of the processes."""
    job = slurm_job()
    return {"job": job.get("job"), "restart": job.get("restart"), "step": os.environ.get("SLURM_STEP_ID")}


def node_name() -> str:
    return os.environ.get("SLURMD_NODENAME") or platform.node()


def is_lost_connection(error: BaseException) -> bool:
    """Whether an error says that another process is gone."""
    named = type(error).__name__ in ("DistBackendError", "DistNetworkError", "DistStoreError", "DistError")
    return named or (isinstance(error, RuntimeError) and LOST_CONNECTION.search(str(error)) is not None)


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def checked_port(port: int) -> int:
    """The port of MASTER_PORT, or a free one where that is in use."""
    try:
        with socket.create_server(("", port)):
            return port
    except OSError:
        other = free_port()
        print(f"MASTER_PORT is {port}: it is in use; the processes meet at {other}.", file=sys.stderr)
        return other


def own_stacks() -> str:
    """The stacks of all threads: from py-spy, which also shows C functions where permitted, else from faulthandler."""
    if shutil.which("py-spy"):
        command = ["py-spy", "dump", "--nonblocking", "--pid", str(os.getpid())]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PY_SPY_SECONDS)
            if done.returncode == 0 and done.stdout.strip():
                return done.stdout
        except (OSError, subprocess.TimeoutExpired):
            pass
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")
