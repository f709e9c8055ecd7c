"""From a command line and a file to a RunConfig: default < size table < recipe < rehearsal < file < command line."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .checks import Settled, problems_of
from .files import read_file
from .flags import (
    FLAGS,
    NAMES,
    SECTIONS,
    Flag,
    SettingsError,
    allowed,
    flags_of,
    listing,
    read_plain,
    read_text,
    shown,
)
from .help import asked_for_help, help_text, show
from .names import unknown
from .recipes import RECIPE_FLAGS, RECIPES
from .rehearsals import REHEARSALS
from .settings import RunConfig
from .sizes import SIZES
from .versions import later_version, upgrade

TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
VALUE = " "  # stands before each word that is a value, so that argparse never takes -1 for a flag


@dataclass
class Layer:
    """Values read from one place; `wrong` names the flags that were meant there but could not be read."""

    values: dict[str, Any] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)


class Given(argparse.Action):
    """Notes a flag with the words that follow it; `const` is the value of a switch."""

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
        namespace.given.append((self.flag, option_string, self.const, words))


def parse_command_line(argv: Sequence[str]) -> RunConfig:
    """The settings of a run; --help prints and exits, and every problem is a line of one SettingsError."""
    if (subject := asked_for_help(argv)) is not None:
        show(help_text(subject))
        raise SystemExit(0)
    problems: list[str] = []
    line = read_words(argv, problems)
    path = line.values.get("config")
    tree = read_file(path, problems) if path is not None else {}
    origin = shown(path)
    plain, changed = upgrade(tree or {})
    problems += later_version(tree or {}, origin)
    problems += [
        f"{name} in {origin} is of an earlier version, in which it meant another thing: {why}; give --{name} too."
        for name, why in changed.items()
        if name not in line.values.keys() | line.wrong
    ]
    file = read_tree(plain, origin, problems)
    return settle(file, line, origin, problems, complete=tree is not None and "config" not in line.wrong)


def parse_command(
    argv: Sequence[str], sections: Mapping[str, type], usage: str, without: Sequence[str] = ()
) -> dict[str, Any]:
    """The settings of another command than train_model.py, {section: dataclass}, read and judged in the same way.

    without: flags of these sections that the command does not have.
    """
    every = [flag for group, settings in sections.items() for flag in flags_of(group, settings).values()]
    flags = {flag.name: flag for flag in every if flag.name not in without}
    if (subject := asked_for_help(argv)) is not None:
        show(help_text(subject, sections, flags, usage))
        raise SystemExit(0)
    problems: list[str] = []
    line = read_words(argv, problems, flags)
    unasked = {name: flag.default for name, flag in flags.items()}
    sources = dict.fromkeys(flags, "default") | dict.fromkeys(line.values, "command line")
    settled = Settled(unasked | line.values, sources, unasked)
    problems += problems_of(settled, flags, line.wrong)
    if problems:
        raise SettingsError(problems)
    return {
        section: settings(**{name: settled[name] for name, flag in flags.items() if flag.group == section})
        for section, settings in sections.items()
    }


def build_parser(flags: Mapping[str, Flag]) -> argparse.ArgumentParser:
    """Every flag by its spellings; values stay words, which read_words judges all together."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in flags.values():
        parser.add_argument(*flag.on, dest=flag.name, action=Given, flag=flag, nargs="*", const=True)
        if flag.kind is bool:
            parser.add_argument(*flag.off, dest=flag.name, action=Given, flag=flag, nargs="*", const=False)
    return parser


@functools.cache
def usual_parser() -> argparse.ArgumentParser:
    """That of train_model.py, built once: a sweep reads a thousand command lines."""
    return build_parser(FLAGS)


def read_words(argv: Sequence[str], problems: list[str], flags: Mapping[str, Flag] = FLAGS) -> Layer:
    """The values of a command line; a flag given twice has its last value."""
    words: list[str] = []
    for word in argv:
        name, equals, value = word.partition("=")
        if word.startswith("--") and word != "--":
            words += [name, VALUE + value] if equals else [name]
        else:
            words.append(VALUE + word)
    parser = usual_parser() if flags is FLAGS else build_parser(flags)
    namespace, rest = parser.parse_known_args(words, argparse.Namespace(given=[]))
    layer = Layer()
    for flag, spelling, const, values in namespace.given:
        try:
            read = read_switch(flag, const, values) if flag.kind is bool else read_values(flag, values)
            layer.values[flag.name] = read
        except ValueError as problem:
            layer.wrong.add(flag.name)
            problems.append(f"{spelling} {problem}")
    options = {spelling: flag for flag in flags.values() for spelling in (*flag.on, *flag.off)} if rest else {}
    after_flag = False  # words after an unknown flag are its values, and its problem is told already
    for word in rest:
        if word.startswith("--"):
            after_flag = True
            problems.append(unknown(word, options, shown(word), layer.wrong))
        elif not after_flag:
            problems.append(f"{word.removeprefix(VALUE)!r} belongs to no flag: write --flag value; --help lists them.")
    return layer


