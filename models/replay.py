"""The replay buffer: predictions of earlier batches, which walks of later batches continue."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from models.model import Batch

STATE_NAMES = {"input_ids": "tokens"}  # in checkpoints; other tensors of a batch have their own name there


class ReplayBuffer:
    """The newest rows of batches with the predictions that their walks ended in; a fixed number, in memory.

    Part of the checkpoint, and drawn with torch's own generator: a resumed run replays what it would have replayed.
    """

    def __init__(self, rows: int, share: float) -> None:
        self.rows = rows
        self.share = share  # old rows that are appended to a batch, for each of its own
        self.batch: Batch = {}  # each [rows, ...]
        self.predictions: Tensor | None = None  # [rows, ...]
        self.filled = 0
        self.next = 0

    def append_to(self, batch: Batch) -> tuple[Batch, Tensor | None]:
        """The batch with old rows behind it, and the predictions that those start from, e.g. [R, S, V]."""
        count = min(int(self.share * len(next(iter(batch.values())))), self.filled)
        if count == 0 or self.predictions is None:
            return batch, None
        drawn = torch.randperm(self.filled)[:count].to(self.predictions.device)
        # a loaded buffer may be on another device
        old = {name: self.batch[name][drawn].to(rows) for name, rows in batch.items()}
        return {name: torch.cat([rows, old[name]]) for name, rows in batch.items()}, self.predictions[drawn]

    def add(self, batch: Batch, predictions: Tensor) -> None:
        """Store these rows in the place of the oldest."""
        if self.predictions is None:
            self.batch = {name: rows.new_zeros(self.rows, *rows.shape[1:]) for name, rows in batch.items()}
            self.predictions = predictions.new_zeros(self.rows, *predictions.shape[1:])
        for row in range(len(predictions)):
            for name, rows in batch.items():
                self.batch[name][self.next] = rows[row]
            self.predictions[self.next] = predictions[row]
            self.next = (self.next + 1) % self.rows
            self.filled = min(self.filled + 1, self.rows)

    def state(self) -> dict[str, Any]:
        rows = {STATE_NAMES.get(name, name): tensor for name, tensor in self.batch.items()}
        return {**rows, "predictions": self.predictions, "filled": self.filled, "next": self.next}

    def load(self, state: dict[str, Any]) -> None:
        own = {name: state[name] for name in ("predictions", "filled", "next")}
        for name, value in own.items():
            setattr(self, name, value)
        names = {stored: name for name, stored in STATE_NAMES.items()}
        rows = {name: tensor for name, tensor in state.items() if name not in own and tensor is not None}
        self.batch = {names.get(name, name): tensor for name, tensor in rows.items()}
