"""The EBT's training step against its published form and against Transformer++: time, memory, FLOPs.

(a) the published, concatenated form (`benchmarks/concatenated.py`), (b) ours, (c) ours compiled, (d) Transformer++ of
the same size, (e) that compiled. One process takes the times of a point, the forms in turns, so that a busy moment
hits all alike; the best of each counts. The peak memory of each form is taken in a process of its own.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch._dynamo.utils import counters
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import concatenated
from benchmarks.measure import ROOT, Sheet, seconds
from config import parse_command_line
from core.progress import print_note
from data.language.build import TextSpec
from models.language import EnergyLM, LanguageModel
from tasks.language import TASK
from training.cost import step_cost
from training.trainer import configure_malloc

# As published, with a number of steps that is not drawn, and without old rows, which make every form slower alike.
RECIPES = {"S1": "--recipe s1", "S2": "--recipe s2 --no-mcmc_replay_buffer"}
LEAST_ROUNDS, MOST_ROUNDS = 3, 10
GROWTH = (1, 2, 4, 8)


@dataclass(frozen=True)
class Point:
    """What is measured: a size of model and of data, and how the EBT is trained.

    steps: of the walk. tokens: of a batch, which has at least one row.
    """

    vocabulary: int
    context: int
    size: str
    recipe: str
    steps: int = 2
    tokens: int = 1024

    @property
    def rows(self) -> int:
        return max(1, self.tokens // self.context)

    @property
    def label(self) -> tuple[str, ...]:
        return f"{self.vocabulary:,}", f"{self.rows} x {self.context:,}", self.size, f"{self.recipe}, T = {self.steps}"

    def batch(self) -> torch.Tensor:
        return torch.randint(0, self.vocabulary, (self.rows, self.context + 1))

    def build(self, flags: str) -> LanguageModel:
        """Documents see each other in all forms, as in published code."""
        size = f"--model_size {self.size} --context_length {self.context} --no-isolate_documents"
        return TASK.model(parse_command_line(f"{size} {flags}".split()), TextSpec(self.vocabulary, 0, -1))

    def ebt(self, steps: int | None = None) -> EnergyLM:
        """S1 has a landscape for each step, and S2 one for all."""
        steps = steps or self.steps
        repeats = f"--randomize_mcmc_num_steps {steps - 1} --randomize_mcmc_num_steps_min {steps if steps > 1 else 0}"
        count = repeats if self.recipe == "S2" else f"--mcmc_num_steps {steps}"
        model = self.build(f"--model_name ebt {RECIPES[self.recipe]} {count}")
        assert isinstance(model, EnergyLM)
        return model

    def baseline(self) -> LanguageModel:
        return self.build("--model_name baseline_transformer")


# By point, the forms that are measured there.
SOME = dict.fromkeys(
    [
        Point(512, 256, "3xs", "S2", 2),
        Point(512, 256, "3xs", "S2", 3),
        Point(8192, 256, "xxs", "S2", 2),
        Point(8192, 256, "xxs", "S2", 3),
        Point(256, 256, "3xs", "S1", 2),
    ],
    "abcd",
)
GRID = [
    Point(vocabulary, context, size, recipe, tokens=tokens)
    for (vocabulary, tokens), context, size, recipe in product(
        ((256, 1024), (8192, 1024), (50277, 512)), (256, 1024), ("3xs", "xxs"), ("S1", "S2")
    )
]
ALL = SOME | dict.fromkeys(GRID, "abcde")
FIRST = Point(256, 256, "3xs", "S2")  # where growth is looked at


class Target(NamedTuple):
    """What a ratio is to reach."""

    limit: float
    at_least: bool

    def judge(self, ratio: float | None, unit: float | None = 1.0) -> str:
        """unit: what the limit is a multiple of."""
        if ratio is None or unit is None:
            return "-"
        limit = unit * self.limit
        met = ratio >= limit if self.at_least else ratio <= limit
        return f"{ratio:.2f}" if met else f"{ratio:.2f} !"


MEMORY = Target(0.6, False)
# Over the published form, by recipe and vocabulary: S2 is bounded by how many FLOPs the two have.
EAGER = {("S2", 512): Target(1.7, True), ("S2", 8192): Target(1.55, True)}
COMPILED = {("S2", 512): Target(2.1, True), ("S2", 8192): Target(1.8, True)}
S1_EAGER, S1_COMPILED = Target(1.6, True), Target(2.0, True)
OVER, COMPILED_OVER = Target(1.2, False), Target(1.15, False)  # over Transformer++, of the ratio of FLOPs


def run(full: bool) -> list[Sheet]:
    """Measure a few points, or all; a form that does not work, or not here, has no numbers."""
    points, budget = (ALL, 40.0) if full else (SOME, 12.0)
    results: list[dict[str, Any]] = []
    begin = time.monotonic()
    for number, (point, forms) in enumerate(points.items()):
        minutes = (time.monotonic() - begin) / 60
        left = f", about {minutes / number * (len(points) - number):.0f} min left" if number else ""
        print_note(f"energy {number + 1}/{len(points)}: {', '.join(point.label)}{left}")
        results.append(measure(point, forms, budget))
    print_note("energy: growth with the number of steps")
    growth = worker({"task": "growth", "point": asdict(FIRST), "budget": budget})
    return [times_sheet([*points], results), cost_sheet([*points], results), growth_sheet(growth)]


def measure(point: Point, forms: str, budget: float) -> dict[str, Any]:
    """{"times": seconds by form, "compile": seconds by form, "flops": by form, "memory": bytes by form}"""
    with tempfile.TemporaryDirectory() as cache:  # compilations of this point only, so that their time is the true one
        job = {"point": asdict(point), "budget": budget, "forms": forms}
        result = worker({"task": "times", **job}, TORCHINDUCTOR_CACHE_DIR=cache)
        result["memory"] = {}
        for form in [form for form in "abc" if form in result.get("times", {})]:
            # Freed memory goes back at once: the peak is what the step holds, and not what malloc keeps.
            options = {"TORCHINDUCTOR_CACHE_DIR": cache, "MALLOC_MMAP_THRESHOLD_": "65536"}
            result["memory"] |= worker({"task": "memory", **job, "forms": form}, **options)
    return result


def worker(job: dict[str, Any], **environment: str) -> dict[str, Any]:
    """Do the job in a fresh process; {} and a line on stderr when that fails."""
    command = [sys.executable, "-m", "benchmarks.energy", json.dumps(job)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message; perhaps out of memory"])[-1]
        print_note(f"  no {job['task']}: exit status {done.returncode}: {last}")
        return {}
    *_, result = done.stdout.splitlines()
    return json.loads(result)


def work(job: dict[str, Any]) -> dict[str, Any]:
    """What the fresh process does."""
    point = Point(**job["point"])
    if job["task"] != "memory":
        configure_malloc()
    if job["task"] == "growth":
        return growth_times(point, job["budget"])
    ebt, baseline = point.ebt(), point.baseline()
    if job["task"] == "times":
        shapes = {"input_ids": point.batch().to("meta")}
        flops = {"a": concatenated_flops(ebt, point), "b": step_cost(ebt, shapes).flops}
        flops["d"] = step_cost(baseline, shapes).flops
        steps, compiling = steps_of(job["forms"], ebt, baseline, point.batch())
        return {"times": best_times(steps, job["budget"]), "compile": compiling, "flops": flops}
    steps, _ = steps_of(job["forms"], ebt, baseline, point.batch())
    return {form: peak for form, step in steps.items() if (peak := peak_memory(step)) is not None}


def published(model: Any, rows: torch.Tensor) -> torch.Tensor:
    return concatenated.training_loss(model, rows)


def ours(model: Any, rows: torch.Tensor) -> torch.Tensor:
    return model.training_step({"input_ids": rows}, 0)


def train(loss_of: Callable[[Any, torch.Tensor], torch.Tensor], model: LanguageModel, rows: torch.Tensor) -> None:
    """A training step without its optimizer: forward and backward, from no gradients."""
    model.zero_grad(set_to_none=True)
    loss_of(model, rows).backward()


def steps_of(
    forms: str, ebt: EnergyLM, baseline: LanguageModel, rows: torch.Tensor
) -> tuple[dict[str, Callable[[], None]], dict[str, float]]:
    """The forms that work, on the same weights and rows; and the seconds of the first step of those compiled."""
    steps: dict[str, Callable[[], None]] = {}
    compiling = {}
    for form in forms:
        model = copy.deepcopy(ebt if form in "abc" else baseline)
        if form in "ce":
            model.compile_blocks()
        graphs = counters["stats"]["unique_graphs"]
        step = partial(train, published if form == "a" else ours, model, rows)
        first = seconds(step)
        if form in "ce":
            if counters["stats"]["unique_graphs"] == graphs or getattr(model.network, "compiled", ()) is None:
                continue  # nothing was compiled, or it failed
            compiling[form] = first
        steps[form] = step
    return steps, compiling


def best_times(steps: dict[str, Callable[[], None]], budget: float) -> dict[str, float]:
    """The best of some rounds, each of one step of every form."""
    best = dict.fromkeys(steps, float("inf"))
    begin = time.perf_counter()
    for number in range(MOST_ROUNDS):
        if number >= LEAST_ROUNDS and time.perf_counter() - begin > budget:
            break
        for form, step in steps.items():
            best[form] = min(best[form], seconds(step))
    return best


def peak_memory(step: Callable[[], None]) -> int | None:
    """Bytes that a step takes above what is held before it; None where the system does not tell."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        return None
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what it is now
    before = status("VmRSS")
    step()
    return status("VmHWM") - before


