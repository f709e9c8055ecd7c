"""bigbench: the tasks of BIG-bench, one part each."""

from __future__ import annotations

from data.sources.hub import Example, HubDataset


def to_text(example: Example) -> str:
    targets = example["targets"]
    return f"{example['inputs']}\n{targets[0] if targets else ''}".rstrip()


BIGBENCH = HubDataset(
    "tasksource/bigbench",
    fields=("inputs", "targets"),
    to_text=to_text,
    splits={"train": "train", "valid": "validation"},
    parts=("logical_deduction", "elementary_math_qa", "dyck_languages"),
    any_part=True,
)
