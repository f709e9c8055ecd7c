"""The text that comes piece by piece is the text of all tokens, and ends where it should."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from pydoc_data.topics import topics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.tokenizers import Tokenizer, build_tokenizer
from inference.streaming import Pieces, UntilStop


@lru_cache
def tokenizer_of(name: str) -> Tokenizer:
    return build_tokenizer(name, lambda: [*list(topics.values())[:20], "naïve café, 日本語 🎉 naïve 日本"])


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(["bytes", "bpe:400"]), tokens=st.lists(st.integers(0, 255), max_size=40))
def test_joined_pieces_are_the_text_of_any_tokens(name: str, tokens: list[int]) -> None:
    words = tokenizer_of(name)
    pieces = Pieces(words)
    assert "".join(map(pieces.push, tokens)) + pieces.close() == words.decode(tokens)


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(["bytes", "bpe:400"]), text=st.text(max_size=30))
def test_a_text_comes_in_whole_characters(name: str, text: str) -> None:
    words = tokenizer_of(name)
    pieces = Pieces(words)
    given_out = [pieces.push(token) for token in words.encode(text).tolist()]
    assert "".join(given_out) + pieces.close() == text
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(given_out)
        assert "".join(given_out) == text


def test_half_a_character_waits_for_its_other_half() -> None:
    pieces = Pieces(tokenizer_of("bytes"))
    assert [pieces.push(byte) for byte in "a€b".encode()] == ["a", "", "", "€", "b"]
    assert [pieces.push(byte) for byte in b"\xe2\x82"] == ["", ""]
    assert pieces.close() == "\ufffd"


@pytest.mark.parametrize(
    ("stops", "pieces", "given_out", "found"),
    [
        ((), ["a", "b"], ["a", "b"], False),
        (("\n",), ["ab", "c\nd"], ["ab", "c"], True),
        (("END",), ["tE", "N", "D"], ["t", "", ""], True),
        (("END",), ["tE", "N", "T"], ["t", "", "ENT"], False),
        (("END",), ["E", "EN", "D"], ["", "E", ""], True),
        (("aab",), ["a", "a", "a", "b"], ["", "", "a", ""], True),
        (("xyz", "yz"), ["ax", "y", "z"], ["a", "", ""], True),
        (("b", "c"), ["acb"], ["a"], True),
    ],
)
def test_text_ends_before_a_stop_text(stops: tuple[str, ...], pieces: list[str], given_out: list[str], found: bool):
    until = UntilStop(stops)
    assert [until.push(piece) for piece in pieces] == given_out
    assert until.found is found


@settings(max_examples=200, deadline=None)
@given(
    text=st.text("ab\n", max_size=20), stop=st.text("ab\n", min_size=1, max_size=4), cuts=st.sets(st.integers(1, 19))
)
def test_a_stop_text_is_found_however_it_is_cut(text: str, stop: str, cuts: set[int]) -> None:
    places = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    until, got = UntilStop((stop,)), ""
    for start, end in pairwise(places):
        if not until.found:
            got += until.push(text[start:end])
    got += until.close()
    assert got == text.partition(stop)[0]
    assert until.found == (stop in text)
