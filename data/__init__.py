"""Text to batches of tensors; knows no model."""

from __future__ import annotations

from pathlib import Path

from config.settings import RunConfig
from data.errors import DataError
from data.kept import tokenizer_in
from data.module import DataModule
from data.store import open_store

__all__ = ["DataError", "DataModule", "build_data"]


def build_data(config: RunConfig, *runs: Path | None) -> DataModule:
    """The data of a run: reads and tokenises the text, or opens the cache of an earlier run.

    runs: folders of runs; the first that has the tokenizer that is asked for gives it.
    """
    kept = (tokenizer_in(run, config.data.tokenizer) for run in runs if run is not None)
    return DataModule(config, open_store(config.data, next(filter(None, kept), None)))
