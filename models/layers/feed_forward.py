"""The gated feed-forward layer; with silu it is SwiGLU, as in Transformer++."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "gelu": F.gelu, "relu": F.relu, "elu": F.elu}


class FeedForward(nn.Module):
    """activation(gate) * value, projected back. [B, S, D] -> [B, S, D]"""

    def __init__(self, width: int, hidden: int, activation: str = "silu") -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.gate_value = nn.Linear(width, 2 * hidden, bias=False)
        self.output = nn.Linear(hidden, width, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        gate, value = self.gate_value(x_BSD).chunk(2, dim=-1)
        return self.output(self.activation(gate) * value)
