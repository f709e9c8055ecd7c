"""Functions as wide as the vocabulary: embed a prediction, move it, compute its loss.

With 50,000 tokens nothing else needs as much memory. The graph of a walk would save a softmax, a log-softmax and a
gradient for each step. These functions save the prediction alone and recompute the rest in the backward pass, a few
rows at a time. Where a step starts from the distribution, that is saved instead: it is both embedded and moved, and
its gradient is computed from the two at once. The energy is differentiated at the embedding, so that these functions
are differentiated once only.

y: [N, V], N = B S. W: [V, D]. Matrix products are in W's type, so that autocast's choice is made once, by the caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from models.layers.linear import is_few_rows_no_grad, linear

ROWS, ELEMENTS = 256, 2**20  # a chunk of rows: at least ROWS, and more while they have at most ELEMENTS numbers
COLUMNS = 512  # a chunk of tokens, on a CPU: so much of a product with W^T stays in the cache until it is used
FEW = 64  # rows up to which all tokens are one chunk


def row_chunks(y: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same rows of y and of the others, a chunk at a time."""
    rows = max(ROWS, ELEMENTS // y.shape[-1])
    return zip(*(tensor.split(rows) for tensor in (y, *others)), strict=True)


def vocabulary_chunks(w: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same tokens of w [V, D] and the others [N, V], a chunk at a time; all at once on a GPU or for few rows."""
    size = COLUMNS if w.device.type == "cpu" and len(others[0]) > FEW else len(w)
    return zip(w.split(size), *(tensor.split(size, -1) for tensor in others), strict=True)


def matmul_into(out: Tensor, d: Tensor, w: Tensor) -> None:
    """out <- d W^T"""
    for w_chunk, out_chunk in vocabulary_chunks(w, out):
        if out_chunk.dtype == d.dtype:
            torch.mm(d, w_chunk.T, out=out_chunk)
        else:
            out_chunk.copy_(d @ w_chunk.T)


class _EmbedSoftmax(Function):
    """softmax(y) W, [N, D]"""

    @staticmethod
    def forward(ctx: Any, y: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(y, w)
        return torch.cat([row.softmax(-1).to(w.dtype) @ w for (row,) in row_chunks(y)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor]:
        y, w = ctx.saved_tensors
        dw = w.new_zeros(w.shape)  # by rows, however W lies: the products into it are faster
        dy = torch.empty_like(y) if ctx.needs_input_grad[0] else None
        for row, g_row, out in row_chunks(y, g, y if dy is None else dy):
            p = row.softmax(-1)
            dw.addmm_(p.to(w.dtype).T, g_row)
            if dy is not None:
                matmul_into(out, g_row, w)
                torch.ops.aten._softmax_backward_data.out(out, p, -1, p.dtype, grad_input=out)
        return dy, dw


class _SoftmaxAndEmbed(Function):
    """p = softmax(y), and p W, [N, D]"""

    @staticmethod
    def forward(ctx: Any, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        p = y.softmax(-1)
        ctx.save_for_backward(p, w)
        ctx.set_materialize_grads(False)
        return p, p.to(w.dtype) @ w

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_p: Tensor | None, g: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        p, w = ctx.saved_tensors
        dw = None if g is None else p.to(w.dtype).T @ g
        if not ctx.needs_input_grad[0]:
            return None, dw
        g_p = torch.zeros_like(p) if g_p is None else g_p
        dy = torch.empty_like(p)
        for w_chunk, before, after in vocabulary_chunks(w, g_p, dy):
            if g is None:
                after.copy_(before)
            else:
                torch.add(before, g @ w_chunk.T, out=after)
        torch.ops.aten._softmax_backward_data.out(dy, p, -1, p.dtype, grad_input=dy)
        return dy, dw


class _EmbedDistribution(Function):
    """p W, [N, D]"""

    @staticmethod
    def forward(ctx: Any, p: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(p, w)
        return p.to(w.dtype) @ w

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor]:
        p, w = ctx.saved_tensors
        dp = torch.empty_like(p) if ctx.needs_input_grad[0] else None
        if dp is not None:
            matmul_into(dp, g, w)
        return dp, p.to(w.dtype).T @ g


class _Move(Function):
    """y - d W^T, [N, V], and how long the rows of d W^T are, [N]"""

    @staticmethod
    def forward(ctx: Any, y: Tensor, d: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(d, w)
        moved, squares = torch.empty_like(y), y.new_zeros(len(y))
        for w_chunk, before, after in vocabulary_chunks(w, y, moved):
            step = d @ w_chunk.T
            torch.sub(before, step, out=after)
            squares += torch.linalg.vector_norm(step, dim=-1, dtype=y.dtype).square_()
        lengths = squares.sqrt_()
        ctx.mark_non_differentiable(lengths)
        return moved, lengths

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        d, w = ctx.saved_tensors
        low = g.to(w.dtype)
        needs_d, needs_w = ctx.needs_input_grad[1:]
        return g, (low @ w).neg_() if needs_d else None, low.T @ -d if needs_w else None


class _CrossEntropy(Function):
    """The mean of log sum exp(y) - y[target] over the targets that count."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, targets: Tensor, ignored: int) -> Tensor:
        ctx.ignored = ignored
        ctx.save_for_backward(y, targets)
        exact = torch.promote_types(y.dtype, torch.float32)  # at least: float64 stays as it is
        losses = [
            F.cross_entropy(row.to(exact), target, ignore_index=ignored, reduction="sum")
            for row, target in row_chunks(y, targets)
        ]
        return torch.stack(losses).sum() / (targets != ignored).sum().clamp(min=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        y, targets = ctx.saved_tensors
        counted = (targets != ctx.ignored).to(y.dtype)
        share = (counted * (g / counted.sum().clamp(min=1)))[:, None]
        dy = y.softmax(-1).mul_(share)
        return dy.scatter_add_(1, targets[:, None], -share), None, None


def product_type(x: Tensor) -> torch.dtype:
    """The type of matrix products: autocast's, where it is enabled."""
    device = x.device.type
    enabled = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if enabled else x.dtype


def embed_softmax(y_BSV: Tensor, embedding_VD: Tensor) -> Tensor:
    """The embedding of the distribution that y has as logits. [B, S, V], [V, D] -> [B, S, D]"""
    w_VD = embedding_VD.to(product_type(embedding_VD))
    if is_few_rows_no_grad(y_BSV):
        return linear(y_BSV.softmax(-1).to(w_VD.dtype), w_VD.T)
    return _EmbedSoftmax.apply(y_BSV.flatten(0, 1), w_VD).unflatten(0, y_BSV.shape[:2])


def softmax_and_embed(y_BSV: Tensor, embedding_VD: Tensor) -> tuple[Tensor, Tensor]:
    """The distribution that y has as logits, and its embedding. -> [B, S, V], [B, S, D]"""
    w_VD = embedding_VD.to(product_type(embedding_VD))
    p, z = _SoftmaxAndEmbed.apply(y_BSV.flatten(0, 1), w_VD)
    return p.unflatten(0, y_BSV.shape[:2]), z.unflatten(0, y_BSV.shape[:2])


def embed_distribution(p_BSV: Tensor, embedding_VD: Tensor) -> Tensor:
    """The embedding of a distribution itself. [B, S, V], [V, D] -> [B, S, D]"""
    w_VD = embedding_VD.to(product_type(embedding_VD))
    return _EmbedDistribution.apply(p_BSV.flatten(0, 1), w_VD).unflatten(0, p_BSV.shape[:2])


def move(y_BSV: Tensor, step_BSD: Tensor, embedding_VD: Tensor) -> tuple[Tensor, Tensor]:
    """A step of the embedding: y - step W^T, and the length of that move. -> [B, S, V], [B, S]"""
    w_VD = embedding_VD.to(product_type(embedding_VD))
    moved, lengths = _Move.apply(y_BSV.flatten(0, 1), step_BSD.flatten(0, 1).to(w_VD.dtype), w_VD)
    return moved.unflatten(0, y_BSV.shape[:2]), lengths.unflatten(0, y_BSV.shape[:2])


def cross_entropy(y_BSV: Tensor, targets_BS: Tensor, ignored: int) -> Tensor:
    """The mean loss of logits over all targets but the ignored ones."""
    return _CrossEntropy.apply(y_BSV.flatten(0, 1), targets_BS.flatten(), ignored)
