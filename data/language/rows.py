"""Cuts a split's token stream into rows of equal length, without copying the stream."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from data.language.cache import Split
from data.language.tokenizers import Tokenizer
from data.module import Batch, DataModule, Finding, Rows, Scan
from data.stream import EMPTY_ROW

if TYPE_CHECKING:
    from data.language.build import TextSpec

FEW_TOKENS = 4  # a row of so few different tokens (padding, blanks, ruled lines) is likely to occur twice
COMPARABLE_BYTES = 128  # rows of less text repeat by chance: common phrases, indented code


class PackedRows(Rows):
    """Rows of a split: row r is stream[r*S : r*S+S+1], so that every token but the first is a target once.

    The last row is filled up with pad_id; the row with index EMPTY_ROW is all pad_id. num_units: targets.
    """

    unit = "tokens"
    source_flags = (
        "--dataset_name, --dataset_dir, --text_field, --max_documents, --tokenizer, "
        "--validation_split_pct and --test_split_pct"
    )
    more_rows = "a smaller --context_length, or more data"

    def __init__(self, split: Split, context_length: int, pad_id: int) -> None:
        self.tokens = split.tokens
        self.context_length = context_length
        self.pad_id = pad_id
        self.num_documents = split.num_documents
        self.num_bytes = split.num_bytes
        self.num_units = max(len(split.tokens) - 1, 0)
        self.identity = {"context_length": (context_length, "--context_length")}

    def __len__(self) -> int:
        return -(-self.num_units // self.context_length)

    def units(self, batch: Batch) -> int:
        return batch["input_ids"][:, 1:].numel()

    def units_of(self, indices: Sequence[int]) -> int:
        """How many targets these rows have."""
        return sum(min(self.context_length, self.num_units - index * self.context_length) for index in indices)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """input_ids: the rows of these indices, int64 [B, S+1]; one gather for the whole batch."""
        index = np.asarray(indices, dtype=np.int64)
        if index.size and (index.max() >= len(self) or index.min() < EMPTY_ROW):
            raise IndexError(f"row indices {index.min()} to {index.max()} of {len(self)} rows")
        length = self.context_length
        num_full = self.num_units // length
        rows = np.full((len(index), length + 1), self.pad_id, dtype=np.int64)
        full = (index >= 0) & (index < num_full)
        if full.any():
            rows[full] = sliding_window_view(self.tokens, length + 1)[::length][index[full]]
        rest = self.tokens[num_full * length :]
        rows[index == num_full, : len(rest)] = rest
        return {"input_ids": torch.from_numpy(rows)}

    def __getstate__(self) -> dict[str, Any]:
        """What a loader process that is not forked receives: the name of a mapped file, not its content."""
        state = self.__dict__.copy()
        tokens = self.tokens
        if isinstance(tokens, np.memmap) and isinstance(tokens.base, mmap.mmap):
            state["tokens"] = None
            state["mapped"] = (str(tokens.filename), tokens.dtype.str, tokens.offset, tokens.shape)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        mapped = state.pop("mapped", None)
        self.__dict__.update(state)
        if mapped:
            name, dtype, offset, shape = mapped
            self.tokens = np.memmap(name, dtype=dtype, mode="r", offset=offset, shape=shape)

    def describe(self) -> str:
        return f"rows of {self.context_length} tokens"

    def record(self) -> dict[str, int]:
        return {"documents": self.num_documents, "tokens": len(self.tokens)}

    def scan(self, batch: Batch, spec: TextSpec) -> dict[str, np.ndarray]:
        """padding: targets that are padding; is_wrong, wrong_id: whether an id is out of range, and the first such."""
        ids = batch["input_ids"].numpy()
        wrong = (ids < 0) | (ids >= spec.vocab_size)
        return {
            "comparable": (np.diff(np.sort(ids, axis=1), axis=1) != 0).sum(axis=1) + 1 > FEW_TOKENS,
            "padding": (ids[:, 1:] == spec.pad_id).sum(axis=1),
            "is_wrong": wrong.any(axis=1),
            "wrong_id": ids[np.arange(len(ids)), wrong.argmax(axis=1)],
        }

    def findings(self, data: DataModule, batch: Batch, scans: Mapping[str, Scan]) -> list[Finding]:
        shares = {name: self.pad_share(scan) for name, scan in scans.items()}
        return [
            check_batch(batch, (data.batch_size, self.context_length + 1)),
            check_range(scans, data.spec.vocab_size),
            check_padding(scans, shares),
        ]

    def columns(self, scan: Scan) -> dict[str, str]:
        counts = {"tokens": len(self.tokens), "documents": self.num_documents, "bytes": self.num_bytes}
        return {name: f"{count:,}" for name, count in counts.items()} | {"padding": f"{self.pad_share(scan):.1%}"}

    def pad_share(self, scan: Scan) -> float:
        """The share of the targets that are padding."""
        return int(scan.numbers["padding"].sum()) / max(scan.num_rows * self.context_length, 1)

    def row_text(self, index: int, processor: Tokenizer) -> str:
        """The text of a row, escaped."""
        ids, size = self.__getitems__([index])["input_ids"][0].tolist(), processor.vocab_size
        return repr(processor.decode([token for token in ids if 0 <= token < size and token != self.pad_id]))

    def repeats(self) -> tuple[str, bool]:
        row_bytes = self.context_length * self.num_bytes / max(len(self.tokens), 1)
        if row_bytes < COMPARABLE_BYTES:
            return f"rows of {row_bytes:.0f} bytes repeat by chance", True
        return "remove repeated documents", False


def check_batch(batch: Batch, expected: tuple[int, int]) -> Finding:
    ids = batch["input_ids"]
    if tuple(ids.shape) == expected and ids.dtype == torch.int64:
        return Finding("batch", "ok", f"shape {list(expected)}, torch.int64")
    return Finding("batch", "problem", f"shape {list(ids.shape)}, {ids.dtype} instead of {list(expected)}, torch.int64")


def check_range(scans: Mapping[str, Scan], vocab_size: int) -> Finding:
    for name, scan in scans.items():
        if scan.numbers["is_wrong"].any():
            row = int(scan.numbers["is_wrong"].argmax())
            text = f"row {row} of {name} holds {scan.numbers['wrong_id'][row]}, allowed is 0 to {vocab_size - 1}"
            remedy = "the cache does not belong to this --tokenizer: delete it, or use the one it was made with"
            return Finding("token ids", "problem", f"{text}; {remedy}")
    return Finding("token ids", "ok", f"all from 0 to {vocab_size - 1}")


def check_padding(scans: Mapping[str, Scan], shares: Mapping[str, float]) -> Finding:
    name, share = max(shares.items(), key=lambda item: item[1])
    text = f"at most {share:.1%} of the targets ({name})"
    # A split of a few rows has much padding in its last one, which costs nothing.
    if share > 0.1 and scans[name].num_rows > 10:
        return Finding("padding", "warning", f"{text}: a smaller --context_length wastes less")
    return Finding("padding", "ok", text)
