"""What is known of a task without torch: its flags, its measures, and what it is trained for (--goal).

`find_task("language")` gives TASK of the module tasks.language; a name with a dot is any other module on sys.path.
"""

from __future__ import annotations

import fnmatch
import importlib
import math
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from core.errors import UserError
from core.text import format_value, join_words

from .flags import Decides

Results = Mapping[str, float]
SplitFacts = Mapping[str, float]
Check = Callable[[Any], str | None]

DEFAULT_TASK = "language"
PACKAGE = "tasks"
SPLITS = {"train": "training", "valid": "validation", "test": "test"}
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
GOAL = re.compile(r"\s*([a-z0-9_]+)\s*(<=|>=|<|>)\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)\s*", re.I)
LONGEST_GOAL = 100


@dataclass(frozen=True)
class Measure:
    """One number that is measured, once for all that show or judge it.

    A measure of a split has the columns train_NAME, valid_NAME and test_NAME; one of training rows (split=False) the
    column NAME. `*` in a name stands for what the data or the settings decide; in the title it is replaced by that.
    """

    name: str
    title: str
    unit: str = ""
    better: Literal["lower", "higher"] | None = None
    split: bool = True
    scale: float | None = None  # a change that matters; None: the first value measured
    derive: Callable[[Results, SplitFacts], float] | None = None  # from other results and facts of the split
    instead: str = ""  # the measure that says the same for any unit, to compare runs by whose units differ
    line: str | None = None  # its part of the line of an evaluation, such as "loss {:.4f} nats"

    @property
    def is_pattern(self) -> bool:
        return "*" in self.name

    def matches(self, name: str) -> bool:
        return fnmatch.fnmatchcase(name, self.name) if self.is_pattern else name == self.name

    def named(self, name: str) -> Measure:
        """The measure of one name that fits the pattern: loss_step_2 is "loss after step 2"."""
        before, _, after = self.name.partition("*")
        part = name.removeprefix(before).removesuffix(after) if self.is_pattern else ""
        return replace(self, name=name, title=self.title.replace("*", part))

    @property
    def is_share(self) -> bool:
        return self.unit.startswith("share of ")

    @property
    def heading(self) -> str:
        """The heading of its column in a table: nats per token; near its corner, share of points."""
        if not self.unit or self.unit == self.title:
            return self.title
        return self.unit if self.title == "loss" else f"{self.title}, {self.unit}"

    def format(self, value: float) -> str:
        return f"{value:.1%}" if self.is_share else f"{value:.4f}"

    def sentence(self, value: float) -> str:
        """A value in the line of an evaluation."""
        if self.line is not None:
            return self.line.format(value)
        return " ".join(filter(None, (self.title, self.format(value), "" if self.is_share else self.unit)))


@dataclass(frozen=True)
class Alarm:
    """A measure of a validation that is too low: what it means, with {} for its value, and what people usually do."""

    kind: str
    measure: str
    below: float
    text: str
    advice: str


@dataclass(frozen=True)
class Command:
    """A command of `python -m inference`; one of a task comes before a general one of the same name.

    target: module:function, called with `model`, `command` and `inference`, its flags. flags: the group of its own
    (importable without torch); usage: words after its name. inference: the group of infer_ flags where it is not
    Inference itself; without: those that have no meaning for it.
    """

    target: str
    flags: type
    purpose: str
    usage: str = "--run RUN"
    without: tuple[str, ...] = ()
    inference: type | None = None


class TaskFacts:
    """What is known of a task without torch: config/ reads its flags, the run folder keeps its measures."""

    name: ClassVar[str]
    unit: ClassVar[str]  # tokens, images, clips: names a column and an axis
    models: ClassVar[Mapping[str, str]]  # --model_name -> title, the default first
    groups: ClassVar[tuple[type, ...]]  # dataclasses of flags; one that extends a group of every run replaces it
    defaults: ClassVar[Mapping[str, Any]] = {}  # of shared flags where this task's differ
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # --recipe -> flags that it sets, the default first
    checks: ClassVar[tuple[Check, ...]] = ()  # of several flags together; see config/checks
    twin: ClassVar[Mapping[str, Any]] = {}  # flags that make the run of --compare_baseline
    legacy: ClassVar[tuple[str, str | None] | None] = None  # --modality and --image_task of older scripts
    commands: ClassVar[Mapping[str, Command]] = {}
    alarms: ClassVar[tuple[Alarm, ...]] = ()

    @property
    def one_unit(self) -> str:
        """The unit in the singular: token."""
        return self.unit.removesuffix("s")

    def measures(self, values: Mapping[str, Any]) -> tuple[Measure, ...]:
        """Those of a run with these settings, the headline first."""
        raise NotImplementedError


def find_task(name: str) -> TaskFacts:
    """TASK of module tasks.NAME, or of NAME itself where it has a dot."""
    module = name if "." in name else f"{PACKAGE}.{name}"
    if NAME.fullmatch(name):
        try:
            task = getattr(importlib.import_module(module), "TASK", None)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise UserError(f"--task is {name!r}: {module} cannot be imported: {error}.") from error
            task = None
        if isinstance(task, TaskFacts):
            return task
    names = join_words([*all_tasks(), "a module with a dot in its name, which has a TASK"])
    raise UserError(f"--task is {name!r}: there is no such task; choose {names}.")


