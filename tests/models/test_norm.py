"""The written-out derivatives are the derivatives."""

from __future__ import annotations

import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call
from torch.nn import functional as F

from models.layers.norm import RMSNorm
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
