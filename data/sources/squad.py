"""squad: questions whose answers stand in a paragraph."""

from __future__ import annotations

from data.sources.hub import Asking, Example, HubDataset, Question


def to_text(example: Example) -> str:
    answers = example["answers"]["text"]
    return f"{example['context']}\nQuestion: {example['question']}\nAnswer: {answers[0] if answers else 'none'}"


def question(example: Example) -> Question:
    prompt = f"{example['context']}\nQuestion: {example['question']}\nAnswer:"
    return Question(prompt, tuple(example["answers"]["text"]) or ("none",))


SQUAD = HubDataset(
    "rajpurkar/squad",
    fields=("context", "question", "answers"),
    to_text=to_text,
    splits={"train": "train", "valid": "validation"},
    asking=Asking(question, compare="words"),
)
