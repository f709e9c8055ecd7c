"""The store: splits that cannot overlap, streams that are laid out as promised, on disk as in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.settings import Text
from core.errors import UserError
from data.language.sources import SPLITS, Source
from data.language.store import encode_task, open_store, read_documents, token_dtype
from data.language.tokenizers import ByteTokenizer
from tests.data.small import documents_of, write

pytestmark = pytest.mark.usefixtures("cache")


class Given(Source):
    """Documents of a test."""

    def __init__(self, **texts: list[str]) -> None:
        self.texts = texts
        self.splits = tuple(texts)

    def key(self) -> str:
        return repr(self.texts)

    def documents(self, split: str) -> Iterator[str]:
        return iter(self.texts[split])


# ---- streams and splits


def test_caches_of_earlier_versions_are_found_again(cache: Path) -> None:
    store = open_store(Text(dataset_name="synthetic", max_documents=50))
    assert store.fingerprint == "2729db79e3c981aed9f60c8463f93220"
    assert (cache / "requests" / "210bb404c6e96d84e10953386e1bbdf2").read_text() == store.fingerprint


def test_stream_layout(tmp_path: Path) -> None:
    store = open_store(write(tmp_path, ["ab", "é"], validation_split_pct=0.0, test_split_pct=0.0))
    train = store.splits["train"]
    assert train.tokens.tolist() == [256, 97, 98, 256, 0xC3, 0xA9]
    assert (train.tokens.dtype, train.num_documents, train.num_bytes) == (np.uint16, 2, 4)
    assert len(store.splits["valid"].tokens) == len(store.splits["test"].tokens) == 0
    assert isinstance(train.tokens, np.memmap) and store.path is not None


def test_every_document_is_in_exactly_one_split(settings: Text) -> None:
    store = open_store(settings)
    documents = [text for split in SPLITS for text in documents_of(store, split)]
    assert sorted(documents) == sorted(f"document {number} about energy" for number in range(400))
    for split in SPLITS:
        assert store.splits[split].num_documents == len(documents_of(store, split))
        assert store.splits[split].num_bytes == sum(map(len, documents_of(store, split)))
    assert 5 <= store.splits["valid"].num_documents <= 40 and 5 <= store.splits["test"].num_documents <= 40


@given(
    texts=st.lists(st.text(max_size=3)),
    held_out=st.lists(st.text(max_size=3)),
    shares=st.tuples(st.floats(0, 0.5), st.floats(0, 0.4)),
    seed=st.randoms(use_true_random=False),
)
def test_splits_are_disjoint_and_do_not_depend_on_order(
    texts: list[str], held_out: list[str], shares: tuple[float, float], seed: Any
) -> None:
    settings = Text(validation_split_pct=shares[0], test_split_pct=shares[1])
    texts = [*texts, "some text"]
    first = {(d.text, d.split) for d in read_documents(Given(train=texts, test=held_out), settings)}
    assert len({text for text, _ in first}) == len(first)
    not_blank = {text for text in held_out if text.strip(" \t\n\r\v\f")}
    assert {text for text, split in first if split == "test"} == not_blank
    shuffled = [*texts, *texts]
    seed.shuffle(shuffled)
    assert {(d.text, d.split) for d in read_documents(Given(train=shuffled, test=held_out), settings)} == first


def test_shares_are_as_asked() -> None:
    settings = Text(validation_split_pct=0.2, test_split_pct=0.3)
    splits = [d.split for d in read_documents(Given(train=[str(number) for number in range(5000)]), settings)]
    assert abs(splits.count("valid") / 5000 - 0.2) < 0.03
    assert abs(splits.count("test") / 5000 - 0.3) < 0.03


def test_native_splits_are_kept_and_win_over_train() -> None:
    source = Given(train=["a", "b", "c"], valid=["b", "d"], test=["c", "d"])
    placed = {d.text: d.split for d in read_documents(source, Text(validation_split_pct=0.4, test_split_pct=0.4))}
    assert placed == {"a": "train", "b": "valid", "c": "test", "d": "test"}


def test_lone_surrogates_do_not_stop_the_run(tmp_path: Path) -> None:
    store = open_store(write(tmp_path, ["a\ud800b"], validation_split_pct=0.0, test_split_pct=0.0))
    assert documents_of(store, "train") == ["a?b"]


def test_max_documents(settings: Text) -> None:
    store = open_store(replace(settings, max_documents=30))
    assert sum(split.num_documents for split in store.splits.values()) == 30
    assert store.fingerprint != open_store(settings).fingerprint


def test_large_vocabularies_take_four_bytes() -> None:
    class Large(ByteTokenizer):
        vocab_size = 65537
        separator_id = 65536

    assert token_dtype(Large()) == np.uint32
    Large.vocab_size = 65536
    assert token_dtype(Large()) == np.uint16
    Large.vocab_size = 65537
    count, streams = encode_task(Large(), [("train", "a"), ("test", "b"), ("train", "c")])
    assert count == 3 and streams["train"].dtype == np.uint32
    assert streams["train"].tolist() == [65536, 97, 65536, 99] and streams["test"].tolist() == [65536, 98]


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:270"])
def test_memory_holds_what_the_disk_holds(settings: Text, tokenizer: str, cache: Path) -> None:
    settings = replace(settings, tokenizer=tokenizer)
    in_memory = open_store(replace(settings, pretokenize_dataset=False))
    assert in_memory.path is None and not cache.exists()
    stored = open_store(settings)
    again = open_store(settings)
    for split in SPLITS:
        assert in_memory.splits[split].tokens.tolist() == stored.splits[split].tokens.tolist()
        assert again.splits[split].tokens.tolist() == stored.splits[split].tokens.tolist()
        with pytest.raises(ValueError):
            in_memory.splits[split].tokens[0] = 1
    assert in_memory.fingerprint == stored.fingerprint == again.fingerprint
    assert again.tokenizer.fingerprint == stored.tokenizer.fingerprint


def test_bpe_is_trained_on_the_train_split_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = write(tmp_path, [f"text {number}" for number in range(100)], tokenizer="bpe:260")
    seen: list[str] = []

    def build(name: str, documents: Callable[[], Iterator[str]], folder: Path | None) -> ByteTokenizer:
        seen.extend(documents())
        return ByteTokenizer()

    monkeypatch.setattr("data.language.store.build_tokenizer", build)
    store = open_store(replace(settings, pretokenize_dataset=False))
    assert seen == documents_of(store, "train")


# ---- what a person can get wrong


def test_nothing_to_train_on(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        open_store(write(tmp_path, ["word"], validation_split_pct=0.6, test_split_pct=0.39))
    assert str(error.value) == (
        "--dataset_name is 'jsonl': of its 1 documents, which are not cut, none is left to "
        "train on; give more documents or lower --validation_split_pct and --test_split_pct."
    )


def test_shares_that_leave_nothing(settings: Text) -> None:
    with pytest.raises(UserError) as error:
        open_store(replace(settings, validation_split_pct=0.6, test_split_pct=0.4))
    assert str(error.value) == (
        "--validation_split_pct is 0.6 and --test_split_pct is 0.4: their sum must stay below 1, "
        "so that documents are left to train on."
    )


def test_empty_held_out_split_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_store(write(tmp_path, ["one", "two"], validation_split_pct=0.001, test_split_pct=0.0))
    assert capsys.readouterr().err == (
        "--validation_split_pct is 0.001, but no document fell into the valid split: raise it or add documents.\n"
    )


def test_bad_tokenizer_is_told_before_any_text_is_read(settings: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "data.language.sources.local_files.JsonLines.documents", lambda *_: pytest.fail("read the text")
    )
    with pytest.raises(UserError, match=r"^--tokenizer is 'bpe:3': "):
        open_store(replace(settings, tokenizer="bpe:3"))
