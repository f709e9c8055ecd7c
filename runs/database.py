"""logs/index.sqlite: what was read of every run, for the next time; it may be deleted whenever one likes."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from runs.lock import lack_of_locks

VERSION = 2  # of the tables and of what stands in them; another one is made anew
PATIENCE = 3.0  # seconds to wait for another process that writes
# Errors SQLITE_X… by which the file is whole, but somebody has it, or it is out of reach.
ELSEWHERE = ("BUSY", "LOCKED", "READONLY", "CANTOPEN", "IOERR", "PERM", "FULL", "PROTOCOL")
TABLES = """
CREATE TABLE runs (folder BLOB PRIMARY KEY, marks TEXT, facts TEXT, groups TEXT, read TEXT, last TEXT, best TEXT);
CREATE TABLE groups (id TEXT PRIMARY KEY, flags TEXT) WITHOUT ROWID;
"""


class Row(NamedTuple):
    """One run. marks: by which a change is seen. groups: ids of its groups of settings, which many runs share.

    The others are JSON; read, last and best are what was measured, parted so that each is parsed when needed.
    """

    marks: str
    facts: str
    groups: str
    read: str
    last: str
    best: str


class Database:
    """The file, as far as it can be used; whatever is wrong with it is told once and costs only time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.groups: dict[str, str] = {}  # to be written
        self.connection: sqlite3.Connection | None = None
        self.said = False

    def read(self) -> tuple[dict[str, Row], dict[str, str]]:
        """All rows by run, and the groups of settings; nothing where there is nothing to be read."""
        if not (self.path.parent / "runs").is_dir():  # no folder of runs, so no place for a file of ours
            return {}, {}
        if problem := lack_of_locks(self.path.parent):  # SQLite would wait for one until its patience ends
            self.tell(problem)
            return {}, {}
        try:
            return self.attempt()
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            if getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_").startswith(ELSEWHERE):
                self.tell(error)
                return {}, {}
            self.close()
            try:
                self.path.unlink()
                print(f"{self.path} was damaged: it is made again from the folders.", file=sys.stderr)
                return self.attempt()
            except (OSError, sqlite3.Error) as error:
                self.tell(error)
        return {}, {}

    def attempt(self) -> tuple[dict[str, Row], dict[str, str]]:
        self.connection = sqlite3.connect(self.path, timeout=PATIENCE)
        # No write-ahead log: its shared memory does not work between machines on a network file system.
        self.connection.execute("PRAGMA synchronous = NORMAL")
        if self.connection.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            self.connection.executescript(
                f"BEGIN; DROP TABLE IF EXISTS runs; DROP TABLE IF EXISTS groups; {TABLES}"
                f"PRAGMA user_version = {VERSION}; COMMIT;"
            )
        with self.connection:  # one view of both tables, while others write
            self.connection.execute("BEGIN")
            texts = dict(self.connection.execute("SELECT id, flags FROM groups"))
            found = self.connection.execute("SELECT folder, marks, facts, groups, read, last, best FROM runs")
            return {os.fsdecode(folder): Row(*row) for folder, *row in found}, texts

    def write(self, rows: dict[str, Row], gone: Iterable[str] = ()) -> None:
        if self.connection is None:
            return
        try:
            with self.connection:
                self.connection.executemany("INSERT OR IGNORE INTO groups VALUES (?, ?)", self.groups.items())
                self.connection.executemany(
                    "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)",
                    ((os.fsencode(name), *row) for name, row in rows.items()),
                )
                self.connection.executemany(
                    "DELETE FROM runs WHERE folder = ?", ((os.fsencode(name),) for name in gone)
                )
            self.groups.clear()
        except sqlite3.Error as error:
            self.tell(error)

    def tell(self, error: Exception) -> None:
        self.close()
        if not self.said:
            print(f"{self.path} cannot be used ({error}): reading the folders instead.", file=sys.stderr)
        self.said = True

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None
