"""lambada: passages whose last word needs the whole passage; trained on the novels they come from."""

from __future__ import annotations

from data.sources.hub import Asking, Example, HubDataset, Question


def to_text(example: Example) -> str:
    return example["text"]


def question(example: Example) -> Question:
    """The passage without its last word."""
    passage, _, word = example["text"].rstrip().rpartition(" ")
    return Question(passage, (word,))


LAMBADA = HubDataset(
    "cimec/lambada",
    fields=("text",),
    to_text=to_text,
    splits={"train": "train", "valid": "validation", "test": "test"},
    asking=Asking(question, end=r"\S\s", compare="words"),
)
