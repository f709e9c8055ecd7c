"""Parts of a run, built as the language task builds them."""

from __future__ import annotations

import torch

from config import RunConfig
from data.language.build import TextSpec
from models.language import LanguageModel
from models.model import Batch
from tasks.language import TASK


def build_model(config: RunConfig, vocab_size: int, separator_id: int, pad_id: int) -> LanguageModel:
    """The language model of these settings, for a vocabulary without a tokenizer."""
    return TASK.model(config, TextSpec(vocab_size, separator_id, pad_id))


def meta_rows(rows: int, length: int) -> Batch:
    """A batch of text rows without memory, to count costs on."""
    return {"input_ids": torch.empty(rows, length + 1, dtype=torch.int64, device="meta")}
