"""Transformer++: a causal decoder of pre-norm blocks with RMSNorm, RoPE and SwiGLU, without biases."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
        shape = self.shape
        mask = None if shape.separator_id is None else document_mask(tokens_BS, shape.separator_id)
        angles = self.rotations[: tokens_BS.shape[1]]
        x_BSD = self.embedding(tokens_BS)
        for block in self.blocks:
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x_BSD = checkpoint(block, x_BSD, angles, mask, use_reentrant=False)
            else:
                x_BSD = block(x_BSD, angles, mask)
        return self.head(self.norm(x_BSD))


def init_weights(model: nn.Module, shape: TransformerShape) -> None:
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
