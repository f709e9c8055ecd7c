"""Functions as wide as the vocabulary: the same numbers as plain operations, for less memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn import functional as F

from models.layers.linear import FEW
from models.layers.vocabulary import (
    COLUMNS,
    ELEMENTS,
    ROWS,
    cross_entropy,
    embed_distribution,
    embed_softmax,
    move,
    softmax_and_embed,
)
from models.spaces import UpdateRule, Vocabulary
from models.walk import Step, walk

B, S, V, D = 2, 3, 7, 4


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).requires_grad_()


def test_embed() -> None:
    y, w = draw(B, S, V), draw(V, D)
    torch.testing.assert_close(embed_softmax(y, w), y.softmax(-1) @ w)
    assert gradcheck(embed_softmax, (y, w))


def test_mix() -> None:
    p, w = draw(B, S, V), draw(V, D)
    torch.testing.assert_close(embed_distribution(p, w), p @ w)
    assert gradcheck(embed_distribution, (p, w))


def test_distribute() -> None:
    y, w = draw(B, S, V), draw(V, D)
    p, z = softmax_and_embed(y, w)
    torch.testing.assert_close(p, y.softmax(-1))
    torch.testing.assert_close(z, y.softmax(-1) @ w)
    assert gradcheck(softmax_and_embed, (y, w))
    for one in range(2):  # a loss may look at one of them alone
        assert gradcheck(lambda y, w, one=one: softmax_and_embed(y, w)[one], (y, w))


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


Form = Callable[..., tuple[Tensor, ...]]
FORMS: dict[str, tuple[Form, Form, str]] = {  # ours, the same by plain operations, and the inputs
    "embed_softmax": (lambda y, w: (embed_softmax(y, w),), lambda y, w: (y.softmax(-1) @ w,), "yw"),
    "embed_distribution": (lambda y, w: (embed_distribution(y, w),), lambda y, w: (y @ w,), "yw"),
    "softmax_and_embed": (softmax_and_embed, lambda y, w: (y.softmax(-1), y.softmax(-1) @ w), "yw"),
    "move": (lambda y, d, w: move(y, d, w)[:1], lambda y, d, w: (y - d @ w.T,), "ydw"),
    "cross_entropy": (
        lambda y: (cross_entropy(y, y.detach().argmin(-1), 6),),
        lambda y: (F.cross_entropy(y.flatten(0, 1), y.detach().argmin(-1).flatten(), ignore_index=6),),
        "y",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_several_chunks_of_rows_and_columns_give_the_same(name: str) -> None:
    """Larger than a chunk both ways, and the last chunk smaller than the others."""
    rows, columns = ROWS // 2 + 20, ELEMENTS // ROWS + COLUMNS // 2
    inputs = {"y": draw(2, rows, columns), "d": draw(2, rows, D), "w": draw(columns, D)}
    ours, plain, names = FORMS[name]
    tensors = [inputs[letter] for letter in names]
    results = []
    for form in (ours, plain):
        outputs = form(*tensors)
        loss = torch.stack([output.sin().sum() for output in outputs]).sum()
        results.append((*outputs, *torch.autograd.grad(loss, tensors)))
    for result, expected in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-11)


def test_a_batch_without_targets_has_no_loss() -> None:
    y = draw(B, S, V)
    loss = cross_entropy(y, torch.full((B, S), 6), 6)
    (gradient,) = torch.autograd.grad(loss, y)
    assert loss == 0 and not gradient.any()


class Table:
    """A network that is its embedding alone."""

    def __init__(self, w: Tensor) -> None:
        self.prediction_embedding = w

    def to_vocabulary(self, d_BSD: Tensor) -> Tensor:
        return d_BSD @ self.prediction_embedding.T


def energy(z: Tensor, landscape: int, create_graph: bool) -> tuple[Tensor, Tensor]:
    return z.sum(-1), z * z


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize(("rule", "wide"), [(UpdateRule(), 1), (UpdateRule(from_probabilities=True), 2)])
def test_what_a_step_holds_as_wide_as_the_vocabulary(rule: UpdateRule, wide: int, detach: bool) -> None:
    """What the graph of a walk saves: the start, and each step's prediction; a distribution only to start from."""
    y, w, targets, count = draw(B, S, V), draw(V, D), torch.zeros(B, S, dtype=torch.long), 3
    saved: set[int] = set()

    def save(tensor: Tensor) -> Tensor:
        if tensor.shape[-1:] == (V,):
            saved.add(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        size = torch.ones((), dtype=torch.float64, requires_grad=True)
        steps = [Step(0, size)] * count
        walked = list(walk(energy, Vocabulary(Table(w), rule), y, steps, differentiable=True, detach=detach))
        loss = torch.stack([cross_entropy(step.y, targets, V - 1) for step in walked]).sum()
    loss.backward()
    assert 0 < len(saved) <= wide * count + 1


@pytest.mark.parametrize("length", [FEW // B - 1, FEW // B + 1])
@pytest.mark.parametrize("rule", [UpdateRule(), UpdateRule(from_probabilities=True), UpdateRule(entropy=True)])
@pytest.mark.parametrize("size_of_positions", [False, True])
def test_a_step_is_that_of_plain_operations(size_of_positions: bool, rule: UpdateRule, length: int) -> None:
    """For few rows too, whose products take another form."""
    y, w = draw(B, length, V).detach(), draw(V, D).detach()
    size = draw(B, length, 1).detach().abs() + 0.1 if size_of_positions else torch.tensor(3.0, dtype=torch.float64)
    (walked,) = walk(energy, Vocabulary(Table(w.requires_grad_()), rule), y, [Step(0, size)], differentiable=False)
    p = y.softmax(-1)
    z = p @ w.detach()
    slope = (z * z) @ w.detach().T
    start = p if rule.from_probabilities else y - size * y if rule.entropy else y
    torch.testing.assert_close(walked.y, start - size * slope)
    torch.testing.assert_close(walked.energy, z.sum(-1) + ((p * p.log()).sum(-1) if rule.entropy else 0))
    torch.testing.assert_close(walked.gradient_norm, slope.norm(dim=-1).mean())
    assert not walked.y.requires_grad and not walked.energy.requires_grad
