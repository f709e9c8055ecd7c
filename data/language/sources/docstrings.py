"""Prints the docstrings of Python files as JSON; `pydocs` runs several processes of it.

A separate script that imports nothing of the project: parsing the library is bound by the interpreter's lock, and a
process that has to import this package first would take longer than the parsing.
"""

from __future__ import annotations

import ast
import gc
import json
import sys
import warnings
from collections.abc import Iterator
from inspect import cleandoc


def docstrings_of(file: str) -> list[str]:
    """The docstrings of a file in source order; none if it cannot be read or parsed."""
    try:
        with open(file, "rb") as handle:
            tree = ast.parse(handle.read())
        return [text for text in _below(tree) if text]
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # the library's tests hold broken files
        return []


def _below(node: ast.AST) -> Iterator[str]:
    """Depth first, so that a class's docstring is followed by those of its methods."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            yield cleandoc(first.value.value).strip()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):  # expressions hold no docstring
            yield from _below(child)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # invalid escapes in the library's code
    gc.disable()  # a fifth faster; syntax trees hold no cycles
    json.dump([docstrings_of(file) for file in json.load(sys.stdin)], sys.stdout)
