"""All runs at a glance: what their folders say, kept in logs/index.sqlite so that ten thousand of them answer at once.

The folders are the truth. A run whose files changed is read again, its metrics from where they were read to before; a
database that is missing, damaged, locked or not ours to write costs time and a line, nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from runs.comparing import rehearsal_of
from runs.database import Database, Row
from runs.expressions import Expression
from runs.measured import Measured, measure
from runs.reading import Run, number, run_names

FILE = "index.sqlite"
TOGETHER = 500  # runs that are written at once
SETTLED = 2.0  # seconds: a second change within the resolution of a file system's clock would not be seen
SLOW = 1.0  # seconds of reading after which a person is told how far it is
# Files that grow, or are edited in place. All others are replaced or added, which changes the folder itself.
WATCHED = ("", "/config.json", "/attempts.jsonl", "/metrics.jsonl", "/journal.jsonl", "/tags.json")
MISSING = object()
Each = TypeVar("Each")


class Groups(dict[str, tuple[str, dict[str, Any]]]):
    """{id: (name, settings)} of every group of settings of any run, parsed when asked for."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts
        self.found: dict[str, dict[str, Any]] = {}  # {field: {id: value}}

    def __missing__(self, key: str) -> tuple[str, dict[str, Any]]:
        name, flags = json.loads(self.texts[key])
        self[key] = name, flags
        return self[key]

    def value(self, keys: list[str], field: str) -> Any:
        """A setting of the run that has these groups, or MISSING; groups without it are not even parsed."""
        found = self.found.setdefault(field, {})
        for key in keys:
            if key not in found:
                there = json.dumps(field) in self.texts[key]
                found[key] = self[key][1].get(field, MISSING) if there else MISSING
            if (value := found[key]) is not MISSING:
                return value
        return MISSING


class Record:
    """One run as far as it is known, parsed from its row when asked for.

    facts: name, state (None where time and the lock decide), began, attempts, tags, archived, parent, note, problems.
    groups: the settings, a group at a time; not to be changed, since runs share them. last: the last value of every
    metric. best: {metric: [its best value, at which step]} of those of which a low or a high value is better.
    """

    facts: dict[str, Any]
    groups: list[tuple[str, dict[str, Any]]]
    last: dict[str, float]
    best: dict[str, tuple[float, int | None]]

    def __init__(self, runs: str, run_id: str, row: Row, known: Groups) -> None:
        self.runs = runs
        self.run_id = run_id
        self.row = row
        self.known = known

    def __getattr__(self, name: str) -> Any:
        """Called once for each of them, and so faster over ten thousand runs than a cached_property."""
        if name == "groups":
            known = self.known
            self.groups = [known[key] for key in self.row.groups.split()]
            return self.groups
        if name not in ("facts", "last", "best"):
            raise AttributeError(name)
        found = json.loads(getattr(self.row, name))
        setattr(self, name, found)
        return found

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

    @cached_property
    def run(self) -> Run:
        """The folder itself, for what the index does not keep."""
        return Run(self.path)

    @cached_property
    def state(self) -> str:
        return str(self.facts["state"] or self.run.state)

    @property
    def is_archived(self) -> bool:
        """Asked of every run, so the facts are not parsed for it; in a text of theirs the quotes would be escaped."""
        return '"archived": true' in self.row.facts

    @property
    def name(self) -> str:
        return str(self.facts["name"])

    @property
    def began(self) -> float:
        return float(self.facts["began"])

    def value(self, field: str) -> Any:
        """What --where, --sort and --columns call `field`; None where the run has none."""
        if field in FIELDS:
            return FIELDS[field](self)
        if field.startswith("best."):
            return self.best.get(field[len("best.") :], (None, None))[0]
        setting = self.known.value(self.row.groups.split(), field)
        return self.last.get(field) if setting is MISSING else setting


FIELDS: dict[str, Callable[[Record], Any]] = {
    "id": lambda record: record.run_id,
    "name": lambda record: record.name,
    "state": lambda record: record.state,
    "began": lambda record: clock(record.began),
    "attempts": lambda record: record.facts["attempts"],
    "tags": lambda record: record.facts["tags"],
    "archived": lambda record: record.is_archived,
    "parent": lambda record: record.facts["parent"],
    "note": lambda record: record.facts["note"],
    "rehearsal": lambda record: rehearsal_of(record.value),
}


