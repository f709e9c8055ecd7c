"""All runs of a logs folder, cached in logs/index.sqlite so that ten thousand of them answer at once.

The folders are authoritative. A run whose files changed is read again, its metrics from where they were read to before.
A database that is missing, damaged, locked or not writable only costs time; it may be deleted.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from core.errors import UserError
from core.progress import progress
from core.text import format_time, format_value, plural
from runs.compare import rehearsal_of
from runs.lock import lack_of_locks
from runs.metrics import LANGUAGE_TASK, MetricSummary, TaskRecord, number_or, summarise_metrics, task_from_text
from runs.query import Expression
from runs.run import Run, find_run, run_names

FILE = "index.sqlite"
BATCH = 500  # runs that are written in one transaction
SETTLED_SECONDS = 2.0  # a file that changed within them may change again without another mtime
PROGRESS_SECONDS = 1.0  # of reading, after which a progress bar is shown
# Files that grow, or are edited in place. All others are replaced or added, which changes the folder itself.
WATCHED = (
    *("", "/config.json", "/attempts.jsonl", "/metrics.jsonl", "/journal.jsonl", "/tags.json", "/alarms.jsonl"),
    *("/samples.jsonl", "/console.log"),
)
MISSING = object()
Each = TypeVar("Each")
VERSION = 3  # of the tables and their content; a database of another version is made again
TIMEOUT_SECONDS = 3.0  # to wait for another process that writes the database
# Errors SQLITE_X… of a file that is not damaged, but locked or not reachable.
TRANSIENT_ERRORS = ("BUSY", "LOCKED", "READONLY", "CANTOPEN", "IOERR", "PERM", "FULL", "PROTOCOL")
TABLES = """
CREATE TABLE runs (folder BLOB PRIMARY KEY, stamps TEXT, facts TEXT, groups TEXT, task TEXT, read TEXT, last TEXT,
                   best TEXT, page TEXT);