def status(name: str) -> int:
    """Bytes of a line of /proc/self/status."""
    match = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match
    return 1024 * int(match[1])


def concatenated_flops(model: EnergyLM, point: Point) -> int:
    """As `training/cost.py` counts: on tensors without memory."""
    shadow = copy.deepcopy(model).to("meta")
    with FlopCounterMode(display=False) as counter:
        concatenated.training_loss(shadow, point.batch().to("meta")).backward()
    return counter.get_total_flops()


def growth_times(point: Point, budget: float) -> dict[str, Any]:
    """Seconds of a step and runs of the observed stream in it, by the number of steps of the walk."""
    steps: dict[str, Callable[[], None]] = {}
    runs = {}
    rows = point.batch()
    for count in GROWTH:
        model = point.ebt(count)
        step = partial(train, ours, model, rows)
        with mock.patch.object(model.network, "context", wraps=model.network.context) as context:
            step()
        steps[str(count)], runs[str(count)] = step, context.call_count
    return {"times": best_times(steps, budget), "runs": runs, "tokens": len(rows) * point.context}


def ratio(over: float | None, under: float | None) -> float | None:
    return None if over is None or under is None else over / under


def shown(value: float | None, scale: float) -> str:
    return "-" if value is None else f"{value / scale:,.0f}"


