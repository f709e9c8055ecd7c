"""Python programs without the seconds in which torch and Lightning are imported.

A server process imports the libraries once, and forks for every program that `run` or `Popen` start. The project's own
modules are imported by each program itself, so that code, patches and environment are read as in a new process. The
program has its own process id, session, working directory, environment and standard streams; signals, exit status and
exit handlers are as usual. What it shares with the others is the interpreter: hash seed, flags, settings that libraries
read while they are imported. A test of such things uses `subprocess` itself.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

LIBRARIES = (
    *(
        "torch",
        "torch.utils.flop_counter",
        "pytorch_lightning",
        "torchmetrics",
        "torchmetrics.text",
        "matplotlib.pyplot",
    ),
    *("numpy", "psutil", "pynvml", "rich.console", "rich.progress", "rich.table", "yaml", "asyncio"),
)
# Variables that no library reads while it is imported. Where another differs, the program starts in a new process.
MAY_DIFFER = ("EBT_", "SLURM", "SBATCH", "PYTEST_", "COLUMNS", "LINES", "PATH", "VIRTUAL_ENV", "PWD", "OLDPWD", "_")


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


def server() -> Server:
    global _server
    if _server is None or _server.owner != os.getpid() or _server.process.poll() is not None:
        _server = Server()
        atexit.register(_server.close)
    return _server


class Popen(subprocess.Popen):
    """subprocess.Popen of [sys.executable, SCRIPT or -m MODULE or -c CODE, ...]."""

    connection: socket.socket | None = None

    def _execute_child(self, args: list[str], executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any,
                       env: Any, startupinfo: Any, creationflags: Any, shell: Any, *rest: Any) -> None:  # fmt: skip
        stdin, _, _, stdout, _, stderr = rest[:6]
        environment = dict(os.environ if env is None else env)
        command = [os.fspath(word) for word in args] if isinstance(args, (list, tuple)) else []
        is_python = command[:1] == [sys.executable] and (command[1:2] in (["-m"], ["-c"]) or command[1:2] > ["."])
        if not is_python or shell or preexec_fn or pass_fds or not server().fits(environment):
            own = (executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell)
            super()._execute_child(args, *own, *rest)  # type: ignore[misc]
            return
        request = {"argv": command[1:], "cwd": os.path.abspath(cwd or "."), "env": environment}
        streams = [number if given == -1 else given for number, given in enumerate((stdin, stdout, stderr))]
        self.connection, self.pid = server().fork(request, streams)
        self._child_created = True
        self._close_pipe_fds(*rest[:6])  # type: ignore[attr-defined]

    def _internal_poll(self, *arguments: Any, **options: Any) -> int | None:
        if self.connection is None:
            return super()._internal_poll(*arguments, **options)  # type: ignore[misc]
        if self.returncode is None and (status := self._status(0))[0]:
            self._handle_exitstatus(status[1])  # type: ignore[attr-defined]
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self.connection is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc]
        return self._status(0 if wait_flags & os.WNOHANG else None)

    def _status(self, timeout: float | None) -> tuple[int, int]:
        assert self.connection is not None
        if not select.select([self.connection], [], [], timeout)[0]:
            return 0, 0
        line = read_line(self.connection)
        self.connection.close()
        assert line, "the server of warm processes was killed"
        return self.pid, int(line)


def run(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[Any]:
    """subprocess.run, in a warm process."""
    timeout, check, given = options.pop("timeout", None), options.pop("check", False), options.pop("input", None)
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if given is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(*arguments, **options) as process:
        try:
            stdout, stderr = process.communicate(given, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done: subprocess.CompletedProcess[Any] = subprocess.CompletedProcess(
        process.args, process.returncode, stdout, stderr
    )
    if check:
        done.check_returncode()
    return done


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
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot fork safely"
    gc.collect()
    gc.freeze()
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
