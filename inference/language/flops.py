"""FLOPs of a walk per token, counted on the model itself."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn

from inference.flops import flop_counter
from inference.language.walk import token_walk
from inference.thinking import WalkPlan, last_state, with_steps
from models.energy_transformer import EnergyTransformer
from models.language import EnergyLM


@dataclass(frozen=True)
class WalkCost:
    """FLOPs per token, and the passes of the prediction stream that a step takes.

    landscapes: of each step of the longest walk. observed: reading a token for one landscape. end: the energy at the
    end of a walk, needed to select among several. start: the logits of the prior, where walks begin there; shared by
    all candidates.
    """

    landscapes: tuple[int, ...]
    observed: float
    step: float
    end: float
    passes_per_step: int
    start: float = 0.0

    def flops(self, steps: int, candidates: int) -> float:
        selection = self.end if candidates > 1 else 0
        num_contexts = len(set(self.landscapes[:steps])) or bool(self.start)
        return num_contexts * self.observed + self.start + candidates * (steps * self.step + selection)

    def passes(self, steps: int, candidates: int) -> int:
        return candidates * (steps * self.passes_per_step + (candidates > 1))


def walk_cost(model: EnergyLM, plan: WalkPlan, length: int) -> WalkCost:
    """The cost of walks at every position of a row of this length."""
    tokens_1S = torch.zeros(1, length, dtype=torch.int64, device=model.device)
    positions_1S = torch.arange(length, device=model.device)[None]
    contexts = model.contexts(tokens_1S)

    def walk(steps: int) -> tuple[int, int]:
        shortened = with_steps(plan, steps)
        for step in shortened.steps:
            contexts(step.landscape)  # computed before counting begins
        with flop_counter() as counter:
            end = last_state(token_walk(model, contexts, positions_1S, shortened))
            _ = end.energy  # computed once, whatever the number of steps
        return counter.get_total_flops(), end.passes

    with torch.no_grad():
        (one, passes_one), (two, passes_two) = walk(1), walk(2)
        observed = forward_flops(model.network, length)
        with flop_counter() as counter:
            model.start(tokens_1S, fixed=True, contexts=contexts)
        start = counter.get_total_flops()
    return WalkCost(
        tuple(step.landscape for step in plan.steps),
        observed,
        (two - one) / length,
        (2 * one - two - start) / length,
        passes_two - passes_one,
        start / length,
    )


def forward_flops(network: nn.Module, length: int) -> float:
    """FLOPs per token of the observed stream, or of a whole Transformer++, without a backward pass.

    Counted on the meta device, where attention consists of matrix products that the counter knows.
    """
    meta_network = copy.deepcopy(network).to("meta")
    tokens_1S = torch.zeros(1, length, dtype=torch.int64, device="meta")
    with torch.no_grad(), flop_counter() as counter:
        meta_network.context(tokens_1S, 0) if isinstance(meta_network, EnergyTransformer) else meta_network(tokens_1S)
    return counter.get_total_flops() / length
