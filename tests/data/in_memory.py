"""Settings and token stores for tests, without files."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from config.settings import RunConfig
from data.module import DataModule
from data.store import Split, TokenStore
from data.tokenizers import ByteTokenizer


def make_config(**flags: Any) -> RunConfig:
    """The default settings with these flags set."""
    config = RunConfig()
    for group in fields(config):
        settings = getattr(config, group.name)
        if is_dataclass(settings):
            mine = {name: flags.pop(name) for name in [field.name for field in fields(settings)] if name in flags}
            config = replace(config, **{group.name: replace(settings, **mine)})
    assert not flags, f"no such flags: {flags}"
    return config


def make_split(tokens: np.ndarray) -> Split:
    return Split(tokens.astype(np.uint16), num_documents=int((tokens == 256).sum()), num_bytes=int((tokens < 256).sum()))


def make_store(train: int = 2960, valid: int = 700, test: int = 500, fingerprint: str = "content") -> TokenStore:
    """Random bytes, so many tokens a split."""
    generator = np.random.default_rng(0)
    lengths = {"train": train, "valid": valid, "test": test}
    splits = {name: make_split(generator.integers(256, size=length)) for name, length in lengths.items()}
    return TokenStore(ByteTokenizer(), splits, fingerprint, None)


def make_data(store: TokenStore | None = None, **flags: Any) -> DataModule:
    flags = {"context_length": 16, "batch_size_per_device": 4, "max_steps": 100, **flags}
    return DataModule(make_config(**flags), store or make_store())
