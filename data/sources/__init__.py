"""The registry of datasets: every name that --dataset_name knows."""

from __future__ import annotations

from collections.abc import Callable

from config.settings import Data
from data.errors import DataError
from data.sources.pydocs import PyDocs
from data.sources.source import SPLITS, Source

__all__ = ["REGISTRY", "SPLITS", "Source", "find_source"]

REGISTRY: dict[str, Callable[[Data], Source]] = {"pydocs": lambda settings: PyDocs()}


def find_source(settings: Data) -> Source:
    """The dataset that --dataset_name names."""
    name = settings.dataset_name.partition(":")[0]
    if name not in REGISTRY:
        raise DataError(f"--dataset_name is {name!r}: choose {', '.join(REGISTRY)}.")
    return REGISTRY[name](settings)
