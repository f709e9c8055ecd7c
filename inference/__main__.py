"""`python -m inference COMMAND`: use a trained model."""

from __future__ import annotations

import sys
from functools import partial

from core.commands import Commands, dispatch
from inference.commands import all_commands, run


def main(argv: list[str]) -> int:
    commands: Commands = {
        name: (partial(run, name), command.usage, command.purpose) for name, command in all_commands(argv).items()
    }
    return dispatch("python -m inference", commands, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
