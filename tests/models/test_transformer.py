"""Transformer++ against its slow version, and what must not leak into what."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from models.language import LoopedLM
from models.layers.rope import rotate, rotations
from models.transformer import LoopedTransformer, Transformer, TransformerShape
from tests.reference.transformer import logits_of_row
from training.cost import batch_costs

SHAPE = TransformerShape(
    vocab_size=11, context_length=9, layers=2, width=8, heads=2, hidden=12, tied=False, separator_id=10
)


def model_of(shape: TransformerShape = SHAPE, **options: bool) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(shape, **options).double()
    model.rotations = rotations(shape.context_length, shape.width // shape.heads)
    for parameter in model.parameters():  # norms too, so that their scales are tested
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def tokens_of(rows: int = 3) -> torch.Tensor:
    return torch.randint(0, 11, (rows, 9), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("separator_id", [10, None])
def test_equals_the_slow_version_with_gradients(separator_id: int | None) -> None:
    model = model_of(TransformerShape(**{**SHAPE.__dict__, "separator_id": separator_id}))
    tokens = tokens_of()
    tokens[0, 4] = 10
    fast = model(tokens)
    slow = torch.stack([logits_of_row(model, row.tolist()) for row in tokens])
    torch.testing.assert_close(fast, slow, atol=1e-10, rtol=0)
    parameters = list(model.parameters())
    for a, b in zip(
        torch.autograd.grad(fast.square().sum(), parameters),
        torch.autograd.grad(slow.square().sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)


def test_nothing_leaks_from_later_tokens_or_other_documents() -> None:
    model, tokens = model_of(), tokens_of(1)
    tokens[0] = torch.tensor([10, 1, 2, 3, 10, 4, 5, 6, 7])
    before = model(tokens)
    later, other = tokens.clone(), tokens.clone()
    later[0, 6] = 9
    assert torch.equal(model(later)[0, :6], before[0, :6])
    other[0, 2] = 9
    assert torch.equal(model(other)[0, 4:], before[0, 4:])
    assert not torch.equal(model(other)[0, 3], before[0, 3])


def test_a_row_does_not_depend_on_the_others() -> None:
    model, tokens = model_of(), tokens_of()
    torch.testing.assert_close(model(tokens)[1:2], model(tokens[1:2]), atol=1e-12, rtol=0)


def test_rotation_depends_on_distance_only() -> None:
    table = rotations(32, 8)
    q, k = torch.randn(2, 8, dtype=torch.float64)

    def score(i: int, j: int) -> torch.Tensor:
        return rotate(q[None], table[i : i + 1])[0] @ rotate(k[None], table[j : j + 1])[0]

    torch.testing.assert_close(score(5, 2), score(25, 22))
    assert not torch.isclose(score(5, 2), score(5, 3))


def test_gradient_checkpointing_changes_nothing() -> None:
    tokens = tokens_of()
    plain, saving = model_of(), model_of(gradient_checkpointing=True)
    for model in (plain, saving):
        model(tokens).square().sum().backward()
    for a, b in zip(plain.parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-12, rtol=0)


def test_tied_head_is_one_parameter() -> None:
    tied = Transformer(TransformerShape(**{**SHAPE.__dict__, "tied": True}))
    untied = Transformer(SHAPE)
    assert tied.head.weight is tied.embedding.weight
    counts = [sum(p.numel() for p in model.parameters()) for model in (tied, untied)]
    assert counts[1] - counts[0] == 11 * 8


@pytest.mark.parametrize("method", ["xavier", "he"])
def test_initial_logits_are_of_order_one(method: str) -> None:
    torch.manual_seed(0)
    shape = TransformerShape(258, 64, 12, 384, 6, 384, tied=True, separator_id=256, init_method=method)
    tokens = torch.randint(0, 258, (2, 65))
    model = Transformer(shape)
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert 5 < loss < 7.5, "a fresh model is near the uniform guess, ln 258 = 5.55"


def test_bfloat16_agrees_with_float32() -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerShape(50, 32, 2, 64, 2, 64, separator_id=49))
    tokens = torch.randint(0, 50, (4, 32))
    full = model(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(tokens)
    assert half.dtype == torch.bfloat16
    assert (half.float() - full).abs().max() < 0.05 * full.abs().max()


def looped_of(loops: int) -> LoopedTransformer:
    torch.manual_seed(0)
    model = LoopedTransformer(SHAPE, loops).double()
    model.rotations = rotations(SHAPE.context_length, SHAPE.width // SHAPE.heads)
    return model


def test_one_loop_is_the_plain_transformer_and_each_further_one_adds_the_input_again() -> None:
    tokens, looped = tokens_of(), looped_of(3)
    plain = Transformer(SHAPE).double()
    plain.rotations = looped.rotations
    plain.load_state_dict(looped.state_dict())  # the loops share their weights
    one, two, three = (plain.head(plain.norm(state)) for state in looped.states_by_loop(tokens, 3))
    assert torch.equal(one, plain(tokens)) and torch.equal(three, looped(tokens))
    x, places = plain.embedding(tokens), plain.places(tokens)
    again = plain.through_blocks(plain.norm(plain.through_blocks(x, *places)) + x, *places)
    assert torch.equal(two, plain.head(plain.norm(again))) and not torch.allclose(two, one)


def test_a_looped_model_draws_its_loops_and_counts_what_they_cost() -> None:
    model = LoopedLM(looped_of(4), 11, 10, range(2, 5))
    batch = {"input_ids": tokens_of()}
    torch.manual_seed(0)
    losses = [(model.training_step(batch, 0), model.measured["steps"].item()) for _ in range(20)]
    assert {steps for _, steps in losses} == {2, 3, 4} and model.step_counts() == (2, 3, 4)
    network = model.network
    by_loop = [
        F.cross_entropy(
            network.head(network.norm(state)).flatten(0, 1), batch["input_ids"][:, 1:].flatten(), ignore_index=10
        )
        for state in network.states_by_loop(batch["input_ids"][:, :-1], 4)
    ]
    for loss, steps in losses:
        torch.testing.assert_close(loss.double(), by_loop[int(steps) - 1], rtol=1e-6, atol=0)
    meta = {"input_ids": torch.empty(3, 9, dtype=torch.int64, device="meta")}
    costs = batch_costs(model, meta)
    assert costs[4].flops - costs[3].flops == costs[3].flops - costs[2].flops > 0.8 * costs[2].flops / 2
