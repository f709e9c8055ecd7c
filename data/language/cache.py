"""The cache of token streams: written to a temporary folder and renamed, verified when read, shared by all runs.

- tokens/<content>/    train.bin, valid.bin, test.bin and meta.json of one dataset under one tokenizer
- requests/<request>   the content that a request (dataset, tokenizer, split settings) led to the last time
- tokenizers/          trained tokenizers
- locks/<request>      held by the process that builds it
- building/            unfinished
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from core.errors import UserError
from core.files import sync_folder, write_text
from core.progress import print_note
from data.language.sources.source import SPLITS


def cache_root() -> Path:
    """EBT_CACHE, else the ebt folder of the user's cache."""
    if folder := os.environ.get("EBT_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ebt"


@contextmanager
def cache_errors(root: Path) -> Iterator[None]:
    """Turn a full disk or a read-only folder into one sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"The token cache {root} cannot be written ({error.strerror or error}): free some space, set EBT_CACHE to "
            "another folder, or give --no-pretokenize_dataset to keep the tokens in memory."
        ) from error


@dataclass(frozen=True)
class Split:
    """One split. tokens: [N], uint16 or uint32, memory-mapped or in memory; num_bytes: UTF-8 bytes of its text."""

    tokens: np.ndarray
    num_documents: int
    num_bytes: int


@dataclass(frozen=True)
class Entry:
    """Finished tokens; tokenizer is the fingerprint of the one that made them, origin where their text came from."""

    content: str
    path: Path
    tokenizer: str
    splits: dict[str, Split]
    origin: dict[str, str]


class TokenCache:
    """Finds, builds and verifies entries below one root folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tokenizers = root / "tokenizers"
        self._warned: set[str] = set()

    def content_of(self, request: str) -> str | None:
        """The content that this request led to, if it was ever built."""
        try:
            return (self.root / "requests" / request).read_text().strip()
        except OSError:
            return None

    def read(self, content: str) -> Entry | None:
        """An entry, memory-mapped; None when it is not there or, with a note, when it is damaged."""
        path = self.root / "tokens" / content
        if not path.is_dir():
            return None
        try:
            meta = json.loads((path / "meta.json").read_text())
            splits = {name: _read_split(path / f"{name}.bin", meta["dtype"], meta["splits"][name]) for name in SPLITS}
            return Entry(content, path, meta["tokenizer"], splits, meta.get("origin", {}))
        except (OSError, ValueError, KeyError, TypeError) as error:
            if content not in self._warned:
                print_note(f"The token cache {path} is damaged ({error}): building it again.")
                self._warned.add(content)
            return None

    @contextmanager
    def lock(self, request: str) -> Iterator[None]:
        """Let one process at a time build a request; the system frees the lock of a process that dies."""
        with ExitStack() as stack:
            with cache_errors(self.root):
                path = self.root / "locks" / request
                path.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(open(path, "w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print_note("Another process is preparing the same tokens: waiting for it.")
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                pass  # a file system without locks: both build the same, and the rename in `commit` decides
            else:
                # only this machine's: on some clusters a lock does not reach beyond it
                for abandoned in self.root.glob(f"building/{request}.{os.uname().nodename}.*"):
                    shutil.rmtree(abandoned, ignore_errors=True)
            yield

    @contextmanager
    def building(self, request: str) -> Iterator[CacheWriter]:
        """A folder to write into; it is gone afterwards, whether it was committed or not."""
        with ExitStack() as stack:
            with cache_errors(self.root):
                parent = self.root / "building"
                parent.mkdir(parents=True, exist_ok=True)
                folder = Path(tempfile.mkdtemp(prefix=f"{request}.{os.uname().nodename}.", dir=parent))
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                files: dict[str, IO[bytes]] = {
                    split: stack.enter_context(open(folder / f"{split}.bin", "wb")) for split in SPLITS
                }
            # closing flushes, which fails again on a full disk; the first error is the one to show
            try:
                yield CacheWriter(self, request, folder, files)
            except BaseException:
                for file in files.values():
                    with suppress(OSError):
                        file.close()
                raise


@dataclass(frozen=True)
class CacheWriter:
    """An entry that is being written; `commit` makes it visible."""

    cache: TokenCache
    request: str
    folder: Path
    files: dict[str, IO[bytes]]

    def write(self, split: str, tokens: np.ndarray) -> None:
        with cache_errors(self.cache.root):
            self.files[split].write(tokens.data)

    def commit(
        self,
        content: str,
        tokenizer: str,
        dtype: np.dtype,
        counts: dict[str, tuple[int, int]],
        origin: dict[str, str],
    ) -> None:
        """Make the entry visible under its content, complete or not at all. counts: documents and bytes per split."""
        facts = {}
        with cache_errors(self.cache.root):
            for name, file in self.files.items():
                file.flush()
                os.fsync(file.fileno())
                file.close()
                tokens = _map(self.folder / f"{name}.bin", dtype.name)
                documents, size = counts[name]
                facts[name] = {
                    "documents": documents,
                    "bytes": size,
                    "tokens": len(tokens),
                    "checksum": checksum(tokens),
                }
            meta = {"tokenizer": tokenizer, "dtype": dtype.name, "splits": facts, "origin": origin}
            write_text(self.folder / "meta.json", json.dumps(meta, indent=1))
            self.folder.chmod(0o755)  # a cache may be shared, and temporary folders and files are private
            sync_folder(self.folder)
            target = self.cache.root / "tokens" / content
            target.parent.mkdir(exist_ok=True)
            self._rename(content, target)
            sync_folder(target.parent)
            requests = self.cache.root / "requests"
            requests.mkdir(exist_ok=True)
            write_text(requests / self.request, content)

    def _rename(self, content: str, target: Path) -> None:
        while True:
            try:
                os.rename(self.folder, target)
                return
            except OSError:
                if not target.is_dir():
                    raise
            if self.cache.read(content) is not None:
                return  # another process was first with the same content
            damaged = Path(tempfile.mkdtemp(prefix=f"{self.folder.name}.", dir=self.folder.parent))
            with suppress(FileNotFoundError):
                os.rename(target, damaged)  # onto an empty folder; processes that have it mapped keep it
            shutil.rmtree(damaged, ignore_errors=True)


def checksum(tokens: np.ndarray, whole_bytes: int = 2 << 30, end_bytes: int = 64 << 20) -> int:
    """CRC-32 of the tokens; of more than whole_bytes only of both ends, to keep starts quick."""
    data = tokens.view(np.uint8).data
    if len(data) <= whole_bytes:
        return zlib.crc32(data)
    return zlib.crc32(data[-end_bytes:], zlib.crc32(data[:end_bytes]))


def _read_split(path: Path, dtype: str, facts: dict[str, int]) -> Split:
    tokens = _map(path, dtype)
    if len(tokens) != facts["tokens"]:
        raise ValueError(f"{path.name} has {len(tokens):,} tokens instead of {facts['tokens']:,}")
    if checksum(tokens) != facts["checksum"]:
        raise ValueError(f"the checksum of {path.name} is wrong")
    return Split(tokens, facts["documents"], facts["bytes"])


def _map(path: Path, dtype: str) -> np.ndarray:
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(path, dtype, mode="r")
