"""The runs of `drill --random`: how one is started, interrupted and started again, here or as a job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launch.players import do, printed_command, start_attempt, states_of, submit_job
from launch.prepare import prepare
from launch.slurm import GONE
from launch.trace import first_difference
from runs.reading import Run
from runs.signals import BY_HAND, GOES_ON

PLANTED = {"hang": "hang_in_the_drill", "kill": "kill_in_the_drill"}  # files by which training/rehearsal.py is told
# By name: what is sent, one after the other. What stands for a person's doing is not queued again by itself.
EVERYWHERE = {
    "time limit (SIGUSR1)": ("USR1",),
    "preempted (SIGTERM)": ("TERM",),
    "preempted, killed soon after": ("TERM", "KILL"),
    "stopped by hand (Ctrl-C)": ("INT",),
    "Ctrl-C twice": ("INT", "INT"),
    "killed (SIGKILL)": ("KILL",),
    "crashed (SIGABRT)": ("ABRT",),
    "hung": ("hang",),
}
HERE = {**EVERYWHERE, "terminal lost (SIGHUP)": ("HUP",)}
AS_JOBS = {
    **EVERYWHERE,
    "requeued": ("requeue",),
    "cancelled": ("cancel",),
    "killed (SIGKILL)": ("kill",),  # of a job, SIGKILL is what scancel does: SIGTERM first
    "preempted, killed soon after": ("TERM", "kill"),
}
BY_A_PERSON = {"INT", "kill", "cancel"}
GIVEN_UP = "not queued again"  # what a job says that came no further in several starts
CAUSES = (
    *("finished", "time limit", "interrupted", "preempted", "requeued", "cancelled", "stopped by hand"),
    *("killed", "out of memory or killed", "node failure", "crashed", "hung"),
)


@dataclass
class Interruption:
    """clock: what its moment is counted by: the time since the start of the process, the time since training began, or
    the steps. share: of what the uninterrupted run took, or of the steps that are left. place: where it came."""

    kind: str
    clock: str
    share: float
    place: str = ""
    attempt: int = 0  # that it ended; 0 where none had begun
    lost: int = 0


class Session:
    """One run, from its first start to its end. `begin` and `go_on` start an attempt, `is_over` says that it ended."""

    def __init__(self, desk: Path, name: str, flags: list[str]) -> None:
        self.name, self.logs = name, desk / name
        self.log = self.logs / "output.log"
        self.words = [*flags, "--logs_dir", str(self.logs)]
        self.used: list[Interruption] = []
        self.problem: str | None = None
        self.began = 0.0
        self.earlier = 0  # attempts before this start
        self.said = 0  # bytes of the log before this start

    @property
    def run(self) -> Run | None:
        found = sorted((self.logs / "runs").glob("[!.]*/config.json"))
        return Run(found[0].parent) if found else None

    def mark(self) -> None:
        """A start begins."""
        self.began = time.monotonic()
        self.earlier = len(self.run.attempts) if self.run else 0
        self.said = self.log.stat().st_size if self.log.exists() else 0

    def last_words(self) -> str:
        with suppress(OSError):
            lines = self.log.read_bytes()[self.said :].decode(errors="replace").strip().splitlines()
            return lines[-1] if lines else ""
        return ""

    @property
    def trains(self) -> bool:
        return self.run is not None and len(self.run.attempts) > self.earlier

    @property
    def step(self) -> int:
        """The last one that this start has shown; where it began, before that."""
        run = self.run
        if run is None or len(run.attempts) <= self.earlier:
            return 0
        first = run.attempts[-1].get("first_step", 0)
        return max([first, *(row["step"] for row in run.last_metrics() if isinstance(row.get("step"), int))])

    def begin(self) -> None:
        raise NotImplementedError

    def go_on(self, one: Interruption | None) -> None:
        """Start it again as its job, or a person, would; an end that was not meant is the problem."""
        raise NotImplementedError

    def is_over(self) -> bool:
        raise NotImplementedError

    @property
    def is_finished(self) -> bool:
        raise NotImplementedError

    def send(self, what: str) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def strike(self, one: Interruption, kinds: dict[str, tuple[str, ...]]) -> None:
        """Do it, and note where it came."""
        run = self.run
        attempts = run.attempts if run else []
        is_open = len(attempts) > self.earlier and "end" not in attempts[-1]
        saves = run is not None and any((run.path / "checkpoints").glob(".*.tmp"))
        one.place = "saving" if saves else "training" if is_open else "ending" if self.trains else "starting"
        one.attempt = len(attempts) if is_open else 0
        self.used.append(one)
        for number, what in enumerate(kinds[one.kind]):
            if number:
                time.sleep(0.2)
            if what not in PLANTED:
                self.send(what)
            elif run is not None:
                (run.path / PLANTED[what]).touch()

    def missed(self) -> bool:
        """Whether what was planted did not come to pass before the end; it is taken away."""
        left = [file for name in PLANTED.values() if self.run and (file := self.run.path / name).exists()]
        for file in left:
            file.unlink(missing_ok=True)
        return bool(left)

    def judge(self, whole: Run) -> str | None:
        """What is wrong with how it came through, in words."""
        run = self.run
        if self.problem or run is None:
            return self.problem or "it made no run folder"
        for number, attempt in enumerate(run.attempts, 1):
            if not str(attempt.get("cause")).startswith(CAUSES):
                return f"attempts.jsonl says {attempt.get('cause')!r} of attempt {number}"
        for one in self.used:
            one.lost = run.attempts[one.attempt - 1].get("steps_lost", 0) if one.attempt else 0
        return first_difference(run.metrics(), whole.metrics())


class LocalSession(Session):
    """Processes of this machine; what Slurm would start again is started again here."""

    process: subprocess.Popen[bytes]

    def begin(self) -> None:
        self.folder = prepare(self.words)
        self.start([sys.executable, "train_model.py", *self.words], self.folder)

    def start(self, command: list[str], folder: Path | None) -> None:
        self.mark()
        self.process = start_attempt(command, folder, "random", self.log)

    def is_over(self) -> bool:
        return self.process.poll() is not None

    @property
    def is_finished(self) -> bool:
        return self.process.returncode == 0

    def go_on(self, one: Interruption | None) -> None:
        status = self.process.returncode
        sent = HERE[one.kind] if one else ()
        expected = {GOES_ON, *(-getattr(signal, f"SIG{what}") for what in sent if what != "hang")}
        if one is None or status not in expected | ({BY_HAND} if "INT" in sent else set()):
            self.problem = f"{one.kind if one else 'nothing'} ended it with status {status}: {self.last_words()}"
            return
        typed = printed_command(self.log, self.said) if status == BY_HAND else None
        self.start(typed or [sys.executable, "train_model.py", *self.words], None if typed else self.folder)

    def send(self, what: str) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, getattr(signal, f"SIG{what}"))

    def stop(self) -> None:
        if hasattr(self, "process") and self.process.poll() is None:
            self.send("KILL")
            self.process.wait()


class JobStates:
    """What Slurm says of all jobs of the drill, asked for once a second."""

    def __init__(self) -> None:
        self.jobs: dict[str, str] = {}
        self.lock = threading.Lock()
        self.asked = 0.0
        self.answer: dict[str, tuple[str, str]] = {}

    def state(self, job: str) -> tuple[str, str]:
        """Its state, and when it started."""
        with self.lock:
            if time.monotonic() - self.asked > 1:
                self.answer = states_of(self.jobs.values()) or self.answer
                self.asked = time.monotonic()
            return self.answer.get(job, ("", ""))

    def add(self, name: str, job: str) -> None:
        with self.lock:
            self.jobs[name] = job
            self.asked = 0.0

    def forget_answer(self) -> None:
        with self.lock:
            self.answer, self.asked = {}, 0.0


class SlurmSession(Session):
    """A job of train.slurm, queued again by itself or, where a person would have to, by the drill."""

    def __init__(self, desk: Path, name: str, flags: list[str], script: Path, queue: JobStates) -> None:
        super().__init__(desk, name, flags)
        self.script, self.queue = script, queue
        self.started = ""  # Slurm's time of this start
        self.state = ""

    def begin(self) -> None:
        self.job = submit_job(self.script, self.words, self.logs, self.log, "random")
        self.queue.add(self.name, self.job)
        self.wait_for_start("")

    def wait_for_start(self, before: str) -> None:
        """A job may wait in a queue for as long as it likes."""
        while True:
            state, started = self.queue.state(self.job)
            if state in GONE or (state == "RUNNING" and started != before):
                self.started = started
                self.mark()
                return
            time.sleep(0.3)

    def is_over(self) -> bool:
        self.state, started = self.queue.state(self.job)
        return self.state in GONE or self.state == "PENDING" or (self.state == "RUNNING" and started != self.started)

    @property
    def is_finished(self) -> bool:
        return self.state == "COMPLETED"

    def go_on(self, one: Interruption | None) -> None:
        if self.state in GONE:
            sent = AS_JOBS[one.kind] if one else ()
            log = self.log.read_bytes()[self.said :].decode(errors="replace")
            attempts = self.run.attempts if self.run else []
            done = bool(attempts) and str(attempts[-1].get("cause")).startswith("finished")  # its report was cut short
            if not done and not BY_A_PERSON & set(sent) and GIVEN_UP not in log:
                after = one.kind if one else "nothing"
                self.problem = f"job {self.job} is {self.state} after {after}: {self.last_words()}"
                return
            deadline = time.monotonic() + 60
            while not do("scontrol", "requeue", self.job) and time.monotonic() < deadline:
                time.sleep(1)
            self.queue.forget_answer()
        self.wait_for_start(self.started)

    def send(self, what: str) -> None:
        words = {"requeue": ("scontrol", "requeue", self.job), "cancel": ("scancel", self.job)}
        do(*words.get(what, ("scancel", f"--signal={what}", self.job)))

    def stop(self) -> None:
        if hasattr(self, "job"):
            do("scancel", self.job)
