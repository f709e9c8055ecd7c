"""The registry of datasets: every name that --dataset_name knows."""

from __future__ import annotations

from difflib import get_close_matches

from config.settings import Data
from data.errors import DataError
from data.sources.ai2arc import AI2ARC
from data.sources.arrow import Arrow
from data.sources.bigbench import BIGBENCH
from data.sources.csv import Csv
from data.sources.fineweb import FINEWEB
from data.sources.gsm8k import GSM8K
from data.sources.hub import HubDataset, HubSource
from data.sources.jsonl import JsonLines
from data.sources.lambada import LAMBADA
from data.sources.pajama import PAJAMA
from data.sources.parquet import Parquet
from data.sources.planbench import PLANBENCH
from data.sources.pydocs import PyDocs
from data.sources.source import SPLITS, Source
from data.sources.squad import SQUAD
from data.sources.synthetic import Synthetic
from data.sources.text import TextSource

__all__ = ["SPLITS", "Source", "dataset_names", "find_source"]

MADE_HERE: dict[str, type[PyDocs] | type[Synthetic]] = {"pydocs": PyDocs, "synthetic": Synthetic}
LOCAL: dict[str, type[TextSource] | type[JsonLines] | type[Csv] | type[Parquet] | type[Arrow]] = {
    "text": TextSource,
    "jsonl": JsonLines,
    "csv": Csv,
    "parquet": Parquet,
    "arrow": Arrow,
}
HUB: dict[str, HubDataset] = {
    "pajama": PAJAMA,
    "fineweb": FINEWEB,
    "lambada": LAMBADA,
    "gsm8k": GSM8K,
    "ai2arc": AI2ARC,
    "squad": SQUAD,
    "bigbench": BIGBENCH,
    "planbench": PLANBENCH,
}


def dataset_names() -> list[str]:
    """All that --dataset_name accepts, without parts."""
    return [*MADE_HERE, *LOCAL, *HUB]


def find_source(settings: Data) -> Source:
    """The dataset that --dataset_name names."""
    name, colon, _ = settings.dataset_name.partition(":")
    if name in HUB:
        return HubSource(HUB[name], settings)
    if name not in MADE_HERE and name not in LOCAL:
        near = get_close_matches(name, dataset_names(), 1, 0.5)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise DataError(f"--dataset_name is {settings.dataset_name!r}: choose {', '.join(dataset_names())}.{hint}")
    if colon:
        raise DataError(f"--dataset_name is {settings.dataset_name!r}: {name} has no parts; give {name} alone.")
    if name in LOCAL:
        return LOCAL[name](settings)
    if settings.dataset_dir is not None:
        raise DataError(
            f"--dataset_dir is {settings.dataset_dir!r}: --dataset_name {name} reads no files; "
            f"leave it out, or choose {', '.join(LOCAL)} to read your own."
        )
    return MADE_HERE[name](settings)
