"""Threads spin on an idle machine and sleep on a shared one; what they compute is the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from runs.threads import CROWDED, CROWDED_POLLS, QUIET, QUIET_POLLS, CoreContention, waited_for_cores
from tests.conftest import ROOT

COSTS = """
import json, time, torch
from runs.threads import SleepingThreads, loaded_libgomp

torch.set_num_threads(2)
a = torch.randn(200_000)

def cost():
    began = time.process_time()
    for _ in range(60):
        result = a.exp()
        time.sleep(0.005)  # the other thread waits for the next
    return time.process_time() - began, result

sleep = SleepingThreads(loaded_libgomp())
cost()
costs = []
for _ in range(2):
    costs.append(cost())
    sleep.begin()
    costs.append(cost())
    sleep.stop()
    time.sleep(0.2)
same = all(bool((result == costs[0][1]).all()) for _, result in costs)
print(json.dumps([same, [seconds for seconds, _ in costs]]))
"""


def test_threads_that_wait_asleep_leave_the_cores() -> None:
    own = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")}
    command = ["taskset", "--cpu-list", "0-1", sys.executable, "-c", COSTS]
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=True)
    same, (spinning, asleep, again, asleep_again) = json.loads(done.stdout)
    assert same
    assert max(asleep, asleep_again) < 0.7 * min(spinning, again), done.stdout


def test_the_watch_believes_two_crowded_looks_and_a_row_of_quiet_ones() -> None:
    watch = CoreContention()
    assert not watch.update(QUIET / 2) and not watch.update((QUIET + CROWDED) / 2)
    assert not watch.update(2 * CROWDED) and not watch.update(0), "a moment"
    assert [watch.update(2 * CROWDED) for _ in range(CROWDED_POLLS)][-1]
    quiet = [watch.update(QUIET / 2) for _ in range(QUIET_POLLS - 1)]
    assert all(quiet) and watch.update((QUIET + CROWDED) / 2), "the row was broken"
    assert [watch.update(0) for _ in range(QUIET_POLLS)] == [True] * (QUIET_POLLS - 1) + [False]


def test_waiting_for_cores_is_counted() -> None:
    assert waited_for_cores() >= 0
