"""A field of settings.py as a flag: its type, its wording, and how one value of it is read and judged."""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Sequence
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any

from core.errors import UserError
from core.text import listing, shown

from .settings import FROM_SIZE, RunConfig

WHOLE = re.compile(r"[+-]?[0-9]{1,4000}")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)
LARGEST = 2**63 - 1


class SettingsError(UserError):
    """Everything that is wrong with a person's settings, one line a problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(tuple(problems))

    def __str__(self) -> str:
        return "\n".join(self.args[0])


@dataclass(frozen=True)
class Flag:
    """One flag. kind: bool, int, float, str or tuple; default: its value, or FROM_SIZE."""

    name: str
    group: str
    annotation: str
    kind: type
    optional: bool
    default: Any
    help: str
    choices: tuple[str, ...]
    low: float | None
    high: float | None
    above: float | None
    words: tuple[str, ...]
    aliases: tuple[str, ...]
    needs: dict[str, tuple[Any, ...]]
    metavar: str | None
    lines: bool

    @property
    def on(self) -> tuple[str, ...]:
        """How the flag is typed; the first is the usual way."""
        return tuple(f"--{name}" for name in (self.name, *self.aliases))

    @property
    def off(self) -> tuple[str, ...]:
        """How a switch is turned off: --no-x, or --x for --no_x."""
        if self.kind is not bool:
            return ()
        plain = self.name.removeprefix("no_")
        return (f"--{plain}",) if plain != self.name else (f"--no-{plain}", f"--no_{plain}")

    def spelled(self, value: Any = True) -> str:
        """The flag as it is typed to get `value`: --x, or --no-x for a switch that is off."""
        return self.off[0] if value is False else self.on[0]


def flags_of(group: str, settings: type) -> dict[str, Flag]:
    """The flags of one dataclass of settings, by name."""
    hints = typing.get_type_hints(settings)
    flags = {}
    for field in fields(settings):
        hint = hints[field.name]
        kinds = list(typing.get_args(hint)) if typing.get_origin(hint) is not tuple else []
        optional = NoneType in kinds
        kinds = [kind for kind in kinds if kind is not NoneType] or [hint]
        kind = next((kind for kind in kinds if kind is not str), str)  # float | str is a number, or one of its words
        kind = tuple if typing.get_origin(kind) is tuple else kind
        assert kind in (bool, int, float, str, tuple), f"{field.name} has a type no flag can have: {hint}"
        default = field.default
        if kind is float and isinstance(default, int):
            default = float(default)
        annotation = str(field.type).replace(" ", "")
        flags[field.name] = Flag(field.name, group, annotation, kind, optional, default, **field.metadata)
    return flags


SECTIONS: dict[str, type] = {
    name: hint for name, hint in typing.get_type_hints(RunConfig).items() if name not in ("sources", "changed")
}
FLAGS: dict[str, Flag] = {
    flag.name: flag for group, settings in SECTIONS.items() for flag in flags_of(group, settings).values()
}
NAMES: dict[str, Flag] = {name: flag for flag in FLAGS.values() for name in (flag.name, *flag.aliases)}
SIZED = tuple(flag.name for flag in FLAGS.values() if flag.default == FROM_SIZE)


def limits(flag: Flag) -> str:
    """The range of a number in words: "of at least 1", "from 0 to 0.9", "above 0", or nothing."""
    if flag.above is not None:
        return f"above {shown(flag.above)}" + (f" and at most {shown(flag.high)}" if flag.high is not None else "")
    if flag.low is not None and flag.high is not None:
        return f"from {shown(flag.low)} to {shown(flag.high)}"
    if flag.low is not None:
        return f"of at least {shown(flag.low)}"
    return f"of at most {shown(flag.high)}" if flag.high is not None else ""


def allowed(flag: Flag) -> str:
    """What to do to get the flag right, as the end of a message."""
    if flag.choices:
        return f"choose {listing(flag.choices)}"
    if flag.kind is bool:
        return "write true or false"
    kinds = {int: "a whole number", float: "a number", str: "a text", tuple: "one or more texts"}
    return f"give {kinds[flag.kind]} {limits(flag)}".rstrip() + (f", or {listing(flag.words)}" if flag.words else "")


def read_text(flag: Flag, text: str) -> Any:
    """The value that a word on the command line stands for; a ValueError says "is ...: give ..."."""
    if text in flag.words:
        return text
    if flag.kind is int:
        if not WHOLE.fullmatch(text):
            hint = ", written without point or exponent" if NUMBER.fullmatch(text) else ""
            raise ValueError(f"is {text!r}: {allowed(flag)}{hint}.")
        return judged(flag, int(text))
    if flag.kind is float:
        if not NUMBER.fullmatch(text):
            raise ValueError(f"is {text!r}: {allowed(flag)}.")
        return judged(flag, float(text))
    assert flag.kind is str, "switches and lists are not read from one word"
    return judged(flag, text)


def read_plain(flag: Flag, value: Any) -> Any:
    """The value that a plain one from YAML, JSON or a dict stands for; texts are read as on the command line."""
    if value is None:
        if flag.optional:
            return None
        raise ValueError(f"is null: {allowed(flag)}, or leave it out.")
    if flag.kind is tuple:
        if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
            raise ValueError(f"is {value!r}: give a list of texts.")
        return judged(flag, tuple(value))
    if isinstance(value, (dict, list, tuple)):
        kind = "a group of values" if isinstance(value, dict) else "a list"
        raise ValueError(f"is {kind}: {allowed(flag)}.")
    if flag.kind is bool or isinstance(value, bool):
        if flag.kind is bool and isinstance(value, bool):
            return value
        quotes = ", in quotes" if flag.kind is str else ""
        raise ValueError(f"is {value!r}: {allowed(flag)}{quotes}.")
    if isinstance(value, float):
        if flag.kind is str:  # its digits as written are gone, so it cannot be turned back into a text
            raise ValueError(f"is {value!r}: {allowed(flag)}, in quotes.")
        return judged(flag, value) if flag.kind is float else read_text(flag, repr(value))
    return read_text(flag, str(value))


def judged(flag: Flag, value: Any) -> Any:
    """The value, if it is one of the choices, in its range, and a text that can be printed and seen."""
    words = value if flag.kind is tuple else (value,) if flag.kind is str else ()
    for word in words:
        if not word:
            raise ValueError("is empty: give a text, or leave the flag out.")
        kept = word.translate({ord("\n"): "", ord("\t"): ""}) if flag.lines else word
        if any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in kept):
            raise ValueError(f"is {word!r}: give a text without control characters.")
        if any(0xD800 <= ord(letter) < 0xE000 for letter in word):  # what Python makes of bytes that are not UTF-8
            raise ValueError(f"is {word!r}: give a text in UTF-8.")
    if flag.choices and not set(words) <= set(flag.choices):
        raise ValueError(f"is {listing([repr(word) for word in words], 'and')}: {allowed(flag)}.")
    if flag.kind is float and not math.isfinite(value):
        raise ValueError(f"is {value}: {allowed(flag)}; it must be finite.")
    if flag.kind is int and abs(value) > LARGEST:
        raise ValueError(f"is {value}: {allowed(flag)}, below 2**63.")
    if flag.kind in (int, float) and (
        (flag.low is not None and value < flag.low)
        or (flag.high is not None and value > flag.high)
        or (flag.above is not None and value <= flag.above)
    ):
        raise ValueError(f"is {shown(value)}: {allowed(flag)}.")
    return value
