"""Writing files atomically: a crash leaves the old content or the new one, never a part of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


def write_atomically(
    path: Path, write: Callable[[IO[bytes]], object], sync: bool = True, mode: int | None = None
) -> None:
    """Write to a temporary name beside `path`, then rename.

    sync: wait until it is on the disk; False for what can be written again. mode: permissions, the usual ones if None.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the folder's entries are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_symlink(link: Path, target: str) -> None:
    """Make `link` a symbolic link to `target`, atomically; an existing link is replaced."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, link)


def write_text(path: Path, text: str, sync: bool = True) -> None:
    write_atomically(path, lambda file: file.write(text.encode()), sync)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add one JSON object as one line, in one write; what a crash left half-written stays a separate line."""
    with open(path, "ab+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        start = b"" if file.read(1) in (b"", b"\n") else b"\n"
        file.write(start + json.dumps(row, ensure_ascii=False).encode() + b"\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole rows of a .jsonl file; what a crash left half-written is passed over."""
    return rows_of(path.read_bytes()) if path.exists() else []


def rows_of(content: bytes) -> list[dict[str, Any]]:
    """The JSON objects of a .jsonl text; lines that are not one are skipped."""
    try:
        lines: list[Any] = content.decode().split("\n")
    except UnicodeDecodeError:
        lines = content.split(b"\n")  # one by one, so that only those that are no text are lost
    rows = []
    for line in filter(None, lines):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
