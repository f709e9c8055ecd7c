"""Datasets of local files that --dataset_dir names: text, jsonl, csv, parquet and arrow."""

from __future__ import annotations

import csv
import glob
import gzip
import json
import re
import sys
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from config.settings import Text
from core.errors import UserError
from core.progress import print_note
from data.language.sources.source import Source, files_key

if TYPE_CHECKING:
    import pyarrow

NOT_UTF8 = re.compile("[\udc80-\udcff]")  # what surrogateescape makes of a byte that is not UTF-8
TEXT_ENDINGS = (".txt", ".md", ".rst", ".txt.gz", ".md.gz", ".rst.gz")
LARGE_FILE = 1_000_000  # bytes
PIECE = (4_000, 100_000)  # fewest and most characters after which a large file is cut
ARROW_FILE_MAGIC = b"ARROW1"
csv.field_size_limit(sys.maxsize)  # a field is a document here, and may be a book


def find_files(settings: Text, endings: tuple[str, ...]) -> list[Path]:
    """The file itself, the files of a folder and its subfolders that have one of the endings, or those of a glob."""
    formats = ", ".join(endings)
    if settings.dataset_dir is None:
        raise UserError(
            f"--dataset_dir is missing: --dataset_name {settings.dataset_name} reads local files; "
            f"give a file, a folder or a glob ({formats})."
        )
    path = Path(settings.dataset_dir).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        files = [
            file
            for file in path.rglob("*")
            if file.name.endswith(endings)
            and file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        ]
    else:
        files = [Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file()]
        if not files and not glob.has_magic(str(path)):
            raise UserError(f"--dataset_dir is {settings.dataset_dir!r}: no such file or folder; check the path.")
    if not files:
        raise UserError(
            f"--dataset_dir is {settings.dataset_dir!r}: --dataset_name {settings.dataset_name} found no file there; "
            f"it looks for {formats}."
        )
    return sorted(files)


