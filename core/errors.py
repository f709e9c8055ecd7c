"""Errors that a person can correct, and errors that must not end what is done already."""

from __future__ import annotations

import sys
from collections.abc import Callable


class UserError(ValueError):
    """A mistake that its message explains; a program prints it without a stack trace and exits with status 2."""


def or_report(what: str, show: Callable[[], None], reported: set[str] | None = None) -> None:
    """Call `show`; if it fails, print one line. A run that is trained and saved must not fail while it is shown.

    reported: lines that were printed before, which are not printed again.
    """
    try:
        show()
    except Exception as error:
        line = f"could not show {what}: {type(error).__name__}: {' '.join(str(error).split())}"
        if reported is None or line not in reported:
            print(line, file=sys.stderr)
        if reported is not None:
            reported.add(line)
