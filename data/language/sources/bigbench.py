"""bigbench: the tasks of BIG-bench, one part each."""

from __future__ import annotations

from data.language.sources.hub_dataset import Example, HubDataset, Question, QuestionFormat


def to_text(example: Example) -> str:
    targets = example["targets"]
    return f"{example['inputs']}\n{targets[0] if targets else ''}".rstrip()


def question(example: Example) -> Question | None:
    """A task of multiple choice has its answers in a field of their own; others have none there."""
    choices = tuple(example.get("multiple_choice_targets") or ())
    answers = tuple(example["targets"] or ())
    return Question(f"{example['inputs']}\n", answers, choices) if answers else None


DATASETS = {
    "bigbench": HubDataset(
        "hails/bigbench",
        fields=("inputs", "targets"),
        to_text=to_text,
        splits={"train": "train", "valid": "validation"},
        parts=("logical_deduction", "elementary_math_qa", "dyck_languages"),
        any_part=True,
        config="{part}_zero_shot",
        question_format=QuestionFormat(question),
    )
}
