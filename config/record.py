"""A RunConfig as plain values, JSON-able, as YAML, and as the table of --print_config; and back, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from core.text import shown

from .checks import RECORD
from .flags import FLAGS, SECTIONS
from .parser import Layer, read_tree, settle
from .settings import RunConfig
from .versions import VERSION, Changes, later_version, upgrade


def values_of(config: RunConfig) -> dict[str, Any]:
    """Every setting by the name of its flag."""
    return {name: getattr(getattr(config, flag.group), name) for name, flag in FLAGS.items()}


def to_dict(config: RunConfig) -> dict[str, Any]:
    """{concern: {flag: value}} of values that JSON and YAML have, and the version of these settings."""
    tree: dict[str, Any] = {"version": VERSION, **{section: {} for section in SECTIONS}}
    for name, value in values_of(config).items():
        tree[FLAGS[name].group][name] = list(value) if isinstance(value, tuple) else value
    return tree


def from_dict(tree: Mapping[str, Any], origin: str = RECORD) -> RunConfig:
    """The settings of a dict, nested or flat, judged like a --config file; a flag it lacks has its default.

    `changed` of it: what an earlier version meant by some of them, where training would be another now.
    """
    problems = later_version(tree, origin)
    tree, changed = upgrade(tree)
    return replace(settle(read_tree(tree, origin, problems), Layer(), origin, problems), changed=changed)


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
    """{flag: (value in a, value in b)} of the flags that differ."""
    others = values_of(b)
    return {name: (value, others[name]) for name, value in values_of(a).items() if value != others[name]}


def describe(config: RunConfig) -> str:
    """The table of --print_config: flag, value and source by group; * marks what differs from the default."""
    changed = differences(config, from_dict({}))
    values = {name: shown(value) for name, value in values_of(config).items()}
    names = max(map(len, values)) + 2
    width = min(40, max(map(len, values.values())))
    lines = []
    for section, settings in SECTIONS.items():
        lines += [f"{section.upper()}  {settings.__doc__}"]
        for name, flag in FLAGS.items():
            if flag.group == section:
                mark = "*" if name in changed else " "
                source = config.sources.get(name, "default")
                lines.append(f"{mark} {'--' + name:{names}}  {values[name]:{width}}  {source}")
        lines.append("")
    return "\n".join([*lines, "* differs from the default"])
