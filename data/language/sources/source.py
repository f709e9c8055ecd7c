"""What a dataset has to offer: documents per split, and a key that changes when they change."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path

from config.settings import Text

SPLITS = ("train", "valid", "test")


class Source(ABC):
    """One dataset. `splits` names those of train, valid and test that it has itself; the others are cut from train."""

    splits: tuple[str, ...] = ("train",)
    reads_files = False  # those of --dataset_dir
    text_flag = ""  # that is wrong where no document has text
    warned = False  # about documents without text; all are read twice when a tokenizer is trained first

    def __init__(self, settings: Text) -> None:  # noqa: B027 (some need no settings)
        """Find the files, and refuse settings that cannot be; nothing is read yet."""

    @abstractmethod
    def key(self) -> str:
        """A cheap text that changes when the documents change; no document is read for it."""

    @abstractmethod
    def documents(self, split: str) -> Iterator[str | None]:
        """The documents of one of `splits`, always in the same order; None is a row without text."""

    def prepare(self) -> None:  # noqa: B027 (most have nothing to do)
        """Long work that comes before the first document, with its own progress bar; done once only."""

    def origin(self) -> dict[str, str]:
        """What a run's record says of where the documents came from, beyond the flags; known once they are read."""
        return {}

    def count(self, split: str) -> int | None:
        """How many documents to expect, for the progress bar; None when only reading would tell."""
        return None


def files_key(files: Iterable[Path | str]) -> str:
    """A hash of names, sizes and times of change."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        status = os.stat(file)
        digest.update(os.fsencode(file) + f"\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
