"""ai2arc: science questions with several choices."""

from __future__ import annotations

from data.language.sources.hub_dataset import Example, HubDataset, Question, QuestionFormat


def to_text(example: Example) -> str:
    choices = example["choices"]
    lines = [f"{label}. {text}" for label, text in zip(choices["label"], choices["text"], strict=True)]
    return "\n".join([f"Question: {example['question']}", *lines, f"Answer: {example['answerKey']}"])


def question(example: Example) -> Question:
    key = example["answerKey"]
    labels = tuple(f" {label}" for label in example["choices"]["label"])
    return Question(to_text(example).removesuffix(f" {key}"), (key,), labels)


DATASETS = {
    "ai2arc": HubDataset(
        "allenai/ai2_arc",
        fields=("question", "choices", "answerKey"),
        to_text=to_text,
        splits={"train": "train", "valid": "validation", "test": "test"},
        revision="210d026faf9955653af8916fad021475a3f00453",
        part="ARC-Challenge",
        parts=("ARC-Challenge", "ARC-Easy"),
        question_format=QuestionFormat(question),
    )
}
