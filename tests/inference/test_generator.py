"""What is drawn has the right shares, and is fixed by the seed, the prompt and the place alone; its text comes in whole
characters and ends at a stop text."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from pydoc_data.topics import topics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.language.tokenizers import Tokenizer, build_tokenizer
from inference.language.generator import IncrementalDecoder, KeyedUniform, Sampling, StopMatcher, draw, top_k_top_p_mask

ROWS = 20_000
LOGITS_V = torch.tensor([1.0, 3.0, -1.0, 2.0, 2.5, 0.0])


def shares(sampling: Sampling) -> torch.Tensor:
    """How often each token is drawn, by uniform numbers that cover everything evenly."""
    uniform_B = (torch.arange(ROWS) + 0.5) / ROWS
    return draw(LOGITS_V.expand(ROWS, -1), uniform_B, sampling).bincount(minlength=len(LOGITS_V)) / ROWS


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_the_model_says(temperature: float) -> None:
    expected = (LOGITS_V / temperature).softmax(-1)
    torch.testing.assert_close(shares(Sampling(temperature)), expected, rtol=0, atol=2 / ROWS)


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-12])
def test_no_temperature_takes_the_likeliest(temperature: float) -> None:
    assert shares(Sampling(temperature)).tolist() == [0, 1, 0, 0, 0, 0]


def test_what_is_never_drawn_leaves_its_share_to_the_others() -> None:
    expected = LOGITS_V.softmax(-1).clone()
    expected[1] = 0
    torch.testing.assert_close(shares(Sampling(excluded=(1,))), expected / expected.sum(), rtol=0, atol=2 / ROWS)
    assert shares(Sampling(0, excluded=(1, 4))).argmax() == 3


def test_top_k_and_top_p_leave_the_likeliest() -> None:
    share_V = LOGITS_V.softmax(-1)
    for sampling, tokens in (
        (Sampling(top_k=2), [1, 4]),
        (Sampling(top_k=100), [0, 1, 2, 3, 4, 5]),
        (Sampling(top_p=0.01), [1]),
        (Sampling(top_p=0.5), [1, 4]),
        (Sampling(top_p=0.8), [1, 3, 4]),
        (Sampling(top_k=3, top_p=0.6), [1, 4]),  # of the three: 0.47, 0.29, 0.17 become 0.51, 0.31, 0.19
        (Sampling(top_k=1, top_p=0.9), [1]),
    ):
        expected = torch.zeros(6).index_copy(0, torch.tensor(tokens), share_V[tokens])
        expected /= expected.sum()
        torch.testing.assert_close(shares(sampling), expected, rtol=0, atol=2 / ROWS, msg=str(sampling))


def test_of_equals_the_first_are_kept() -> None:
    even = torch.full((1, 6), 1 / 6, dtype=torch.float64)
    assert top_k_top_p_mask(even, 2, 1.0).tolist() == [[True, True, False, False, False, False]]
    assert top_k_top_p_mask(even, 6, 0.4).sum() == 3


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(st.floats(-30, 30), min_size=7, max_size=7), min_size=1, max_size=5),
    temperature=st.floats(0.01, 5),
    top_k=st.integers(0, 9),
    top_p=st.floats(0.01, 1),
    seed=st.integers(0, 5),
)
def test_draws_are_batch_invariant(
    rows: list[list[float]], temperature: float, top_k: int, top_p: float, seed: int
) -> None:
    sampling = Sampling(temperature, top_k, top_p, excluded=(6,))
    uniform_B = torch.rand(len(rows), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    together = draw(torch.tensor(rows), uniform_B, sampling)
    for number, row in enumerate(rows):
        alone = draw(torch.tensor([row]), uniform_B[number : number + 1], sampling)
        assert alone[0] == together[number]
        likelier = sum(other - row[alone[0]] > 1e-12 for other in row[:6])  # nearer ones have the same probability
        assert alone[0] != 6 and likelier < (top_k or 6)


def test_the_ends_of_the_uniform_numbers_are_tokens_that_may_be_drawn() -> None:
    logits_BV = torch.tensor([[-1000.0, 0.0, 0.0, -1000.0]] * 2)
    ends = torch.tensor([0.5 / 2**32, 1 - 0.5 / 2**32], dtype=torch.float64)
    assert draw(logits_BV, ends, Sampling()).tolist() == [1, 2]


def test_chance_is_even_and_depends_on_seed_prompt_occurrence_and_place() -> None:
    numbers = torch.tensor([KeyedUniform(0, [1, 2], 0).at(index) for index in range(10_000)])
    assert numbers.min() > 0 and numbers.max() < 1
    assert (numbers.histc(10, 0, 1) - 1000).abs().max() < 150
    assert abs(torch.corrcoef(torch.stack([numbers[:-1], numbers[1:]]))[0, 1]) < 0.05
    others = [
        KeyedUniform(1, [1, 2], 0),
        KeyedUniform(0, [1, 3], 0),
        KeyedUniform(0, [12], 0),
        KeyedUniform(0, [1, 2], 1),
    ]
    first = KeyedUniform(0, [1, 2], 0)
    assert len({chance.at(index) for chance in (*others, first) for index in range(100)}) == 500
    assert [first.at(index) for index in (3, 1)] == [KeyedUniform(0, [1, 2], 0).at(index) for index in (3, 1)]


@lru_cache
def tokenizer_of(name: str) -> Tokenizer:
    return build_tokenizer(name, lambda: [*list(topics.values())[:20], "naïve café, 日本語 🎉 naïve 日本"])


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(["bytes", "bpe:400"]), tokens=st.lists(st.integers(0, 255), max_size=40))
def test_joined_pieces_are_the_text_of_any_tokens(name: str, tokens: list[int]) -> None:
    tokenizer = tokenizer_of(name)
    pieces = IncrementalDecoder(tokenizer)
    assert "".join(map(pieces.push, tokens)) + pieces.close() == tokenizer.decode(tokens)


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(["bytes", "bpe:400"]), text=st.text(max_size=30))
def test_a_text_comes_in_whole_characters(name: str, text: str) -> None:
    tokenizer = tokenizer_of(name)
    pieces = IncrementalDecoder(tokenizer)
    given_out = [pieces.push(token) for token in tokenizer.encode(text).tolist()]
    assert "".join(given_out) + pieces.close() == text
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(given_out)
        assert "".join(given_out) == text


def test_half_a_character_waits_for_its_other_half() -> None:
    pieces = IncrementalDecoder(tokenizer_of("bytes"))
    assert [pieces.push(byte) for byte in "a€b".encode()] == ["a", "", "", "€", "b"]
    assert [pieces.push(byte) for byte in b"\xe2\x82"] == ["", ""]
    assert pieces.close() == "\ufffd"


@pytest.mark.parametrize(
    ("stops", "pieces", "given_out", "matched"),
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
def test_text_ends_before_a_stop_text(stops: tuple[str, ...], pieces: list[str], given_out: list[str], matched: bool):
    until = StopMatcher(stops)
    assert [until.push(piece) for piece in pieces] == given_out
    assert until.matched is matched


@settings(max_examples=200, deadline=None)
@given(
    text=st.text("ab\n", max_size=20), stop=st.text("ab\n", min_size=1, max_size=4), cuts=st.sets(st.integers(1, 19))
)
def test_a_stop_text_is_found_however_it_is_cut(text: str, stop: str, cuts: set[int]) -> None:
    places = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    until, got = StopMatcher((stop,)), ""
    for start, end in pairwise(places):
        if not until.matched:
            got += until.push(text[start:end])
    got += until.close()
    assert got == text.partition(stop)[0]
    assert until.matched == (stop in text)
