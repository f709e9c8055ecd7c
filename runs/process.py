"""The signals that end this process, and a copy of all that it prints.

SIGUSR1 is what job scripts ask Slurm to send ahead of the time limit. SIGTERM begins a preemption, a `scontrol requeue`
and a `scancel`; Slurm is queried which of them it was once the state is saved. SIGINT is a Ctrl-C, SIGHUP a closed
terminal or a lost connection. A signal is only recorded here; training acts on it where the state can be saved.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

from core.files import replace_symlink

EXIT_RESUMABLE = 75  # exit status of a run that the same command resumes
EXIT_BY_HAND = 130  # exit status of a run that a person stopped
MEANING = {
    signal.SIGUSR1: "the time limit is near (SIGUSR1)",
    signal.SIGTERM: "it got SIGTERM",
    signal.SIGHUP: "its terminal is gone (SIGHUP)",
    signal.SIGINT: "it was stopped by hand (Ctrl-C)",
}
CTRL_C_MESSAGE = b"\nCtrl-C: the state is saved before the next batch; once more ends the run at once\n"
CAUSE_OF_SIGNAL = {signal.SIGUSR1: "time limit", signal.SIGINT: "stopped by hand"}


class SignalState:
    """The signals that this process has received.

    received: the first of them. training: whether there is a state to save, so that signals are only recorded.
    on_signal: called with the name of the first signal as it comes.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.process = os.getpid()
        self.training = False
        self.on_signal: Callable[[str], None] | None = None

    def listen(self) -> None:
        """Install the handlers; a signal that was ignored when the process began (nohup, a background job) stays so."""
        self.process = os.getpid()
        for number in MEANING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self.handle)

    def handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.process:  # a loader's process, which ends with this one
            return
        by_hand = number == signal.SIGINT
        again = by_hand and self.received is signal.SIGINT
        if self.received is None:
            self.received = signal.Signals(number)
            if self.on_signal is not None:
                self.on_signal(self.received.name)
            if by_hand and self.training and not int(os.environ.get("LOCAL_RANK") or 0):
                with suppress(OSError):
                    os.write(2, CTRL_C_MESSAGE)  # print may be what was interrupted
        if by_hand and (again or not self.training):
            raise KeyboardInterrupt
        if not self.training:
            raise SystemExit(EXIT_RESUMABLE)

    @property
    def cause(self) -> str:
        """The cause for attempts.jsonl, as far as the signal decides it."""
        if self.received in CAUSE_OF_SIGNAL:
            return CAUSE_OF_SIGNAL[self.received]
        return f"interrupted: {self.received.name}" if self.received is not None else "interrupted"

    @property
    def why(self) -> str:
        """A clause for messages: why the run ends."""
        return MEANING[self.received] if self.received is not None else "another of its processes got a signal"


signals = SignalState()


# The line in a log where an attempt begins.
ATTEMPT_MARK = re.compile(r"== (?P<time>\S+) on (?P<host>\S+)(?: as job (?P<job>\S+))? ==")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")


def strip_control_codes(line: str) -> str:
    """A line as a terminal shows it: what follows the last carriage return, without control sequences."""
    visible = line.rstrip("\r").rsplit("\r", 1)[-1]
    return CONTROL.sub("", visible).rstrip()


def attempt_mark() -> str:
    """The line that `ATTEMPT_MARK` reads."""
    job = os.environ.get("SLURM_JOB_ID")
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
        job = f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID')}"
    where = platform.node() or "here"
    return f"== {time.strftime('%Y-%m-%dT%H:%M:%S%z')} on {where}{f' as job {job}' if job else ''} =="


class CopiedStream:
    """Behaves as the stream it wraps; each finished line also goes to the file."""

    def __init__(self, stream: Any, file: IO[str]) -> None:
        self._stream = stream
        self._file = file
        self.began = file.tell()  # where in the file the part of this process begins
        self._pending = ""

    def write(self, text: str) -> int:
        count = self._on_terminal(lambda: self._stream.write(text))
        *lines, pending = (self._pending + text).split("\n")
        self._pending = pending[pending.rfind("\r", 0, -1) + 1 :]  # a progress bar redrawn for hours would pile up here
        try:
            for line in lines:
                text_line = strip_control_codes(line)
                if text_line or not line.strip():  # an empty line is copied, one of control sequences alone is not
                    self._file.write(text_line + "\n")
            self._file.flush()
        except (OSError, ValueError):
            pass  # a full disk must not stop the run because of its copy
        return len(text) if count is None else count

    def flush(self) -> None:
        self._on_terminal(self._stream.flush)

    def _on_terminal(self, show: Callable[[], Any]) -> Any:
        """Write to the wrapped stream; where its terminal is gone, it becomes /dev/null and the run continues."""
        try:
            return show()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def copy_output(path: Path, pointer: Path | None = None) -> None:
    """Append all of stdout and stderr to `path` too; `pointer` becomes a link to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 (open until the process ends)
    print(attempt_mark(), file=file, flush=True)
    sys.stdout = CopiedStream(sys.stdout, file)
    sys.stderr = CopiedStream(sys.stderr, file)
    if pointer is not None:
        try:
            replace_symlink(pointer, os.path.relpath(path, pointer.parent))
        except OSError:
            print(f"could not point {pointer} at {path}", file=sys.stderr)
