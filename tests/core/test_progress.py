"""Progress: a bar on a terminal, a line from time to time elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from core.progress import progress


def test_lines_in_a_log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 4.0, 10.0, 12.0, 30.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with progress("Tokenising", "documents", 4000) as advance:
        for _ in range(4):
            advance(500)
    assert capsys.readouterr().err == (
        "Tokenising: 1,000 of 4,000 documents, 100/s, 0:30 left\n"
        "Tokenising: 2,000 of 4,000 documents, 67/s, 0:30 left\n"
    )


def test_lines_when_nobody_knows_the_total(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 20.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with progress("Tokenising", "documents") as advance:
        advance(500)
    assert capsys.readouterr().err == "Tokenising: 500 documents, 25/s\n"


def test_slow_work_has_a_rate_and_its_total_may_become_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 20.0, 40.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with progress("Thinking", "steps") as advance:
        advance(1, 181)
        advance(1)
    assert capsys.readouterr().err == (
        "Thinking: 1 of 181 steps, 0.05/s, 1:00:00 left\nThinking: 2 of 181 steps, 0.05/s, 59:40 left\n"
    )


def test_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("Tokenising", "documents", 10) as advance:
        advance(4)
        advance(6)
        advance(0, 20, "Packing")
    assert all(words in terminal.getvalue() for words in ("Tokenising", "Packing", "10/20"))


def test_nothing_done_has_no_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A stage that is long before its first unit would divide by a rate of zero."""
    clock = iter([0.0, 20.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with progress("Inspecting", "stages", 8) as advance:
        advance(0, title="reading the rows of train")
    assert capsys.readouterr().err == "reading the rows of train: 0 stages, 0/s\n"
