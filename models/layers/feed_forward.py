"""The gated feed-forward layer; with silu it is SwiGLU, as in Transformer++."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from models.layers.analytic import Saved, input_gradient
from models.layers.linear import Linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "gelu": F.gelu, "relu": F.relu, "elu": F.elu}


class FeedForward(nn.Module):
    """activation(gate) * value, projected back. [B, S, D] -> [B, S, D]"""

    def __init__(self, width: int, hidden: int, activation: str = "silu") -> None:
        super().__init__()
        self.activation = activation
        self.gate_value = Linear(width, 2 * hidden)
        self.output = Linear(hidden, width)

    def forward(self, x_BSD: Tensor) -> Tensor:
        return self.forward_saving(x_BSD)[0]

    def activated(self, x: Tensor) -> Tensor:
        gate, value = x.chunk(2, dim=-1)
        return ACTIVATIONS[self.activation](gate) * value

    def forward_saving(self, x_BSD: Tensor) -> tuple[Tensor, Saved]:
        x = self.gate_value(x_BSD)
        if self.activation != "silu":
            return self.output(self.activated(x)), (x,)
        differentiated = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        return self.output(_SwiGLU.apply(x) if differentiated else swiglu(x)), (x,)

    def input_gradient(self, g_BSD: Tensor, saved: Saved) -> Tensor:
        g, (x,) = self.output.input_gradient(g_BSD), saved
        if self.activation != "silu":
            return self.gate_value.input_gradient(input_gradient(self.activated, g, saved))
        differentiated = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        return self.gate_value.input_gradient(_SwiGLUGrad.apply(g, x) if differentiated else swiglu_grad(g, x))


def swiglu(x: Tensor) -> Tensor:
    """silu(a) b of x = [a, b]"""
    a, b = x.chunk(2, -1)
    return F.silu(a) * b if torch.compiler.is_compiling() else F.silu(a).mul_(b)


def swiglu_grad(g: Tensor, x: Tensor) -> Tensor:
    """[g b silu'(a), g silu(a)]"""
    a, b = x.chunk(2, -1)
    if torch.compiler.is_compiling():  # who differentiates it once more; silu_backward has no derivative
        sigma = a.sigmoid()
        s = a * sigma
        return torch.cat([g * b * (sigma + s * (1 - sigma)), g * s], -1)
    grad = torch.empty_like(x)
    to_a, to_b = grad.chunk(2, -1)
    torch.ops.aten.silu_backward.grad_input(g * b, a, grad_input=to_a)
    torch.mul(F.silu(a), g, out=to_b)
    return grad


def swiglu_grad_backward(u: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """What a cotangent u of `swiglu_grad` gives to g and to x."""
    (a, b), (u_a, u_b) = x.chunk(2, -1), u.chunk(2, -1)
    grad_x = torch.empty_like(x)
    to_a, to_b = grad_x.chunk(2, -1)
    sigma = a.sigmoid()
    s = a * sigma
    first = torch.addcmul(sigma + s, s, sigma, value=-1)  # silu'
    second = torch.sub(s, first, alpha=2).mul_(sigma.sub_(1))  # silu'' = (1 - sigma) (2 silu' - silu)
    torch.mul(second.mul_(b).mul_(u_a).addcmul_(u_b, first), g, out=to_a)
    along = first.mul_(u_a)
    torch.mul(along, g, out=to_b)
    return torch.addcmul(along.mul_(b), u_b, s), grad_x


class _SwiGLU(Function):
    """silu(a) b with its derivatives written out, [..., 2 H] -> [..., H]"""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return swiglu(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return _SwiGLUGrad.apply(g, x)


class _SwiGLUGrad(Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(g, x)
        return swiglu_grad(g, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor, Tensor]:
        return swiglu_grad_backward(u, *ctx.saved_tensors)
