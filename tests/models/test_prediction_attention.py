"""Attention of predictions by its formulas and by plain operations: values and derivatives, in one chunk and in two."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

from models.layers.attention import document_mask
from models.layers.prediction_attention import CHUNK, attend, chunks

B, H, K = 2, 2, 4
SHORT, LONG = 5, CHUNK + 6  # one chunk of queries, and two


def plainly(bias: Tensor, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One softmax over all observed positions and oneself."""
    scores = torch.cat([q @ keys.mT + bias * 2, (q * k).sum(-1, keepdim=True)], -1) / 2
    weights = scores.softmax(-1)
    return weights[..., :-1] @ values + weights[..., -1:] * v


def by_formula(bias: Tensor, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return attend(q, k, v, F.pad(keys, (0, 0, 0, 1)), F.pad(values, (0, 0, 0, 1)), F.pad(bias, (0, 1)))


def inputs(time_token: bool, length: int = SHORT) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, H, length, K)] * 3 + [(B, H, length + time_token, K)] * 2
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    tokens_BS = torch.tensor([[9, 1, 2, 9, 3], [9, 1, 2, 3, 4]]).repeat(1, length // SHORT)  # 9 begins a document
    sees = document_mask(tokens_BS, 9)
    bias = torch.zeros(sees.shape, dtype=torch.float64).masked_fill(~sees, float("-inf"))
    return tensors, F.pad(bias, (1, 0)) if time_token else bias


@pytest.mark.parametrize("time_token", [False, True])
def test_values_and_derivatives(time_token: bool) -> None:
    tensors, bias = inputs(time_token)
    torch.testing.assert_close(by_formula(bias, *tensors), plainly(bias, *tensors))
    assert gradcheck(partial(by_formula, bias), tensors)
    assert gradgradcheck(partial(by_formula, bias), tensors)


@pytest.mark.parametrize("length", [SHORT, LONG])
@pytest.mark.parametrize("time_token", [False, True])
def test_a_loss_on_the_slope_reaches_everything(time_token: bool, length: int) -> None:
    """As training does: a gradient along the predictions, a loss on it and on the result, one backward for all."""
    results = []
    for form in (plainly, by_formula):
        tensors, bias = inputs(time_token, length)
        mixed = form(bias, *tensors)
        slopes = torch.autograd.grad(mixed.sin().sum(), tensors[:3], create_graph=True)
        loss = mixed.square().sum() + sum((slope * slope.cos()).sum() for slope in slopes)
        results.append(
            (
                mixed.detach(),
                *torch.autograd.grad(mixed.sum(), tensors, retain_graph=True),
                *torch.autograd.grad(loss, tensors),
            )
        )
    for expected, result in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)


def test_chunks_cover_every_query_and_what_it_may_see() -> None:
    for length, ahead in ((1, 0), (5, 0), (5, 1), (LONG, 0), (LONG, 1), (20 * CHUNK, 1)):
        slices = list(chunks(length, ahead + length + 1))
        assert [row for rows, _ in slices for row in range(rows.start, rows.stop)] == list(range(length))
        assert all(seen.stop == ahead + rows.stop + 1 for rows, seen in slices)
    assert [len(list(chunks(length, length + 1))) for length in (SHORT, LONG, 20 * CHUNK)] == [1, 2, 8]
