"""A run of a task that this project does not have: its folder alone says how it is listed, compared and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from config import parse_command_line
from runs.folder import RunFolder
from runs.metrics import LANGUAGE, LANGUAGE_TASK, schema, task_from_text
from runs.pages.site import Site
from runs.run import Run
from tests.runs.folders import Command, make_point_run, make_run, point_rows, write_rows
from tests.runs.points import TASK

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
    assert run.task.name == TASK.name and run.task.headline_on("train") == "train_score" and run.task.label == "score"
    columns = schema(
        ["step", POINTS, "points_per_second", "valid_score", "test_rmse/left", "noise", "new_one"], run.task
    )
    assert {name: tuple(words.values()) for name, words in columns.items()} == {
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
    assert first == "sharp_20260101-120000_01abcd: validation score 90.0% at step 20, the highest of 2."


def test_runs_of_several_tasks_have_their_own_columns(runs: Command) -> None:
    make_run(runs.logs, "text", day=3)
    head = runs("list").split("\n")[1].split()
    assert {"valid_score", "valid_loss", "best.valid_score", "best.valid_loss"} <= set(head) and "best" not in head
    assert runs("best", "valid_score").startswith("sharp_") and runs("best").startswith("text_")


def test_it_is_shown_in_its_own_words(runs: Command) -> None:
    text = runs("show", "dull")
    for words in ("An energy model on corners, 1 steps.", "3,000 points and took", ", 200 points/s"):
        assert words in text
    assert "Validation score 60.0%." in text
    assert "At step 30 its validation score is 60.0%; sharp_20260101-120000_01abcd, of another seed, has" in text
    assert "nats" not in text and "token" not in text
    text = runs("show", "sharp")
    assert "Its best validation was at step 20; since then it got worse by 0.1." in text


def test_it_is_compared_in_its_own_unit(runs: Command) -> None:
    rows = {
        line.split("  ")[1]: line.split()[-2:] for line in runs("diff", "sharp", "dull").splitlines() if "  " in line
    }
    assert rows["points"] == ["3,000", "3,000"] and rows["best valid_score"] == ["0.9000", "0.6000"]
    assert "tokens" not in rows
    make_point_run(runs.logs, "pentagon", "--num_modes", "5", "--noise_level", "0.1", day=3)
    _, _, data = runs("diff", "sharp", "pentagon").partition("\nData\n")
    assert data.split("\n")[0].split() == ["num_modes", "3", "5"] and "noise_level" not in data


def test_it_is_exported_with_its_places_first(runs: Command) -> None:
    header = runs("export", "sharp", "--every", "row").splitlines()[0]
    assert header.startswith("step,epoch,points,flops,seconds,attempt,")


def test_its_page_has_its_words(runs: Command) -> None:
    Site(runs.logs).write()
    data = {file.name.partition(".")[0]: file.read_text() for file in (runs.logs / "pages").glob("*.js")}
    index: dict[str, Any] = json.loads(data["runs"].partition(" = ")[2].rstrip(";\n"))
    words = index["tasks"][TASK.name]
    assert (words["unit"], words["headline"], words["columns"]["train"]) == (POINTS, "valid_score", "train_score")
    assert words["measures"]["valid_score"]["better"] == "higher"
    row = next(row for row in index["runs"] if row["name"] == "sharp")
    assert row["metrics"]["valid_score"] == [0.8, 0.9, 20] and row[POINTS] == 3000 and row["task"] == TASK.name


def test_the_best_of_a_sample_does_not_hold_against_the_whole(runs: Command) -> None:
    folder = make_point_run(runs.logs, "sampled", day=5, scores=())
    for seen, score in ((10, 0.99), (100, 0.5), (100, 0.7), (10, 1.0)):
        write_rows(
            folder / "metrics.jsonl", {"step": seen + round(100 * score), "valid_score": score, "valid_targets": seen}
        )
    assert runs("best", "--where", "name=sampled").startswith("sampled_20260105-120000_05abcd: validation score 70.0%")


def test_a_folder_that_is_created_knows_its_task(runs: Command) -> None:
    flags = ["--task", TASK.name, "--run_name", "new", "--logs_dir", str(runs.logs), "--num_modes", "5"]
    folder = RunFolder.create(parse_command_line(flags)).path
    run = Run(folder)
    assert (run.task.name, run.task.unit, run.task.headline) == (TASK.name, POINTS, "valid_score")
    assert "num_modes" in run.task.decides["data"] and run.task.decides["unit"] == run.task.decides["row"] == ()
    assert runs.names("--where", "num_modes=5") == ["new"]
    write_rows(folder / "metrics.jsonl", *point_rows((0.1, 0.95)))
    assert runs.names("--where", "valid_near>0.35") == ["new", "sharp"]
    assert "  num_modes  5" in runs("show", "new")
    for text in ("other data (--num_modes 3 and 5)", "num_modes 5 instead of 3"):
        assert text in runs("show", "new")


def test_only_runs_of_the_same_data_are_ranked_together(runs: Command) -> None:
    assert runs("best", "valid_near").startswith("sharp_20260101-120000_01abcd: validation near its corner 45.0%")
    make_point_run(runs.logs, "pentagon", "--num_modes", "5", day=3, scores=(0.95,))
    lines = runs("best", "valid_near").splitlines()
    firsts = [line for line in lines if "the highest of" in line]
    assert [line.partition("_")[0] for line in firsts] == ["sharp", "pentagon"]
    assert firsts[1].endswith("the highest of 1 on corners, num_modes 5.")
    assert lines[-1] == "Only runs of one line can be compared: of the same data and validated points."


def test_it_is_repeated_with_its_own_flags(runs: Command) -> None:
    make_point_run(runs.logs, "pentagon", "--num_modes", "5", day=3)
    words = runs("rerun", "pentagon", "--dry_run", "--set", "noise_level=0.1").split()
    assert words[words.index("--task") + 1] == TASK.name
    assert words[words.index("--num_modes") + 1] == "5" and words[words.index("--noise_level") + 1] == "0.1"


def test_language_says_what_decides_on_its_numbers() -> None:
    decides = LANGUAGE_TASK.decides
    assert decides["unit"] == ("tokenizer",) and decides["row"] == ("context_length",)
    assert {"dataset_name", "max_documents", "validation_split_pct"} <= set(decides["data"])
    assert LANGUAGE_TASK.instead_of("test_loss") == "test_bits_per_byte" and LANGUAGE_TASK.instead_of("step") is None
    columns = ("valid_loss", "train_perplexity", "valid_bits_per_byte", "valid_accuracy", "loss")
    assert [LANGUAGE_TASK.restates_headline(name) for name in columns] == [False, True, True, False, False]
