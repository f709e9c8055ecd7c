"""The count models, against counting one target at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.language.counts import PRIOR_COUNT, ngram_baselines
from tests.reference.ngram import ngram_nats

tokens = st.lists(st.integers(0, 6), min_size=2, max_size=80)


@given(train=tokens, valid=tokens, vocab_size=st.sampled_from([7, 50_000]))
def test_equals_the_slow_version(train: list[int], valid: list[int], vocab_size: int) -> None:
    baselines = ngram_baselines(np.array(train, np.uint16), np.array(valid, np.uint16), vocab_size)
    unigram, bigram = ngram_nats(train, valid, vocab_size, PRIOR_COUNT)
    assert baselines == {"unigram": pytest.approx(unigram), "bigram": pytest.approx(bigram)}


def test_the_last_ids_of_a_large_vocabulary() -> None:
    train, valid = [49_999, 49_998] * 20, [49_998, 49_999, 49_999]
    baselines = ngram_baselines(np.array(train, np.uint16), np.array(valid, np.uint16), 50_000)
    assert baselines["bigram"] == pytest.approx(ngram_nats(train, valid, 50_000, PRIOR_COUNT)[1])


def test_blocks_leave_out_and_repeat_no_target() -> None:
    train, valid = np.random.default_rng(0).integers(20, size=(2, 1000))
    whole = ngram_baselines(train, valid, 20)
    assert ngram_baselines(train, valid, 20, block_size=37) == pytest.approx(whole)


def test_random_tokens_cost_the_logarithm_of_their_number() -> None:
    train, valid = np.random.default_rng(0).integers(16, size=(2, 100_000))
    baselines = ngram_baselines(train, valid, 16)
    assert baselines["unigram"] == pytest.approx(math.log(16), abs=0.01)
    assert baselines["bigram"] == pytest.approx(math.log(16), abs=0.01)


def test_an_alternating_text_is_plain_to_the_bigram_only() -> None:
    text = np.arange(10_000) % 2
    baselines = ngram_baselines(text, text, 2)
    assert baselines["bigram"] < 0.01 < baselines["unigram"]


def test_only_so_many_training_tokens_are_read() -> None:
    train, valid = np.random.default_rng(0).integers(20, size=(2, 1000))
    unigram, bigram = ngram_nats(train[:100].tolist(), valid.tolist(), 20, PRIOR_COUNT)
    baselines = ngram_baselines(train, valid, 20, most_training_tokens=100)
    assert baselines == {"unigram": pytest.approx(unigram), "bigram": pytest.approx(bigram)}
