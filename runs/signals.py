"""The one owner of signals: what asks a run to end is noted here, and acted on where the state can be saved.

SIGUSR1 is what job scripts ask Slurm to send ahead of the time limit; SIGTERM is what preemption, `scontrol requeue`
and `scancel` begin with. Which of them it was Slurm is asked once the state is saved; whether the job is to be queued
again, the job script finds out.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

GOES_ON = 75  # the exit status of a run that the same command goes on with
MEANING = {signal.SIGUSR1: "the time limit is near (SIGUSR1)", signal.SIGTERM: "it was told to end (SIGTERM)"}


class Listener:
    """asked: the first signal that came. training: whether there is a state to save, so that signals are only noted.

    tell: is given the name of the first signal as it comes.
    """

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self.training = False
        self.tell: Callable[[str], None] | None = None

    def listen(self) -> None:
        for number in MEANING:
            signal.signal(number, self.note)

    def note(self, number: int, frame: FrameType | None) -> None:
        if self.asked is None:
            self.asked = signal.Signals(number)
            if self.tell is not None:
                self.tell(self.asked.name)
        if not self.training:
            raise SystemExit(GOES_ON)

    @property
    def cause(self) -> str:
        """For attempts.jsonl, as far as a signal tells."""
        if self.asked is signal.SIGUSR1:
            return "time limit"
        return f"interrupted: {self.asked.name}" if self.asked is not None else "interrupted"

    @property
    def why(self) -> str:
        return MEANING[self.asked] if self.asked is not None else "another of its processes was told to end"


listener = Listener()
