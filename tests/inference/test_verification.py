"""AUROC and risk by coverage against slow references: all pairs, and every order of a tie."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from inference.verification import area_interval, auroc, auroc_interval, auroc_samples, risk_coverage


def slow_auroc(right: np.ndarray, wrong: np.ndarray) -> float:
    wins = [(a > b) + 0.5 * (a == b) for a in right for b in wrong]
    return float(np.mean(wins))


@pytest.mark.parametrize("levels", [3, 10, 10_000])
def test_auroc_is_the_share_of_pairs_with_ties_as_a_draw(levels: int) -> None:
    rng = np.random.default_rng(levels)
    for _ in range(20):
        right, wrong = rng.integers(levels, size=rng.integers(1, 30)), rng.integers(levels, size=rng.integers(1, 30))
        assert auroc(right, wrong) == pytest.approx(slow_auroc(right, wrong), abs=1e-12)


def test_auroc_of_infinite_scores_and_of_none() -> None:
    assert auroc(np.array([np.inf, 1.0]), np.array([-np.inf, 0.0])) == 1
    assert auroc(np.array([-np.inf]), np.array([-np.inf])) == 0.5
    assert np.isnan(auroc(np.array([]), np.array([1.0]))) and np.isnan(auroc(np.array([1.0]), np.array([])))


def slow_risks(score: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The mean over all orders that the scores allow."""
    curves = []
    for order in permutations(range(len(score))):
        if all(score[order[n]] >= score[order[n + 1]] for n in range(len(order) - 1)):
            wrong = ~right[list(order)]
            curves.append(wrong.cumsum() / np.arange(1, len(score) + 1))
    return np.asarray(np.mean(curves, 0))


def test_risk_by_coverage_is_the_mean_over_all_orders_of_ties() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        score, right = rng.integers(3, size=6).astype(float), rng.random(6) < 0.5
        curve = risk_coverage(score, right)
        np.testing.assert_allclose(curve.risk, slow_risks(score, right), atol=1e-12)
        assert curve.area == pytest.approx(slow_risks(score, right).mean())
        assert curve.best == pytest.approx(slow_risks(right.astype(float), right).mean())
        assert curve.best <= curve.area + 1e-12 and curve.coverage[-1] == 1
        assert curve.random == pytest.approx(1 - right.mean()) == curve.risk[-1]


def test_intervals_hold_what_repeated_draws_give() -> None:
    """The truth is known: right scores are N(1, 1), wrong ones N(0, 1), so the AUROC is .760."""
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(40):
        right = rng.random(150) < 0.6
        score = rng.normal(size=150) + right
        value = auroc_interval(score, right, samples=200)
        inside += value.low <= 0.7602 <= value.high
        assert value.low < value.mean < value.high
    assert 33 <= inside <= 40


def test_draws_of_two_scores_are_paired() -> None:
    rng = np.random.default_rng(2)
    right, score = rng.random(60) < 0.5, rng.normal(size=60)
    assert (auroc_samples(score, right, 100) == auroc_samples(2 * score + 3, right, 100)).all()


def test_a_bootstrap_of_the_auroc_weights_rows_as_drawing_them_does() -> None:
    rng = np.random.default_rng(3)
    right, score = rng.random(30) < 0.5, rng.integers(5, size=30).astype(float)
    counts = np.random.default_rng(0).multinomial(30, np.full(30, 1 / 30), 50)
    drawn = [np.repeat(np.arange(30), count) for count in counts]
    slow = [slow_auroc(score[rows][right[rows]], score[rows][~right[rows]]) for rows in drawn]
    np.testing.assert_allclose(auroc_samples(score, right, 50), slow, atol=1e-12)


def test_the_interval_of_an_area_holds_it() -> None:
    rng = np.random.default_rng(4)
    right, score = rng.random(100) < 0.5, rng.normal(size=100)
    value = area_interval(score, right, samples=200)
    assert value.low < value.mean < value.high and value.mean == risk_coverage(score, right).area
    nothing = auroc_interval(score, np.ones(100, bool))
    assert np.isnan(nothing.mean) and np.isnan(nothing.low)
