"""jsonl: one JSON object per line, the text in --text_field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from data.errors import DataError
from data.sources.files import RecordFiles, missing_field


class JsonLines(RecordFiles):
    """Each line is a document."""

    endings = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")

    def texts_of(self, file: Path, handle: TextIO) -> Iterator[str | None]:
        for number, line in enumerate(handle, start=1):
            if not line.isspace():
                yield self._text(line, f"{file}:{number}")

    def _text(self, line: str, place: str) -> str | None:
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"{place} is not JSON ({error}): each line must be one JSON object.") from error
        if not isinstance(record, dict):
            raise DataError(f"{place} is a JSON {type(record).__name__}: each line must be one JSON object.")
        if self.field not in record:
            raise missing_field(place, self.field, record)
        if not isinstance(record[self.field], str | None):
            raise DataError(
                f"{place}: --text_field {self.field} holds {type(record[self.field]).__name__} instead of text; "
                "choose a field that holds text."
            )
        return record[self.field]
