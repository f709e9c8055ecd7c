"""The files of the site: written anew only where a run changed, whole or not at all, with nothing a browser could run
in what people typed."""

from __future__ import annotations

import hashlib
import html
import importlib.util
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.files import write_atomically, write_text
from core.text import shown
from runs.index import Record, load
from runs.pages.curves import curves_of, read_columns
from runs.pages.details import details_of
from runs.pages.summary import differing, file_of, measured, row_of
from runs.reading import Run, all_runs
from runs.summary import Summary, summarise

ASSETS = Path(__file__).parent / "assets"
MAKERS = ("curves.py", "details.py", "summary.py", "assets/run.html")  # another version of them writes all pages anew
LONGEST_NAME = 200  # of a run folder that gets a page; file systems end at 255
ENDED = ("finished", "stopped", "cancelled", "diverged", "out of memory", "failed", "interrupted", "killed")


@dataclass
class Written:
    """What came of writing the site."""

    index: Path
    runs: int = 0
    rewritten: int = 0
    left: int = 0  # runs whose pages are older than they are, because there was no time


class Site:
    """logs/index.html, logs/compare.html, and in logs/pages/ a page and its data a run."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.pages = logs / "pages"
        self.data = self.pages / "data"
        self.records: dict[str, Record] = {}  # of the writing under way, when one was needed

    def write(
        self,
        first: Collection[str] = (),
        seconds: float = math.inf,
        every: float = 0.0,
        advance: Callable[[int], None] = lambda count: None,
    ) -> Written:
        """Bring the pages up to date: of the runs in `first` in any case, of the others while `seconds` last.

        every: seconds after which an open page looks for news; 0 is never. advance: told of each run done.
        """
        try:
            return self._write(first, time.monotonic() + seconds, every, advance)
        except OSError as error:
            raise UserError(
                f"--logs_dir is {shown(str(self.logs))}: the pages cannot be written there ({error.strerror}): "
                "choose a folder you can write to, or free some space."
            ) from error

    def _write(self, first: Collection[str], until: float, every: float, advance: Callable[[int], None]) -> Written:
        self.data.mkdir(parents=True, exist_ok=True)
        self.records = {}
        copy_assets(self.pages)
        written = Written(self.logs / "index.html")
        runs = list(all_runs(self.logs))
        rows: dict[str, dict[str, Any]] = {}
        for run in sorted(runs, key=lambda run: run.run_id not in first):
            row, fresh = self.update(run, run.run_id in first or time.monotonic() < until)
            rows[run.run_id] = row
            written.rewritten += fresh is True
            written.left += fresh is None
            advance(1)
        written.runs = len(rows)
        self.forget(rows)
        listed = [rows[run.run_id] for run in runs]
        settings = differing(listed)
        same = {
            name: value for name, value in (listed[0]["settings"] if listed else {}).items() if name not in settings
        }
        index = script("EBT.index", {"runs": public(listed, settings), "settings": settings, "shared": same})
        write_if_changed(self.pages / "runs.js", index)
        mark = hashlib.sha1(index.encode()).hexdigest()
        write_if_changed(self.pages / "live.js", f'EBT.pulse("{mark}", {every:g});\n')
        write_if_changed(self.logs / "index.html", template("index.html", base="pages/"))
        write_if_changed(self.logs / "compare.html", template("compare.html", base="pages/"))
        return written

    def update(self, run: Run, may_write: bool) -> tuple[dict[str, Any], bool | None]:
        """The run's row of the index, and whether its pages were rewritten; None: they should have been."""
        stamps = stamps_of(run.path)
        kept = self.kept(run.run_id)
        if kept.get("stamps") == stamps and kept["row"]["state"] in ENDED:
            return kept["row"], False
        file = file_of(run)
        same_metrics = bool(kept) and kept["stamps"].get("metrics.jsonl") == stamps.get("metrics.jsonl")
        if not may_write or len(file) > LONGEST_NAME:
            return {**row_of(run, kept.get("row", {})), "page": bool(kept)}, None
        if same_metrics:
            found = kept["row"]
        else:
            columns = read_columns(run.path / "metrics.jsonl")
            curves = script(f"EBT.curves[{quoted(file)}]", curves_of(columns, run.settings))
            write_if_changed(self.data / f"{run.run_id}.curves.js", curves)
            found = measured(columns)
        row = {**row_of(run, found), "page": True}
        if kept.get("stamps") == stamps and kept["row"] == row:
            return row, False
        try:
            told = details_of(run, self.words_about(run))
        except OSError:  # it was removed just now, or is not ours to read
            return {**row, "page": False}, None
        details = script(f"EBT.details[{quoted(file)}]", told)
        write_if_changed(self.data / f"{run.run_id}.js", details)
        page = template("run.html", base="", title=run.name, file=file)
        write_if_changed(self.pages / f"{run.run_id}.html", page)
        write_text(self.data / f"{run.run_id}.json", json.dumps({"stamps": stamps, "row": row}), sync=False)
        return row, True

    def words_about(self, run: Run) -> Summary | None:
        """What the other runs show about this one."""
        self.records = self.records or {record.run_id: record for record in load(self.logs)}
        record = self.records.get(run.run_id)
        return summarise(record, list(self.records.values())) if record else None

    def kept(self, run_id: str) -> dict[str, Any]:
        """What the last writing noted of a run; empty where it noted nothing that can be used."""
        try:
            found = json.loads((self.data / f"{run_id}.json").read_bytes())
            usable = found["stamps"][""] == version() and isinstance(found["row"]["state"], str)
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return found if usable else {}

    def forget(self, rows: Collection[str]) -> None:
        """Remove the pages of runs that are gone."""
        for note in self.data.glob("*.json"):
            if note.stem not in rows:
                for file in (f"{note.stem}.json", f"{note.stem}.js", f"{note.stem}.curves.js"):
                    (self.data / file).unlink(missing_ok=True)
                (self.pages / f"{note.stem}.html").unlink(missing_ok=True)


