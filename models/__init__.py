"""The models: `build_model` gives the one that the settings name, ready for Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from config import RunConfig
from models.language_model import LanguageModel
from models.transformer import Shape, Transformer

if TYPE_CHECKING:
    from collections.abc import Callable


def baseline_transformer(config: RunConfig, vocab_size: int, separator_id: int, pad_id: int) -> LanguageModel:
    """Transformer++, what energy-based transformers are compared with."""
    settings = config.architecture
    shape = Shape(
        vocab_size=vocab_size,
        context_length=settings.context_length,
        layers=settings.num_transformer_blocks,
        width=settings.embedding_dim,
        heads=settings.multiheaded_attention_heads,
        hidden=round(settings.embedding_dim * settings.ffn_dim_multiplier),
        tied=settings.tie_embeddings,
        separator_id=separator_id if settings.isolate_documents else None,
        init_method=settings.weight_initialization_method,
        init_gain=settings.weight_initialization_gain,
    )
    return LanguageModel(Transformer(shape, settings.gradient_checkpointing), vocab_size, pad_id)


MODELS: dict[tuple[str, str], Callable[..., LanguageModel]] = {("NLP", "baseline_transformer"): baseline_transformer}


def build_model(config: RunConfig, vocab_size: int, separator_id: int, pad_id: int) -> LanguageModel:
    return MODELS[config.run.modality, config.run.model_name](config, vocab_size, separator_id, pad_id)


__all__ = ["LanguageModel", "build_model"]
