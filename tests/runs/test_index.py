"""logs/index.sqlite: the same as the folders say, whatever changes in them and whatever becomes of the file."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from runs import index
from runs.__main__ import main
from runs.index import VERSION, IndexedRun, load
from runs.metrics import LANGUAGE_TASK, MetricSummary, summarise_metrics
from runs.summary import summarise
from tests.runs.folders import make_run, row_at, write_rows


def fresh(logs: Path) -> list[IndexedRun]:
    """What the folders alone say."""
    (logs / "index.sqlite").unlink(missing_ok=True)
    return load(logs)


def everything(records: list[IndexedRun]) -> list[object]:
    return [(record.run_id, record.facts, record.config, record.last, record.best) for record in records]


def test_what_is_known_of_a_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "try", "--ebt_type", "adaln", losses=(3.0, 1.5, 2.0))
    tag = '", "archived": true, "'  # must not be taken for what it looks like
    (folder / "tags.json").write_text(json.dumps([tag, 5]))
    (folder / "lineage.json").write_text('{"parent": "other_20260101-110000_aaaaaa", "how": "rerun", "changes": {}}')
    write_rows(folder / "journal.jsonl", {"time": 1e9, "tag": "TRY", "text": "first line\nsecond"})
    for _ in range(2):  # from the folder, then from the index
        (record,) = load(tmp_path)
        assert record.facts == {
            "name": "try",
            "state": "finished",
            "cause": "finished",
            "began": record.run.began,
            "attempts": 1,
            "job": None,
            "tags": [tag],
            "archived": False,
            "parent": "other_20260101-110000_aaaaaa",
            "note": "first line",
            "notes": 1,
            "alarms": 0,
            "problems": [],
        }
        assert not record.is_archived
        assert record.value("ebt_type") == "adaln" and record.value("began") == "2026-01-01 12:00:00"
        assert record.value("valid_loss") == 2.0 and list(record.best["valid_loss"]) == [1.5, 20]
        assert record.value("best.valid_accuracy") == 1 / 1.5
        assert record.value("step") == 30 and record.value("flops") == 30e9
        assert record.value("best.tokens") is None and record.value("nobody") is None


def test_only_what_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = make_run(tmp_path, "one", day=1), make_run(tmp_path, "other", day=2)
    load(tmp_path, settled_seconds=0.0)
    read: list[str] = []
    original = index.read

    def noting(path: Path, *rest: Any) -> Any:
        read.append(path.name)
        return original(path, *rest)

    monkeypatch.setattr(index, "read", noting)
    load(tmp_path, settled_seconds=0.0)
    assert read == []
    write_rows(one / "metrics.jsonl", row_at(40, 1.0))
    assert [record.value("valid_loss") for record in load(tmp_path, settled_seconds=0.0)] == [2.0, 1.0]
    (other / "archived").touch()
    assert [record.facts["archived"] for record in load(tmp_path, settled_seconds=0.0)] == [True, False]
    write_rows(one / "journal.jsonl", {"time": 1e9, "tag": "TRY", "text": "x"})
    load(tmp_path, settled_seconds=0.0)
    write_rows(one / "journal.jsonl", {"time": 1e9, "tag": "TRY", "text": "y"})
    load(tmp_path, settled_seconds=0.0)
    assert read == [one.name, other.name, one.name, one.name]
    shutil.rmtree(one)
    assert [record.run_id for record in load(tmp_path, settled_seconds=0.0)] == [other.name]
    with sqlite3.connect(tmp_path / "index.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (1,)


def test_what_changed_just_now_may_change_again_unseen(tmp_path: Path) -> None:
    """A file system may give two changes the same time; here the second is made to have it."""
    folder = make_run(tmp_path)
    (folder / "tags.json").write_text('["a"]')
    now = (folder / "tags.json").stat()
    assert load(tmp_path)[0].facts["tags"] == ["a"]
    (folder / "tags.json").write_text('["b"]')
    os.utime(folder / "tags.json", ns=(now.st_atime_ns, now.st_mtime_ns))
    assert load(tmp_path)[0].facts["tags"] == ["b"]


def test_metrics_are_read_on_from_where_they_were_read_to(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_rows(path, row_at(10, 3.0), row_at(20, 2.0))
    first = summarise_metrics(path, LANGUAGE_TASK)
    with open(path, "a") as file:
        file.write('{"step": 30, "valid_loss": 0.')  # still being written
    assert summarise_metrics(path, LANGUAGE_TASK, first) == first == summarise_metrics(path, LANGUAGE_TASK)
    with open(path, "a") as file:
        file.write('5}\n{"step": 40, "valid_loss": 1.0}\nnonsense\n[1]\n\n')
    grown = summarise_metrics(path, LANGUAGE_TASK, first)
    assert grown == summarise_metrics(path, LANGUAGE_TASK)
    assert (grown.last["valid_loss"], grown.best["valid_loss"]) == (1.0, (0.5, 30))
    assert (grown.rows, grown.damaged) == (4, 2)
    rows = path.read_text().split("\n")
    path.write_text("\n".join(rows[:2]) + "\n")  # a resume cuts it and writes on, to the same length and beyond
    write_rows(path, *(row_at(step, 9.0) for step in range(30, 80, 10)))
    assert summarise_metrics(path, LANGUAGE_TASK, grown) == summarise_metrics(path, LANGUAGE_TASK)
    path.unlink()
    assert summarise_metrics(path, LANGUAGE_TASK, grown) == MetricSummary()


def test_the_best_is_a_number(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    values = ["NaN", "-Infinity", '"0.1"', "true", "null", "2", "[0]", "1.5", str(10**400)]
    path.write_text("".join(f'{{"step": {step}, "valid_loss": {value}}}\n' for step, value in enumerate(values)))
    summary = summarise_metrics(path, LANGUAGE_TASK)
    assert summary.best["valid_loss"] == (1.5, 7) and summary.rows == len(values)
    assert "valid_loss" not in summary.last, "the last value is none that can be computed with"


@pytest.mark.parametrize("content", [b"", b"this is no database, but it is long enough to be taken for one" * 99])
def test_a_damaged_index_is_made_again(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path)
    before = everything(load(tmp_path))
    (tmp_path / "index.sqlite").write_bytes(content)
    capsys.readouterr()
    assert everything(load(tmp_path)) == before
    errors = capsys.readouterr().err
    assert errors == (f"{tmp_path}/index.sqlite was damaged: it is made again from the folders.\n" if content else "")
    assert everything(load(tmp_path)) == before and not capsys.readouterr().err


@pytest.mark.parametrize("fault", ["PRAGMA user_version = 99", "DROP TABLE texts", "UPDATE runs SET read = 'x'"])
def test_an_index_of_another_version_or_half_of_one_is_made_again(tmp_path: Path, fault: str) -> None:
    folder = make_run(tmp_path)
    before = everything(load(tmp_path))
    with sqlite3.connect(tmp_path / "index.sqlite") as connection:
        connection.execute(fault)
    connection.close()
    os.utime(folder / "metrics.jsonl", (1e9, 1e9))  # so that what was measured is asked for
    assert everything(load(tmp_path)) == before
    with sqlite3.connect(tmp_path / "index.sqlite") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)


def test_without_a_usable_index_the_folders_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path)
    before = everything(load(tmp_path))
    holder = sqlite3.connect(tmp_path / "index.sqlite")
    holder.execute("BEGIN EXCLUSIVE")
    assert everything(load(tmp_path, timeout=0.05)) == before
    warning = f"{tmp_path}/index.sqlite cannot be used (database is locked): reading the folders instead.\n"
    assert capsys.readouterr().err == warning
    holder.rollback()
    holder.execute("BEGIN IMMEDIATE")  # another one writes: reading goes on, what was read anew is not kept
    write_rows(folder / "metrics.jsonl", row_at(50, 1.0))
    assert load(tmp_path, timeout=0.05)[0].value("valid_loss") == 1.0
    assert capsys.readouterr().err == warning
    holder.close()
    (tmp_path / "index.sqlite").unlink()
    (tmp_path / "index.sqlite").mkdir()
    assert load(tmp_path)[0].value("valid_loss") == 1.0
    assert "cannot be used (unable to open database file)" in capsys.readouterr().err
    assert load(tmp_path / "nowhere") == [] and not (tmp_path / "nowhere").exists()
    (tmp_path / "home").mkdir()
    assert load(tmp_path / "home") == [] and list((tmp_path / "home").iterdir()) == [], "it leaves nothing behind"


def test_several_at_once_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for day in range(1, 13):
        make_run(tmp_path, f"run{day}", day=day)
    results: list[list[object]] = []
    threads = [threading.Thread(target=lambda: results.append(everything(load(tmp_path)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [everything(fresh(tmp_path))] * 4
    assert "damaged" not in capsys.readouterr().err


def test_a_folder_named_in_bytes_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path).rename(os.fsdecode(os.fsencode(tmp_path / "runs") + b"/try_20260101-120000_\xff<b>[red]"))
    for _ in range(2):
        assert [record.run_id for record in load(tmp_path)] == ["try_20260101-120000_\udcff<b>[red]"]
    assert main(["list", "--logs_dir", str(tmp_path)]) == 0
    assert r"try_20260101-120000_\udcff<b>[red]" in capsys.readouterr().out


DAMAGES = (
    lambda content, draw: b"",
    lambda content, draw: content[: draw.randrange(len(content) + 1)],
    lambda content, draw: content[draw.randrange(len(content) + 1) :],
    lambda content, draw: bytes(draw.randrange(256) for _ in range(draw.randrange(200))),
    lambda content, draw: content + b'{"step": "x", "attempt": 1.5, "time": [], "text": 3, "tag": null}\n',
    lambda content, draw: b"[" * 100_000,
    lambda content, draw: json.dumps(draw.choice([None, [], {}, 7, "x", [[]], {"run": 3, "data": {"a": {}}}])).encode(),
    lambda content, draw: content.replace(b"2026", b"0000").replace(b"1", b"-1e999"),
    lambda content, draw: content.replace(b'"finished"', b"null").replace(b":", b": [", 1),
)
NAMES = (
    *("config.json", "attempts.jsonl", "metrics.jsonl", "heartbeat.json", "tags.json", "journal.jsonl", "lineage.json"),
    *("alarms.jsonl", "usage.json", "code.json", "environment.json", "submission.json", "job.json", "code.diff"),
)


def test_no_damage_makes_it_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Random damage to two runs beside a whole one: list, show, diff, journal and todo say what they can."""
    whole = make_run(tmp_path, "whole", day=3)
    expected = everything(load(tmp_path))[0]
    draw = random.Random(0)
    for _ in range(15):
        for day in (1, 2):
            shutil.rmtree(tmp_path / "runs" / f"hurt_202601{day:02}-120000_{day:02}abcd", ignore_errors=True)
            folder = make_run(tmp_path, "hurt", day=day, cause=draw.choice(["finished", None]))
            for name in draw.sample(NAMES, 4):
                content = (folder / name).read_bytes() if (folder / name).exists() else b'{"time": 1, "text": "x"}\n'
                (folder / name).unlink(missing_ok=True)
                kind = draw.randrange(len(DAMAGES) + 2)
                if kind == len(DAMAGES):
                    (folder / name).mkdir()
                elif kind < len(DAMAGES):
                    (folder / name).write_bytes(DAMAGES[kind](content, draw))
        at = ["--logs_dir", str(tmp_path)]
        records = load(tmp_path)
        assert everything(records)[0] == expected and len(records) == 3
        assert everything(fresh(tmp_path)) == everything(records)
        hurt = records[1].run_id
        for words in (["list"], ["list", "--json"], ["list", "--csv"], ["show", hurt], ["diff", hurt, whole.name]):
            assert main([*words, *at]) == 0
        assert main(["list", "--where", "valid_loss<9 or ebt_type=x or state~k", "--sort", "-seconds", *at]) == 0
        for words in (["best"], ["journal"], ["todo"], ["show", records[2].run_id]):
            assert main([*words, *at]) == 0
        for record in records:
            assert summarise(record, records).summary
    assert "Traceback" not in capsys.readouterr().err
