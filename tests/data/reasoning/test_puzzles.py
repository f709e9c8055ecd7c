"""Reachability, sorting, addition and mazes against slow rules; what holds of every puzzle."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import UserError
from data.reasoning.addition import Addition, longest_chain, sums
from data.reasoning.build import find_puzzle
from data.reasoning.maze import Maze
from data.reasoning.puzzle import IN_DISTRIBUTION, KINDS, SEVERAL, SHIFTED, SPLITS, Puzzle, PuzzleSet, split_numbers
from data.reasoning.reachability import Reachability
from data.reasoning.sorting import Sorting
from tests.reference.puzzles import reached, shortest_paths

NAMES = ("sudoku:4", "sudoku:6", "reachability:12", "reachability:16", "sorting:5", "sorting:8", "addition:6", "maze:6")


def with_noise(puzzles: PuzzleSet, symbols: int, share: float) -> np.ndarray:
    random = np.random.default_rng(1)
    noise = random.integers(-1, symbols + 1, size=puzzles.answer.shape)
    return np.where(random.random(noise.shape) < share, noise, puzzles.answer)


def wrong_cells(expected: np.ndarray, answer: np.ndarray, real: np.ndarray) -> np.ndarray:
    return (expected != answer) & real


@pytest.mark.parametrize("name", NAMES)
def test_the_stored_answer_is_right_and_rows_have_the_announced_types(name: str) -> None:
    puzzle = find_puzzle(name)
    spec = puzzle.spec
    assert spec.positions.shape[1] == spec.cells
    assert spec.positions.dtype == np.int64
    for kind in puzzle.kinds:
        puzzles = puzzle.generate("valid", kind, 40, seed=0)
        assert len(puzzles) == 40
        assert puzzles.inputs.shape == (40, spec.cells, len(spec.fields))
        assert (puzzles.inputs.reshape(-1, len(spec.fields)).max(axis=0) < spec.fields).all()
        assert (puzzles.answer[puzzles.real] >= 0).all()
        assert (puzzles.answer[~puzzles.real] == -1).all()
        assert puzzles.answer.max() < len(spec.symbols)
        assert puzzle.solved(puzzles, puzzles.answer).all()
        types = {name: str(array.dtype) for name, array in puzzles.arrays().items()}
        assert types == {"inputs": "uint8", "given": "int8", "answer": "int8", "real": "bool", "kind": "int8"}


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_the_same_puzzles_and_fewer_are_the_first_of_more(name: str) -> None:
    one = find_puzzle(name).generate("valid", SHIFTED, 60, seed=3)
    again = find_puzzle(name).generate("valid", SHIFTED, 25, seed=3)
    other = find_puzzle(name).generate("valid", SHIFTED, 60, seed=4)
    for field, array in one.arrays().items():
        assert (array[:25] == again.arrays()[field]).all()
    assert (one.inputs != other.inputs).any()


@pytest.mark.parametrize("name", NAMES)
def test_splits_share_no_puzzle_and_evaluation_repeats_none(name: str) -> None:
    puzzle = find_puzzle(name)
    contents = {}
    for split in SPLITS:
        kinds = (IN_DISTRIBUTION,) if split == "train" else puzzle.kinds
        parts = [puzzle.generate(split, kind, 150, seed=0) for kind in kinds]
        for part in parts:
            assert (split_numbers(puzzle.split_key(part)) == SPLITS.index(split)).all()
        rows = [part.inputs[row].tobytes() for part in parts for row in range(len(part))]
        contents[split] = set(rows)
        if split != "train":
            assert len(contents[split]) == len(rows)
    assert not contents["train"] & contents["valid"]
    assert not contents["train"] & contents["test"]
    assert not contents["valid"] & contents["test"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_printed_in_one_line_is_read_back(name: str) -> None:
    puzzle = find_puzzle(name)
    puzzles = puzzle.generate("test", SHIFTED, 10, seed=0)
    for row in range(len(puzzles)):
        read = puzzle.parse(puzzle.text(puzzles, row))
        assert (read.inputs[0] == puzzles.inputs[row]).all()
        assert (read.given[0] == puzzles.given[row]).all()
        assert (read.real[0] == puzzles.real[row]).all()
        assert (read.answer == -1).all()
        answers = puzzle.answers(read, 0)
        assert len(answers) == 1
        assert (answers[0] == puzzles.answer[row]).all()
        assert puzzle.solved(read, answers[0][None])[0]
        assert puzzle.answers(read, 0, most=0) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_one_is_judged_as_in_a_batch_of_many(name: str) -> None:
    puzzle = find_puzzle(name)
    puzzles = puzzle.generate("valid", IN_DISTRIBUTION, 12, seed=0)
    answer = with_noise(puzzles, len(puzzle.spec.symbols), 0.05)
    together = puzzle.violations(puzzles, answer)
    for row in range(len(puzzles)):
        assert (puzzle.violations(puzzles.rows([row]), answer[row : row + 1]) == together[row]).all()


def test_a_kind_that_a_puzzle_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="addition:6 has no rows of kind 2"):
        find_puzzle("addition:6").generate("valid", SEVERAL, 1, seed=0)
    assert set(KINDS) == {0, 1, 2}


def test_more_puzzles_than_there_are_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"--num_eval_puzzles is 100000: addition:2 has only \d+ different"):
        find_puzzle("addition:2").generate("valid", SHIFTED, 100_000, seed=0)


# Reachability


@pytest.mark.parametrize("nodes", [12, 16, 24])
def test_reached_nodes_are_those_of_a_breadth_first_search(nodes: int) -> None:
    puzzle = Reachability(nodes)
    for kind, (low, high) in puzzle.eccentricity.items():
        puzzles = puzzle.generate("valid", kind, 60, seed=0)
        answer = with_noise(puzzles, 2, 0.2)
        far = set()
        violations = puzzle.violations(puzzles, answer)
        for row, inputs in enumerate(puzzles.inputs):
            edges = inputs[:, :-1]
            assert (edges == edges.T).all()
            assert not edges.diagonal().any()
            assert inputs[:, -1].sum() == 1
            steps = reached(edges, int(inputs[:, -1].argmax()))
            expected = np.array([node in steps for node in range(nodes)])
            assert 0 < expected.sum() < nodes
            assert (violations[row] == wrong_cells(expected, answer[row], puzzles.real[row])).all()
            far.add(max(steps.values()))
        assert far <= set(range(low, high + 1))
        assert nodes == 12 or len(far) == high + 1 - low  # so few nodes have hardly a choice of long graphs


def test_edges_do_not_tell_which_nodes_are_reached() -> None:
    puzzles = Reachability(16).generate("train", IN_DISTRIBUTION, 4000, seed=0)
    degree = puzzles.inputs[:, :, :-1].sum(axis=2)
    is_reached = puzzles.answer == 1
    assert abs(is_reached.mean() - 0.5) < 0.02
    for number in range(1, 6):
        assert abs(is_reached[degree == number].mean() - 0.5) < 0.04


def test_relabelled_graphs_are_in_one_split() -> None:
    puzzle = Reachability(16)
    puzzles = puzzle.generate("valid", SHIFTED, 50, seed=0)
    order = np.random.default_rng(0).permutation(16)
    edges, source = puzzles.inputs[:, :, :-1] > 0, puzzles.inputs[:, :, -1] > 0
    moved = puzzle.puzzles(edges[:, order][:, :, order], source[:, order], SHIFTED)
    assert (puzzle.split_key(moved) == puzzle.split_key(puzzles)).all()
    assert len(set(puzzle.split_key(puzzles).tolist())) > 20


# Sorting


def test_lists_are_sorted_and_padded() -> None:
    puzzle = Sorting(8)
    for kind, bounds in {IN_DISTRIBUTION: (0, 0.5), SHIFTED: (0.65, 1)}.items():
        puzzles = puzzle.generate("valid", kind, 200, seed=0)
        answer = with_noise(puzzles, 16, 0.1)
        violations = puzzle.violations(puzzles, answer)
        lengths = set()
        for row in range(200):
            values = [int(value) - 1 for value in puzzles.inputs[row, :, 0] if value]
            expected = np.array(sorted(values) + [-1] * (8 - len(values)))
            assert (puzzles.answer[row] == expected).all()
            assert (violations[row] == wrong_cells(expected, answer[row], puzzles.real[row])).all()
            pairs = [(values[a], values[b]) for a in range(len(values)) for b in range(a + 1, len(values))]
            assert bounds[0] <= sum(a > b for a, b in pairs) / len(pairs) <= bounds[1]
            lengths.add(len(values))
        assert lengths == {4, 5, 6, 7, 8}


# Addition


def test_sums_are_those_of_whole_numbers() -> None:
    puzzle = Addition(6)
    for kind, (low, high) in puzzle.chains.items():
        puzzles = puzzle.generate("test", kind, 200, seed=0)
        answer = with_noise(puzzles, 10, 0.1)
        violations = puzzle.violations(puzzles, answer)
        for row in range(200):
            first, second, total = ("".join(map(str, line)) for line in puzzles.answer[row].reshape(3, 7))
            assert int(first) + int(second) == int(total)
            assert (violations[row] == (answer[row] != puzzles.answer[row])).all()
        assert (puzzles.given[:, 14:] == -1).all()
        assert (puzzles.given[:, :14] == puzzles.answer[:, :14]).all()
        board = puzzles.given.reshape(-1, 3, 7)
        chains = longest_chain(board[:, 0], board[:, 1])
        assert set(chains.tolist()) == set(range(low, high + 1))


@given(st.integers(0, 10**8 - 1), st.integers(0, 10**8 - 1))
@settings(deadline=None)
def test_digits_add_up(first: int, second: int) -> None:
    one, other = (np.array([[int(digit) for digit in str(number).zfill(9)]]) for number in (first, second))
    assert int("".join(map(str, sums(one, other)[0]))) == first + second


def test_a_carry_chain_is_counted_by_hand() -> None:
    cases = {("0005", "0005"): 1, ("0995", "0005"): 3, ("0990", "0000"): 0, ("5005", "5005"): 1, ("0945", "0055"): 3}
    for (first, second), length in cases.items():
        digits = [np.array([[int(digit) for digit in number]]) for number in (first, second)]
        assert longest_chain(*digits)[0] == length, (first, second)


# Mazes


def test_paths_of_mazes_are_all_shortest_paths_and_no_others() -> None:
    puzzle = Maze(6)
    random = np.random.default_rng(0)
    for kind, (low, high) in puzzle.steps.items():
        puzzles = puzzle.generate("valid", kind, 40, seed=0)
        for row, inputs in enumerate(puzzles.inputs):
            paths = shortest_paths(6, inputs)
            assert low <= len(paths[0]) - 1 <= high
            assert frozenset(np.flatnonzero(puzzles.answer[row] == 1).tolist()) in paths
            if kind != IN_DISTRIBUTION:
                assert (len(paths) == 1) == (kind == SHIFTED)
            assert {frozenset(np.flatnonzero(a).tolist()) for a in puzzle.answers(puzzles, row, 10**6)} == set(paths)
            # each shortest path; unions of two of them; single changes; a mixture at random
            sets = [*paths[:5], *(paths[0] | other for other in paths[:5])]
            sets += [paths[0] ^ {int(cell)} for cell in random.integers(36, size=10)]
            sets += [frozenset(np.flatnonzero(random.random(36) < 0.4).tolist())]
            answer = np.array([[int(cell in cells) for cell in range(36)] for cells in sets])
            same = puzzles.rows([row] * len(sets))
            assert puzzle.solved(same, answer).tolist() == [cells in paths for cells in sets]
            on_some = frozenset[int]().union(*paths)
            wrong = puzzle.violations(same, answer)
            for number, cells in enumerate(sets):
                assert all(wrong[number, cell] for cell in cells - on_some)


def test_openings_of_mazes_agree_on_both_sides_and_every_cell_is_reached() -> None:
    puzzles = Maze(6).generate("train", IN_DISTRIBUTION, 100, seed=0)
    openings = puzzles.inputs[:, :, :4].reshape(-1, 6, 6, 4)
    assert (openings[:, :-1, :, 2] == openings[:, 1:, :, 0]).all()
    assert (openings[:, :, :-1, 1] == openings[:, :, 1:, 3]).all()
    assert not openings[:, 0, :, 0].any()
    assert not openings[:, :, -1, 1].any()
    start = (puzzles.inputs[:, :, 4] == 1).argmax(axis=1)
    assert (Maze(6).distances(puzzles.inputs[:, :, :4] > 0, start, 36)[0] >= 0).all()


def test_turned_and_mirrored_mazes_are_in_one_split() -> None:
    puzzle = Maze(5)
    puzzles = puzzle.generate("valid", IN_DISTRIBUTION, 30, seed=0)
    keys = puzzle.split_key(puzzles)

    def drawn(change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        boards = [np.array([list(line) for line in puzzle.lines(puzzles, row)]) for row in range(30)]
        texts = ["/".join("".join(line) for line in change(board)) for board in boards]
        return puzzle.split_key(PuzzleSet.join([puzzle.parse(text) for text in texts]))

    for turns in range(4):
        assert (drawn(lambda board, turns=turns: np.rot90(board, turns)) == keys).all()  # type: ignore[misc]
        assert (drawn(lambda board, turns=turns: np.rot90(board, turns).T) == keys).all()  # type: ignore[misc]
    assert len(set(keys.tolist())) == 30


def test_a_maze_without_a_way_has_no_answer() -> None:
    puzzle = Maze(4)
    empty = ["#########", *(["#.#.#.#.#", "#########"] * 4)]
    empty[1] = "#S#G#.#.#"
    read = puzzle.parse("\n".join(empty))
    assert puzzle.answers(read, 0) == []
    assert not puzzle.solved(read, np.ones((1, 16), np.int64))[0]
    assert not puzzle.solved(read, np.zeros((1, 16), np.int64))[0]


# Mistakes


def small_maze(*first: str) -> str:
    """A drawing of 4 x 4 closed cells whose first lines are these."""
    return "/".join([*first, *["#########", "#.#.#.#.#"] * 3, "#########"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("reachability:12", "x", "--puzzle is 'x': write the source and the edges of nodes 0 to 11, as 3: 0-1 1-3."),
        ("reachability:12", "12: 0-1", "--puzzle has node 12"),
        ("reachability:12", "1: 0-19", "--puzzle has node 19"),
        ("reachability:12", "1: 2-2", "an edge from node 2 to itself"),
        ("sorting:4", "1 2 8", "--puzzle has '8': sorting:4 has values from 0 to 7."),
        ("sorting:4", "1 2 -1", "--puzzle has '-1'"),
        ("sorting:4", "1 2 3 4 5", "--puzzle has 5 values: sorting:4 has 1 to 4."),
        ("sorting:4", "", "--puzzle has 0 values"),
        ("addition:3", "12", "--puzzle is '12': write two numbers, as 123 \\+ 89."),
        ("addition:3", "1234 + 1", "--puzzle has 1234: addition:3 has at most 3 digits."),
        ("maze:4", "##", "--puzzle has 1 lines of 2 characters: maze:4 is drawn on 9 lines of 9"),
        ("maze:4", "/".join(["#########"] * 8 + ["########x"]), "--puzzle has 'x' in line 9: use # . S and G."),
        ("maze:4", "/".join(["#########"] * 9), "--puzzle needs one S \\(start\\) and one G \\(goal\\)"),
        (
            "maze:4",
            "/".join([".########", "#S#G#.#.#", *["#########", "#.#.#.#.#"] * 3, "#########"]),
            "line 1, column 1",
        ),
        (
            "maze:4",
            "/".join(["#########", "#S#G###.#", *["#########", "#.#.#.#.#"] * 3, "#########"]),
            "line 2, column 6",
        ),
    ],
)
def test_a_wrong_puzzle_is_one_sentence(name: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_puzzle(name).parse(text)


@pytest.mark.parametrize("name", ["reachability:12", "sorting:4", "addition:3", "maze:4"])
@given(text=st.text(alphabet="0123456789+-:,=#.SG*/ \nx", max_size=90))
@settings(max_examples=100, deadline=None)
def test_any_text_is_a_puzzle_or_one_sentence(name: str, text: str) -> None:
    puzzle: Puzzle = find_puzzle(name)
    try:
        read = puzzle.parse(text)
    except UserError as error:
        assert str(error).startswith("--puzzle")
        return
    assert (puzzle.parse(puzzle.text(read, 0)).inputs == read.inputs).all()
    for answer in puzzle.answers(read, 0):
        assert puzzle.solved(read, answer[None])[0]


def test_boards_are_printed_for_people() -> None:
    sorting = Sorting(4)
    read = sorting.parse("3 1 2")
    assert sorting.lines(read, 0) == ["3 1 2", ". . ."]
    assert sorting.lines(read, 0, np.array([1, 2, 3, -1])) == ["3 1 2", "1 2 3"]
    addition = Addition(3)
    assert addition.lines(addition.parse("95+7"), 0) == ["  0095", "+ 0007", "------", "  ...."]
    graph = Reachability(12)
    assert graph.lines(graph.parse("1: 0-1 2-3"), 0)[:3] == [".  0  1", ".  1* 0", ".  2  3"]
