"""Products with a weight matrix. For a few rows on a CPU they take a form that is up to three times as fast."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.layers.analytic import Saved

FEW = 8  # rows up to which a product that is not differentiated takes the fast form


def is_few_rows_no_grad(x: Tensor) -> bool:
    """Whether x is a few rows whose product is not differentiated: a token in generation, for a few texts."""
    return not torch.is_grad_enabled() and x.device.type == "cpu" and x.numel() <= FEW * x.shape[-1]


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T, for every row of x."""
    if not is_few_rows_no_grad(x):
        return F.linear(x, weight)
    # W x^T reads W once, from front to back, on all cores; x W^T leaves all but one of them idle.
    few = torch.mm(weight, x.reshape(-1, x.shape[-1]).t())
    return few.t().contiguous().view(*x.shape[:-1], len(weight))


class Linear(nn.Linear):
    """W x without a bias, and its input gradient."""

    # W^T by rows, made for the first input gradient of a few rows: address and version of W, and the tensor
    transposed_weight: tuple[int, int, Tensor] | None = None

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight)

    def forward_saving(self, x: Tensor) -> tuple[Tensor, Saved]:
        return self(x), ()

    def input_gradient(self, g: Tensor, _: Saved = ()) -> Tensor:
        """From the gradient of x W^T to that of x: g W."""
        if not is_few_rows_no_grad(g):
            return g @ self.weight
        version = (self.weight.data_ptr(), self.weight._version)  # changed weights are transposed again
        saved = self.transposed_weight
        if saved is None or saved[:2] != version or saved[2].dtype != self.weight.dtype:
            saved = self.transposed_weight = (*version, self.weight.t().contiguous())
        return linear(g, saved[2])

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "transposed_weight": None}  # a copy transposes its own
