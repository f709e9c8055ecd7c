"""What --where asks of a run: comparisons and what joins them, each of which knows whether a run fits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import field as attribute
from typing import Any

from core.text import shown

Plain = float | str | bool | None
Lookup = Callable[[str], Any]

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf)", re.IGNORECASE)
WORDS: dict[str, bool | None] = {"true": True, "false": False, "none": None, "null": None}
JOINTS = ("and", "or", "not")
SIGNS = ("=", "!=", "<", "<=", ">", ">=", "~")


@dataclass(frozen=True)
class Comparison:
    """place: where it stands in the text, and so no part of what it says."""

    field: str
    sign: str
    value: Plain
    place: tuple[int, int] = attribute(default=(0, 0), compare=False)

    def fits(self, lookup: Lookup) -> bool:
        found = lookup(self.field)
        if self.sign == "!=":
            return not any_equal(found, self.value)
        if self.sign == "=":
            return any_equal(found, self.value)
        if self.sign == "~":
            return any(re.search(spelled(self.value), shown(each), re.IGNORECASE) for each in several(found))
        return any(is_ordered(each, self.sign, self.value) for each in several(found))

    def __str__(self) -> str:
        return f"{quoted(self.field)}{self.sign}{literal(self.value)}"


@dataclass(frozen=True)
class Given:
    """Whether a field is there and not false, zero or empty."""

    field: str
    place: tuple[int, int] = attribute(default=(0, 0), compare=False)

    def fits(self, lookup: Lookup) -> bool:
        return bool(lookup(self.field))

    def __str__(self) -> str:
        return quoted(self.field)


@dataclass(frozen=True)
class Not:
    part: Expression

    def fits(self, lookup: Lookup) -> bool:
        return not self.part.fits(lookup)

    def __str__(self) -> str:
        return f"not {bracketed(self.part)}"


@dataclass(frozen=True)
class Every:
    parts: tuple[Expression, ...]

    def fits(self, lookup: Lookup) -> bool:
        return all(part.fits(lookup) for part in self.parts)

    def __str__(self) -> str:
        return " and ".join(map(bracketed, self.parts))


@dataclass(frozen=True)
class Either:
    parts: tuple[Expression, ...]

    def fits(self, lookup: Lookup) -> bool:
        return any(part.fits(lookup) for part in self.parts)

    def __str__(self) -> str:
        return " or ".join(map(bracketed, self.parts))


Expression = Comparison | Given | Not | Every | Either


def leaves(expression: Expression) -> Iterator[Comparison | Given]:
    """Every comparison in an expression."""
    if isinstance(expression, Comparison | Given):
        yield expression
    elif isinstance(expression, Not):
        yield from leaves(expression.part)
    else:
        for part in expression.parts:
            yield from leaves(part)


def quoted(word: str) -> str:
    """A name as it is written."""
    bare = re.fullmatch(r"[^\s\"'()=<>~!]+", word) and word.lower() not in JOINTS
    return word if bare else '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'


def literal(value: Plain) -> str:
    """A value as it is written."""
    if isinstance(value, str):
        ambiguous = value.lower() in WORDS or NUMBER.fullmatch(value)
        return f'"{value}"' if ambiguous else quoted(value)
    return "none" if value is None else spelled(value)


def spelled(value: Plain) -> str:
    """A value as text, to be found in texts."""
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return value if isinstance(value, str) else shown(value)


def bracketed(part: Expression) -> str:
    return f"({part})" if isinstance(part, Every | Either) else str(part)


def several(found: Any) -> list[Any]:
    """A list of tags is each of them; nothing is none of them."""
    if found is None:
        return []
    return list(found) if isinstance(found, list | tuple) else [found]


def any_equal(found: Any, value: Plain) -> bool:
    if value is None:
        return found is None
    return any(is_equal(each, value) for each in several(found))


def is_equal(found: Any, value: Plain) -> bool:
    """Numbers by what they are, however they were written; texts letter by letter."""
    if isinstance(found, bool) or isinstance(value, bool):
        return found is value
    if isinstance(found, str) and found == value:
        return True
    one, other = number(found), number(value)
    if one is not None and other is not None:
        return one == other or (math.isnan(one) and math.isnan(other))
    return shown(found) == spelled(value)


def is_ordered(found: Any, sign: str, value: Plain) -> bool:
    """Two numbers, or two texts, so that dates can be compared as well."""
    if value is None or isinstance(value, bool) or isinstance(found, bool):
        return False
    one: Any = number(found)
    other: Any = number(value)
    if one is None or other is None:
        if not isinstance(found, str):
            return False
        one, other = found, spelled(value)
    return bool({"<": one < other, "<=": one <= other, ">": one > other, ">=": one >= other}[sign])


def number(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return float(value) if isinstance(value, str) and NUMBER.fullmatch(value) else None
