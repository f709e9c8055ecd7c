"""Causal self-attention within documents, of the observed stream and of predictions that look at it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.layers.analytic import Saved
from models.layers.linear import Linear, linear
from models.layers.prediction_attention import attend_input_gradient, attend_saving
from models.layers.rope import merge_heads, split_heads

CacheAppend = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # appends new keys and values, returns all


def document_mask(tokens_BS: Tensor, separator_id: int) -> Tensor:
    """True where a position may look: not ahead, and not into another document. [B, S] -> [B, 1, S, S]

    A document begins at its separator, so the count of separators so far names the document.
    """
    document_BS = (tokens_BS == separator_id).cumsum(-1)
    same_BSS = document_BS[:, :, None] == document_BS[:, None, :]
    return torch.tril(same_BSS).unsqueeze(1)


class SelfAttention(nn.Module):
    """Every position attends to those its mask allows; RoPE gives the order. [B, S, D] -> [B, S, D]"""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = Linear(width, 3 * width)
        self.output = Linear(width, width)

    def project(self, x_BSD: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, each [B, H, S, K]."""
        q_BHSK, k_BHSK, v_BHSK = split_heads(self.query_key_value(x_BSD), rotations, 3, self.heads)
        return q_BHSK, k_BHSK, v_BHSK

    def keys_values(self, x_BSD: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys, and values, each [B, H, S, K]."""
        projected = linear(x_BSD, self.query_key_value.weight[x_BSD.shape[-1] :])
        k_BHSK, v_BHSK = split_heads(projected, rotations, 2, self.heads)
        return k_BHSK, v_BHSK

    def forward_observed(
        self, x_BSD: Tensor, rotations: Tensor, mask: Tensor | None, past: CacheAppend | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attention of the stream to itself, and the keys and values that predictions will look at.

        mask: True where a position may look, [B, 1, S, S]; None is plain causal. past: appends to a cache.
        """
        q_BHSK, k_BHSK, v_BHSK = self.project(x_BSD, rotations)
        if past is not None:
            k_BHSK, v_BHSK = past(k_BHSK, v_BHSK)
        mixed_BHSK = F.scaled_dot_product_attention(q_BHSK, k_BHSK, v_BHSK, attn_mask=mask, is_causal=mask is None)
        return self.output(mixed_BHSK.transpose(1, 2).flatten(-2)), k_BHSK, v_BHSK

    def forward(self, x_BSD: Tensor, rotations: Tensor, mask: Tensor | None, past: CacheAppend | None = None) -> Tensor:
        return self.forward_observed(x_BSD, rotations, mask, past)[0]

    def forward_prediction(
        self, x_BSD: Tensor, rotations: Tensor, keys: Tensor, values: Tensor, bias: Tensor
    ) -> Tensor:
        """Attention of each prediction to the observed positions that its bias allows, and to itself.

        keys, values: of the observed stream, [B, H, O+1, K]; bias: 0 or -inf, [B or 1, 1, S, O+1]; see `attend_saving`.
        """
        return self.forward_saving(x_BSD, rotations, keys, values, bias)[0]

    def forward_saving(
        self, x_BSD: Tensor, rotations: Tensor, keys: Tensor, values: Tensor, bias: Tensor
    ) -> tuple[Tensor, Saved]:
        """`forward_prediction`, and what its input gradient needs."""
        mixed_BHSK, saved = attend_saving(*self.project(x_BSD, rotations), keys, values, bias)
        return self.output(mixed_BHSK.transpose(1, 2).flatten(-2)), saved

    def input_gradient(self, g_BSD: Tensor, saved: Saved, rotations: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """From the gradient of the attention's output to that of x."""
        g_BHSK = self.output.input_gradient(g_BSD).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        grads = attend_input_gradient(g_BHSK, saved, keys, values)
        return self.query_key_value.input_gradient(merge_heads(rotations, *grads))
