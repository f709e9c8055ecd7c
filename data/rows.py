"""Cuts a split's token stream into rows of equal length, without copying the stream."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor
from torch.utils.data import Dataset

from data.store import Split

FILL = -1  # index of a row without targets, for processes that have fewer rows than others


class PackedRows(Dataset[Tensor]):
    """Rows of a split: row r is stream[r*S : r*S+S+1], so that every token but the first is a target once.

    The last row is filled up with pad_id; the row with index FILL is all pad_id.
    """

    def __init__(self, split: Split, context_length: int, pad_id: int) -> None:
        self.tokens = split.tokens
        self.context_length = context_length
        self.pad_id = pad_id
        self.num_documents = split.num_documents
        self.num_bytes = split.num_bytes
        self.num_targets = max(len(split.tokens) - 1, 0)

    def __len__(self) -> int:
        return -(-self.num_targets // self.context_length)

    def targets_of(self, indices: Sequence[int]) -> int:
        """How many targets these rows have."""
        return sum(min(self.context_length, self.num_targets - index * self.context_length) for index in indices)

    def __getitems__(self, indices: Sequence[int]) -> Tensor:
        """The rows of these indices, int64 [B, S+1]; one gather for the whole batch."""
        index = np.asarray(indices, dtype=np.int64)
        if index.size and (index.max() >= len(self) or index.min() < FILL):
            raise IndexError(f"row indices {index.min()} to {index.max()} of {len(self)} rows")
        length = self.context_length
        num_full = self.num_targets // length
        rows = np.full((len(index), length + 1), self.pad_id, dtype=np.int64)
        full = (index >= 0) & (index < num_full)
        if full.any():
            rows[full] = sliding_window_view(self.tokens, length + 1)[::length][index[full]]
        rest = self.tokens[num_full * length :]
        rows[index == num_full, : len(rest)] = rest
        return torch.from_numpy(rows)

    def __getstate__(self) -> dict[str, Any]:
        """What a loader process that is not forked receives: the name of a mapped file, not its content."""
        state = self.__dict__.copy()
        tokens = self.tokens
        if isinstance(tokens, np.memmap) and isinstance(tokens.base, mmap.mmap):
            state["tokens"] = None
            state["mapped"] = (str(tokens.filename), tokens.dtype.str, tokens.offset, tokens.shape)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        mapped = state.pop("mapped", None)
        self.__dict__.update(state)
        if mapped:
            name, dtype, offset, shape = mapped
            self.tokens = np.memmap(name, dtype=dtype, mode="r", offset=offset, shape=shape)


def as_batch(rows: Tensor) -> dict[str, Tensor]:
    """Rows [B, S+1] as the batch that every language model takes."""
    return {"input_ids": rows}
