"""Tokenizers: raw bytes, a byte-level BPE trained on the corpus, or one from Hugging Face."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from data.errors import DataError


class Tokenizer(Protocol):
    """Text to token ids and back. vocab_size counts every id, the separator and the pad included."""

    name: str
    vocab_size: int
    separator_id: int
    pad_id: int
    fingerprint: str

    def encode(self, text: str) -> np.ndarray: ...

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class ByteTokenizer:
    """One token per UTF-8 byte."""

    name = "bytes"
    vocab_size = 258
    separator_id = 256
    pad_id = 257
    fingerprint = "bytes"

    def encode(self, text: str) -> np.ndarray:
        return self.encode_bytes(text.encode("utf-8", "surrogatepass"))

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def encode_bytes(self, data: bytes) -> np.ndarray:
        return np.frombuffer(data, np.uint8).astype(np.uint16)

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes of the ids; separators and pads stand for no byte."""
        array = np.asarray(ids, np.int64)
        return array[array < 256].astype(np.uint8).tobytes()


def build_tokenizer(
    name: str, train_documents: Callable[[], Iterable[str]], cache_dir: Path | None = None
) -> Tokenizer:
    """The tokenizer that --tokenizer names."""
    if name == "bytes":
        return ByteTokenizer()
    raise DataError(f"--tokenizer is {name!r}: choose bytes, bpe:SIZE, or a Hugging Face name or folder.")


def load_tokenizer(name: str, fingerprint: str, cache_dir: Path) -> Tokenizer | None:
    """The tokenizer that made some tokens; None when it is gone or has become another one."""
    tokenizer = build_tokenizer(name, list, None)
    return tokenizer if tokenizer.fingerprint == fingerprint else None
