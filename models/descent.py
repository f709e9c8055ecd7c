"""How an energy-based model predicts: start somewhere and walk down the energy.

y <- start
for each step:
    y <- y + noise                          Langevin dynamics, optional
    p <- softmax(y)                         a distribution over the vocabulary
    E <- energy(p)                          one number per position
    y <- y - step_size * dE/dp              or p - step_size * dE/dp, as the published code has it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from models.layers.vocabulary import distribute, embed, mix, move
from models.noise import normal


@dataclass(frozen=True)
class Step:
    """One step of the walk. size: a number or [B, S, 1]; noise: standard deviation of what is added before it."""

    landscape: int
    size: Tensor
    noise: Tensor | float = 0.0


@dataclass
class Walk:
    """What the walk went through: per step the energies before it [B, S], their gradient's norm and y after it."""

    predictions: list[Tensor] = field(default_factory=list)  # each [B, S, V]
    energies: list[Tensor] = field(default_factory=list)
    gradient_norms: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Rule:
    """The choices that hold for the whole walk."""

    from_probabilities: bool = False  # step from softmax(y), not from y
    normalize: bool = True  # give the energy softmax(y), not y
    detach: bool = False  # no gradient from one step into the one before


def descend(
    slope: Callable[[Tensor, int], tuple[Tensor, Tensor]],
    embedding_VD: Tensor,
    start_BSV: Tensor,
    steps: list[Step],
    rule: Rule,
    differentiable: bool,
) -> Walk:
    """Walk down an energy from `start`.

    slope: from z = p @ embedding [B, S, D] and a landscape to the energy [B, S] and dE/dz [B, S, D]. The energy sees a
    prediction only through its embedding, so it is differentiated there, in D and not in V dimensions, and the
    gradient is carried back through the embedding: dE/dp = dE/dz @ embedding^T.
    differentiable: keep what a loss on the predictions needs to reach the energy's parameters.
    """
    walk = Walk()
    y_BSV = start_BSV
    for step in steps:
        if rule.detach or not differentiable:
            y_BSV = y_BSV.detach()
        if isinstance(step.noise, Tensor):
            y_BSV = y_BSV + step.noise * normal(y_BSV.shape, y_BSV)
        elif step.noise > 0:
            y_BSV = normal(y_BSV.shape, y_BSV, step.noise).add_(y_BSV)
        with torch.set_grad_enabled(differentiable):
            before_BSV = y_BSV
            if rule.normalize and rule.from_probabilities:
                before_BSV, z_BSD = distribute(y_BSV, embedding_VD)
            elif rule.normalize:
                z_BSD = embed(y_BSV, embedding_VD)
            else:
                z_BSD = mix(y_BSV, embedding_VD)
                before_BSV = y_BSV.softmax(-1) if rule.from_probabilities else y_BSV
            energy_BS, slope_BSD = slope(z_BSD, step.landscape)
            y_BSV, lengths_BS = move(before_BSV, step.size * slope_BSD, embedding_VD)
        walk.predictions.append(y_BSV)
        walk.energies.append(energy_BS.detach())
        walk.gradient_norms.append((lengths_BS / step.size.detach().abs().squeeze(-1)).mean())
    return walk
