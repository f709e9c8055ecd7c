"""`python -m inference COMMAND`: use a trained model."""

from __future__ import annotations

import importlib
import os
import sys

from core.errors import UserError
from inference.commands import COMMANDS, overview, parse


def main(argv: list[str]) -> int:
    """The exit status: 0 done, 1 it failed, 2 a mistake in the settings."""
    if not argv or argv[0] in ("-h", "--help"):
        print(overview())
        return 0 if argv else 2
    name = argv[0]
    if name not in COMMANDS:
        print(f"{name!r} is no command: choose {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    try:
        settings = parse(name, argv[1:])
        return importlib.import_module(f"inference.{name.replace('-', '_')}").main(**settings)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:  # its reader has seen enough; files are written before anything is printed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("stopped by hand", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
