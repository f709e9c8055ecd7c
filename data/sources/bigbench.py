"""bigbench: the tasks of BIG-bench, one part each."""

from __future__ import annotations

from data.sources.hub import Asking, Example, HubDataset, Question


def to_text(example: Example) -> str:
    targets = example["targets"]
    return f"{example['inputs']}\n{targets[0] if targets else ''}".rstrip()


def question(example: Example) -> Question:
    """A task of multiple choice has its answers in a field of their own; others have none there."""
    choices = tuple(example.get("multiple_choice_targets") or ())
    return Question(f"{example['inputs']}\n", tuple(example["targets"]), choices)


BIGBENCH = HubDataset(
    "tasksource/bigbench",
    fields=("inputs", "targets"),
    to_text=to_text,
    splits={"train": "train", "valid": "validation"},
    parts=("logical_deduction", "elementary_math_qa", "dyck_languages"),
    any_part=True,
    asking=Asking(question),
)
