"""The language of --where: `ebt_type=time_embed and (valid_loss<2 or best.valid_loss<1.9) and not tags~old`.

    expression  = conjunction {"or" conjunction}
    conjunction = negation {"and" negation}
    negation    = "not" negation | "(" expression ")" | field [("=" | "!=" | "<" | "<=" | ">" | ">=" | "~") value]

A field alone asks whether it is there and not false, zero or empty. Words with blanks or signs stand in quotes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import field as attribute
from typing import Any

from core.errors import UserError
from core.text import format_value

Plain = float | str | bool | None
Lookup = Callable[[str], Any]

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf)", re.IGNORECASE)
LITERALS: dict[str, bool | None] = {"true": True, "false": False, "none": None, "null": None}
KEYWORDS = ("and", "or", "not")
SIGNS = ("=", "!=", "<", "<=", ">", ">=", "~")


@dataclass(frozen=True)
class Comparison:
    """field sign value. span: its position in the text; not part of its equality."""

    field: str
    sign: str
    value: Plain
    span: tuple[int, int] = attribute(default=(0, 0), compare=False)

    def fits(self, lookup: Lookup) -> bool:
        actual = lookup(self.field)
        if self.sign == "!=":
            return not any_equal(actual, self.value)
        if self.sign == "=":
            return any_equal(actual, self.value)
        if self.sign == "~":
            return any(re.search(text_of(self.value), format_value(each), re.IGNORECASE) for each in as_list(actual))
        return any(is_ordered(each, self.sign, self.value) for each in as_list(actual))


@dataclass(frozen=True)
class IsSet:
    """Whether a field is there and not false, zero or empty."""

    field: str
    span: tuple[int, int] = attribute(default=(0, 0), compare=False)

    def fits(self, lookup: Lookup) -> bool:
        return bool(lookup(self.field))


@dataclass(frozen=True)
class Not:
    part: Expression

    def fits(self, lookup: Lookup) -> bool:
        return not self.part.fits(lookup)


@dataclass(frozen=True)
class And:
    parts: tuple[Expression, ...]

    def fits(self, lookup: Lookup) -> bool:
        return all(part.fits(lookup) for part in self.parts)


@dataclass(frozen=True)
class Or:
    parts: tuple[Expression, ...]

    def fits(self, lookup: Lookup) -> bool:
        return any(part.fits(lookup) for part in self.parts)


Expression = Comparison | IsSet | Not | And | Or


def leaves(expression: Expression) -> Iterator[Comparison | IsSet]:
    """Every comparison in an expression."""
    if isinstance(expression, Comparison | IsSet):
        yield expression
    elif isinstance(expression, Not):
        yield from leaves(expression.part)
    else:
        for part in expression.parts:
            yield from leaves(part)


def text_of(value: Plain) -> str:
    """A value as text, as a regular expression or to be compared with texts."""
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return value if isinstance(value, str) else format_value(value)


def as_list(value: Any) -> list[Any]:
    """The elements of a list such as tags; a single value as a list; [] for None."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def any_equal(values: Any, value: Plain) -> bool:
    if value is None:
        return values is None
    return any(is_equal(each, value) for each in as_list(values))


def is_equal(actual: Any, value: Plain) -> bool:
    """Numbers by their value (1e-3 is 0.001); texts letter by letter."""
    if isinstance(actual, bool) or isinstance(value, bool):
        return actual is value
    if isinstance(actual, str) and actual == value:
        return True
    one, other = number(actual), number(value)
    if one is not None and other is not None:
        return one == other or (math.isnan(one) and math.isnan(other))
    return format_value(actual) == text_of(value)


def is_ordered(actual: Any, sign: str, value: Plain) -> bool:
    """Two numbers, or two texts, so that dates can be compared as well."""
    if value is None or isinstance(value, bool) or isinstance(actual, bool):
        return False
    one: Any = number(actual)
    other: Any = number(value)
    if one is None or other is None:
        if not isinstance(actual, str):
            return False
        one, other = actual, text_of(value)
    return bool({"<": one < other, "<=": one <= other, ">": one > other, ">=": one >= other}[sign])


