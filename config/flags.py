"""One flag: a field of a dataclass of settings, its type, its wording, and how a value is parsed and validated."""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Any, Literal

from core.errors import UserError
from core.text import format_value, join_words

WHOLE = re.compile(r"[+-]?[0-9]{1,4000}")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)
LARGEST = 2**63 - 1
FROM_SIZE = "size table"  # default of a field that --model_size fills in

Affects = Literal["result", "speed", "record"]
Decides = Literal["data", "unit", "row"]


def flag(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    words: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    needs: dict[str, tuple[Any, ...]] | None = None,
    metavar: str | None = None,
    lines: bool = False,
    check: Callable[[Any], str | None] | None = None,
    affects: Affects = "result",
    shown_first: int = 0,
    of_model: bool = False,
    of_shape: bool = False,
    changeable: bool = False,
    decides: Decides | None = None,
) -> Any:
    """A dataclass field that is also a flag.

    choices: the only texts allowed. low, high: inclusive bounds; above: exclusive lower bound.
    words: texts allowed besides a number ("auto"). aliases: other spellings of the same flag.
    needs: {other flag: values} under which this flag has an effect; given without them it is an error.
    lines: a text may have several lines, and tabs. check: says what is wrong with a value, None if nothing is.
    affects: what another value changes. result: the numbers a run computes; speed: only how long they take;
    record: only where the run is kept and how it is shown.
    shown_first: 1 or 2 for flags that tables of runs show before others, the smaller number first.
    of_model: a checkpoint's weights belong to this value, so a later run takes it over from there; flags of a group
    that only some tasks have are of the model anyway. of_shape: weights of another value have another shape.
    changeable: a resumed run may have another value, though it affects the result.
    decides: what runs must share whose results are compared. data: which data is evaluated; unit: what a unit of it is;
    row: how many units a row has.
    """
    metadata = dict(locals())
    del metadata["default"]
    return field(default=default, metadata=metadata | {"needs": needs or {}})


class SettingsError(UserError):
    """Everything that is wrong with the settings, one line per problem."""

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
    check: Callable[[Any], str | None] | None
    affects: Affects
    shown_first: int
    of_model: bool
    of_shape: bool
    changeable: bool
    decides: Decides | None

    @property
    def on(self) -> tuple[str, ...]:
        """The spellings of the flag; the first is the usual one."""
        return tuple(f"--{name}" for name in (self.name, *self.aliases))

    @property
    def off(self) -> tuple[str, ...]:
        """The spellings that turn a switch off: --no-x, or --x for --no_x."""
        if self.kind is not bool:
            return ()
        plain = self.name.removeprefix("no_")
        return (f"--{plain}",) if plain != self.name else (f"--no-{plain}", f"--no_{plain}")

    def spelled(self, value: Any = True) -> str:
        """The flag as it is typed to get `value`: --x, or --no-x for a switch that is off."""
        return self.off[0] if value is False else self.on[0]


def section_of(settings: type) -> str:
    """The key of a group in a config file: its `section`, or the name of the class in lower case."""
    return str(getattr(settings, "section", settings.__name__.lower()))


def flags_of(group: str, settings: type) -> dict[str, Flag]:
    """The flags of one dataclass of settings, by name."""
    hints = typing.get_type_hints(settings)
    flags = {}
    for setting in fields(settings):
        hint = hints[setting.name]
        kinds = list(typing.get_args(hint)) if typing.get_origin(hint) is not tuple else []
        optional = NoneType in kinds
        kinds = [kind for kind in kinds if kind is not NoneType] or [hint]
        kind = next((kind for kind in kinds if kind is not str), str)  # float | str is a number, or one of its words
        kind = tuple if typing.get_origin(kind) is tuple else kind
        assert kind in (bool, int, float, str, tuple), f"{setting.name} has a type no flag can have: {hint}"
        default = setting.default
        if kind is float and isinstance(default, int):
            default = float(default)
        annotation = str(setting.type).replace(" ", "")
        flags[setting.name] = Flag(setting.name, group, annotation, kind, optional, default, **setting.metadata)
    return flags


