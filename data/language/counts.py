"""Losses of count models (unigram, bigram): the references that a trained model has to beat."""

from __future__ import annotations

import numpy as np

MOST_TRAINING_TOKENS = 20_000_000
# Weight of the unigram in a bigram estimate, in counts; fixed, so that it has seen no data.
PRIOR_COUNT = 10.0
BLOCK_SIZE = 1_000_000  # targets whose pairs are looked up at once


def unigram_shares(train: np.ndarray, vocab_size: int) -> np.ndarray:
    """How likely each token is, by counting, [V]."""
    counts = np.bincount(train[1:MOST_TRAINING_TOKENS], minlength=vocab_size)
    return (counts + 1) / (counts.sum() + vocab_size)


def unigram_baseline(train: np.ndarray, valid: np.ndarray, vocab_size: int) -> float:
    """The unigram line of `ngram_baselines` alone, which takes a moment where pairs take seconds."""
    targets = np.bincount(valid[1:], minlength=vocab_size)
    return float(-(targets * np.log(unigram_shares(train, vocab_size))).sum() / max(1, targets.sum()))


def ngram_baselines(
    train: np.ndarray,
    valid: np.ndarray,
    vocab_size: int,
    most_training_tokens: int = MOST_TRAINING_TOKENS,
    block_size: int = BLOCK_SIZE,
) -> dict[str, float]:
    """Nats per target of count models of the training stream, over every target of the validation stream.

    train, valid: token streams of any integer type, [tokens]; valid has at least 2.
    unigram: p1(b) = (c(b) + 1) / (n + V). bigram: (c(ab) + k p1(b)) / (c(a) + k), k = PRIOR_COUNT.
    """
    train = np.asarray(train[:most_training_tokens], dtype=np.int64)
    unigram = unigram_shares(train, vocab_size)
    pairs, pair_counts = np.unique(train[:-1] * vocab_size + train[1:], return_counts=True)
    # One pair that no text holds, so that a search beyond the last pair finds a count of 0.
    pairs, pair_counts = np.append(pairs, -1), np.append(pair_counts, 0)
    context_counts = np.bincount(train[:-1], minlength=vocab_size)

    unigram_nats = bigram_nats = 0.0
    for first in range(0, len(valid) - 1, block_size):
        block = np.asarray(valid[first : first + block_size + 1], dtype=np.int64)
        context, target = block[:-1], block[1:]
        code = context * vocab_size + target
        index = np.searchsorted(pairs[:-1], code)
        joint = np.where(pairs[index] == code, pair_counts[index], 0)
        p_unigram = unigram[target]
        p_bigram = (joint + PRIOR_COUNT * p_unigram) / (context_counts[context] + PRIOR_COUNT)
        unigram_nats -= np.log(p_unigram).sum()
        bigram_nats -= np.log(p_bigram).sum()
    num_targets = len(valid) - 1
    return {"unigram": float(unigram_nats / num_targets), "bigram": float(bigram_nats / num_targets)}
