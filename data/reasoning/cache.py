"""The cache of drawn puzzles: one .npz file a request, written atomically, verified when read, shared by all runs."""

from __future__ import annotations

import fcntl
import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from core.files import write_atomically
from core.progress import print_note
from data.reasoning.puzzle import PuzzleSet

Sets = dict[str, PuzzleSet]


@lru_cache(maxsize=1)
def code_version() -> str:
    """Of everything that puzzles are drawn with: changed code never reads what older code drew."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def request_key(request: Mapping[str, Any]) -> str:
    """The name of what is asked for. request: plain values."""
    content = json.dumps({**request, "code": code_version()}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:24]


def fingerprint(sets: Sets) -> str:
    """Of the puzzles themselves, whatever code drew them."""
    digest = hashlib.sha256()
    for split, puzzles in sorted(sets.items()):
        for name, array in puzzles.arrays().items():
            digest.update(
                f"{split} {name} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes()
            )
    return digest.hexdigest()[:24]


def read_or_draw(folder: Path, request: Mapping[str, Any], draw: Callable[[], Sets]) -> Sets:
    """What the cache has for the request; else what `draw` gives, which is then in the cache.

    One process at a time draws a request. A folder that cannot be written costs time and nothing else.
    """
    path = folder / f"{request_key(request)}.npz"
    sets = _read(path)
    if sets is not None:
        return sets
    with _lock(path):
        sets = _read(path)  # another process may have drawn it meanwhile
        if sets is None:
            sets = draw()
            arrays = {f"{split}/{name}": array for split, part in sets.items() for name, array in part.arrays().items()}
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, lambda file: np.savez(file, **arrays), sync=False)  # type: ignore[arg-type]
            except OSError as error:
                print_note(
                    f"The puzzle cache {folder} cannot be written ({error.strerror or error}): the puzzles are drawn "
                    "again next time; free some space, or set EBT_CACHE to another folder."
                )
    return sets


def _read(path: Path) -> Sets | None:
    """The sets of a file; None when it is not there or, with a note, when it is damaged."""
    try:
        with np.load(path) as file:
            parts: dict[str, dict[str, np.ndarray]] = {}
            for key in file.files:
                split, name = key.split("/")
                parts.setdefault(split, {})[name] = file[key]  # the archive verifies its checksum
            return {split: PuzzleSet(**arrays) for split, arrays in parts.items()}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        print_note(f"The puzzle cache {path} is damaged ({error}): drawing the puzzles again.")
        return None


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one process at a time draw a request; the system frees the lock of a process that dies."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path.with_suffix(".lock"), "w")  # noqa: SIM115  # closed below; a failure to open is no error
    except OSError:
        yield  # a folder that cannot be written
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print_note("Another process is drawing the same puzzles: waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks: both draw the same, and the later rename wins
        yield
