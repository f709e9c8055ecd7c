"""Normal noise: drawn from torch's generator on all cores, or a function of a key, which makes it batch-invariant.

A prediction that starts from noise must not depend on the rows beside it, on the tokens after it, or on whether its
context came from a cache. So the noise of a position is computed from the position's number instead of drawn in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

PIECE = 2**19  # numbers that one thread draws at a time
CANDIDATES, STEPS = 2**16, 2**16  # how many of each a position has keys for


def parallel_normal(shape: Sequence[int], like: Tensor, scale: float = 1.0) -> Tensor:
    """Normal noise of this shape and standard deviation, with the device and type of `like`, out of torch's generator.

    A vocabulary of noise for every position is tens of millions of numbers, and torch draws those of a CPU on one core.
    Here each piece has its own seed: all cores draw, and the numbers do not depend on how many cores there are.
    """
    noise = torch.empty(shape, device=like.device, dtype=like.dtype)
    pieces = noise.flatten().split(PIECE)
    if noise.device.type != "cpu" or len(pieces) < 2:
        return noise.normal_(0.0, scale)
    seeds = torch.randint(2**62, (len(pieces),)).tolist()

    def draw(piece: Tensor, seed: int) -> None:
        piece.normal_(0.0, scale, generator=torch.Generator().manual_seed(seed))

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        list(threads.map(draw, pieces, seeds))
    return noise


def noise_key(position: Tensor, candidate: Tensor | int = 0, step: int = 0) -> Tensor:
    """The key of a candidate's start (step 0), or of the noise added before its step 1, 2, ..."""
    return (position * CANDIDATES + candidate) * STEPS + step


def keyed_normal(keys: Tensor, width: int, seed: int = 0) -> Tensor:
    """Standard normal rows, one for each key. [...] -> [..., width], in float32 on the keys' device"""
    unique, index = keys.unique(return_inverse=True)
    generator = torch.Generator()
    rows = [torch.randn(width, generator=generator.manual_seed(mix_seed(key, seed))) for key in unique.tolist()]
    return torch.stack(rows).to(keys.device)[index]


def mix_seed(key: int, seed: int) -> int:
    """A seed for the generator: neighbouring keys and seeds must not give neighbouring states (SplitMix64)."""
    state = (key * 0x9E3779B97F4A7C15 + seed * 0xD1B54A32D192ED03 + 0x2545F4914F6CDD1D) % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ (state >> shift)) * factor % 2**64
    return (state ^ (state >> 31)) % 2**32  # the generator uses 32 bits
