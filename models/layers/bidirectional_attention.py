"""Self-attention of cells that all see each other, differentiable twice.

    A = softmax(scale * q k^T + bias)      bias: of the cells that are looked at; padding has a large negative one
    o = A v

The fused kernels have no second derivative. Here the formulas are written out, on queries, keys and values side by side
in one tensor, so that a step of a walk is few operations. `tests/models/test_reasoning.py` compares them with autograd.

Names: g is a cotangent of o; u, m, x are those of dq, dk, dv; ds is the gradient of the scores.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from models.layers.analytic import Saved
from models.layers.linear import Linear
from models.layers.norm import dot

PADDING_BIAS = -1e9  # finite, so that a row of padding alone has weights and no nan


def padding_bias(real_BN: Tensor, like: Tensor, heads: int) -> Tensor:
    """0 for a cell, a large negative number for padding. [B, N] -> [B H, 1, N]"""
    bias_BN = torch.zeros_like(real_BN, dtype=like.dtype).masked_fill_(~real_BN, PADDING_BIAS)
    return bias_BN.repeat_interleave(heads, 0)[:, None]


def split(x: Tensor, heads: int) -> Tensor:
    """Queries, keys and values side by side, [B, N, 3 H K], to [3, B H, N, K]."""
    rows, length, _ = x.shape
    return x.view(rows, length, 3, heads, -1).permute(2, 0, 3, 1, 4).reshape(3, rows * heads, length, -1)


def merge(x: Tensor, heads: int) -> Tensor:
    """The transpose of `split`."""
    _, _, length, width = x.shape
    return x.view(3, -1, heads, length, width).permute(1, 3, 0, 2, 4).reshape(-1, length, 3 * heads * width)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, N, H K] -> [B H, N, K]"""
    rows, length, _ = x.shape
    return x.reshape(rows, length, heads, -1).transpose(1, 2).reshape(rows * heads, length, -1)


def merge_heads(x: Tensor, heads: int) -> Tensor:
    """[B H, N, K] -> [B, N, H K]"""
    _, length, width = x.shape
    return x.view(-1, heads, length, width).transpose(1, 2).reshape(-1, length, heads * width)


def attention(x: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What each cell mixes, [B, N, D], of queries, keys and values x [B, N, 3 D]; and [q, k, v], o and A."""
    qkv = split(x, heads)
    q, k, v = qkv.unbind()
    weight = torch.baddbmm(bias.to(q.dtype), q, k.mT, alpha=q.shape[-1] ** -0.5).softmax(-1, dtype=q.dtype)
    o = torch.bmm(weight, v)
    return merge_heads(o, heads), qkv, o, weight


def attention_grad(g_BND: Tensor, qkv: Tensor, o: Tensor, weight: Tensor, heads: int) -> Tensor:
    """From a cotangent of what each cell mixes to that of x, [B, N, 3 D]."""
    q, k, v = qkv.unbind()
    g, scale = split_heads(g_BND, heads), q.shape[-1] ** -0.5
    ds = (torch.bmm(g, v.mT) - dot(g, o)) * weight * scale
    return merge(torch.stack([torch.bmm(ds, k), torch.bmm(ds.mT, q), torch.bmm(weight.mT, g)]), heads)


def products(
    ds: Tensor, left: Tensor, right: Tensor, weight: Tensor, g: Tensor, scale: float, into: Tensor | None = None
) -> Tensor:
    """[scale ds left, scale ds^T right, A^T g], [3, B H, N, K], added to `into` where that is given."""
    out = ds.new_empty(3, *left.shape)
    for i, (a, b, alpha) in enumerate(((ds, left, scale), (ds.mT, right, scale), (weight.mT, g, 1.0))):
        if into is None:
            torch.baddbmm(out[i], a, b, beta=0, alpha=alpha, out=out[i])
        else:
            torch.baddbmm(into[i], a, b, alpha=alpha, out=out[i])
    return out


class _Attend(Function):
    """`attention`, differentiable twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, ...]:
        mixed_BND, qkv, o, weight = attention(x, bias, heads)
        ctx.save_for_backward(qkv, o, weight)
        ctx.heads = heads
        ctx.set_materialize_grads(False)
        return mixed_BND, qkv, o, weight

    @staticmethod
    def backward(
        ctx: Any, g_BND: Tensor | None, c_qkv: Tensor | None, c_o: Tensor | None, c_weight: Tensor | None
    ) -> tuple[Tensor, None, None]:
        """c_qkv, c_o and c_weight: what `_AttendGrad.backward` left; c_weight with respect to log A."""
        qkv, o, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient that is differentiated again
            g_BND = merge_heads(torch.zeros_like(o), ctx.heads) if g_BND is None else g_BND
            return _AttendGrad.apply(g_BND, qkv, o, weight, ctx.heads), None, None
        q, k, v = qkv.unbind()
        g = torch.zeros_like(o) if g_BND is None else split_heads(g_BND, ctx.heads)
        g = g if c_o is None else g + c_o
        total = dot(g, o)
        ds = torch.bmm(g, v.mT)
        if c_weight is None:
            ds.sub_(total).mul_(weight)
        else:
            ds = torch.addcmul(c_weight, weight, ds.sub_(total.add_(c_weight.sum(-1, keepdim=True))))
        grads = products(ds, k, q, weight, g, q.shape[-1] ** -0.5, c_qkv)
        return merge(grads, ctx.heads), None, None


