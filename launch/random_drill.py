"""`python -m launch drill --random N`: real signals at random moments, over several runs at once, until N were used.

Each run is interrupted again and again, in start-up, while it trains, saves, validates and reports, until it comes to
its end; then it has to be the same, bit for bit, as the one that nobody interrupted.
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

from config.errors import UserError
from launch.players import PATIENCE, Tell, do, printed_command, start_attempt, states_of, submit_job
from launch.prepare import prepare
from launch.slurm import GONE
from launch.trace import first_difference
from runs.reading import Run
from runs.signals import BY_HAND, GOES_ON

STEPS, EVERY = 150, 13
STEP = 0.1  # seconds within which one that waits for a step comes after it
HANG = "hang_in_the_drill"  # the file by which training/rehearsal.py is told to hang
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
AS_JOBS = {**EVERYWHERE, "requeued": ("requeue",), "cancelled": ("cancel",)}
BY_A_PERSON = {"INT", "KILL", "cancel"}
GIVEN_UP = "not queued again"  # what a job says that came no further in several starts
CAUSES = (
    *("finished", "time limit", "interrupted", "preempted", "requeued", "cancelled", "stopped by hand"),
    *("killed", "out of memory or killed", "node failure", "crashed", "hung"),
)
CLOCKS = ("start", "training", "steps", "steps")
PLACES = ("starting", "training", "saving", "ending")


@dataclass
class Interruption:
    """clock: what its moment is counted by: the time since the start of the process, the time since training began, or
    the steps. share: of what the uninterrupted run took, or of the steps that are left. place: where it came."""

    kind: str
    clock: str
    share: float
    returned: int = 0
    place: str = ""
    attempt: int = 0  # that it ended; 0 where none had begun
    lost: int = 0


class Deck:
    """N interruptions, drawn by any of the runs at once; one that came too late is drawn again."""

    def __init__(self, count: int, seed: int, kinds: dict[str, tuple[str, ...]]) -> None:
        dice = random.Random(seed)
        self.left = []
        for _ in range(count):
            kind = dice.choice(list(kinds))
            clock = "steps" if kinds[kind] == ("hang",) else dice.choice(CLOCKS)
            self.left.append(Interruption(kind, clock, dice.random()))
        self.lock = threading.Lock()

    def draw(self) -> Interruption | None:
        with self.lock:
            return self.left.pop(0) if self.left else None

    def give_back(self, one: Interruption) -> None:
        one.returned += 1
        one.share *= 0.7
        with self.lock:
            self.left.append(one)


@dataclass
class Times:
    """Seconds of the uninterrupted run: from its start to the first step, and from there to its end."""

    start: float = 0.0
    rest: float = 0.0


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
            if what == "hang":
                assert run is not None
                (run.path / HANG).touch()
            else:
                self.send(what)

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


class Queue:
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

    def __init__(self, desk: Path, name: str, flags: list[str], script: Path, queue: Queue) -> None:
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
            if not BY_A_PERSON & set(sent) and GIVEN_UP not in log:
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


@dataclass
class RandomDrill:
    """new: makes the session of a name. lanes: runs at once."""

    new: Callable[[str], Session]
    kinds: dict[str, tuple[str, ...]]
    count: int
    seed: int
    lanes: int
    tell: Tell
    sessions: list[Session] = field(default_factory=list)
    times: Times = field(default_factory=Times)
    made: int = 0
    ended: bool = False
    failure: BaseException | None = None

    def play(self) -> Session:
        """The uninterrupted run, after all the others were interrupted and compared with it."""
        self.deck = Deck(self.count, self.seed, self.kinds)
        whole = self.new("uninterrupted")
        self.tell(whole.name, "trains")
        self.sessions.append(whole)
        whole.begin()
        self.wait(whole, lambda: whole.trains or whole.is_over())
        self.times.start = time.monotonic() - whole.began
        self.wait(whole, whole.is_over)
        self.times.rest = time.monotonic() - whole.began - self.times.start
        if not whole.is_finished:
            whole.problem = f"it did not finish: {whole.last_words()}"
            return whole
        self.tell(whole.name, "done")
        workers = [threading.Thread(target=self.work, daemon=True) for _ in range(min(self.lanes, self.count))]
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):  # so that a Ctrl-C is heard
            time.sleep(0.1)
        if self.failure is not None:
            raise self.failure
        return whole

    def work(self) -> None:
        """One run after the other, while there are interruptions."""
        try:
            while self.deck.left and not self.ended and self.failure is None:
                with self.deck.lock:
                    self.made += 1
                    session = self.new(f"run_{self.made}")
                    self.sessions.append(session)
                session.begin()
                self.play_one(session)
                self.tell(session.name, session.problem or f"done, {len(session.used)} interruptions")
        except BaseException as error:  # told by the thread that waits for this one
            self.failure = self.failure or error

    def play_one(self, session: Session) -> None:
        while not self.ended:
            one = self.deck.draw()
            if one is not None and not self.reach(session, one):
                self.deck.give_back(one)
                one = None
            elif one is None and not session.used:  # others used the last one before this run began
                session.stop()
                self.sessions.remove(session)
                return
            if one is not None:
                self.tell(session.name, f"{one.kind}, {len(self.deck.left)} left")
                session.strike(one, self.kinds)
            self.wait(session, session.is_over)
            self.take_back_hang(session, one)
            if session.is_finished or session.problem:
                return
            session.go_on(one)
            if session.problem:
                return

    def take_back_hang(self, session: Session, one: Interruption | None) -> None:
        """A run that ended before its next step did not hang."""
        if one is not None and self.kinds[one.kind] == ("hang",) and session.run:
            with suppress(FileNotFoundError):
                (session.run.path / HANG).unlink()
                session.used.remove(one)
                self.deck.give_back(one)

    def reach(self, session: Session, one: Interruption) -> bool:
        """Wait for its moment; whether it came before the end of the attempt."""
        if one.clock != "start":
            self.wait(session, lambda: session.trains or session.is_over())
        if one.clock == "steps":
            first = session.step
            until = first + one.share * (STEPS - first)
            self.wait(session, lambda: session.step >= until or session.is_over())
            at = time.monotonic() + one.share * STEP
        elif one.clock == "training":
            at = time.monotonic() + one.share * self.times.rest
        else:
            at = session.began + one.share * (self.times.start + self.times.rest)
        while time.monotonic() < at and not session.is_over() and not self.ended:
            time.sleep(0.01)
        return not session.is_over()

    def wait(self, session: Session, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition() and not self.ended:
            if time.monotonic() > deadline:
                raise UserError(f"{session.name} shows nothing for {PATIENCE:.0f} s: its log is {session.log}.")
            time.sleep(0.02)

    def stop(self) -> None:
        self.ended = True
        for session in self.sessions:
            session.stop()


def table(sessions: list[Session]) -> Table:
    """How often each kind came, where, and what it cost."""
    shape = Table("kind", "times", *PLACES, "steps lost", box=None, padding=(0, 2, 0, 0), header_style="bold")
    used = [one for session in sessions for one in session.used]
    for kind in sorted({one.kind for one in used}):
        of_kind = [one for one in used if one.kind == kind]
        places: Counter[str] = Counter(one.place for one in of_kind)
        counts = [str(places[place] or "") for place in PLACES]
        shape.add_row(kind, str(len(of_kind)), *counts, str(sum(one.lost for one in of_kind)))
    return shape


def closing(sessions: list[Session], seconds: float, problems: dict[str, str]) -> list[str]:
    """What came of it, in lines."""
    attempts = sum(len(session.run.attempts) for session in sessions if session.run)
    lost = sum(one.lost for session in sessions for one in session.used)
    used = sum(len(session.used) for session in sessions)
    what = f"{used} interruptions of {len(sessions)} runs, {attempts} attempts, {lost} steps lost, {seconds:.0f} s"
    if not problems:
        return [f"{what}: every run is the same, bit for bit, as the one that nobody interrupted."]
    return [f"{what}: {len(problems)} failed.", *(f"fail: {name}: {words}" for name, words in problems.items())]
