"""The text of --help: every group with one line per flag, or one group or one flag in detail."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from config.settings import SIZE_TABLE_FLAGS
from config.task import all_tasks
from config.task_flags import FlagSet, all_flags, task_flags
from core.text import format_value, join_words

from .flags import Flag, SettingsError, range_text
from .names import unknown_name

USAGE = """\
python train_model.py                                train the default model
python train_model.py --debug_dataloader --no_wandb  look at the data only
python train_model.py --help GROUP                   one group in detail
python train_model.py --help --FLAG                  one flag, and what it needs
python train_model.py --task NAME --help             the flags of another task
python train_model.py --help all                     the flags of every task"""
CLOSING = """\
[in brackets: the default]  {in braces: the choices}
A switch --x is turned off with --no-x, and --no_x with --x."""
WIDE = 110  # columns from which every flag fits on a line
NARROW = 70  # columns below which the help of a flag goes under it
FEW = 8  # flags that need another: so many are listed


def help_topic(argv: Sequence[str]) -> str | None:
    """The group or flag after --help or -h, "" for all of the task, None without --help."""
    for word, following in zip(argv, [*argv[1:], ""], strict=False):
        if word in ("-h", "--help"):
            return "" if following.startswith("-") and not following.startswith("--") else following.partition("=")[0]
        if word.startswith("--help="):
            return word.partition("=")[2]
    return None


def show(text: str) -> None:
    """Prints a long text, also into a pipe whose reader (head, less) has seen enough."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def help_text(topic: str, flags: FlagSet, usage: str = USAGE) -> str:
    """All groups, a line a flag; or one group, or one flag, with ranges and needs. A bare word is a group first."""
    section = topic.lower()
    width = max(40, shutil.get_terminal_size().columns)
    if section and section not in flags.sections:
        return "\n".join([*flag_lines(find_flag(topic, flags), flags, width), "", *closing(width)])
    listed = [flag for flag in flags.flags.values() if section in ("", flag.group)]
    column = min(4 + max(len(heading(flag)) for flag in listed), width if width > WIDE else 36)
    lines = [] if section else [part for line in usage.splitlines() for part in wrapped(line, width, "", "    ")]
    for name in [section] if section else flags.sections:
        lines += ["", *wrapped(f"{name.upper()}  {flags.sections[name].__doc__}", width)]
        for flag in listed:
            if flag.group == name:
                lines += entry(flag, flags, 6 if width < NARROW else column, width)
                lines += detail(flag, flags, 8 if width < NARROW else column + 2, width) if section else []
    return "\n".join([*lines, "", *closing(width)]).lstrip("\n")


def help_of_all(flags: FlagSet) -> str:
    """The flags of every task and of inference; defaults are those of the task of `flags`."""
    sections: dict[str, type] = {}
    for task in all_tasks().values():
        sections |= task_flags(task, inference=True).sections
    sections |= flags.sections
    return help_text("", FlagSet.of(sections, (all_flags() | flags.flags).values(), flags.task))


def find_flag(topic: str, flags: FlagSet) -> Flag:
    """The flag of a word after --help, with or without dashes; one of another task, too."""
    others = all_flags() if flags.task else {}
    for candidates in (flags.flags, others):
        spellings = {spelling: flag for flag in candidates.values() for spelling in (*flag.on, *flag.off)}
        for spelling in (topic, f"--{topic}", f"--{topic.removeprefix('--').replace('-', '_').lower()}"):
            if spelling in spellings:
                return spellings[spelling]
    options = {
        **dict.fromkeys(flags.sections),
        **{spelling: flag for flag in flags.flags.values() for spelling in (*flag.on, *flag.off)},
    }
    raise SettingsError([unknown_name(topic, options, f"--help {format_value(topic)}", set())])


def flag_lines(flag: Flag, flags: FlagSet, width: int) -> list[str]:
    """One flag: what a group shows of it, and which flags need it."""
    needed_by = [f"--{other.name}" for other in flags.flags.values() if flag.name in other.needs]
    facts = [f"needed by {join_words(needed_by, 'and')}"] if 0 < len(needed_by) <= FEW else []
    facts.append(f"--help {flag.group} has the flags beside it")
    lines = entry(flag, flags, 6 if width < NARROW else len(heading(flag)) + 4, width)
    return [*lines, *detail(flag, flags, 6, width), *indented(facts, 6, width)]


def closing(width: int) -> list[str]:
    return [part for line in CLOSING.splitlines() for part in wrapped(line, width)]


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most `width`, the first after `first`, the others after `rest`; no flag is cut at its hyphens."""
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def indented(facts: Sequence[str], column: int, width: int) -> list[str]:
    """Each fact from `column` on, on lines of its own."""
    return [line for fact in facts for line in wrapped(fact, width, " " * column, " " * column)]


def heading(flag: Flag) -> str:
    """The flag and what follows it: --max_steps N"""
    if flag.kind is bool:
        return f"--{flag.name}"
    letters = {int: "N", float: "X", str: "WORD" if flag.choices else "TEXT", tuple: "TEXT ..."}
    return f"--{flag.name} {flag.metavar or letters[flag.kind]}"


def default_of(flag: Flag, flags: FlagSet, recipe: str | None = None) -> Any:
    """The value of a flag that nobody gives, under a recipe: the default one, if None."""
    recipes = flags.task.recipes if flags.task else {}
    recipe = recipe or next(iter(recipes), None)
    return recipes[recipe].get(flag.name, flag.default) if recipe else flag.default


def entry(flag: Flag, flags: FlagSet, column: int, width: int) -> list[str]:
    """One flag: its heading, and from `column` on, or on the next line, its help, choices and default."""
    value = default_of(flag, flags)
    default = "" if value in (None, ()) else format_value(value)
    if flag.kind is bool:
        default = "on" if value else ""
    if flag.name in SIZE_TABLE_FLAGS and flags.task:
        default = "by size"
    text = flag.help + (f" [{default}]" if default and not flag.choices else "")
    if flag.choices:
        text += f" {{{', '.join(f'[{choice}]' if choice == default else choice for choice in flag.choices)}}}"
    start, indent = f"  {heading(flag)}", " " * column
    if len(start) + 2 > column:
        return [start, *wrapped(text, width, indent, indent)]
    return wrapped(text, width, start.ljust(column), indent)


def detail(flag: Flag, flags: FlagSet, column: int, width: int) -> list[str]:
    """What else there is to know of a flag, each on its own line."""
    facts = []
    if range_text(flag):
        words = f", or {join_words(flag.words)}" if flag.words else ""
        facts.append(f"a {'whole ' * (flag.kind is int)}number {range_text(flag)}{words}")
    facts += [f"off with {flag.off[0]}"] if flag.kind is bool and default_of(flag, flags) else []
    facts += [f"also --{alias}" for alias in flag.aliases]
    by_value: dict[str, list[str]] = {}
    for recipe in flags.task.recipes if flags.task else ():
        if (value := default_of(flag, flags, recipe)) != default_of(flag, flags):
            by_value.setdefault(flag.spelled(value) if flag.kind is bool else format_value(value), []).append(recipe)
    facts += [f"{value} with --recipe {join_words(recipes)}" for value, recipes in by_value.items()]
    for needed, values in flag.needs.items():
        other = flags.flags.get(needed)
        if other is None:
            continue
        if other.kind is not bool:
            facts.append(f"only with --{needed} {join_words([format_value(value) for value in values])}")
        elif other.default in values:
            facts.append(f"not with {other.spelled(not other.default)}")
        else:
            facts.append(f"only with {other.spelled(values[0])}")
    return indented(facts, column, width)
