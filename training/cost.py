"""FLOPs and memory of a training step, counted by running it on tensors that have shapes and no memory."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from models.language import EnergyLM
from models.model import Model
from models.replay import ReplayBuffer
from training.language import shapes_of_batch


@dataclass(frozen=True)
class Cost:
    """flops: of forward and backward. activation_bytes: tensors that the forward pass saves for the backward."""

    flops: int
    activation_bytes: int


def step_cost(model: Model, batch_size: int, context_length: int) -> Cost:
    """The cost of one batch [B, S+1], in float32."""
    # The copy gets weights without memory at once: there may be no room for a second copy of a large model.
    empty: dict[int, Any] = {
        id(weight): nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=weight.requires_grad)
        for weight in model.parameters()
    }
    if isinstance(model, EnergyLM) and model.replay is not None:
        empty[id(model.replay)] = ReplayBuffer(model.replay.rows, model.replay.share)
    shadow = copy.deepcopy(model, empty).to("meta")
    own = {id(tensor) for tensor in (*shadow.parameters(), *shadow.buffers())}
    saved: dict[int, Tensor] = {}

    def save(tensor: Tensor) -> Tensor:
        if id(tensor) not in own and not (tensor._base is not None and id(tensor._base) in own):
            saved[tensor.untyped_storage()._cdata] = tensor
        return tensor

    batch = shapes_of_batch(batch_size, context_length)
    if isinstance(shadow, EnergyLM) and shadow.replay is not None:  # a batch has replayed rows from then on
        with torch.random.fork_rng(devices=[]):
            shadow.training_step(batch, 0)
    with torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            loss = shadow.training_step(batch, 0)
        loss.backward()
    activations = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    return Cost(counter.get_total_flops(), activations)


def batch_costs(model: Model, batch_size: int, context_length: int) -> dict[int, Cost]:
    """The cost of a batch by its number of steps down the energy; {0: cost} for a model without."""
    if not isinstance(model, EnergyLM):
        return {0: step_cost(model, batch_size, context_length)}
    settings = model.walk_settings
    counts = list(settings.step_counts)
    # Every landscape is visited at least once, and every further step costs the same: the rest lies between these two.
    costs = {}
    for count, repeats in ((counts[0], settings.min_repeats), (counts[-1], settings.max_repeats)):
        model.walk_settings = replace(settings, min_repeats=repeats, max_repeats=repeats)
        try:
            costs[count] = step_cost(model, batch_size, context_length)
        finally:
            model.walk_settings = settings
    low, high = costs[counts[0]], costs[counts[-1]]
    return {count: costs.get(count) or between(low, high, count - counts[0], len(counts) - 1) for count in counts}


def between(low: Cost, high: Cost, steps: int, of: int) -> Cost:
    """The cost `steps` of `of` steps from `low` to `high`."""
    flops = low.flops + (high.flops - low.flops) * steps // of
    return Cost(flops, low.activation_bytes + (high.activation_bytes - low.activation_bytes) * steps // of)
