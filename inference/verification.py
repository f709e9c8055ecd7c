"""How well a score tells right from wrong: AUROC, and the risk of answering only what scores high.

A score is higher for what is believed more, such as minus an energy or a log-probability. Ties count as a draw: what a
score cannot tell apart it must not win by the order in which it happens to stand.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from inference.intervals import Interval, interval

SAMPLES = 1000  # of a bootstrap of an AUROC or of an area, which cost more than a mean
BATCH = 50  # of these at once
AREA_SAMPLES = 400


def auroc(right: np.ndarray, wrong: np.ndarray) -> float:
    """The chance that something right scores above something wrong; nan where one of both is missing."""
    if not len(right) or not len(wrong):
        return float("nan")
    ordered = np.sort(wrong)
    below, up_to = np.searchsorted(ordered, right, "left"), np.searchsorted(ordered, right, "right")
    return float((below + up_to).sum() / (2 * len(right) * len(wrong)))


class RiskCoverage(NamedTuple):
    """By the number answered, highest scores first: the share of all rows, and the share of them that is wrong.

    coverage, risk: [R]. area: the mean risk; best, random: the areas of a perfect order and of none.
    """

    coverage: np.ndarray
    risk: np.ndarray
    area: float
    best: float
    random: float


def risk_coverage(score: np.ndarray, right: np.ndarray) -> RiskCoverage:
    """score: float [R]; right: bool [R]. Within a tie, errors are expected evenly."""
    assert len(score), "there is nothing to rank"
    risk = risks(score, ~right)
    best = risks(right.astype(float), ~right)
    coverage = np.arange(1, len(score) + 1) / len(score)
    return RiskCoverage(coverage, risk, float(risk.mean()), float(best.mean()), float((~right).mean()))


def risks(score: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """The share that is wrong among the rows of the highest scores, for each number of rows, [R]."""
    _, tie, sizes = np.unique(-score, return_inverse=True, return_counts=True)  # from the highest score
    error_of = np.repeat(np.bincount(tie, wrong) / sizes, sizes)
    return np.asarray(error_of.cumsum() / np.arange(1, len(score) + 1))


def auroc_interval(score: np.ndarray, right: np.ndarray, samples: int = SAMPLES) -> Interval:
    """The AUROC of all rows, with the interval of a bootstrap over rows. score: float [R]; right: bool [R]"""
    value = auroc(score[right], score[~right])
    if not np.isfinite(value):
        return Interval(value, np.nan, np.nan)
    return interval(value, auroc_samples(score, right, samples))


def auroc_samples(score: np.ndarray, right: np.ndarray, samples: int = SAMPLES) -> np.ndarray:
    """AUROCs of rows drawn with replacement, [samples]; draws without one of both sides are left out.

    The draws depend on the number of rows alone, so that those of two scores of the same rows are paired.
    """
    wins = (score[right, None] > score[None, ~right]) + 0.5 * (score[right, None] == score[None, ~right])
    rows, rng, values = len(score), np.random.default_rng(0), []
    for start in range(0, samples, BATCH):
        counts = rng.multinomial(rows, np.full(rows, 1 / rows), min(BATCH, samples - start)).astype(float)
        on_right, on_wrong = counts[:, right], counts[:, ~right]
        pairs = on_right.sum(1) * on_wrong.sum(1)
        won = ((on_right @ wins) * on_wrong).sum(1)
        values.append(np.where(pairs > 0, won / np.where(pairs > 0, pairs, 1), np.nan))
    drawn = np.concatenate(values)
    return np.asarray(drawn[np.isfinite(drawn)])


def area_interval(score: np.ndarray, right: np.ndarray, samples: int = AREA_SAMPLES) -> Interval:
    """The area under risk and coverage, with the interval of a bootstrap over rows."""
    rows, rng, areas = len(score), np.random.default_rng(0), []
    for _ in range(samples):
        drawn = rng.integers(rows, size=rows)
        areas.append(risks(score[drawn], ~right[drawn]).mean())
    return interval(risk_coverage(score, right).area, np.array(areas))
