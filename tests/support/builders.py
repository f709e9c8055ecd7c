"""Parts of a run, built as the language task builds them."""

from __future__ import annotations

from config import RunConfig
from data.language.build import TextSpec
from models.language import LanguageModel
from tasks.language import TASK


def build_model(config: RunConfig, vocab_size: int, separator_id: int, pad_id: int) -> LanguageModel:
    """The language model of these settings, for a vocabulary without a tokenizer."""
    return TASK.model(config, TextSpec(vocab_size, separator_id, pad_id))
