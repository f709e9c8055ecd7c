"""parquet: Parquet files, the text in --text_field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from data.sources.columns import TableSource

if TYPE_CHECKING:
    import pyarrow


class Parquet(TableSource):
    """Read a thousand rows at a time."""

    endings = (".parquet",)

    def columns(self, file: Path) -> Iterator[pyarrow.Array]:
        from pyarrow.parquet import ParquetFile

        with ParquetFile(file) as table:
            self.check(file, table.schema_arrow)
            for batch in table.iter_batches(batch_size=1000, columns=[self.field]):
                yield batch.column(0)
