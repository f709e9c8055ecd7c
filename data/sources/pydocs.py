"""pydocs: the text that every Python carries, its help topics and the docstrings of its standard library."""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

from data.parallel import ordered_map
from data.progress import progress
from data.sources.source import Source, files_key

NOT_THE_LIBRARY = {"site-packages", "dist-packages", "__pycache__"}
FILES_PER_TASK = 32


class PyDocs(Source):
    """Each help topic is a document; so are all docstrings of one module, in the order of its source."""

    def __init__(self) -> None:
        self._documents: list[str] | None = None

    def key(self) -> str:
        return f"{sys.version} {files_key(_library_files())}"

    def documents(self, split: str) -> Iterator[str]:
        if self._documents is None:  # read twice when a tokenizer is trained first
            self._documents = [*_topics(), *_modules()]
        yield from self._documents


def _library_files() -> list[str]:
    """All .py files of the standard library, in an order that does not depend on the file system."""
    found = []
    for folder, subfolders, files in os.walk(sysconfig.get_paths()["stdlib"]):
        subfolders[:] = [name for name in subfolders if name not in NOT_THE_LIBRARY]
        found += [os.path.join(folder, name) for name in files if name.endswith(".py")]
    return sorted(found)


def _topics() -> Iterator[str]:
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield topics[name].strip()


def _modules() -> Iterator[str]:
    """One document per module that has docstrings; a docstring seen in an earlier module is left out."""
    files = _library_files()
    tasks = [files[start : start + FILES_PER_TASK] for start in range(0, len(files), FILES_PER_TASK)]
    seen: set[str] = set()
    with progress("Reading Python's documentation", "modules", len(files)) as advance:
        for modules in ordered_map(docstrings_of_files, tasks):
            for docstrings in modules:
                fresh = [text for text in dict.fromkeys(docstrings) if text not in seen]
                seen.update(fresh)
                if fresh:
                    yield "\n\n".join(fresh)
            advance(len(modules))


def docstrings_of_files(files: list[str]) -> list[list[str]]:
    """The docstrings of each file in source order; none for a file that cannot be read or parsed."""
    return [_docstrings(Path(file)) for file in files]


def _docstrings(file: Path) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in somebody else's code
            tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # the library's tests hold broken files
        return []
    return [text for text in _docstrings_below(tree) if text]


def _docstrings_below(node: ast.AST) -> Iterator[str]:
    """Depth first, so that a class's docstring is followed by those of its methods."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            yield cleandoc(first.value.value).strip()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):  # expressions hold no docstring
            yield from _docstrings_below(child)
