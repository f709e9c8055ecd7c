"""Causal self-attention within documents."""

from __future__ import annotations

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

    def forward(self, x_BSD: Tensor, rotations: Tensor, mask: Tensor | None) -> Tensor:
        """mask: True where a position may look, [B, 1, S, S]; None is plain causal."""
        qkv_3BHSK = self.query_key_value(x_BSD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q_BHSK, k_BHSK, v_BHSK = qkv_3BHSK.unbind(0)
        q_BHSK, k_BHSK = rotate(q_BHSK, rotations), rotate(k_BHSK, rotations)
        mixed_BHSK = F.scaled_dot_product_attention(q_BHSK, k_BHSK, v_BHSK, attn_mask=mask, is_causal=mask is None)
        return self.output(mixed_BHSK.transpose(1, 2).flatten(-2))