POINT_HEADINGS = ("V", "B x S", "size", "recipe")


def times_sheet(points: Sequence[Point], results: Sequence[dict[str, Any]]) -> Sheet:
    title = (
        "Training step in ms: (a) published form, (b) ours, (c) ours compiled, (d) Transformer++, (e) that compiled\n"
        f"targets, at least: a/b {EAGER['S2', 512].limit} (V 512) and {EAGER['S2', 8192].limit} (V 8,192), a/c "
        f"{COMPILED['S2', 512].limit} and {COMPILED['S2', 8192].limit}; at most: b/d {OVER.limit} times and c/d "
        f"{COMPILED_OVER.limit} times the ratio of FLOPs; ! is a miss"
    )
    rows = []
    for point, result in zip(points, results, strict=True):
        a, b, c, d, e = (result.get("times", {}).get(form) for form in "abcde")
        flops = ratio(*(result.get("flops", {}).get(form) for form in "bd"))
        key = (point.recipe, point.vocabulary)
        rows.append(
            (
                *point.label,
                *(shown(value, 1e-3) for value in (a, b, c, d, e)),
                EAGER.get(key, S1_EAGER).judge(ratio(a, b)),
                COMPILED.get(key, S1_COMPILED).judge(ratio(a, c)),
                "-" if flops is None else f"{flops:.2f}",
                OVER.judge(ratio(b, d), flops),
                COMPILED_OVER.judge(ratio(c, d), flops),
                COMPILED_OVER.judge(ratio(c, e), flops),
            )
        )
    headings = (*POINT_HEADINGS, *"abcde", "a/b", "a/c", "FLOP b/d", "b/d", "c/d", "c/e")
    return Sheet(title, headings, rows, frozenset({"size", "recipe"}))


def cost_sheet(points: Sequence[Point], results: Sequence[dict[str, Any]]) -> Sheet:
    title = f"Peak memory of a training step in MB (at most {MEMORY.limit} of a), its GFLOPs, and seconds to compile"
    rows = []
    for point, result in zip(points, results, strict=True):
        memory = [result.get("memory", {}).get(form) for form in "abc"]
        a, b, d = (result.get("flops", {}).get(form) for form in "abd")
        rows.append(
            (
                *point.label,
                *(shown(value, 1e6) for value in memory),
                *(MEMORY.judge(ratio(value, memory[0])) for value in memory[1:]),
                *(shown(value, 1e9) for value in (a, b, d)),
                *("-" if value is None else f"{value:.2f}" for value in (ratio(a, b), ratio(b, d))),
                shown(result.get("compile", {}).get("c"), 1),
            )
        )
    headings = ("MB a", "b", "c", "b/a", "c/a", "GFLOP a", "b", "d", "a/b", "b/d", "compile c")
    return Sheet(title, (*POINT_HEADINGS, *headings), rows, frozenset({"size", "recipe"}))


def growth_sheet(growth: dict[str, Any]) -> Sheet:
    """A step of T steps may take T times as long as one of 1."""
    title = f"Growth with the steps T of the walk, at {', '.join(FIRST.label)}; ! is more than linear"
    rows = []
    for count in GROWTH if growth else ():
        spent, once = growth["times"][str(count)], growth["times"]["1"]
        per_token = f"{1e6 * spent / growth['tokens']:.1f}"
        rows.append((str(count), per_token, Target(count, False).judge(spent / once), str(growth["runs"][str(count)])))
    return Sheet(title, ("T", "us per token", "of T = 1", "runs of the observed stream"), rows)


if __name__ == "__main__":
    torch.set_flush_denormal(True)  # as in training
    torch.manual_seed(0)
    print(json.dumps(work(json.loads(sys.argv[1]))))
