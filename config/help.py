"""The text of --help: every group with a line a flag, or one group in detail."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from .flags import FLAGS, SECTIONS, SIZED, Flag, SettingsError, limits, listing, shown
from .recipes import RECIPES

USAGE = """\
python train_model.py                                train the default model
python train_model.py --debug_dataloader --no_wandb  look at the data only
python train_model.py --help GROUP                   one group in detail"""
WIDE = 110  # columns from which every flag fits on a line
NARROW = 70  # columns below which the help of a flag goes under it


def asked_for_help(argv: Sequence[str]) -> str | None:
    """The group after --help or -h, "" for all of them, None when nobody asked."""
    for word, following in zip(argv, [*argv[1:], ""], strict=False):
        if word in ("-h", "--help"):
            return "" if following.startswith("-") else following
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
    group: str = "",
    sections: Mapping[str, type] = SECTIONS,
    known: Mapping[str, Flag] = FLAGS,
    usage: str = USAGE,
) -> str:
    """All groups, a line a flag; or one group with the choices, ranges and needs of its flags."""
    section = group.lower()
    if section and section not in sections:
        raise SettingsError([f"--help is {group!r}: choose {listing(list(sections))}, or leave it out."])
    width = max(40, shutil.get_terminal_size().columns)
    flags = [flag for flag in known.values() if section in ("", flag.group)]
    column = min(4 + max(len(heading(flag)) for flag in flags), width if width > WIDE else 36)
    lines = [] if section else [part for line in usage.splitlines() for part in wrapped(line, width, "", "    ")]
    for name in [section] if section else sections:
        lines += ["", *wrapped(f"{name.upper()}  {sections[name].__doc__}", width)]
        for flag in flags:
            if flag.group == name:
                lines += entry(flag, 6 if width < NARROW else column, width)
                lines += detail(flag, known, 8 if width < NARROW else column + 2, width) if section else []
    lines += ["", *wrapped("[in brackets: the default]  A switch --x is turned off with --no-x.", width)]
    return "\n".join(lines).lstrip("\n")


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most `width`, the first after `first`, the others after `rest`; no flag is cut at its hyphens."""
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def heading(flag: Flag) -> str:
    """The flag and what follows it: --max_steps N"""
    if flag.kind is bool:
        return f"--{flag.name}"
    choices = "|".join(flag.choices)
    letters = {int: "N", float: "X", str: "TEXT", tuple: "TEXT ..."}
    return f"--{flag.name} {flag.metavar or (choices if 0 < len(choices) <= 12 else letters[flag.kind])}"


def unasked(flag: Flag, recipe: str = FLAGS["recipe"].default) -> Any:
    """The value of a flag that nobody gives."""
    return RECIPES[recipe].get(flag.name, flag.default)


def entry(flag: Flag, column: int, width: int) -> list[str]:
    """One flag: its heading, and from `column` on, or on the next line, its help and default."""
    value = unasked(flag)
    default = "" if value in (None, ()) else shown(value)
    if flag.kind is bool:
        default = "on" if value else ""
    if flag.name in SIZED:
        default = "by size"
    text = flag.help + (f" [{default}]" if default else "")
    start, indent = f"  {heading(flag)}", " " * column
    if len(start) + 2 > column:
        return [start, *wrapped(text, width, indent, indent)]
    return wrapped(text, width, start.ljust(column), indent)


def detail(flag: Flag, known: Mapping[str, Flag], column: int, width: int) -> list[str]:
    """What else there is to know of a flag, each on its own line."""
    facts = [f"choose {listing(flag.choices)}"] if flag.choices else []
    if limits(flag):
        facts.append(f"a {'whole ' * (flag.kind is int)}number {limits(flag)}")
    facts += [f"or {listing(flag.words)}"] if flag.words else []
    facts += [f"off with {flag.off[0]}"] if flag.off and flag.default else []
    facts += [f"also --{alias}" for alias in flag.aliases]
    for recipe in RECIPES:
        if (value := unasked(flag, recipe)) != unasked(flag):
            word = {True: "on", False: "off"}[value] if flag.kind is bool else shown(value)
            facts.append(f"{word} with --recipe {recipe}")
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
    return [line for fact in facts for line in wrapped(fact, width, " " * column, " " * column)]
