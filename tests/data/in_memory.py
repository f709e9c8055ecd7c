"""Settings and token stores for tests, without files."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from config.settings import RunConfig
from data.module import DataModule
from data.store import Split, TokenStore
from data.tokenizers import ByteTokenizer


def make_config(**flags: Any) -> RunConfig:
    """The default settings with these flags set."""
    defaults: Any = RunConfig()
    groups: dict[str, Any] = {}
    for group in fields(RunConfig):
        settings = getattr(defaults, group.name)
        if group.name not in ("sources", "changed"):
            mine = {field.name: flags.pop(field.name) for field in fields(settings) if field.name in flags}
            groups[group.name] = replace(settings, **mine)
    assert not flags, f"no such flags: {flags}"
    return RunConfig(**groups)


def make_split(tokens: np.ndarray) -> Split:
    num_documents, num_bytes = int((tokens == 256).sum()), int((tokens < 256).sum())
    return Split(tokens.astype(np.uint16), num_documents, num_bytes)


def make_store(train: int = 2960, valid: int = 700, test: int = 500, fingerprint: str = "content") -> TokenStore:
    """Random bytes, so many tokens a split."""
    generator = np.random.default_rng(0)
    lengths = {"train": train, "valid": valid, "test": test}
    splits = {name: make_split(generator.integers(256, size=length)) for name, length in lengths.items()}
    return TokenStore(ByteTokenizer(), splits, fingerprint, None)


def make_data(store: TokenStore | None = None, **flags: Any) -> DataModule:
    flags = {"context_length": 16, "batch_size_per_device": 4, "max_steps": 100, **flags}
    return DataModule(make_config(**flags), store or make_store())
