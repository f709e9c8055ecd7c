"""Unigram and bigram cross-entropy, one target at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise


def ngram_nats(train: Sequence[int], valid: Sequence[int], vocab_size: int, prior_count: float) -> tuple[float, float]:
    """Mean nats per target of the validation tokens under (unigram, bigram) counts of the training tokens."""
    targets = Counter(train[1:])
    contexts = Counter(train[:-1])
    pairs = Counter(pairwise(train))
    unigram, bigram = [], []
    for before, token in pairwise(valid):
        p_unigram = (targets[token] + 1) / (len(train) - 1 + vocab_size)
        p_bigram = (pairs[before, token] + prior_count * p_unigram) / (contexts[before] + prior_count)
        unigram.append(-math.log(p_unigram))
        bigram.append(-math.log(p_bigram))
    return sum(unigram) / len(unigram), sum(bigram) / len(bigram)
