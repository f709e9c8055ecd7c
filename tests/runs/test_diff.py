"""`python -m runs diff A B`: settings, results, data, machine and code of two runs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from runs.diff import code_diff, files_of
from runs.run import Run
from tests.conftest import ROOT
from tests.runs.folders import Command, make_run


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    one = make_run(tmp_path, "one", day=1, losses=(3.0, 2.0), valid_targets=100)
    other = make_run(tmp_path, "other", "--ebt_type", "adaln", "--tokenizer", "bpe:300", day=2, losses=(3.0, 1.5),
                     valid_targets=80)  # fmt: skip
    for folder, torch in ((one, "2.13.0"), (other, "2.14.0")):
        environment = {"python": "3.11.7", "packages": {"torch": torch, "numpy": "2.4"}}
        (folder / "environment.json").write_text(json.dumps(environment))
    return one, other


def parts(output: str) -> dict[str, list[list[str]]]:
    """{title: lines as words}"""
    sections: dict[str, list[list[str]]] = {}
    for block in output.split("\n\n")[1:]:
        title, *lines = block.strip("\n").split("\n")
        sections[title] = [line.split() for line in lines]
    return sections


def test_every_part_is_told(pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = Command(tmp_path, capsys)("diff", "one", "other")
    assert output.startswith(f"A  {pair[0].name}: finished\nB  {pair[1].name}: finished\n\nSettings\n")
    sections = parts(output)
    assert sections["Settings"] == [["ebt_type", "default", "adaln"]]
    assert sections["Data"] == [["tokenizer", "bytes", "bpe:300"], ["tokens", "of", "a", "validation", "100", "80"]]
    assert sections["Environment"] == [["torch", "2.13.0", "2.14.0"]]
    assert ["best", "valid_loss", "2", "1.5000"] in sections["Results"]
    assert sections["Code"] == [["The", "commit", "of", "A", "and", "B", "is", "not", "known."]]


def test_the_same_run_has_no_difference(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = parts(Command(tmp_path, capsys)("diff", "one", "one"))
    assert [sections[name] for name in ("Settings", "Data", "Environment")] == [[["no", "difference"]]] * 3


def commits() -> tuple[str, str]:
    words = ["git", "rev-list", "--max-count=2", "HEAD"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    hashes = done.stdout.split()
    if len(hashes) < 2:
        pytest.skip("the history of this checkout has no two commits")
    return hashes[1], hashes[0]


def set_code(folder: Path, commit: str | None, patch: str = "") -> None:
    (folder / "code.json").write_text(json.dumps({"commit": commit, "dirty": bool(patch)}))
    (folder / "code.diff").write_text(patch)


def test_commits_and_what_was_not_committed(pair: tuple[Path, Path]) -> None:
    one, other = map(Run, pair)
    older, newer = commits()
    for folder in pair:
        set_code(folder, newer)
    assert code_diff(one, other) == ([f"Both are of commit {newer[:10]}."], "")
    set_code(one.path, older)
    notes, text = code_diff(one, other)
    assert notes == [f"Commit {older[:10]} against {newer[:10]}:"] and text.startswith("diff --git ")
    set_code(one.path, newer, "--- a/x.py\n+++ b/x.py\n+one\n")
    notes, text = code_diff(one, other)
    assert notes == [f"Both are of commit {newer[:10]}.", "Only A had uncommitted changes:"] and "-+one" in text
    set_code(other.path, newer, "--- a/x.py\n+++ b/x.py\n+two\n")
    assert code_diff(one, other).notes[1] == "What was not committed differs:"
    set_code(other.path, newer, "--- a/x.py\n+++ b/x.py\n+one\n")
    assert code_diff(one, other).notes[1] == "Both had the same uncommitted changes."
    set_code(one.path, "0" * 40)
    assert code_diff(one, other).notes[0] == (
        f"Commit 0000000000 against {newer[:10]}; this checkout does not have both."
    )
    set_code(one.path, "--output=/tmp/x")
    assert code_diff(one, other).notes[0] == "The commit of A is not known."


def test_snapshots_are_compared_file_by_file(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in pair:
        (folder / "code" / "models").mkdir(parents=True)
    one, other = (folder / "code" for folder in pair)
    (one / "same.py").write_text("same\n")
    os.link(one / "same.py", other / "same.py")
    assert code_diff(Run(pair[0]), Run(pair[1])) == (["The snapshots of the code are the same."], "")
    (one / "models" / "x.py").write_text("a\nb\n-- c\n")
    (other / "models" / "x.py").write_text("a\nd\ne\n")
    (other / "new.py").write_text("n\x1b[2J\n")
    (one / "gone.py").write_text("g\n")
    (one / "weights.bin").write_bytes(b"\0\1")
    command = Command(tmp_path, capsys)
    assert parts(command("diff", "one", "other"))["Code"] == [
        ["The", "snapshots", "differ:"],
        ["gone.py", "+0", "-1"],
        ["models/x.py", "+2", "-2"],
        ["new.py", "+1", "-0"],
        ["weights.bin", "+0", "-0"],
        ["--code", "shows", "the", "lines."],
    ]
    output = command("diff", "one", "other", "--code")
    assert "\n-b\n--- c\n+d\n+e\n" in output and "\x1b" not in output


def test_lines_of_a_diff_are_counted() -> None:
    assert files_of("") == []
    text = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-one\n+two\n+three\n--- a/y\n+++ /dev/null\n-gone\n"
    assert files_of(text) == [("x", 2, 1), ("y", 0, 1)]
