"""Wrong answers are wrong, scores are the model's own, and the shares of falling energies are counted right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from data.reasoning.build import find_puzzle
from data.reasoning.puzzle import SEVERAL, Puzzle, PuzzleSet
from inference.loading import ModelFlags
from inference.reasoning.answers import (
    CHANGED,
    ONE_CELL,
    OTHER_PUZZLE,
    SEVERAL_CELLS,
    Within,
    made_answers,
    right_answers,
    score_answers,
    shares_of_falls,
    within_interval,
)
from inference.reasoning.puzzle_runs import load_puzzle_run

DATASETS = ("sudoku:4", "sudoku:6", "sorting:5", "addition:3", "reachability:12", "maze:4")


def all_kinds(puzzle: Puzzle, count: int) -> PuzzleSet:
    return PuzzleSet.join([puzzle.generate("valid", kind, count, 0) for kind in puzzle.kinds])


@pytest.mark.parametrize("dataset", DATASETS)
def test_right_answers_are_right_and_made_ones_break_a_rule(dataset: str) -> None:
    puzzle = find_puzzle(dataset)
    puzzles = all_kinds(puzzle, 6)
    right = right_answers(puzzle, puzzles)
    made = made_answers(puzzle, puzzles, right, 5, seed=0)
    for row in range(len(puzzles)):
        one = puzzles.rows([row])
        assert len(right[row]) >= 1 and puzzle.solved(puzzles.rows([row] * len(right[row])), right[row]).all()
        if puzzles.kind[row] == SEVERAL:
            assert len(right[row]) > 1 and len(np.unique(right[row], axis=0)) == len(right[row])
        for answers in made.values():
            assert len(np.unique(answers[row], axis=0)) == len(answers[row]) <= 5
            for answer in answers[row]:
                assert not puzzle.solved(one, answer[None])[0]
                assert (answer[one.given[0] >= 0] == one.given[0][one.given[0] >= 0]).all()
        changes = [(answer != right[row][0])[one.real[0]].sum() for answer in made[ONE_CELL][row]]
        assert set(changes) == {1}
        for answer in made[SEVERAL_CELLS][row]:
            assert CHANGED[0] <= (answer != right[row][0]).sum() <= CHANGED[1]
    assert sum(map(len, made[OTHER_PUZZLE])) > 0
    again = made_answers(puzzle, puzzles, right, 5, seed=0)
    assert all((a == b).all() for sort in made for a, b in zip(made[sort], again[sort], strict=True))


@pytest.mark.parametrize("name", ["tiny", "tiny-looped", "tiny-feed-forward-transformer"])
def test_scores_are_those_of_the_model_for_each_answer_alone(puzzle_logs: Path, name: str) -> None:
    run = load_puzzle_run(ModelFlags(run=name, logs_dir=str(puzzle_logs)))
    puzzles = all_kinds(run.puzzle, 4)
    answers = made_answers(run.puzzle, puzzles, right_answers(run.puzzle, puzzles), 3, seed=1)[SEVERAL_CELLS]
    answers[2] = answers[2][:0]  # a puzzle without such answers
    scores = score_answers(run, puzzles, answers, batch_size=5)
    assert [len(each) for each in scores] == [len(each) for each in answers]
    for row, each in enumerate(answers):
        for number, answer in enumerate(each):
            score = run.model.answer_scores(puzzles.batch([row]), torch.from_numpy(answer)[None])
            assert scores[row][number] == pytest.approx(float(score), rel=1e-4, abs=1e-4)


def test_aurocs_of_puzzles_are_averaged_over_those_that_have_one() -> None:
    right = [np.array([2.0]), np.array([0.0, 3.0]), np.array([1.0])]
    wrong = {
        "a": [np.array([1.0, 3.0]), np.array([1.0]), np.zeros(0)],
        "b": [np.zeros(0), np.array([-1.0]), np.zeros(0)],
    }
    within = Within(right, wrong)
    assert within.aurocs("a")[:2].tolist() == [0.5, 0.5] and np.isnan(within.aurocs("a")[2])
    assert within.all_aurocs()[1] == 0.75
    value, count = within_interval(within.aurocs("a"), np.ones(3, bool))
    assert (value.mean, count) == (0.5, 2)
    value, count = within_interval(within.aurocs("b"), np.array([True, False, True]))
    assert np.isnan(value.mean) and count == 0


def test_falls_stays_and_rises_of_energies() -> None:
    energies = np.array([[0.0, -4.0, -8.0, -8.0, -7.0], [5.0, 4.0, 3.0, 2.0, 2.0 + 1e-9]])
    assert shares_of_falls(energies) == pytest.approx((5 / 8, 2 / 8, 1 / 8))
