"""How threads wait for each other: set when settings are read, before torch loads the library that obeys it.

A thread that waits for another spins, so that it goes on at once. By default that lasts milliseconds: nothing is faster
on an idle machine, but where a neighbour has taken the other's core, it burns the time that the other one needs. A
short spin, then sleep, keeps the speed and leaves the core to whoever has work. Numbers do not change, as they would
with fewer threads.
"""

from __future__ import annotations

import os

SPINS = "2000"
GIVEN = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # by a person who knows better


def wait_calmly() -> None:
    if not any(name in os.environ for name in GIVEN):
        os.environ["GOMP_SPINCOUNT"] = SPINS