def range_text(flag: Flag) -> str:
    """The range of a number in words: "of at least 1", "from 0 to 0.9", "above 0", or nothing."""
    if flag.above is not None:
        return f"above {format_value(flag.above)}" + (
            f" and at most {format_value(flag.high)}" if flag.high is not None else ""
        )
    if flag.low is not None and flag.high is not None:
        return f"from {format_value(flag.low)} to {format_value(flag.high)}"
    if flag.low is not None:
        return f"of at least {format_value(flag.low)}"
    return f"of at most {format_value(flag.high)}" if flag.high is not None else ""


def allowed_text(flag: Flag) -> str:
    """What the flag allows, as the end of a message: "choose a or b", "give a number above 0"."""
    if flag.choices:
        return f"choose {join_words(flag.choices)}"
    if flag.kind is bool:
        return "write true or false"
    kinds = {int: "a whole number", float: "a number", str: "a text", tuple: "one or more texts"}
    return f"give {kinds[flag.kind]} {range_text(flag)}".rstrip() + (
        f", or {join_words(flag.words)}" if flag.words else ""
    )


def parse_word(flag: Flag, text: str) -> Any:
    """The value of a word on the command line; a ValueError says "is ...: give ..."."""
    if text in flag.words:
        return text
    if flag.kind is int:
        if not WHOLE.fullmatch(text):
            hint = ", written without point or exponent" if NUMBER.fullmatch(text) else ""
            raise ValueError(f"is {text!r}: {allowed_text(flag)}{hint}.")
        return validated(flag, int(text))
    if flag.kind is float:
        if not NUMBER.fullmatch(text):
            raise ValueError(f"is {text!r}: {allowed_text(flag)}.")
        return validated(flag, float(text))
    assert flag.kind is str, "switches and lists are not parsed from one word"
    return validated(flag, text)


def parse_value(flag: Flag, value: Any) -> Any:
    """The flag's value of a value from YAML, JSON or a dict; texts are parsed as on the command line."""
    if value is None:
        if flag.optional:
            return None
        raise ValueError(f"is null: {allowed_text(flag)}, or leave it out.")
    if flag.kind is tuple:
        if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
            raise ValueError(f"is {value!r}: give a list of texts.")
        return validated(flag, tuple(value))
    if isinstance(value, (dict, list, tuple)):
        kind = "a group of values" if isinstance(value, dict) else "a list"
        raise ValueError(f"is {kind}: {allowed_text(flag)}.")
    if flag.kind is bool or isinstance(value, bool):
        if flag.kind is bool and isinstance(value, bool):
            return value
        quotes = ", in quotes" if flag.kind is str else ""
        raise ValueError(f"is {value!r}: {allowed_text(flag)}{quotes}.")
    if isinstance(value, float):
        if flag.kind is str:  # its digits as written are gone, so it cannot be turned back into a text
            raise ValueError(f"is {value!r}: {allowed_text(flag)}, in quotes.")
        return validated(flag, value) if flag.kind is float else parse_word(flag, repr(value))
    return parse_word(flag, str(value))


def validated(flag: Flag, value: Any) -> Any:
    """The value; a ValueError if it is not one of the choices, out of range, or a text with invisible characters."""
    words = value if flag.kind is tuple else (value,) if flag.kind is str else ()
    for word in words:
        if not word:
            raise ValueError("is empty: give a text, or leave the flag out.")
        visible = word.translate({ord("\n"): "", ord("\t"): ""}) if flag.lines else word
        if any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in visible):
            raise ValueError(f"is {word!r}: give a text without control characters.")
        if any(0xD800 <= ord(letter) < 0xE000 for letter in word):  # what Python makes of bytes that are not UTF-8
            raise ValueError(f"is {word!r}: give a text in UTF-8.")
    if flag.choices and not set(words) <= set(flag.choices):
        raise ValueError(f"is {join_words([repr(word) for word in words], 'and')}: {allowed_text(flag)}.")
    if flag.kind is float and not math.isfinite(value):
        raise ValueError(f"is {value}: {allowed_text(flag)}; it must be finite.")
    if flag.kind is int and abs(value) > LARGEST:
        raise ValueError(f"is {value}: {allowed_text(flag)}, below 2**63.")
    if flag.kind in (int, float) and (
        (flag.low is not None and value < flag.low)
        or (flag.high is not None and value > flag.high)
        or (flag.above is not None and value <= flag.above)
    ):
        raise ValueError(f"is {format_value(value)}: {allowed_text(flag)}.")
    return value
