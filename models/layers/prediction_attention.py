"""Attention of predictions to what was observed and to themselves, differentiable twice.

    A, w = softmax([scale * q K^T + bias, scale * q.k])      weights of the observed positions, and of itself
    o    = A V + w v

The fused kernels have no second derivative, and autograd builds one from some thirty passes over the scores. Here the
formulas are written out: ten passes, and only over the scores that causality leaves (queries go in chunks, each against
the keys up to its end). `tests/models/test_prediction_attention.py` compares them with autograd.

Names: g, u, m, x are cotangents of o, dq, dk, dv; ds is the gradient of a score, ds_own that of a prediction's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from models.layers.analytic import Saved
from models.layers.norm import dot

CHUNK = 64  # queries at least; a long row has 8 chunks


def chunks(length: int, observed: int) -> Iterator[tuple[slice, slice]]:
    """Rows of queries, and the columns they need: the positions they may see, and one more for their own score."""
    time_tokens = observed - 1 - length  # 1 where a time token stands before the first position
    size = max(CHUNK, math.ceil(length / 8))
    for start in range(0, length, size):
        end = min(start + size, length)
        yield slice(start, end), slice(0, time_tokens + end + 1)


def softmax_with_self(scores: Tensor, bias: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax of all scores: A, with 0 in the last column, and w, which was there."""
    scores = scores.unflatten(0, (len(bias), -1)).add_(bias).flatten(0, 1)
    scores[..., -1:] = own
    weight = scores.softmax(-1, dtype=scores.dtype)  # autocast would choose another
    w = weight[..., -1:].clone()
    weight[..., -1] = 0
    return weight, w


