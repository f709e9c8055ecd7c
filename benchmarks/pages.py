"""The pages: how large the page of a long run is, and how soon the list of many runs is there."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Measurement, seconds
from config import parse_command_line
from config.record import to_dict
from runs.pages.site import Site

ROWS = 1_000_000
RUNS = 1000
CHROMIUM = Path("/usr/bin/chromium")


def run() -> list[Measurement]:
    with tempfile.TemporaryDirectory() as folder:
        return [*one_long_run(Path(folder) / "long"), *many_runs(Path(folder) / "many")]


def one_long_run(logs: Path) -> list[Measurement]:
    run = make_run(logs, "long", ROWS)
    taken = seconds(lambda: Site(logs).write())
    files = [logs / "pages" / f"{run.name}.html", *(logs / "pages" / "data").glob("*.js")]
    size = sum(file.stat().st_size for file in files)
    note = f"{ROWS:,} rows of 20 numbers, {(run / 'metrics.jsonl').stat().st_size / 1e6:,.0f} MB"
    return [
        Measurement("page of a long run", size / 1e6, "MB", f"{note}; target 3"),
        Measurement("writing it", taken, "s", "once; again only when its metrics grow"),
    ]


def many_runs(logs: Path) -> list[Measurement]:
    first = make_run(logs, "many", 200)
    for number in range(1, RUNS):
        path = first.with_name(f"many_20260102-{number:06}_{number:06x}")
        shutil.copytree(first, path)
        text = (path / "config.json").read_text()
        (path / "config.json").write_text(text.replace('"seed": 0', f'"seed": {number % 7}'))
    site = Site(logs)
    first_time, again = seconds(site.write), seconds(site.write)
    opened, searched = opening(logs / "index.html")
    return [
        Measurement(f"pages of {RUNS:,} runs", first_time, "s", "all written"),
        Measurement("the same, nothing new", again, "s", "only looked through"),
        Measurement("opening their list", opened, "s", "Chromium, best of 3; target 2"),
        Measurement("searching and sorting it", searched, "s", "until the rows are drawn, best of 3"),
    ]


def make_run(logs: Path, name: str, rows: int) -> Path:
    """A run folder with so many rows of metrics."""
    path = logs / "runs" / f"{name}_20260102-030405_000000"
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(to_dict(parse_command_line(["--run_name", name]))))
    end = {"attempt": 1, "start": "2026-01-02T03:04:05+0000", "end": "2026-01-02T04:04:05+0000", "cause": "finished"}
    (path / "attempts.jsonl").write_text(json.dumps(end) + "\n")
    with open(path / "metrics.jsonl", "w") as file:
        file.writelines(lines(rows))
    return path


def lines(rows: int) -> Iterator[str]:
    names = ["train_loss", "valid_loss", "gradient_norm", "energy_first", "energy_last", "energy_gap", "step_size"]
    names += [f"measure_{number}" for number in range(7)]
    for step in range(rows):
        start = f'{{"step": {step}, "epoch": {step / rows}, "tokens": {64 * step}, "flops": {1e9 * step}, '
        value = 1 + 3 * math.exp(-5 * step / rows) + 0.1 * math.sin(step * 12.9898)
        rest = ", ".join(f'"{name}": {value * number}' for number, name in enumerate(names, 1))
        yield f'{start}"seconds": {0.1 * step}, "attempt": 1, {rest}}}\n'


def opening(page: Path) -> tuple[float, float]:
    """Seconds until a browser shows the list, and until it is searched and sorted; NaN where there is no browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return math.nan, math.nan
    if not CHROMIUM.exists():
        return math.nan, math.nan
    opened, worked = [], []
    painted = "new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        for _ in range(3):
            window = browser.new_page(viewport={"width": 1920, "height": 1080})
            start = time.perf_counter()
            window.goto(page.as_uri())
            window.wait_for_selector("tbody tr")
            window.evaluate(painted)
            opened.append(time.perf_counter() - start)
            start = time.perf_counter()
            window.fill("#search", "seed=3")
            window.click("th[data-key=best] button")
            window.evaluate(painted)
            worked.append(time.perf_counter() - start)
            window.close()
        browser.close()
    return min(opened), min(worked)
