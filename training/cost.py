"""What a training step costs, found by running it on tensors that have shapes and no memory."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from models import LanguageModel
from models.energy_language_model import EnergyLanguageModel
from models.replay import ReplayBuffer


@dataclass(frozen=True)
class Cost:
    """flops: of forward and backward. activation_bytes: what the backward pass keeps from the forward."""

    flops: int
    activation_bytes: int


def step_cost(model: LanguageModel, batch_size: int, context_length: int) -> Cost:
    """The cost of one batch [B, S+1], in float32."""
    # The copy is given weights without memory at once: of a large model there may be no room for a second one.
    empty: dict[int, Any] = {
        id(weight): nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=weight.requires_grad)
        for weight in model.parameters()
    }
    if isinstance(model, EnergyLanguageModel) and model.replay is not None:
        empty[id(model.replay)] = ReplayBuffer(model.replay.rows, model.replay.share)
    shadow = copy.deepcopy(model, empty).to("meta")
    own = {id(tensor) for tensor in (*shadow.parameters(), *shadow.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if id(tensor) not in own and not (tensor._base is not None and id(tensor._base) in own):
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    batch = {"input_ids": torch.zeros(batch_size, context_length + 1, dtype=torch.int64, device="meta")}
    if isinstance(shadow, EnergyLanguageModel) and shadow.replay is not None:  # a batch has replayed rows from then on
        with torch.random.fork_rng(devices=[]):
            shadow.training_step(batch, 0)
    with torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = shadow.training_step(batch, 0)
        loss.backward()
    activations = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    return Cost(counter.get_total_flops(), activations)


def batch_costs(model: LanguageModel, batch_size: int, context_length: int) -> dict[int, Cost]:
    """The cost of a batch by how many steps down the energy it takes; {0: cost} where a model takes none."""
    if not isinstance(model, EnergyLanguageModel):
        return {0: step_cost(model, batch_size, context_length)}
    drawn = model.thinking
    counts = list(drawn.step_counts)
    # Every landscape is visited once at least, and every further step costs the same: the fewest and the most tell all.
    costs = {}
    for count, repeats in ((counts[0], drawn.min_repeats), (counts[-1], drawn.max_repeats)):
        model.thinking = replace(drawn, min_repeats=repeats, max_repeats=repeats)
        try:
            costs[count] = step_cost(model, batch_size, context_length)
        finally:
            model.thinking = drawn
    low, high = costs[counts[0]], costs[counts[-1]]
    return {count: costs.get(count) or between(low, high, count - counts[0], len(counts) - 1) for count in counts}


def between(low: Cost, high: Cost, steps: int, of: int) -> Cost:
    """The cost so many of all the steps from `low` to `high`."""
    flops = low.flops + (high.flops - low.flops) * steps // of
    return Cost(flops, low.activation_bytes + (high.activation_bytes - low.activation_bytes) * steps // of)
