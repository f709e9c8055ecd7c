"""Tokenizers: raw bytes, a byte-level BPE trained on the corpus, or one from Hugging Face.

Text never becomes a separator or pad: what looks like a special token in a document is spelled out like other text.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from core.cpus import own_cpus
from core.errors import UserError
from core.files import write_text
from core.progress import print_note
from data.hub import first_line, hub_is_reachable, refusal
from data.language.cache import cache_errors

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedTokenizerBase

SMALLEST_BPE = 258  # 256 bytes, separator, pad
CHOICES = "choose bytes, bpe:SIZE, or a Hugging Face name or folder"
TOKENIZER_FILE = "tokenizer.json"  # in a run's folder
BPE_TRAINING_BYTES = 100_000_000  # merges hardly change with more text, and this fits in memory


class Tokenizer(Protocol):
    """Text to token ids and back. vocab_size counts every id, the separator and the pad included."""

    name: str
    vocab_size: int
    separator_id: int
    pad_id: int
    fingerprint: str

    def encode(self, text: str) -> np.ndarray: ...

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]: ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str: ...

    def save(self, folder: Path) -> dict[str, Any]:
        """Write it into a run's folder; `saved_tokenizer` reads it, and what is returned from data.json."""


class ByteTokenizer:
    """One token per UTF-8 byte."""

    name = "bytes"
    vocab_size = 258
    separator_id = 256
    pad_id = 257
    fingerprint = "bytes"

    def encode(self, text: str) -> np.ndarray:
        return self.encode_bytes(text.encode("utf-8", "replace"))

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def save(self, folder: Path) -> dict[str, Any]:
        return {"tokenizer": {"name": self.name, "fingerprint": self.fingerprint}}

    def encode_bytes(self, data: bytes) -> np.ndarray:
        return np.frombuffer(data, np.uint8).astype(np.uint16)

    def decode_bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """The bytes of the ids; separators and pads stand for no byte."""
        array = np.asarray(ids, np.int64)
        return array[array < 256].astype(np.uint8).tobytes()


class FastTokenizer:
    """A tokenizer of the `tokenizers` library, which encodes a batch on all cores.

    separator_id, pad_id: those of its own vocabulary, or None for an id appended after it.
    """

    def __init__(
        self,
        name: str,
        backend: tokenizers.Tokenizer,
        fingerprint: str = "",
        separator_id: int | None = None,
        pad_id: int | None = None,
    ) -> None:
        # set explicitly, or the library warns in every loader process that is forked later
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        os.environ.setdefault("RAYON_NUM_THREADS", str(own_cpus()))  # the library's own, read when it first encodes
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        self.name = name
        self.backend = backend
        ids = backend.get_vocab(with_added_tokens=True).values()
        self.vocab_size = max(ids) + 1
        self.separator_id = self._or_append(separator_id)
        # a pad that is also the separator would hide the ends of documents from the loss
        self.pad_id = self._or_append(None if pad_id == separator_id else pad_id)
        self.fingerprint = fingerprint or _hash(f"{self.separator_id} {self.pad_id} {backend.to_str()}".encode())

    def _or_append(self, token_id: int | None) -> int:
        if token_id is not None:
            return token_id
        self.vocab_size += 1
        return self.vocab_size - 1

    def encode(self, text: str) -> np.ndarray:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        text_ids = [int(token) for token in ids if token not in (self.separator_id, self.pad_id)]
        return self.backend.decode(text_ids, skip_special_tokens=False)

    def save(self, folder: Path) -> dict[str, Any]:
        stored = self.backend.to_str()
        write_text(folder / TOKENIZER_FILE, stored)
        names = {"name": self.name, "fingerprint": self.fingerprint}
        ids = {"separator_id": self.separator_id, "pad_id": self.pad_id}
        return {"tokenizer": {**names, **ids, "checksum": _hash(stored.encode())}}


def build_tokenizer(
    name: str, train_documents: Callable[[], Iterable[str]], cache_dir: Path | None = None
) -> Tokenizer:
    """The tokenizer that --tokenizer names; a BPE is trained on the training documents unless it is in the cache."""
    if name == "bytes":
        return ByteTokenizer()
    if name.partition(":")[0] == "bpe":
        return _build_bpe(name, train_documents(), cache_dir)
    return _load_pretrained(name)


def load_tokenizer(name: str, fingerprint: str, cache_dir: Path) -> Tokenizer | None:
    """The tokenizer that made some tokens; None when it is gone or has become another one."""
    if name.partition(":")[0] == "bpe":
        return _read_bpe(name, cache_dir, fingerprint)
    tokenizer = build_tokenizer(name, list)
    return tokenizer if tokenizer.fingerprint == fingerprint else None


def saved_tokenizer(run: Path, name: str) -> Tokenizer | None:
    """The tokenizer that a run's folder keeps, if it is the one that --tokenizer names.

    None, with a note, when its file is missing or damaged; runs of earlier versions have none.
    """
    try:
        record = json.loads((run / "data.json").read_bytes())["tokenizer"]
        if record["name"] != name:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if name == "bytes":
        return ByteTokenizer()
    file = run / TOKENIZER_FILE
    try:
        stored = file.read_bytes()
    except OSError as error:
        print_note(f"The tokenizer {file} cannot be read ({error.strerror}): looking for it elsewhere.")
        return None
    if _hash(stored) != record.get("checksum"):
        print_note(f"The tokenizer {file} is damaged: looking for it elsewhere.")
        return None
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_buffer(stored)
    size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
    separator, pad = (token if token < size else None for token in (record["separator_id"], record["pad_id"]))
    return FastTokenizer(name, backend, record["fingerprint"], separator, pad)


