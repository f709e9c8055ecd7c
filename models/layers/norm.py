"""Normalisation of the last dimension."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """Divide by the root mean square and scale. [..., D] -> [..., D]"""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.scale.shape, self.scale, self.eps)


class DynamicTanh(nn.Module):
    """A squashing in place of a normalisation: scale * tanh(a x) + shift. [..., D] -> [..., D]"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.5))
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.tanh(self.slope * x) + self.shift


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "rms": RMSNorm,
    "layer": nn.LayerNorm,
    "dyt": DynamicTanh,
    "none": lambda width: nn.Identity(),
}
