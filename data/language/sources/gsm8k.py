"""gsm8k: grade-school word problems with worked answers."""

from __future__ import annotations

from data.language.sources.hub_dataset import Example, HubDataset, Question, QuestionFormat


def to_text(example: Example) -> str:
    return f"Question: {example['question']}\nAnswer: {example['answer']}"


def question(example: Example) -> Question:
    """The worked answer ends with #### and the number that counts."""
    return Question(f"Question: {example['question']}\nAnswer:", (example["answer"].rpartition("####")[2].strip(),))


DATASETS = {
    "gsm8k": HubDataset(
        "openai/gsm8k",
        fields=("question", "answer"),
        to_text=to_text,
        splits={"train": "train", "test": "test"},
        revision="740312add88f781978c0658806c59bc2815b9866",
        part="main",
        parts=("main", "socratic"),
        question_format=QuestionFormat(question, end=r"####.*\n", compare="number"),
    )
}
