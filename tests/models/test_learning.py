"""A sign that the EBT learns what it should: trained as by default, its energy ranks tokens and its steps pay."""

from __future__ import annotations

import torch

from config import parse_command_line
from models.energy_model import walk_curve
from models.language import EnergyLM, ranking
from tests.support.builders import build_model

V, S, PAD, SEPARATOR = 14, 24, 12, 13


def rows(count: int, seed: int) -> torch.Tensor:
    """A language of twelve tokens: the next one follows from the last two, but for one in ten, which is drawn."""
    draw = torch.Generator().manual_seed(seed)
    text = [torch.randint(0, 12, (count,), generator=draw) for _ in range(2)]
    for _ in range(S - 1):
        rule = (3 * text[-1] + 5 * text[-2] + 1) % 12
        chance = torch.rand(count, generator=draw) < 0.1
        text.append(torch.where(chance, torch.randint(0, 12, (count,), generator=draw), rule))
    return torch.stack(text, 1)


def trained(recipe: str) -> EnergyLM:
    torch.manual_seed(0)
    size = f"--recipe {recipe} --num_transformer_blocks 2 --embedding_dim 48 --multiheaded_attention_heads 2"
    size = f"{size} --context_length {S}"
    model = build_model(parse_command_line(size.split()), V, SEPARATOR, PAD)
    assert isinstance(model, EnergyLM)
    model.calibrate({"input_ids": rows(8, 1)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(300):
        optimizer.zero_grad()
        model.training_step({"input_ids": rows(16, 100 + step)}, 0).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def test_a_trained_energy_ranks_the_true_token_first_and_its_last_step_is_its_best() -> None:
    model, held_out = trained("laptop"), rows(32, 2)
    losses = walk_curve(model, {"input_ids": held_out}, model.walk_settings.steps).losses
    others = torch.randint(0, 12, held_out[:, 1:].shape, generator=torch.Generator().manual_seed(3))
    share, _ = ranking(model, held_out, others)
    assert losses[0] > losses[1] > losses[2]
    assert losses[-1] < 1.3  # drawing evenly is 2.48, the rule alone 0.55
    assert share > 0.6


def test_a_residual_energy_starts_from_a_good_prediction_and_ranks_the_true_token_first() -> None:
    model, held_out = trained("residual"), rows(32, 2)
    losses = walk_curve(model, {"input_ids": held_out}, 8).losses
    others = torch.randint(0, 12, held_out[:, 1:].shape, generator=torch.Generator().manual_seed(3))
    share, _ = ranking(model, held_out, others)
    assert losses[1] < 1.3 and share > 0.85
    assert float((losses[1:] - losses[1]).abs().max()) < 0.1  # further steps stay where the walk has come to
