"""What is solved by steps and candidates, against slow loops; what a step costs, against counting all of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core.errors import UserError
from data.reasoning.build import find_puzzle
from data.reasoning.puzzle import IN_DISTRIBUTION, SHIFTED, PuzzleSet
from inference.flops import flop_counter
from inference.loading import ModelFlags
from inference.reasoning.puzzle_runs import load_puzzle_run
from inference.reasoning.think_curve import curve_of, shares_of
from inference.reasoning.think_curve_report import (
    describe_candidates,
    describe_rival,
    describe_stopping,
    describe_thinking,
)
from inference.reasoning.thoughts import (
    Thinking,
    ThinkingCost,
    measure_thinking,
    parse_candidates,
    sparse_steps,
    steps_until_stays,
    thinking_cost,
)
from tests.inference.reasoning.known_model import known_run


@pytest.fixture(scope="module")
def puzzles() -> PuzzleSet:
    puzzle = find_puzzle("sudoku:4")
    return PuzzleSet.join([puzzle.generate("valid", kind, 12, 0) for kind in (IN_DISTRIBUTION, SHIFTED)])


def difficulties(puzzles: PuzzleSet, values: list[int]) -> dict[bytes, int]:
    rows = [row.astype(np.int64).tobytes() for row in puzzles.given]
    assert len(set(rows)) == len(rows)
    return dict(zip(rows, values, strict=True))


def thinking_of(rng: np.random.Generator, candidates: int = 4, rows: int = 9, steps: int = 6) -> Thinking:
    shape = (candidates, rows, steps + 1)
    energy = rng.normal(size=shape)
    energy[0, 0, 3] = np.nan  # a walk that diverged is never the best
    return Thinking(rng.random(shape) < 0.5, energy, rng.normal(size=shape), np.zeros((candidates, rows, 16), int))


def test_the_best_of_several_is_the_one_of_lowest_energy() -> None:
    thinking = thinking_of(np.random.default_rng(0))
    assert thinking.energy is not None
    for number in (1, 2, 4):
        best = thinking.best_of(number)
        for row in range(9):
            for step in range(7):
                energies = [thinking.energy[n, row, step] for n in range(number)]
                finite = [n for n in range(number) if np.isfinite(energies[n])] or [0]
                chosen = min(finite, key=lambda n: energies[n])
                assert best[row, step] == thinking.solved[chosen, row, step]


def test_a_puzzle_is_stopped_at_the_first_step_that_hardly_changes_its_energy() -> None:
    rng = np.random.default_rng(1)
    values = np.cumsum(-(rng.random((50, 9)) ** 6), axis=1)
    values[0, 4] = np.nan
    for first in (0, 1):
        expected = []
        for row in values:
            step = next(
                (t for t in range(first + 2, 9) if abs(row[t] - row[t - 1]) <= 0.01 * abs(row[t - 1] - row[first])),
                8,
            )
            expected.append(step)
        assert steps_until_stays(values, 0.01, first).tolist() == expected
        assert len(set(expected)) > 3
    assert steps_until_stays(values[:, :2], 0.01, 0).tolist() == [1] * 50


def test_thinking_is_measured_by_the_rules_whatever_the_batch(puzzles: PuzzleSet) -> None:
    values = [n % 6 for n in range(24)]
    run = known_run(difficulties(puzzles, values))
    results = [measure_thinking(run, puzzles, 5, 2, 0, size, lambda _: None) for size in (1, 7, 64)]
    for result in results:
        for step in range(6):
            assert result.solved[0, :, step].tolist() == [value <= step for value in values]
            assert result.solved[1, :, step].tolist() == [value + 1 <= step for value in values]
        assert result.energy is not None and np.allclose(result.energy[0, :, 2], np.array(values) + 0.25)
        assert (result.confidence == results[0].confidence).all()
    assert (results[0].answer[0][np.array(values) <= 5] == puzzles.answer[np.array(values) <= 5]).all()


def test_sentences_say_whether_more_steps_help_and_where_they_stop(puzzles: PuzzleSet) -> None:
    """In distribution all is solved by step 2; of the shifted ones half need 8 steps, more than the other half."""
    values = [1, 2] * 6 + [1, 8] * 6
    run = known_run(difficulties(puzzles, values))
    thinking = measure_thinking(run, puzzles, 8, 2, 0, 64, lambda _: None)
    solved: list[np.ndarray] = []
    cost = ThinkingCost(0.0, 2e6, 1e6)
    curve = curve_of(run, thinking, cost, [1, 2], 0.1, puzzles.kind, solved)
    easy, hard = (shares_of(kind, puzzles, np.stack(solved, 1)) for kind in (IN_DISTRIBUTION, SHIFTED))
    assert [easy.means[curve.point(step).column] for step in (1, 2, 8)] == [0.5, 1, 1]
    assert [hard.means[curve.point(step).column] for step in (1, 4, 8)] == [0.5, 0.5, 1]
    assert "more steps help. They stop helping at 2" in describe_thinking(easy, curve)
    assert "They still help at 8: ask for more" in describe_thinking(hard, curve)
    # the second candidate has the higher energy, so that it is never taken
    assert "Best of 2 by energy after 4 steps, against one start: as many." in describe_candidates(easy, curve)
    (stays,) = curve.stays  # energies 1, 1/2, 1/4, 1/8, ...: the fourth step changes 1/16 < .1 * (1 - 1/8)
    assert stays.steps == 4 and stays.flops_of(None) == 4 * 2e6 + 1e6
    assert "takes a mean of 4.0 steps, 56% of the FLOPs of 8 steps, and solves as many" in describe_stopping(
        easy, curve
    )
    assert "50.0 points" in describe_stopping(hard, curve)
    assert curve.point(8, 2).flops_of(None) == 2 * (8 * 2e6 + 1e6)
    rival = curve_of(run, thinking, ThinkingCost(0.0, 5e5, 1e6), [1], 0.2, puzzles.kind, solved)
    text = describe_rival(shares_of(SHIFTED, puzzles, np.stack(solved, 1)), curve, rival)
    assert "solves 100.0% with 8 steps, 4 MFLOP a puzzle" in text
    assert "Within the same FLOPs the EBT solves 50.0% with 1 step: 50.0 points" in text


def test_nothing_solved_and_a_single_step_are_said(puzzles: PuzzleSet) -> None:
    run = known_run(difficulties(puzzles, [99] * 24))
    for steps, words in ((3, "None of these puzzles is solved"), (1, "None of these")):
        solved: list[np.ndarray] = []
        thinking = measure_thinking(run, puzzles, steps, 1, 0, 64, lambda _: None)
        curve = curve_of(run, thinking, ThinkingCost(0.0, 1.0, 1.0), [1], 0.1, puzzles.kind, solved)
        assert words in describe_thinking(shares_of(SHIFTED, puzzles, np.stack(solved, 1)), curve)


@pytest.mark.parametrize("name", ["tiny", "tiny-looped", "tiny-feed-forward-transformer"])
def test_flops_of_steps_add_up_to_those_of_a_whole_walk(puzzle_logs, name: str, puzzles: PuzzleSet) -> None:
    run = load_puzzle_run(ModelFlags(run=name, logs_dir=str(puzzle_logs)))
    cost = thinking_cost(run, puzzles)
    batch = puzzles.batch([0])
    meta = run.model.meta_copy(batch)
    meta_batch = {key: tensor.to("meta") for key, tensor in batch.items()}
    for steps in (3, 5) if run.thinks else (1,):
        with torch.no_grad(), flop_counter() as counter:
            list(meta.think(meta_batch, steps))
        assert cost.flops(steps, with_end=True) == counter.get_total_flops()
    if run.has_energy:  # the energy and its gradient: a forward and a backward to the input
        assert 1.8 * cost.end < cost.step < 2.2 * cost.end


def test_candidates_and_steps_to_show() -> None:
    assert parse_candidates(("4", "2")) == [1, 2, 4]
    for word in ("0", "x", "-1", "65", "1.5"):
        with pytest.raises(UserError, match=rf"--candidates is '{word}': give whole numbers from 1 to 64"):
            parse_candidates(("1", word))
    assert sparse_steps(32) == [1, 2, 4, 8, 16, 32]
    assert sparse_steps(10, 6, 20) == [1, 2, 4, 6, 8, 10]
    assert sparse_steps(1) == [1]
