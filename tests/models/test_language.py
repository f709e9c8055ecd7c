"""What is shown of a model is what it does: energies, losses and ranks against plain loops, samples against a rule."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from config import parse_command_line
from models.energy_model import walk_curve
from models.language import EnergyLM, TransformerLM, ranking, sample
from tests.support.builders import build_model

V, S, PAD, SEPARATOR = 9, 5, 7, 8
SIZE = f"--num_transformer_blocks 2 --embedding_dim 8 --multiheaded_attention_heads 2 --context_length {S}"
ROWS = torch.tensor([[8, 1, 2, 8, 3, 0], [4, 5, 8, 6, 7, 7]])  # the second row is padded: 8 targets in all


def model_of(flags: str = "") -> EnergyLM:
    torch.manual_seed(0)
    line = f"--model_name ebt --recipe laptop {SIZE} --mcmc_step_size 2.0 {flags}"
    model = build_model(parse_command_line(line.split()), V, SEPARATOR, PAD)
    assert isinstance(model, EnergyLM)
    for parameter in model.network.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


@pytest.mark.parametrize("kind", ["default", "time_embed", "adaln"])
def test_energies_and_losses_are_those_of_each_step(kind: str) -> None:
    model = model_of(f"--ebt_type {kind} --mcmc_num_steps 3")
    tokens, targets = ROWS[:, :-1], ROWS[:, 1:]
    curve = walk_curve(model, {"input_ids": ROWS}, 5)
    assert curve.energies.shape == (6, 8) and curve.losses.shape == (6,) and curve.truth.shape == (8,)
    y = model.start(tokens, fixed=True)
    for taken in range(6):
        landscape = min(taken, 2) if kind != "default" else 0  # further steps stay where the last one was
        context = model.network.context(tokens, landscape)
        embedded = (y.softmax(-1) @ model.network.prediction_embedding).detach().requires_grad_()
        energy = model.network.energy(embedded, context)
        torch.testing.assert_close(curve.energies[taken], energy[targets != PAD].detach())
        loss = F.cross_entropy(y.flatten(0, 1), targets.flatten(), ignore_index=PAD)
        torch.testing.assert_close(curve.losses[taken], loss)
        (slope,) = torch.autograd.grad(energy.sum(), embedded)
        y = (y - model.step_size * slope @ model.network.prediction_embedding.T).detach()
    evaluated = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=PAD)
    torch.testing.assert_close(curve.losses[3], evaluated)


def test_looking_leaves_no_trace() -> None:
    model = model_of("--langevin_dynamics_noise 1.0")
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again = walk_curve(model, {"input_ids": ROWS}, 4), walk_curve(model, {"input_ids": ROWS}, 4)
    ranking(model, ROWS, ROWS[:, :-1])
    assert torch.equal(first.energies, again.energies)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not first.energies.requires_grad


def test_ranking_counts_positions_where_the_true_token_is_lower() -> None:
    model = model_of("--ebt_type adaln --mcmc_num_steps 2")
    others = torch.tensor([[1, 4, 0, 5, 6], [2, 1, 3, 4, 5]])
    context = model.network.context(ROWS[:, :-1], 1)
    energies = [
        model.network.energy(
            F.one_hot(torch.full((2, S), token), V).float() @ model.network.prediction_embedding, context
        )
        for token in range(V)
    ]
    below = [
        bool(energies[ROWS[row, position + 1]][row, position] < energies[others[row, position]][row, position])
        for row in range(2)
        for position in range(S)
        if ROWS[row, position + 1] not in (PAD, others[row, position])
    ]
    assert len(below) == 7  # ten positions, two without a target, one whose other token is the true one
    assert ranking(model, ROWS, others) == (pytest.approx(sum(below) / 7), 7)


def test_a_model_that_learnt_to_rank_ranks() -> None:
    model = model_of("--contrastive_loss --randomize_mcmc_num_steps 0")
    others = torch.tensor([[0, 0, 0, 0, 1]])
    row = ROWS[:1]
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        context = model.network.context(row[:, :-1])
        embedding = model.network.prediction_embedding
        gap = model.network.energy(embedding[row[:, 1:]], context) - model.network.energy(embedding[others], context)
        optimizer.zero_grad()
        F.softplus(gap).mean().backward()
        optimizer.step()
    assert ranking(model, row, others) == (1.0, 5)


class Counting(nn.Module):
    """Predicts the token after the one it sees, and keeps how much it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, tokens_BS: Tensor) -> Tensor:
        self.seen.append(tokens_BS.shape[1])
        return 20.0 * F.one_hot((tokens_BS + 1) % V, V)


def test_a_sample_goes_on_within_the_window() -> None:
    network = Counting()
    drawn = sample(TransformerLM(network, V, PAD), torch.tensor([0, 1]), 4, window=3)
    assert drawn.tolist() == [2, 3, 4, 5]
    assert network.seen == [2, 3, 3, 3]


def test_forbidden_tokens_are_never_drawn() -> None:
    drawn = sample(TransformerLM(Counting(), V, PAD), torch.tensor([5]), 200, window=4, never=(PAD, SEPARATOR))
    assert len(drawn) == 200 and not {PAD, SEPARATOR} & set(drawn.tolist())


def test_a_sample_is_the_same_each_time_and_draws_from_its_own_generator() -> None:
    model = model_of()
    before = torch.get_rng_state()
    drawn = [sample(model, torch.tensor([8, 1]), 12, window=S, temperature=2.0, seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_sampling_ends_when_its_time_is_up() -> None:
    assert len(sample(TransformerLM(Counting(), V, PAD), torch.tensor([0]), 100, window=4, seconds=0.0)) == 1
