"""Cores that are shared: what is left of the speed beside k busy loops, against the share of the CPU that is left.

A fair share of c cores beside k loops is c / (c + k). The loops are children of this process, so that Linux counts them
to the same scheduling group. Policies of waiting are compared in processes that live side by side and work in turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from benchmarks.measure import ROOT, Sheet
from config import parse_command_line
from config.settings import Transformer

LOOPS = (0, 1, 2, 4)
SECONDS = 5.0  # of work at each point
ROUNDS = 2
WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
POLICIES: dict[str, dict[str, str]] = {
    "libgomp's own": {"GOMP_SPINCOUNT": "300000"},  # what it takes where nothing is set
    "ours": {},  # where a person has set nothing, runs/threads.py chooses
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
WORK = ("training", "validation", "generation")


def run() -> list[Sheet]:
    cores = len(os.sched_getaffinity(0))
    workers = {name: Worker(policy) for name, policy in POLICIES.items()}
    rates: dict[tuple[str, str, int], float] = {}  # by policy, work and number of loops
    for _ in range(ROUNDS):
        for loops in LOOPS:
            neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
            time.sleep(1)
            try:
                for work in WORK:
                    for name, worker in workers.items():
                        key = (name, work, loops)
                        rates[key] = max(rates.get(key, 0.0), worker.rate(work))
            finally:
                for neighbour in neighbours:
                    neighbour.kill()
                    neighbour.wait()
    for worker in workers.values():
        worker.end()
    sheets = []
    for work in WORK:
        rows = []
        for name in POLICIES:
            alone, default = rates[name, work, 0], rates["libgomp's own", work, 0]
            cells = [name, f"{alone:,.0f}", f"{alone / default:.2f}"]
            for loops in LOOPS[1:]:
                rate = rates[name, work, loops]
                cells += [f"{rate:,.0f}", f"{rate / alone / (cores / (cores + loops)):.2f}"]
            rows.append(cells)
        headings = ["waiting", "tokens/s alone", "of libgomp's own"]
        headings += [heading for loops in LOOPS[1:] for heading in (f"beside {loops}", "of fair")]
        sheets.append(Sheet(f"{work} on {cores} cores beside busy loops", headings, rows, frozenset({"waiting"})))
    return sheets


class Worker:
    """A process that trains, validates or generates with the default model on request."""

    def __init__(self, policy: dict[str, str]) -> None:
        plain = {name: value for name, value in os.environ.items() if name not in WAITING}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load"],
            cwd=ROOT,
            env=plain | policy,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "ready"

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def rate(self, work: str) -> float:
        """Tokens per second."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{work}\n")
        self.process.stdin.flush()
        return float(self.answer())

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve() -> None:
    """What a Worker's process does: for every line of stdin some seconds of that work, answered by its rate."""
    import torch

    from benchmarks.model import train_step
    from data.language.build import TextSpec
    from runs.threads import watch_shared_cores
    from tasks.language import TASK
    from training.optimizers import build_optimizer

    watch_shared_cores()
    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    config = parse_command_line([])
    rows, length = config.trainer.batch_size_per_device, config[Transformer].context_length
    model = TASK.model(config, TextSpec(258, 256, 257))
    optimizer = build_optimizer(model, config.optimizer, rows)
    batch = {"input_ids": torch.randint(0, 256, (rows, length + 1))}

    def training() -> int:
        model.train()
        train_step(model, optimizer, batch)
        return rows * length

    def validation() -> int:
        model.eval()
        with torch.no_grad():
            model.validation_step(batch, 0)
        return rows * length

    def generation() -> int:
        model.eval()
        with torch.no_grad():
            model(batch["input_ids"][:1, :1])
        return 1

    kinds = {"training": training, "validation": validation, "generation": generation}
    for work in kinds.values():
        work()
    print("ready", flush=True)
    for line in sys.stdin:
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < SECONDS:
            done += kinds[line.strip()]()
        print(done / (time.perf_counter() - began), flush=True)


if __name__ == "__main__":
    serve()
