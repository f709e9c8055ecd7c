"""`python -m launch drill --random N`: real signals at random moments, over several runs at once, until N were used.

Each run is interrupted again and again, in start-up, while it trains, saves, validates and reports, until it comes to
its end; then it has to be the same, bit for bit, as the one that nobody interrupted.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.table import Table

from core.errors import UserError
from launch.players import PATIENCE, Tell
from launch.sessions import PLANTED, Interruption, Session

STEPS, EVERY = 150, 13
STEP = 0.1  # seconds within which one that waits for a step comes after it
CLOCKS = ("start", "training", "steps", "steps")
PLACES = ("starting", "training", "saving", "ending")


class Deck:
    """N interruptions, drawn by any of the runs at once; one that came too late is drawn again."""

    def __init__(self, count: int, seed: int, kinds: dict[str, tuple[str, ...]]) -> None:
        dice = random.Random(seed)
        self.left = []
        for _ in range(count):
            kind = dice.choice(list(kinds))
            clock = dice.choice(CLOCKS if PLANTED.keys().isdisjoint(kinds[kind]) else CLOCKS[-1:])
            self.left.append(Interruption(kind, clock, dice.random()))
        self.lock = threading.Lock()

    def draw(self) -> Interruption | None:
        with self.lock:
            return self.left.pop(0) if self.left else None

    def give_back(self, one: Interruption) -> None:
        one.share *= 0.7
        with self.lock:
            self.left.append(one)


@dataclass
class Times:
    """Seconds of the uninterrupted run: from its start to the first step, and from there to its end."""

    start: float = 0.0
    rest: float = 0.0


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
            if session.missed() and one is not None and len(self.kinds[one.kind]) == 1:
                session.used.remove(one)
                self.deck.give_back(one)
            if session.is_finished or session.problem:
                return
            session.go_on(one)
            if session.problem:
                return

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
