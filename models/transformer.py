"""Transformer++: a causal decoder of pre-norm blocks with RMSNorm, RoPE and SwiGLU, without biases; or a looped one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.layers.attention import CacheAppend, SelfAttention, document_mask
from models.layers.feed_forward import FeedForward
from models.layers.norm import RMSNorm
from models.layers.rope import rotations


@dataclass(frozen=True)
class TransformerShape:
    """The numbers that fix a transformer's parameters and how they start."""

    vocab_size: int
    context_length: int
    layers: int
    width: int
    heads: int
    hidden: int
    tied: bool = True
    separator_id: int | None = None  # None: documents of a row see each other
    init_method: str = "xavier"
    init_gain: float = 1.0


class InitShape(Protocol):
    """The part of a shape that says how weights start."""

    @property
    def layers(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def tied(self) -> bool: ...
    @property
    def init_method(self) -> str: ...
    @property
    def init_gain(self) -> float: ...


class Block(nn.Module):
    """Attention, then feed-forward, each added to the stream. [B, S, D] -> [B, S, D]"""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.width)
        self.attention = SelfAttention(shape.width, shape.heads)
        self.feed_forward_norm = RMSNorm(shape.width)
        self.feed_forward = FeedForward(shape.width, shape.hidden)

    def forward(self, x_BSD: Tensor, rotations: Tensor, mask: Tensor | None, past: CacheAppend | None = None) -> Tensor:
        x_BSD = x_BSD + self.attention(self.attention_norm(x_BSD), rotations, mask, past)
        return x_BSD + self.feed_forward(self.feed_forward_norm(x_BSD))


class Transformer(nn.Module):
    """Tokens to next-token logits. [B, S] -> [B, S, V]"""

    rotations: Tensor

    def __init__(self, shape: TransformerShape, gradient_checkpointing: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.gradient_checkpointing = gradient_checkpointing
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocab_size, bias=False)
        if shape.tied:
            self.head.weight = self.embedding.weight
        table = rotations(shape.context_length, shape.width // shape.heads).float()
        self.register_buffer("rotations", table, persistent=False)
        init_weights(self, shape)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        return self.head(self.norm(self.through_blocks(self.embedding(tokens_BS), *self.places(tokens_BS))))

    def places(self, tokens_BS: Tensor) -> tuple[Tensor, Tensor | None]:
        """The angles of the positions, and the mask that keeps documents apart, if it does."""
        separator = self.shape.separator_id
        mask = None if separator is None else document_mask(tokens_BS, separator)
        return self.rotations[: tokens_BS.shape[1]], mask

    @property
    def cached_layers(self) -> int:
        """How many layers of keys and values a cache has."""
        return self.shape.layers

    def through_blocks(
        self, x_BSD: Tensor, angles: Tensor, mask: Tensor | None, pasts: Sequence[CacheAppend] | None = None
    ) -> Tensor:
        """The stream after the last block. pasts: append to a cache, one for each layer."""
        earlier: Sequence[CacheAppend | None] = pasts or [None] * len(self.blocks)
        for block, past in zip(self.blocks, earlier, strict=True):
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x_BSD = checkpoint(block, x_BSD, angles, mask, use_reentrant=False)
            else:
                x_BSD = block(x_BSD, angles, mask, past)
        return x_BSD


class LoopedTransformer(Transformer):
    """The same blocks again and again: s <- blocks(norm(s) + x), from s = 0, with x the embedded tokens.

    The norm keeps s from growing with the loops. loops: how many a prediction takes; training may take others.
    """

    def __init__(self, shape: TransformerShape, loops: int, gradient_checkpointing: bool = False) -> None:
        super().__init__(shape, gradient_checkpointing)
        self.loops = loops

    @property
    def cached_layers(self) -> int:
        return self.shape.layers * self.loops

    def states(
        self,
        x_BSD: Tensor,
        angles: Tensor,
        mask: Tensor | None,
        loops: int,
        pasts: Sequence[CacheAppend] | None = None,
    ) -> Iterator[Tensor]:
        """s after each loop, [B, S, D]."""
        s_BSD = x_BSD
        for loop in range(loops):
            of_loop = None if pasts is None else pasts[loop * self.shape.layers : (loop + 1) * self.shape.layers]
            s_BSD = super().through_blocks(s_BSD if loop == 0 else self.norm(s_BSD) + x_BSD, angles, mask, of_loop)
            yield s_BSD

    def through_blocks(
        self, x_BSD: Tensor, angles: Tensor, mask: Tensor | None, pasts: Sequence[CacheAppend] | None = None
    ) -> Tensor:
        """s after the last loop. pasts: one for each layer of each loop."""
        *_, s_BSD = self.states(x_BSD, angles, mask, self.loops, pasts)
        return s_BSD

    def states_by_loop(self, tokens_BS: Tensor, loops: int) -> Iterator[Tensor]:
        """s after each loop, [B, S, D]."""
        return self.states(self.embedding(tokens_BS), *self.places(tokens_BS), loops)


def init_weights(model: nn.Module, shape: InitShape) -> None:
    """Xavier or He for linear layers; the 2L layers that add to the residual stream start smaller."""
    into_stream = ("attention.output", "feed_forward.output")
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=shape.width**-0.5)
        elif isinstance(module, nn.Linear) and not (shape.tied and name == "head"):
            gain = shape.init_gain / math.sqrt(2 * shape.layers) if name.endswith(into_stream) else shape.init_gain
            if shape.init_method == "xavier":
                nn.init.xavier_normal_(module.weight, gain=gain)
            else:
                nn.init.kaiming_normal_(module.weight)
                module.weight.data.mul_(gain)
