"""Normalisation of the last dimension.

The prediction stream is differentiated twice. Autograd can do that by itself, but it builds each derivative from many
small passes over memory; the formulas written out here take half the time. `tests/models/test_layers.py` checks them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from models.layers.analytic import Saved


def dot(a: Tensor, b: Tensor) -> Tensor:
    """[..., D], [..., D] -> [..., 1]"""
    return (a * b).sum(-1, keepdim=True)  # as vecdot does, with a view less


def rms_norm(x: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """r = 1 / rms(x), and x r scale"""
    r = torch.rsqrt(dot(x, x) * (1 / x.shape[-1]) + eps)
    return (x * r * scale if torch.compiler.is_compiling() else (x * r).mul_(scale)), r


def rms_norm_grad(g: Tensor, x: Tensor, r: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The symmetric Jacobian of x r times g scale: r h - (r^3 / D) x (x.h), h = g scale; and x.h"""
    h = g * scale
    along = dot(x, h)
    return torch.addcmul(h, x, along * (r * r * (-1 / x.shape[-1]))).mul_(r), along  # h stays, for derivatives


def rms_norm_grad_backward(
    v: Tensor, g: Tensor, x: Tensor, r: Tensor, scale: Tensor, along_h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What a cotangent v of `rms_norm_grad` gives to g, to x (r's share included) and, unsummed, to scale."""
    h = g * scale
    along_v, squared = dot(x, v), r * r * (1 / x.shape[-1])
    to_h = torch.addcmul(v, x, along_v * squared, value=-1).mul_(r)
    share = squared * r
    to_x = x * (share * (3 * squared * along_h * along_v - dot(v, h)))
    to_x.addcmul_(h, share * along_v, value=-1).addcmul_(v, share * along_h, value=-1)
    return to_h * scale, to_x, to_h.mul_(g)


class _RMSNorm(Function):
    """`rms_norm`; the derivative by r is counted with that by x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        y, r = rms_norm(x, scale, eps)
        ctx.save_for_backward(x, scale, r)
        ctx.mark_non_differentiable(r)
        return y, r

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, scale, r = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient that is differentiated again: one along the prediction alone
            return _RMSNormGrad.apply(g, x, r, scale), None, None
        return rms_norm_grad(g, x, r, scale)[0], (g * x).flatten(0, -2).T @ r.flatten(), None


class _RMSNormGrad(Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, r: Tensor, scale: Tensor) -> Tensor:
        grad, along = rms_norm_grad(g, x, r, scale)
        ctx.save_for_backward(g, x, r, scale, along)
        return grad

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, Tensor, None, Tensor]:
        to_g, to_x, to_scale = rms_norm_grad_backward(v, *ctx.saved_tensors)
        return to_g, to_x, None, to_scale.flatten(0, -2).sum(0)


class RMSNorm(nn.Module):
    """Divide by the root mean square and scale. [..., D] -> [..., D]

    May be differentiated twice; a gradient taken with create_graph=True is one along x, the scale gets its own from the
    outer backward.
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_saving(x)[0]

    def forward_saving(self, x: Tensor) -> tuple[Tensor, Saved]:
        x = x.to(self.scale.dtype)  # float32 under autocast
        differentiated = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        y, r = (_RMSNorm.apply if differentiated else rms_norm)(x, self.scale, self.eps)
        return y, (x, r)

    def input_gradient(self, g: Tensor, saved: Saved) -> Tensor:
        x, r = saved
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return _RMSNormGrad.apply(g, x, r, self.scale)
        return rms_norm_grad(g, x, r, self.scale)[0]


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
