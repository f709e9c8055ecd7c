"""Normalisation of the last dimension.

The prediction stream is differentiated twice. Autograd can do that by itself, but it builds each derivative from many
small passes over memory; the formulas written out here take half the time. `tests/models/test_norm.py` checks them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def dot(a: Tensor, b: Tensor) -> Tensor:
    """[..., D], [..., D] -> [..., 1]"""
    return torch.linalg.vecdot(a, b).unsqueeze(-1)


class _Normalise(Function):
    """x / rms(x)"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        r = torch.rsqrt(dot(x, x) / x.shape[-1] + eps)
        ctx.save_for_backward(x, r)
        return x * r

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        x, r = ctx.saved_tensors
        return _NormaliseBackward.apply(g, x, r), None


class _NormaliseBackward(Function):
    """The symmetric Jacobian times g: r g - (r^3 / D) x (x.g)"""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, r: Tensor) -> Tensor:
        along = dot(x, g)
        ctx.save_for_backward(g, x, r, along)
        return torch.addcmul(g, x, along * (r * r / x.shape[-1]), value=-1).mul_(r)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, Tensor, None]:
        # r is a function of x, and its share of the derivative is in the formula for x: it gets none of its own.
        g, x, r, along_g = ctx.saved_tensors
        along_v, squared = dot(x, v), r * r / x.shape[-1]
        to_g = torch.addcmul(v, x, along_v * squared, value=-1).mul_(r)
        to_x = x * (dot(v, g) - 3 * squared * along_g * along_v)
        to_x = to_x.addcmul_(g, along_v).addcmul_(v, along_g).mul_(-squared * r)
        return to_g, to_x, None


def normalise(x: Tensor, eps: float) -> Tensor:
    """x over its root mean square, [..., D]; may be differentiated twice."""
    return _Normalise.apply(x, eps)


class RMSNorm(nn.Module):
    """Divide by the root mean square and scale. [..., D] -> [..., D]"""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return normalise(x, self.eps) * self.scale


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
