"""What is drawn has the right shares, and is fixed by the seed, the prompt and the place alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.sampling import Chance, Sampling, among_likeliest, draw

ROWS = 20_000
LOGITS_V = torch.tensor([1.0, 3.0, -1.0, 2.0, 2.5, 0.0])


def shares(how: Sampling) -> torch.Tensor:
    """How often each token is drawn, by uniform numbers that cover everything evenly."""
    uniform_B = (torch.arange(ROWS) + 0.5) / ROWS
    return draw(LOGITS_V.expand(ROWS, -1), uniform_B, how).bincount(minlength=len(LOGITS_V)) / ROWS


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
    torch.testing.assert_close(shares(Sampling(never=(1,))), expected / expected.sum(), rtol=0, atol=2 / ROWS)
    assert shares(Sampling(0, never=(1, 4))).argmax() == 3


def test_top_k_and_top_p_leave_the_likeliest() -> None:
    share_V = LOGITS_V.softmax(-1)
    for how, kept in (
        (Sampling(top_k=2), [1, 4]),
        (Sampling(top_k=100), [0, 1, 2, 3, 4, 5]),
        (Sampling(top_p=0.01), [1]),
        (Sampling(top_p=0.5), [1, 4]),
        (Sampling(top_p=0.8), [1, 3, 4]),
        (Sampling(top_k=3, top_p=0.6), [1, 4]),  # of the three: 0.47, 0.29, 0.17 become 0.51, 0.31, 0.19
        (Sampling(top_k=1, top_p=0.9), [1]),
    ):
        expected = torch.zeros(6).index_copy(0, torch.tensor(kept), share_V[kept])
        torch.testing.assert_close(shares(how), expected / expected.sum(), rtol=0, atol=2 / ROWS, msg=str(how))


def test_of_equals_the_first_are_kept() -> None:
    even = torch.full((1, 6), 1 / 6, dtype=torch.float64)
    assert among_likeliest(even, 2, 1.0).tolist() == [[True, True, False, False, False, False]]
    assert among_likeliest(even, 6, 0.4).sum() == 3


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(st.floats(-30, 30), min_size=7, max_size=7), min_size=1, max_size=5),
    temperature=st.floats(0.01, 5),
    top_k=st.integers(0, 9),
    top_p=st.floats(0.01, 1),
    seed=st.integers(0, 5),
)
def test_a_row_is_drawn_the_same_in_any_company(
    rows: list[list[float]], temperature: float, top_k: int, top_p: float, seed: int
) -> None:
    how = Sampling(temperature, top_k, top_p, never=(6,))
    uniform_B = torch.rand(len(rows), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    together = draw(torch.tensor(rows), uniform_B, how)
    for number, row in enumerate(rows):
        alone = draw(torch.tensor([row]), uniform_B[number : number + 1], how)
        assert alone[0] == together[number]
        likelier = sum(other - row[alone[0]] > 1e-12 for other in row[:6])  # nearer ones have the same probability
        assert alone[0] != 6 and likelier < (top_k or 6)


def test_the_ends_of_the_uniform_numbers_are_tokens_that_may_be_drawn() -> None:
    logits_BV = torch.tensor([[-1000.0, 0.0, 0.0, -1000.0]] * 2)
    ends = torch.tensor([0.5 / 2**32, 1 - 0.5 / 2**32], dtype=torch.float64)
    assert draw(logits_BV, ends, Sampling()).tolist() == [1, 2]


def test_chance_is_even_and_depends_on_seed_prompt_occurrence_and_place() -> None:
    numbers = torch.tensor([Chance(0, [1, 2], 0).at(place) for place in range(10_000)])
    assert numbers.min() > 0 and numbers.max() < 1
    assert (numbers.histc(10, 0, 1) - 1000).abs().max() < 150
    assert abs(torch.corrcoef(torch.stack([numbers[:-1], numbers[1:]]))[0, 1]) < 0.05
    others = [Chance(1, [1, 2], 0), Chance(0, [1, 3], 0), Chance(0, [12], 0), Chance(0, [1, 2], 1)]
    first = Chance(0, [1, 2], 0)
    assert len({chance.at(place) for chance in (*others, first) for place in range(100)}) == 500
    assert [first.at(place) for place in (3, 1)] == [Chance(0, [1, 2], 0).at(place) for place in (3, 1)]
