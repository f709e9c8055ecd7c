"""`python -m runs note`, `journal` and `todo`: what is written stays, in the order of time, and harms nobody."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from core.files import read_rows
from runs.run import Run
from tests.runs.folders import Command, make_run, write_rows


@pytest.fixture
def runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    make_run(tmp_path, "one", day=1)
    make_run(tmp_path, "other", day=2)
    return Command(tmp_path, capsys)


def notes(runs: Command, name: str = "one_20260101-120000_01abcd") -> list[tuple[str, str]]:
    return [(note.tag, note.text) for note in Run(runs.logs / "runs" / name).notes]


@pytest.mark.parametrize(
    ("words", "tag", "text"),
    [
        (["TODO: try four steps"], "TODO", "try four steps"),
        (["RESULT better by 0.2"], "RESULT", "better by 0.2"),
        (["IDEA:", "think", "longer"], "IDEA", "think longer"),
        (["plain words"], "UPDATE", "plain words"),
        (["TODOS are many"], "UPDATE", "TODOS are many"),
        (["--tag", "try", "warm-up of 5"], "TRY", "warm-up of 5"),
        (["clear\x1b[2J\r\nscreen\udcff"], "UPDATE", "clear[2J\nscreen"),
    ],
)
def test_a_note_has_a_tag(runs: Command, words: list[str], tag: str, text: str) -> None:
    assert runs("note", "one", *words) == f"{tag} noted for one_20260101-120000_01abcd.\n"
    assert notes(runs) == [(tag, text)]
    (row,) = read_rows(runs.logs / "runs" / "one_20260101-120000_01abcd" / "journal.jsonl")
    assert row.keys() == {"time", "tag", "text"} and isinstance(row["time"], float)


def test_a_note_without_words_is_piped_or_edited(
    runs: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("IDEA: from\na pipe\n"))
    runs("note", "last")
    assert notes(runs, "other_20260102-120000_02abcd") == [("IDEA", "from\na pipe")]
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    editor = tmp_path / "my editor"
    editor.write_text('#!/bin/sh\nprintf "TRY: edited\\n# left out\\n" >> "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", f"'{editor}'")
    monkeypatch.delenv("VISUAL", raising=False)
    runs("note", "one")
    assert notes(runs) == [("TRY", "edited")]
    monkeypatch.setenv("EDITOR", "false")
    assert runs.refused("note", "one") == "false ended with status 1, so nothing was written."
    monkeypatch.setenv("EDITOR", "/no/editor")
    assert (
        runs.refused("note", "one")
        == "$EDITOR is /no/editor: it cannot be started (No such file or directory); give TEXT."
    )
    monkeypatch.delenv("EDITOR")
    assert runs.refused("note", "one") == (
        'TEXT is missing and $EDITOR is not set: python -m runs note one_20260101-120000_01abcd "…".'
    )
    assert notes(runs) == [("TRY", "edited")]


def test_mistakes_of_a_note(runs: Command) -> None:
    assert runs.refused("note", "one", "x", "--tag", "WISH") == (
        "--tag is WISH: choose TRY, RESULT, IDEA, TODO or UPDATE."
    )
    assert runs.refused("note", "one", "TODO:") == (
        'The note is empty, so nothing was written: give a text, as python -m runs note RUN "…".'
    )
    assert runs.refused("note", "on_", "x").startswith("RUN is on_: there is no such run; choose one")
    (runs.logs / "runs" / "one_20260101-120000_01abcd" / "journal.jsonl").mkdir()
    assert runs.refused("note", "one", "x") == (
        f"{runs.logs}/runs/one_20260101-120000_01abcd/journal.jsonl cannot be written to (Is a directory), "
        "so nothing was noted: ask its owner, or note it for a run of your own."
    )


def test_todos_are_listed_and_ticked_off(runs: Command) -> None:
    assert runs("todo") == 'Nothing is left to do. python -m runs note RUN "TODO: …" adds something.\n'
    runs("note", "one", "TODO: first\nwith more")
    runs("note", "other", "IDEA: second")
    runs("note", "one", "RESULT: no work")
    listed = runs("todo").splitlines()
    assert [line.split()[:2] for line in listed] == [["1", "TODO"], ["2", "IDEA"]]
    assert listed[0].endswith("first …  (one_20260101-120000_01abcd)")
    assert runs("todo", "--done", "1") == "done: first … (one_20260101-120000_01abcd)\n"
    assert notes(runs)[-1] == ("UPDATE", "done: first\nwith more")
    assert [line.split()[1] for line in runs("todo").splitlines()] == ["IDEA"]
    assert runs.refused("todo", "--done", "2") == (
        "--done is 2: give a number from 1 to 1; python -m runs todo lists them."
    )
    runs("todo", "--done", "1")
    assert runs.refused("todo", "--done", "1") == (
        "--done is 1: there is nothing left to do; python -m runs todo lists them."
    )


def test_the_diary_is_in_the_order_of_time(runs: Command, tmp_path: Path) -> None:
    file = runs.logs / "runs" / "one_20260101-120000_01abcd" / "journal.jsonl"
    begun = Run(file.parent).began
    write_rows(file, {"time": begun + 2 * 86400, "tag": "RESULT", "text": "two days later"})
    write_rows(file, {"time": begun + 3600, "tag": "TRY", "text": "an *hour* <script>later</script>\nsecond line"})
    write_rows(file, {"tag": "IDEA", "text": "at no time"})
    text = runs("journal")
    order = [
        "# Journal",
        "## 2026-01-01",
        "### 12:00 one_20260101-120000_01abcd: finished",
        "- **Summary.** An EBT of size tiny on pydocs, 20 steps. There is no earlier run to tell it from.",
        "**IDEA** (one_20260101-120000_01abcd) at no time",
        "- 13:00 **TRY** (one_20260101-120000_01abcd) an *hour* &lt;script>later&lt;/script>\n  second line",
        "## 2026-01-02",
        "### 12:00 other_20260102-120000_02abcd: finished",
        "The same settings as the nearest earlier run, one_20260101-120000_01abcd.",
        "## 2026-01-03",
        "- 12:00 **RESULT** (one_20260101-120000_01abcd) two days later",
    ]
    places = [text.index(line) for line in order]
    assert places == sorted(places)
    out = tmp_path / "diary.md"
    assert runs("journal", "--out", str(out)) == f"{out} has the journal of 2 runs.\n"
    assert out.read_text() == text
    only = runs("journal", "other")
    assert "two days later" not in only and "other_20260102" in only
    assert runs.refused("journal", "--out", str(tmp_path)).startswith(f"--out is {tmp_path}: cannot write there (")
    assert Command(tmp_path / "none", runs.capsys).refused("journal") == (
        f"There are no runs in {tmp_path}/none: --logs_dir names another folder."
    )


def test_what_people_call_runs_is_no_markdown(runs: Command) -> None:
    folder = runs.logs / "runs" / "one_20260101-120000_01abcd"
    (folder / "tags.json").write_text('["<b>*loud*</b>"]')
    assert r"[&lt;b>\*loud\*&lt;/b>]" in runs("journal")
