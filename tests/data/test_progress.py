"""Progress is a bar on a terminal and a line now and then elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from data.progress import progress


def test_lines_in_a_log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 4.0, 10.0, 12.0, 30.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with progress("Tokenising", "documents", 4000) as advance:
        for _ in range(4):
            advance(500)
    assert capsys.readouterr().err == (
        "Tokenising: 1,000 of 4,000 documents, 100/s, 30 s left\n"
        "Tokenising: 2,000 of 4,000 documents, 67/s, 30 s left\n"
    )


def test_lines_when_nobody_knows_the_total(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 20.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with progress("Tokenising", "documents") as advance:
        advance(500)
    assert capsys.readouterr().err == "Tokenising: 500 documents, 25/s\n"


def test_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("Tokenising", "documents", 10) as advance:
        advance(4)
        advance(6)
    assert "Tokenising" in terminal.getvalue() and "10/10" in terminal.getvalue()
