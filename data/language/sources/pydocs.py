"""pydocs: the text that every Python carries, its help topics and the docstrings of its standard library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from config.settings import Text
from core.progress import progress
from data.language.sources.source import Source, files_key
from data.parallel import ordered_map

# The library's own tests are skipped: many systems do not ship them, and they are two thirds of the parsing.
NOT_THE_LIBRARY = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
FILES_PER_PROCESS = 120


class PyDocs(Source):
    """Each help topic is a document; so are all docstrings of one module together, in the order of its source."""

    def __init__(self, settings: Text) -> None:
        self._documents: list[str] = []

    def key(self) -> str:
        return f"{sys.version} {files_key(_library_files())}"

    def prepare(self) -> None:
        self._documents = self._documents or [*_topics(), *_modules()]

    def documents(self, split: str) -> Iterator[str]:
        yield from self._documents

    def count(self, split: str) -> int:
        return len(self._documents)


def _library_files() -> list[str]:
    """All .py files of the standard library, in an order that does not depend on the file system."""
    paths: list[str] = []
    for folder, subfolders, files in os.walk(sysconfig.get_paths()["stdlib"]):
        subfolders[:] = [name for name in subfolders if name not in NOT_THE_LIBRARY]
        paths += [os.path.join(folder, name) for name in files if name.endswith(".py")]
    return sorted(paths)


def _topics() -> Iterator[str]:
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield topics[name].strip()


def _modules() -> Iterator[str]:
    """One document per module that has docstrings; a docstring seen in an earlier module is skipped."""
    files = _library_files()
    tasks = [files[start : start + FILES_PER_PROCESS] for start in range(0, len(files), FILES_PER_PROCESS)]
    seen: set[str] = set()
    with progress("Reading Python's documentation", "modules", len(files)) as advance:
        for modules in ordered_map(_docstrings, tasks):
            for docstrings in modules:
                fresh = [text for text in dict.fromkeys(docstrings) if text not in seen]
                seen.update(fresh)
                if fresh:
                    yield "\n\n".join(fresh)
            advance(len(modules))


def _docstrings(files: list[str]) -> list[list[str]]:
    """The docstrings of each file, read by another process."""
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("docstrings.py"))]
    result = subprocess.run(command, input=json.dumps(files).encode(), stdout=subprocess.PIPE, check=True)
    return json.loads(result.stdout)


DATASETS = {"pydocs": PyDocs}
