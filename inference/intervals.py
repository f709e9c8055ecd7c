"""Confidence intervals of a mean loss, and of the difference of two: a bootstrap over rows and seeds of noise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SAMPLES = 4000  # of a bootstrap
BATCH = 100  # samples computed at once
CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean with its confidence interval."""

    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        return f"{self.mean:.4f} [{self.low:.4f}, {self.high:.4f}]"


def bootstrap(sums: np.ndarray, targets: np.ndarray, samples: int = SAMPLES) -> np.ndarray:
    """Mean losses of resampled data: rows and seeds are each drawn with replacement. -> [samples, K]

    sums: summed losses of K points, [seeds, rows, K]; targets: how many each row has. All K points see the same draws,
    so that their differences are paired: a hard row is hard for all.
    """
    seeds, rows, _ = sums.shape
    rng = np.random.default_rng(0)
    means = []
    with np.errstate(invalid="ignore"):  # 0 times a loss that is not finite gives nan, as it should
        for start in range(0, samples, BATCH):
            count = min(BATCH, samples - start)
            row_counts = rng.multinomial(rows, np.full(rows, 1 / rows), count)
            seed_shares = rng.multinomial(seeds, np.full(seeds, 1 / seeds), count) / seeds
            by_seed = np.stack([row_counts @ sums[seed] for seed in range(seeds)], 1)
            means.append((seed_shares[:, :, None] * by_seed).sum(1) / (row_counts @ targets)[:, None])
    return np.concatenate(means)


def interval(mean: float, samples: np.ndarray, comparisons: int = 1) -> Interval:
    """The middle 95% of the samples; wider where the point is the best of several comparisons (Bonferroni)."""
    tail = (1 - CONFIDENCE) / 2 / max(1, comparisons)
    low, high = np.quantile(samples, (tail, 1 - tail)) if np.isfinite(samples).all() else (np.nan, np.nan)
    return Interval(float(mean), float(low), float(high))
