"""The processes of one srun keep in touch, so that none of them waits for one that is gone.

Process 0 listens; where, it writes into the run folder. Each of the others keeps one connection to it for as long as it
lives, so that the end of a process is known at once wherever it was, and with it who ended first: the error that the
rest of them get ("connection reset") names nobody. Over the same connection process 0 tells the port at which
torch.distributed meets, asks for stacks, and ends all of them together. A message is a line of JSON.
"""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from config import RunConfig
from core.files import write_json
from runs import RunFolder
from runs.attempts import slurm_job
from runs.causes import of_error
from runs.processes import Step, srun_step
from runs.signals import GOES_ON
from training.stacks import own_stacks
from training.stop import StopRun

FILE = "processes.json"
COMING = 60.0  # seconds without a newcomer, after which one is given up
STUCK = 20.0  # seconds that a process has to end by itself after another one did
LEAVING = 1800.0  # seconds that the others wait for process 0, which still writes its report
ANSWERING = 10.0  # seconds to send one's stacks
NEWS = 3.0  # seconds in which the end of a process is heard of that broke a connection
LOOK = 0.2
LOST = re.compile(
    r"connection (reset|closed|refused)|closed by peer|broken pipe|gloo|nccl",
    re.IGNORECASE,
)


class Crashed(StopRun):
    """Perhaps nobody's fault: the job's script, which sees how the other one ended, decides whether the run goes on."""

    status = GOES_ON

    def __init__(self, words: str) -> None:
        super().__init__(f"{words}; what is saved can be gone on from.")
        self.cause = f"crashed: {words}"


class Line:
    """A connection, as lines of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):  # a node may vanish
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
        self.connection = connection
        self.reader = connection.makefile("rb")

    def send(self, **message: Any) -> None:
        with suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when the other end is gone."""
        try:
            line = self.reader.readline()
            return dict(json.loads(line)) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self.connection.close()


class Company:
    """What a process that is alone has of others: nothing. The two kinds below have the same ways.

    stuck: is told of the end of another process that this one does not notice.
    """

    stuck: Callable[[str], None] | None = None

    def stacks(self) -> dict[str, str]:
        """The stacks of the other processes, by their names."""
        return {}

    def end_all(self, status: int) -> None:
        """End the other processes at once, with this status."""

    def crash(self, error: BaseException) -> Crashed | None:
        """What ended the run when this process got an error that is perhaps only the echo of another's end."""
        return None

    def leave(self, cause: str | None = None) -> None:
        """This process is about to end. cause: its error, if that is why."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.leave(None if error is None else of_error(error))


class First(Company):
    """Process 0, which knows of all others."""

    def __init__(self, step: Step, folder: Path) -> None:
        self.step = step
        self.lines: dict[int, Line] = {}
        self.hosts: dict[int, str] = {}
        self.said: dict[int, str] = {}  # why a process left, in its own words; empty: as it should
        self.gone: list[int] = []  # without a word, in the order of their ends
        self.answers: dict[int, str] = {}
        self.changed = threading.Condition()
        self.leaving = False
        self.server = socket.create_server(("", 0), backlog=step.tasks)
        self.server.settimeout(LOOK)
        self.word = secrets.token_hex(8)
        mine = os.environ.get("MASTER_PORT")
        self.port = checked_port(int(mine)) if mine else free_port()
        self.file = folder / FILE
        where = {"address": step.first_node, "port": self.server.getsockname()[1], "word": self.word}
        write_json(self.file, {**identity(), **where})

    def meet(self) -> None:
        """Wait until all are there."""
        try:
            self.wait_for_all()
        finally:
            self.server.close()
            self.file.unlink(missing_ok=True)
        for rank, line in self.lines.items():
            line.send(port=self.port)
            threading.Thread(target=self.listen, args=(rank, line), daemon=True).start()
        os.environ["MASTER_PORT"] = str(self.port)

    def wait_for_all(self) -> None:
        heard = time.monotonic()
        while len(self.lines) < self.step.tasks - 1:
            with suppress(TimeoutError):
                connection, _ = self.server.accept()
                heard = self.admit(Line(connection)) or heard
            if time.monotonic() - heard > COMING:
                missing = [rank for rank in range(1, self.step.tasks) if rank not in self.lines]
                which = f"task {missing[0]}" if len(missing) == 1 else f"{len(missing)} tasks, {missing[0]} the first,"
                self.end_all(GOES_ON)
                raise Crashed(f"{which} of {self.step.tasks} never came")

    def admit(self, line: Line) -> float | None:
        """The time, if it was one of this run."""
        line.connection.settimeout(5)
        hello = line.receive() or {}
        line.connection.settimeout(None)
        rank = hello.get("rank")
        if hello.get("word") != self.word or not isinstance(rank, int):
            line.close()
            return None
        self.lines[rank], self.hosts[rank] = line, str(hello.get("host"))
        return time.monotonic()

    def listen(self, rank: int, line: Line) -> None:
        while (message := line.receive()) is not None:
            with self.changed:
                if "leaves" in message:
                    self.said[rank] = str(message["leaves"] or "")
                if "stacks" in message:
                    self.answers[rank] = str(message["stacks"])
                self.changed.notify_all()
        with self.changed:
            if rank not in self.said:
                self.gone.append(rank)
            self.changed.notify_all()
        if not self.leaving and (words := self.trouble()):
            time.sleep(STUCK)  # the error comes by itself, most of the time
            while not self.leaving and self.stuck is None:  # it still reads its data
                time.sleep(LOOK)
            if not self.leaving and self.stuck is not None:
                self.stuck(words)

    def name(self, rank: int) -> str:
        return f"task {rank} on {self.hosts.get(rank, 'an unknown node')}"

    def trouble(self) -> str:
        """Who ended first of those that should not have."""
        if self.gone:
            return f"{self.name(self.gone[0])} died"
        failed = next((rank for rank, cause in self.said.items() if cause), None)
        return f"{self.name(failed)} ended with {self.said[failed]}" if failed is not None else ""

    def crash(self, error: BaseException) -> Crashed | None:
        if not is_echo(error):
            return None
        with self.changed:
            self.changed.wait_for(lambda: bool(self.gone or any(self.said.values())), NEWS)
        failed = next((cause for cause in self.said.values() if cause), "")
        if self.gone or not failed:
            return Crashed(self.trouble() or "the connection to another process was lost")
        return Blamed(self.trouble(), failed)

    def stacks(self) -> dict[str, str]:
        for line in self.lines.values():
            line.send(stacks=True)
        with self.changed:
            self.changed.wait_for(lambda: set(self.answers) >= set(self.lines), ANSWERING)
        silent = "it does not answer: stopped, or its machine hangs"
        return {self.name(rank): self.answers.get(rank, silent) for rank in sorted(self.lines)}

    def end_all(self, status: int) -> None:
        self.leaving = True
        for line in self.lines.values():
            line.send(end=status)

    def leave(self, cause: str | None = None) -> None:
        self.leaving = True  # the others hear of it when this process is gone, and not before


class Blamed(Crashed):
    """Another process's own error, of which this one only has the echo: it would come again, so nothing goes on."""

    status = 1

    def __init__(self, words: str, cause: str) -> None:
        super().__init__(words)
        self.args = (f"{words}; its own log is rank_N.log of the run folder.",)
        self.cause = cause


