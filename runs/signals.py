"""The one owner of signals: what asks a run to end is noted here, and acted on where the state can be saved.

SIGUSR1 is what job scripts ask Slurm to send ahead of the time limit; SIGTERM is what preemption, `scontrol requeue`
and `scancel` begin with. Which of them it was Slurm is asked once the state is saved; whether the job is to be queued
again, the job script finds out. SIGINT is a Ctrl-C, SIGHUP a terminal that was closed or a connection that was lost.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

GOES_ON = 75  # the exit status of a run that the same command goes on with
BY_HAND = 130  # of one that a person stopped
MEANING = {
    signal.SIGUSR1: "the time limit is near (SIGUSR1)",
    signal.SIGTERM: "it was told to end (SIGTERM)",
    signal.SIGHUP: "its terminal is gone (SIGHUP)",
    signal.SIGINT: "it was stopped by hand (Ctrl-C)",
}
PATIENCE = b"\nCtrl-C: the state is saved before the next batch; once more ends the run at once\n"
CAUSES = {signal.SIGUSR1: "time limit", signal.SIGINT: "stopped by hand"}


class Listener:
    """asked: the first signal that came. training: whether there is a state to save, so that signals are only noted.

    tell: is given the name of the first signal as it comes.
    """

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self.process = os.getpid()
        self.training = False
        self.tell: Callable[[str], None] | None = None

    def listen(self) -> None:
        """What was ignored when the process began (nohup, a shell's background jobs) stays ignored."""
        self.process = os.getpid()
        for number in MEANING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self.note)

    def note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.process:  # a loader's process, which ends with this one
            return
        by_hand = number == signal.SIGINT
        again = by_hand and self.asked is signal.SIGINT
        if self.asked is None:
            self.asked = signal.Signals(number)
            if self.tell is not None:
                self.tell(self.asked.name)
            if by_hand and self.training and not int(os.environ.get("LOCAL_RANK") or 0):
                with suppress(OSError):
                    os.write(2, PATIENCE)  # print may be what was interrupted
        if by_hand and (again or not self.training):
            raise KeyboardInterrupt
        if not self.training:
            raise SystemExit(GOES_ON)

    @property
    def cause(self) -> str:
        """For attempts.jsonl, as far as a signal tells."""
        if self.asked in CAUSES:
            return CAUSES[self.asked]
        return f"interrupted: {self.asked.name}" if self.asked is not None else "interrupted"

    @property
    def why(self) -> str:
        return MEANING[self.asked] if self.asked is not None else "another of its processes was told to end"


listener = Listener()
