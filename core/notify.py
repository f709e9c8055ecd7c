"""The target of --notify without its secret: the record has a mark of it, the variable EBT_NOTIFY has all of it.

The address of a web hook is its password, and a command may hold one. So what is typed goes into this process's
environment, which a Slurm job keeps through every requeue, and files have `https://host/***` or `curl ***` instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from .environment import NOTIFY

REST = "***"
TYPED = re.compile(r"((?:--)?notify)=(.*)", re.DOTALL)


def is_url(target: str) -> bool:
    return target.lower().startswith(("http://", "https://"))


def mark_of(target: str) -> str:
    """The target as the record has it: a host or a program alone as it is, else with *** for all that follows."""
    if is_url(target):
        try:
            parts = urlsplit(target)
            host = parts.hostname or ""
            host = f"[{host}]" if ":" in host else host
            origin = f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")
        except ValueError:  # no address at all: reported when it is used
            return REST
        return target if target in (origin, f"{origin}/", f"{origin}/{REST}") else f"{origin}/{REST}"
    first, *rest = target.split() or [""]
    if not re.fullmatch(r"[\w./~+-]+", first):
        return REST
    return f"{first} {REST}" if rest else target


def hide(words: Sequence[str]) -> list[str]:
    """The words of a command line with the mark in place of what --notify was given, which goes to EBT_NOTIFY."""
    hidden = list(words)
    for index, word in enumerate(hidden):
        match = TYPED.fullmatch(word)
        if match:
            hidden[index] = f"{match[1]}={store(match[2])}"
        elif index and hidden[index - 1] == "--notify" and not word.startswith("--"):
            hidden[index] = store(word)
    return hidden


def store(target: str) -> str:
    """Put the target into EBT_NOTIFY where it holds more than its mark; returns the mark."""
    mark = mark_of(target)
    if mark != target:
        os.environ[NOTIFY] = target
    return mark


def target_of(mark: str | None) -> str | None:
    """The target to notify: the value of --notify, or that of EBT_NOTIFY where the value is a mark or missing."""
    if mark is not None and not mark.endswith(REST):
        return mark
    return os.environ.get(NOTIFY) or None


def masked(text: bytes) -> bytes:
    """A file's text with the mark in place of the target that EBT_NOTIFY holds."""
    target = os.environ.get(NOTIFY)
    return text.replace(target.encode(), mark_of(target).encode()) if target else text
