"""Causal self-attention within documents, of the observed stream and of predictions that look at it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.layers.rope import rotate


class SelfAttention(nn.Module):
    """Every position attends to those its mask allows; RoPE gives the order. [B, S, D] -> [B, S, D]"""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def project(self, x_BSD: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, each [B, H, S, K]."""
        qkv_3BHSK = self.query_key_value(x_BSD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q_BHSK, k_BHSK, v_BHSK = qkv_3BHSK.unbind(0)
        return rotate(q_BHSK, rotations), rotate(k_BHSK, rotations), v_BHSK

    def observe(self, x_BSD: Tensor, rotations: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Attention of the stream to itself, and the keys and values that predictions will look at.

        mask: True where a position may look, [B, 1, S, S]; None is plain causal.
        """
        q_BHSK, k_BHSK, v_BHSK = self.project(x_BSD, rotations)
        mixed_BHSK = F.scaled_dot_product_attention(q_BHSK, k_BHSK, v_BHSK, attn_mask=mask, is_causal=mask is None)
        return self.output(mixed_BHSK.transpose(1, 2).flatten(-2)), k_BHSK, v_BHSK

    def forward(self, x_BSD: Tensor, rotations: Tensor, mask: Tensor | None) -> Tensor:
        return self.observe(x_BSD, rotations, mask)[0]

    def predict(self, x_BSD: Tensor, rotations: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        """Attention of each prediction to the observed positions that its bias allows, and to itself.

        Plain products and a softmax, because this is differentiated twice and the fused kernels are not.
        keys, values: of the observed stream, [B, H, O, K]; bias: 0 or -inf, [B or 1, 1, S, O].
        """
        q_BHSK, k_BHSK, v_BHSK = self.project(x_BSD, rotations)
        q_BHSK = q_BHSK / math.sqrt(q_BHSK.shape[-1])
        observed_BHSO = q_BHSK @ keys.transpose(-1, -2) + bias
        itself_BHS1 = (q_BHSK * k_BHSK).sum(-1, keepdim=True)
        weights = torch.cat([observed_BHSO, itself_BHS1], dim=-1).softmax(-1)
        mixed_BHSK = weights[..., :-1] @ values + weights[..., -1:] * v_BHSK
        return self.output(mixed_BHSK.transpose(1, 2).flatten(-2))
