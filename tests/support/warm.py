"""Python programs without the seconds in which torch and Lightning are imported.

A server process imports the libraries once, and forks for every program that `run` or `start` is given. The project's
own modules are imported by each program itself, so that code, patches and environment are read as in a new process.
The program has its own process id, session, working directory, environment and standard streams; signals, exit status
and exit handlers are as usual. What it shares with the others is the interpreter: hash seed, flags, settings that
libraries read while they are imported. A test of such things uses `subprocess` itself. Where a process cannot be forked
safely (not Linux, or a library that starts threads while it is imported) every program starts in a new process.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import math
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

READY = b"ready\n"
LIBRARIES = (
    *("torch", "torch.utils.flop_counter", "pytorch_lightning", "torchmetrics", "torchmetrics.text"),
    *(
        "matplotlib.pyplot",
        "numpy",
        "psutil",
        "pynvml",
        "rich.console",
        "rich.progress",
        "rich.table",
        "yaml",
        "asyncio",
    ),
)
# Variables that no library reads while it is imported. Where another differs, the program starts in a new process.
MAY_DIFFER = (
    *("EBT_", "SLURM", "SBATCH", "PYTEST_", "PYTHONPATH", "COLUMNS", "LINES", "PATH", "VIRTUAL_ENV"),
    *("PWD", "OLDPWD", "_", "TORCHINDUCTOR_CACHE_DIR", "PYTORCH_NVML_BASED_CUDA_CHECK"),
)


class Server:
    """The process that forks. It ends when this process does."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.environment = dict(os.environ)
        self.control, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
            )
        self.is_ready = read_line(self.control) == READY
        atexit.register(self.close)

    @property
    def is_usable(self) -> bool:
        return self.is_ready and self.owner == os.getpid() and self.process.poll() is None

    def fits(self, environment: dict[str, str]) -> bool:
        changed = dict(environment.items() ^ self.environment.items())
        return all(name.startswith(MAY_DIFFER) for name in changed)

    def fork(self, request: dict[str, Any], streams: list[int]) -> tuple[socket.socket, int]:
        """A connection on which the exit status will arrive, and the id of the new process."""
        connection, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.control, [b"\n"], [theirs.fileno(), *streams])
        connection.sendall(json.dumps(request).encode() + b"\n")
        return connection, int(read_line(connection))

    def close(self) -> None:
        if self.owner == os.getpid():
            self.control.close()
            self.process.wait()


_server: Server | None = None


def server() -> Server | None:
    """The server of this process, or None where processes cannot be forked safely."""
    global _server
    if not hasattr(os, "pidfd_open") or not os.path.isdir("/proc/self/task"):
        return None
    if _server is not None and _server.is_usable and not _server.fits(dict(os.environ)):
        _server.close()  # a library that was imported since, or a test, has changed the environment
        _server = None
    if _server is None or (_server.is_ready and not _server.is_usable):
        _server = Server()
    return _server if _server.is_usable else None


class Process:
    """A program that a server runs, with what tests use of subprocess.Popen."""

    def __init__(self, server: Server, command: list[str], cwd: Any, environment: dict[str, str], stdin: Any,
                 stdout: Any, stderr: Any, text: bool) -> None:  # fmt: skip
        self.args, self.text = command, text
        self.returncode: int | None = None
        ours: list[IO[Any] | None] = [None, None, None]
        streams, to_close = [], []
        for number, given in enumerate((stdin, stdout, stderr)):
            if given == subprocess.PIPE:
                reader, writer = os.pipe()
                streams.append(writer if number else reader)
                mode = ("r" if number else "w") + ("" if text else "b")
                ours[number] = open(reader if number else writer, mode)  # noqa: SIM115
                to_close.append(streams[-1])
            elif given == subprocess.DEVNULL:
                streams.append(os.open(os.devnull, os.O_RDWR))
                to_close.append(streams[-1])
            elif given == subprocess.STDOUT:
                streams.append(streams[1])
            else:
                streams.append(number if given is None else given if isinstance(given, int) else given.fileno())
        self.stdin, self.stdout, self.stderr = ours
        request = {"argv": command[1:], "cwd": os.path.abspath(cwd or "."), "env": environment}
        self.connection, self.pid = server.fork(request, streams)
        for stream in to_close:
            os.close(stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self.connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            status = read_line(self.connection)
            self.connection.close()
            assert status, "the server of warm processes was killed"
            self.returncode = os.waitstatus_to_exitcode(int(status))
        return self.returncode

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """All that it prints until its end, which must come within these seconds."""
        deadline = time.monotonic() + timeout if timeout is not None else math.inf
        if self.stdin is not None:
            with suppress(BrokenPipeError), self.stdin:
                if input:
                    self.stdin.write(input)
        printed: dict[IO[Any], bytes] = {stream: b"" for stream in (self.stdout, self.stderr) if stream is not None}
        unfinished = list(printed)
        while unfinished:
            ready = select.select(unfinished, [], [], seconds_until(deadline))[0]
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            for stream in ready:
                part = os.read(stream.fileno(), 1 << 16)
                printed[stream] += part
                if not part:
                    unfinished.remove(stream)
        self.wait(seconds_until(deadline))
        stdout, stderr = (printed[stream] if stream else None for stream in (self.stdout, self.stderr))
        return (as_text(stdout), as_text(stderr)) if self.text else (stdout, stderr)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(command: list[str], *, cwd: Any = None, env: Any = None, stdin: Any = None, stdout: Any = None,
          stderr: Any = None, text: bool = False) -> Process | subprocess.Popen[Any]:  # fmt: skip
    """[sys.executable, SCRIPT or -m MODULE or -c CODE, ...] in a session of its own, warm where that is possible."""
    environment = dict(os.environ if env is None else env)
    forking = server()
    if forking is not None and forking.fits(environment):
        return Process(forking, [os.fspath(word) for word in command], cwd, environment, stdin, stdout, stderr, text)
    streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr, "text": text}
    return subprocess.Popen(command, cwd=cwd, env=env, start_new_session=True, **streams)


