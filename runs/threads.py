"""The number of threads of a process, and how they wait: spinning on an idle machine, asleep on a shared one.

A thread of OpenMP that waits for another spins for milliseconds, so that it continues at once. Nothing is faster on an
idle machine; but where another program has the other thread's core, spinning takes the time that the other one needs,
and a run that gets half of the cores falls to a fraction of its speed. Sleeping at once costs a third of the speed of
an idle machine. So a thread measures how long the others waited for a core, and chooses. Their number stays, and so do
all results. torch is imported inside functions.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from core.cpus import own_cpus

POLL_SECONDS = 0.5
CROWDED = 0.1  # seconds of waiting for a core, over all threads, in a second
CROWDED_POLLS = 2  # in a row, before threads sleep
QUIET = 0.03
QUIET_POLLS = 20  # in a row, before threads spin again
CHOSEN_BY_USER = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
MESSAGE = "other work shares the cores of this run: while it does, waiting threads sleep and leave the cores to it."


def limit_threads() -> None:
    """As many threads as this process has CPUs, also where it may run on more; OMP_NUM_THREADS takes precedence."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), own_cpus()))


class SleepingThreads:
    """Makes the threads of libgomp sleep while they wait.

    libgomp spins only briefly while it has more threads than there are cores. So a thread of ours makes it start a few
    that do nothing, and holds them as long as threads should sleep. Those that compute stay the same.
    """

    def __init__(self, library: Any) -> None:
        self.library = library
        library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self.end: threading.Event | None = None

    def begin(self) -> None:
        self.end = threading.Event()
        started = threading.Event()
        threading.Thread(target=self.hold, args=(started, self.end), daemon=True).start()
        started.wait()

    def hold(self, started: threading.Event, end: threading.Event) -> None:
        nothing = ctypes.cast(self.library.omp_get_thread_num, ctypes.c_void_p)
        self.library.GOMP_parallel(nothing, None, len(os.sched_getaffinity(0)) + 1, 0)
        started.set()
        end.wait()  # they end with this thread

    def stop(self) -> None:
        if self.end is not None:
            self.end.set()
            self.end = None


class CoreContention:
    """Whether cores are shared: `is_crowded` from the second crowded poll in a row on, until enough quiet ones."""

    def __init__(self) -> None:
        self.is_crowded = False
        self.crowded = self.quiet = 0  # polls in a row

    def update(self, share: float) -> bool:
        """Whether the cores are shared. share: seconds that threads waited for a core, of each second."""
        self.quiet = self.quiet + 1 if share < QUIET else 0
        self.crowded = self.crowded + 1 if share > CROWDED else 0
        self.is_crowded = self.crowded >= CROWDED_POLLS or (self.is_crowded and self.quiet < QUIET_POLLS)
        return self.is_crowded


def watch_shared_cores(print_line: Callable[[str], None] | None = None) -> None:
    """Let threads sleep while other work shares the cores, from now on. print_line: called once when it does."""
    import torch

    library = loaded_libgomp()
    alone = torch.get_num_threads() == 1 or torch.cuda.is_available()
    if library is not None and not alone and not any(name in os.environ for name in CHOSEN_BY_USER):
        threading.Thread(target=poll_for_ever, args=(SleepingThreads(library), print_line), daemon=True).start()


def poll_for_ever(sleep: SleepingThreads, print_line: Callable[[str], None] | None) -> None:
    contention = CoreContention()
    waited, polled = waited_for_cores(), time.monotonic()
    while True:
        time.sleep(POLL_SECONDS)
        before, now = (waited, polled), (waited_for_cores(), time.monotonic())
        waited, polled = now
        was_crowded = contention.is_crowded
        if contention.update((waited - before[0]) / (polled - before[1])) == was_crowded:
            continue
        if was_crowded:
            sleep.stop()
            continue
        sleep.begin()
        if print_line is not None:
            print_line(MESSAGE)
            print_line = None


def waited_for_cores() -> float:
    """Seconds that the running threads of this process waited for a core."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError, ValueError, IndexError):
            total += int((task / "schedstat").read_bytes().split()[1])
    return total / 1e9


def loaded_libgomp() -> Any:
    """The OpenMP library of this process's torch, if it is libgomp."""
    if sys.platform != "linux" or not Path("/proc/self/schedstat").exists():
        return None
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "libgomp" in line}
    return ctypes.CDLL(paths.pop()) if len(paths) == 1 else None
