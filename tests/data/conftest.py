"""Fixtures of the tests of the store and of its cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.settings import Text
from tests.data.small import write


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A token cache of the test's own."""
    monkeypatch.setenv("EBT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def settings(tmp_path: Path) -> Text:
    """400 short documents."""
    return write(tmp_path, [f"document {number} about energy" for number in range(400)])
