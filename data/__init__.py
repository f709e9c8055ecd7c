"""Text to batches of tensors; knows no model."""

from __future__ import annotations

from config.settings import RunConfig
from data.errors import DataError
from data.module import DataModule
from data.store import open_store

__all__ = ["DataError", "DataModule", "build_data"]


def build_data(config: RunConfig) -> DataModule:
    """The data of a run: reads and tokenises the text, or opens the cache of an earlier run."""
    return DataModule(config, open_store(config.data))
