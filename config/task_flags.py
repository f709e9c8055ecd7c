"""Which flags a command has: those of every run, those of its task, and infer_* for inference.

`choose_flags` finds the task of a command line or a record, `all_flags` has the flags of every task in tasks/.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from .flags import Flag, flags_of, section_of
from .settings import COMMON, Inference
from .task import DEFAULT_TASK, TaskFacts, all_tasks, find_task, task_of_legacy_names

SELECTORS = ("task", "modality", "image_task", "execution_mode")  # the flags that decide which others there are


@dataclass(frozen=True, eq=False)
class FlagSet:
    """The flags that a command has. sections: the groups by their key; flags: by name; names: by any spelling."""

    sections: dict[str, type]
    flags: dict[str, Flag]
    names: dict[str, Flag]
    task: TaskFacts | None = None

    @classmethod
    def of(cls, sections: Mapping[str, type], flags: Iterable[Flag], task: TaskFacts | None = None) -> FlagSet:
        by_name = {flag.name: flag for flag in flags}
        names = {name: flag for flag in by_name.values() for name in (flag.name, *flag.aliases)}
        return cls(dict(sections), by_name, names, task)


@cache
def task_flags(task: TaskFacts, inference: bool = False) -> FlagSet:
    """The flags of a run of this task: those of every run, those of the task, and infer_* for inference."""
    own = {section_of(group): group for group in (*task.groups, *((Inference,) if inference else ()))}
    rest = {name: own.pop(name, group) for name, group in COMMON.items()}
    sections = {"run": rest.pop("run"), **own, **rest}
    flags = [flag for name, group in sections.items() for flag in flags_of(name, group).values()]
    return FlagSet.of(sections, [of_task(flag, task) for flag in flags], task)


def of_task(flag: Flag, task: TaskFacts) -> Flag:
    """The flag with the choices and the default that it has for this task."""
    if flag.name in ("model_name", "recipe"):
        choices = tuple(task.models if flag.name == "model_name" else task.recipes)
        return replace(flag, choices=choices, default=choices[0] if choices else None, optional=not choices)
    own = {**legacy_names(task), **task.defaults}
    return replace(flag, default=own[flag.name]) if flag.name in own else flag


def legacy_names(task: TaskFacts) -> dict[str, str | None]:
    modality, image_task = task.legacy or (None, None)
    return {"modality": modality, "image_task": image_task}


@cache
def all_flags() -> dict[str, Flag]:
    """Every flag of every task in tasks/ and of inference; one that several have is as in the default task."""
    tasks = all_tasks()
    flags: dict[str, Flag] = {}
    for task in (tasks[DEFAULT_TASK], *tasks.values()):
        flags |= {name: flag for name, flag in task_flags(task, inference=True).flags.items() if name not in flags}
    return flags


@cache
def all_names() -> dict[str, Flag]:
    """Every flag by each of its spellings without dashes."""
    return {name: flag for flag in all_flags().values() for name in (flag.name, *flag.aliases)}


def tasks_with(name: str) -> list[str]:
    """The tasks that have a flag of this name."""
    return [task for task, facts in all_tasks().items() if name in task_flags(facts).names]


def choose_flags(values: Mapping[str, Any]) -> tuple[str, FlagSet]:
    """The name of the task that these values of SELECTORS choose, and its flags; a UserError where there is none."""
    name = values.get("task")
    if name is None and (values.get("modality") in ("NLP", "IMG", "VID") or values.get("image_task")):
        name = task_of_legacy_names(values.get("modality"), values.get("image_task"))
    name = name or DEFAULT_TASK
    return name, task_flags(find_task(name), values.get("execution_mode") == "inference")