@contextmanager
def readable_file(file: Path) -> Iterator[None]:
    """Turn a file that cannot be read into one sentence."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(file, getattr(error, "strerror", None) or error) from error


def missing_field(location: object, field: str, fields: Iterable[str]) -> UserError:
    """The error for a record without the field that --text_field names; `fields` are those that it has."""
    names = ", ".join(sorted(fields)) or "none"
    return UserError(f"--text_field is {field!r}: {location} has no such field; it has {names}.")


def unreadable(file: Path, reason: object) -> UserError:
    """The error for a file that is damaged or may not be read."""
    return UserError(f"{file} cannot be read ({reason}): repair it, or leave it out of --dataset_dir.")


class TextFiles:
    """Opens text, packed or not, and counts the bytes that are not UTF-8 instead of failing on them."""

    def __init__(self) -> None:
        self.bad_bytes = 0
        self.warned = False

    def read(self, files: list[Path], split_up: Callable[[Path, TextIO], Iterator[str | None]]) -> Iterator[str | None]:
        """What `split_up` makes of each open file, with bad bytes replaced; a note at the end counts them."""
        self.bad_bytes = 0
        try:
            for file in files:
                with readable_file(file), _open(file) as handle:
                    for text in split_up(file, handle):
                        if text is not None:
                            text, count = NOT_UTF8.subn("\ufffd", text)
                            self.bad_bytes += count
                        yield text
        finally:
            if self.bad_bytes and not self.warned:  # the files are read twice when a tokenizer is trained first
                print_note(f"{self.bad_bytes:,} bytes of the text are not UTF-8 and were replaced by \ufffd.")
                self.warned = True


def _open(file: Path) -> TextIO:
    if file.name.endswith(".gz"):
        return gzip.open(file, "rt", encoding="utf-8", errors="surrogateescape")
    return open(file, encoding="utf-8", errors="surrogateescape")


class TextSource(Source):
    """Plain text: a file is a document.

    Large files, and a file that stands alone, are cut at blank lines, so that each split gets a part.
    """

    reads_files = True

    def __init__(self, settings: Text) -> None:
        self.files = find_files(settings, TEXT_ENDINGS)
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


class RecordFiles(Source):
    """Text files of records whose --text_field is a document each."""

    endings: tuple[str, ...]
    text_flag = "text_field"
    reads_files = True

    def __init__(self, settings: Text) -> None:
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


class JsonLines(RecordFiles):
    """One JSON object per line, each a document."""

    endings = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")

    def texts_of(self, file: Path, handle: TextIO) -> Iterator[str | None]:
        for number, line in enumerate(handle, start=1):
            if not line.isspace():
                yield self._text(line, f"{file}:{number}")

    def _text(self, line: str, location: str) -> str | None:
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise UserError(f"{location} is not JSON ({error}): each line must be one JSON object.") from error
        if not isinstance(record, dict):
            raise UserError(f"{location} is a JSON {type(record).__name__}: each line must be one JSON object.")
        if self.field not in record:
            raise missing_field(location, self.field, record)
        if not isinstance(record[self.field], str | None):
            raise UserError(
                f"{location}: --text_field {self.field} holds {type(record[self.field]).__name__} instead of text; "
                "choose a field that holds text."
            )
        return record[self.field]


class Csv(RecordFiles):
    """Tables as text, the first line naming the columns, each other row a document.

    The delimiter is the most frequent of comma, semicolon and tab in the first line.
    """

    endings = (".csv", ".tsv", ".csv.gz", ".tsv.gz")

    def texts_of(self, file: Path, handle: TextIO) -> Iterator[str | None]:
        first = handle.readline().removeprefix("\ufeff")
        if not first:
            return
        delimiter = max(",;\t", key=first.count)
        try:
            (names,) = csv.reader([first], delimiter=delimiter, strict=True)
        except csv.Error as error:
            raise _not_csv(file, 1, error) from error
        if self.field not in names:
            raise missing_field(file, self.field, names)
        column = names.index(self.field)
        rows = csv.reader(handle, delimiter=delimiter, strict=True)
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                raise _not_csv(file, rows.line_num + 1, error) from error
            if row:  # and not a blank line
                yield row[column] if column < len(row) else None


def _not_csv(file: Path, line: int, error: csv.Error) -> UserError:
    return UserError(
        f"{file}:{line} is not CSV ({error}): put text that holds commas, quotes or line ends into quotes."
    )


class TableSource(Source):
    """Tables whose --text_field column holds the documents."""

    text_flag = "text_field"
    reads_files = True

    endings: tuple[str, ...]

    def __init__(self, settings: Text) -> None:
        self.files = find_files(settings, self.endings)
        self.field = settings.text_field

    @abstractmethod
    def columns(self, file: Path) -> Iterator[pyarrow.Array]:
        """The text column of a file, part by part."""

    def key(self) -> str:
        return f"{self.field} {files_key(self.files)}"

    def documents(self, split: str) -> Iterator[str | None]:
        import pyarrow

        for file in self.files:
            try:
                with readable_file(file):
                    for column in self.columns(file):
                        yield from column.to_pylist()
            except pyarrow.ArrowException as error:
                raise unreadable(file, error) from error

    def check(self, file: Path, schema: pyarrow.Schema) -> None:
        """Raise unless the text column is there and holds text."""
        import pyarrow

        if self.field not in schema.names:
            raise missing_field(file, self.field, schema.names)
        kind = schema.field(self.field).type
        if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
            raise UserError(
                f"--text_field is {self.field!r}: in {file} it holds {kind} instead of text; "
                "choose a field that holds text."
            )


class Parquet(TableSource):
    """Parquet files, read a thousand rows at a time."""

    endings = (".parquet",)

    def columns(self, file: Path) -> Iterator[pyarrow.Array]:
        from pyarrow.parquet import ParquetFile

        with ParquetFile(file) as table:
            self.check(file, table.schema_arrow)
            for batch in table.iter_batches(batch_size=1000, columns=[self.field]):
                yield batch.column(0)


class Arrow(TableSource):
    """Arrow files as `datasets` saves them, or Feather files; memory-mapped, one record batch at a time."""

    endings = (".arrow", ".feather")

    def columns(self, file: Path) -> Iterator[pyarrow.Array]:
        from pyarrow import ipc, memory_map

        with memory_map(str(file)) as handle:
            is_file_format = handle.read(len(ARROW_FILE_MAGIC)) == ARROW_FILE_MAGIC
            handle.seek(0)
            reader = ipc.open_file(handle) if is_file_format else ipc.open_stream(handle)
            self.check(file, reader.schema)
            batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file_format else reader
            for batch in batches:
                yield batch.column(self.field)


DATASETS = {"text": TextSource, "jsonl": JsonLines, "csv": Csv, "parquet": Parquet, "arrow": Arrow}
