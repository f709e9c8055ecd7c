"""Datasets of the hub: local files of the same fields through the same code, and a hub that is out of reach."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from config.settings import Text
from data.language.sources import HUB, dataset_names, find_source
from tests.data.reading import message, read, write_lines

ARC = {
    "id": "1",
    "question": "Which is hot?",
    "choices": {"text": ["ice", "fire"], "label": ["A", "B"]},
    "answerKey": "B",
}
SQUAD = {
    "id": "1",
    "title": "t",
    "context": "Rome is old.",
    "question": "What is old?",
    "answers": {"text": ["Rome"], "answer_start": [0]},
}
PLAN = {"task": "t", "instance_id": 1, "query": "Stack a on b.", "ground_truth_plan": "(stack a b)"}
EXAMPLES: list[tuple[str, dict[str, Any], str]] = [
    ("pajama", {"text": "a page", "meta": {"source": "arxiv"}}, "a page"),
    ("fineweb", {"text": "a page", "url": "u", "token_count": 2}, "a page"),
    ("fineweb:CC-MAIN-2024-10", {"text": "a page"}, "a page"),
    ("lambada", {"text": "a passage", "domain": "x"}, "a passage"),
    ("gsm8k", {"question": "1+1?", "answer": "It is 2\n#### 2"}, "Question: 1+1?\nAnswer: It is 2\n#### 2"),
    ("ai2arc", ARC, "Question: Which is hot?\nA. ice\nB. fire\nAnswer: B"),
    ("ai2arc:ARC-Easy", ARC, "Question: Which is hot?\nA. ice\nB. fire\nAnswer: B"),
    ("squad", SQUAD, "Rome is old.\nQuestion: What is old?\nAnswer: Rome"),
    ("bigbench:dyck_languages", {"inputs": "( [", "targets": ["] )"], "idx": 0}, "( [\n] )"),
    ("planbench", PLAN, "Stack a on b.\n(stack a b)"),
]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize(("name", "example", "text"), EXAMPLES, ids=[name for name, _, _ in EXAMPLES])
def test_hub_dataset_from_files(tmp_path: Path, kind: str, name: str, example: dict[str, Any], text: str) -> None:
    file = tmp_path / f"data.{kind}"
    if kind == "jsonl":
        write_lines(file, example, example)
    else:
        pyarrow.parquet.write_table(pa.Table.from_pylist([example, example]), file)
    assert read(name, tmp_path) == [text, text]


@pytest.mark.parametrize(("name", "example", "text"), EXAMPLES, ids=[name for name, _, _ in EXAMPLES])
def test_questions_are_the_text_up_to_the_answer(name: str, example: dict[str, Any], text: str) -> None:
    asking = HUB[name.partition(":")[0]].question_format
    if asking is None:
        assert name.partition(":")[0] in ("pajama", "fineweb")
        return
    question = asking.question(example)
    assert question is not None
    (accepted,) = question.accepted
    assert text.startswith(question.prompt) and accepted and text.endswith(accepted)
    assert accepted not in question.prompt[-3:]
    assert all(f"{question.prompt}{choice}" == text for choice in question.choices if choice.strip() == accepted)


def test_questions_whose_answers_are_of_their_own_kind() -> None:
    asks = {name: dataset.question_format.question for name, dataset in HUB.items() if dataset.question_format}
    assert asks["squad"]({**SQUAD, "answers": {"text": [], "answer_start": []}}) is None
    assert asks["planbench"]({**PLAN, "ground_truth_plan": None}) is None
    assert asks["bigbench"]({"inputs": "i", "targets": []}) is None
    steps = asks["planbench"]({**PLAN, "ground_truth_plan": ["(stack a b)", None, "(put-down b)"]})
    assert steps is not None and steps.accepted == ("(stack a b)\n(put-down b)",)
    choices = asks["bigbench"]({"inputs": "i", "targets": ["a", "b"], "multiple_choice_targets": ["a", "b", "c"]})
    assert choices is not None and choices.accepted == ("a", "b") and choices.choices == ("a", "b", "c")
    labelled = asks["ai2arc"](ARC)
    assert labelled is not None and labelled.choices == (" A", " B")


def test_every_hub_dataset_has_an_example() -> None:
    local = {"pydocs", "synthetic", "text", "jsonl", "csv", "parquet", "arrow"}
    assert {name.partition(":")[0] for name, _, _ in EXAMPLES} == set(dataset_names()) - local


def test_files_named_by_split(tmp_path: Path) -> None:
    for stem, question in [("train-00000-of-00001", "q1"), ("gsm8k_validation", "q2"), ("test", "q3")]:
        write_lines(tmp_path / f"{stem}.jsonl", {"question": question, "answer": "a"})
    source = find_source(Text(dataset_name="gsm8k", dataset_dir=str(tmp_path)))
    assert source.splits == ("train", "valid", "test")
    for split, question in [("train", "q1"), ("valid", "q2"), ("test", "q3")]:
        assert list(source.documents(split)) == [f"Question: {question}\nAnswer: a"]


def test_native_splits_of_the_hub() -> None:
    assert find_source(Text(dataset_name="gsm8k")).splits == ("train", "test")
    assert find_source(Text(dataset_name="squad")).splits == ("train", "valid")
    assert find_source(Text(dataset_name="fineweb")).splits == ("train",)


def test_hub_files_that_cannot_be_used(tmp_path: Path) -> None:
    folder = repr(str(tmp_path))
    write_lines(tmp_path / "test.jsonl", {"question": "q"})
    write_lines(tmp_path / "validation.jsonl", {"question": "q"})
    assert message("gsm8k", tmp_path) == (
        f"--dataset_dir is {folder}: no file of it is named train; name the training files so."
    )
    write_lines(tmp_path / "more.jsonl", {"question": "q"})
    assert message("gsm8k", tmp_path) == (
        f"--dataset_dir is {folder}: more.jsonl is not named after a split as others are; "
        "put train, validation or test into its name, or take it away."
    )
    assert message("gsm8k", tmp_path / "more.jsonl") == (
        "--dataset_name is 'gsm8k': its examples need the field answer, but have question; give files with it."
    )
    pyarrow.parquet.write_table(pa.table({"question": ["q"]}), tmp_path / "train.parquet")
    (tmp_path / "more.jsonl").unlink()
    assert message("gsm8k", tmp_path) == f"--dataset_dir is {folder}: use JSON or Parquet files, not both."
    write_lines(tmp_path / "odd.jsonl", {"context": "c", "question": "q", "answers": "Rome"})
    assert message("squad", tmp_path / "odd.jsonl") == (
        "--dataset_name is 'squad': an example is not of the form that rajpurkar/squad_v2 has (TypeError: string "
        "indices must be integers, not 'str'); put it into that form, or leave it out."
    )
    (tmp_path / "broken.jsonl").write_text("{nonsense")
    assert message("gsm8k", tmp_path / "broken.jsonl").startswith(
        "--dataset_name is 'gsm8k': its train split cannot be read ("
    )


@pytest.mark.parametrize("name", ["gsm8k", "fineweb", "pajama"])
def test_unreachable_hub_is_one_sentence_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    start = time.monotonic()
    text = message(name)
    assert time.monotonic() - start < 30
    assert text.startswith(f"--dataset_name is {name!r}: the Hugging Face hub cannot be reached and no copy of ")
    assert text.endswith(
        "; set HF_HOME to a folder with a downloaded copy, give local files with --dataset_dir, "
        "or use --dataset_name pydocs, which needs no download."
    )


def test_copy_downloaded_before_is_used_when_the_hub_is_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from datasets import Dataset, DatasetInfo

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    # the layout in which `datasets` keeps what it downloaded
    folder = tmp_path / "openai___gsm8k" / "main" / "0.0.0" / ("0" * 40)
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        examples = Dataset.from_dict({"question": [f"{split}?"], "answer": ["yes"]})
        examples.save_to_disk(str(tmp_path / split))
        (shard,) = (tmp_path / split).glob("*.arrow")
        shard.rename(folder / f"gsm8k-{split}.arrow")
    splits = {
        split: {"name": split, "num_bytes": 1, "num_examples": 1, "dataset_name": "gsm8k"}
        for split in ("train", "test")
    }
    info = DatasetInfo.from_dict(
        {"features": examples.features.to_dict(), "splits": splits, "dataset_name": "gsm8k", "config_name": "main"}
    )
    info.write_to_directory(str(folder))
    source = find_source(Text(dataset_name="gsm8k"))
    assert list(source.documents("train")) == ["Question: train?\nAnswer: yes"]
    assert list(source.documents("test")) == ["Question: test?\nAnswer: yes"]
    assert source.count("train") == 1
    note = f"The copy of openai/gsm8k here is of commit {'0' * 40}, not {HUB['gsm8k'].revision}.\n"
    assert capsys.readouterr().err.count(note) == 1 and source.origin()["commit"] == "0" * 40


def test_rows_of_different_forms_in_local_files(tmp_path: Path) -> None:
    write_lines(tmp_path / "arxiv_sample.jsonl", {"text": "a paper", "meta": {"yymm": "2001"}})
    (tmp_path / "c4_sample.jsonl").write_text('{"text": "a page", "meta": 3}\n\n{"text": null, "more": []}\n')
    assert read("pajama", tmp_path) == ["a paper", "a page", None]
    (tmp_path / "c4_sample.jsonl").write_text('{"text": "a page"\n')
    text = message("pajama", tmp_path)
    assert text.startswith("--dataset_name is 'pajama': its train split cannot be read (JSONDecodeError: ")
    assert text.endswith("); repair or replace the files.")


KEYS = {  # of the sources as people's caches know them
    "pajama": "c70bcfdecc975e9c",
    "fineweb": "270ced58caa4fdbe",
    "lambada": "5cdeaeb6936a3b7a",
    "gsm8k": "ed8118b8e2ec9bd6",
    "ai2arc": "6740b7aecb581258",
    "squad": "44799f3f08e9a19f",
    "bigbench:dyck_languages": "2805ca06f362cd7f",
    "planbench": "c2d42363e5ec0711",
}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_changes_only_with_the_text_that_is_made(name: str) -> None:
    """A key holds the source of `to_text`: another one lets every token cache of the dataset be built again."""
    key = find_source(Text(dataset_name=name)).key()
    assert hashlib.sha256(key.encode()).hexdigest()[:16] == KEYS[name]
