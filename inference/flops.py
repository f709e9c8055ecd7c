"""What thinking costs per token, counted on the model itself."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from inference.thinking import Plan, think, with_steps
from models.energy_language_model import EnergyLanguageModel
from models.energy_transformer import EnergyTransformer


@dataclass(frozen=True)
class ThinkingCost:
    """FLOPs per token, and how often the prediction stream runs for a step.

    landscapes: which ones the steps of the longest walk are on. observed: reading a token for one of them. end: the
    energy of where a walk ended, needed to choose among several. start: a Transformer++'s logits, where walks begin
    there; all candidates share them.
    """

    landscapes: tuple[int, ...]
    observed: float
    step: float
    end: float
    passes_per_step: int
    start: float = 0.0

    def flops(self, steps: int, candidates: int) -> float:
        choosing = self.end if candidates > 1 else 0
        read = len(set(self.landscapes[:steps])) or bool(self.start)
        return read * self.observed + self.start + candidates * (steps * self.step + choosing)

    def passes(self, steps: int, candidates: int) -> int:
        return candidates * (steps * self.passes_per_step + (candidates > 1))


def thinking_cost(model: EnergyLanguageModel, plan: Plan, length: int) -> ThinkingCost:
    """The cost of thinking at every position of a row of this length."""
    tokens_1S = torch.zeros(1, length, dtype=torch.int64, device=model.device)
    positions_1S = torch.arange(length, device=model.device)[None]
    contexts = model.contexts(tokens_1S)

    def walk(steps: int) -> tuple[int, int]:
        some = with_steps(plan, steps)
        for step in some.steps:
            contexts(step.landscape)  # read beforehand, and not counted here
        with FlopCounterMode(display=False) as counter:
            thought = think(model, contexts, positions_1S, some)
            _ = thought.energy  # of which there is one, however many steps
        return counter.get_total_flops(), thought.passes

    with torch.no_grad():
        (one, passes_one), (two, passes_two) = walk(1), walk(2)
        observed = flops_of_reading(model.network, length)
        with FlopCounterMode(display=False) as counter:
            model.start(tokens_1S, fixed=True, contexts=contexts)
        start = counter.get_total_flops()
    return ThinkingCost(
        tuple(step.landscape for step in plan.steps),
        observed,
        (two - one) / length,
        (2 * one - two - start) / length,
        passes_two - passes_one,
        start / length,
    )


def flops_of_reading(network: nn.Module, length: int) -> float:
    """FLOPs per token of the observed stream, or of a whole Transformer++, without a backward pass.

    On tensors that have shapes and no memory: there attention is made of products that the counter knows.
    """
    shadow = copy.deepcopy(network).to("meta")
    tokens_1S = torch.zeros(1, length, dtype=torch.int64, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        shadow.context(tokens_1S, 0) if isinstance(shadow, EnergyTransformer) else shadow(tokens_1S)
    return counter.get_total_flops() / length
