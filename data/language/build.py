"""The data of a language run: dataset and tokenizer to a DataModule of packed rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from config.settings import RunConfig, Text, Transformer
from core.errors import UserError
from data.language.rows import PackedRows
from data.language.store import TokenStore, open_store
from data.language.tokenizers import Tokenizer, saved_tokenizer
from data.module import DataModule, Spec

FEW_DOCUMENTS = 20  # with fewer, a split of a usual share may well have none


@dataclass(frozen=True)
class TextSpec(Spec):
    """What a language model is built from. separator_id: the token between documents; pad_id: one that is no target."""

    vocab_size: int
    separator_id: int
    pad_id: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        return cls(tokenizer.vocab_size, tokenizer.separator_id, tokenizer.pad_id)


def language_data(config: RunConfig, *runs: Path | None) -> DataModule:
    """The data of a run: reads and tokenises the text, or opens the cache of an earlier run.

    runs: folders of runs; the first that has the tokenizer that is asked for gives it.
    """
    saved = (saved_tokenizer(run, config[Text].tokenizer) for run in runs if run is not None)
    return packed_data(config, open_store(config[Text], next(filter(None, saved), None)))


def packed_data(config: RunConfig, store: TokenStore) -> DataModule:
    """The rows of --context_length tokens of a store."""
    length, tokenizer = config[Transformer].context_length, store.tokenizer
    rows = {name: PackedRows(split, length, tokenizer.pad_id) for name, split in store.splits.items()}
    tokens = len(rows["train"].tokens)
    if length >= tokens and not config.testing.only_test:
        raise UserError(
            f"--context_length is {length}: the training split has only {tokens:,} tokens; "
            f"choose at most {max(tokens - 1, 0)} or give more data."
        )
    documents = sum(split.num_documents for split in rows.values())
    if documents < FEW_DOCUMENTS:
        for split in rows.values():
            split.if_empty = f" (of documents, which are not cut, there are only {documents})"
    facts = {name: {"tokens_per_byte": split.num_units / max(1, split.num_bytes)} for name, split in rows.items()}
    return DataModule(config, rows, TextSpec.of(tokenizer), tokenizer, store.fingerprint, facts, store.origin)
