"""The registry of datasets: every name that --dataset_name knows.

Each file beside this one says in DATASETS what it offers; a new dataset is a new file.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pkgutil import iter_modules

from config.settings import Text
from core.errors import UserError
from data.language.sources.hub_dataset import HubDataset, HubSource
from data.language.sources.source import SPLITS, Source

__all__ = ["HUB", "SPLITS", "Source", "dataset_names", "find_source"]

GENERATED: dict[str, type[Source]] = {}
LOCAL: dict[str, type[Source]] = {}  # read the files of --dataset_dir
HUB: dict[str, HubDataset] = {}

for _module in iter_modules(__path__, f"{__name__}."):
    _datasets: dict[str, HubDataset | type[Source]] = getattr(import_module(_module.name), "DATASETS", {})
    for _name, _dataset in _datasets.items():
        if isinstance(_dataset, HubDataset):
            HUB[_name] = _dataset
        else:
            (LOCAL if _dataset.reads_files else GENERATED)[_name] = _dataset


def dataset_names() -> list[str]:
    """All that --dataset_name accepts, without parts."""
    return [*GENERATED, *LOCAL, *HUB]


def find_source(settings: Text) -> Source:
    """The dataset that --dataset_name names."""
    name, colon, _ = settings.dataset_name.partition(":")
    if name in HUB:
        return HubSource(HUB[name], settings)
    if name not in GENERATED and name not in LOCAL:
        near = get_close_matches(name, dataset_names(), 1, 0.5)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UserError(f"--dataset_name is {settings.dataset_name!r}: choose {', '.join(dataset_names())}.{hint}")
    if colon:
        raise UserError(f"--dataset_name is {settings.dataset_name!r}: {name} has no parts; give {name} alone.")
    if name in LOCAL:
        return LOCAL[name](settings)
    if settings.dataset_dir is not None:
        raise UserError(
            f"--dataset_dir is {settings.dataset_dir!r}: --dataset_name {name} reads no files; "
            f"leave it out, or choose {', '.join(LOCAL)} to read your own."
        )
    return GENERATED[name](settings)