CREATE TABLE texts (id TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID;
"""


class Row(NamedTuple):
    """One run in the database.

    stamps: mtime and size of its files, see `stamps_of`. groups, task: ids of texts that many runs share: its groups of
    settings and its task.json ("" where it has none). page: JSON of runs/pages/site.py.

    facts, read, last and best are JSON, apart so that each is parsed only when needed: facts as in `IndexedRun`; read
    is how far metrics.jsonl was read; last and best are the values of its columns (see `MetricSummary`).
    """

    stamps: str
    facts: str
    groups: str
    task: str
    read: str
    last: str
    best: str
    page: str = ""


class Database:
    """logs/index.sqlite. Any problem with it is printed once; then the folders are read instead."""

    def __init__(self, path: Path, timeout: float = TIMEOUT_SECONDS) -> None:
        self.path = path
        self.timeout = timeout
        self.texts: dict[str, str] = {}  # to be written
        self.connection: sqlite3.Connection | None = None
        self.has_warned = False

    def read(self) -> tuple[dict[str, Row], dict[str, str]]:
        """All rows by run, and the texts by id; empty where the database cannot be read."""
        if not (self.path.parent / "runs").is_dir():  # not a logs folder, so no file is made in it
            return {}, {}
        if problem := lack_of_locks(self.path.parent):  # SQLite would wait for one until its timeout
            self.give_up(problem)
            return {}, {}
        try:
            return self.open_and_read()
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            if getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_").startswith(TRANSIENT_ERRORS):
                self.give_up(error)
                return {}, {}
            self.close()
            try:
                self.path.unlink()
                print(f"{self.path} was damaged: it is made again from the folders.", file=sys.stderr)
                return self.open_and_read()
            except (OSError, sqlite3.Error) as error:
                self.give_up(error)
        return {}, {}

    def open(self) -> sqlite3.Connection:
        self.connection = sqlite3.connect(self.path, timeout=self.timeout)
        # No write-ahead log: its shared memory does not work between machines on a network file system.
        self.connection.execute("PRAGMA synchronous = NORMAL")
        if self.connection.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            self.connection.executescript(
                f"BEGIN; DROP TABLE IF EXISTS runs; DROP TABLE IF EXISTS groups; DROP TABLE IF EXISTS texts; {TABLES}"
                f"PRAGMA user_version = {VERSION}; COMMIT;"
            )
        return self.connection

    def open_and_read(self) -> tuple[dict[str, Row], dict[str, str]]:
        with self.open() as connection:  # one view of both tables, while others write
            connection.execute("BEGIN")
            texts = dict(connection.execute("SELECT id, text FROM texts"))
            rows = connection.execute(f"SELECT folder, {', '.join(Row._fields)} FROM runs")
            return {os.fsdecode(folder): Row(*row) for folder, *row in rows}, texts

    def write(self, rows: dict[str, Row], removed: Iterable[str] = ()) -> None:
        if self.connection is None:
            return
        try:
            with self.connection:
                self.connection.executemany("INSERT OR IGNORE INTO texts VALUES (?, ?)", self.texts.items())
                self.connection.executemany(
                    "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    ((os.fsencode(name), *row) for name, row in rows.items()),
                )
                self.connection.executemany(
                    "DELETE FROM runs WHERE folder = ?", ((os.fsencode(name),) for name in removed)
                )
            self.texts.clear()
        except sqlite3.Error as error:
            self.give_up(error)

    def write_pages(self, pages: dict[str, str]) -> None:
        """What the pages keep of runs, {run: page}."""
        if self.connection is None:
            return
        try:
            with self.connection:
                self.connection.executemany(
                    "UPDATE runs SET page = ? WHERE folder = ?",
                    ((page, os.fsencode(name)) for name, page in pages.items()),
                )
        except sqlite3.Error as error:
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        self.close()
        if not self.has_warned:
            print(f"{self.path} cannot be used ({error}): reading the folders instead.", file=sys.stderr)
        self.has_warned = True

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None


class Groups(dict[str, tuple[str, dict[str, Any]]]):
    """{id: (name, settings)} of every group of settings of any run, parsed when asked for."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts
        self.values_of: dict[str, dict[str, Any]] = {}  # {field: {id: value}}

    def __missing__(self, key: str) -> tuple[str, dict[str, Any]]:
        name, flags = json.loads(self.texts[key])
        self[key] = name, flags
        return self[key]

    def value(self, keys: list[str], field: str) -> Any:
        """A setting of the run that has these groups, or MISSING; groups without it are not even parsed."""
        values = self.values_of.setdefault(field, {})
        for key in keys:
            if key not in values:
                is_in_text = json.dumps(field) in self.texts[key]
                values[key] = self[key][1].get(field, MISSING) if is_in_text else MISSING
            if (value := values[key]) is not MISSING:
                return value
        return MISSING


class IndexedRun:
    """One run as the index has it, parsed lazily from its row.

    facts: name, state (None where time and the lock decide), cause, began, attempts, job, tags, archived, parent, note,
    notes, alarms, problems. stamps: of its files when it was loaded. groups: the settings, a group at a time; not to be
    changed, since runs share them. last: the last value of every metric. best: {metric: [its best value, its step]} of
    those of which a low or a high value is better.
    """

    facts: dict[str, Any]
    groups: list[tuple[str, dict[str, Any]]]
    last: dict[str, float]
    best: dict[str, tuple[float, int | None]]

    def __init__(self, runs: str, run_id: str, row: Row, stamps: str, shared: Groups) -> None:
        self.runs = runs
        self.run_id = run_id
        self.row = row
        self.stamps = stamps
        self.shared = shared

    def __getattr__(self, name: str) -> Any:
        """Parse an attribute when it is first read; over ten thousand runs this is faster than a cached_property."""
        if name == "groups":
            shared = self.shared
            self.groups = [shared[key] for key in self.row.groups.split()]
            return self.groups
        if name not in ("facts", "last", "best"):
            raise AttributeError(name)
        value = json.loads(getattr(self.row, name))
        setattr(self, name, value)
        return value

    @property
    def path(self) -> Path:
        return Path(self.runs, self.run_id)

    @cached_property
    def config(self) -> dict[str, dict[str, Any]]:
        """{group: {flag: value}}"""
        return dict(self.groups)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """{flag: value}"""
        return {name: value for _, flags in self.groups for name, value in flags.items()}

    @property
    def task(self) -> TaskRecord:
        return task_from_text(self.shared.texts[self.row.task]) if self.row.task else LANGUAGE_TASK

    @cached_property
    def run(self) -> Run:
        """The folder itself, for what the index does not keep."""
        return Run(self.path)

    @cached_property
    def state(self) -> str:
        return str(self.facts["state"] or self.run.state)

    @property
    def is_archived(self) -> bool:
        """Looked up in the JSON text, since it is needed of every run; inside a string the quotes would be escaped."""
        return '"archived": true' in self.row.facts

    @property
    def name(self) -> str:
        return str(self.facts["name"])

    @property
    def began(self) -> float:
        return float(self.facts["began"])

    def value(self, field: str) -> Any:
        """The value of a field of --where, --sort and --columns; None where the run has none."""
        if field in FIELDS:
            return FIELDS[field](self)
        if field.startswith("best."):
            return self.best.get(field[len("best.") :], (None, None))[0]
        setting = self.shared.value(self.row.groups.split(), field)
        return self.last.get(field) if setting is MISSING else setting


FIELDS: dict[str, Callable[[IndexedRun], Any]] = {
    "id": lambda record: record.run_id,
    "name": lambda record: record.name,
    "state": lambda record: record.state,
    "began": lambda record: format_time(record.began),
    "attempts": lambda record: record.facts["attempts"],
    "tags": lambda record: record.facts["tags"],
    "archived": lambda record: record.is_archived,
    "parent": lambda record: record.facts["parent"],
    "note": lambda record: record.facts["note"],
    "rehearsal": lambda record: rehearsal_of(record.value),
}


def select_runs(records: Iterable[IndexedRun], where: Expression | None, archived: bool = False) -> list[IndexedRun]:
    """The runs that fit; archived ones only if they are requested."""
    return [
        record
        for record in records
        if (archived or not record.is_archived) and (where is None or where.fits(record.value))
    ]


def load(
    logs: Path,
    memory: tuple[dict[str, Row], dict[str, str]] | None = None,
    settled_seconds: float = SETTLED_SECONDS,
    timeout: float = TIMEOUT_SECONDS,
) -> list[IndexedRun]:
    """Every run of a logs folder, the newest first; the index is brought up to date first.

    memory: rows and texts of the last call, for a process that calls this repeatedly where the database cannot be used.
    settled_seconds: a run whose files changed within them is read again next time. timeout: of a locked database.
    """
    names = run_names(logs)
    with closing(Database(logs / FILE, timeout)) as database:
        rows, texts = database.read()
        if database.connection is None and memory is not None:
            rows, texts = memory
        stamps = {name: stamps_of(f"{logs}/runs/{name}", rows[name].stamps if name in rows else "") for name in names}
        stale = [name for name in names if name not in rows or rows[name].stamps != stamps[name]]
        fresh: dict[str, Row] = {}
        for name in with_progress(stale, f"reading {logs}"):
            settled = stamps[name] if is_settled(stamps[name], settled_seconds) else ""
            rows[name], own = read(logs / "runs" / name, settled, rows.get(name))
            fresh[name] = rows[name]
            texts |= own
            database.texts |= own
            if len(fresh) == BATCH:
                database.write(fresh)
                fresh.clear()
        removed = rows.keys() - set(names)
        if fresh or removed:
            database.write(fresh, removed)
        for name in removed:
            del rows[name]
    groups = Groups(texts)
    return [IndexedRun(f"{logs}/runs", name, rows[name], stamps[name], groups) for name in names]


def find_record(logs: Path, name: str) -> tuple[IndexedRun, list[IndexedRun]]:
    """The run that a RUN argument names, and all runs of its logs folder."""
    path = find_run(logs, name).path
    home = path.resolve().parent.parent if path.resolve().parent.name == "runs" else None
    records = load(logs if home is None or home == logs.resolve() else home)
    if match := next((record for record in records if record.run_id == path.resolve().name), None):
        return match, records
    raise UserError(
        f"RUN is {format_value(name)}: it does not lie in a folder runs/, where runs are; give its id instead."
    )


def save_pages(logs: Path, pages: dict[str, str]) -> None:
    """Store what the pages know of these runs; where that fails, the pages are written again the next time."""
    if not pages or lack_of_locks(logs):
        return
    with closing(Database(logs / FILE)) as database, suppress(sqlite3.Error):
        database.open()
        database.write_pages(pages)


def stamps_of(folder: str, before: str) -> str:
    """mtime and size of each watched file, by which a change is seen.

    before: the stamps of the last time. A file that was missing is not looked for while its folder is unchanged.
    """
    earlier = before.split(" ") if before else []
    stamps: list[str] = []
    for index, name in enumerate(WATCHED):
        if earlier and not earlier[index] and stamps and stamps[0] == earlier[0]:
            stamps.append("")
            continue
        try:
            status = os.stat(folder + name)
            stamps.append(f"{status.st_mtime_ns}:{status.st_size}")
        except OSError:
            stamps.append("")
    return " ".join(stamps)


def is_settled(stamps: str, seconds: float) -> bool:
    """Whether the last change is more than `seconds` ago, so that the next one will have another mtime."""
    newest = max((int(stamp.partition(":")[0]) for stamp in stamps.split()), default=0)
    return newest / 1e9 < time.time() - seconds


def with_progress(items: Sequence[Each], title: str) -> Iterator[Each]:
    """The same items; after a second a progress bar is shown."""
    start = time.monotonic()
    advance: Callable[..., None] | None = None
    with ExitStack() as stack:
        for done, each in enumerate(items):
            if advance is None and time.monotonic() - start > PROGRESS_SECONDS:
                advance = stack.enter_context(progress(title, "runs", len(items)))
                advance(done)
            yield each
            if advance is not None:
                advance(1)


def read(path: Path, stamps: str, before: Row | None) -> tuple[Row, dict[str, str]]:
    """A run's row by its folder, and the texts that it names."""
    run = Run(path)
    groups = {text_id(text): text for text in map(json.dumps, run.config.items())}
    task = ""
    texts = dict(groups)
    if run.task is not LANGUAGE_TASK:
        task = text_id(run.task_text)
        texts[task] = run.task_text
    same_task = before is not None and before.task == task  # or the best values are of other columns
    summary = summarise_metrics(path / "metrics.jsonl", run.task, metric_summary_of(before) if same_task else None)
    last = run.attempts[-1] if run.attempts else {}
    facts = {
        "name": run.name,
        "state": run.state if not last or "end" in last else None,
        "cause": str(last.get("cause", "")),
        "began": run.began,
        "attempts": len(run.attempts),
        "job": run.job_name,
        "tags": run.tags,
        "archived": (path / "archived").exists(),  # is_archived looks for it as it is written here
        "parent": run.parent,
        "note": next((note.text.strip().split("\n")[0] for note in run.notes), None),
        "notes": len(run.notes),
        "alarms": len(run.rows("alarms.jsonl")),
        "problems": problems_of(run, summary),
    }
    offsets, numbers, best = map(json.dumps, (summary[:-2], summary.last, summary.best))
    page = before.page if before else ""
    return Row(stamps, json.dumps(facts), " ".join(groups), task, offsets, numbers, best, page), texts


def text_id(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=9).hexdigest()


def metric_summary_of(row: Row | None) -> MetricSummary | None:
    try:
        offset, checksum, rows, damaged = json.loads(row.read if row else "")
        return (
            MetricSummary(offset, checksum, rows, damaged, json.loads(row.last), json.loads(row.best)) if row else None
        )
    except (ValueError, TypeError):
        return None


def problems_of(run: Run, summary: MetricSummary) -> list[str]:
    """What is missing or damaged in a run's folder, in words."""
    problems = []
    if not run.config:
        missing = not (run.path / "config.json").exists()
        problems.append("config.json is missing" if missing else "config.json cannot be read")
    if not run.attempts and summary.rows:
        problems.append("attempts.jsonl is missing or cannot be read, so how it ended is not known")
    if not summary.rows and any(number_or(attempt.get("last_step"), 0.0) > 0 for attempt in run.attempts):
        problems.append("metrics.jsonl is missing or cannot be read")
    if summary.damaged:
        lines = "a line" if summary.damaged == 1 else plural(summary.damaged, "line")
        problems.append(f"{lines} of metrics.jsonl cannot be read")
    return problems
