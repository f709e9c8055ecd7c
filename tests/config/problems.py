"""What the tests of config share: the problems of a command line, as the lines a person would read."""

from __future__ import annotations

import pytest

from config import SettingsError, parse_command_line
from config.task import find_task
from config.task_flags import task_flags

LANGUAGE = task_flags(find_task("language"))
LANGUAGE_INFERENCE = task_flags(find_task("language"), inference=True)


def problems(*argv: str) -> list[str]:
    """The lines of the SettingsError that this command line must raise."""
    with pytest.raises(SettingsError) as caught:
        parse_command_line(list(argv))
    return str(caught.value).split("\n")
