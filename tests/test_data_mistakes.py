"""A mistake in the data leaves a failed run that says so, everywhere where people look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runs.run import all_runs
from tests.conftest import TrainCommand
from tests.data.reading import write_lines


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{"body": "x"}], "--text_field is 'text': {file}:1 has no such field; it has body."),
        ([], "--dataset_dir is '{file}': it has no documents; choose another that has."),
        (
            [{"text": None}, {"text": ""}, {"text": None}],
            "--text_field is 'text': none of 3 documents has any text; choose another that has.",
        ),
        (
            [{"text": "one huge document " * 2000}],
            "--validation_split_pct is 0.05: the validation split is empty; choose a larger share, or "
            "--limit_val_batches 0 to train without validation (of documents, which are not cut, there are only 1).",
        ),
    ],
)
def test_a_mistake_in_the_data_is_the_end_of_its_run(
    train_command: TrainCommand, tmp_path: Path, rows: list[dict[str, str | None]], sentence: str
) -> None:
    file = write_lines(tmp_path / "a.jsonl", *rows)
    sentence = sentence.format(file=file)
    printed = train_command(
        "--dataset_name", "jsonl", "--dataset_dir", str(file), "--validation_split_pct", "0.05", status=2
    )
    assert sentence in printed.splitlines()
    (run,) = all_runs(train_command.logs)
    assert run.state == "failed" and run.attempts[-1]["cause"] == f"refused: {sentence}"
    assert run.config["data"]["dataset_name"] == "jsonl"
    pages = [
        json.dumps(file.read_text())
        for file in (train_command.logs / "pages").rglob("*")
        if file.suffix in (".html", ".js")
    ]
    assert any(json.dumps(json.dumps(sentence)[1:-1])[1:-1] in page for page in pages), "and its page says it"
