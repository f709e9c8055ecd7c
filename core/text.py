"""Words and values as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def listing(words: Sequence[str], last: str = "or") -> str:
    """a, b or c"""
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def shown(value: Any) -> str:
    """A value in a message or a table: always on one line and printable."""
    if isinstance(value, str):
        return value if value.isprintable() and value else repr(value)
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(shown, value)) + "]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)
