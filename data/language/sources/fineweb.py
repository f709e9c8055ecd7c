"""fineweb: cleaned web pages; 10 billion tokens of them unless another part is named."""

from __future__ import annotations

from data.language.sources.hub_dataset import Example, HubDataset


def to_text(example: Example) -> str:
    return example["text"]


DATASETS = {
    "fineweb": HubDataset(
        "HuggingFaceFW/fineweb",
        fields=("text",),
        to_text=to_text,
        splits={"train": "train"},
        part="sample-10BT",
        parts=("sample-10BT", "sample-100BT", "sample-350BT"),
        any_part=True,  # one for every crawl
        streaming=True,
    )
}
