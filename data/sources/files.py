"""Finding and opening the local files that --dataset_dir names."""

from __future__ import annotations

import glob
import gzip
import re
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from config.settings import Data
from core.progress import notice
from data.errors import DataError
from data.sources.source import Source, files_key

NOT_UTF8 = re.compile("[\udc80-\udcff]")  # what surrogateescape makes of a byte that is not UTF-8


def find_files(settings: Data, endings: tuple[str, ...]) -> list[Path]:
    """The file itself, the files of a folder and its subfolders that have one of the endings, or those of a glob."""
    wanted = ", ".join(endings)
    if settings.dataset_dir is None:
        raise DataError(
            f"--dataset_dir is missing: --dataset_name {settings.dataset_name} reads local files; "
            f"give a file, a folder or a glob ({wanted})."
        )
    path = Path(settings.dataset_dir).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [
            file
            for file in path.rglob("*")
            if file.name.endswith(endings)
            and file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        ]
    else:
        found = [Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file()]
        if not found and not glob.has_magic(str(path)):
            raise DataError(f"--dataset_dir is {settings.dataset_dir!r}: no such file or folder; check the path.")
    if not found:
        raise DataError(
            f"--dataset_dir is {settings.dataset_dir!r}: --dataset_name {settings.dataset_name} found no file there; "
            f"it looks for {wanted}."
        )
    return sorted(found)


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn a file that cannot be read into one sentence."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(file, getattr(error, "strerror", None) or error) from error


def missing_field(place: object, field: str, fields: Iterable[str]) -> DataError:
    """The error for a record without the field that --text_field names; `fields` are those that it has."""
    known = ", ".join(sorted(fields)) or "none"
    return DataError(f"--text_field is {field!r}: {place} has no such field; it has {known}.")


def unreadable(file: Path, reason: object) -> DataError:
    """The error for a file that is damaged or may not be read."""
    return DataError(f"{file} cannot be read ({reason}): repair it, or leave it out of --dataset_dir.")


class TextFiles:
    """Opens text, packed or not, and counts the bytes that are not UTF-8 instead of failing on them."""

    def __init__(self) -> None:
        self.bad_bytes = 0
        self.told = False

    def read(self, files: list[Path], split_up: Callable[[Path, TextIO], Iterator[str | None]]) -> Iterator[str | None]:
        """What `split_up` makes of each open file, mended; at the end one line tells of what was replaced."""
        self.bad_bytes = 0
        try:
            for file in files:
                with reading(file), _open(file) as handle:
                    for text in split_up(file, handle):
                        if text is not None:
                            text, count = NOT_UTF8.subn("\ufffd", text)
                            self.bad_bytes += count
                        yield text
        finally:
            if self.bad_bytes and not self.told:  # the files are read twice when a tokenizer is trained first
                notice(f"{self.bad_bytes:,} bytes of the text are not UTF-8 and were replaced by \ufffd.")
                self.told = True


class RecordFiles(Source):
    """Text files of records, of which one field is a document each."""

    endings: tuple[str, ...]
    text_flag = "text_field"

    def __init__(self, settings: Data) -> None:
        self.files = find_files(settings, self.endings)
        self.field = settings.text_field
        self.texts = TextFiles()

    def key(self) -> str:
        return f"{self.field} {files_key(self.files)}"

    def documents(self, split: str) -> Iterator[str | None]:
        return self.texts.read(self.files, self.texts_of)

    @abstractmethod
    def texts_of(self, file: Path, handle: TextIO) -> Iterator[str | None]:
        """The documents of an open file; None for a record without text."""


def _open(file: Path) -> TextIO:
    if file.name.endswith(".gz"):
        return gzip.open(file, "rt", encoding="utf-8", errors="surrogateescape")
    return open(file, encoding="utf-8", errors="surrogateescape")
