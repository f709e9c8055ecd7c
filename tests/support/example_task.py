"""The task that docs/tasks.md writes, as modules that can be imported."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

MODULE = re.compile(r"```python\n# (\S+\.py)\n(.*?)```", re.DOTALL)


def import_example(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the modules of the page into a folder, and make them importable until the test ends."""
    for name, text in MODULE.findall((ROOT / "docs" / "tasks.md").read_text()):
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py").replace("/", "."), raising=False)
    monkeypatch.syspath_prepend(folder)
