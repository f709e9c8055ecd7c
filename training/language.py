"""All that training knows of language: how batches of tokens are made and counted, and the references of their loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from data.module import DataModule

Batch = dict[str, Tensor]


def training_rows(data: DataModule, indices: Sequence[int]) -> Batch:
    """A batch of these rows of the training split."""
    return data.rows["train"].__getitems__(indices)


def shapes_of_batch(rows: int, context_length: int) -> Batch:
    """A batch [B, S+1] without memory, to count costs on."""
    return {"input_ids": torch.zeros(rows, context_length + 1, dtype=torch.int64, device="meta")}


def num_targets(batch: Batch) -> int:
    """Tokens of a batch that are predicted."""
    return batch["input_ids"][:, 1:].numel()


def tokens_per_byte(data: DataModule) -> dict[str, float]:
    """Of each split's text."""
    return {split: rows.num_units / max(1, rows.num_bytes) for split, rows in data.rows.items()}


def bits_per_byte(loss: float, tokens_per_byte: float) -> float:
    return loss * tokens_per_byte / math.log(2)


def evaluation_line(split: str, result: dict[str, float]) -> str:
    return (
        f"{split} loss {result['loss']:.4f} nats, {result['bits_per_byte']:.4f} bits per byte, "
        f"accuracy {result['accuracy']:.1%}, of {result['targets']:,.0f} tokens"
    )
