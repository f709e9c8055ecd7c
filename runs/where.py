"""The language of --where: `ebt_type=time_embed and (valid_loss<2 or best.valid_loss<1.9) and not tags~old`.

    expression  = conjunction {"or" conjunction}
    conjunction = negation {"and" negation}
    negation    = "not" negation | "(" expression ")" | field [("=" | "!=" | "<" | "<=" | ">" | ">=" | "~") value]

A field alone asks whether it is there and not false, zero or empty. Words with blanks or signs stand in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from core.errors import UserError
from runs.expressions import (
    JOINTS,
    NUMBER,
    SIGNS,
    WORDS,
    Comparison,
    Either,
    Every,
    Expression,
    Given,
    Not,
    Plain,
    spelled,
)

TOKEN = re.compile(r"""\s*(?:(?P<sign><=|>=|!=|==|[=<>~()])|(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
                   r"""|(?P<word>[^\s"'()=<>~!]+))""", re.DOTALL)  # fmt: skip
DEEPEST = 50  # brackets and nots inside one another


@dataclass(frozen=True)
class Token:
    """kind: sign, quoted, word or end. text: as it is meant, without quotes. start, end: where it stands."""

    kind: str
    text: str
    start: int
    end: int

    def is_joint(self, joint: str) -> bool:
        return self.kind == "word" and self.text.lower() == joint


def parse(text: str) -> Expression:
    """The expression that a person wrote; what is wrong with it is a UserError that points to the place."""
    return Reader(text).whole()


def pointed(text: str, place: tuple[int, int], sentence: str) -> UserError:
    """The sentence, and below it the text with a mark under the place."""
    seen = "".join(letter if letter.isprintable() else "?" for letter in text)
    mark = "^" * max(1, place[1] - place[0])
    return UserError(f"--where: {sentence}\n  {seen}\n  {' ' * place[0]}{mark}")


class Reader:
    """Recursive descent: one method a rule of the grammar."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self.read())
        self.depth = 0

    def read(self) -> Iterator[Token]:
        place, length = 0, len(self.text.rstrip())
        while place < length:
            if not (found := TOKEN.match(self.text, place)):
                start = place + len(self.text[place:]) - len(self.text[place:].lstrip())
                letter = self.text[start]
                meant = "this quote is not closed" if letter in "\"'" else "write != here"
                raise self.problem(meant, start, start + 1)
            kind = str(found.lastgroup)
            words = found[kind]
            start = found.start(kind)
            if kind == "quoted":
                words = re.sub(r"\\(.)", r"\1", words[1:-1], flags=re.DOTALL)
            yield Token(kind, "=" if (kind, words) == ("sign", "==") else words, start, found.end())
            place = found.end()
        yield Token("end", "", length, length + 1)

    def problem(self, sentence: str, start: int, end: int) -> UserError:
        return pointed(self.text, (start, end), f"{sentence}.")

    @property
    def next(self) -> Token:
        return self.tokens[0]

    def take(self) -> Token:
        return self.tokens.pop(0) if self.next.kind != "end" else self.next

    def whole(self) -> Expression:
        found = self.expression()
        left = self.next
        if left.kind == "end":
            return found
        closing = (left.kind, left.text) == ("sign", ")")
        meant = "this bracket closes nothing" if closing else "write and or or before this"
        if left.kind == "sign" and left.text in SIGNS:
            meant = "a comparison has two sides: write and between two of them"
        raise self.problem(meant, left.start, left.end)

    def expression(self) -> Expression:
        return self.joined("or", Either, lambda: self.joined("and", Every, self.negation))

    def joined(self, joint: str, kind: type[Every] | type[Either], part: Callable[[], Expression]) -> Expression:
        parts = [part()]
        while self.next.is_joint(joint):
            self.take()
            parts.append(part())
        return kind(tuple(parts)) if len(parts) > 1 else parts[0]

    def negation(self) -> Expression:
        opening = self.next
        denied = opening.is_joint("not")
        if not denied and (opening.kind, opening.text) != ("sign", "("):
            return self.comparison()
        self.take()
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.problem(f"this is nested more than {DEEPEST} deep", opening.start, opening.end)
        found = Not(self.negation()) if denied else self.expression()
        self.depth -= 1
        if not denied:
            closing = self.take()
            if (closing.kind, closing.text) != ("sign", ")"):
                raise self.problem("this bracket is not closed", opening.start, opening.end)
        return found

    def comparison(self) -> Expression:
        name = self.take()
        if name.kind not in ("word", "quoted") or any(map(name.is_joint, JOINTS)):
            sentence = "a setting or a metric belongs here, such as valid_loss<2"
            raise self.problem(sentence, name.start, name.end)
        if self.next.kind != "sign" or self.next.text not in SIGNS:
            return Given(name.text, (name.start, name.end))
        sign, value = self.take(), self.take()
        if value.kind not in ("word", "quoted"):
            example = "a number, a word, true, false or none"
            raise self.problem(f"a value belongs after {sign.text}: {example}", value.start, value.end)
        meaning = meant_by(value)
        if sign.text == "~":
            try:
                re.compile(spelled(meaning))
            except (re.error, RecursionError, OverflowError) as error:
                sentence = (
                    f"this is no regular expression ({error}): put a backslash before signs that are meant as such"
                )
                raise self.problem(sentence, value.start, value.end) from None
        return Comparison(name.text, sign.text, meaning, (name.start, value.end))


def meant_by(token: Token) -> Plain:
    """What stands in quotes is a text; otherwise it may be a number or true, false, none."""
    if token.kind == "word":
        if token.text.lower() in WORDS:
            return WORDS[token.text.lower()]
        if NUMBER.fullmatch(token.text):
            return float(token.text)
    return token.text
