"""What is as wide as the vocabulary: the same numbers as plain operations, for less memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn import functional as F

from models.descent import Rule, Step, descend
from models.layers import vocabulary
from models.layers.vocabulary import cross_entropy, distribute, embed, mix, move

B, S, V, D = 2, 3, 7, 4


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that rows and columns come in several parts, the last one smaller."""
    monkeypatch.setattr(vocabulary, "ROWS", 4)
    monkeypatch.setattr(vocabulary, "ELEMENTS", 1)
    monkeypatch.setattr(vocabulary, "COLUMNS", 3)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).requires_grad_()


def test_embed() -> None:
    y, w = draw(B, S, V), draw(V, D)
    torch.testing.assert_close(embed(y, w), y.softmax(-1) @ w)
    assert gradcheck(embed, (y, w))


def test_mix() -> None:
    p, w = draw(B, S, V), draw(V, D)
    torch.testing.assert_close(mix(p, w), p @ w)
    assert gradcheck(mix, (p, w))


def test_distribute() -> None:
    y, w = draw(B, S, V), draw(V, D)
    p, z = distribute(y, w)
    torch.testing.assert_close(p, y.softmax(-1))
    torch.testing.assert_close(z, y.softmax(-1) @ w)
    assert gradcheck(distribute, (y, w))
    for one in range(2):  # a loss may look at one of them alone
        assert gradcheck(lambda y, w, one=one: distribute(y, w)[one], (y, w))


def test_move() -> None:
    y, d, w = draw(B, S, V), draw(B, S, D), draw(V, D)
    moved, lengths = move(y, d, w)
    torch.testing.assert_close(moved, y - d @ w.T)
    torch.testing.assert_close(lengths, (d @ w.T).norm(dim=-1))
    assert not lengths.requires_grad
    assert gradcheck(lambda y, d, w: move(y, d, w)[0], (y, d, w))


def test_cross_entropy() -> None:
    y, targets = draw(B, S, V), torch.tensor([[0, 6, 2], [6, 6, 3]])
    expected = F.cross_entropy(y.flatten(0, 1), targets.flatten(), ignore_index=6)
    torch.testing.assert_close(cross_entropy(y, targets, 6), expected)
    assert gradcheck(lambda y: cross_entropy(y, targets, 6), y)


def test_a_batch_without_targets_has_no_loss() -> None:
    y = draw(B, S, V)
    loss = cross_entropy(y, torch.full((B, S), 6), 6)
    (gradient,) = torch.autograd.grad(loss, y)
    assert loss == 0 and not gradient.any()


@pytest.mark.parametrize(("rule", "wide"), [(Rule(), 1), (Rule(detach=True), 1), (Rule(from_probabilities=True), 2)])
def test_what_a_step_holds_as_wide_as_the_vocabulary(rule: Rule, wide: int) -> None:
    """What the graph of a walk keeps: the start, and each step's prediction; a distribution only to start from."""
    y, w, targets, count = draw(B, S, V), draw(V, D), torch.zeros(B, S, dtype=torch.long), 3
    held: set[int] = set()

    def keep(tensor: Tensor) -> Tensor:
        if tensor.shape[-1:] == (V,):
            held.add(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        size = torch.ones((), dtype=torch.float64, requires_grad=True)
        walk = descend(lambda z, *_: (z.sum(-1), z * z), w, y, [Step(0, size)] * count, rule, differentiable=True)
        loss = sum(cross_entropy(prediction, targets, V - 1) for prediction in walk.predictions)
    assert isinstance(loss, Tensor)
    loss.backward()
    assert 0 < len(held) <= wide * count + 1


@pytest.mark.parametrize("size", [torch.tensor(3.0), torch.rand(B, S, 1).add(0.1)], ids=["one size", "of positions"])
def test_a_walk_s_gradient_norm_is_that_of_the_wide_slope(size: Tensor) -> None:
    y, w = draw(B, S, V), draw(V, D)
    walk = descend(lambda z, *_: (z.sum(-1), z * z), w, y, [Step(0, size)], Rule(), differentiable=False)
    z = y.softmax(-1) @ w
    torch.testing.assert_close(walk.gradient_norms[0].double(), ((z * z) @ w.T).norm(dim=-1).mean(), rtol=1e-5, atol=0)
