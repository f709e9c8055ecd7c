"""Confidence intervals of a mean loss, and of a difference of two: a bootstrap over rows of text and seeds of noise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SAMPLES, BLOCK = 4000, 100
SHARE = 0.95


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
    """Mean losses of texts drawn from this one: rows, and seeds, each drawn with replacement. -> [samples, K]

    sums: summed losses of K points, [seeds, rows, K]; targets: tokens of each row. All K see the same draws, so that
    their differences are paired: a hard row is hard for all.
    """
    seeds, rows, _ = sums.shape
    rng = np.random.default_rng(0)
    means = []
    with np.errstate(invalid="ignore"):  # 0 times a loss that is not finite gives nan, as it should
        for start in range(0, samples, BLOCK):
            count = min(BLOCK, samples - start)
            of_rows = rng.multinomial(rows, np.full(rows, 1 / rows), count)
            of_seeds = rng.multinomial(seeds, np.full(seeds, 1 / seeds), count) / seeds
            by_seed = np.stack([of_rows @ sums[seed] for seed in range(seeds)], 1)
            means.append((of_seeds[:, :, None] * by_seed).sum(1) / (of_rows @ targets)[:, None])
    return np.concatenate(means)


def interval(mean: float, samples: np.ndarray, comparisons: int = 1) -> Interval:
    """The middle 95% of the samples; more where the point is the best of several comparisons (Bonferroni)."""
    tail = (1 - SHARE) / 2 / max(1, comparisons)
    low, high = np.quantile(samples, (tail, 1 - tail)) if np.isfinite(samples).all() else (np.nan, np.nan)
    return Interval(float(mean), float(low), float(high))
