"""Tokenizers give back what they were given, keep their special ids out of reach of text, and are trained once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import UserError
from data.language.tokenizers import ByteTokenizer, FastTokenizer, build_tokenizer, load_tokenizer, saved_tokenizer

TEXTS = ["the energy of the text", "the text of the energy", "energy, energy and text"] * 20


@pytest.fixture(scope="module")
def bpe() -> FastTokenizer:
    tokenizer = build_tokenizer("bpe:300", lambda: TEXTS)
    assert isinstance(tokenizer, FastTokenizer)
    return tokenizer


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def save_pretrained(folder: Path, **special: str) -> str:
    """A real folder of transformers, of words only."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[UNK]", "</s>", "<pad>", "the", "energy", "<", "/", "s", ">"]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()])
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", **special).save_pretrained(folder)
    return str(folder)


@given(st.binary())
def test_bytes_round_trip_of_any_bytes(data: bytes) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode_bytes(data)
    assert tokenizer.decode_bytes(ids) == data
    assert ids.dtype == np.uint16 and (ids < 256).all()


@given(st.text())
def test_bytes_round_trip_of_any_text(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bytes_specials() -> None:
    tokenizer = ByteTokenizer()
    assert (tokenizer.vocab_size, tokenizer.separator_id, tokenizer.pad_id) == (258, 256, 257)
    assert tokenizer.decode([256, 104, 105, 257, 257]) == "hi"


@given(text=st.text())
def test_bpe_round_trip_of_any_text(bpe: FastTokenizer, text: str) -> None:
    ids = bpe.encode(text)
    assert bpe.decode(ids) == text
    assert all(token < bpe.separator_id for token in ids)


def test_bpe_batch_equals_one_by_one(bpe: FastTokenizer) -> None:
    for text, ids in zip(TEXTS[:3], bpe.encode_batch(TEXTS[:3]), strict=True):
        assert ids.tolist() == bpe.encode(text).tolist()


def test_bpe_size_counts_the_specials_and_merges() -> None:
    tokenizer = build_tokenizer("bpe:262", lambda: TEXTS)
    assert tokenizer.vocab_size == 262
    assert (tokenizer.separator_id, tokenizer.pad_id) == (260, 261)
    assert len(tokenizer.encode("the energy")) < len("the energy")


def test_bpe_decode_leaves_specials_out(bpe: FastTokenizer) -> None:
    assert bpe.decode([bpe.separator_id, *bpe.encode("the text"), bpe.pad_id]) == "the text"


def test_bpe_is_trained_once(tmp_path: Path) -> None:
    first = build_tokenizer("bpe:300", lambda: TEXTS, tmp_path)
    (file,) = tmp_path.iterdir()
    written = file.stat().st_mtime_ns
    again = build_tokenizer("bpe:300", lambda: TEXTS, tmp_path)
    assert file.stat().st_mtime_ns == written
    assert again.fingerprint == first.fingerprint
    assert build_tokenizer("bpe:300", lambda: TEXTS[1:], tmp_path).fingerprint != first.fingerprint
    assert build_tokenizer("bpe:301", lambda: TEXTS, tmp_path).fingerprint != first.fingerprint


def test_bpe_training_is_deterministic() -> None:
    fingerprints = {build_tokenizer("bpe:300", lambda: TEXTS).fingerprint for _ in range(3)}
    assert len(fingerprints) == 1


def test_damaged_bpe_is_trained_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = build_tokenizer("bpe:300", lambda: TEXTS, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text()[:-10])
    assert load_tokenizer("bpe:300", first.fingerprint, tmp_path) is None
    assert "is damaged: training it again." in capsys.readouterr().err
    build_tokenizer("bpe:300", lambda: TEXTS, tmp_path)
    loaded = load_tokenizer("bpe:300", first.fingerprint, tmp_path)
    assert loaded is not None and loaded.encode("the text").tolist() == first.encode("the text").tolist()


@pytest.mark.parametrize("name", ["bpe:", "bpe", "bpe:12", "bpe:257", "bpe:many", "bpe:-300", "bpe:3e2", "bpe:²"])
def test_bad_bpe_size(name: str) -> None:
    with pytest.raises(UserError) as error:
        build_tokenizer(name, lambda: TEXTS)
    assert str(error.value) == (
        f"--tokenizer is {name!r}: after bpe: comes the number of tokens, 258 or more "
        "(256 bytes, a separator and a pad), as in bpe:4096."
    )


def test_pretrained_folder(tmp_path: Path) -> None:
    name = save_pretrained(tmp_path, eos_token="</s>", pad_token="<pad>")
    tokenizer = build_tokenizer(name, lambda: [])
    assert (tokenizer.separator_id, tokenizer.pad_id, tokenizer.vocab_size) == (1, 2, 9)
    assert tokenizer.encode("the energy").tolist() == [3, 4]
    again = load_tokenizer(name, tokenizer.fingerprint, tmp_path)
    assert again is not None and again.fingerprint == tokenizer.fingerprint
    assert load_tokenizer(name, "another", tmp_path) is None


def test_text_cannot_forge_a_separator(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(save_pretrained(tmp_path, eos_token="</s>"), lambda: [])
    assert tokenizer.encode("</s>").tolist() == [5, 6, 7, 8]


def test_missing_specials_are_appended(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(save_pretrained(tmp_path), lambda: [])
    assert (tokenizer.separator_id, tokenizer.pad_id, tokenizer.vocab_size) == (9, 10, 11)


def test_pad_is_never_the_separator(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(save_pretrained(tmp_path, eos_token="</s>", pad_token="</s>"), lambda: [])
    assert (tokenizer.separator_id, tokenizer.pad_id, tokenizer.vocab_size) == (1, 9, 10)


def test_unknown_name(no_hub: None) -> None:
    with pytest.raises(UserError) as error:
        build_tokenizer("nobody/nothing", lambda: [])
    assert str(error.value) == (
        "--tokenizer is 'nobody/nothing': it is no folder, was not downloaded before, and the Hugging Face hub cannot "
        "be reached; set HF_HOME to a folder with a downloaded copy, or choose bytes, bpe:SIZE, or a Hugging Face name "
        "or folder."
    )


def test_missing_folder() -> None:
    with pytest.raises(UserError, match=r"^--tokenizer is './nowhere': no such folder; choose bytes, bpe:SIZE, or"):
        build_tokenizer("./nowhere", lambda: [])


def test_folder_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"that folder holds no tokenizer \(.*\); choose bytes, bpe:SIZE, or"):
        build_tokenizer(str(tmp_path), lambda: [])


# ---- in a run's folder


def test_a_saved_tokenizer_is_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["bytes", "bpe:300", save_pretrained(tmp_path / "a"), save_pretrained(tmp_path / "b", eos_token="</s>")]
    for number, name in enumerate(names):
        folder = tmp_path / str(number)
        folder.mkdir()
        first = build_tokenizer(name, lambda: TEXTS)
        (folder / "data.json").write_text(json.dumps(first.save(folder)))
        again = saved_tokenizer(folder, name)
        assert again is not None and again.encode("the energy").tolist() == first.encode("the energy").tolist()
        for fact in ("name", "vocab_size", "separator_id", "pad_id", "fingerprint"):
            assert getattr(again, fact) == getattr(first, fact)
        assert saved_tokenizer(folder, "bpe:301") is None
    (folder / "tokenizer.json").write_text("{}")
    assert saved_tokenizer(folder, name) is None
    assert "is damaged: looking for it elsewhere." in capsys.readouterr().err
    (folder / "tokenizer.json").unlink()
    assert saved_tokenizer(folder, name) is None
    assert "cannot be read (No such file or directory)" in capsys.readouterr().err
