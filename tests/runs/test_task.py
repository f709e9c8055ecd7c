"""A run of a task that this project does not have: its folder alone says how it is listed, compared and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runs.metrics import LANGUAGE, LANGUAGE_TASK, schema, task_from_text
from runs.pages.site import Site
from runs.run import Run
from tests.runs.folders import Command, make_point_run, make_run, write_rows

POINTS = "points"


@pytest.fixture
def runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Two runs of points, of which the first is better: its score is higher."""
    make_point_run(tmp_path, "sharp", day=1, scores=(0.5, 0.9, 0.8))
    make_point_run(tmp_path, "dull", "--seed", "7", day=2, scores=(0.4, 0.5, 0.6))
    return Command(tmp_path, capsys)


def test_an_older_folder_is_of_language(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path))
    assert run.task is LANGUAGE_TASK and run.task.unit == "tokens" and run.task.headline == "valid_loss"
    assert task_from_text(json.dumps(LANGUAGE)) == LANGUAGE_TASK
    for damaged in ("{", "[]", "{}", '{"name": "x"}', '{"name": "x", "unit": "y", "headline": "z", "measures": 3}'):
        (run.path / "task.json").write_text(damaged)
        assert Run(run.path).task is LANGUAGE_TASK


def test_columns_are_resolved_by_the_measures_of_the_task(runs: Command) -> None:
    run = Run(next((runs.logs / "runs").glob("sharp*")))
    assert run.task.name == "mixture" and run.task.headline_on("train") == "train_score" and run.task.label == "score"
    found = schema(["step", POINTS, "points_per_second", "valid_score", "test_rmse/left", "noise", "new_one"], run.task)
    assert {name: tuple(words.values()) for name, words in found.items()} == {
        "step": ("optimizer step", "steps", None),
        POINTS: ("points trained on", POINTS, None),
        "points_per_second": ("speed", "points per second", "higher"),
        "valid_score": ("validation score", "share of points", "higher"),
        "test_rmse/left": ("test error of left", "mm", "lower"),
        "noise": ("level of the noise", "mm", None),
        "new_one": ("new one", "", None),
    }
    (run.path / "metrics.schema.json").write_text('{"new_one": {"title": "a new one", "unit": "m", "better": "x"}}')
    measure = Run(run.path).measure
    assert (measure("new_one").title, measure("new_one").better) == ("a new one", None)
    assert measure("valid_score").title == "validation score"


def test_it_is_listed_by_its_own_headline(runs: Command) -> None:
    lines = [line.split() for line in runs("list").splitlines() if line.strip()]
    assert lines[0] == ["run", "state", "seed", "step", "train_score", "valid_score", "best", "time"]
    assert lines[3][-5:] == ["0.9000", "0.8000", "0.9000", "15", "s"]
    assert runs.names("--where", "best.valid_score>0.7") == ["sharp"]
    assert runs.names("--sort", "-points", "--where", "points>=3000") == ["dull", "sharp"]
    first, *_ = runs("best").splitlines()
    assert first == "sharp_20260101-120000_01abcd: validation score 0.9000 at step 20, the highest of 2."


def test_runs_of_several_tasks_have_their_own_columns(runs: Command) -> None:
    make_run(runs.logs, "text", day=3)
    head = runs("list").split("\n")[1].split()
    assert {"valid_score", "valid_loss", "best.valid_score", "best.valid_loss"} <= set(head) and "best" not in head
    assert runs("best", "valid_score").startswith("sharp_") and runs("best").startswith("text_")


def test_it_is_told_in_its_own_words(runs: Command) -> None:
    told = runs("show", "dull")
    assert "An energy model of size" in told and "3,000 points and took" in told and ", 200 points/s" in told
    assert "Validation score 0.6000." in told
    assert "At step 30 its validation score is 0.6000; sharp_20260101-120000_01abcd, of another seed, has" in told
    assert "nats" not in told and "token" not in told.replace("tokenizer", "")
    told = runs("show", "sharp")
    assert "Its best validation was at step 20; since then it got worse by 0.1." in told


def test_it_is_compared_in_its_own_unit(runs: Command) -> None:
    rows = {
        line.split("  ")[1]: line.split()[-2:] for line in runs("diff", "sharp", "dull").splitlines() if "  " in line
    }
    assert rows["points"] == ["3,000", "3,000"] and rows["best valid_score"] == ["0.9000", "0.6000"]
    assert "tokens" not in rows


def test_it_is_exported_with_its_places_first(runs: Command) -> None:
    header = runs("export", "sharp", "--every", "row").splitlines()[0]
    assert header.startswith("step,epoch,points,flops,seconds,attempt,")


def test_its_page_has_its_words(runs: Command) -> None:
    Site(runs.logs).write()
    data = {file.name.partition(".")[0]: file.read_text() for file in (runs.logs / "pages").glob("*.js")}
    index: dict[str, Any] = json.loads(data["runs"].partition(" = ")[2].rstrip(";\n"))
    words = index["tasks"]["mixture"]
    assert (words["unit"], words["headline"], words["columns"]["train"]) == (POINTS, "valid_score", "train_score")
    assert words["measures"]["valid_score"]["better"] == "higher"
    row = next(row for row in index["runs"] if row["name"] == "sharp")
    assert row["metrics"]["valid_score"] == [0.8, 0.9, 20] and row[POINTS] == 3000 and row["task"] == "mixture"


def test_the_best_of_a_sample_does_not_hold_against_the_whole(runs: Command) -> None:
    folder = make_point_run(runs.logs, "sampled", day=5, scores=())
    for seen, score in ((10, 0.99), (100, 0.5), (100, 0.7), (10, 1.0)):
        write_rows(
            folder / "metrics.jsonl", {"step": seen + round(100 * score), "valid_score": score, "valid_targets": seen}
        )
    assert runs("best", "--where", "name=sampled").startswith("sampled_20260105-120000_05abcd: validation score 0.7000")
