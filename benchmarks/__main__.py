"""`make bench`: all measurements as one table, on the screen and in logs/bench.md."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import loader, model, start

PARTS = {"start": start, "loader": loader, "model": model}


def main(words: list[str]) -> int:
    unknown = set(words) - PARTS.keys()
    if unknown:
        print(f"{', '.join(sorted(unknown))}: choose {', '.join(PARTS)}, or nothing for all.", file=sys.stderr)
        return 2
    rows = []
    for name in words or PARTS:
        print(f"measuring {name} …", file=sys.stderr)
        rows += PARTS[name].run()
    by_name = {row["name"]: row["value"] for row in rows}
    if {"loader, --num_workers 0", "rate of default model"} <= by_name.keys():
        ratio = by_name["loader, --num_workers 0"] / by_name["rate of default model"]
        rows.append(
            {
                "name": "loader against default model",
                "value": ratio,
                "unit": "x",
                "note": "tokens loaded per token trained on",
            }
        )
    table = Table(
        box=box.SIMPLE_HEAD, title=f"{platform.processor() or platform.machine()}, Python {platform.python_version()}"
    )
    for heading in ("what", "value", "unit", "how"):
        table.add_column(heading, justify="right" if heading == "value" else "left")
    lines = ["| what | value | unit | how |", "|---|---:|---|---|"]
    for row in rows:
        cells = (
            row["name"],
            f"{row['value']:,.4g}" if row["value"] < 1000 else f"{row['value']:,.0f}",
            row["unit"],
            row["note"],
        )
        table.add_row(*cells)
        lines.append("| " + " | ".join(cells) + " |")
    Console().print(table)
    path = Path("logs/bench.md")
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    print(f"also in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
