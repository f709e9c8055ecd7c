"""`python -m launch drill --random N`: real signals at random moments, over several runs at once, until N were used.

Each run is interrupted again and again, in start-up, while it trains, saves, validates and reports, until it is
finished; then it has to be the same, bit for bit, as an uninterrupted run.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from core.errors import UserError
from launch.drill_runner import (
    TIMEOUT_SECONDS,
    Report,
    first_difference,
    interrupt_job,
    job_states,
    last_line,
    printed_command,
    run_in,
    start_attempt,
    submit_job,
    try_slurm,
)
from launch.job import prepare
from launch.script import ROOT
from launch.slurm import OVER
from runs.process import EXIT_BY_HAND, EXIT_RESUMABLE
from runs.run import Run

# Files in the run's folder that cause a fault in the training process.
FAULT_FILES = {"hang": "hang_in_the_drill", "kill": "kill_in_the_drill"}
# Kind of interruption: what is sent, in order.
COMMON_KINDS = {
    "time limit (SIGUSR1)": ("USR1",),
    "preempted (SIGTERM)": ("TERM",),
    "preempted, killed soon after": ("TERM", "KILL"),
    "stopped by hand (Ctrl-C)": ("INT",),
    "Ctrl-C twice": ("INT", "INT"),
    "killed (SIGKILL)": ("KILL",),
    "crashed (SIGABRT)": ("ABRT",),
    "hung": ("hang",),
}
LOCAL_KINDS = {**COMMON_KINDS, "terminal lost (SIGHUP)": ("HUP",)}
SLURM_KINDS = {
    **COMMON_KINDS,
    "requeued": ("requeue",),
    "cancelled": ("cancel",),
    "killed (SIGKILL)": ("kill",),  # scancel --signal=KILL would send SIGTERM first
    "preempted, killed soon after": ("TERM", "kill"),
}
MANUAL = {"INT", "kill", "cancel"}  # after these a person has to queue the job again
NOT_REQUEUED = "not queued again"  # in the log of a job that made no progress in several starts
ACCEPTED_CAUSES = (
    *("finished", "time limit", "interrupted", "preempted", "requeued", "cancelled", "stopped by hand"),
    *("killed", "out of memory or killed", "node failure", "crashed", "hung"),
)
STEPS, CHECKPOINT_EVERY = 150, 13
STEP_SECONDS = 0.1  # an interruption at a step comes within this time after it
CLOCKS = ("start", "training", "steps", "steps")  # drawn at random, steps twice as often
PHASES = ("starting", "training", "saving", "ending")


# -- one run, on this machine or as a job ----------------------------------------------------------------------------


@dataclass
class Interruption:
    """One interruption of a run.

    clock: what its moment is measured by: time since the process started, time since training began, or steps.
    share: fraction of the uninterrupted run's time, or of the remaining steps. phase: the phase of the run that it hit.
    lost: steps that it cost.
    """

    kind: str
    clock: str
    share: float
    phase: str = ""
    attempt: int = 0  # the attempt that it ended; 0 if none had begun
    lost: int = 0


class InterruptedRun:
    """One run, from its first start to its end. `begin` and `resume` start an attempt; `is_over` if it ended."""

    def __init__(self, work_dir: Path, name: str, flags: list[str]) -> None:
        self.name, self.logs = name, work_dir / name
        self.log = self.logs / "output.log"
        self.flags = [*flags, "--logs_dir", str(self.logs)]
        self.interruptions: list[Interruption] = []
        self.problem: str | None = None
        self.began = 0.0
        self.earlier_attempts = 0  # attempts before this start
        self.log_offset = 0  # bytes of the log before this start

    @property
    def run(self) -> Run | None:
        """Its folder, read again at every call; None before it exists."""
        return run_in(self.logs)

    def mark_start(self) -> None:
        """Remember where a start begins."""
        self.began = time.monotonic()
        self.earlier_attempts = len(self.run.attempts) if self.run else 0
        self.log_offset = self.log.stat().st_size if self.log.exists() else 0

    def last_line(self) -> str:
        """The last line that this start printed."""
        return last_line(self.log, self.log_offset)

    @property
    def is_training(self) -> bool:
        return self.run is not None and len(self.run.attempts) > self.earlier_attempts

    @property
    def step(self) -> int:
        """The last logged step of this start, or its first step."""
        run = self.run
        if run is None or len(run.attempts) <= self.earlier_attempts:
            return 0
        first = run.attempts[-1].get("first_step", 0)
        return max([first, *(row["step"] for row in run.last_metrics() if isinstance(row.get("step"), int))])

    def begin(self) -> None:
        raise NotImplementedError

    def resume(self, interruption: Interruption | None) -> None:
        """Start it again as its job or a person would; an unexpected end becomes `problem`."""
        raise NotImplementedError

    def is_over(self) -> bool:
        raise NotImplementedError

    @property
    def is_finished(self) -> bool:
        raise NotImplementedError

    def send(self, action: str) -> None:
        """Send a signal by its name, or requeue or cancel the job."""
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def interrupt(self, interruption: Interruption, kinds: dict[str, tuple[str, ...]]) -> None:
        """Perform the interruption and record the phase that it hit."""
        run = self.run
        attempts = run.attempts if run else []
        is_open = len(attempts) > self.earlier_attempts and "end" not in attempts[-1]
        is_saving = run is not None and any((run.path / "checkpoints").glob(".*.tmp"))
        interruption.phase = (
            "saving" if is_saving else "training" if is_open else "ending" if self.is_training else "starting"
        )
        interruption.attempt = len(attempts) if is_open else 0
        self.interruptions.append(interruption)
        for number, action in enumerate(kinds[interruption.kind]):
            if number:
                time.sleep(0.2)
            if action not in FAULT_FILES:
                self.send(action)
            elif run is not None:
                (run.path / FAULT_FILES[action]).touch()

    def remove_pending_faults(self) -> bool:
        """Remove fault files that had no effect before the end; whether there were any."""
        files = [file for name in FAULT_FILES.values() if self.run and (file := self.run.path / name).exists()]
        for file in files:
            file.unlink(missing_ok=True)
        return bool(files)

    def check(self, reference: Run) -> str | None:
        """What is wrong with the run, in words; None if nothing is."""
        run = self.run
        if self.problem or run is None:
            return self.problem or "it made no run folder"
        for number, attempt in enumerate(run.attempts, 1):
            if not str(attempt.get("cause")).startswith(ACCEPTED_CAUSES):
                return f"attempts.jsonl says {attempt.get('cause')!r} of attempt {number}"
        for interruption in self.interruptions:
            interruption.lost = (
                run.attempts[interruption.attempt - 1].get("steps_lost", 0) if interruption.attempt else 0
            )
        return first_difference(run.metrics(), reference.metrics())


class LocalInterruptedRun(InterruptedRun):
    """Processes of this machine; restarts what Slurm would restart."""

    process: subprocess.Popen[bytes]

    def __init__(self, work_dir: Path, name: str, flags: list[str], root: Path = ROOT) -> None:
        """root: the folder of train_model.py."""
        super().__init__(work_dir, name, flags)
        self.root = root

    def begin(self) -> None:
        self.folder = prepare(self.flags)
        self.start([sys.executable, "train_model.py", *self.flags], self.folder)

    def start(self, command: list[str], folder: Path | None) -> None:
        self.mark_start()
        self.process = start_attempt(command, self.root, folder, "random", self.log)

    def is_over(self) -> bool:
        return self.process.poll() is not None

    @property
    def is_finished(self) -> bool:
        return self.process.returncode == 0

    def resume(self, interruption: Interruption | None) -> None:
        status = self.process.returncode
        sent = LOCAL_KINDS[interruption.kind] if interruption else ()
        expected = {EXIT_RESUMABLE, *(-getattr(signal, f"SIG{action}") for action in sent if action != "hang")}
        if interruption is None or status not in expected | ({EXIT_BY_HAND} if "INT" in sent else set()):
            self.problem = (
                f"{interruption.kind if interruption else 'nothing'} ended it with status {status}: {self.last_line()}"
            )
            return
        printed = printed_command(self.log, self.log_offset) if status == EXIT_BY_HAND else None
        self.start(printed or [sys.executable, "train_model.py", *self.flags], None if printed else self.folder)

    def send(self, action: str) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, getattr(signal, f"SIG{action}"))

    def stop(self) -> None:
        if hasattr(self, "process") and self.process.poll() is None:
            self.send("KILL")
            self.process.wait()


class JobStates:
    """The states of all jobs of the drill, read once a second."""

    def __init__(self) -> None:
        self.jobs: dict[str, str] = {}
        self.lock = threading.Lock()
        self.read_at = 0.0
        self.states: dict[str, tuple[str, str]] = {}

    def state(self, job: str) -> tuple[str, str]:
        """State and start time of a job."""
        with self.lock:
            if time.monotonic() - self.read_at > 1:
                self.states = job_states(self.jobs.values()) or self.states
                self.read_at = time.monotonic()
            return self.states.get(job, ("", ""))

    def add(self, name: str, job: str) -> None:
        with self.lock:
            self.jobs[name] = job
            self.read_at = 0.0

    def clear(self) -> None:
        with self.lock:
            self.states, self.read_at = {}, 0.0


class SlurmInterruptedRun(InterruptedRun):
    """A job of train.slurm, which requeues itself; the drill requeues it where a person would have to."""

    def __init__(self, work_dir: Path, name: str, flags: list[str], script: Path, states: JobStates) -> None:
        super().__init__(work_dir, name, flags)
        self.script, self.states = script, states
        self.start_time = ""  # of this start, as Slurm prints it
        self.state = ""

    def begin(self) -> None:
        self.job = submit_job(self.script, self.flags, self.logs, self.log, "random")
        self.states.add(self.name, self.job)
        self.wait_for_start()

    def wait_for_start(self) -> None:
        """Wait until the job starts once more or is over; the time in the queue is not limited."""
        while True:
            state, start_time = self.states.state(self.job)
            if state in OVER or (state == "RUNNING" and start_time != self.start_time):
                self.start_time = start_time
                self.mark_start()
                return
            time.sleep(0.3)

    def is_over(self) -> bool:
        self.state, start_time = self.states.state(self.job)
        is_restarted = self.state == "RUNNING" and start_time != self.start_time
        return self.state in OVER or self.state == "PENDING" or is_restarted

    @property
    def is_finished(self) -> bool:
        return self.state == "COMPLETED"

    def resume(self, interruption: Interruption | None) -> None:
        if self.state in OVER:
            sent = SLURM_KINDS[interruption.kind] if interruption else ()
            log = self.log.read_bytes()[self.log_offset :].decode(errors="replace")
            attempts = self.run.attempts if self.run else []
            # only its report was interrupted
            is_trained = bool(attempts) and str(attempts[-1].get("cause")).startswith("finished")
            if not is_trained and not MANUAL & set(sent) and NOT_REQUEUED not in log:
                after = interruption.kind if interruption else "nothing"
                self.problem = f"job {self.job} is {self.state} after {after}: {self.last_line()}"
                return
            deadline = time.monotonic() + 60
            while not try_slurm("scontrol", "requeue", self.job) and time.monotonic() < deadline:
                time.sleep(1)
            self.states.clear()
        self.wait_for_start()

    def send(self, action: str) -> None:
        interrupt_job(self.job, action)

    def stop(self) -> None:
        if hasattr(self, "job"):
            try_slurm("scancel", self.job)


# -- all runs --------------------------------------------------------------------------------------------------------


class InterruptionPool:
    """N interruptions, shared by all runs; one that came too late is put back."""

    def __init__(self, count: int, seed: int, kinds: dict[str, tuple[str, ...]]) -> None:
        rng = random.Random(seed)
        self.remaining = []
        for _ in range(count):
            kind = rng.choice(list(kinds))
            clock = rng.choice(CLOCKS if FAULT_FILES.keys().isdisjoint(kinds[kind]) else CLOCKS[-1:])
            self.remaining.append(Interruption(kind, clock, rng.random()))
        self.lock = threading.Lock()

    def take(self) -> Interruption | None:
        with self.lock:
            return self.remaining.pop(0) if self.remaining else None

    def put_back(self, interruption: Interruption) -> None:
        interruption.share *= 0.7
        with self.lock:
            self.remaining.append(interruption)


@dataclass
class Times:
    """Seconds of the uninterrupted run: from the start to the first step, and from there to the end."""

    start: float = 0.0
    rest: float = 0.0


@dataclass
class RandomDrill:
    """All runs of a random drill. make_run: creates the run of a name. parallel: runs at once. steps: of each run."""

    make_run: Callable[[str], InterruptedRun]
    kinds: dict[str, tuple[str, ...]]
    count: int
    seed: int
    parallel: int
    report: Report
    steps: int = STEPS
    sessions: list[InterruptedRun] = field(default_factory=list)
    times: Times = field(default_factory=Times)
    number_started: int = 0
    is_stopped: bool = False
    failure: BaseException | None = None

    def run_all(self) -> InterruptedRun:
        """Run the uninterrupted run, then all others; the uninterrupted one."""
        self.pool = InterruptionPool(self.count, self.seed, self.kinds)
        reference = self.make_run("uninterrupted")
        self.report(reference.name, "trains")
        self.sessions.append(reference)
        reference.begin()
        self.wait(reference, lambda: reference.is_training or reference.is_over())
        self.times.start = time.monotonic() - reference.began
        self.wait(reference, reference.is_over)
        self.times.rest = time.monotonic() - reference.began - self.times.start
        if not reference.is_finished:
            reference.problem = f"it did not finish: {reference.last_line()}"
            return reference
        self.report(reference.name, "done")
        workers = [threading.Thread(target=self.work, daemon=True) for _ in range(min(self.parallel, self.count))]
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):  # polling, so that Ctrl-C is handled
            time.sleep(0.1)
        if self.failure is not None:
            raise self.failure
        return reference

    def work(self) -> None:
        """A thread: one run after another, while there are interruptions."""
        try:
            while self.pool.remaining and not self.is_stopped and self.failure is None:
                with self.pool.lock:
                    self.number_started += 1
                    session = self.make_run(f"run_{self.number_started}")
                    self.sessions.append(session)
                session.begin()
                self.run_one(session)
                self.report(session.name, session.problem or f"done, {len(session.interruptions)} interruptions")
        except BaseException as error:  # raised again by the waiting thread
            self.failure = self.failure or error

    def run_one(self, session: InterruptedRun) -> None:
        while not self.is_stopped:
            interruption = self.pool.take()
            if interruption is not None and not self.wait_for_moment(session, interruption):
                self.pool.put_back(interruption)
                interruption = None
            elif interruption is None and not session.interruptions:  # other runs used the last one
                session.stop()
                self.sessions.remove(session)
                return
            if interruption is not None:
                self.report(session.name, f"{interruption.kind}, {len(self.pool.remaining)} left")
                session.interrupt(interruption, self.kinds)
            self.wait(session, session.is_over)
            if session.remove_pending_faults() and interruption is not None and len(self.kinds[interruption.kind]) == 1:
                session.interruptions.remove(interruption)
                self.pool.put_back(interruption)
            if session.is_finished or session.problem:
                return
            session.resume(interruption)
            if session.problem:
                return

    def wait_for_moment(self, session: InterruptedRun, interruption: Interruption) -> bool:
        """Wait for the moment of an interruption; whether it came before the attempt ended."""
        if interruption.clock != "start":
            self.wait(session, lambda: session.is_training or session.is_over())
        if interruption.clock == "steps":
            first = session.step
            until = first + interruption.share * (self.steps - first)
            self.wait(session, lambda: session.step >= until or session.is_over())
            at = time.monotonic() + interruption.share * STEP_SECONDS
        elif interruption.clock == "training":
            at = time.monotonic() + interruption.share * self.times.rest
        else:
            at = session.began + interruption.share * (self.times.start + self.times.rest)
        while time.monotonic() < at and not session.is_over() and not self.is_stopped:
            time.sleep(0.01)
        return not session.is_over()

    def wait(self, session: InterruptedRun, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not condition() and not self.is_stopped:
            if time.monotonic() > deadline:
                raise UserError(f"{session.name} shows nothing for {TIMEOUT_SECONDS:.0f} s: its log is {session.log}.")
            time.sleep(0.02)

    def stop(self) -> None:
        self.is_stopped = True
        for session in self.sessions:
            session.stop()


def table(sessions: list[InterruptedRun]) -> Table:
    """How often each kind occurred, in which phase, and the steps it cost."""
    shape = Table("kind", "times", *PHASES, "steps lost", box=None, padding=(0, 2, 0, 0), header_style="bold")
    used = [interruption for session in sessions for interruption in session.interruptions]
    for kind in sorted({interruption.kind for interruption in used}):
        of_kind = [interruption for interruption in used if interruption.kind == kind]
        phases: Counter[str] = Counter(interruption.phase for interruption in of_kind)
        counts = [str(phases[phase] or "") for phase in PHASES]
        shape.add_row(kind, str(len(of_kind)), *counts, str(sum(interruption.lost for interruption in of_kind)))
    return shape


def closing(sessions: list[InterruptedRun], seconds: float, problems: dict[str, str]) -> list[str]:
    """The closing lines."""
    attempts = sum(len(session.run.attempts) for session in sessions if session.run)
    lost = sum(interruption.lost for session in sessions for interruption in session.interruptions)
    used = sum(len(session.interruptions) for session in sessions)
    summary = f"{used} interruptions of {len(sessions)} runs, {attempts} attempts, {lost} steps lost, {seconds:.0f} s"
    if not problems:
        return [f"{summary}: every run is the same, bit for bit, as the uninterrupted one."]
    return [f"{summary}: {len(problems)} failed.", *(f"fail: {name}: {problem}" for name, problem in problems.items())]
