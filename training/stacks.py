"""Where the threads of a process are, for the log of one that hangs."""

from __future__ import annotations

import faulthandler
import os
import shutil
import subprocess
import sys
import tempfile
from types import FrameType

DEBUGGERS = ("pdb.py", "bdb.py", "ipdb", "pydevd", "debugpy")
PATIENCE = 20  # seconds for py-spy


def own_stacks() -> str:
    """py-spy's, which also has C functions where it may, else those of faulthandler."""
    if shutil.which("py-spy"):
        words = ["py-spy", "dump", "--nonblocking", "--pid", str(os.getpid())]
        try:
            done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=PATIENCE)
            if done.returncode == 0 and done.stdout.strip():
                return done.stdout
        except (OSError, subprocess.TimeoutExpired):
            pass
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")


def is_debugged(main_thread: int | None) -> bool:
    """Whether the main thread is in a debugger's hands: a person thinks as long as they like."""
    frame: FrameType | None = sys._current_frames().get(main_thread or 0)
    while frame is not None:
        if any(name in frame.f_code.co_filename for name in DEBUGGERS):
            return True
        frame = frame.f_back
    return False
