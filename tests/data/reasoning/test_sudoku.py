"""Sudoku: rules and solver against brute force, uniqueness, splits that no symmetry connects."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import UserError
from data.reasoning.build import find_puzzle
from data.reasoning.puzzle import IN_DISTRIBUTION, SEVERAL, SHIFTED, SPLITS, PuzzleSet
from data.reasoning.sudoku import BOXES, CLUES, Sudoku, canonical_clues
from tests.reference.puzzles import canonical, line_orders, sudoku_answers, sudoku_violations

SIZES = (4, 6, 9)


def blank_set(sudoku: Sudoku, rows: int) -> PuzzleSet:
    blank = np.full((rows, sudoku.spec.cells), -1)
    return sudoku.puzzles(blank, blank, IN_DISTRIBUTION)


@pytest.fixture(scope="module")
def grids_of_four() -> np.ndarray:
    return np.array(list(sudoku_answers(4, [-1] * 16)))


def test_there_are_288_grids_of_four_and_the_solver_finds_each(grids_of_four: np.ndarray) -> None:
    sudoku = Sudoku(4)
    solutions = sudoku.answers(blank_set(sudoku, 1), 0, most=1000)
    assert len(grids_of_four) == 288
    assert {tuple(grid) for grid in solutions} == {tuple(grid) for grid in grids_of_four}
    assert len(solutions) == 288
    assert sudoku.solved(blank_set(sudoku, 288), grids_of_four).all()


def test_every_change_of_one_cell_of_every_grid_of_four_is_found(grids_of_four: np.ndarray) -> None:
    sudoku = Sudoku(4)
    changed = np.repeat(grids_of_four, 16 * 3, axis=0)
    cell = np.tile(np.repeat(np.arange(16), 3), len(grids_of_four))
    row = np.arange(len(changed))
    changed[row, cell] = (changed[row, cell] + np.tile([1, 2, 3], 16 * len(grids_of_four))) % 4
    puzzles = blank_set(sudoku, len(changed))
    assert not sudoku.solved(puzzles, changed).any()
    some = slice(0, None, 23)
    expected = [sudoku_violations(4, [-1] * 16, answer) for answer in changed[some]]
    assert (sudoku.violations(puzzles.rows(some), changed[some]) == expected).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("share", [0.0, 0.05, 0.5])
def test_violations_are_those_of_the_slow_rules(size: int, share: float) -> None:
    """Blank cells, symbols out of range and changed clues among them."""
    sudoku = Sudoku(size)
    puzzles = sudoku.generate("valid", IN_DISTRIBUTION, 30, seed=0)
    random = np.random.default_rng(0)
    noise = random.integers(-1, size + 1, size=puzzles.answer.shape)
    answer = np.where(random.random(noise.shape) < share, noise, puzzles.answer)
    expected = [sudoku_violations(size, *pair) for pair in zip(puzzles.given, answer, strict=True)]
    assert (sudoku.violations(puzzles, answer) == expected).all()
    assert (sudoku.solved(puzzles, answer) == ~np.any(expected, axis=1)).all()


@pytest.mark.parametrize(("size", "count"), [(4, 60), (6, 60), (9, 8)])
def test_shifted_puzzles_have_one_solution_by_an_exact_solver(size: int, count: int) -> None:
    puzzles = Sudoku(size).generate("test", SHIFTED, count, seed=0)
    for clues, answer in zip(puzzles.given.tolist(), puzzles.answer.tolist(), strict=True):
        assert list(islice(sudoku_answers(size, clues), 2)) == [answer]


@pytest.mark.parametrize(("size", "count"), [(4, 60), (6, 60), (9, 8)])
def test_puzzles_with_several_answers_have_them(size: int, count: int) -> None:
    sudoku = Sudoku(size)
    puzzles = sudoku.generate("test", SEVERAL, count, seed=0)
    for row, clues in enumerate(puzzles.given.tolist()):
        expected = list(islice(sudoku_answers(size, clues), 2))
        assert len(expected) == 2
        assert sudoku.solved(puzzles.rows([row, row]), np.array(expected)).all()
        answers = np.array(sudoku.answers(puzzles, row))
        assert len(answers) == 2
        assert not any(any(sudoku_violations(size, clues, answer)) for answer in answers.tolist())
        assert (answers[0] != answers[1]).any()


def test_training_puzzles_of_nine_have_one_solution() -> None:
    sudoku = Sudoku(9)
    puzzles = sudoku.generate("train", IN_DISTRIBUTION, 200, seed=0)
    assert (sudoku.solver.count(puzzles.given) == 1).all()
    for clues in puzzles.given[:5].tolist():
        assert len(list(islice(sudoku_answers(9, clues), 2))) == 1


def test_the_solver_counts_as_the_slow_one_does() -> None:
    """Of clues taken at random, contradictory ones among them."""
    sudoku = Sudoku(6)
    random = np.random.default_rng(0)
    grids = sudoku.generate("valid", SEVERAL, 60, seed=0).answer
    clues = np.where(random.random(grids.shape) < 0.3, grids, -1)
    clues[:20, 0] = random.integers(6, size=20)  # often wrong, sometimes in a way that only a search finds
    expected = [len(list(islice(sudoku_answers(6, row), 5))) for row in clues.tolist()]
    clashes = sudoku.doubles(clues).any(axis=1)
    counts = sudoku.solver.count(clues, most=5)
    assert (counts[~clashes] == np.array(expected)[~clashes]).all()
    assert 0 in counts[~clashes]
    assert all(not sudoku.answers(sudoku.puzzles(clues, grids, 0), row) for row in np.flatnonzero(clashes).tolist())


@pytest.mark.parametrize("size", SIZES)
def test_clues_are_in_their_range_and_part_of_the_answer(size: int) -> None:
    sudoku = Sudoku(size)
    for kind, (low, high) in CLUES[size].items():
        puzzles = sudoku.generate("valid", kind, 100, seed=0)
        counts = (puzzles.given >= 0).sum(axis=1)
        assert low <= counts.min() <= counts.max() <= high
        assert sudoku.solved(puzzles, puzzles.answer).all()
        assert (puzzles.inputs[:, :, 0].astype(int) == puzzles.given + 1).all()
        assert (puzzles.kind == kind).all()


def test_clues_set_the_range_of_training() -> None:
    sudoku = find_puzzle("sudoku:6", clues="20-21")
    counts = (sudoku.generate("train", IN_DISTRIBUTION, 300, seed=0).given >= 0).sum(axis=1)
    assert set(counts.tolist()) == {20, 21}
    few = find_puzzle("sudoku:9", clues="33-36")
    puzzles = few.generate("train", IN_DISTRIBUTION, 50, seed=0)
    assert isinstance(few, Sudoku)
    assert (few.solver.count(puzzles.given) == 1).all()


def test_no_grid_of_six_is_in_two_splits_under_any_symmetry() -> None:
    """By trying all 3,456 orders of rows and columns and naming digits by appearance."""
    classes = {}
    for split in SPLITS:
        kinds = (IN_DISTRIBUTION,) if split == "train" else (IN_DISTRIBUTION, SHIFTED, SEVERAL)
        grids = np.concatenate([Sudoku(6).generate(split, kind, 150, seed=0).answer for kind in kinds])
        classes[split] = {canonical(6, grid) for grid in grids}
    assert not classes["train"] & classes["valid"]
    assert not classes["train"] & classes["test"]
    assert not classes["valid"] & classes["test"]
    assert all(len(names) >= 4 for names in classes.values())
    assert len(set.union(*classes.values())) <= 49  # as many as there are


def test_no_puzzle_of_four_is_in_two_splits_under_any_symmetry() -> None:
    classes = {}
    for split in SPLITS:
        kinds = (IN_DISTRIBUTION,) if split == "train" else (IN_DISTRIBUTION, SHIFTED, SEVERAL)
        clues = np.concatenate([Sudoku(4).generate(split, kind, 300, seed=0).given for kind in kinds])
        classes[split] = {canonical(4, row) for row in clues}
        names = canonical_clues(clues)
        assert len(set(names.tolist())) == len(classes[split])
    assert not classes["train"] & classes["valid"]
    assert not classes["train"] & classes["test"]
    assert not classes["valid"] & classes["test"]


@pytest.mark.parametrize("size", SIZES)
def test_every_symmetry_keeps_the_split_key(size: int) -> None:
    """A random one of each sort alone, since a mistake in one could hide behind another."""
    sudoku = Sudoku(size)
    grids = sudoku.generate("train", IN_DISTRIBUTION, 40, seed=0).answer
    keys = sudoku.grid_keys(grids)
    random = np.random.default_rng(0)
    boards = grids.reshape(-1, size, size)
    rows, columns = (random.permutation(line_orders(size, lines))[:20] for lines in BOXES[size])
    for order in rows:
        assert (sudoku.grid_keys(boards[:, order]) == keys).all()
    for order in columns:
        assert (sudoku.grid_keys(boards[:, :, order]) == keys).all()
    assert (sudoku.grid_keys(random.permutation(size)[grids]) == keys).all()
    if BOXES[size][0] == BOXES[size][1]:
        assert (sudoku.grid_keys(boards.transpose(0, 2, 1)) == keys).all()
    if size > 4:
        assert len(set(keys.tolist())) > 10


def test_grids_with_the_same_key_in_other_splits_would_be_seen() -> None:
    """The keys tell most classes of 6 x 6 apart, so that the splits are no coarser than they need to be."""
    sudoku = Sudoku(6)
    grids = sudoku.generate("train", IN_DISTRIBUTION, 200, seed=0).answer
    keys, names = sudoku.grid_keys(grids).tolist(), [canonical(6, grid) for grid in grids]
    assert len(set(keys)) >= 0.7 * len(set(names))
    assert len(set(zip(keys, names, strict=True))) == len(set(names))  # one key for each class


@pytest.mark.parametrize("size", SIZES)
def test_a_board_is_read_as_it_is_printed(size: int) -> None:
    sudoku = Sudoku(size)
    puzzles = sudoku.generate("valid", SHIFTED, 5, seed=0)
    for row in range(len(puzzles)):
        printed = "".join(sudoku.lines(puzzles, row)).translate(str.maketrans("", "", "|-+ "))
        for text in (sudoku.text(puzzles, row), printed, sudoku.text(puzzles, row).replace(".", "0")):
            read = sudoku.parse(text)
            assert (read.given == puzzles.given[row]).all()
            assert (read.inputs == puzzles.inputs[row]).all()
            assert (read.answer == -1).all()
            assert read.real.all()


def test_a_board_shows_its_boxes() -> None:
    sudoku = Sudoku(6)
    read = sudoku.parse("123......456" + "." * 24)
    assert sudoku.lines(read, 0)[:3] == ["1 2 3 | . . .", ". . . | 4 5 6", "------+------"]
    answer = np.arange(36) % 6
    assert sudoku.lines(read, 0, answer)[0] == "1 2 3 | 4 5 6"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("12", "--puzzle has 2 cells: a Sudoku of 4 x 4 has 16; write . for a blank one."),
        ("5" + "." * 15, "--puzzle has '5' in cell 1: a Sudoku of 4 x 4 has the symbols 1 to 4 and . for a blank"),
        ("..x." + "." * 12, "'x' in cell 3"),
        ("1..1" + "." * 12, "contradictory clues: a digit stands twice .* \\(row/column 1/1, 1/4\\)"),
    ],
)
def test_a_wrong_board_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Sudoku(4).parse(text)


def test_an_unsolvable_board_has_no_answer() -> None:
    sudoku = Sudoku(4)
    read = sudoku.parse("12.. ..3. .... ....".replace("..3.", "..34"))  # both 3 and 4 are needed at the end of row 1
    assert sudoku.answers(read, 0) == []


@given(st.text(alphabet="1234.0 x\n", max_size=24))
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_board_or_one_sentence(text: str) -> None:
    sudoku = Sudoku(4)
    try:
        read = sudoku.parse(text)
    except UserError as error:
        assert str(error).startswith("--puzzle")
        return
    assert sudoku.text(read, 0) == "".join(text.split()).replace("0", ".")
    assert not sudoku.doubles(read.given).any()
