"""Programs with several commands: `python -m runs COMMAND`, `python -m launch COMMAND`.

A command is a function of argv that returns an exit status. It is imported when it is called, so that help is quick.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from .errors import UserError
from .notify import hide
from .text import format_value

Target = str | Callable[[list[str]], int]  # module:function, or the function itself
Commands = Mapping[str, tuple[Target, str, str]]  # {name: (target, usage of its arguments, purpose)}


class CommandParser(argparse.ArgumentParser):
    """argparse whose mistakes are one sentence; every command has `--logs_dir`."""

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
        raise UserError(f"{message[:1].lower()}{message[1:]}: {self.prog} --help lists the options.")


def read_changes(words: Sequence[str]) -> dict[str, str]:
    """{flag: value} of the FLAG=VALUE words after --set, as they were typed."""
    changes = {}
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if not equals or not name:
            raise UserError(f"--set is {format_value(word)}: write FLAG=VALUE, such as --set max_steps=2000.")
        changes[name] = value
    return changes


def dispatch(program: str, commands: Commands, argv: Sequence[str]) -> int:
    """Run one command and return its exit status: 0 done, 1 failed, 2 a mistake of the caller.

    program: such as `python -m runs`. A command without a purpose is not listed: only scripts call it.
    """
    sys.argv, argv = hide(sys.argv), hide(argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(overview(program, commands))
        return 0 if argv else 2
    name, *rest = argv
    try:
        if name not in commands:
            near = difflib.get_close_matches(name, commands, 1)
            listed = ", ".join(command for command, (_, _, purpose) in commands.items() if purpose)
            advice = f"did you mean {near[0]}? There are" if near else "choose"
            raise UserError(f"{format_value(name)} is no command of {program}: {advice} {listed}.")
        target = commands[name][0]
        if isinstance(target, str):
            module, _, function = target.partition(":")
            target = getattr(importlib.import_module(module), function)
        return int(target(rest))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:  # its reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("stopped by hand", file=sys.stderr)
        return 130


def overview(program: str, commands: Commands) -> str:
    """The commands with their purposes, one per line."""
    rows = [
        (f"{program} {name} {words}".rstrip(), purpose) for name, (_, words, purpose) in commands.items() if purpose
    ]
    width = max(len(left) for left, _ in rows) + 2
    return "\n".join([*(f"{left:{width}}{purpose}" for left, purpose in rows), "", "COMMAND --help lists its options."])
