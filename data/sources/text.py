"""text: plain text files; a file is a document, a large one is several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from config.settings import Data
from data.sources.files import TextFiles, find_files
from data.sources.source import Source, files_key

ENDINGS = (".txt", ".md", ".rst", ".txt.gz", ".md.gz", ".rst.gz")
LARGE_FILE = 1_000_000
PIECE = (4_000, 100_000)  # smallest and largest aim


class TextSource(Source):
    """Large files, and a file that stands alone, are cut at blank lines, so that each split gets a part."""

    def __init__(self, settings: Data) -> None:
        self.files = find_files(settings, ENDINGS)
        self.texts = TextFiles()

    def key(self) -> str:
        return files_key(self.files)

    def documents(self, split: str) -> Iterator[str | None]:
        return self.texts.read(self.files, lambda file, handle: _pieces(handle, self._piece_size(file)))

    def _piece_size(self, file: Path) -> int | None:
        size = file.stat().st_size
        if size <= LARGE_FILE and len(self.files) > 1:
            return None
        return min(max(size // 200, PIECE[0]), PIECE[1])


def _pieces(handle: TextIO, aim: int | None) -> Iterator[str]:
    """Cut at the first blank line after `aim` characters, or anywhere after four times as many."""
    if aim is None:
        yield handle.read()
        return
    lines: list[str] = []
    size = 0
    while line := handle.readline(aim):
        lines.append(line)
        size += len(line)
        if (size >= aim and line.isspace()) or size >= 4 * aim:
            yield "".join(lines)
            lines, size = [], 0
    if lines:
        yield "".join(lines)
