"""The data of a run: names, rows, the cache, what a run folder keeps, and --debug_dataloader."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import data.reasoning.build
from core.errors import UserError
from data.inspect import inspect_data
from data.module import DataModule, read_spec, save_data
from data.reasoning.build import PuzzleRows, find_puzzle, parse_clues, reasoning_data
from data.reasoning.cache import read_or_draw, request_key
from data.reasoning.puzzle import PuzzleSet, PuzzleSpec
from data.stream import EMPTY_ROW
from tests.conftest import ROOT
from tests.data.in_memory import make_config


@dataclass(frozen=True)
class Settings:
    num_puzzles: int = 200
    num_eval_puzzles: int = 20
    clues: str = ""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EBT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "puzzles"


def make(name: str = "sudoku:4", *runs: Path, flags: dict[str, Any] | None = None, **settings: Any) -> DataModule:
    config = make_config(dataset_name=name, batch_size_per_device=8, **(flags or {}))
    return reasoning_data(config, Settings(**settings), *runs)


def test_evaluation_has_all_kinds_one_after_the_other_and_training_one() -> None:
    module = make()
    assert {name: len(rows) for name, rows in module.rows.items()} == {"train": 200, "valid": 60, "test": 60}
    assert (module.rows["train"].puzzles.kind == 0).all()
    for name in ("valid", "test"):
        assert module.rows[name].puzzles.kind.tolist() == [0] * 20 + [1] * 20 + [2] * 20
    assert isinstance(module.spec, PuzzleSpec)
    assert module.rows["valid"].record() == {"puzzles": 60, "in distribution": 20, "shifted": 20, "several answers": 20}


def test_a_row_is_the_same_alone_and_in_a_batch_and_an_empty_one_counts_nothing() -> None:
    rows = make().rows["valid"]
    batch = rows.__getitems__([3, EMPTY_ROW, 5])
    types = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in batch.items()}
    assert types == {
        "inputs": ((3, 16, 1), torch.int64),
        "given": ((3, 16), torch.int64),
        "answer": ((3, 16), torch.int64),
        "real": ((3, 16), torch.bool),
        "kind": ((3,), torch.int64),
    }
    for place, index in ((0, 3), (2, 5)):
        alone = rows.__getitems__([index])
        assert all((alone[name][0] == tensor[place]).all() for name, tensor in batch.items())
    assert batch["kind"][1] == -1
    assert not batch["real"][1].any()
    assert (batch["given"][1] == -1).all()
    assert (batch["answer"][1] == -1).all()
    for index in (60, -2):
        with pytest.raises(IndexError):
            rows.__getitems__([index])


def test_a_batch_becomes_puzzles_again() -> None:
    rows = make().rows["valid"]
    puzzles = PuzzleSet.of_batch(rows.__getitems__(range(60)))
    for name, array in rows.puzzles.arrays().items():
        assert (puzzles.arrays()[name] == array).all()
        assert puzzles.arrays()[name].dtype == array.dtype


def test_the_seed_of_a_run_does_not_change_its_puzzles(cache: Path) -> None:
    one, other = make(flags={"seed": 1}), make(flags={"seed": 2})
    assert one.fingerprint == other.fingerprint
    assert len(list(cache.glob("*.npz"))) == 1
    assert make(num_puzzles=201).fingerprint != one.fingerprint


def test_a_second_run_reads_what_the_first_drew(monkeypatch: pytest.MonkeyPatch) -> None:
    first = make()
    monkeypatch.setattr(data.reasoning.build, "draw_sets", None)
    assert make().fingerprint == first.fingerprint


def test_a_cache_elsewhere_is_used_where_it_is_asked_for(tmp_path: Path, cache: Path) -> None:
    make(flags={"dataset_dir": str(tmp_path / "elsewhere")})
    assert list((tmp_path / "elsewhere").glob("*.npz"))
    assert not cache.exists()


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 no archive", None])
def test_a_damaged_cache_is_drawn_again(cache: Path, damage: bytes | None, capsys: pytest.CaptureFixture[str]) -> None:
    first = make()
    (file,) = cache.glob("*.npz")
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 255  # one byte of the puzzles
    file.write_bytes(content if damage is None else damage)
    assert make().fingerprint == first.fingerprint
    assert "is damaged" in capsys.readouterr().err
    assert make().fingerprint == first.fingerprint
    assert "is damaged" not in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_costs_time_only(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where a folder should be")
    assert len(make().rows["train"]) == 200
    assert "cannot be written" in capsys.readouterr().err


def test_changed_code_or_requests_read_nothing_old(monkeypatch: pytest.MonkeyPatch) -> None:
    request = {"dataset": "sudoku:4", "num_puzzles": 5}
    names = {request_key(request), request_key(request | {"num_puzzles": 6})}
    monkeypatch.setattr("data.reasoning.cache.code_version", lambda: "newer")
    assert len(names | {request_key(request)}) == 3


def test_what_fails_while_drawing_leaves_no_file(cache: Path) -> None:
    def fail() -> dict[str, PuzzleSet]:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        read_or_draw(cache, {}, fail)
    assert not list(cache.glob("*.npz"))


PROGRAM = """
import sys
from data.reasoning.build import draw_sets, find_puzzle
from data.reasoning.cache import fingerprint, read_or_draw
from pathlib import Path
puzzle = find_puzzle("sudoku:6")
print(fingerprint(read_or_draw(Path(sys.argv[1]), {"dataset": "sudoku:6"}, lambda: draw_sets(puzzle, 3000, 30))))
"""


def test_two_processes_at_once_get_the_same_puzzles_and_leave_one_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    programs = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    other = subprocess.run(
        [*command[:-1], str(tmp_path / "other")], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = {program.communicate()[0] for program in programs} | {other.stdout}
    assert len(names) == 1
    assert len(names.pop().strip()) == 24
    assert len(list(tmp_path.glob("*.npz"))) == 1
    assert not list(tmp_path.glob(".*"))


def test_a_copied_run_folder_has_the_users_file(tmp_path: Path) -> None:
    lines = [f"{n:03b}. {n:03b}{n % 2} {split}" for n in range(8) for split in ("train", "valid", "test")]
    file = tmp_path / "mine.txt"
    file.write_text('symbols: "01"\ncolumns: 2\nchecker: equal\n---\n' + "\n".join(lines))
    module = make(f"file:{file}")
    run = tmp_path / "run"
    run.mkdir()
    save_data(module, run)
    file.unlink()
    again = make(f"file:{file}", run)
    assert again.fingerprint == module.fingerprint
    assert json.loads((run / "data.json").read_text())["dataset"] == f"file:{file}"
    with pytest.raises(UserError, match="cannot be read"):
        make(f"file:{file}")


def test_the_spec_of_a_run_is_read_back(tmp_path: Path) -> None:
    module = make("sorting:5")
    save_data(module, tmp_path)
    spec = read_spec(tmp_path, "data.reasoning.puzzle:PuzzleSpec")
    assert isinstance(spec, PuzzleSpec)
    assert (spec.positions == module.spec.positions).all()
    assert spec.positions.dtype == np.int64
    assert (spec.dataset, spec.cells, spec.fields) == ("sorting:5", 5, (11,))
    assert spec.symbols == module.spec.symbols


@pytest.mark.parametrize("name", ["sudoku:6", "reachability:12", "sorting:8", "addition:6", "maze:5"])
def test_debug_dataloader_finds_nothing_wrong_and_shows_rows(name: str) -> None:
    module = make(name)
    page = io.StringIO()
    console = Console(file=page, width=200)
    inspect_data(module.config, module, console, seconds=0.1, workers_tried=(0,))
    text = page.getvalue()
    assert "every stored answer keeps the rules" in text
    assert "no row stands twice in a split or in two splits" in text
    assert " => " in text
    assert "blank cells" in text


def test_debug_dataloader_finds_an_answer_that_breaks_a_rule() -> None:
    module = make()
    rows = module.rows["valid"]
    assert isinstance(rows, PuzzleRows)
    rows.puzzles.answer[7, 0] = (rows.puzzles.answer[7, 0] + 1) % 4
    page = io.StringIO()
    good = inspect_data(module.config, module, Console(file=page, width=200), seconds=0.1, workers_tried=(0,))
    assert not good
    assert "the answer of row 7 of valid breaks a rule" in page.getvalue()


@pytest.mark.parametrize(
    "name", ["sudoku", "sudoku:5", "sudoku:", "chess:8", "maze:x", "file:", "", "pydocs", "sudoku:²"]
)
def test_an_unknown_dataset_lists_what_there_is(name: str) -> None:
    with pytest.raises(UserError) as error:
        find_puzzle(name)
    message = str(error.value)
    assert message.startswith(f"--dataset_name is {name!r}: choose sudoku:4, sudoku:6, sudoku:9, reachability:16")
    assert "file:PATH" in message


@pytest.mark.parametrize(
    ("name", "low", "high"), [("reachability:2", 12, 64), ("maze:99", 4, 32), ("sorting:0", 3, 32)]
)
def test_a_size_out_of_range_names_the_range(name: str, low: int, high: int) -> None:
    with pytest.raises(UserError, match=f"--dataset_name is '{name}': choose .*:N with N from {low} to {high}"):
        find_puzzle(name)


def test_clues_are_a_range() -> None:
    assert parse_clues("18-26", 36) == (18, 26)
    assert parse_clues(" 20 ", 36) == (20, 20)


@pytest.mark.parametrize("text", ["26-18", "-3", "a-b", "18-36", "1.5-3", "18-26-30"])
def test_a_wrong_range_of_clues_is_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"--clues is '.*': write the fewest and the most clues, as 18-26"):
        find_puzzle("sudoku:6", clues=text)


def test_clues_of_a_puzzle_without_them_are_refused() -> None:
    with pytest.raises(UserError, match="--clues is '3-4': maze:8 has no clues to count; leave it out"):
        find_puzzle("maze:8", clues="3-4")
