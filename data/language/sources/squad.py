"""squad: questions whose answers stand in a paragraph; of version 2 those that can be answered."""

from __future__ import annotations

from data.language.sources.hub_dataset import Example, HubDataset, Question, QuestionFormat


def to_text(example: Example) -> str | None:
    answers = example["answers"]["text"]
    return f"{example['context']}\nQuestion: {example['question']}\nAnswer: {answers[0]}" if answers else None


def question(example: Example) -> Question | None:
    prompt = f"{example['context']}\nQuestion: {example['question']}\nAnswer:"
    answers = tuple(example["answers"]["text"])
    return Question(prompt, answers) if answers else None


DATASETS = {
    "squad": HubDataset(
        "rajpurkar/squad_v2",
        fields=("context", "question", "answers"),
        to_text=to_text,
        splits={"train": "train", "valid": "validation"},
        revision="3ffb306f725f7d2ce8394bc1873b24868140c412",
        question_format=QuestionFormat(question, compare="words"),
    )
}
