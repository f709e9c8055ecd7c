"""lambada: passages whose last word needs the whole passage; trained on the novels they come from."""

from __future__ import annotations

from data.sources.hub import Example, HubDataset


def to_text(example: Example) -> str:
    return example["text"]


LAMBADA = HubDataset(
    "cimec/lambada",
    fields=("text",),
    to_text=to_text,
    splits={"train": "train", "valid": "validation", "test": "test"},
)
