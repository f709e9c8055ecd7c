"""`make bench`: all measurements as tables, on the screen and in logs/bench.md."""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.sheet import Sheet

PARTS = (
    "start",
    "status",
    "sweep",
    "runs_list",
    "pages",
    "loader",
    "logging",
    "model",
    "load",
    "energy",
    "inference",
    "thinking",
    "learning",
)
WIDTH = 120  # of tables where the screen is not known


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; nothing for all")
    parser.add_argument("--full", action="store_true", help="energy: every point, which takes about two hours")
    options = parser.parse_args(words)
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        print(f"{', '.join(sorted(unknown))}: choose {', '.join(PARTS)}, or nothing for all.", file=sys.stderr)
        return 2
    rows: list[dict[str, Any]] = []
    sheets: list[Sheet] = []
    for name in options.parts or PARTS:
        print(f"measuring {name} …", file=sys.stderr)
        part: Any = importlib.import_module(f"benchmarks.{name}")  # torch is loaded here and not for --help
        for found in part.run(options.full) if name == "energy" else part.run():
            if isinstance(found, Sheet):
                sheets.append(found)
            else:
                rows.append(found)
    if rows:
        sheets.insert(0, sheet_of(rows))
    console = Console(width=max(Console().width, WIDTH))
    for sheet in sheets:
        console.print(sheet.table())
    path = Path("logs/bench.md")
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(sheet.markdown() for sheet in sheets))
    print(f"also in {path}")
    return 0


def sheet_of(rows: list[dict[str, Any]]) -> Sheet:
    """One line for each measurement of name, value, unit and note."""
    by_name = {row["name"]: row["value"] for row in rows}
    if {"loader, --num_workers 0", "rate of default model"} <= by_name.keys():
        ratio = by_name["loader, --num_workers 0"] / by_name["rate of default model"]
        note = "tokens loaded per token trained on"
        rows = [*rows, {"name": "loader against default model", "value": ratio, "unit": "x", "note": note}]
    title = f"{platform.processor() or platform.machine()}, Python {platform.python_version()}"
    cells = [(row["name"], number(row["value"]), row["unit"], row["note"]) for row in rows]
    return Sheet(title, ("what", "value", "unit", "how"), cells, frozenset({"what", "unit", "how"}))


def number(value: float) -> str:
    return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
