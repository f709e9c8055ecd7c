"""What a trained model does, to be shown to a person: energies along a walk, tokens ranked by energy, a sample.

Nothing here changes a model or draws from the generator that training draws from.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from models.descent import Step
from models.energy_language_model import EnergyLanguageModel
from models.language_model import LanguageModel


@dataclass(frozen=True)
class Descent:
    """A walk by the number of steps taken, 0..N, over P positions.

    energies: [T+1, N]. losses: [T+1], mean cross-entropy. truth: [N], the true next token's energy.
    """

    energies: Tensor
    losses: Tensor
    truth: Tensor


def walk_steps(model: EnergyLanguageModel, count: int) -> list[Step]:
    """The steps of an evaluation without its noise, and more of the last landscape's up to `count`."""
    steps = [replace(step, noise=0.0) for step in model.evaluation_steps()]
    return (steps + [steps[-1]] * count)[:count]


@torch.no_grad()
def descent(model: EnergyLanguageModel, rows_BS: Tensor, count: int) -> Descent:
    """Walk `count` steps down the energy for the next tokens of rows [B, S+1]; positions without a target are left out.

    One step at a time, so that a long walk holds no more predictions [B, S, V] than a short one.
    """
    tokens_BS, targets_BS = rows_BS[:, :-1], rows_BS[:, 1:]
    contexts = model.contexts(tokens_BS)
    y_BSV = model.start(tokens_BS, fixed=True, contexts=contexts)
    energies, losses = [], []
    for step in walk_steps(model, count + 1):  # the energy is that before a step: of the last one, only this is used
        losses.append(model.cross_entropy(y_BSV, targets_BS))
        walk = model.walk(tokens_BS, y_BSV, [step], differentiable=False, contexts=contexts)
        energies.append(walk.energies[0])
        y_BSV = walk.predictions[0]
    counted_BS = targets_BS != model.pad_id
    energies_TN = torch.stack([energy_BS[counted_BS] for energy_BS in energies])
    truth_N = token_energies(model, tokens_BS, targets_BS)[counted_BS]
    return Descent(energies_TN.float(), torch.stack(losses).float(), truth_N.float())


@torch.no_grad()
def token_energies(model: EnergyLanguageModel, tokens_BS: Tensor, candidates_BS: Tensor) -> Tensor:
    """The energy of one candidate for the next token at each position, where the walk ends. [B, S] -> [B, S]"""
    context = model.network.context(tokens_BS, model.last_landscape)
    return model.network.energy(model.network.prediction_embedding[candidates_BS], context)


def ranking(model: EnergyLanguageModel, rows_BS: Tensor, others_BS: Tensor) -> tuple[float, int]:
    """The share of positions whose next token has less energy than the other token there, and how many were judged.

    rows: [B, S+1]. others: [B, S]; positions without a target, or whose other token is the true one, are left out.
    """
    tokens_BS, targets_BS = rows_BS[:, :-1], rows_BS[:, 1:]
    judged_BS = (targets_BS != model.pad_id) & (targets_BS != others_BS)
    below_BS = token_energies(model, tokens_BS, targets_BS) < token_energies(model, tokens_BS, others_BS)
    return below_BS[judged_BS].float().mean().item(), int(judged_BS.sum())


@torch.no_grad()
def sample(
    model: LanguageModel,
    prompt_S: Tensor,
    count: int,
    window: int,
    never: Collection[int] = (),
    temperature: float = 0.8,
    seconds: float = 5.0,
    seed: int = 0,
) -> Tensor:
    """Up to `count` tokens that go on from the prompt [S], drawn from what `model(tokens)` predicts.

    window: how many tokens back the model sees. never: tokens that are not drawn. seconds: when to stop at the latest.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens_S, until = prompt_S, time.perf_counter() + seconds
    for _ in range(count):
        logits_V = model(tokens_S[None, -window:])[0, -1].float().cpu() / temperature
        logits_V[list(never)] = float("-inf")
        drawn = torch.multinomial(logits_V.softmax(-1), 1, generator=generator)
        tokens_S = torch.cat([tokens_S, drawn.to(tokens_S)])
        if time.perf_counter() > until:
            break
    return tokens_S[len(prompt_S) :]
