"""Every dataset is read through its real loading code; what a person can get wrong is one sentence."""

from __future__ import annotations

import csv
import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from config.settings import Text
from data.language.sources import dataset_names, find_source
from data.language.sources.docstrings import docstrings_of
from tests.data.reading import message, read, write_lines

# ---- made here


def test_docstrings_in_source_order(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        '"""Top."""\n'
        "class A:\n"
        '    """A class."""\n'
        "    def f(self):\n"
        '        """A\n        method."""\n'
        "try:\n"
        "    pass\n"
        "except ValueError:\n"
        "    async def g():\n"
        '        "Nested."\n'
        "def h():\n"
        "    return 1\n"
    )
    assert docstrings_of(str(file)) == ["Top.", "A class.", "A\nmethod.", "Nested."]


@pytest.mark.parametrize("content", [b"def broken(:", b"x = 1\0", b"# -*- coding: nonsense -*-\n", b"\xff\xfe", b""])
def test_files_that_do_not_parse_are_skipped(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "module.py"
    file.write_bytes(content)
    assert docstrings_of(str(file)) == []
    assert docstrings_of(str(tmp_path / "missing.py")) == []


def test_pydocs_of_a_small_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b.py").write_text('"""Second."""\ndef f():\n    """Shared."""\n')
    (tmp_path / "a.py").write_text('"""First."""\ndef f():\n    """Shared."""\n')
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "c.py").write_text('"""Not of the library."""')
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    source = find_source(Text())
    key = source.key()
    source.prepare()
    documents: list[Any] = list(source.documents("train"))
    assert documents[-2:] == ["First.\n\nShared.", "Second."]
    assert len(documents) > 50 and source.count("train") == len(documents)
    assert any("statement" in topic for topic in documents[:-2])
    assert find_source(Text()).key() == key
    (tmp_path / "b.py").write_text('"""Changed."""')
    assert find_source(Text()).key() != key


def test_synthetic_is_deterministic_and_as_large_as_asked() -> None:
    documents = read("synthetic")
    assert len(documents) == 2000 == len(set(documents))
    assert read("synthetic") == documents
    assert read("synthetic", max_documents=2100)[:2000] == documents


# ---- local files


def test_text_folder_glob_file_and_gzip(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "deep" / "b.md").write_text("second")
    (tmp_path / ".hidden.txt").write_text("hidden")
    (tmp_path / "image.png").write_bytes(b"\x89")
    with gzip.open(tmp_path / "c.txt.gz", "wt") as file:
        file.write("third")
    assert read("text", tmp_path) == ["first", "third", "second"]
    assert read("text", tmp_path / "*.txt*") == ["first", "third"]
    assert read("text", tmp_path / "deep" / "b.md") == ["second"]


def test_large_text_is_cut_at_blank_lines(tmp_path: Path) -> None:
    block = "a line of words\n" * 20 + "\n"
    text = block * 6000
    (tmp_path / "large.txt").write_text(text)
    (tmp_path / "small.txt").write_text(block * 2)
    documents = read("text", tmp_path)
    assert "".join(documents) == text + block * 2
    assert documents[-1] == block * 2
    pieces = documents[:-2]
    assert len(pieces) > 100
    assert all(piece.endswith("\n\n") for piece in pieces)
    assert max(map(len, pieces)) < 12_000


def test_lone_text_file_is_cut_so_that_splits_have_parts(tmp_path: Path) -> None:
    (tmp_path / "only.txt").write_text(("word " * 50 + "\n\n") * 400)
    assert len(read("text", tmp_path)) == 25


def test_text_without_any_line_end_is_cut(tmp_path: Path) -> None:
    (tmp_path / "only.txt").write_text("é" * 100_000)
    documents = read("text", tmp_path)
    assert "".join(documents) == "é" * 100_000 and len(documents) > 3


def test_bytes_that_are_not_utf8_are_counted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 \xff ok")
    (tmp_path / "b.txt").write_bytes("fine \ufffd".encode())
    source = find_source(Text(dataset_name="text", dataset_dir=str(tmp_path)))
    for _ in range(2):
        assert list(source.documents("train")) == ["caf\ufffd \ufffd ok", "fine \ufffd"]
    assert capsys.readouterr().err == "2 bytes of the text are not UTF-8 and were replaced by \ufffd.\n"


def test_jsonl(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", {"text": "one", "id": 1}, {"text": "two"})
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write('{"text": "three"}\n\n')
    assert read("jsonl", tmp_path) == ["one", "two", "three"]
    write_lines(tmp_path / "a.jsonl", {"body": "other"})
    assert read("jsonl", tmp_path / "a.jsonl", text_field="body") == ["other"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv(tmp_path: Path, delimiter: str) -> None:
    long = "word, " * 50_000  # longer than a field that the csv module takes by itself
    rows = [["id", "text"], ["1", "one"], ["2", "a, b; c\td"], ["3", 'a "quote"\nof lines'], ["4", long], ["5", ""]]
    with open(tmp_path / "a.csv", "w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
        file.write("6\r\n\r\n")
    with gzip.open(tmp_path / "b.tsv.gz", "wt") as packed:
        packed.write("text\nonly\n")
    assert read("csv", tmp_path) == ["one", "a, b; c\td", 'a "quote"\nof lines', long, "", None, "only"]
    assert read("csv", tmp_path / "a.csv", text_field="id")[:2] == ["1", "2"]


def test_csv_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("title,body\na,b\n")
    assert message("csv", file) == f"--text_field is 'text': {file} has no such field; it has body, title."
    file.write_text('id,text\n1,"never closed\n2,b\n')
    text = message("csv", file)
    assert text.startswith(f"{file}:") and " is not CSV (unexpected end of data): put text that holds commas" in text


def test_parquet(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"text": ["one", None, "two"], "id": [1, 2, 3]}), tmp_path / "a.parquet")
    assert read("parquet", tmp_path) == ["one", None, "two"]


def test_arrow_stream_file_and_what_datasets_saves(tmp_path: Path) -> None:
    from datasets import Dataset

    table = pa.table({"text": ["one", "two"]})
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    with pa.ipc.new_file(tmp_path / "b.feather", table.schema) as writer:
        writer.write_table(table)
    Dataset.from_dict({"text": ["three"]}).save_to_disk(str(tmp_path / "c"))
    assert read("arrow", tmp_path) == ["one", "two", "one", "two", "three"]


def test_key_follows_the_files(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", {"text": "one"})
    settings = Text(dataset_name="jsonl", dataset_dir=str(tmp_path))
    key = find_source(settings).key()
    assert find_source(settings).key() == key
    write_lines(file, {"text": "other"})
    changed = find_source(settings).key()
    assert changed != key
    write_lines(tmp_path / "b.jsonl", {"text": "two"})
    assert find_source(settings).key() != changed


# ---- what a person can get wrong with local files


@pytest.mark.parametrize("name", ["text", "jsonl", "csv", "parquet", "arrow"])
def test_missing_dataset_dir(name: str) -> None:
    assert message(name).startswith(
        f"--dataset_dir is missing: --dataset_name {name} reads local files; give a file, a folder or a glob (."
    )


def test_missing_path(tmp_path: Path) -> None:
    path = tmp_path / "nowhere"
    assert message("text", path) == f"--dataset_dir is {str(path)!r}: no such file or folder; check the path."


@pytest.mark.parametrize("pattern", ["", "*.txt"])
def test_no_matching_file(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "a.png").write_text("x")
    path = str(tmp_path / pattern)
    assert message("text", path) == (
        f"--dataset_dir is {path!r}: --dataset_name text found no file there; "
        "it looks for .txt, .md, .rst, .txt.gz, .md.gz, .rst.gz."
    )


def test_missing_field(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", {"text": "one"}, {"title": "t", "body": "b"})
    assert message("jsonl", file) == f"--text_field is 'text': {file}:2 has no such field; it has body, title."
    table = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table({"body": ["b"], "id": [1]}), table)
    assert message("parquet", table) == f"--text_field is 'text': {table} has no such field; it has body, id."


def test_field_without_text(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", {"text": 7})
    assert message("jsonl", file) == (
        f"{file}:1: --text_field text holds int instead of text; choose a field that holds text."
    )
    table = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table({"text": [1]}), table)
    assert message("parquet", table) == (
        f"--text_field is 'text': in {table} it holds int64 instead of text; choose a field that holds text."
    )


def test_broken_json(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "one"}\n{"text": \n')
    text = message("jsonl", file)
    assert text.startswith(f"{file}:2 is not JSON (") and text.endswith("): each line must be one JSON object.")
    write_lines(file, ["a list"])
    assert message("jsonl", file) == f"{file}:1 is a JSON list: each line must be one JSON object."


@pytest.mark.parametrize(
    ("dataset", "file"), [("text", "a.txt.gz"), ("jsonl", "a.jsonl.gz"), ("parquet", "a.parquet"), ("arrow", "a.arrow")]
)
def test_damaged_file(tmp_path: Path, dataset: str, file: str) -> None:
    (tmp_path / file).write_bytes(b"not what the ending says")
    text = message(dataset, tmp_path)
    assert text.startswith(f"{tmp_path / file} cannot be read (")
    assert text.endswith("): repair it, or leave it out of --dataset_dir.")


# ---- the registry


def test_unknown_name() -> None:
    names = ", ".join(dataset_names())
    assert message("gsmk8") == f"--dataset_name is 'gsmk8': choose {names}. Did you mean gsm8k?"
    assert message("zzzzzz") == f"--dataset_name is 'zzzzzz': choose {names}."


@pytest.mark.parametrize("name", ["pydocs", "synthetic"])
def test_dataset_dir_where_no_files_are_read(name: str) -> None:
    assert message(name, "here") == (
        f"--dataset_dir is 'here': --dataset_name {name} reads no files; "
        "leave it out, or choose text, jsonl, csv, parquet, arrow to read your own."
    )


def test_parts() -> None:
    assert message("pydocs:x") == "--dataset_name is 'pydocs:x': pydocs has no parts; give pydocs alone."
    assert message("squad:x") == "--dataset_name is 'squad:x': squad has no parts; give squad alone."
    assert message("bigbench").startswith("--dataset_name is 'bigbench': name a part of it, as in bigbench:logical_")
    assert message("ai2arc:ARC-Eazy") == (
        "--dataset_name is 'ai2arc:ARC-Eazy': choose ai2arc:ARC-Challenge, ai2arc:ARC-Easy. "
        "Did you mean ai2arc:ARC-Easy?"
    )


def test_registry_imports_no_heavy_library() -> None:
    code = (
        "import sys, types, pathlib\n"
        # the package's own __init__ brings torch; only what the registry itself imports is judged here
        "package = types.ModuleType('data'); package.__path__ = [str(pathlib.Path('data').resolve())]\n"
        "sys.modules['data'] = package\n"
        "import data.language.store\n"
        "heavy = {'torch', 'datasets', 'transformers', 'tokenizers', 'pyarrow', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
