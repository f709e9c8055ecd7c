"""Layers against plain operations, and their derivatives, which are written out, against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call
from torch.nn import functional as F

from models.layers.feed_forward import FeedForward, _SwiGLU
from models.layers.norm import RMSNorm
from models.layers.rope import rotate, rotations, split_heads
from tests.models.small import values


def normed(x: torch.Tensor, scale: torch.Tensor, eps: float) -> torch.Tensor:
    return functional_call(RMSNorm(len(scale), eps), {"scale": scale}, x)


def test_normalise() -> None:
    x, scale = values(3, 4, 6), values(6)
    torch.testing.assert_close(normed(x, scale, 1e-5), F.rms_norm(x, (6,), scale, eps=1e-5))
    assert gradcheck(lambda x, scale: normed(x, scale, 1e-2), (x, scale))
    assert gradgradcheck(lambda x, scale: normed(x, scale, 1e-2), (x, scale))


def test_small_numbers_stay_finite() -> None:
    x = torch.zeros(2, 4, requires_grad=True)
    normed(x, torch.ones(4), 1e-5).sum().backward()
    assert x.grad is not None and bool(x.grad.isfinite().all())


def test_swiglu() -> None:
    x = values(3, 4, 6)
    a, b = x.chunk(2, -1)
    torch.testing.assert_close(_SwiGLU.apply(x), F.silu(a) * b)
    assert gradcheck(_SwiGLU.apply, x) and gradgradcheck(_SwiGLU.apply, x)


@pytest.mark.parametrize("activation", ["silu", "gelu", "relu", "elu"])
def test_a_feed_forward_layer_may_be_differentiated_twice(activation: str) -> None:
    torch.manual_seed(0)
    layer = FeedForward(3, 4, activation).double()
    assert gradgradcheck(layer, values(2, 3))


@pytest.mark.parametrize("parts", [2, 3])
def test_heads_are_split_and_rotated(parts: int) -> None:
    x, table = values(2, 5, parts * 2 * 4), rotations(5, 4)
    pieces = x.unflatten(-1, (parts, 2, 4)).permute(2, 0, 3, 1, 4)
    expected = [*(rotate(piece, table) for piece in pieces[:-1]), pieces[-1]]
    heads = split_heads(x, table, parts, 2)
    for piece, other in zip(heads, expected, strict=True):
        torch.testing.assert_close(piece, other)
        assert piece.is_contiguous()

    def both(x: torch.Tensor) -> torch.Tensor:
        return torch.stack(split_heads(x, table, parts, 2)).sin()

    assert gradcheck(both, x) and gradgradcheck(both, x)
