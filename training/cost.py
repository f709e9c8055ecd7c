"""What a training step costs, found by running it on tensors that have shapes and no memory."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from models import LanguageModel


@dataclass(frozen=True)
class Cost:
    """flops: of forward and backward. activation_bytes: what the backward pass keeps from the forward."""

    flops: int
    activation_bytes: int


def step_cost(model: LanguageModel, batch_size: int, context_length: int) -> Cost:
    """The cost of one batch [B, S+1], in float32."""
    shadow = copy.deepcopy(model).to("meta")
    own = {id(tensor) for tensor in (*shadow.parameters(), *shadow.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if id(tensor) not in own and not (tensor._base is not None and id(tensor._base) in own):
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    batch = {"input_ids": torch.zeros(batch_size, context_length + 1, dtype=torch.int64, device="meta")}
    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = shadow.training_step(batch, 0)
        loss.backward()
    activations = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    return Cost(counter.get_total_flops(), activations)
