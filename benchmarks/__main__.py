"""`make bench`: all measurements as tables, on the screen and in logs/bench.md."""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.measure import Measurement, Sheet

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
    "puzzles",
)
WIDTH = 120  # of tables, on a narrower screen too


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; nothing for all")
    parser.add_argument("--full", action="store_true", help="energy: every point, which takes about two hours")
    options = parser.parse_args(argv)
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        print(f"{', '.join(sorted(unknown))}: choose {', '.join(PARTS)}, or nothing for all.", file=sys.stderr)
        return 2
    measurements: list[Measurement] = []
    sheets: list[Sheet] = []
    for name in options.parts or [part for part in PARTS if part != "puzzles"]:  # learning has them
        print(f"measuring {name} …", file=sys.stderr)
        part: Any = importlib.import_module(f"benchmarks.{name}")  # torch is loaded here and not for --help
        for result in part.run(options.full) if name == "energy" else part.run():
            if isinstance(result, Sheet):
                sheets.append(result)
            else:
                measurements.append(result)
    if measurements:
        sheets.insert(0, sheet_of(measurements))
    console = Console(width=max(Console().width, WIDTH))
    for sheet in sheets:
        console.print(sheet.table())
    path = Path("logs/bench.md")
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(sheet.markdown() for sheet in sheets))
    print(f"also in {path}")
    return 0


def sheet_of(measurements: list[Measurement]) -> Sheet:
    """One line for each measurement."""
    values = {one.name: one.value for one in measurements}
    if {"loader, --num_workers 0", "rate of default model"} <= values.keys():
        ratio = values["loader, --num_workers 0"] / values["rate of default model"]
        note = "tokens loaded per token trained on"
        measurements = [*measurements, Measurement("loader against default model", ratio, "x", note)]
    title = f"{platform.processor() or platform.machine()}, Python {platform.python_version()}"
    cells = [(one.name, number(one.value), one.unit, one.note) for one in measurements]
    return Sheet(title, ("what", "value", "unit", "how"), cells, frozenset({"what", "unit", "how"}))


def number(value: float) -> str:
    return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
