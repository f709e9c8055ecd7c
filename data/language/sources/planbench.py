"""planbench: planning problems in words, with a plan that solves each."""

from __future__ import annotations

from data.language.sources.hub_dataset import Example, HubDataset, Question, QuestionFormat


def plan_of(example: Example) -> str:
    """Some parts have lists, others nothing at all."""
    plan = example["ground_truth_plan"]
    return "\n".join(step for step in plan if step) if isinstance(plan, list) else plan or ""


def to_text(example: Example) -> str | None:
    plan = plan_of(example)
    return f"{example['query']}\n{plan}" if plan else None


def question(example: Example) -> Question | None:
    plan = plan_of(example)
    return Question(f"{example['query']}\n", (plan,)) if plan else None


DATASETS = {
    "planbench": HubDataset(
        "tasksource/planbench",
        fields=("query", "ground_truth_plan"),
        to_text=to_text,
        splits={"train": "train"},
        part="task_1_plan_generation",
        question_format=QuestionFormat(question, end=r"\n\s*\n"),
        parts=(
            "task_1_plan_generation",
            "task_2_plan_optimality",
            "task_3_plan_verification",
            "task_5_plan_generalization",
            "task_7_plan_execution",
            "task_8_1_goal_shuffling",
            "task_8_2_full_to_partial",
        ),
    )
}
