"""What the samples of a run's usage add up to, and what to change: pure functions over rows of usage.jsonl."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from config import RunConfig
from data.watch import memory_growth

STARVED = 0.1  # share of the time spent on waiting for batches that is worth a change
TIGHT = 0.1  # share of memory left free that is little
USABLE = 0.8  # share of the free memory that a larger batch may count on
LARGEST_BATCH = 4096
SMALLEST_LEAK = 32 * 2**20  # bytes; a smaller growth is caches and fragments
FEWEST_LOOKS = 16  # at different steps, before a growth is judged
LEAK_SHARE = 0.03  # of the memory held
JITTER = 1.1  # CPU time is counted in ticks: so much over the number of cores is still true

Row = dict[str, Any]


@dataclass(frozen=True)
class Machine:
    """What there was to use.

    memory_bytes: of the machine. allowed_bytes: of it to this run. free_bytes: least that the machine had left free.
    row_bytes: memory that one row of a batch takes. own_cores: of the run's task; all of the machine's where 0.
    """

    cores: int
    memory_bytes: int
    allowed_bytes: float
    free_bytes: int
    gpu_memory_bytes: int = 0
    row_bytes: float = 0.0
    tokens_per_second: float = 0.0
    wait_share: float = 0.0
    own_cores: int = 0


@dataclass(frozen=True)
class Verdict:
    """kind: loader, memory, leak or impossible. good: nothing needs to change."""

    kind: str
    text: str
    good: bool


def summarise(rows: Sequence[Row], machine: Machine, config: RunConfig) -> dict[str, Any]:
    """The content of usage.json."""
    true, false = believable(rows, machine)
    stats: dict[str, Any] = {"samples": len(rows), "cores": machine.cores, "memory_limit_bytes": machine.allowed_bytes}
    stats |= {"tokens_per_second": machine.tokens_per_second, "loader_wait_share": machine.wait_share}
    for name in ("cpu_percent", "memory_bytes", "gpu_percent", "gpu_memory_bytes"):
        if values := column(true, name):
            stats |= {f"{name}_mean": mean(values), f"{name}_peak": max(values)}
    if machine.gpu_memory_bytes:
        stats["gpu_memory_limit_bytes"] = machine.gpu_memory_bytes
    stats |= {name: column(true, name)[-1] for name in ("read_bytes", "written_bytes") if column(true, name)}
    found = [loader_verdict(machine, config), memory_verdict(true, machine, config), leak_verdict(true), *false]
    verdicts = [verdict for verdict in found if verdict is not None]
    return {"stats": stats, "verdicts": [vars(verdict) for verdict in verdicts]}


def column(rows: Sequence[Row], name: str) -> list[float]:
    return [row[name] for row in rows if name in row]


def believable(rows: Sequence[Row], machine: Machine) -> tuple[list[Row], list[Verdict]]:
    """The samples without the values that cannot be true, and what was wrong with those."""
    limits = {
        "cpu_percent": (0.0, 100 * machine.cores * JITTER, f"CPU of {{}} % on {machine.cores} core(s)"),
        "memory_bytes": (0.0, machine.memory_bytes, f"memory of {{}} bytes of {machine.memory_bytes}"),
        "gpu_percent": (0.0, 100.0, "GPU utilisation of {} %"),
        "gpu_memory_bytes": (0.0, machine.gpu_memory_bytes or math.inf, "GPU memory of {} bytes"),
        "loader_wait_share": (0.0, JITTER, "{} of the time spent on waiting for batches"),
        "read_bytes": (0.0, math.inf, "{} bytes read"),
        "written_bytes": (0.0, math.inf, "{} bytes written"),
    }
    wrong: dict[str, list[float]] = {}
    kept = []
    for row in rows:
        bad = {name for name, (low, high, _) in limits.items() if name in row and not low <= row[name] <= high}
        for name in bad:
            wrong.setdefault(name, []).append(row[name])
        kept.append({name: value for name, value in row.items() if name not in bad})
    return kept, [
        Verdict(
            "impossible",
            f"{limits[name][2].format(f'{worst(values):,.6g}')} cannot be true "
            f"({len(values)} of {len(rows)} samples): they are left out.",
            False,
        )
        for name, values in wrong.items()
    ]


def worst(values: Sequence[float]) -> float:
    return max(values, key=lambda value: math.inf if math.isnan(value) else abs(value))


def loader_verdict(machine: Machine, config: RunConfig) -> Verdict:
    share, workers = machine.wait_share, config.data.num_workers
    if share < STARVED:
        return Verdict("loader", f"the loader keeps up: batches were waited for in {share:.1%} of the time.", True)
    cores = machine.own_cores or machine.cores
    if workers < cores - 1 or workers == 0:
        wanted = min(max(1, 2 * workers), max(1, cores - 1))
        change = f"--num_workers {wanted} (now {workers})"
    else:
        change = f"--prefetch_factor {2 * config.data.prefetch_factor} (now {config.data.prefetch_factor})"
    if not config.data.pretokenize_dataset:
        change = f"--pretokenize_dataset, or {change}"
    return Verdict(
        "loader",
        f"starved by the loader: {share:.0%} of the time was spent on waiting for batches; try {change}; "
        "--debug_dataloader measures it.",
        False,
    )


def memory_verdict(rows: Sequence[Row], machine: Machine, config: RunConfig) -> Verdict | None:
    """How much memory is left, and the batch that it would hold."""
    on_gpu = bool(machine.gpu_memory_bytes and column(rows, "gpu_memory_bytes"))
    used = max(column(rows, "gpu_memory_bytes" if on_gpu else "memory_bytes"), default=0)
    limit = machine.gpu_memory_bytes if on_gpu else machine.allowed_bytes
    free = max(0, limit - used) if on_gpu else max(0, min(machine.free_bytes, limit - used))
    if not used:
        return None
    batch = config.trainer.batch_size_per_device
    name = "GPU memory" if on_gpu else "memory"
    if free < TIGHT * limit:
        return Verdict(
            "memory",
            f"{name} is nearly full: {amount(free)} of {amount(limit)} were left free at the least; "
            f"a smaller --batch_size_per_device (now {batch}) with more --accumulate_grad_batches makes room.",
            False,
        )
    room = f"{name} has room: {amount(used)} at the most, and {amount(free)} of {amount(limit)} stayed free"
    if machine.row_bytes:
        rows_more = USABLE * free / machine.row_bytes
        larger = min(LARGEST_BATCH, 2 ** int(math.log2(batch + rows_more)))
        if larger > batch:
            more = "or more" if larger == LARGEST_BATCH else "or so"
            room += (
                f"; it would hold --batch_size_per_device {larger} {more} (now {batch}), "
                "and --find_batch_size tells whether that is faster"
            )
    return Verdict("memory", f"{room}.", True)


def leak_verdict(rows: Sequence[Row]) -> Verdict | None:
    """Whether the memory grew to the end, and with it the number of tensors."""
    known = [row for row in last_attempt(rows) if "memory_bytes" in row]
    steps, memory = [row["step"] for row in known], [row["memory_bytes"] for row in known]
    if len(set(steps)) < FEWEST_LOOKS:
        return None
    growth, grows = memory_growth(steps, memory, 1)
    grown = growth * 2**20 / 1000 * (steps[-1] - steps[len(steps) * 2 // 5]) if grows else 0.0
    if grown < max(SMALLEST_LEAK, LEAK_SHARE * memory[-1]):
        return None
    counts = column(known, "tensors")
    settled = counts[len(counts) // 3 :]
    if len(settled) < 2:
        what = "too short a run to tell whether data or tensors; --debug_dataloader looks at the data alone"
    elif settled[-1] > settled[0] + max(10, 0.05 * settled[0]):
        what = f"tensors: {settled[0]:,} were alive, and {settled[-1]:,} at the end; look for losses or outputs"
        what += " that are kept without .detach()"
    else:
        what = "data: the number of tensors does not grow with it; look for lists, dictionaries and caches that grow in"
        what += " the dataset or a callback"
    return Verdict("leak", f"leak suspected, {growth:,.0f} MiB in 1,000 steps ({what}).", False)


def last_attempt(rows: Sequence[Row]) -> list[Row]:
    """The samples of the newest process: each begins with little memory."""
    return [row for row in rows if row.get("attempt") == rows[-1].get("attempt")]


def amount(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"


def stats_lines(summary: dict[str, Any]) -> Iterator[str]:
    """What a person reads at the end of a run: a line of stats, and what is not well. usage.json has the rest."""
    stats = summary.get("stats", {})
    if not stats.get("samples"):
        return
    parts = [f"about {stats['tokens_per_second']:,.0f} tokens/s"]
    if "cpu_percent_mean" in stats:
        parts.append(f"CPU {stats['cpu_percent_mean']:.0f} of {100 * stats['cores']} %")
    if "memory_bytes_peak" in stats:
        parts.append(f"memory {amount(stats['memory_bytes_peak'])} of {amount(stats['memory_limit_bytes'])}")
    if {"gpu_percent_mean", "gpu_memory_bytes_peak", "gpu_memory_limit_bytes"} <= stats.keys():
        memory = f"{amount(stats['gpu_memory_bytes_peak'])} of {amount(stats['gpu_memory_limit_bytes'])}"
        parts.append(f"GPU {stats['gpu_percent_mean']:.0f} %, its memory {memory}")
    yield f"stats       {', '.join(parts)}"
    yield from (f"!!          {verdict['text']}" for verdict in summary["verdicts"] if not verdict["good"])
