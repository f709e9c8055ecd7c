"""A table of results, for the screen and for a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table


@dataclass(frozen=True)
class Sheet:
    """Text in cells; `words` are the columns that hold no numbers."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[str] = frozenset()

    def table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, title=self.title, padding=(0, 1, 0, 0))
        for heading in self.headings:
            table.add_column(heading, justify="left" if heading in self.words else "right")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        rule = ["---" if heading in self.words else "---:" for heading in self.headings]
        lines = ["| " + " | ".join(cells) + " |" for cells in (self.headings, rule, *self.rows)]
        return "\n".join([self.title, "", *lines, ""])
