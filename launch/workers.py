"""Several runs at once on this machine, in the foreground: as many as it has cores for, each with its share of them.

A signal to stop is passed on to the runs, which save their state. They have sessions of their own: where this process
is killed they go on, and who applies the same command again waits for them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from core.cpus import own_cpus
from core.environment import clean_environment
from core.text import format_short_duration, format_value
from launch.script import ROOT
from runs.run import Run

POLL_SECONDS = 0.2
OUTPUT_FILE = "output.log"  # in the run's folder: what its processes print
GPUS = Path("/proc/driver/nvidia/gpus")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def default_workers() -> int:
    """How many runs this machine is given at once: one per core; where it has GPUs, one, which may use all of them."""
    return 1 if GPUS.is_dir() and any(GPUS.iterdir()) else own_cpus()


def threads_of_each(workers: int) -> int:
    return max(1, own_cpus() // workers)


@dataclass
class Workers:
    """Runs jobs of this machine. print_line: for a line about each end. is_stopping: a signal came."""

    count: int
    print_line: Callable[[str], None]
    is_stopping: bool = False
    processes: dict[Path, subprocess.Popen[bytes]] = field(default_factory=dict)
    starts: dict[Path, float] = field(default_factory=dict)
    durations: list[float] = field(default_factory=list)

    def work(self, runs: Sequence[Path]) -> bool:
        """Run them all, in this order; whether it came to the end, and was not told to stop."""
        waiting, total = deque(runs), len(runs)
        with self.listening():
            while self.processes or (waiting and not self.is_stopping):
                while waiting and len(self.processes) < self.count and not self.is_stopping:
                    self.start(waiting.popleft(), min(self.count, total))
                for run in [run for run, process in self.processes.items() if process.poll() is not None]:
                    self.end(run, total)
                if self.processes:
                    time.sleep(POLL_SECONDS)
        return not self.is_stopping

    def start(self, run: Path, parallel: int) -> None:
        """parallel: how many share the cores."""
        environment = clean_environment() | {"PYTHONDONTWRITEBYTECODE": "1"}  # a snapshot stays as it is
        environment.setdefault("OMP_NUM_THREADS", str(threads_of_each(parallel)))
        with open(run / OUTPUT_FILE, "ab") as log:
            self.processes[run] = subprocess.Popen(
                ["bash", str(run / "job_script.slurm")],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts[run] = time.monotonic()
        if self.is_stopping:  # the signal came while it started
            self.pass_on(run)

    def end(self, run: Path, total: int) -> None:
        del self.processes[run]
        duration = time.monotonic() - self.starts[run]
        self.durations.append(duration)
        left = total - len(self.durations)
        seconds_left = left * sum(self.durations) / len(self.durations) / min(self.count, total)
        expected = f", about {format_short_duration(seconds_left)} left" if left and not self.is_stopping else ""
        words = f"{format_value(run.name)}  {Run(run).state} after {format_short_duration(duration)}"
        self.print_line(f"[{len(self.durations)}/{total}] {words}{expected}")

    def pass_on(self, run: Path) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.processes[run].pid, signal.SIGTERM)

    def stop(self, number: int, frame: FrameType | None) -> None:
        if not self.is_stopping:
            self.is_stopping = True
            for run in list(self.processes):
                self.pass_on(run)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Signals are ours while runs are under way."""
        before = {number: signal.signal(number, self.stop) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
