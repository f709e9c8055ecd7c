"""From a command line and a file to a RunConfig.

The task is chosen first, because it decides which flags there are. Then the layers are merged, the later wins:
default < defaults of the task < size table < recipe < debug preset < file < command line.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from config.settings import COMMON, DEBUG_PRESETS, SIZES, RunConfig
from config.task_flags import SELECTORS, FlagSet, all_flags, all_names, choose_flags, tasks_with
from core.errors import UserError
from core.text import format_value, join_words

from .checks import ResolvedFlags, find_problems
from .config_file import later_version, read_file, upgrade
from .flags import Flag, SettingsError, allowed_text, flags_of, parse_value, parse_word
from .help import help_of_all, help_text, help_topic, show
from .names import unknown_name

TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
VALUE = " "  # stands before each word that is a value, so that argparse never takes -1 for a flag
TASK_NAMES = ("task", "modality", "image_task")


@dataclass
class ParsedFlags:
    """Values of a command line or a file; `wrong` names the flags that are given there but could not be parsed."""

    values: dict[str, Any] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)


class CollectFlag(argparse.Action):
    """Collects a flag with the words that follow it; `const` is the value of a switch."""

    def __init__(self, flag: Flag, **options: Any) -> None:
        super().__init__(**options)
        self.flag = flag

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        words = [word.removeprefix(VALUE) for word in values or ()]
        namespace.collected.append((self.flag, option_string, self.const, words))


def parse_command_line(argv: Sequence[str]) -> RunConfig:
    """The settings of a run; --help prints and exits, and every problem is a line of one SettingsError."""
    path = typed_value(argv, "config")
    file_problems: list[str] = []
    tree = read_file(path, file_problems) if path else {}
    plain, changed = upgrade(tree or {})
    typed = {name: typed_value(argv, name) for name in SELECTORS}
    try:
        _, flags = choose_flags(selectors(typed, file_selectors(plain)))
    except UserError as error:
        raise SettingsError([str(error)]) from error
    if (topic := help_topic(argv)) is not None:
        show(help_of_all(flags) if topic == "all" else help_text(topic, flags))
        raise SystemExit(0)
    problems: list[str] = []
    line = parse_words(argv, problems, flags)
    if "config" in line.wrong:
        return resolve(ParsedFlags(), line, "", problems, complete=False)
    origin = format_value(path)
    problems += [*file_problems, *later_version(tree or {}, origin)]
    problems += [
        f"{name} in {origin} is of an earlier version, in which it meant another thing: {why}; give --{name} too."
        for name, why in changed.items()
        if name not in line.values.keys() | line.wrong
    ]
    file = parse_mapping(plain, origin, problems, flags)
    return resolve(file, line, origin, problems, complete=tree is not None)


def parse_command(
    argv: Sequence[str], sections: Mapping[str, type], usage: str, without: Sequence[str] = ()
) -> dict[str, Any]:
    """The settings of another command than train_model.py, {section: dataclass}, parsed and checked in the same way.

    without: flags of these sections that the command does not have.
    """
    every = [flag for group, settings in sections.items() for flag in flags_of(group, settings).values()]
    flags = FlagSet.of(sections, [flag for flag in every if flag.name not in without])
    if (topic := help_topic(argv)) is not None:
        show(help_text(topic, flags, usage))
        raise SystemExit(0)
    problems: list[str] = []
    line = parse_words(argv, problems, flags)
    defaults = {name: flag.default for name, flag in flags.flags.items()}
    sources = dict.fromkeys(flags.flags, "default") | dict.fromkeys(line.values, "command line")
    resolved = ResolvedFlags(defaults | line.values, sources, defaults)
    problems += find_problems(resolved, flags.flags, line.wrong)
    if problems:
        raise SettingsError(problems)
    return build_groups(resolved, flags)


def build_groups(resolved: ResolvedFlags, flags: FlagSet) -> dict[str, Any]:
    return {
        section: settings(**{name: resolved[name] for name, flag in flags.flags.items() if flag.group == section})
        for section, settings in flags.sections.items()
    }


def typed_value(argv: Sequence[str], name: str) -> str | None:
    """The last value of a flag in a command line that is not parsed yet."""
    value = None
    for word, following in zip(argv, [*argv[1:], "--"], strict=False):
        start, equals, rest = word.partition("=")
        if start == f"--{name}":
            value = rest if equals else None if following.startswith("--") else following
    return value


def file_selectors(tree: Mapping[str, Any]) -> dict[str, str]:
    """The SELECTORS of a file: at the top, or in the group `run`."""
    run = tree.get("run")
    values = {**tree, **(run if isinstance(run, Mapping) else {})}
    return {name: value for name in SELECTORS if isinstance(value := values.get(name), str)}


def selectors(line: Mapping[str, Any], file: Mapping[str, Any]) -> dict[str, Any]:
    """The values of SELECTORS that count: a task named on the command line replaces all names of a task in the file."""
    by_line = any(line.get(name) is not None for name in TASK_NAMES)
    task = {name: (line if by_line else file).get(name) for name in TASK_NAMES}
    return task | {"execution_mode": line.get("execution_mode") or file.get("execution_mode")}


@cache
def build_parser(flags: FlagSet) -> argparse.ArgumentParser:
    """Every flag by its spellings; values stay words, which parse_words parses all together.

    Built once for each set of flags: a sweep reads a thousand command lines.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in flags.flags.values():
        parser.add_argument(*flag.on, dest=flag.name, action=CollectFlag, flag=flag, nargs="*", const=True)
        if flag.kind is bool:
            parser.add_argument(*flag.off, dest=flag.name, action=CollectFlag, flag=flag, nargs="*", const=False)
    return parser


