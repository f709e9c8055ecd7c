"""abbreviations.md and the code agree: what it lists is used, and the shape letters that are used are listed."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

SUFFIX = re.compile(r"[a-z][a-z0-9_]*_([A-Z0-9]*[A-Z][A-Z0-9]*)")  # x_BSD, qkv_3BHSK: digits are constants
SHAPE = re.compile(
    r"\[((?:\.\.\., )?[A-Z0-9][A-Z0-9+/*-]{0,4}(?:, [A-Z0-9][A-Z0-9+/*-]{0,4})*)\]"
)  # [B, S+1] in a docstring


def listed(heading: str) -> list[str]:
    """The first column of the table under a heading of abbreviations.md."""
    text = (ROOT / "abbreviations.md").read_text()
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section, f"abbreviations.md has no section {heading!r}"
    return re.findall(r"^\| `([^`]+)` \|", section.group(1), re.MULTILINE)


def code_files() -> list[Path]:
    return [ROOT / "train_model.py", *(file for file in ROOT.glob("[!.]*/**/*.py") if not made_or_test(file))]


def made_or_test(file: Path) -> bool:
    return file.relative_to(ROOT).parts[0] in ("tests", "build", "logs")


@cache
def code() -> str:
    return "\n".join(file.read_text() for file in [*code_files(), ROOT / "Makefile"])


def letters_of(source: str) -> set[str]:
    """The shape letters in the names and docstrings of a module."""
    letters: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        for name in (getattr(node, field, None) for field in ("id", "arg", "attr", "name")):
            if isinstance(name, str) and (suffix := SUFFIX.fullmatch(name)):
                letters |= set(suffix.group(1))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            letters |= set("".join(SHAPE.findall(node.value)))
    return {letter for letter in letters if letter.isupper()}


def test_shape_letters_are_recognised() -> None:
    docstring = '"""[B, S+1] -> [..., K/2, 2], not [OUT_DIR] or list[int]."""'
    source = f"def f(x_BSD, LARGE_FILE, x_hat):\n    {docstring}\n    qkv_3BHSK = 1\n"
    assert letters_of(source) == set("BSDKH")


def test_lists_are_not_empty_and_name_each_once() -> None:
    for heading in ("Words", "Words of this project", "Shape letters"):
        names = listed(heading)
        assert len(names) >= 7 and len(set(names)) == len(names)


@pytest.mark.parametrize("word", [*listed("Words"), *listed("Words of this project")])
def test_every_listed_word_is_in_the_code(word: str) -> None:
    assert re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", code()), f"no code says {word!r}"


@pytest.mark.parametrize("letter", listed("Shape letters"))
def test_every_listed_shape_letter_is_in_the_code(letter: str) -> None:
    assert letter in letters_of_all() or re.search(rf", {letter}\b", code()), f"no shape in the code has a {letter}"


@cache
def letters_of_all() -> set[str]:
    return set().union(*(letters_of(file.read_text()) for file in code_files()))


def test_every_shape_letter_of_the_code_is_listed() -> None:
    used = letters_of_all()
    assert set("BSDHKV") <= used
    assert used <= set(listed("Shape letters")), f"not in abbreviations.md: {used - set(listed('Shape letters'))}"