def run(command: Any, *, input: Any = None, timeout: float | None = None, check: bool = False,
        capture_output: bool = False, **options: Any) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """subprocess.run, in a warm process."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with start(command, **options) as process:
        try:
            stdout, stderr = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    assert process.returncode is not None
    done: subprocess.CompletedProcess[Any] = subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
    if check:
        done.check_returncode()
    return done


def seconds_until(deadline: float) -> float | None:
    return None if deadline == math.inf else max(0.0, deadline - time.monotonic())


def as_text(printed: bytes | None) -> str | None:
    return None if printed is None else printed.decode().replace("\r\n", "\n").replace("\r", "\n")


def read_line(connection: socket.socket) -> bytes:
    """Up to a newline, or to the end; nothing follows a line before it is answered."""
    line = b""
    while not line.endswith(b"\n") and (part := connection.recv(1 << 16)):
        line += part
    return line


# What follows runs in the server.


def serve(control: socket.socket) -> dict[str, Any]:
    """Fork for every request. Returns in the new processes only, with the request."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in LIBRARIES:
        importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit("tests/support/warm.py: a library has started threads, so that programs start in new processes")
    gc.collect()
    gc.freeze()
    control.sendall(READY)
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1, 4)
        if not message:
            sys.exit(0)
        if os.fork() == 0:
            control.close()
            return wait_for_program(socket.socket(fileno=fds[0]), fds[1:])
        for fd in fds:
            os.close(fd)
        while any(os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) or ()):
            pass


def wait_for_program(connection: socket.socket, streams: list[int]) -> dict[str, Any]:
    """Fork once more. Returns in the child; the parent reports its status, and kills it if nobody asks any more."""
    request = json.loads(read_line(connection))
    if (pid := os.fork()) == 0:
        connection.close()
        os.setsid()
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        for fd in streams:
            if fd > 2:
                os.close(fd)
        return request
    for fd in streams:
        os.close(fd)
    connection.sendall(b"%d\n" % pid)
    process = os.pidfd_open(pid)
    if connection.fileno() in select.select([process, connection.fileno()], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    try:
        connection.sendall(b"%d\n" % status)
    finally:
        os._exit(0)


def become(request: dict[str, Any]) -> None:
    """Run the program of the request as a new interpreter would."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False, buffering=-1)  # noqa: SIM115
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty(), write_through=unbuffered)
    sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115
    sys.modules["numpy"].random.seed()  # of the libraries' generators this one does not notice a fork
    del sys.modules["__main__"]
    own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    sys.path[1:1] = own
    first, *words = request["argv"]
    if first == "-m":
        module, *words = words
        sys.argv, sys.path[0] = ["-m", *words], os.getcwd()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif first == "-c":
        code, *words = words
        sys.argv, sys.path[0] = ["-c", *words], ""
        sys.modules["__main__"] = main = type(sys)("__main__")
        exec(compile(code, "<string>", "exec"), main.__dict__)
    else:
        sys.argv, sys.path[0] = [first, *words], str(Path(first).resolve().parent)
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    become(serve(socket.socket(fileno=int(sys.argv[1]))))
