"""The other written-out derivatives, and formulas compiled or not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.exc import TorchDynamoException
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

from models.layers import fusing
from models.layers.feed_forward import FeedForward, _Swish
from models.layers.rope import rotate, rotations, split_heads
from tests.models.test_norm import values


def test_swish() -> None:
    x = values(3, 4, 6)
    a, b = x.chunk(2, -1)
    torch.testing.assert_close(_Swish.apply(x), F.silu(a) * b)
    assert gradcheck(_Swish.apply, x) and gradgradcheck(_Swish.apply, x)


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
    found = split_heads(x, table, parts, 2)
    for piece, other in zip(found, expected, strict=True):
        torch.testing.assert_close(piece, other)
        assert piece.is_contiguous()

    def both(x: torch.Tensor) -> torch.Tensor:
        return torch.stack(split_heads(x, table, parts, 2)).sin()

    assert gradcheck(both, x) and gradgradcheck(both, x)


@pytest.fixture
def compiling() -> Iterator[None]:
    fusing.enabled = True
    yield
    fusing.enabled = False


def test_a_compiled_formula_gives_the_same(compiling: None) -> None:
    formula = fusing.fused(lambda x, y: (x * y).sin() + x)
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    torch.testing.assert_close(formula(x, y), (x * y).sin() + x)
    assert fusing.enabled


def test_what_does_not_compile_goes_on_with_one_warning(compiling: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise TorchDynamoException("no C++ compiler found\nand a long story")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: refuse)
    formula = fusing.fused(torch.add)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert formula(torch.ones(()), torch.ones(())) == 2 and formula(torch.ones(()), torch.ones(())) == 2
    assert [str(warning.message) for warning in caught] == [
        "--compile_model: going on uncompiled, add failed: no C++ compiler found"
    ]


def test_what_fails_while_it_runs_is_not_hidden(compiling: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A formula may change its arguments: doing it again after half of it is done would be silently wrong."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        fusing.fused(torch.add)(torch.ones(()), torch.ones(()))
