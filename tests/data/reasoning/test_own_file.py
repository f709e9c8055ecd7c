"""file:PATH: what it reads, what it refuses and with which line, and its checkers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import UserError
from data.reasoning.build import find_puzzle
from data.reasoning.own_file import OwnFile
from data.reasoning.puzzle import IN_DISTRIBUTION, SHIFTED, SPLITS

LATIN = """symbols: "abc"
columns: 3
checker: all_different
groups: [rows, columns]
---
# a comment

a..b..c.. abcbcacab train
......... abcbcacab valid 1
ab.b..... abcbcacab test
a..b.. abcbca train
"""


def write(tmp_path: Path, text: str) -> OwnFile:
    file = tmp_path / "mine.txt"
    file.write_text(text)
    puzzle = find_puzzle(f"file:{file}")
    assert isinstance(puzzle, OwnFile)
    return puzzle


def test_rows_go_to_their_splits_and_short_ones_are_padded(tmp_path: Path) -> None:
    puzzle = write(tmp_path, LATIN)
    train = puzzle.generate("train", IN_DISTRIBUTION, 100, seed=0)
    assert len(train) == 2
    assert train.real.sum(axis=1).tolist() == [9, 6]
    assert train.given[1].tolist() == [0, -1, -1, 1, -1, -1, -1, -1, -1]
    assert train.answer[1].tolist() == [0, 1, 2, 1, 2, 0, -1, -1, -1]
    assert train.inputs[0, :, 0].tolist() == [1, 0, 0, 2, 0, 0, 3, 0, 0]
    assert puzzle.generate("valid", SHIFTED, 100, seed=0).kind.tolist() == [SHIFTED]
    assert len(puzzle.generate("valid", IN_DISTRIBUTION, 100, seed=0)) == 0
    assert puzzle.kinds == (IN_DISTRIBUTION, SHIFTED)
    assert puzzle.spec.symbols == ("a", "b", "c")
    assert puzzle.spec.positions.tolist() == [[0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 1, 2] * 3]
    assert len(puzzle.generate("train", IN_DISTRIBUTION, 1, seed=0)) == 1


def test_all_different_counts_every_valid_answer_and_pads_change_nothing(tmp_path: Path) -> None:
    puzzle = write(tmp_path, LATIN)
    blank = puzzle.parse(".........")
    assert len(puzzle.answers(blank, 0, most=100)) == 12  # Latin squares of order 3
    assert len(puzzle.answers(blank, 0)) == 2
    for answer in puzzle.answers(blank, 0, most=100):
        assert puzzle.solved(blank, answer[None])[0]
    short = puzzle.parse("a..b..")
    assert short.real.sum() == 6
    answer = np.array([[0, 1, 2, 1, 2, 0, 0, 0, 0]])  # what stands in padding is nobody's business
    assert puzzle.solved(short, answer)[0]
    answer[0, 1] = 2
    assert puzzle.violations(short, answer)[0].tolist() == [False, True, True, False, True, *[False] * 4]


def test_rows_without_a_split_are_split_by_solution(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lines = []
    for _ in range(200):
        solution = "".join(random.choice(list("01"), size=6))
        lines += [f"{solution[:2]}.... {solution}", f"{solution[:3]}... {solution}"]
    puzzle = write(tmp_path, 'symbols: "01"\ncolumns: 6\nchecker: equal\n---\n' + "\n".join(lines))
    parts = {split: puzzle.generate(split, IN_DISTRIBUTION, 1000, seed=0) for split in SPLITS}
    solutions = {split: {row.tobytes() for row in part.answer} for split, part in parts.items()}
    assert sum(map(len, parts.values())) == 400
    assert all(solutions.values())
    assert not solutions["train"] & solutions["valid"]
    assert not solutions["train"] & solutions["test"]
    assert not solutions["valid"] & solutions["test"]


def test_symbols_may_have_several_characters_and_clues_may_be_input_alone(tmp_path: Path) -> None:
    puzzle = write(
        tmp_path, "symbols: [10, 20, 30]\ncolumns: 3\nchecker: equal\nclues: input\n---\n30,10,. 10,20,30 train\n"
    )
    train = puzzle.generate("train", IN_DISTRIBUTION, 1, seed=0)
    assert (train.given == -1).all()
    assert train.inputs[0, :, 0].tolist() == [3, 1, 0]
    assert puzzle.text(train, 0) == "30,10,."
    assert puzzle.lines(train, 0, train.answer[0]) == ["10 20 30"]
    assert puzzle.solved(train, train.answer)[0]
    assert (puzzle.parse("30,10,.").answer == train.answer).all()  # equal knows the puzzles of the file
    unknown = puzzle.parse("10,10,.")
    assert puzzle.answers(unknown, 0) == []
    assert not puzzle.solved(unknown, train.answer)[0]


def test_positions_can_be_given(tmp_path: Path) -> None:
    puzzle = write(tmp_path, 'symbols: "01"\ncolumns: 2\nchecker: equal\npositions: [rows, [5, 6]]\n---\n1. 10\n')
    assert puzzle.spec.positions.tolist() == [[0, 0], [5, 6]]


def test_a_checker_of_ones_own_decides(tmp_path: Path) -> None:
    header = 'symbols: "012"\ncolumns: 4\nchecker: tests.data.reasoning.own_checkers:{}\n---\n1... 1001\n'
    puzzle = write(tmp_path, header.format("is_even"))
    row = puzzle.all
    assert puzzle.solved(row, np.array([[1, 1, 0, 0]]))[0]
    assert not puzzle.solved(row, np.array([[1, 1, 1, 0]]))[0]
    assert not puzzle.solved(row, np.array([[0, 0, 0, 0]]))[0]  # a changed clue is wrong whatever the checker says
    puzzle = write(tmp_path, header.format("is_not_two"))
    assert puzzle.violations(row, np.array([[1, 2, 0, 2]])).tolist() == [[False, True, False, True]]
    with pytest.raises(UserError, match="own_checkers:says_maybe returned str: return True or False, or a list"):
        write(tmp_path, header.format("says_maybe"))


HEADER = 'symbols: "01"\ncolumns: 2\nchecker: equal\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER, "line 3: there is no line --- between the header and the puzzles."),
        (HEADER + "---\n", "line 4: there is no puzzle after the line ---."),
        ("- 1\n---\n1. 10\n", "line 1: the header has no NAME: VALUE lines; it needs symbols, columns, checker."),
        ("symbols: [\n---\n1. 10\n", "the header is no YAML"),
        (HEADER + "rules: x\n---\n1. 10\n", "line 4: 'rules' is no name of the header; choose symbols, columns"),
        ('symbols: "01"\ncolumns: 2\n---\n1. 10\n', "line 3: the header has no 'checker'"),
        (
            'symbols: "00"\ncolumns: 2\nchecker: equal\n---\n1. 10\n',
            "line 1: symbols is '00': write 2 to 126 different",
        ),
        ('symbols: "0."\ncolumns: 2\nchecker: equal\n---\n1. 10\n', "line 1: symbols is '0.'"),
        ("symbols: 5\ncolumns: 2\nchecker: equal\n---\n1. 10\n", "line 1: symbols is 5"),
        ('symbols: "01"\ncolumns: 0\nchecker: equal\n---\n1. 10\n', "line 2: columns is 0: write the number of cells"),
        ('symbols: "01"\ncolumns: 2\nchecker: same\n---\n1. 10\n', "line 3: checker is 'same': choose equal, all_diff"),
        ('symbols: "01"\ncolumns: 2\nchecker: all_different\n---\n1. 10\n', "line 3: .*: it needs groups"),
        ('symbols: "01"\ncolumns: 2\nchecker: no.module:f\n---\n1. 10\n', "line 3: .* cannot be imported"),
        ('symbols: "01"\ncolumns: 2\nchecker: sys:path\n---\n1. 10\n', "line 3: .* is no function"),
        (HEADER + "clues: go\n---\n1. 10\n", "line 4: clues is 'go': choose stay or input."),
        (HEADER + "groups: [boxes]\n---\n1. 10\n", "line 4: groups is \\['boxes'\\]: write a list of rows, columns"),
        (HEADER + "groups: [[0, 7]]\n---\n1. 10\n", "line 4: groups has cell 7: cells count from 0 to 1."),
        (
            HEADER + "positions: [[0]]\n---\n1. 10\n",
            "line 4: positions has a list of 1 numbers: the largest puzzle has 2",
        ),
        (HEADER + "---\n1.\n", "line 5: there are 1 words; write puzzle, solution, and perhaps split and kind."),
        (HEADER + "---\n\n1.. 10\n", "line 6: the puzzle has 3 cells and the solution 2."),
        (HEADER + "---\n1. 1.\n", "line 5: cell 2 of the solution is blank."),
        (HEADER + "---\n1. 00\n", "line 5: the solution changes the clue in cell 1"),
        (HEADER + "---\n1x 10\n", "line 5: 'x' in cell 2 is no symbol; choose 0 1, or . for a blank cell."),
        (HEADER + "---\n1. 10 tset\n", "line 5: 'tset' is neither a split \\(train, valid, test\\) nor a kind"),
        (HEADER + "---\n1. 10 train 1\n", "line 5: training has rows of kind 0 only; this one has kind 1."),
        (
            'symbols: "01"\ncolumns: 2\nchecker: all_different\ngroups: [rows]\n---\n1. 11\n',
            "line 6: the solution breaks a rule of the checker all_different.",
        ),
    ],
)
def test_a_mistake_names_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        write(tmp_path, text)


def test_a_file_that_is_not_there_or_no_text_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--dataset_name is 'file:nowhere.txt': nowhere.txt cannot be read \(No such"):
        find_puzzle("file:nowhere.txt")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="it is no UTF-8 text"):
        find_puzzle(f"file:{tmp_path / 'bytes'}")


def test_wrong_puzzles_to_solve_are_one_sentence(tmp_path: Path) -> None:
    puzzle = write(tmp_path, LATIN)
    with pytest.raises(UserError, match=r"--puzzle has 10 cells: file:.* has 1 to 9\."):
        puzzle.parse("." * 10)
    with pytest.raises(UserError, match="--puzzle: 'x' in cell 1 is no symbol"):
        puzzle.parse("x")
    with pytest.raises(UserError, match="contradictory clues: cells 1, 3 are in one group"):
        puzzle.parse("a.a......")


@given(st.text(alphabet='symbols:"01"\ncolumnschecker equal-[]{}.,#&*', max_size=120))
@settings(max_examples=150, deadline=None)
def test_any_file_is_read_or_refused_in_one_sentence(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.txt"
    for content in (text, HEADER + "---\n" + text):
        file.write_text(content)
        try:
            puzzle = find_puzzle(f"file:{file}")
        except UserError as error:
            assert str(error).startswith(f"{file}, line ")
        else:
            assert isinstance(puzzle, OwnFile)
            assert puzzle.solved(puzzle.all, puzzle.all.answer).all()
