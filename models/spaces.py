"""Spaces of predictions that are not plain vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from models.layers.linear import is_few_rows_no_grad, linear
from models.layers.vocabulary import embed_distribution, embed_softmax, move, product_type, softmax_and_embed
from models.walk import Space


@dataclass(frozen=True)
class UpdateRule:
    """How a step changes logits y: from what, and what the energy sees of them."""

    from_probabilities: bool = False  # step from what the energy sees, softmax(y), as published, not from y
    normalize: bool = True  # the energy sees softmax(y), not y
    entropy: bool = False  # the energy has an entropy term; steps are from y


class EmbedsVocabulary(Protocol):
    """A network that embeds distributions over a vocabulary."""

    @property
    def prediction_embedding(self) -> Tensor:
        """W, [V, D]: what a distribution over the vocabulary is multiplied with."""
        ...

    def to_vocabulary(self, d_BSD: Tensor) -> Tensor:
        """d W^T, [B, S, V]"""
        ...


class Vocabulary(Space):
    """Logits over a vocabulary, [B, S, V]; the energy sees z = softmax(y) W, [B, S, D].

    A step is y <- y - size * dE/dz W^T, or softmax(y) - size * dE/dz W^T, as the published code has it.

    A residual energy has an entropy term, F = E + sum p log p. Its gradient by p is dE/dp + y, up to what softmax does
    not see, so that a step is

        y <- (1 - size) y - size * dE/dz W^T

    which is mirror descent on F. Where E is linear in p, a step of size 1 ends in the minimum: the softmax of -dE/dp.
    """

    def __init__(self, network: EmbedsVocabulary, rule: UpdateRule) -> None:
        self.network, self.rule = network, rule
        self.embedding_VD = network.prediction_embedding  # once, so that a walk's graph has one node for it
        self.natural_step = 1.0 if rule.entropy else None

    def weight(self, create_graph: bool) -> Tensor:
        """W; a constant in steps that are not differentiated."""
        return self.embedding_VD if create_graph else self.embedding_VD.detach()

    def embed(self, y: Tensor, create_graph: bool) -> tuple[Tensor, Tensor]:
        """y or softmax(y), from where the step is taken, [B, S, V], and what the energy sees, [B, S, D]."""
        w_VD = self.weight(create_graph)
        if not self.rule.normalize:
            with torch.set_grad_enabled(create_graph):
                return y, embed_distribution(y, w_VD)
        if not self.rule.from_probabilities:
            with torch.set_grad_enabled(create_graph):
                return y, embed_softmax(y, w_VD)
        if is_few_rows_no_grad(y):
            w_VD = w_VD.to(product_type(w_VD))
            p_BSV = y.softmax(-1)
            return p_BSV, linear(p_BSV.to(w_VD.dtype), w_VD.T)
        if create_graph or not y.requires_grad:
            return softmax_and_embed(y, w_VD)
        p_BSV = y.softmax(-1)  # the loss reaches an earlier step through it
        with torch.no_grad():
            return p_BSV, embed_distribution(p_BSV, w_VD)

    def move(self, base: Tensor, size: Tensor, gradient: Tensor, create_graph: bool) -> tuple[Tensor, Tensor]:
        if self.rule.entropy:
            base = base - size * (base if create_graph else base.detach())
        step_BSD = size * gradient
        if is_few_rows_no_grad(step_BSD):
            move_BSV = self.network.to_vocabulary(step_BSD)
            return base - move_BSV, torch.linalg.vector_norm(move_BSV, dim=-1)
        return move(base, step_BSD, self.weight(create_graph))

    def own_energy(self, y: Tensor) -> Tensor | None:
        return neg_entropy(y) if self.rule.entropy else None

    def target_embedding(self, target: Tensor) -> Tensor:
        """The embedding of tokens, whose own energy is 0. [B, S] -> [B, S, D]"""
        return self.embedding_VD[target]

    def distance(self, start: Tensor, target: Tensor) -> float:
        return 1.0


def neg_entropy(y_BSV: Tensor) -> Tensor:
    """sum p log p of p = softmax(y), [B, S]; a constant to autograd."""
    with torch.no_grad():
        log_BSV = y_BSV.log_softmax(-1)
        return (log_BSV.exp() * log_BSV).sum(-1)


class Cells(Space):
    """Logits over a few symbols in each cell of a row, [B, N, V], with one energy [B]; it sees p = softmax(y) itself.

    With an entropy term, F(p) = E(p) + tau sum p log p, a step is mirror descent on F, of the blank cells alone:

        y <- (1 - size tau) y - size dE/dp

    blank: cells that are to be predicted, [B, N, 1]; the others stay as they are. None: all.
    tau: the weight of the entropy term; None: there is none.
    """

    event_dims = 2

    def __init__(self, blank_BN1: Tensor | None = None, tau: Tensor | None = None) -> None:
        self.blank_BN1, self.tau = blank_BN1, tau

    def embed(self, y: Tensor, create_graph: bool) -> tuple[Tensor, Tensor]:
        with torch.set_grad_enabled(create_graph):
            return y, y.softmax(-1)

    def move(self, base: Tensor, size: Tensor, gradient: Tensor, create_graph: bool) -> tuple[Tensor, Tensor]:
        step_BNV = size * gradient
        length_B = torch.linalg.vector_norm(step_BNV.detach(), dim=(-2, -1))
        if self.tau is not None:
            step_BNV = step_BNV + (size * self.tau) * (base if create_graph else base.detach())
        if self.blank_BN1 is not None:
            step_BNV = step_BNV * self.blank_BN1
        return base - step_BNV, length_B

    def own_energy(self, y: Tensor) -> Tensor | None:
        if self.tau is None:
            return None
        cells_BN = neg_entropy(y)
        if self.blank_BN1 is not None:
            cells_BN = cells_BN * self.blank_BN1.squeeze(-1)
        return self.tau.detach() * cells_BN.sum(-1)

    def distance(self, start: Tensor, target: Tensor) -> float:
        return 1.0
