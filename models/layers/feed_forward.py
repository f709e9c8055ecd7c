"""SwiGLU, the feed-forward layer of Transformer++."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class FeedForward(nn.Module):
    """silu(gate) * value, projected back. [B, S, D] -> [B, S, D]"""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_value = nn.Linear(width, 2 * hidden, bias=False)
        self.output = nn.Linear(hidden, width, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        gate, value = self.gate_value(x_BSD).chunk(2, dim=-1)
        return self.output(F.silu(gate) * value)
