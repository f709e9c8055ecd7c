"""lambada: passages whose last word needs the whole passage; a test set, with nothing to train on."""

from __future__ import annotations

from data.language.sources.hub_dataset import Example, HubDataset, Question, QuestionFormat


def to_text(example: Example) -> str:
    return example["text"]


def question(example: Example) -> Question:
    """The passage without its last word."""
    passage, _, word = example["text"].rstrip().rpartition(" ")
    return Question(passage, (word,))


DATASETS = {
    "lambada": HubDataset(
        "EleutherAI/lambada_openai",
        fields=("text",),
        to_text=to_text,
        splits={"test": "test"},
        part="en",
        parts=("en", "de", "es", "fr", "it"),
        question_format=QuestionFormat(question, end=r"\S\s", compare="words"),
    )
}
