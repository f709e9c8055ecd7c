"""FLOPs and memory of a training step, counted by running it on the meta device."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from models.model import Batch, Model


@dataclass(frozen=True)
class Cost:
    """flops: of forward and backward. activation_bytes: tensors that the forward pass saves for the backward."""

    flops: int
    activation_bytes: int


class WholeModel:
    """Replaces the module tracker of FlopCounterMode, whose hooks fail in the autograd.grad of an energy."""

    parents: ClassVar = {"Global"}

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def step_cost(model: Model, batch: Batch) -> Cost:
    """The cost of one batch, in float32. batch: on the meta device."""
    shadow = model.meta_copy(batch)
    own = {id(tensor) for tensor in (*shadow.parameters(), *shadow.buffers())}
    saved: dict[int, Tensor] = {}

    def save(tensor: Tensor) -> Tensor:
        if id(tensor) not in own and not (tensor._base is not None and id(tensor._base) in own):
            saved[tensor.untyped_storage()._cdata] = tensor
        return tensor

    counter = FlopCounterMode(display=False)
    counter.mod_tracker = WholeModel()  # type: ignore[assignment]
    with torch.random.fork_rng(devices=[]), counter:
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            loss = shadow.training_step(batch, 0)
        loss.backward()
    activations = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    return Cost(counter.get_total_flops(), activations)


def batch_costs(model: Model, batch: Batch) -> dict[int, Cost]:
    """The cost of a batch by its number of steps down the energy; {0: cost} for a model without."""
    counts = model.step_counts()
    # Every landscape is visited at least once and every further step costs the same: the cost is linear in the count.
    costs = {}
    for count in dict.fromkeys((counts[0], counts[-1])):
        with model.with_steps(count):
            costs[count] = step_cost(model, batch)
    low, high = costs[counts[0]], costs[counts[-1]]
    return {count: costs.get(count) or between(low, high, count - counts[0], len(counts) - 1) for count in counts}


def between(low: Cost, high: Cost, steps: int, total: int) -> Cost:
    """Linear interpolation, `steps` of `total` steps from `low` to `high`."""
    flops = low.flops + (high.flops - low.flops) * steps // total
    return Cost(flops, low.activation_bytes + (high.activation_bytes - low.activation_bytes) * steps // total)


def costs_if_counted(model: Model, batch: Batch) -> dict[int, Cost]:
    """`batch_costs`; empty, with a line that says so, for a model that cannot be counted."""
    try:
        return batch_costs(model, batch)
    except Exception as error:  # counting is for the record alone
        print(f"FLOPs are not counted: {type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return {}
