"""think-curve, solve and verify on small trained runs of every model of puzzles, and what they say to bad input."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from core.files import read_rows
from data.reasoning.build import find_puzzle
from data.reasoning.puzzle import SHIFTED
from inference.__main__ import main
from inference.reasoning.solve import NEAREST, Reference, Walk, describe_belief, selection
from tasks.show.board import Board, side_by_side
from tests.inference.reasoning.known_model import known_run

NAMES = ("tiny", "tiny-looped", "tiny-feed-forward-transformer")
EMPTY = "." * 16
BROKEN = "12....4......3.."  # no digit is left for the fourth cell of the first line


def run_command(logs: Path, out: Path, *words: str) -> int:
    command, *flags = words
    return main([command, "--logs_dir", str(logs), "--infer_output_dir", str(out), *flags])


def refusal(capsys: pytest.CaptureFixture[str], logs: Path, out: Path, *words: str) -> str:
    assert run_command(logs, out, *words) == 2
    text = capsys.readouterr().err.strip()
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", NAMES)
def test_think_curve_agrees_with_the_evaluation(
    puzzle_logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert run_command(puzzle_logs, tmp_path, "evaluate", "--run", name) == 0
    expected = read_rows(tmp_path / "evaluation.jsonl")[-1]["results"]
    capsys.readouterr()
    words = ("think-curve", "--run", name, "--steps", "4", "--candidates", "1", "2")
    assert run_command(puzzle_logs, tmp_path, *words) == 0
    printed = capsys.readouterr().out
    assert (tmp_path / "think_curve.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "think_curve.csv").open()))
    rivals = {*NAMES} if name == "tiny" else {name, "tiny"}  # those whose names go on, or begin, as this one's
    assert {row["run"].rsplit("_", 2)[0] for row in rows} == rivals
    own = [row for row in rows if row["run"].startswith(f"{name}_") and row["candidates"] == "1"]
    solved = {(row["kind"], row["steps"]): float(row["solved"]) for row in own if row["stopped"] == "after its steps"}
    last = "1" if name.endswith("feed-forward-transformer") else "4"
    kinds = {"in distribution": "solved", "shifted": "solved_shifted", "several answers": "solved_several"}
    for kind, measure in kinds.items():
        assert solved[kind, last] == pytest.approx(expected[measure], abs=1e-6)
        for step in ("1", "2") if last == "4" and kind != "several answers" else ():
            assert solved[kind, step] == pytest.approx(expected[f"{measure}_step_{step}"], abs=1e-6)
    if last == "1":
        assert "it answers in one pass and cannot think for longer" in printed
    if name == "tiny":
        assert "LOOPED TRANSFORMER" in printed and "FEED-FORWARD TRANSFORMER" in printed
        energies = [row for row in rows if row["model"] == "EBT"]
        assert {row["candidates"] for row in energies} == {"1", "2"}
        assert {row["stopped"] for row in energies} == {"after its steps", "when it stays"}


def test_runs_that_cannot_be_compared(puzzle_logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("think-curve", "--run", "tiny", "--compare")
    assert refusal(capsys, puzzle_logs, tmp_path, *words, "tiny") == (
        "--compare is 'tiny': it is the run itself; choose another."
    )
    assert "--compare is 'nobody': there is no such run" in refusal(capsys, puzzle_logs, tmp_path, *words, "nobody")
    wrong = ("think-curve", "--run", "tiny", "--candidates", "many")
    assert "--candidates is 'many': give whole numbers" in refusal(capsys, puzzle_logs, tmp_path, *wrong)


@pytest.mark.parametrize("name", NAMES)
def test_solve_prints_boards_and_draws_the_walk(
    puzzle_logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    words = ("solve", "--run", name, "--puzzle", "1234 3412 2143 432.", "--steps", "3", "--candidates", "2")
    assert run_command(puzzle_logs, tmp_path, *words) == 0
    printed = capsys.readouterr().out
    assert "1 blank cell; this puzzle has exactly one answer." in printed
    assert ("Solved: every rule holds" in printed) != ("Not solved: " in printed)
    assert (tmp_path / "solve.png").read_bytes().startswith(b"\x89PNG")
    thinks = not name.endswith("feed-forward-transformer")
    assert (tmp_path / "solve.gif").exists() == thinks
    if thinks:
        assert (tmp_path / "solve.gif").read_bytes().startswith(b"GIF89a")
    assert ("energy" in printed) == (name == "tiny")
    assert ("Candidate 1 of 2" in printed or "Candidate 2 of 2" in printed) == (name == "tiny")


def test_an_unsolvable_puzzle_is_called_so_and_its_energy_compared(
    puzzle_logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("solve", "--run", "tiny", "--steps", "4", "--pictures", "0")
    assert run_command(puzzle_logs, tmp_path, *words, "--puzzle", BROKEN) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "this puzzle has no answer: it is unsolvable." in printed and "Not solved: " in printed
    assert "The energy at the end is" in printed
    assert "solved validation puzzles with" in printed or "solves no validation puzzle" in printed
    assert not list(tmp_path.glob("*.png"))
    file = tmp_path / "puzzles.txt"
    file.write_text(f"{EMPTY}\n\n{BROKEN}\n")
    assert run_command(puzzle_logs, tmp_path, *words, "--puzzle_file", str(file)) == 0
    printed = capsys.readouterr().out
    assert (
        "PUZZLE 1 of 2" in printed
        and "several answers: any of them counts" in printed
        and "of 2 puzzles solved." in printed
    )


def test_an_energy_is_judged_by_those_of_solved_puzzles_with_as_many_blanks() -> None:
    """Here energies of solved puzzles are minus their blank cells; 200 puzzles with other blanks must not matter."""
    run, puzzles = known_run({}), find_puzzle("sudoku:4").parse(EMPTY)
    blanks = np.concatenate([np.full(NEAREST, 16), np.full(200, 3)])
    reference = Reference(-blanks - np.linspace(0, 1, len(blanks)), blanks)

    def told(end: float, solved: bool) -> str:
        walk = Walk(0, [0, 1], np.zeros((2, 16), int), np.array([0.0, end]), [end], [solved])
        return describe_belief(run, puzzles, walk, reference)

    assert "above that of 100% of 64 solved validation puzzles with 16 to 16 blank cells" in told(-15.0, False)
    assert "So the energy says that something is wrong" in told(-15.0, False)
    assert "above that of 0% of" in told(-17.5, False) and "does not tell that it is wrong" in told(-17.5, False)
    assert "So the" not in told(-17.5, True)
    assert "not finite: the walk diverged" in told(float("nan"), False)
    nothing = Reference(np.zeros(0), np.zeros(0, int))
    walk = Walk(0, [0], np.zeros((1, 16), int), np.array([1.0]), [1.0], [True])
    assert "solves no validation puzzle" in describe_belief(run, puzzles, walk, nothing)


def test_boards_to_print_are_the_first_the_last_and_some_at_which_the_answer_changed() -> None:
    puzzle = find_puzzle("sudoku:4")
    puzzles = puzzle.generate("valid", SHIFTED, 1, 0)
    answers = np.zeros((20, 16), int)
    answers[5:, 3], answers[9:, 4] = 1, 2
    boards = [Board.of(puzzle, puzzles, 0, answer, "", step, None) for step, answer in enumerate(answers)]
    assert [board.step for board in selection(boards, 6)] == [0, 5, 9, 19]
    assert [board.step for board in selection(boards, 3)] == [0, 5, 19]
    assert selection(boards, 0) == boards and selection(boards, 20) == boards
    assert [board.step for board in selection(boards, 1)] == [19]


def test_bad_puzzles_are_refused_in_a_sentence(
    puzzle_logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ebt_run: Path
) -> None:
    def told(*words: str) -> str:
        return refusal(capsys, puzzle_logs, tmp_path, "solve", "--run", "tiny", *words)

    assert "--puzzle has 5 cells: a Sudoku of 4 x 4 has 16" in told("--puzzle", "12...")
    assert "--puzzle has '7' in cell 3" in told("--puzzle", "12" + "7" + "." * 13)
    assert "--puzzle has contradictory clues" in told("--puzzle", "11" + "." * 14)
    assert "both given" in told("--puzzle", EMPTY, "--puzzle_file", "x")
    assert "--puzzle_file is 'x': it cannot be read" in told("--puzzle_file", "x")
    file = tmp_path / "puzzles.txt"
    file.write_text("\n")
    assert "it has no puzzle; write one a line." in told("--puzzle_file", str(file))
    file.write_text(f"{EMPTY}\n11{EMPTY[2:]}\n")
    assert told("--puzzle_file", str(file)).startswith("--puzzle_file, line 2: has contradictory clues")
    assert main(["solve", "--run", str(ebt_run), "--puzzle", EMPTY]) == 2
    assert "is a language run, which has no solve: choose" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_verify_says_what_holds(
    puzzle_logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    words = ("verify", "--run", name, "--rows", "8", "--answers", "3")
    assert run_command(puzzle_logs, tmp_path, *words) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "WITHIN A PUZZLE" in printed and "ACROSS PUZZLES" in printed
    assert ("ALONG A WALK The energy falls on" in printed) == (name == "tiny")
    assert (tmp_path / "verify.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "verify.csv").open()))
    within = [row for row in rows if row["scope"] == "within a puzzle" and row["run"].startswith(f"{name}_")]
    assert {row["against"] for row in within} >= {"one cell changed", "several cells changed", "its own wrong"}
    assert all(0 <= float(row["value"]) <= 1 for row in within if row["value"] != "nan")
    across = {row["score"] for row in rows if row["scope"] == "across puzzles" and row["run"].startswith(f"{name}_")}
    own = {"energy", "energy per blank cell"} if name == "tiny" else {"log p of its answer"}
    assert across == {*own, "softmax confidence"}


def test_boards_mark_exactly_the_cells_that_break_a_rule() -> None:
    puzzle = find_puzzle("sudoku:4")
    puzzles = puzzle.generate("valid", SHIFTED, 1, 0)
    answer = puzzles.answer[0].astype(np.int64)
    blank = int(np.flatnonzero(puzzles.given[0] < 0)[0])
    answer[blank] = (answer[blank] + 1) % 4
    wrong = puzzle.violations(puzzles, answer[None])[0]
    board = Board.of(puzzle, puzzles, 0, answer, "step 1", 1, -1.5)
    text = "".join(line.plain for line in board.lines(marks=True))
    cells = [part for part in text.replace("|", " ").replace("-", " ").split() if part.strip("!").isdigit()]
    assert [cell.endswith("!") for cell in cells] == wrong.tolist() and wrong.any() and not wrong.all()
    assert [int(cell.strip("!")) - 1 for cell in cells] == answer.tolist()
    assert "!" not in "".join(line.plain for line in board.lines(marks=False))
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="standard", width=80)
    for line in board.lines(marks=False):
        console.print(line)
    assert file.getvalue().count("\x1b[1;31m") == wrong.sum()


def test_boards_stand_side_by_side_as_far_as_the_width_allows() -> None:
    puzzle = find_puzzle("sudoku:4")
    puzzles = puzzle.generate("valid", SHIFTED, 1, 0)
    board = Board.of(puzzle, puzzles, 0, puzzles.answer[0].astype(np.int64), "solved", 1, None)
    for width in (10, 30, 60, 200):
        lines = [line.plain for line in side_by_side([board] * 5, width, marks=True)]
        size = max(len(line.plain) for line in board.lines(marks=True))
        across = max(1, (width + 4) // (size + 4))
        assert max(map(len, lines)) <= max(width, size)
        assert sum(line.startswith("solved") for line in lines) == -(-5 // across)
        assert sum(line.count("solved") for line in lines) == 5