class _AttendGrad(Function):
    """`attention_grad`, differentiable once more."""

    @staticmethod
    def forward(ctx: Any, g_BND: Tensor, qkv: Tensor, o: Tensor, weight: Tensor, heads: int) -> Tensor:
        q, k, v = qkv.unbind()
        g = split_heads(g_BND, heads)
        ds = torch.bmm(g, v.mT).sub_(dot(g, o)).mul_(weight)
        ctx.save_for_backward(g, qkv, o, weight, ds)
        ctx.heads = heads
        return merge(products(ds, k, q, weight, g, q.shape[-1] ** -0.5), heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        g, qkv, o, weight, ds = ctx.saved_tensors
        q, k, v = qkv.unbind()
        u, m, x = split(cotangent.contiguous(), ctx.heads).unbind()
        scale = q.shape[-1] ** -0.5
        t = torch.baddbmm(torch.bmm(q, m.mT), u, k.mT, beta=scale, alpha=scale)  # the cotangent of ds
        weighted = weight * t
        sums = weighted.sum(-1, keepdim=True)
        c_g = torch.bmm(weighted, v).baddbmm_(weight, x).addcmul_(sums, o, value=-1)
        c_weight = t.mul_(ds).addcmul_(weight, torch.bmm(g, x.mT))
        c_qkv = products(ds, m, u, weighted, g, scale)
        return merge_heads(c_g, ctx.heads), c_qkv, g * -sums, c_weight, None


def attend_saving(x: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Saved]:
    """What each cell mixes, [B, N, D], of queries, keys and values side by side [B, N, 3 D]; and what is saved."""
    differentiated = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    mixed_BND, *saved = (_Attend.apply if differentiated else attention)(x, bias, heads)
    return mixed_BND, tuple(saved)


def attend_input_gradient(g_BND: Tensor, saved: Saved, heads: int) -> Tensor:
    """From the gradient of what each cell mixes to that of queries, keys and values, [B, N, 3 D]."""
    qkv, o, weight = saved
    differentiated = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return (_AttendGrad.apply if differentiated else attention_grad)(g_BND, qkv, o, weight, heads)


class BidirectionalAttention(nn.Module):
    """Every cell attends to all cells but padding. [B, N, D] -> [B, N, D]"""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = Linear(width, 3 * width)
        self.output = Linear(width, width)

    def forward(self, x_BND: Tensor, bias: Tensor) -> Tensor:
        return self.forward_saving(x_BND, bias)[0]

    def forward_saving(self, x_BND: Tensor, bias: Tensor) -> tuple[Tensor, Saved]:
        """`forward`, and what its input gradient needs. bias: see `padding_bias`."""
        mixed_BND, saved = attend_saving(self.query_key_value(x_BND), bias, self.heads)
        return self.output(mixed_BND), saved

    def input_gradient(self, g_BND: Tensor, saved: Saved) -> Tensor:
        """From the gradient of the attention's output to that of x."""
        g_BND = self.output.input_gradient(g_BND)
        return self.query_key_value.input_gradient(attend_input_gradient(g_BND, saved, self.heads))