def number(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return float(value) if isinstance(value, str) and NUMBER.fullmatch(value) else None


TOKEN = re.compile(r"""\s*(?:(?P<sign><=|>=|!=|==|[=<>~()])|(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
                   r"""|(?P<word>[^\s"'()=<>~!]+))""", re.DOTALL)  # fmt: skip
MAX_DEPTH = 50  # brackets and nots inside one another


@dataclass(frozen=True)
class Token:
    """kind: sign, quoted, word or end. text: without quotes and escapes. start, end: its span."""

    kind: str
    text: str
    start: int
    end: int

    def is_keyword(self, keyword: str) -> bool:
        return self.kind == "word" and self.text.lower() == keyword


def parse(text: str) -> Expression:
    """The expression of a --where; a UserError with a mark under the mistake where it has one."""
    return Parser(text).whole()


def error_at(text: str, span: tuple[int, int], sentence: str) -> UserError:
    """The sentence, and below it the text with a mark under the span."""
    line = "".join(letter if letter.isprintable() else "?" for letter in text)
    mark = "^" * max(1, span[1] - span[0])
    return UserError(f"--where: {sentence}\n  {line}\n  {' ' * span[0]}{mark}")


class Parser:
    """Recursive descent: one method a rule of the grammar."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self.read())
        self.depth = 0

    def read(self) -> Iterator[Token]:
        offset, length = 0, len(self.text.rstrip())
        while offset < length:
            if not (match := TOKEN.match(self.text, offset)):
                start = offset + len(self.text[offset:]) - len(self.text[offset:].lstrip())
                letter = self.text[start]
                sentence = "this quote is not closed" if letter in "\"'" else "write != here"
                raise self.problem(sentence, start, start + 1)
            kind = str(match.lastgroup)
            words = match[kind]
            start = match.start(kind)
            if kind == "quoted":
                words = re.sub(r"\\(.)", r"\1", words[1:-1], flags=re.DOTALL)
            yield Token(kind, "=" if (kind, words) == ("sign", "==") else words, start, match.end())
            offset = match.end()
        yield Token("end", "", length, length + 1)

    def problem(self, sentence: str, start: int, end: int) -> UserError:
        return error_at(self.text, (start, end), f"{sentence}.")

    @property
    def next(self) -> Token:
        return self.tokens[0]

    def take(self) -> Token:
        return self.tokens.pop(0) if self.next.kind != "end" else self.next

    def whole(self) -> Expression:
        expression = self.expression()
        token = self.next
        if token.kind == "end":
            return expression
        closing = (token.kind, token.text) == ("sign", ")")
        sentence = "this bracket closes nothing" if closing else "write and or or before this"
        if token.kind == "sign" and token.text in SIGNS:
            sentence = "a comparison has two sides: write and between two of them"
        raise self.problem(sentence, token.start, token.end)

    def expression(self) -> Expression:
        return self.sequence("or", Or, lambda: self.sequence("and", And, self.negation))

    def sequence(self, keyword: str, kind: type[And] | type[Or], part: Callable[[], Expression]) -> Expression:
        parts = [part()]
        while self.next.is_keyword(keyword):
            self.take()
            parts.append(part())
        return kind(tuple(parts)) if len(parts) > 1 else parts[0]

    def negation(self) -> Expression:
        opening = self.next
        is_not = opening.is_keyword("not")
        if not is_not and (opening.kind, opening.text) != ("sign", "("):
            return self.comparison()
        self.take()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.problem(f"this is nested more than {MAX_DEPTH} deep", opening.start, opening.end)
        part = Not(self.negation()) if is_not else self.expression()
        self.depth -= 1
        if not is_not:
            closing = self.take()
            if (closing.kind, closing.text) != ("sign", ")"):
                raise self.problem("this bracket is not closed", opening.start, opening.end)
        return part

    def comparison(self) -> Expression:
        name = self.take()
        if name.kind not in ("word", "quoted") or any(map(name.is_keyword, KEYWORDS)):
            sentence = "a setting or a metric belongs here, such as valid_loss<2"
            raise self.problem(sentence, name.start, name.end)
        if self.next.kind != "sign" or self.next.text not in SIGNS:
            return IsSet(name.text, (name.start, name.end))
        sign, value = self.take(), self.take()
        if value.kind not in ("word", "quoted"):
            example = "a number, a word, true, false or none"
            raise self.problem(f"a value belongs after {sign.text}: {example}", value.start, value.end)
        literal = value_of_token(value)
        if sign.text == "~":
            try:
                re.compile(text_of(literal))
            except (re.error, RecursionError, OverflowError) as error:
                sentence = (
                    f"this is no regular expression ({error}): put a backslash before signs that are meant as such"
                )
                raise self.problem(sentence, value.start, value.end) from None
        return Comparison(name.text, sign.text, literal, (name.start, value.end))


def value_of_token(token: Token) -> Plain:
    """A value in quotes is a text; otherwise it may be a number or true, false, none."""
    if token.kind == "word":
        if token.text.lower() in LITERALS:
            return LITERALS[token.text.lower()]
        if NUMBER.fullmatch(token.text):
            return float(token.text)
    return token.text