@cache
def version() -> str:
    """A mark of the code that makes a run's page."""
    content = b"".join((Path(__file__).parent / name).read_bytes() for name in MAKERS)
    return hashlib.sha1(content).hexdigest()[:12]


def stamps_of(path: Path) -> dict[str, Any]:
    """Size and time of every file at the top of a run folder: another stamp means another content."""
    found: dict[str, Any] = {"": version()}
    try:
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_file() and not entry.name.startswith("."):
                    status = entry.stat()
                    found[entry.name] = [status.st_size, status.st_mtime_ns]
    except OSError:
        pass
    return found


def public(rows: list[dict[str, Any]], settings: list[str]) -> list[dict[str, Any]]:
    """The rows without the settings that all runs share."""
    told = set(settings)
    return [
        {**row, "settings": {name: value for name, value in row["settings"].items() if name in told}} for row in rows
    ]


def script(target: str, value: Any) -> str:
    """A .js file that hands over a value: pages opened from a disk may load a script, but no JSON."""
    return f"{target} = {quoted(value)};\n"


def quoted(value: Any) -> str:
    """JSON in which no browser finds a tag, and no NaN."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(finite(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def finite(value: Any) -> Any:
    """The value with null for every number that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): finite(inner) for name, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def template(name: str, **texts: str) -> str:
    """A page of assets/ with its {{names}} filled in, escaped."""
    page = (ASSETS / name).read_text(encoding="utf-8")
    for key, text in texts.items():
        page = page.replace("{{" + key + "}}", html.escape(text))
    return page


def copy_assets(pages: Path) -> None:
    """The scripts and styles that all pages share, Plotly's among them, once."""
    (pages / "assets").mkdir(exist_ok=True)
    for asset in (*ASSETS.glob("*.js"), *ASSETS.glob("*.css")):
        write_if_changed(pages / "assets" / asset.name, asset.read_text(encoding="utf-8"))
    source, target = plotly_script(), pages / "plotly.min.js"
    if not target.exists() or target.stat().st_size != source.stat().st_size:
        with open(source, "rb") as script:
            write_atomically(target, lambda file: shutil.copyfileobj(script, file))


def plotly_script() -> Path:
    """plotly.min.js as the installed package carries it; found without importing it, which takes a second."""
    found = importlib.util.find_spec("plotly")
    for folder in (found.submodule_search_locations or []) if found else []:
        file = Path(folder) / "package_data" / "plotly.min.js"
        if file.is_file():
            return file
    raise UserError("plotly is not installed, and the pages draw with its script: pip install 'plotly>=6,<7'.")


def write_if_changed(path: Path, text: str) -> None:
    """Leave a file that already says so alone; browsers and backups then do, too."""
    content = text.encode(errors="replace")
    try:
        if path.stat().st_size == len(content) and path.read_bytes() == content:
            return
    except OSError:
        pass
    write_atomically(path, lambda file: file.write(content), sync=False)  # it can be written again