def self_score_grad(g: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """g.o, the gradient ds_own of the own score, and what it adds to dq, dk and dv."""
    total = dot(g, o)
    ds_own = (dot(g, v) - total) * w
    scaled = ds_own * q.shape[-1] ** -0.5
    return total, ds_own, scaled * k, scaled * q, w * g


def score_grad(d_weight: Tensor, total: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the scores: A (dA - g.o), in place of dA."""
    return d_weight.sub_(total).mul_(weight)


def score_grad_backward(t: Tensor, weight: Tensor, ds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of a cotangent t of ds: A t, its sums over a row, and t ds, the cotangent of log A."""
    weighted = weight * t
    return weighted, weighted.sum(-1, keepdim=True), t.mul_(ds)


def add_score_grad(c_weight: Tensor, d_weight: Tensor, total: Tensor, weight: Tensor) -> Tensor:
    """`score_grad`, added to c_weight in place."""
    return c_weight.addcmul_(weight, d_weight.sub_(total))


def attention_eager(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """o [N, S, K], w [N, S, 1] and the chunks of A. N = B H."""
    scale = q.shape[-1] ** -0.5
    own, mixed, own_weights, weights = dot(q, k).mul_(scale), [], [], []
    for rows, seen in chunks(q.shape[1], keys.shape[1]):
        scores = scaled_product(part(q, rows), part(keys, seen), scale)
        weight, w = softmax_with_self(scores, bias[:, :, rows, seen], part(own, rows))
        mixed.append(torch.bmm(weight, part(values, seen)))
        own_weights.append(w)
        weights.append(weight)
    w = joined(own_weights)
    return joined(mixed).addcmul_(w, v), w, weights


def attention_eager_grad(
    g: Tensor, inputs: Sequence[Tensor], o: Tensor, w: Tensor, weights: Sequence[Tensor]
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor, list[Tensor]]:
    """(dq, dk, dv) for a cotangent g of o; and the gradients of the own score and of the chunks of scores.

    inputs: q, k, v, keys and values.
    """
    q, k, v, keys, values = inputs
    total, ds_own, dq, dk, dv = self_score_grad(g, q, k, v, o, w)
    grads = []
    for (rows, seen), weight in zip(chunks(q.shape[1], keys.shape[1]), weights, strict=True):
        ds = score_grad(torch.bmm(part(g, rows), part(values, seen).mT), part(total, rows), weight)
        add_product(part(dq, rows), ds, part(keys, seen), q.shape[-1] ** -0.5)
        grads.append(ds)
    return (dq, dk, dv), ds_own, grads


def part(x: Tensor, rows: slice) -> Tensor:
    """These rows of every head; a single token's attention is one chunk, and the views would be a third of its time."""
    return x if rows.stop - rows.start == x.shape[1] else x[:, rows]


def joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def attention_compiled(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """`attention_eager`, for the compiler: nothing in place, and A has no column for the own score."""
    scale = q.shape[-1] ** -0.5
    own, mixed, own_weights, weights = (q * k).sum(-1, keepdim=True) * scale, [], [], []
    for rows, seen in chunks(q.shape[1], keys.shape[1]):
        seen = slice(0, seen.stop - 1)
        scores = (torch.bmm(q[:, rows], keys[:, seen].mT) * scale).unflatten(0, (len(bias), -1))
        scores = (scores + bias[:, :, rows, seen]).flatten(0, 1)
        largest = torch.maximum(scores.amax(-1, keepdim=True), own[:, rows])
        weight, w = (scores - largest).exp(), (own[:, rows] - largest).exp()
        total = weight.sum(-1, keepdim=True) + w
        weight, w = weight / total, w / total
        mixed.append(torch.bmm(weight, values[:, seen]) + w * v[:, rows])
        own_weights.append(w)
        weights.append(weight)
    return torch.cat(mixed, 1), torch.cat(own_weights, 1), weights


def attention_compiled_grad(
    g: Tensor, inputs: Sequence[Tensor], o: Tensor, w: Tensor, weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) of `attention_compiled`."""
    q, k, v, keys, values = inputs
    scale = q.shape[-1] ** -0.5
    total = (g * o).sum(-1, keepdim=True)
    ds_own = ((g * v).sum(-1, keepdim=True) - total) * w * scale
    dq = []
    for (rows, seen), weight in zip(chunks(q.shape[1], keys.shape[1]), weights, strict=True):
        seen = slice(0, seen.stop - 1)
        ds = weight * (torch.bmm(g[:, rows], values[:, seen].mT) - total[:, rows]) * scale
        dq.append(torch.bmm(ds, keys[:, seen]))
    return torch.cat(dq, 1) + ds_own * k, ds_own * q, w * g


class _Attend(Function):
    """`attention_eager`, differentiable twice."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, bias: Tensor
    ) -> tuple[Tensor, ...]:
        o, w, weights = attention_eager(q, k, v, keys, values, bias)
        ctx.save_for_backward(q, k, v, keys, values, o, w, *weights)
        ctx.set_materialize_grads(False)
        return o, w, *weights

    @staticmethod
    def backward(
        ctx: Any, g: Tensor | None, c_w: Tensor | None, *c_weights: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """c_w and c_weights: what `_AttendGrad.backward` left, with respect to log w and log A."""
        q, k, v, keys, values, o, w, *weights = ctx.saved_tensors
        g = torch.zeros_like(o) if g is None else g
        if torch.is_grad_enabled():  # a gradient that is differentiated again: one along the predictions alone
            return *_AttendGrad.apply(g, q, k, v, keys, values, o, w, *weights), None, None, None
        scale = q.shape[-1] ** -0.5
        total, _, dq, dk, dv = self_score_grad(g, q, k, v, o, w)
        if c_w is not None:
            extra = c_w.clone()
            for (rows, _), c_weight in zip(chunks(q.shape[1], keys.shape[1]), c_weights, strict=True):
                assert c_weight is not None
                extra[:, rows] += c_weight.sum(-1, keepdim=True)
            total, more = total + extra, (c_w - w * extra) * scale
            dq, dk = dq.addcmul_(more, k), dk.addcmul_(more, q)
        d_keys, d_values = (torch.zeros_like(keys) if needed else None for needed in ctx.needs_input_grad[3:5])
        for (rows, seen), weight, c_weight in zip(chunks(q.shape[1], keys.shape[1]), weights, c_weights, strict=True):
            d_weight = g[:, rows] @ values[:, seen].mT
            if c_weight is None:
                ds = score_grad(d_weight, total[:, rows], weight)
            else:
                ds = add_score_grad(c_weight, d_weight, total[:, rows], weight)
            add_product(dq[:, rows], ds, keys[:, seen], scale)
            if d_keys is not None:
                add_product(d_keys[:, seen], ds.mT, q[:, rows], scale)
            if d_values is not None:
                add_product(d_values[:, seen], weight.mT, g[:, rows])
        return dq, dk, dv, d_keys, d_values, None


class _AttendGrad(Function):
    """`attention_eager_grad`, differentiable once more."""

    @staticmethod
    def forward(
        ctx: Any,
        g: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keys: Tensor,
        values: Tensor,
        o: Tensor,
        w: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        (dq, dk, dv), ds_own, grads = attention_eager_grad(g, (q, k, v, keys, values), o, w, weights)
        ctx.save_for_backward(g, q, k, v, keys, values, o, w, ds_own, *weights, *grads)
        return dq, dk, dv

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor, m: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        g, q, k, v, keys, values, o, w, ds_own, *rest = ctx.saved_tensors
        weights, grads = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        scale = q.shape[-1] ** -0.5
        u = u * scale
        t_own = dot(u, k) + scale * dot(m, q)
        share = w * t_own
        total = share.clone()
        c_g, d_keys, d_values, c_weights = share * v, torch.zeros_like(keys), torch.zeros_like(values), []
        for (rows, seen), weight, ds in zip(chunks(q.shape[1], keys.shape[1]), weights, grads, strict=True):
            weighted, sums, c_weight = score_grad_backward(u[:, rows] @ keys[:, seen].mT, weight, ds)
            total[:, rows] += sums
            add_product(c_g[:, rows], weighted, values[:, seen])
            add_product(d_values[:, seen], weighted.mT, g[:, rows])
            add_product(d_keys[:, seen], ds.mT, u[:, rows])
            c_weights.append(c_weight)
        c_g.addcmul_(total, o, value=-1).addcmul_(w, x)
        c_w = t_own * ds_own + w * dot(x, g)
        return c_g, (scale * ds_own) * m, ds_own * u, share * g, d_keys, d_values, -total * g, c_w, *c_weights


def scaled_product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """scale a b^T in one pass. [N, S, K], [N, O, K] -> [N, S, O]"""
    return torch.baddbmm(a.new_empty(()), a, b.mT, beta=0, alpha=scale)


def add_product(into: Tensor, a: Tensor, b: Tensor, scale: float = 1.0) -> None:
    into.add_(a @ b, alpha=scale)  # baddbmm_ into a slice would multiply one pair of matrices after the other


def attend_saving(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> tuple[Tensor, Saved]:
    """Each prediction's mixture of observed values and its own, and what the gradient by q, k and v needs.

    q, k, v: of the predictions, [B, H, S, K]. keys, values: of the observed stream, [B, H, O+1, K], the last row empty:
    the place of a prediction's own score. bias: 0 or -inf, [B or 1, 1, S, O+1].
    A gradient taken with create_graph=True is one along q, k and v; keys and values get theirs from the outer backward.
    """
    heads, bias = q.shape[:2], bias.expand(len(q), -1, -1, -1)
    q, k, v, keys, values = (x.flatten(0, 1) for x in (q, k, v, keys, values))
    if torch.compiler.is_compiling():
        o, w, weights = attention_compiled(q, k, v, keys, values, bias)
    elif torch.is_grad_enabled():
        o, w, *weights = _Attend.apply(q, k, v, keys, values, bias)
    else:
        o, w, weights = attention_eager(q, k, v, keys, values, bias)
    return o.unflatten(0, heads), (q, k, v, o, w, weights)


def attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """`attend_saving` without what is saved."""
    return attend_saving(q, k, v, keys, values, bias)[0]


def attend_input_gradient(g: Tensor, saved: Saved, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
    """From the gradient of what `attend` gives to those of q, k and v."""
    q, k, v, o, w, weights = saved
    inputs = (q, k, v, keys.flatten(0, 1), values.flatten(0, 1))
    grads: tuple[Tensor, ...]
    if torch.compiler.is_compiling():
        grads = attention_compiled_grad(g.flatten(0, 1), inputs, o, w, weights)
    elif torch.is_grad_enabled():
        grads = _AttendGrad.apply(g.flatten(0, 1), *inputs, o, w, *weights)
    else:
        grads, _, _ = attention_eager_grad(g.flatten(0, 1), inputs, o, w, weights)
    return tuple(x.unflatten(0, g.shape[:2]) for x in grads)
