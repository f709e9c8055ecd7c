"""The text of --help: every group with a line a flag, or one group or one flag in detail."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from core.text import listing, shown

from .flags import FLAGS, SECTIONS, SIZED, Flag, SettingsError, limits
from .names import unknown
from .recipes import RECIPES

USAGE = """\
python train_model.py                                train the default model
python train_model.py --debug_dataloader --no_wandb  look at the data only
python train_model.py --help GROUP                   one group in detail
python train_model.py --help --FLAG                  one flag, and what it needs"""
CLOSING = """\
[in brackets: the default]  {in braces: the choices}
A switch --x is turned off with --no-x, and --no_x with --x."""
WIDE = 110  # columns from which every flag fits on a line
NARROW = 70  # columns below which the help of a flag goes under it
FEW = 8  # flags that need another: so many are listed


def asked_for_help(argv: Sequence[str]) -> str | None:
    """The group or flag after --help or -h, "" for all of them, None when nobody asked."""
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


def help_text(
    subject: str = "",
    sections: Mapping[str, type] = SECTIONS,
    known: Mapping[str, Flag] = FLAGS,
    usage: str = USAGE,
) -> str:
    """All groups, a line a flag; or one group, or one flag, with ranges and needs. A bare word is a group first."""
    section = subject.lower()
    width = max(40, shutil.get_terminal_size().columns)
    if section and section not in sections:
        return "\n".join([*flag_lines(find_flag(subject, sections, known), known, width), "", *closing(width)])
    flags = [flag for flag in known.values() if section in ("", flag.group)]
    column = min(4 + max(len(heading(flag)) for flag in flags), width if width > WIDE else 36)
    lines = [] if section else [part for line in usage.splitlines() for part in wrapped(line, width, "", "    ")]
    for name in [section] if section else sections:
        lines += ["", *wrapped(f"{name.upper()}  {sections[name].__doc__}", width)]
        for flag in flags:
            if flag.group == name:
                lines += entry(flag, 6 if width < NARROW else column, width)
                lines += detail(flag, known, 8 if width < NARROW else column + 2, width) if section else []
    return "\n".join([*lines, "", *closing(width)]).lstrip("\n")


def find_flag(subject: str, sections: Mapping[str, type], known: Mapping[str, Flag]) -> Flag:
    """The flag of a word after --help, with or without dashes."""
    spellings = {spelling: flag for flag in known.values() for spelling in (*flag.on, *flag.off)}
    for spelling in (subject, f"--{subject}", f"--{subject.removeprefix('--').replace('-', '_').lower()}"):
        if spelling in spellings:
            return spellings[spelling]
    raise SettingsError([unknown(subject, {**dict.fromkeys(sections), **spellings}, f"--help {shown(subject)}", set())])


def flag_lines(flag: Flag, known: Mapping[str, Flag], width: int) -> list[str]:
    """One flag: what a group shows of it, and which flags need it."""
    needed_by = [f"--{other.name}" for other in known.values() if flag.name in other.needs]
    facts = [f"needed by {listing(needed_by, 'and')}"] if 0 < len(needed_by) <= FEW else []
    facts.append(f"--help {flag.group} has the flags beside it")
    lines = entry(flag, 6 if width < NARROW else len(heading(flag)) + 4, width)
    return [*lines, *detail(flag, known, 6, width), *indented(facts, 6, width)]


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


def unasked(flag: Flag, recipe: str = FLAGS["recipe"].default) -> Any:
    """The value of a flag that nobody gives."""
    return RECIPES[recipe].get(flag.name, flag.default)


def entry(flag: Flag, column: int, width: int) -> list[str]:
    """One flag: its heading, and from `column` on, or on the next line, its help, choices and default."""
    value = unasked(flag)
    default = "" if value in (None, ()) else shown(value)
    if flag.kind is bool:
        default = "on" if value else ""
    if flag.name in SIZED:
        default = "by size"
    text = flag.help + (f" [{default}]" if default and not flag.choices else "")
    if flag.choices:
        text += f" {{{', '.join(f'[{choice}]' if choice == default else choice for choice in flag.choices)}}}"
    start, indent = f"  {heading(flag)}", " " * column
    if len(start) + 2 > column:
        return [start, *wrapped(text, width, indent, indent)]
    return wrapped(text, width, start.ljust(column), indent)


def detail(flag: Flag, known: Mapping[str, Flag], column: int, width: int) -> list[str]:
    """What else there is to know of a flag, each on its own line."""
    facts = []
    if limits(flag):
        words = f", or {listing(flag.words)}" if flag.words else ""
        facts.append(f"a {'whole ' * (flag.kind is int)}number {limits(flag)}{words}")
    facts += [f"off with {flag.off[0]}"] if flag.kind is bool and unasked(flag) else []
    facts += [f"also --{alias}" for alias in flag.aliases]
    by_value: dict[str, list[str]] = {}
    for recipe in RECIPES:
        if (value := unasked(flag, recipe)) != unasked(flag):
            by_value.setdefault(flag.spelled(value) if flag.kind is bool else shown(value), []).append(recipe)
    facts += [f"{value} with --recipe {listing(recipes)}" for value, recipes in by_value.items()]
    for needed, values in flag.needs.items():
        other = known.get(needed)
        if other is None:
            continue
        if other.kind is not bool:
            facts.append(f"only with --{needed} {listing([shown(value) for value in values])}")
        elif other.default in values:
            facts.append(f"not with {other.spelled(not other.default)}")
        else:
            facts.append(f"only with {other.spelled(values[0])}")
    return indented(facts, column, width)
