"""Turns a dataset into one stream of tokens per split, on disk and memory-mapped, or in memory.

A document is a separator and then its tokens. Which split a document belongs to is decided by a hash of its text, so it
never depends on the order of reading, and two copies of one text can never stand on both sides; copies are dropped.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from config.settings import Text
from core.errors import UserError
from core.progress import print_note, progress
from data.language.cache import Split, TokenCache, cache_root
from data.language.sources import SPLITS, Source, find_source
from data.language.tokenizers import Tokenizer, build_tokenizer, load_tokenizer
from data.parallel import ordered_map

__all__ = ["Split", "TokenStore", "open_store", "read_documents", "token_dtype"]

FORMAT_VERSION = 2  # raise it when the same settings would give other tokens or another layout
TASK_BYTES = 1 << 20
READ_ORDER = ("test", "valid", "train")  # a text that is in several native splits stays in the held-out one


@dataclass(frozen=True)
class TokenStore:
    """All splits of a dataset under one tokenizer; `fingerprint` names the content, `path` is None in memory.

    origin: of documents that the flags do not name exactly, as those of a hub's `main`.
    """

    tokenizer: Tokenizer
    splits: dict[str, Split]
    fingerprint: str
    path: Path | None
    origin: dict[str, str] = field(default_factory=dict)


class Document(NamedTuple):
    """A text to store: its split, its hash, its size in bytes."""

    split: str
    text: str
    digest: bytes
    size: int


@dataclass
class SplitCounts:
    """What was written to one split."""

    documents: int = 0
    bytes: int = 0
    content: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=16))


def open_store(settings: Text, tokenizer: Tokenizer | None = None) -> TokenStore:
    """The tokens of the dataset: from the cache when they are there, else read, split and tokenised now.

    tokenizer: the one to use, where it is known already; else the one that --tokenizer names.
    """
    if settings.validation_split_pct + settings.test_split_pct >= 1:
        raise UserError(
            f"--validation_split_pct is {settings.validation_split_pct:g} and --test_split_pct is "
            f"{settings.test_split_pct:g}: their sum must stay below 1, so that documents are left to train on."
        )
    source = find_source(settings)
    if "train" not in source.splits:
        raise UserError(
            f"--dataset_name is {settings.dataset_name!r}: it has only a {source.splits[0]} split, to evaluate on; "
            "train on another, or give local files of it with --dataset_dir."
        )
    build = _open_cached if settings.pretokenize_dataset else _build_in_memory
    store = build(source, settings, tokenizer)
    for split, flag in (("valid", "validation_split_pct"), ("test", "test_split_pct")):
        share = getattr(settings, flag)
        if share and not store.splits[split].num_documents:
            print_note(
                f"--{flag} is {share:g}, but no document fell into the {split} split: raise it or add documents."
            )
    return store


def token_dtype(tokenizer: Tokenizer) -> np.dtype:
    """The smallest type that holds every id."""
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)


def _open_cached(source: Source, settings: Text, given: Tokenizer | None) -> TokenStore:
    cache = TokenCache(cache_root())
    request = _request_key(source, settings)
    store = _find_cached(cache, request, settings, given)
    if store is None and given is not None:  # --tokenizer may name another one now
        request = _hash(request, given.fingerprint)
        store = _find_cached(cache, request, settings, given)
    if store is None:
        with cache.lock(request):
            # another process may have built it while this one waited
            store = _find_cached(cache, request, settings, given)
            if store is None:
                _build_cached(cache, request, source, settings, given)
                store = _find_cached(cache, request, settings, given)
    assert store is not None
    return store


def _find_cached(cache: TokenCache, request: str, settings: Text, given: Tokenizer | None) -> TokenStore | None:
    """The stored tokens of a request, or None when they are missing, damaged or of another tokenizer than the given."""
    content = cache.content_of(request)
    entry = cache.read(content) if content else None
    if entry is None:
        return None
    tokenizer = given or load_tokenizer(settings.tokenizer, entry.tokenizer, cache.tokenizers)
    if tokenizer is None or tokenizer.fingerprint != entry.tokenizer:
        return None
    return TokenStore(tokenizer, entry.splits, entry.content, entry.path, entry.origin)


def _build_cached(cache: TokenCache, request: str, source: Source, settings: Text, tokenizer: Tokenizer | None) -> None:
    if tokenizer is None:
        tokenizer = build_tokenizer(settings.tokenizer, partial(_train_texts, source, settings), cache.tokenizers)
    with cache.building(request) as writer:
        counts_by_split = _tokenise(source, settings, tokenizer, writer.write)
        sizes = {name: (counts.documents, counts.bytes) for name, counts in counts_by_split.items()}
        content = _content_key(counts_by_split, tokenizer, settings)
        writer.commit(content, tokenizer.fingerprint, token_dtype(tokenizer), sizes, source.origin())


def _build_in_memory(source: Source, settings: Text, tokenizer: Tokenizer | None) -> TokenStore:
    if tokenizer is None:
        tokenizer = build_tokenizer(settings.tokenizer, partial(_train_texts, source, settings), None)
    buffers = {name: io.BytesIO() for name in SPLITS}
    counts_by_split = _tokenise(source, settings, tokenizer, lambda name, tokens: buffers[name].write(tokens.data))
    splits = {}
    for name, counts in counts_by_split.items():
        tokens = np.frombuffer(buffers[name].getbuffer(), token_dtype(tokenizer))
        tokens.flags.writeable = False  # as the memory-mapped ones are
        splits[name] = Split(tokens, counts.documents, counts.bytes)
    return TokenStore(tokenizer, splits, _content_key(counts_by_split, tokenizer, settings), None, source.origin())


def _request_key(source: Source, settings: Text) -> str:
    """What is known before any text is read."""
    return _hash(FORMAT_VERSION, settings.dataset_name, source.key(), settings.tokenizer, *_split_settings(settings))


def _content_key(counts_by_split: dict[str, SplitCounts], tokenizer: Tokenizer, settings: Text) -> str:
    """What the tokens are; the context length is not part of it, since rows are only views of the stream."""
    texts = [counts_by_split[name].content.hexdigest() for name in SPLITS]
    return _hash(FORMAT_VERSION, texts, tokenizer.fingerprint, *_split_settings(settings))


def _split_settings(settings: Text) -> tuple[float, float, int]:
    return settings.validation_split_pct, settings.test_split_pct, settings.max_documents


def _hash(*parts: object) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def read_documents(source: Source, settings: Text) -> Iterator[Document]:
    """Every document once, with its split; rows without text are skipped. --max_documents counts per native split."""
    missing = missing_shares(source, settings)
    seen: set[bytes] = set()
    rows = empty = 0
    for native in READ_ORDER:
        if native not in source.splits:
            continue
        for text in islice(source.documents(native), settings.max_documents or None):
            rows += 1
            data = (text or "").encode("utf-8", "replace")
            if data.isspace() or not data:
                empty += 1
                continue
            digest = digest_of(data)
            if digest in seen:
                continue
            seen.add(digest)
            split = split_of(digest, missing) if native == "train" else native
            yield Document(split, data.decode(), digest, len(data))
    if rows == empty:
        flag = (rows and source.text_flag) or ("dataset_dir" if settings.dataset_dir else "dataset_name")
        what = f"none of {rows:,} documents has any text" if rows else "it has no documents"
        raise UserError(f"--{flag} is {getattr(settings, flag)!r}: {what}; choose another that has.")
    if empty and not source.warned:
        source.warned = True
        print_note(f"{empty:,} of {rows:,} documents have no text and were skipped.")


def missing_shares(source: Source, settings: Text) -> dict[str, float]:
    """The splits that a dataset does not have itself, with the share of its training documents that each gets."""
    shares = {"test": settings.test_split_pct, "valid": settings.validation_split_pct}
    return {name: share for name, share in shares.items() if name not in source.splits}


def digest_of(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def split_of(digest: bytes, shares: dict[str, float]) -> str:
    """The split of a training document: the one into whose share its hash falls, as a number in [0, 1)."""
    number = int.from_bytes(digest[:8], "big") / 2**64
    for name, share in shares.items():
        if number < share:
            return name
        number -= share
    return "train"


def _train_texts(source: Source, settings: Text) -> Iterator[str]:
    source.prepare()
    yield from (document.text for document in read_documents(source, settings) if document.split == "train")


def _tokenise(
    source: Source, settings: Text, tokenizer: Tokenizer, write: Callable[[str, np.ndarray], object]
) -> dict[str, SplitCounts]:
    """Read, tokenise and write all documents, a few tasks at a time, so that memory does not grow with the data."""
    source.prepare()
    counts_by_split = {name: SplitCounts() for name in SPLITS}
    tasks = _tasks(read_documents(source, settings), counts_by_split)
    with progress("Tokenising", "documents", _expected(source, settings)) as advance:
        for count, streams in ordered_map(partial(encode_task, tokenizer), tasks, threads=2):
            for name, tokens in streams.items():
                write(name, tokens)
            advance(count)
    if not counts_by_split["train"].documents:
        total = sum(counts.documents for counts in counts_by_split.values())
        raise UserError(
            f"--dataset_name is {settings.dataset_name!r}: of its {total} documents, which are not cut, none is left "
            "to train on; give more documents or lower --validation_split_pct and --test_split_pct."
        )
    return counts_by_split


def _expected(source: Source, settings: Text) -> int | None:
    counts = [source.count(name) for name in source.splits]
    limit = settings.max_documents
    if None in counts:
        return None
    return sum(min(count, limit) if limit else count for count in counts if count is not None)


def _tasks(documents: Iterable[Document], counts_by_split: dict[str, SplitCounts]) -> Iterator[list[tuple[str, str]]]:
    """Lists of (split, text) of about TASK_BYTES, counted on the way."""
    task: list[tuple[str, str]] = []
    size = 0
    for document in documents:
        counts = counts_by_split[document.split]
        counts.documents += 1
        counts.bytes += document.size
        counts.content.update(document.digest)
        task.append((document.split, document.text))
        size += document.size
        if size >= TASK_BYTES:
            yield task
            task, size = [], 0
    if task:
        yield task


def encode_task(tokenizer: Tokenizer, task: list[tuple[str, str]]) -> tuple[int, dict[str, np.ndarray]]:
    """The number of documents and, per split, their tokens: [separator, document, separator, document, ...]."""
    separator = np.array([tokenizer.separator_id])
    parts: dict[str, list[np.ndarray]] = {}
    for (split, _), tokens in zip(task, tokenizer.encode_batch([text for _, text in task]), strict=True):
        parts.setdefault(split, []).extend((separator, tokens))
    dtype = token_dtype(tokenizer)
    return len(task), {split: np.concatenate(arrays, dtype=dtype, casting="unsafe") for split, arrays in parts.items()}
