"""A copy of everything printed, without the traces of progress bars.

The copy is taken where Python writes, so install it before libraries keep a reference to the streams.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from core.files import point

# Stands in a log wherever a process takes up a run, so that its attempts can be told apart.
START = re.compile(r"== (?P<time>\S+) on (?P<host>\S+)(?: as job (?P<job>\S+))? ==")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")


def settle(line: str) -> str:
    """What is left of a line on the screen after carriage returns and control sequences."""
    shown = line.rstrip("\r").rsplit("\r", 1)[-1]
    return CONTROL.sub("", shown).rstrip()


def start_mark() -> str:
    """The line that `START` reads."""
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
        count = self._shown(lambda: self._stream.write(text))
        *lines, pending = (self._pending + text).split("\n")
        self._pending = pending[pending.rfind("\r", 0, -1) + 1 :]  # a bar redrawn for hours must not pile up here
        try:
            for line in lines:
                kept = settle(line)
                if kept or not line.strip():  # an empty line is kept, one emptied of control sequences is not
                    self._file.write(kept + "\n")
            self._file.flush()
        except (OSError, ValueError):
            pass  # a full disk must not stop the run because of its copy
        return len(text) if count is None else count

    def flush(self) -> None:
        self._shown(self._stream.flush)

    def _shown(self, show: Callable[[], Any]) -> Any:
        """Show something; a terminal that is gone costs the sight of it, not the run."""
        try:
            return show()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())  # for all who write there
            os.close(nowhere)
            return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def copy_output(path: Path, pointer: Path | None = None) -> None:
    """Append all of stdout and stderr to `path` too; `pointer` becomes a link to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 (open until the process ends)
    print(start_mark(), file=file, flush=True)
    sys.stdout = CopiedStream(sys.stdout, file)
    sys.stderr = CopiedStream(sys.stderr, file)
    if pointer is not None:
        try:
            point(pointer, os.path.relpath(path, pointer.parent))
        except OSError:
            print(f"could not point {pointer} at {path}", file=sys.stderr)
