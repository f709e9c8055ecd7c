"""All that training knows of language: how batches of tokens are made and counted, and the references of their loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

import psutil
import torch
from torch import Tensor

from config import RunConfig, SettingsError
from config.energy import Energy
from config.settings import Transformer
from data.language.counts import ngram_baselines, unigram_baseline
from data.module import DataModule
from training.devices import on_gpu

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


def data_line(config: RunConfig, data: DataModule) -> str:
    rows = data.rows["train"]
    return f"{config.data.dataset_name}: {rows.num_bytes / 1e6:.1f} MB, {rows.num_units:,} tokens to learn from"


def unigram_loss(data: DataModule) -> float:
    """Validation loss of guessing by how often each token occurs: a model above it has not learned."""
    return unigram_baseline(data.rows["train"].tokens, data.rows["valid"].tokens, data.processor.vocab_size)


def reference_losses(data: DataModule, split: str, targets: int) -> dict[str, float]:
    """What counting gives on the first `targets` tokens of a split."""
    train, evaluated = data.rows["train"].tokens, data.rows[split].tokens[: targets + 1]
    losses = ngram_baselines(train, evaluated, data.processor.vocab_size)
    return {f"{name} counts": loss for name, loss in losses.items()}


def check_replay(config: RunConfig, data: DataModule) -> None:
    """Refuse a replay buffer that does not fit into memory, before hours are spent on filling it."""
    energy, length, vocab_size = config[Energy], config[Transformer].context_length, data.processor.vocab_size
    if not energy.mcmc_replay_buffer:
        return
    row = 4 * length * vocab_size
    free = torch.cuda.mem_get_info()[0] if on_gpu(config) else psutil.virtual_memory().available
    if energy.mcmc_replay_buffer_size * row > free:
        raise SettingsError(
            [
                f"--mcmc_replay_buffer_size is {energy.mcmc_replay_buffer_size}: a row has {length:,} x {vocab_size:,} "
                f"numbers, so that takes {energy.mcmc_replay_buffer_size * row / 1e9:,.1f} GB, and "
                f"{free / 1e9:,.1f} GB are free; choose at most {int(free // (2 * row))}."
            ]
        )