class Other(Company):
    """A process that is not the first."""

    def __init__(self, step: Step, folder: Path) -> None:
        self.step = step
        self.over = threading.Event()  # process 0 is gone
        self.leaving = False
        self.line = self.find(folder / FILE)

    def find(self, file: Path) -> Line:
        """The connection to process 0."""
        deadline = time.monotonic() + COMING
        while time.monotonic() < deadline:
            with suppress(OSError, ValueError, KeyError):
                os.listdir(file.parent)  # lets a network's file system look again
                where = json.loads(file.read_bytes())
                if {name: where.get(name) for name in identity()} == identity():
                    line = Line(socket.create_connection((where["address"], where["port"]), timeout=10))
                    line.send(rank=self.step.rank, host=node_name(), word=where["word"])
                    return line
            time.sleep(LOOK)
        raise Crashed(f"task 0 of {self.step.tasks} never came")

    def meet(self) -> None:
        port = (self.line.receive() or {}).get("port")  # process 0 does not wait for ever, so this does not either
        if port is None:
            raise Crashed("process 0 ended before all had met")
        os.environ["MASTER_PORT"] = str(port)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        while (message := self.line.receive()) is not None:
            if "stacks" in message:
                self.line.send(stacks=own_stacks())
            if "end" in message:
                os._exit(int(message["end"]))
        self.over.set()
        if not self.leaving:
            time.sleep(STUCK)
            print(f"process 0 ended, and so does process {self.step.rank}", file=sys.stderr, flush=True)
            os._exit(GOES_ON)

    def crash(self, error: BaseException) -> Crashed | None:
        return Crashed("the connection to another process was lost") if is_echo(error) else None

    def leave(self, cause: str | None = None) -> None:
        """Stay until process 0 has written its report: srun kills what is left a while after the first end."""
        self.leaving = True
        self.line.send(leaves=cause or "")
        if cause is None:
            self.over.wait(LEAVING)


def meet(folder: RunFolder, config: RunConfig) -> Company:
    """All processes of this run, once they are there. Where one does not come, that is the end of an attempt."""
    if (step := srun_step()) is None:
        return Company()
    try:
        company = First(step, folder.path) if step.rank == 0 else Other(step, folder.path)
        company.meet()
    except Crashed as crash:
        print(f"\nthe run stopped: {crash}", file=sys.stderr)
        with suppress(Crashed), folder.attempt(config, folder.newest_step):
            raise
        raise SystemExit(crash.status) from None
    return company


def identity() -> dict[str, Any]:
    """What tells this start of these processes from every other."""
    job = slurm_job()
    return {"job": job.get("job"), "restart": job.get("restart"), "step": os.environ.get("SLURM_STEP_ID")}


def node_name() -> str:
    return os.environ.get("SLURMD_NODENAME") or platform.node()


def is_echo(error: BaseException) -> bool:
    """Whether an error is what a process gets when another one ended."""
    named = type(error).__name__ in ("DistBackendError", "DistNetworkError", "DistStoreError", "DistError")
    return named or (isinstance(error, RuntimeError) and LOST.search(str(error)) is not None)


def free_port() -> int:
    with socket.create_server(("", 0)) as found:
        return int(found.getsockname()[1])


def checked_port(port: int) -> int:
    """The port of MASTER_PORT, or another one where somebody has that."""
    try:
        with socket.create_server(("", port)):
            return port
    except OSError:
        other = free_port()
        print(f"MASTER_PORT is {port}: somebody has it; the processes meet at {other}.", file=sys.stderr)
        return other
