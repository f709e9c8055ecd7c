"""Rows: every token but the first is a target exactly once, and nothing else is."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.language.rows import PackedRows
from data.stream import EMPTY_ROW
from tests.data.in_memory import make_split

PAD = 257


def rows_of(length: int, context_length: int) -> PackedRows:
    return PackedRows(make_split(np.arange(length) % 256), context_length, PAD)


@given(length=st.integers(0, 200), context_length=st.integers(1, 50))
def test_targets_are_the_stream_without_its_first_token(length: int, context_length: int) -> None:
    rows = rows_of(length, context_length)
    everything = rows.__getitems__(list(range(len(rows))))["input_ids"]
    targets = everything[:, 1:].flatten()
    assert everything.shape == (len(rows), context_length + 1)
    assert targets[targets != PAD].tolist() == rows.tokens[1:].tolist()
    assert rows.num_units == (targets != PAD).sum()


@given(length=st.integers(2, 200), context_length=st.integers(1, 50))
def test_a_row_begins_with_the_last_token_of_the_row_before(length: int, context_length: int) -> None:
    rows = rows_of(length, context_length)
    everything = rows.__getitems__(list(range(len(rows))))["input_ids"]
    assert torch.equal(everything[1:, 0], everything[:-1, -1])


@pytest.mark.parametrize("length", [0, 1])
def test_fewer_than_two_tokens_are_no_row(length: int) -> None:
    rows = rows_of(length, 4)
    assert (len(rows), rows.num_units) == (0, 0)


@pytest.mark.parametrize(("length", "count"), [(2, 1), (5, 1), (6, 2), (9, 2), (10, 3)])
def test_number_of_rows(length: int, count: int) -> None:
    assert len(rows_of(length, 4)) == count


def test_any_order_with_repeats_and_the_last_row_padded() -> None:
    rows = rows_of(7, 4).__getitems__([1, 0, 1])["input_ids"]
    assert rows.tolist() == [[4, 5, 6, PAD, PAD], [0, 1, 2, 3, 4], [4, 5, 6, PAD, PAD]]
    assert rows.dtype == torch.int64


def test_the_empty_row_is_a_row_without_targets() -> None:
    assert rows_of(7, 4).__getitems__([EMPTY_ROW, 0])["input_ids"].tolist() == [[PAD] * 5, [0, 1, 2, 3, 4]]
    assert rows_of(9, 4).__getitems__([EMPTY_ROW])["input_ids"].tolist() == [[PAD] * 5]


@pytest.mark.parametrize("index", [2, -2])
def test_a_row_that_does_not_exist(index: int) -> None:
    with pytest.raises(IndexError, match="of 2 rows"):
        rows_of(7, 4).__getitems__([index])["input_ids"]


def test_counts_come_from_the_split() -> None:
    rows = PackedRows(make_split(np.array([256, 1, 2, 256, 3])), 4, PAD)
    assert (rows.num_documents, rows.num_bytes) == (2, 3)


@pytest.mark.parametrize("offset", [0, 64])
def test_a_mapped_file_travels_to_another_process_by_name(tmp_path: Path, offset: int) -> None:
    tokens = np.arange(100_000).astype(np.uint16) % 256
    path = tmp_path / "tokens.bin"
    path.write_bytes(bytes(offset) + tokens.tobytes())
    mapped = np.memmap(path, dtype=np.uint16, mode="r", offset=offset)
    rows = PackedRows(make_split(tokens), 100, PAD)
    rows.tokens = mapped
    sent = pickle.dumps(rows)
    assert len(sent) < 1000
    arrived = pickle.loads(sent)
    assert torch.equal(arrived.__getitems__([3, 999])["input_ids"], rows.__getitems__([3, 999])["input_ids"])
    assert arrived.num_units == rows.num_units


def test_a_part_of_a_mapped_file_travels_whole(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    path.write_bytes(np.arange(200).astype(np.uint16).tobytes())
    rows = PackedRows(make_split(np.zeros(50)), 10, PAD)
    rows.tokens = np.memmap(path, dtype=np.uint16, mode="r")[100:150]
    assert torch.equal(
        pickle.loads(pickle.dumps(rows)).__getitems__([0, 4])["input_ids"], rows.__getitems__([0, 4])["input_ids"]
    )


def test_units_of_a_batch_are_its_positions_and_those_of_rows_their_targets() -> None:
    rows = rows_of(7, 4)
    assert rows.units(rows.__getitems__([0, 1])) == 8 and rows.units_of([0, 1]) == rows.num_units == 6
