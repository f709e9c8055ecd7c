"""csv: tables as text, the first line naming the columns, the text in --text_field."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from data.errors import DataError
from data.sources.files import RecordFiles, missing_field

csv.field_size_limit(sys.maxsize)  # a field is a document here, and may be a book


class Csv(RecordFiles):
    """Each row is a document; columns are parted by what stands in the first line most: commas, semicolons or tabs."""

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
        place = names.index(self.field)
        rows = csv.reader(handle, delimiter=delimiter, strict=True)
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                raise _not_csv(file, rows.line_num + 1, error) from error
            if row:  # and not a blank line
                yield row[place] if place < len(row) else None


def _not_csv(file: Path, line: int, error: csv.Error) -> DataError:
    return DataError(
        f"{file}:{line} is not CSV ({error}): put text that holds commas, quotes or line ends into quotes."
    )
