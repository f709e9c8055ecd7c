"""Walks at positions of texts. All noise is a function of the position, so that predictions are batch-invariant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from inference.thinking import WalkPlan, WalkState, best_candidate, inference_walk, last_state
from models.energy_transformer import Context
from models.language import EnergyLM
from models.noise import keyed_normal, noise_key


def start_of_walk(model: EnergyLM, context: Callable[[], Context], like: Tensor, noise: Callable[[], Tensor]) -> Tensor:
    """Where the walks begin. context: of the first step; like: zeros of the shape of y; noise: standard normal."""
    settings = model.walk_settings
    y_BNV = like
    if settings.start == "prior":
        prior_BND = context().prior
        assert prior_BND is not None
        y_BNV = model.network.to_vocabulary(prior_BND).expand_as(y_BNV)
    if settings.start != "zeros" and settings.noise_scale:
        y_BNV = y_BNV + settings.noise_scale * noise()
    return y_BNV


@torch.no_grad()
def token_walk(
    model: EnergyLM,
    context_of: Callable[[int], Context],
    positions_BN: Tensor,
    plan: WalkPlan,
    candidates_BN: Tensor | int = 0,
) -> Iterator[WalkState]:
    """Walk at N positions of each row; y is [B, N, V], energies are [B, N].

    positions: of the last token that a prediction sees; candidates: the candidate's number. These two and the plan's
    seed determine all noise.
    """
    embedding_VD = model.network.prediction_embedding

    def noise(number: int, _: Tensor | None = None) -> Tensor:
        keys_BN = noise_key(positions_BN, candidates_BN, number)
        return keyed_normal(keys_BN, len(embedding_VD), plan.seed).to(embedding_VD.dtype)

    zeros_BNV = embedding_VD.new_zeros(*positions_BN.shape, len(embedding_VD))
    start_BNV = start_of_walk(model, partial(context_of, plan.steps[0].landscape), zeros_BNV, partial(noise, 0))
    yield from inference_walk(model, context_of, start_BNV, plan, noise)


@torch.no_grad()
def walk_rows(
    model: EnergyLM, tokens_BS: Tensor, plan: WalkPlan, observe: Callable[[WalkState], None] | None = None
) -> WalkState:
    """Walk at every position of whole rows [B, S], without a cache."""
    contexts = model.contexts(tokens_BS)
    positions_BS = torch.arange(tokens_BS.shape[1], device=tokens_BS.device).expand(tokens_BS.shape)
    return best_candidate(
        model, plan, lambda candidate: last_state(token_walk(model, contexts, positions_BS, plan, candidate), observe)
    )