def read_switch(flag: Flag, value: bool, words: Sequence[str]) -> bool:
    if not words:
        return value
    meant = TRUTHS.get(words[0].lower())  # --no_x False is --x
    how = f"{flag.on[0]} or {flag.off[0]}" if meant is None else flag.spelled(value is meant)
    raise ValueError(f"is followed by {words[0]!r}: it is a switch: write {how}.")


def read_values(flag: Flag, words: Sequence[str]) -> Any:
    if not words:
        raise ValueError(f"has no value: {allowed(flag)}.")
    if flag.kind is tuple:
        return read_plain(flag, list(words))
    if len(words) > 1:
        got = listing([repr(word) for word in words], "and")
        raise ValueError(f"is followed by {got}: it takes one value; put quotes around one that has spaces.")
    return read_text(flag, words[0])


def read_tree(tree: Mapping[str, Any], origin: str, problems: list[str]) -> Layer:
    """The values of a file or a dict: flags, or groups of flags as RunConfig has them, or both."""
    layer = Layer()
    seen: set[str] = set()
    for key, value in tree.items():
        group = key if key in SECTIONS and isinstance(value, Mapping) else None
        for name, plain in value.items() if group else [(key, value)]:
            subject = f"{shown(name)} in {origin}"
            flag = NAMES.get(name)
            if name in SECTIONS and flag is None:
                problems.append(f"{subject} is a group of flags: write its flags under it, as `flag: value`.")
            elif flag is None:
                problems.append(unknown(str(name), {**dict.fromkeys(SECTIONS), **NAMES}, subject, layer.wrong))
            elif group and flag.group != group:
                problems.append(f"{subject} is under {group}: move it under {flag.group}.")
            elif flag.name in seen:
                problems.append(f"{subject} is given twice, as {flag.name} in two places or spellings: keep one.")
            else:
                try:
                    layer.values[flag.name] = read_plain(flag, plain)
                except ValueError as problem:
                    problems.append(f"{subject} {problem}")
            if flag:
                seen.add(flag.name)
                layer.wrong.update({flag.name} - layer.values.keys())
    return layer


def settle(file: Layer, line: Layer, origin: str, problems: list[str], complete: bool = True) -> RunConfig:
    """The RunConfig of the layers, or a SettingsError with `problems` and all that are found now.

    complete: False when a whole layer could not be read, so that the values cannot be judged together.
    """
    wrong = file.wrong | line.wrong
    given = file.values | line.values
    size, recipe = (given.get(name, FLAGS[name].default) for name in ("model_size", "recipe"))
    public = "recipe" not in given.keys() | wrong and isinstance(given.get("mcmc_step_size"), float)
    recipe = "public" if public else recipe  # its energy flags are those of a public job script
    table = asdict(SIZES[size])
    if "model_size" in wrong:
        wrong |= table.keys()
    if "recipe" in wrong:
        wrong |= set(RECIPE_FLAGS)
    # a recipe is stated for every model, so that a record means the same when another model is asked for beside it
    unasked = {name: table.get(name, flag.default) for name, flag in FLAGS.items()} | RECIPES[recipe]
    unasked["recipe"] = recipe
    sources = {name: "size table" if name in table else "default" for name in FLAGS}
    sources |= {"recipe": "--mcmc_step_size"} if public else {}
    sources |= dict.fromkeys(RECIPES[recipe], f"--recipe {recipe}")
    rehearsed: set[str] = set()
    for switch, values in REHEARSALS.items():
        if switch in wrong:
            wrong |= values.keys()
        if given.get(switch):
            unasked |= values
            sources |= dict.fromkeys(values, f"--{switch}")
            rehearsed |= values.keys()
    sources |= dict.fromkeys(file.values, "file") | dict.fromkeys(line.values, "command line")
    settled = Settled(unasked | given, sources, unasked, origin, rehearsed)
    found = problems_of(settled, FLAGS, wrong) if complete else []
    if problems or found:
        raise SettingsError([*problems, *found])
    sections = {
        section: settings(**{name: settled[name] for name, flag in FLAGS.items() if flag.group == section})
        for section, settings in SECTIONS.items()
    }
    return RunConfig(**sections, sources=sources)