def parse_words(argv: Sequence[str], problems: list[str], flags: FlagSet) -> ParsedFlags:
    """The values of a command line; a flag given twice has its last value."""
    words: list[str] = []
    for word in argv:
        name, equals, value = word.partition("=")
        if word.startswith("--") and word != "--":
            words += [name, VALUE + value] if equals else [name]
        else:
            words.append(VALUE + word)
    namespace, rest = build_parser(flags).parse_known_args(words, argparse.Namespace(collected=[]))
    parsed = ParsedFlags()
    for flag, spelling, const, values in namespace.collected:
        try:
            parsed.values[flag.name] = (
                parse_switch(flag, const, values) if flag.kind is bool else parse_values(flag, values)
            )
        except ValueError as problem:
            parsed.wrong.add(flag.name)
            problems.append(f"{spelling} {problem}")
    options: dict[str, Flag | None] = {
        spelling: flag for flag in flags.flags.values() for spelling in (*flag.on, *flag.off)
    }
    after_flag = False  # words after an unknown flag are its values, and its problem is reported already
    for word in rest:
        if word.startswith("--"):
            after_flag = True
            subject = format_value(word)
            foreign = foreign_flag(word, subject, flags)
            problems.append(foreign or unknown_name(word, options, subject, parsed.wrong))
        elif not after_flag:
            problems.append(f"{word.removeprefix(VALUE)!r} belongs to no flag: write --flag value; --help lists them.")
    return parsed


def foreign_flag(name: str, subject: str, flags: FlagSet) -> str | None:
    """The problem of a name that is a flag of another task or of inference; None for any other name."""
    if flags.task is None:
        return None
    plain = name.removeprefix("--")
    by_off = {spelling.removeprefix("--"): flag for flag in all_flags().values() for spelling in flag.off}
    flag = all_names().get(plain) or by_off.get(plain)
    if flag is None:
        return None
    if flag.group == "inference":
        return f"{subject} belongs to python -m inference: remove it, or add --execution_mode inference."
    return f"{subject} is a flag of {join_words(tasks_with(flag.name), 'and')}: remove it, or choose --task."


def parse_switch(flag: Flag, value: bool, words: Sequence[str]) -> bool:
    """`value`, which the spelling of the switch gives; words after a switch are an error."""
    if not words:
        return value
    truth = TRUTHS.get(words[0].lower())  # --no_x False is --x
    spelling = f"{flag.on[0]} or {flag.off[0]}" if truth is None else flag.spelled(value is truth)
    raise ValueError(f"is followed by {words[0]!r}: it is a switch: write {spelling}.")


def parse_values(flag: Flag, words: Sequence[str]) -> Any:
    if not words:
        raise ValueError(f"has no value: {allowed_text(flag)}.")
    if flag.kind is tuple:
        return parse_value(flag, list(words))
    if len(words) > 1:
        got = join_words([repr(word) for word in words], "and")
        raise ValueError(f"is followed by {got}: it takes one value; put quotes around one that has spaces.")
    return parse_word(flag, words[0])


