"""What the W&B client wrote into a `.wandb` file, read back: it ships no reader of its own.

The file is a header of 7 bytes and then LevelDB's log: blocks of 32 KiB holding chunks of a record, each with a
checksum, a length and a kind (1 whole, 2 first, 3 middle, 4 last).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER, BLOCK, CHUNK = 7, 32 * 1024, struct.Struct("<IHB")


def records(path: Path) -> Iterator[Any]:
    """The records in the order of writing; a cut end is left out."""
    from wandb.proto import wandb_internal_pb2

    message: Any = wandb_internal_pb2
    content, position, pending = path.read_bytes(), HEADER, b""
    while position + CHUNK.size <= len(content):
        left = BLOCK - position % BLOCK
        if left < CHUNK.size:
            position += left
            continue
        _, length, kind = CHUNK.unpack_from(content, position)
        position += CHUNK.size
        pending += content[position : position + length]
        position += length
        if kind in (1, 4) and position <= len(content):
            yield message.Record.FromString(pending)
            pending = b""


class WandbFile:
    """One piece: config, history (merged by step), summary, console, files, artifacts, exit code."""

    def __init__(self, path: Path) -> None:
        self.run_id = self.project = self.name = ""
        self.tags: list[str] = []
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        self.console = ""
        self.files: list[str] = []
        self.artifacts: list[Any] = []
        self.alerts: list[Any] = []
        self.preempting = False
        self.stats = 0
        self.exit_code: int | None = None
        for record in records(path):
            self.take(record)

    def take(self, record: Any) -> None:
        kind = record.WhichOneof("record_type")
        value: Any = getattr(record, kind or "num")
        if kind == "run":
            self.run_id, self.project, self.name = value.run_id, value.project, value.display_name
            self.tags = list(value.tags)
            self.config |= items(value.config.update)
        elif kind == "config":
            self.config |= items(value.update)
        elif kind == "summary":
            self.summary |= items(value.update)
        elif kind == "history":
            self.history.append(items(value.item))
        elif kind == "output_logger":
            self.console += value.line
        elif kind == "files":
            self.files += [file.path for file in value.files]
        elif kind == "artifact":
            self.artifacts.append(value)
        elif kind == "alert":
            self.alerts.append(value)
        elif kind == "preempting":
            self.preempting = True
        elif kind == "stats":
            self.stats += 1
        elif kind == "exit":
            self.exit_code = value.exit_code


def items(updates: Any) -> dict[str, Any]:
    """{name: value}; the name of a nested value is its path, joined by dots."""
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in updates}