def clock(seconds: float) -> str:
    """A time of day, so written that texts are ordered as times are."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "?"


def chosen(records: Iterable[Record], where: Expression | None, archived: bool = False) -> list[Record]:
    """The runs that fit; those put out of sight only if asked for."""
    return [
        record
        for record in records
        if (archived or not record.is_archived) and (where is None or where.fits(record.value))
    ]


def load(logs: Path) -> list[Record]:
    """Every run of a logs folder, the newest first, by an index that is brought up to date."""
    names = run_names(logs)
    with closing(Database(logs / FILE)) as database:
        rows, texts = database.read()
        fresh: dict[str, Row] = {}
        for name, marks in counted(stale(logs, names, rows), f"reading {logs}"):
            row, groups = read(logs / "runs" / name, marks if is_settled(marks) else "", rows.get(name))
            rows[name] = fresh[name] = row
            texts |= groups
            database.groups |= groups
            if len(fresh) == TOGETHER:
                database.write(fresh)
                fresh.clear()
        gone = rows.keys() - set(names)
        if fresh or gone:
            database.write(fresh, gone)
    known = Groups(texts)
    return [Record(f"{logs}/runs", name, rows[name], known) for name in names]


def stale(logs: Path, names: list[str], rows: dict[str, Row]) -> list[tuple[str, str]]:
    """The runs whose files changed since they were read, with their marks now."""
    found = []
    for name in names:
        before = rows[name].marks if name in rows else ""
        marks = marks_of(f"{logs}/runs/{name}", before)
        if marks != before:
            found.append((name, marks))
    return found


def marks_of(folder: str, before: str) -> str:
    """Times and sizes by which a change is seen; a file that was not in a folder which did not change is not there."""
    known = before.split(" ") if before else []
    marks: list[str] = []
    for place, name in enumerate(WATCHED):
        if known and not known[place] and marks and marks[0] == known[0]:
            marks.append("")
            continue
        try:
            found = os.stat(folder + name)
            marks.append(f"{found.st_mtime_ns}:{found.st_size}")
        except OSError:
            marks.append("")
    return " ".join(marks)


def is_settled(marks: str) -> bool:
    """Whether the last change is so long ago that the next one will have another time."""
    newest = max((int(mark.partition(":")[0]) for mark in marks.split()), default=0)
    return newest / 1e9 < time.time() - SETTLED


def counted(runs: Sequence[Each], doing: str) -> Iterator[Each]:
    """The same; a person who waits sees how far it is."""
    start, shown_at = time.monotonic(), 0.0
    bar = sys.stderr.isatty()
    for done, each in enumerate(runs):
        now = time.monotonic()
        if now - start > SLOW and now - shown_at > (0.2 if bar else 10.0):
            shown_at = now
            left = (now - start) / max(1, done) * (len(runs) - done)
            said = f"{doing}: {done:,} of {len(runs):,} runs, {left:.0f} s left"
            print(f"\r\x1b[K{said}" if bar else said, end="" if bar else "\n", file=sys.stderr, flush=True)
        yield each
    if bar and shown_at:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def read(path: Path, marks: str, before: Row | None) -> tuple[Row, dict[str, str]]:
    """A run's row by its folder, and the groups of settings that it names."""
    run = Run(path)
    groups: dict[str, str] = {}
    for group in run.config.items():
        text = json.dumps(group)
        groups[blake2b(text.encode(), digest_size=9).hexdigest()] = text
    measured = measure(path / "metrics.jsonl", measured_of(before) if before else None)
    ended = not run.attempts or "end" in run.attempts[-1]
    facts = {
        "name": run.name,
        "state": run.state if ended else None,
        "began": run.began,
        "attempts": len(run.attempts),
        "tags": run.tags,
        "archived": (path / "archived").exists(),  # is_archived looks for it as it is written here
        "parent": run.parent,
        "note": next((note.text.strip().split("\n")[0] for note in run.notes), None),
        "problems": problems_of(run, measured),
    }
    place, last, best = map(json.dumps, (measured[:-2], measured.last, measured.best))
    return Row(marks, json.dumps(facts), " ".join(groups), place, last, best), groups


def measured_of(row: Row) -> Measured | None:
    try:
        offset, guard, rows, damaged = json.loads(row.read)
        return Measured(offset, guard, rows, damaged, json.loads(row.last), json.loads(row.best))
    except (ValueError, TypeError):
        return None


def problems_of(run: Run, measured: Measured) -> list[str]:
    """What is missing or damaged in a run's folder, in words."""
    found = []
    if not run.config:
        missing = not (run.path / "config.json").exists()
        found.append("config.json is missing" if missing else "config.json cannot be read")
    if not run.attempts and measured.rows:
        found.append("attempts.jsonl is missing or cannot be read, so how it ended is not known")
    if not measured.rows and any(number(attempt.get("last_step"), 0.0) > 0 for attempt in run.attempts):
        found.append("metrics.jsonl is missing or cannot be read")
    if measured.damaged:
        lines = "a line" if measured.damaged == 1 else f"{measured.damaged} lines"
        found.append(f"{lines} of metrics.jsonl cannot be read")
    return found