def parse_mapping(
    tree: Mapping[str, Any], origin: str, problems: list[str], flags: FlagSet | None = None
) -> ParsedFlags:
    """The values of a file or a dict: flags, or groups of flags as config.json has them, or both.

    flags: those of the task that the dict itself names, if None. A flag of another task, or of inference, is passed
    over where it has its default, as in a record.
    """
    if flags is None:
        _, flags = choose_flags(file_selectors(tree))
    parsed = ParsedFlags()
    seen: set[str] = set()
    for key, value in tree.items():
        group = key if isinstance(value, Mapping) and is_section(key, flags) else None
        for name, plain in value.items() if group else [(key, value)]:
            subject = f"{format_value(name)} in {origin}"
            flag = flags.names.get(name)
            if name in flags.sections and flag is None:
                problems.append(f"{subject} is a group of flags: write its flags under it, as `flag: value`.")
            elif flag is None and (foreign := foreign_flag(str(name), subject, flags)):
                if not is_default(all_names().get(name), plain):
                    problems.append(foreign)
            elif flag is None:
                options = {**dict.fromkeys(flags.sections), **flags.names}
                problems.append(unknown_name(str(name), options, subject, parsed.wrong))
            elif group and group in flags.sections and flag.group != group:
                problems.append(f"{subject} is under {group}: move it under {flag.group}.")
            elif flag.name in seen:
                problems.append(f"{subject} is given twice, as {flag.name} in two places or spellings: keep one.")
            else:
                try:
                    parsed.values[flag.name] = parse_value(flag, plain)
                except ValueError as problem:
                    problems.append(f"{subject} {problem}")
            if flag:
                seen.add(flag.name)
                parsed.wrong.update({flag.name} - parsed.values.keys())
    return parsed


def is_default(flag: Flag | None, plain: Any) -> bool:
    try:
        return flag is not None and parse_value(flag, plain) == flag.default
    except ValueError:
        return False


def is_section(key: str, flags: FlagSet) -> bool:
    return key in flags.sections or any(flag.group == key for flag in all_flags().values())


def resolve(
    file: ParsedFlags, line: ParsedFlags, origin: str, problems: Sequence[str], complete: bool = True
) -> RunConfig:
    """The RunConfig of the layers, or a SettingsError with `problems` and all that are found now.

    complete: False when a whole layer could not be read, so that the values cannot be checked together.
    """
    if any(name in line.values for name in TASK_NAMES):
        own = {name: value for name, value in file.values.items() if name not in TASK_NAMES}
        file = ParsedFlags(own, file.wrong)
    given = file.values | line.values
    task_name, flag_set = choose_flags(given)
    flags, task = flag_set.flags, flag_set.task
    assert task is not None
    wrong = file.wrong | line.wrong
    size, recipe = (given.get(name, flags[name].default) for name in ("model_size", "recipe"))
    # a step size in numbers without a recipe is that of a public job script, whose other energy flags go with it
    public = "public" in task.recipes and isinstance(given.get("mcmc_step_size"), float)
    public = public and "recipe" not in given.keys() | wrong
    recipe = "public" if public else recipe
    table = {name: value for name, value in asdict(SIZES[size]).items() if name in flags}
    if "model_size" in wrong:
        wrong |= table.keys()
    if "recipe" in wrong:
        wrong |= {name for values in task.recipes.values() for name in values}
    # a recipe is stated for every model, so that a record means the same when another model is asked for beside it
    recipe_values = task.recipes[recipe] if recipe is not None else {}
    defaults = {name: table.get(name, flag.default) for name, flag in flags.items()} | dict(recipe_values)
    defaults |= {"recipe": recipe, "task": task_name}
    sources = {name: "size table" if name in table else "default" for name in flags}
    sources |= {"recipe": "--mcmc_step_size"} if public else {}
    sources |= dict.fromkeys(recipe_values, f"--recipe {recipe}")
    preset_flags: set[str] = set()
    for switch, values in DEBUG_PRESETS.items():
        if switch in wrong:
            wrong |= values.keys()
        if given.get(switch):
            defaults |= values
            sources |= dict.fromkeys(values, f"--{switch}")
            preset_flags |= values.keys()
    sources |= dict.fromkeys(file.values, "file") | dict.fromkeys(line.values, "command line")
    resolved = ResolvedFlags(defaults | given, sources, defaults, origin, preset_flags, task)
    clashes = find_problems(resolved, flags, wrong) if complete else []
    if problems or clashes:
        raise SettingsError([*problems, *clashes])
    groups = build_groups(resolved, flag_set)
    common = {name: groups.pop(name) for name in COMMON}
    return RunConfig(**common, groups=tuple(groups.values()), sources=sources)
