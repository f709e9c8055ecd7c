"""arrow: Arrow files as `datasets` saves them, or Feather files, the text in --text_field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from data.sources.columns import TableSource

if TYPE_CHECKING:
    import pyarrow

FILE_MAGIC = b"ARROW1"


class Arrow(TableSource):
    """Memory-mapped, one record batch at a time."""

    endings = (".arrow", ".feather")

    def columns(self, file: Path) -> Iterator[pyarrow.Array]:
        from pyarrow import ipc, memory_map

        with memory_map(str(file)) as handle:
            is_file_format = handle.read(len(FILE_MAGIC)) == FILE_MAGIC
            handle.seek(0)
            reader = ipc.open_file(handle) if is_file_format else ipc.open_stream(handle)
            self.check(file, reader.schema)
            batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file_format else reader
            for batch in batches:
                yield batch.column(self.field)
