"""How threads wait for each other: spinning on an idle machine, asleep where they share its cores.

A thread of OpenMP that waits for another spins for milliseconds, so that it goes on at once. Nothing is faster on an
idle machine; but where a neighbour has taken the other's core, it burns the time that the other one needs, and a run
that gets half of the cores falls to a fraction of its speed. Sleeping at once costs a third of the speed of an idle
machine. So a watch looks at how long the threads had to wait for a core, and chooses. Their number stays, and so do all
results.
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

import torch

from config.cpus import own_cpus

LOOK = 0.5  # seconds between looks
CROWDED = 0.1  # seconds of waiting for a core, over all threads, in a second
CROWDED_LOOKS = 2  # in a row, before threads sleep
QUIET = 0.03
QUIET_LOOKS = 20  # in a row, before threads spin again
OWN_CHOICE = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # of a person who knows better
WORDS = "other work shares the cores of this run: while it does, waiting threads sleep and leave the cores to it."


def limit_threads() -> None:
    """As many threads as CPUs are this process's, also where it may run on more; a person's OMP_NUM_THREADS wins."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), own_cpus()))


class Sleep:
    """Makes the threads of libgomp sleep while they wait.

    libgomp spins only briefly while it has more threads than there are cores. So a thread of ours lets it make a few,
    which do nothing, and keeps them as long as that is wanted. Those that compute stay the same.
    """

    def __init__(self, library: Any) -> None:
        self.library = library
        library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self.end: threading.Event | None = None

    def begin(self) -> None:
        self.end = threading.Event()
        there = threading.Event()
        threading.Thread(target=self.keep, args=(there, self.end), daemon=True).start()
        there.wait()

    def keep(self, there: threading.Event, end: threading.Event) -> None:
        nothing = ctypes.cast(self.library.omp_get_thread_num, ctypes.c_void_p)
        self.library.GOMP_parallel(nothing, None, len(os.sched_getaffinity(0)) + 1, 0)
        there.set()
        end.wait()  # they end with this thread

    def stop(self) -> None:
        if self.end is not None:
            self.end.set()
            self.end = None


class Watch:
    """Judges the looks: `is_crowded` from a second crowded one on until a row of quiet ones."""

    def __init__(self) -> None:
        self.is_crowded = False
        self.crowded = self.quiet = 0  # looks in a row

    def judge(self, share: float) -> bool:
        """Whether the cores are shared. share: seconds that threads waited for a core, of each second."""
        self.quiet = self.quiet + 1 if share < QUIET else 0
        self.crowded = self.crowded + 1 if share > CROWDED else 0
        self.is_crowded = self.crowded >= CROWDED_LOOKS or (self.is_crowded and self.quiet < QUIET_LOOKS)
        return self.is_crowded


def watch_neighbours(say: Callable[[str], None] | None = None) -> None:
    """From now on. say: is told once that cores are shared."""
    library = loaded_libgomp()
    alone = torch.get_num_threads() == 1 or torch.cuda.is_available()
    if library is not None and not alone and not any(name in os.environ for name in OWN_CHOICE):
        threading.Thread(target=look_for_ever, args=(Sleep(library), say), daemon=True).start()


def look_for_ever(sleep: Sleep, say: Callable[[str], None] | None) -> None:
    watch = Watch()
    waited, looked = waited_for_cores(), time.monotonic()
    while True:
        time.sleep(LOOK)
        before, now = (waited, looked), (waited_for_cores(), time.monotonic())
        waited, looked = now
        was = watch.is_crowded
        if watch.judge((waited - before[0]) / (looked - before[1])) == was:
            continue
        if was:
            sleep.stop()
            continue
        sleep.begin()
        if say is not None:
            say(WORDS)
            say = None


def waited_for_cores() -> float:
    """Seconds that the threads of this process could have run and had no core; those that ended are forgotten."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError, ValueError, IndexError):
            total += int((task / "schedstat").read_bytes().split()[1])
    return total / 1e9


def loaded_libgomp() -> Any:
    """The library that this process's torch computes with; None where it is another."""
    if sys.platform != "linux" or not Path("/proc/self/schedstat").exists():
        return None
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "libgomp" in line}
    return ctypes.CDLL(paths.pop()) if len(paths) == 1 else None
