"""`python -m inference COMMAND`: use a trained model."""

from __future__ import annotations

import sys
from functools import partial

from core.commands import dispatch
from inference.commands import COMMANDS, run


def main(argv: list[str]) -> int:
    commands = {name: (partial(run, name), command.usage, command.purpose) for name, command in COMMANDS.items()}
    return dispatch("python -m inference", commands, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