def _build_bpe(name: str, documents: Iterable[str], cache_dir: Path | None) -> Tokenizer:
    """A byte-level BPE of SIZE ids, or fewer where the text has no more pairs to merge."""
    size = name.partition(":")[2]
    if not (size.isascii() and size.isdigit() and int(size) >= SMALLEST_BPE):
        raise UserError(
            f"--tokenizer is {name!r}: after bpe: comes the number of tokens, {SMALLEST_BPE} or more "
            "(256 bytes, a separator and a pad), as in bpe:4096."
        )
    texts = list(_first_bytes(documents, BPE_TRAINING_BYTES))
    training = _hash(size.encode(), *(text.encode() for text in texts))
    if cache_dir:
        for file in sorted(cache_dir.glob(f"bpe-{training}-*.json")):
            if tokenizer := _read_bpe(name, cache_dir, file.stem):
                return tokenizer
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=int(size) - 2,  # separator and pad are appended, out of reach of any text
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=sys.stderr.isatty(),
    )
    backend.train_from_iterator(texts, trainer, length=len(texts))
    stored = backend.to_str()
    fingerprint = f"bpe-{training}-{_hash(stored.encode())}"
    if cache_dir:
        with cache_errors(cache_dir.parent):
            cache_dir.mkdir(parents=True, exist_ok=True)
            write_text(cache_dir / f"{fingerprint}.json", stored)
    return FastTokenizer(name, backend, fingerprint)


def _read_bpe(name: str, cache_dir: Path, fingerprint: str) -> Tokenizer | None:
    """A trained tokenizer of the cache; None when it is missing or, with a note, when it is damaged."""
    file = cache_dir / f"{fingerprint}.json"
    try:
        stored = file.read_bytes()
    except OSError:
        return None
    if not fingerprint.endswith(_hash(stored)):
        print_note(f"The tokenizer {file} is damaged: training it again.")
        return None
    from tokenizers import Tokenizer as Backend

    return FastTokenizer(name, Backend.from_buffer(stored), fingerprint)


def _load_pretrained(name: str) -> Tokenizer:
    """A tokenizer of Hugging Face: a local folder, the copy downloaded before, or the hub's, in this order."""
    folder = Path(name).expanduser()
    is_folder = folder.is_dir()
    if not is_folder and name.startswith(("/", "./", "../", "~")):
        raise UserError(f"--tokenizer is {name!r}: no such folder; {CHOICES}.")
    reachable = False
    try:
        try:
            pretrained = _from_pretrained(str(folder) if is_folder else name, local_files_only=True)
        except Exception:
            if is_folder or not (reachable := hub_is_reachable()):
                raise
            pretrained = _from_pretrained(name)
    except Exception as error:  # the library raises what it likes
        raise UserError(f"--tokenizer is {name!r}: {_why_not(error, name, is_folder, reachable)}.") from error
    backend = getattr(pretrained, "backend_tokenizer", None)
    if backend is None:
        raise UserError(f"--tokenizer is {name!r}: it has no fast version (tokenizer.json); {CHOICES}.")
    separator = pretrained.eos_token_id if pretrained.eos_token_id is not None else pretrained.bos_token_id
    return FastTokenizer(name, backend, separator_id=separator, pad_id=pretrained.pad_token_id)


def _from_pretrained(name: str, **options: bool) -> PreTrainedTokenizerBase:
    """What `transformers` has of that name; without any file of a tokenizer it would make one that knows no words."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name, **options)
    if len(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)) < 2:
        raise ValueError("it has none of the files of a tokenizer")
    return tokenizer


def _why_not(error: Exception, name: str, is_folder: bool, reachable: bool) -> str:
    """The end of the sentence: what is the matter with a tokenizer, and what to do."""
    if not isinstance(error, ImportError) and (model := _sentencepiece_file(name, is_folder, reachable)):
        return f"its {model} needs the package sentencepiece; install it with pip install sentencepiece"
    if is_folder:
        return f"that folder holds no tokenizer ({first_line(error)}); {CHOICES}"
    if not reachable:
        where = "it is no folder, was not downloaded before, and the Hugging Face hub cannot be reached"
        return f"{where}; set HF_HOME to a folder with a downloaded copy, or {CHOICES}"
    why = refusal(error, name, "model")
    reason = f"the hub's {name} holds no tokenizer ({first_line(error)})" if why.kind == "other" else why.reason
    return f"{reason}; {why.remedy or CHOICES}"


def _sentencepiece_file(name: str, is_folder: bool, reachable: bool) -> str | None:
    """The file that only sentencepiece reads, where that is missing; the library's own words speak of tiktoken."""
    if find_spec("sentencepiece") is not None:
        return None
    files: list[str] = []
    with suppress(Exception):
        if is_folder:
            files = [file.name for file in Path(name).expanduser().iterdir()]
        else:
            from huggingface_hub import HfApi, snapshot_download

            files = (
                HfApi().list_repo_files(name)
                if reachable
                else os.listdir(snapshot_download(name, local_files_only=True))
            )
    if "tokenizer.json" in files:
        return None
    return next((file for file in sorted(files) if file.endswith(".model")), None)


def _first_bytes(documents: Iterable[str], limit: int) -> Iterator[str]:
    for text in documents:
        if limit <= 0:
            return
        limit -= len(text.encode())
        yield text


def _hash(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
