"""A RunConfig as plain values: to JSON, YAML, a command line or a table and back; its defaults, differences.

Also which flags matter for what: those that only the record has, those that a checkpoint decides, those shown first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

from core.text import format_value

from .checks import RECORD
from .config_file import VERSION, Changes, later_version, upgrade
from .flags import Flag
from .parser import ParsedFlags, parse_mapping, resolve
from .settings import COMMON, DEBUG_PRESETS, RunConfig
from .task import DEFAULT_TASK, find_task
from .task_flags import all_flags, all_names, task_flags

# Other settings follow from these, so that they come first and are always stated.
LEADING_FLAGS = ("task", "modality", "image_task", "model_size", "recipe", *DEBUG_PRESETS)
# A new run has its own folder and begins at step 0; all of its settings are stated, what --match_flops chose as well.
PER_RUN_FLAGS = ("config", "resume_training_ckpt", "logs_dir", "match_flops")
# Sections of which a resumed run may change everything.
CHANGEABLE_SECTIONS = ("logging", "checkpoint", "debugging", "testing")


def values_of(config: RunConfig) -> dict[str, Any]:
    """Every setting by the name of its flag."""
    groups = config.sections().values()
    return {setting.name: getattr(group, setting.name) for group in groups for setting in fields(group)}


def plain_value(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def to_dict(config: RunConfig) -> dict[str, Any]:
    """{group: {flag: value}} of values that JSON and YAML have, and the version of these settings."""
    groups = {
        section: {setting.name: plain_value(getattr(group, setting.name)) for setting in fields(group)}
        for section, group in config.sections().items()
    }
    return {"version": VERSION, **groups}


def from_dict(tree: Mapping[str, Any], origin: str = RECORD) -> RunConfig:
    """The settings of a dict, nested or flat, checked like a --config file; a flag it lacks has its default.

    `changed` of it: what an earlier version meant by some of them, where training would be different now.
    """
    problems = later_version(tree, origin)
    tree, changed = upgrade(tree)
    return replace(resolve(parse_mapping(tree, origin, problems), ParsedFlags(), origin, problems), changed=changed)


def changed_problems(changed: Changes, subject: str) -> list[str]:
    """Why a record of an earlier version is not trained with, a sentence for each flag."""
    return [
        f"{subject} was made by an earlier version, in which --{name} meant another thing: {why}; "
        "start a new run, or train on with the version that made it."
        for name, why in changed.items()
    ]


def to_yaml(config: RunConfig) -> str:
    """The settings as a file that --config reads."""
    import yaml  # here, so that --help does not wait for it

    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


def differences(a: RunConfig, b: RunConfig) -> dict[str, tuple[Any, Any]]:
    """{flag: (value in a, value in b)} of the flags that differ; None where a task does not have the flag."""
    left, right = values_of(a), values_of(b)
    names = left | right
    return {name: (left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)}


def describe(config: RunConfig) -> str:
    """The table of --print_config: flag, value and source by group; * marks what differs from the default."""
    changed = differences(config, from_dict({"task": config.run.task}))
    values = {name: format_value(value) for name, value in values_of(config).items()}
    names = max(map(len, values)) + 2
    width = min(40, max(map(len, values.values())))
    lines = []
    for section, group in config.sections().items():
        lines += [f"{section.upper()}  {type(group).__doc__}"]
        for name in (setting.name for setting in fields(group)):
            mark = "*" if name in changed else " "
            source = config.sources.get(name, "default")
            lines.append(f"{mark} {'--' + name:{names}}  {values[name]:{width}}  {source}")
        lines.append("")
    return "\n".join([*lines, "* differs from the default"])


# As a command line


def to_words(values: Mapping[str, Any]) -> list[str]:
    """A command line that gives these values; None is skipped, since no flag expresses it."""
    words: list[str] = []
    for name, value in values.items():
        flag = flag_named(name, values)
        if flag.kind is bool:
            words.append(flag.spelled(value))
        elif isinstance(value, list | tuple):
            words += [flag.spelled(), *value] if value else []
        elif value is not None:
            text = str(value)
            words += [f"{flag.spelled()}={text}"] if text.startswith("--") else [flag.spelled(), text]
    return words


def without_flags(words: Sequence[str], names: Iterable[str]) -> list[str]:
    """A command line without these flags, in any of their spellings, and their values."""
    spellings = set()
    for name in names:
        flag = all_names().get(name)
        spellings |= {f"--{name}", *(flag.on if flag else ()), *(flag.off if flag else ())}
    left, dropping = [], False
    for word in words:
        if word.startswith("--") and word != "--":
            dropping = word.partition("=")[0] in spellings
        if not dropping:
            left.append(word)
    return left


def flag_named(name: str, values: Mapping[str, Any]) -> Flag:
    """The flag of a name, also of a task that is no module of tasks/ where `values` name it."""
    flags = all_flags()
    return flags[name] if name in flags else task_flags(find_task(str(values["task"]))).flags[name]


# What follows from other settings


def defaults_like(values: Mapping[str, Any], leading: Sequence[str] = LEADING_FLAGS) -> dict[str, Any]:
    """Every setting as a run has it that shares only these flags: task, size, recipe and debug preset."""
    return values_of(from_dict({name: values[name] for name in leading if name in values}))


def own_values(recorded: Mapping[str, Any], origin: str = RECORD) -> dict[str, Any]:
    """Those of the recorded settings that do not follow from its task, size, recipe or debug preset."""
    problems: list[str] = []
    parsed = parse_mapping(recorded, origin, problems).values
    defaults = defaults_like(recorded)
    plain = defaults_like(recorded, ("task",)) | {"task": DEFAULT_TASK}
    return {
        name: value
        for name, value in parsed.items()
        if value != defaults[name] or (name in LEADING_FLAGS and value != plain[name])
    }


def is_used(flag: Flag, values: Mapping[str, Any]) -> bool:
    """Whether the model that these values name uses the flag."""
    model = values.get("model_name")
    return model in flag.needs.get("model_name", (model,))


def identity(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a run computes, whatever it is called: the values of all flags that affect it; equal for equal runs."""
    items = []
    for name, flag in all_flags().items():
        idle = not is_used(flag, values) or (values.get("is_random_seed") and name == "seed")
        value = None if flag.affects == "record" or idle else values.get(name, flag.default)
        items.append(tuple(map(str, value)) if isinstance(value, (list, tuple)) else value)
    return (*items, *((name, str(values[name])) for name in sorted(values.keys() - all_flags().keys())))


# Which flags matter for what


@cache
def record_flags() -> frozenset[str]:
    """Flags that only say where a run is kept and how it is shown: two runs that differ in them compute the same."""
    return frozenset(name for name, flag in all_flags().items() if flag.affects == "record")


@cache
def flags_shown_first(rank: int = 2) -> tuple[str, ...]:
    """Flags that tables of runs show before others, the most telling first. rank: 1 for a few of them."""
    flags = [flag for flag in all_flags().values() if 0 < flag.shown_first <= rank]
    return tuple(flag.name for flag in sorted(flags, key=lambda flag: flag.shown_first))


def is_changeable(flag: Flag) -> bool:
    """Whether a resumed run may have another value of it without becoming another run."""
    return flag.group in CHANGEABLE_SECTIONS or flag.affects != "result" or flag.changeable


def is_of_model(flag: Flag) -> bool:
    """Whether a checkpoint's weights belong to its value, so that a run that starts from them takes it over."""
    return flag.of_model or (flag.group not in COMMON and flag.group != "inference")