def all_tasks() -> dict[str, TaskFacts]:
    """The tasks in tasks/, by name; other modules there have no TASK."""
    package = importlib.import_module(PACKAGE)
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    modules = {name: importlib.import_module(f"{PACKAGE}.{name}") for name in names}
    return {name: module.TASK for name, module in modules.items() if hasattr(module, "TASK")}


def task_of_legacy_names(modality: str | None, image_task: str | None) -> str:
    """The task that --modality and --image_task name; a UserError where there is none."""
    modality = modality or ("IMG" if image_task else None)
    tasks = {name: task.legacy for name, task in all_tasks().items() if task.legacy}
    fitting = [name for name, legacy in tasks.items() if legacy == (modality, image_task)]
    if fitting:
        return fitting[0]
    names = " with ".join(
        f"--{name} {format_value(value)}"
        for name, value in (("modality", modality), ("image_task", image_task))
        if value
    )
    parts = [str(legacy[1]) for legacy in tasks.values() if legacy[0] == modality and legacy[1]]
    if parts and not image_task:
        raise UserError(f"{names} does not say which task: add --image_task {join_words(parts)}.")
    raise UserError(f"{names} names no task that there is: choose --task {join_words(list(all_tasks()))}.")


def task_record(task: TaskFacts, values: Mapping[str, Any]) -> dict[str, Any]:
    """What task.json of a run folder holds: all that reading a run later needs to know of its task."""
    from .task_flags import task_flags  # here, since that module imports this one

    measures = task.measures(values)
    flags = task_flags(task).flags.values()
    return {
        "name": task.name,
        "unit": task.unit,
        "headline": headline(measures),
        "models": dict(task.models),
        "measures": [
            {key: getattr(measure, key) for key in ("name", "title", "unit", "better", "split", "scale", "instead")}
            for measure in measures
        ],
        "twin": dict(task.twin),
        "decides": {kind: [flag.name for flag in flags if flag.decides == kind] for kind in get_args(Decides)},
    }


def measures_of_record(record: Mapping[str, Any]) -> tuple[Measure, ...]:
    """The measures of a task.json."""
    return tuple(Measure(**measure) for measure in record.get("measures", ()))


def derived(measures: Sequence[Measure], results: Results, facts: SplitFacts) -> dict[str, float]:
    """The results, and the measures that are derived from them as far as they allow it."""
    complete = dict(results)
    for measure in measures:
        if measure.derive is not None:
            with suppress(KeyError):
                complete[measure.name] = measure.derive(complete, facts)
    return complete


def evaluation_line(measures: Sequence[Measure], results: Results) -> str:
    """The headline and two more, each with its unit; those that have a `line` come before others."""
    candidates = [measure for measure in measures if measure.split and measure.better and measure.name in results]
    lines = [measure for measure in candidates if measure.line is not None] or candidates
    return ", ".join(measure.sentence(results[measure.name]) for measure in lines[:3])


def headline(measures: Sequence[Measure]) -> str:
    """The column that a run is judged by."""
    return f"valid_{measures[0].name}"


def loss_of(measures: Sequence[Measure]) -> Measure:
    """The measure of the loss, which every evaluation has; the headline where none is named so."""
    return next((measure for measure in measures if measure.split and measure.name == "loss"), measures[0])


def measure_of(column: str, measures: Sequence[Measure]) -> Measure | None:
    """The measure of a column, with the split in its title; exact names come before patterns."""
    split, _, rest = column.partition("_")
    for measure in sorted(measures, key=lambda measure: measure.is_pattern):
        if not measure.split and measure.matches(column):
            return measure.named(column)
        if measure.split and split in SPLITS and measure.matches(rest):
            exact = measure.named(rest)
            return replace(exact, name=column, title=f"{SPLITS[split]} {exact.title}")
    return None


def watchable(task: TaskFacts, values: Mapping[str, Any]) -> tuple[Measure, ...]:
    """The measures of a validation that --goal and --checkpoint_monitor_string may name: not how many units it had."""
    return tuple(measure for measure in task.measures(values) if measure.split and measure.unit != task.unit)


@dataclass(frozen=True)
class Goal:
    """What a run is trained for: a metric of its validations and the value it has to reach (--goal valid_loss<1.4).

    sign: one of < <= > >=.
    """

    metric: str
    sign: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Goal:
        """The goal of a text; a ValueError says what is allowed. Whether it is measured is checked elsewhere."""
        match = GOAL.fullmatch(text) if len(text) <= LONGEST_GOAL else None
        if not match or not math.isfinite(float(match[3])):
            raise ValueError("write a metric, one of < <= > >= and a number, in quotes: 'valid_loss<1.4'")
        return cls(match[1], match[2], float(match[3]))

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.value:g}"

    def is_met(self, value: float) -> bool:
        if self.sign.startswith("<"):
            return value < self.value or (self.sign == "<=" and value == self.value)
        return value > self.value or (self.sign == ">=" and value == self.value)

    def is_nearer(self, value: float, other: float) -> bool:
        return value < other if self.sign.startswith("<") else value > other
