"""Products with a matrix of weights; those of a few rows on a CPU take a form that is up to three times as fast."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.layers.analytic import Saved

FEW = 8  # rows


def is_few(x: Tensor) -> bool:
    """Whether x is a few rows whose product nobody will differentiate: a token in generation, for a few texts."""
    return not torch.is_grad_enabled() and x.device.type == "cpu" and x.numel() <= FEW * x.shape[-1]


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T, for every row of x."""
    if not is_few(x):
        return F.linear(x, weight)
    # W read once from front to back by both cores; x W^T leaves all but one of them idle.
    few = torch.mm(weight, x.reshape(-1, x.shape[-1]).t())
    return few.t().contiguous().view(*x.shape[:-1], len(weight))


class Linear(nn.Linear):
    """W x without a bias, and its input gradient."""

    turned: tuple[int, int, Tensor] | None = None  # W^T by rows, made when a few rows first go back

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight)

    def forward_saving(self, x: Tensor) -> tuple[Tensor, Saved]:
        return self(x), ()

    def input_gradient(self, g: Tensor, saved: Saved = ()) -> Tensor:
        """From the gradient of the product to that of what was multiplied: g W."""
        if not is_few(g):
            return g @ self.weight
        known = (self.weight.data_ptr(), self.weight._version)  # weights that were changed are turned again
        if self.turned is None or self.turned[:2] != known or self.turned[2].dtype != self.weight.dtype:
            self.turned = (*known, self.weight.t().contiguous())
        return product(g, self.turned[2])

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "turned": None}  # copies turn their own
