"""Settings and token stores for tests, without files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from config.record import from_dict, values_of
from config.settings import RunConfig
from data.language.build import packed_data
from data.language.store import Split, TokenStore
from data.language.tokenizers import ByteTokenizer
from data.module import DataModule


def make_config(**flags: Any) -> RunConfig:
    """The default settings with these flags set."""
    config = from_dict({})
    assert not flags.keys() - values_of(config).keys(), f"no such flags: {flags}"
    return config.with_values(flags)


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
    return packed_data(make_config(**flags), store or make_store())


def on_rank(data: DataModule, rank: int, world_size: int, batches: int = 0, fn: str = "fit") -> DataModule:
    """The module as if attached to a trainer of this rank that has done so many batches."""
    state = SimpleNamespace(fn=fn)
    data.trainer = SimpleNamespace(world_size=world_size, global_rank=rank, state=state)  # type: ignore[assignment]
    data.count_batches = lambda: batches
    return data
