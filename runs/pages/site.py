"""The files of the site: rewritten only where a run changed, atomically, with every typed text escaped."""

from __future__ import annotations

import hashlib
import html
import importlib.util
import json
import math
import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.files import write_atomically
from core.text import format_value
from runs.index import WATCHED, IndexedRun, Row, load, save_pages
from runs.pages.curves import curves_of, read_columns, spark
from runs.pages.run_page import details_of, differing, file_of, row_of, task_for_scripts
from runs.summary import summarise

ASSETS = Path(__file__).parent / "assets"
PAGE_SOURCES = ("curves.py", "run_page.py", "assets/run.html")  # a change of them rewrites all pages
MAX_NAME = 200  # of a run folder that gets a page; file systems end at 255


@dataclass
class WriteResult:
    """How many pages were written."""

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
        self.records: list[IndexedRun] = []  # of the writing under way
        self.memory: tuple[dict[str, Row], dict[str, str]] = ({}, {})  # in place of an index that cannot be used

    def write(
        self,
        first: Collection[str] = (),
        seconds: float = math.inf,
        every: float = 0.0,
        advance: Callable[[int], None] = lambda count: None,
    ) -> WriteResult:
        """Bring the pages up to date: of the runs in `first` in any case, of the others while `seconds` last.

        every: seconds after which an open page checks for changes; 0 is never. advance: called for each run.
        """
        try:
            return self._write(first, time.monotonic() + seconds, every, advance)
        except OSError as error:
            raise UserError(
                f"--logs_dir is {format_value(str(self.logs))}: the pages cannot be written there ({error.strerror}): "
                "choose a folder you can write to, or free some space."
            ) from error

    def _write(self, first: Collection[str], until: float, every: float, advance: Callable[[int], None]) -> WriteResult:
        self.data.mkdir(parents=True, exist_ok=True)
        copy_assets(self.pages)
        written = WriteResult(self.logs / "index.html")
        self.records = load(self.logs, self.memory)
        rows: dict[str, dict[str, Any]] = {}
        pages: dict[str, str] = {}
        for record in sorted(self.records, key=lambda record: record.run_id not in first):
            may_write = record.run_id in first or time.monotonic() < until
            page = self.update(record, may_write)
            written.rewritten += page.is_new
            written.left += page.is_old
            if page.is_new:
                pages[record.run_id] = page.text
            rows[record.run_id] = row_of(record, page.spark, page.exists)
            advance(1)
        save_pages(self.logs, pages)
        for name, text in pages.items():
            if name in self.memory[0]:
                self.memory[0][name] = self.memory[0][name]._replace(page=text)
        written.runs = len(rows)
        self.remove_stale(rows)
        listed = [rows[record.run_id] for record in self.records]
        settings = differing(listed)
        same = {
            name: value for name, value in (listed[0]["settings"] if listed else {}).items() if name not in settings
        }
        tasks = {
            record.task.name: record.task for record in sorted(self.records, key=lambda each: len(each.task.measures))
        }
        content = {
            "runs": without_shared(listed, settings),
            "tasks": {name: task_for_scripts(task) for name, task in tasks.items()},
            "settings": settings,
            "shared": same,
        }
        index = script("EBT.index", content)
        write_if_changed(self.pages / "runs.js", index)
        mark = hashlib.sha1(index.encode()).hexdigest()
        write_if_changed(self.pages / "live.js", f'EBT.pulse("{mark}", {every:g});\n')
        write_if_changed(self.logs / "index.html", template("index.html", base="pages/"))
        write_if_changed(self.logs / "compare.html", template("compare.html", base="pages/"))
        return written

    def update(self, record: IndexedRun, may_write: bool) -> CachedPage:
        """Write the page of a run where it changed."""
        cached = self.cached(record)
        if cached.stamps == record.stamps and cached.state == record.state:
            return cached
        file = file_of(record.run_id)
        if not may_write or len(file) > MAX_NAME:
            return replace(cached, is_old=True)
        run = record.run
        spark_line = cached.spark
        if not cached.exists or metrics_stamp(cached.stamps) != metrics_stamp(record.stamps):
            columns = read_columns(run.path / "metrics.jsonl")
            curves = curves_of(columns, record.settings, record.task, run.measure)
            write_if_changed(self.data / f"{record.run_id}.curves.js", script(f"EBT.curves[{quoted(file)}]", curves))
            spark_line = spark(columns, record.task)
        try:
            details = details_of(run, summarise(record, self.records), record.best)
        except OSError:  # it was removed just now, or is not ours to read
            return CachedPage(is_old=True)
        write_if_changed(self.data / f"{record.run_id}.js", script(f"EBT.details[{quoted(file)}]", details))
        page = template("run.html", base="", title=record.name, file=file)
        write_if_changed(self.pages / f"{record.run_id}.html", page)
        return CachedPage(record.stamps, record.state, spark_line, exists=True, is_new=True)

    def cached(self, record: IndexedRun) -> CachedPage:
        """The page as the last writing left it; an empty one where there is none of this version."""
        try:
            fields = json.loads(record.row.page)
            if fields["version"] == version() and (self.pages / f"{record.run_id}.html").exists():
                return CachedPage(fields["stamps"], fields["state"], fields["spark"], exists=True)
        except (ValueError, KeyError, TypeError):
            pass
        return CachedPage()

    def remove_stale(self, rows: Collection[str]) -> None:
        """Remove the pages of runs that are gone."""
        for page in self.pages.glob("*.html"):
            if page.stem not in rows:
                for file in (self.data / f"{page.stem}.js", self.data / f"{page.stem}.curves.js", page):
                    file.unlink(missing_ok=True)


@dataclass(frozen=True)
class CachedPage:
    """What is known of the page of a run, kept in the index. is_new: written just now; is_old: it should have been.

    stamps, state: of the run when its page was written. spark: the small curve in the list.
    """

    stamps: str = ""
    state: str = ""
    spark: list[float | None] = field(default_factory=list)
    exists: bool = False
    is_new: bool = False
    is_old: bool = False

    @property
    def text(self) -> str:
        return json.dumps({"version": version(), "stamps": self.stamps, "state": self.state, "spark": self.spark})


def metrics_stamp(stamps: str) -> str:
    return stamps.split(" ")[WATCHED.index("/metrics.jsonl")] if stamps else ""


@cache
def version() -> str:
    """A mark of the code that makes a run's page."""
    content = b"".join((Path(__file__).parent / name).read_bytes() for name in PAGE_SOURCES)
    return hashlib.sha1(content).hexdigest()[:12]


def without_shared(rows: list[dict[str, Any]], settings: list[str]) -> list[dict[str, Any]]:
    """The rows without the settings that all runs share."""
    names = set(settings)
    return [
        {**row, "settings": {name: value for name, value in row["settings"].items() if name in names}} for row in rows
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
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder) / "package_data" / "plotly.min.js"
        if file.is_file():
            return file
    raise UserError("plotly is not installed, and the pages draw with its script: pip install 'plotly>=6,<7'.")


def write_if_changed(path: Path, text: str) -> None:
    """Write a file unless it has this content already, so that browsers and backups see no change."""
    content = text.encode(errors="replace")
    try:
        if path.stat().st_size == len(content) and path.read_bytes() == content:
            return
    except OSError:
        pass
    write_atomically(path, lambda file: file.write(content), sync=False)  # it can be written again
