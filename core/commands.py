"""Doors with several commands: `python -m runs COMMAND`, `python -m launch COMMAND`.

A command is a function of argv that gives an exit status, loaded when it is called, so that help answers at once.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from core.text import shown

from .errors import UserError
from .notify import hide


class CommandParser(argparse.ArgumentParser):
    """argparse whose mistakes are one sentence; `--logs_dir` is every command's."""

    def __init__(self, prog: str, purpose: str, **more: Any) -> None:
        super().__init__(
            prog=prog,
            description=purpose,
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=32, width=110),
            **more,
        )
        self.add_argument("--logs_dir", default="logs", metavar="PATH", help="folder of all runs [logs]")

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message[:1].lower()}{message[1:]}: {self.prog} --help shows what there is.")


def read_changes(words: Sequence[str]) -> dict[str, str]:
    """{flag: value} of the FLAG=VALUE words after --set, as they were typed."""
    changes = {}
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if not equals or not name:
            raise UserError(f"--set is {shown(word)}: write FLAG=VALUE, such as --set max_steps=2000.")
        changes[name] = value
    return changes


def dispatch(door: str, commands: Mapping[str, tuple[str, str, str]], argv: Sequence[str]) -> int:
    """The exit status of one command: 0 done, 1 it failed, 2 a mistake of the caller.

    door: such as `python -m runs`. commands: {name: (module:function, words after it, purpose)}; one without purpose is
    not listed, because scripts call it and not people.
    """
    sys.argv, argv = hide(sys.argv), hide(argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(overview(door, commands))
        return 0 if argv else 2
    name, *rest = argv
    try:
        if name not in commands:
            near = difflib.get_close_matches(name, commands, 1)
            listed = ", ".join(command for command, (_, _, purpose) in commands.items() if purpose)
            meant = f"did you mean {near[0]}? There are" if near else "choose"
            raise UserError(f"{shown(name)} is no command of {door}: {meant} {listed}.")
        module, _, function = commands[name][0].partition(":")
        return int(getattr(importlib.import_module(module), function)(rest))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:  # its reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("stopped by hand", file=sys.stderr)
        return 130


def overview(door: str, commands: Mapping[str, tuple[str, str, str]]) -> str:
    """A line a command."""
    rows = [(f"{door} {name} {words}".rstrip(), purpose) for name, (_, words, purpose) in commands.items() if purpose]
    width = max(len(left) for left, _ in rows) + 2
    return "\n".join([*(f"{left:{width}}{purpose}" for left, purpose in rows), "", "COMMAND --help says more."])
