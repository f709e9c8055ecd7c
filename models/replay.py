"""Predictions of earlier batches to start from again, so that the walk learns to go on from its own ends."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class ReplayBuffer:
    """The newest rows of tokens with the predictions that were found for them; a fixed number, in memory.

    Part of the checkpoint, and drawn with torch's own generator: a resumed run replays what it would have replayed.
    """

    def __init__(self, rows: int, share: float) -> None:
        self.rows = rows
        self.share = share  # old rows that are appended to a batch, for each of its own
        self.tokens: Tensor | None = None  # [rows, S+1]
        self.predictions: Tensor | None = None  # [rows, S, V]
        self.filled = 0
        self.next = 0

    def append_to(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """The batch [B, S+1] with old rows behind it, and the predictions [R, S, V] that those start from."""
        count = min(int(self.share * len(tokens)), self.filled)
        if count == 0 or self.tokens is None or self.predictions is None:
            return tokens, None
        chosen = torch.randperm(self.filled)[:count].to(self.tokens.device)
        old = self.tokens[chosen].to(tokens)  # a loaded buffer may be on another device
        return torch.cat([tokens, old]), self.predictions[chosen]

    def add(self, tokens: Tensor, predictions: Tensor) -> None:
        """Keep these rows in the place of the oldest."""
        if self.tokens is None or self.predictions is None:
            self.tokens = tokens.new_zeros(self.rows, *tokens.shape[1:])
            self.predictions = predictions.new_zeros(self.rows, *predictions.shape[1:])
        for row in range(len(tokens)):
            self.tokens[self.next], self.predictions[self.next] = tokens[row], predictions[row]
            self.next = (self.next + 1) % self.rows
            self.filled = min(self.filled + 1, self.rows)

    def state(self) -> dict[str, Any]:
        names = ("tokens", "predictions", "filled", "next")
        return {name: getattr(self, name) for name in names}

    def load(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
