"""How an energy-based model predicts: start somewhere and walk down the energy.

y <- start
for each step:
    y <- y + noise                          Langevin dynamics, optional
    p <- softmax(y)                         a distribution over the vocabulary
    E <- energy(p)                          one number per position
    y <- y - step_size * dE/dp              or p - step_size * dE/dp, as the published code has it

A residual energy has an entropy term, F = E + sum p log p. Its gradient by p is dE/dp + y, up to what softmax does not
see, so that a step is

    y <- (1 - step_size) y - step_size * dE/dp

which is mirror descent on F. Where E is linear in p, a step of size 1 ends in the minimum: the softmax of -dE/dp.
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
    """One step of the walk. size: a number or [B, S, 1]; noise: standard deviation of what is added before it.

    create_graph: whether the energy's gradient is differentiated; else it is a constant, and only what y was before,
    the size and the noise have a gradient.
    """

    landscape: int
    size: Tensor
    noise: Tensor | float = 0.0
    create_graph: bool = True


@dataclass
class Walk:
    """What the walk went through: per step the energies before it [B, S], their gradient's norm and y after it.

    last_energy: that before the last step, with its graph.
    """

    predictions: list[Tensor] = field(default_factory=list)  # each [B, S, V]
    energies: list[Tensor] = field(default_factory=list)
    gradient_norms: list[Tensor] = field(default_factory=list)
    last_energy: Tensor | None = None


@dataclass(frozen=True)
class Rule:
    """The choices that hold for the whole walk."""

    from_probabilities: bool = False  # step from what the energy sees, softmax(y), not from y
    normalize: bool = True  # give the energy softmax(y), not y
    detach: bool = False  # no gradient from one step into the one before
    entropy: bool = False  # the energy has an entropy term; steps are from y


def neg_entropy(y_BSV: Tensor) -> Tensor:
    """sum p log p of p = softmax(y), [B, S]; a constant to autograd."""
    with torch.no_grad():
        log_BSV = y_BSV.log_softmax(-1)
        return (log_BSV.exp() * log_BSV).sum(-1)


def descend(
    energy: Callable[[Tensor, int, bool], tuple[Tensor, Tensor]],
    embedding_VD: Tensor,
    start_BSV: Tensor,
    steps: list[Step],
    rule: Rule,
    differentiable: bool,
) -> Walk:
    """Walk down an energy from `start`.

    energy: from z = p @ embedding [B, S, D], a landscape and whether to create a graph to the energy [B, S] and dE/dz
    [B, S, D]. The energy sees a prediction only through its embedding, so it is differentiated there, in D and not in V
    dimensions, and the gradient is carried back through the embedding: dE/dp = dE/dz @ embedding^T.
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
        create_graph = differentiable and step.create_graph
        w_VD = embedding_VD if create_graph else embedding_VD.detach()
        with torch.set_grad_enabled(differentiable):
            base_BSV, z_BSD = see(y_BSV, w_VD, rule, create_graph)
            energy_BS, gradient_BSD = energy(z_BSD, step.landscape, create_graph)
            if rule.entropy:
                energy_BS = energy_BS + neg_entropy(y_BSV)
                base_BSV = y_BSV - step.size * (y_BSV if create_graph else y_BSV.detach())
            y_BSV, lengths_BS = move(base_BSV, step.size * gradient_BSD, w_VD)
        walk.predictions.append(y_BSV)
        walk.energies.append(energy_BS.detach())
        walk.gradient_norms.append((lengths_BS / step.size.detach().abs().squeeze(-1)).mean())
        walk.last_energy = energy_BS
    return walk


def see(y_BSV: Tensor, w_VD: Tensor, rule: Rule, create_graph: bool) -> tuple[Tensor, Tensor]:
    """Where a step is taken from, y or softmax(y), and what the energy sees. -> [B, S, V], [B, S, D]"""
    if not rule.normalize:
        with torch.set_grad_enabled(create_graph):
            return y_BSV, mix(y_BSV, w_VD)
    if not rule.from_probabilities:
        with torch.set_grad_enabled(create_graph):
            return y_BSV, embed(y_BSV, w_VD)
    if create_graph or not y_BSV.requires_grad:
        return distribute(y_BSV, w_VD)
    p_BSV = y_BSV.softmax(-1)  # the loss reaches an earlier step through it
    with torch.no_grad():
        return p_BSV, mix(p_BSV, w_VD)
