"""From tokens to text while they come: whole characters only, and nothing of a text at which to stop."""

from __future__ import annotations

from collections.abc import Sequence

from data.tokenizers import Tokenizer

HALF = "\ufffd"  # how a tokenizer decodes the beginning of a character


class Pieces:
    """The text that each token adds; joined, they are the text of all tokens.

    A character whose bytes have not all come is held back. What a token adds can depend on the token before it (a
    space that is dropped at the beginning of a text), so decoding begins a piece earlier.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.earlier: list[int] = []  # the last piece's tokens
        self.waiting: list[int] = []  # tokens whose text is not given out

    def push(self, token: int) -> str:
        self.waiting.append(token)
        added = self.added()
        if not added or added.endswith(HALF):
            return ""
        self.earlier, self.waiting = self.waiting, []
        return added

    def added(self) -> str:
        """The text of the tokens that wait."""
        known = self.tokenizer.decode(self.earlier)
        return self.tokenizer.decode(self.earlier + self.waiting)[len(known) :]

    def close(self) -> str:
        """What was held back."""
        added = self.added()
        self.waiting = []
        return added


class UntilStop:
    """Text up to the first of some texts, which may come in pieces. held: what could be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """The text that is now sure to be wanted; after a stop text, none is."""
        text = self.held + piece
        places = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        if places:
            self.found, self.held = True, ""
            return text[: min(places)]
        longest = max((begun(text, stop) for stop in self.stops), default=0)
        self.held = text[len(text) - longest :]
        return text[: len(text) - longest]

    def close(self) -> str:
        """What was held back, once no more can come."""
        held, self.held = self.held, ""
        return held


def begun(text: str, stop: str) -> int:
    """How many letters at the end of the text are the beginning of the stop text."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)
