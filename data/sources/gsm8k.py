"""gsm8k: grade-school word problems with worked answers."""

from __future__ import annotations

from data.sources.hub import Example, HubDataset


def to_text(example: Example) -> str:
    return f"Question: {example['question']}\nAnswer: {example['answer']}"


GSM8K = HubDataset(
    "openai/gsm8k",
    fields=("question", "answer"),
    to_text=to_text,
    splits={"train": "train", "test": "test"},
    part="main",
    parts=("main", "socratic"),
)
