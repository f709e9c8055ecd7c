"""What the columns of metrics.jsonl mean: title, unit and which way is better, by name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

SPLITS = {"train": "training", "valid": "validation", "test": "test"}


@dataclass(frozen=True)
class Metric:
    """better: whether a smaller or a larger value is wanted; None where neither is."""

    title: str
    unit: str = ""
    better: Literal["lower", "higher"] | None = None


# Where a row was measured: on the axis of a chart, not a curve.
PLACE = {
    "step": Metric("optimizer step", "steps"),
    "epoch": Metric("epoch", "passes over the data"),
    "tokens": Metric("tokens trained on", "tokens"),
    "flops": Metric("training FLOPs so far", "FLOPs"),
    "seconds": Metric("training time", "s"),
    "time": Metric("wall time", "s since 1970"),
    "attempt": Metric("attempt"),
}
# Measured on a split: its name follows `train_`, `valid_` or `test_`.
OF_A_SPLIT = {
    "loss": Metric("loss", "nats per token", "lower"),
    "perplexity": Metric("perplexity", "", "lower"),
    "accuracy": Metric("accuracy", "share of tokens", "higher"),
    "top5": Metric("top-5 accuracy", "share of tokens", "higher"),
    "bits_per_byte": Metric("bits per byte", "bits per byte", "lower"),
    "targets": Metric("tokens evaluated", "tokens"),
    "thinking_gain": Metric("thinking gain", "nats per token", "higher"),
    "spread": Metric("spread of the predictions over positions", "standard deviation of a probability"),
}
KNOWN = {
    **PLACE,
    "gradient_norm": Metric("gradient norm before clipping"),
    "clipped_share": Metric("steps whose gradient was clipped", "share of steps", "lower"),
    "learning_rate": Metric("learning rate of the weights"),
    "learning_rate/step_size": Metric("learning rate of the step size"),
    "tokens_per_second": Metric("speed", "tokens per second", "higher"),
    "loader_wait_share": Metric("time spent waiting for data", "share of time", "lower"),
    "steps": Metric("steps down the energy, T", "steps"),
    "energy_first": Metric("energy before the first step"),
    "energy_last": Metric("energy before the last step", ""),
    "energy_gap": Metric("energy drop along the walk"),
    "energy_gradient_norm": Metric("slope of the energy", "norm of dE/dp"),
    "step_size": Metric("step size of the descent"),
    "nonfinite_steps": Metric("descent steps that are not finite", "share of steps", "lower"),
    "thinking_gain": Metric("thinking gain in training", "nats per token", "higher"),
    "contrastive_loss": Metric("contrastive loss", "nats per token", "lower"),
    "divergences": Metric("troubles seen by the divergence guard", "events", "lower"),
}
PREFIXES = {"gradient_norm/": "gradient norm of {}", "learning_rate/": "learning rate of {}"}


def describe(name: str) -> Metric:
    """What a column means; a name that nobody knows is its own title."""
    if name in KNOWN:
        return KNOWN[name]
    split, _, rest = name.partition("_")
    if split in SPLITS:
        if rest in OF_A_SPLIT:
            found = OF_A_SPLIT[rest]
            return Metric(f"{SPLITS[split]} {found.title}", found.unit, found.better)
        if step := re.fullmatch(r"loss_step_(\d+)", rest):
            return Metric(f"{SPLITS[split]} loss after step {step[1]}", "nats per token", "lower")
    for prefix, title in PREFIXES.items():
        if name.startswith(prefix):
            return Metric(title.format(name.removeprefix(prefix)))
    return Metric(name.replace("_", " ").strip() or name)


def schema(names: Iterable[str]) -> dict[str, dict[str, str | None]]:
    """What metrics.schema.json says of these columns."""
    return {name: asdict(describe(name)) for name in names}
