"""Drawing a token from logits, so that what is drawn depends on its own text alone and not on its company."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.noise import mixed

COLDEST = 1e-9  # a temperature below it draws the same, and dividing by it stays finite


@dataclass(frozen=True)
class Sampling:
    """How to draw. temperature: 0 takes the likeliest; top_k: of so many tokens, 0 is all; top_p: of this share.

    never: tokens that are not drawn.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    never: Collection[int] = ()


class Chance:
    """The uniform numbers of one continuation, found by the token's place in the text instead of drawn in turn.

    They are fixed by the seed, the prompt, and how often that prompt came before: the same prompt again goes on
    differently, and neither the other prompts nor their order matter.
    """

    def __init__(self, seed: int, prompt: Sequence[int], occurrence: int) -> None:
        name = f"{seed} {occurrence} {' '.join(map(str, prompt))}"
        self.key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")

    def at(self, place: int) -> float:
        """Above 0 and below 1."""
        return (mixed(place, self.key) + 0.5) / 2**32


def draw(logits_BV: Tensor, uniform_B: Tensor, how: Sampling) -> Tensor:
    """A token for each row: where the cumulative share of what may be drawn passes its uniform number. -> [B]"""
    logits_BV = logits_BV.double().clone()
    logits_BV[:, list(how.never)] = float("-inf")
    if how.temperature == 0:
        return logits_BV.argmax(-1)
    logits_BV -= logits_BV.max(-1, keepdim=True).values
    share_BV = (logits_BV / max(how.temperature, COLDEST)).softmax(-1)
    if how.top_k or how.top_p < 1:
        share_BV = share_BV * among_likeliest(share_BV, how.top_k or share_BV.shape[-1], how.top_p)
    reached_BV = share_BV.cumsum(-1)
    wanted_B = uniform_B.to(reached_BV) * reached_BV[:, -1]
    return torch.searchsorted(reached_BV, wanted_B[:, None], right=True)[:, 0]


def among_likeliest(share_BV: Tensor, top_k: int, top_p: float) -> Tensor:
    """Which tokens are among the k likeliest and, of these, among the fewest that have the share p. -> [B, V]"""
    sorted_BV, order_BV = share_BV.sort(dim=-1, descending=True, stable=True)
    sorted_BV[:, top_k:] = 0
    sorted_BV /= sorted_BV.sum(-1, keepdim=True)
    before_BV = sorted_BV.cumsum(-1) - sorted_BV
    kept_BV = (sorted_BV > 0) & (before_BV < top_p)
    return torch.zeros_like(kept_BV).scatter(-1, order_BV, kept_BV)
