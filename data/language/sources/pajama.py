"""pajama: the one-billion-token sample of RedPajama."""

from __future__ import annotations

from data.language.sources.hub_dataset import Example, HubDataset


def to_text(example: Example) -> str:
    return example["text"]


DATASETS = {
    "pajama": HubDataset(
        "togethercomputer/RedPajama-Data-1T-Sample",
        fields=("text",),
        to_text=to_text,
        splits={"train": "train"},
        lines="*.jsonl",  # beside a loading script, which `datasets` no longer runs
        streaming=True,
    )
}
