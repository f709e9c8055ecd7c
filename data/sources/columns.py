"""What parquet and arrow share: tables whose --text_field column holds the documents."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from config.settings import Data
from data.errors import DataError
from data.sources.files import find_files, missing_field, reading, unreadable
from data.sources.source import Source, files_key

if TYPE_CHECKING:
    import pyarrow


class TableSource(Source):
    """Each row is a document."""

    text_flag = "text_field"

    endings: tuple[str, ...]

    def __init__(self, settings: Data) -> None:
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
                with reading(file):
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
            raise DataError(
                f"--text_field is {self.field!r}: in {file} it holds {kind} instead of text; "
                "choose a field that holds text."
            )
