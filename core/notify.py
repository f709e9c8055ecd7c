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
    """What the record says of it: itself where it is only a host or a program, else that with *** for the rest."""
    if is_url(target):
        try:
            parts = urlsplit(target)
            host = parts.hostname or ""
            host = f"[{host}]" if ":" in host else host
            place = f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")
        except ValueError:  # no address at all: reported when it is used
            return REST
        return target if target in (place, f"{place}/", f"{place}/{REST}") else f"{place}/{REST}"
    first, *rest = target.split() or [""]
    if not re.fullmatch(r"[\w./~+-]+", first):
        return REST
    return f"{first} {REST}" if rest else target


def hide(words: Sequence[str]) -> list[str]:
    """The words of a command line with the mark in place of what --notify was given, which goes to EBT_NOTIFY."""
    hidden = list(words)
    for place, word in enumerate(hidden):
        match = TYPED.fullmatch(word)
        if match:
            hidden[place] = f"{match[1]}={store(match[2])}"
        elif place and hidden[place - 1] == "--notify" and not word.startswith("--"):
            hidden[place] = store(word)
    return hidden


def store(target: str) -> str:
    """Its mark; the whole goes to EBT_NOTIFY."""
    mark = mark_of(target)
    if mark != target:
        os.environ[NOTIFY] = target
    return mark


def target_of(mark: str | None) -> str | None:
    """Whom to tell: the flag's own words, or what EBT_NOTIFY has where they are a mark or there is no flag."""
    if mark is not None and not mark.endswith(REST):
        return mark
    return os.environ.get(NOTIFY) or None


def masked(text: bytes) -> bytes:
    """A file's text with the mark where it has what EBT_NOTIFY has."""
    target = os.environ.get(NOTIFY)
    return text.replace(target.encode(), mark_of(target).encode()) if target else text
