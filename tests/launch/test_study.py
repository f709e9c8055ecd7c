"""Studies: what a file means, what is wrong with it, who is chosen, and how a study goes on after an interruption."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config import parse_command_line
from config.task import Measure
from core.errors import UserError
from launch import workers
from launch.script import Header
from launch.study import Options, StageRow, Stages, check_study, next_script, unique_names, waiting_job
from launch.study_file import Contestant, Study, study_text
from launch.study_results import Choice, Estimate, Outcome, choose, compare, csv_text, t_quantile
from launch.sweep import SweepRow
from launch.sweep_file import read_sweep
from launch.workers import Workers, default_workers, threads_of_each
from runs.run import Run
from tests.conftest import ROOT
from tests.launch.launcher import MEASURING_TRAIN_MODEL, STUDY, Launcher, wait

TOY = {"task": "toylab.mixture", "max_steps": 8, "log_every_n_steps": 4, "no_wandb": True, "mcmc_num_steps": 1}
TOY |= {"val_sanity": 0, "limit_val_batches": 1, "limit_test_batches": 1, "batch_size_per_device": 8}
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    made = Launcher(tmp_path / "it's a launcher")
    (made.root / "train_model.py").write_text(MEASURING_TRAIN_MODEL)
    return made


def apply(launcher: Launcher, *words: str, text: str = STUDY, status: int = 0) -> str:
    file = launcher.file("mine.yaml", text)
    return launcher.launch("sweep", file, "--cluster", "local", *words, status=status)


def results(launcher: Launcher, name: str = "mine") -> dict[str, Any]:
    return json.loads((launcher.logs / "sweeps" / name / "study.json").read_bytes())


# -- what a file means -----------------------------------------------------------------------------------------------


def study_of(tmp_path: Path, text: str) -> Study:
    (tmp_path / "mine.yaml").write_text(text)
    study = read_sweep(tmp_path / "mine.yaml").study
    assert study is not None
    return study


def test_a_study_is_read(tmp_path: Path) -> None:
    study = study_of(tmp_path, STUDY)
    assert [one.name for one in study.contestants] == ["ours", "theirs"] and study.budget == 2
    assert study.contestants[0].settings[1] == {
        "no_wandb": True,
        "max_steps": "10",
        "model_size": "4xs",
        "peak_learning_rate": "3e-3",
    }
    assert study.contestants[0].label(1) == "peak_learning_rate 3e-3"
    assert (study.by, study.tune_seeds, study.confirm_seeds) == ("valid_loss", [1], [11, 12, 13])
    assert check_study(study, tmp_path)["test_loss"].better == "lower"


def test_the_studies_of_reasoning_differ_in_size_only(tmp_path: Path) -> None:
    folder = ROOT / "job_scripts" / "reasoning"
    small, large = (read_sweep(folder / f"{name}.yaml") for name in ("fair", "fair_9x9"))
    assert small.study and large.study and small.header is None and large.header == "reference_a100"
    sizes = {"dataset_name", "model_size", "match_flops", "num_puzzles", "num_transformer_blocks"}

    def without_sizes(study: Study) -> list[Any]:
        rows = [{n: v for n, v in row.items() if n not in sizes} for one in study.contestants for row in one.settings]
        return [rows, study.by, study.tune_seeds, study.confirm_seeds, study.measures]

    assert without_sizes(small.study) == without_sizes(large.study)
    for study in (small.study, large.study):
        assert check_study(study, tmp_path)["test_solved_shifted"].better == "higher"
        assert len({row["match_flops"] for one in study.contestants for row in one.settings}) == 1
    runs = len(small.study.contestants) * (small.study.budget + len(small.study.confirm_seeds))
    assert f"{runs} runs" in (folder / "fair.yaml").read_text()


VALUES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)


@SLOW
@given(
    names=st.lists(VALUES.filter(str.strip), min_size=1, max_size=3, unique=True),
    rates=st.lists(VALUES, min_size=1, max_size=3, unique=True),
    fields=st.lists(VALUES, min_size=1, max_size=2, unique=True),
    seeds=st.lists(st.integers(0, 10**6), min_size=2, max_size=5, unique=True),
)
def test_a_study_written_as_a_file_is_the_same_study(
    tmp_path: Path, names: list[str], rates: list[str], fields: list[str], seeds: list[int]
) -> None:
    """The job that goes on with a study reads what was written from the one that submitted it."""
    cells = [dict(zip(("text_field", "wandb_project"), each, strict=True)) for each in itertools.product(rates, fields)]
    contestants = [Contestant(name, [{"no_wandb": True, **cell} for cell in cells]) for name in names]
    study = Study("mine", contestants, "valid_loss", seeds[:1], seeds[1:], ["test_loss"])
    path = tmp_path / "mine.yaml"
    path.write_text(study_text(study))
    assert read_sweep(path).study == study
    grid = {"text_field": rates, "wandb_project": fields}
    tree: dict[str, Any] = {"base": {"no_wandb": True}, "contestants": {name: {"grid": grid} for name in names}}
    tree |= {"tune": {"by": "valid_loss", "seeds": seeds[:1]}}
    tree |= {"confirm": {"seeds": seeds[1:], "measures": ["test_loss"]}}
    path.write_text(yaml.safe_dump(tree, allow_unicode=True, sort_keys=False))
    assert read_sweep(path).study == study


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tree=st.dictionaries(
        st.sampled_from(["base", "contestants", "tune", "confirm", "header", "grid", "by"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.sampled_from(["seed", "valid_loss", "x", ""]),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(
                    st.sampled_from(["seeds", "by", "measures", "flags", "grid", "rows", "a", "b"]), inner
                )
            ),
            max_leaves=8,
        ),
        min_size=1,
    )
)
def test_any_study_is_read_or_refused(tmp_path: Path, tree: dict[str, Any]) -> None:
    path = tmp_path / "any.yaml"
    path.write_text(yaml.safe_dump(tree | {"tune": tree.get("tune")}))
    try:
        study = read_sweep(path).study
        assert study is not None and study.contestants and study.confirm_seeds and study.measures
    except UserError as error:
        assert str(error)


def test_names_of_runs_differ() -> None:
    rows = unique_names([{"run_name": "a"}, {"run_name": "a"}, {"run_name": "b"}])
    assert [row["run_name"] for row in rows] == ["a", "a-2", "b"]


# -- what is wrong with it -------------------------------------------------------------------------------------------

ONE = "contestants: {a: {grid: {peak_learning_rate: [1, 2]}}}\n"
TUNE = "tune: {by: valid_loss, seeds: [1]}\n"
CONFIRM = "confirm: {seeds: [2], measures: [test_loss]}\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (ONE + TUNE, "confirm is missing: write `confirm: {seeds: [11, 12, 13], measures: [test_loss]}`."),
        (ONE + CONFIRM, "tune is missing, and there are 2 settings to choose from: write `tune: {by: valid_loss"),
        (TUNE + CONFIRM, "contestants is null: name each, write `EBT: {flags: {model_name: ebt}"),
        ("contestants: [a]\n" + CONFIRM, "contestants is [a]: name each"),
        ("contestants: {a: 3}\n" + CONFIRM, "contestant a is 3: write `EBT:"),
        ("contestants: {a: {gird: {}}}\n" + CONFIRM, "gird is no part of contestant a: did you mean grid?"),
        ("contestants: {a: {grid: {seed: 3}}}\n" + CONFIRM, "seed in grid of contestant a is 3: give a list."),
        ("contestants: {a: {grid: 3}}\n" + CONFIRM, "grid of contestant a is 3: write it as `flag: value`."),
        (
            "contestants: {a: {rows: 3}}\n" + CONFIRM,
            "rows of contestant a is 3: write each setting as `- flag: value`.",
        ),
        ("contestants: {a: {rows: [3]}}\n" + CONFIRM, "row 1 of contestant a is 3: write it as `flag: value`."),
        (
            "contestants: {a: {flags: {seed: 3}}}\n" + CONFIRM,
            "--seed is not for a study: tune and confirm have `seeds`",
        ),
        (
            "contestants: {a: {flags: {run_name: x}}}\n" + CONFIRM,
            "--run_name is not for a study: a study names its runs",
        ),
        (
            "base: {run_testing_after_training: true}\ncontestants: {a: {}}\n" + CONFIRM,
            "--run_testing_after_training is not for a study: the runs that confirm are tested",
        ),
        ("contestants: {a: {flags: {max_stepz: 3}}}\n" + CONFIRM, "--max_stepz is unknown: did you mean --max_steps?"),
        (
            "contestants: {a: {flags: {max_steps: 3}, grid: {max_steps: [1]}}}\n" + CONFIRM,
            "max_steps is under grid and in flags or rows of contestant a: keep one.",
        ),
        (ONE + TUNE + CONFIRM + "grid: {max_steps: [1]}\n", "grid is no part of a study: it has base, contestants"),
        (ONE + TUNE + CONFIRM + "header: [x]\n", "header is [x]: name a file of job_scripts/headers/."),
        (
            "contestants: {a: {grid: {peak_learning_rate: [1, 2]}}, b: {}}\n" + TUNE + CONFIRM,
            "contestants have unequal budgets (a 2 and b 1): give each the same number of settings",
        ),
        (ONE + "tune: {seeds: [1]}\n" + CONFIRM, "tune.by is null: name a measure of the validation split"),
        (
            ONE + "tune: {by: test_loss, seeds: [1]}\n" + CONFIRM,
            "tune.by is test_loss: settings are chosen on the validation split, never on what confirms them; "
            "write valid_loss.",
        ),
        (ONE + "tune: {by: valid_loss}\n" + CONFIRM, "tune.seeds is null: give a list of whole numbers"),
        (ONE + "tune: {by: valid_loss, seeds: [1, 1]}\n" + CONFIRM, "tune.seeds is [1, 1]: a seed is there twice"),
        (ONE + "tune: {by: valid_loss, seeds: [-1]}\n" + CONFIRM, "tune.seeds is [-1]: give a list of whole numbers"),
        (ONE + "tune: {by: valid_loss, seed: [1]}\n" + CONFIRM, "seed is no part of tune: did you mean seeds?"),
        (ONE + "tune: 3\n" + CONFIRM, "tune is 3: write it as `flag: value`."),
        (ONE + TUNE + "confirm: {seeds: [1], measures: [test_loss]}\n", "confirm.seeds has 1, which tuning uses: give"),
        (ONE + TUNE + "confirm: {seeds: [2]}\n", "confirm.measures is null: give a list, such as [test_loss]."),
        (
            ONE + TUNE + "confirm: {seeds: [2], measures: [valid_loss]}\n",
            "confirm.measures has valid_loss: winners are confirmed on the test split; write a measure that",
        ),
        (
            ONE + TUNE + "confirm: {seeds: [2], measures: [test_loss, test_loss]}\n",
            "confirm.measures is [test_loss, test_loss]: a measure is there twice; keep one.",
        ),
    ],
)
def test_files_that_are_no_study(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_sweep(path)
    assert sentence in str(error.value), str(error.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("[1e-3, 3e-3]", "[1e-3, x]"), "ours, setting 2: --peak_learning_rate is 'x': give a number"),
        (("[1e-3, 3e-3]", "[1e-3, 0.001]"), "ours (peak_learning_rate 1e-3) and ours (peak_learning_rate 0.001)"),
        (("valid_loss", "valid_lost"), "valid_lost is no measure of ours: choose valid_loss"),
        (("test_loss", "test_solved"), "test_solved is no measure of ours: choose test_loss"),
        (("valid_loss", "valid_targets"), "tune.by is valid_targets: neither a low nor a high value of it is better"),
        (
            ("model_name: baseline_transformer,", "dataset_name: other, model_name: baseline_transformer,"),
            "ours and theirs cannot be compared by valid_loss: other data (--dataset_name",
        ),
        (
            ("model_name: baseline_transformer, ", ""),
            "ours (peak_learning_rate 1e-3) and theirs (peak_learning_rate 1e-3) compute the same: what differs is not",
        ),
    ],
)
def test_settings_that_make_no_fair_study(tmp_path: Path, change: tuple[str, str], sentence: str) -> None:
    study = study_of(tmp_path, STUDY.replace(*change))
    with pytest.raises(UserError) as error:
        check_study(study, tmp_path)
    assert sentence in str(error.value), str(error.value)


@pytest.mark.parametrize(
    ("words", "text", "sentence"),
    [
        (
            ["--with_twin"],
            STUDY,
            "--with_twin has no effect on a study: name the baseline under contestants; remove it.",
        ),
        (["--evaluate"], STUDY, "--evaluate has no effect on a study: its winners are tested when they are confirmed"),
        (["--max_parallel", "0"], STUDY, "--max_parallel is 0: give a whole number of at least 1."),
        (["--skip_failed"], "grid: {seed: [1, 2]}", "--skip_failed has no effect on this file, which is no study"),
        (["--logs_dir", "/proc/x"], STUDY, "--logs_dir is '/proc/x': cannot write there ("),
    ],
)
def test_mistakes_at_the_door(launcher: Launcher, words: list[str], text: str, sentence: str) -> None:
    assert sentence in apply(launcher, *words, text=text, status=2)
    assert not launcher.runs()


# -- numbers ---------------------------------------------------------------------------------------------------------


def student_t_cdf(t: float, freedom: int) -> float:
    """By Simpson's rule; slow and plain."""
    constant = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    steps = 20_000
    heights = [constant * (1 + (t * i / steps) ** 2 / freedom) ** (-(freedom + 1) / 2) for i in range(steps + 1)]
    return 0.5 + t / steps / 3 * (heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]))


@pytest.mark.parametrize("freedom", [*range(1, 15), 30, 100])
def test_the_factor_of_an_interval_covers_95_percent(freedom: int) -> None:
    assert student_t_cdf(t_quantile(freedom), freedom) == pytest.approx(0.975, abs=2e-5)


def test_estimates() -> None:
    three = Estimate.of([1.0, 2.0, 3.0])
    assert (three.n, three.mean, three.spread) == (3, 2.0, 1.0)
    assert three.high - 2 == pytest.approx(2 - three.low) == pytest.approx(4.3027 / math.sqrt(3))
    assert Estimate.of([0.9, 1.0], is_share=True).high == 1.0, "no share is over 100%"
    assert math.isnan(Estimate.of([1.0]).low) and Estimate.of([]).n == 0
    assert Estimate.of([1.0]).record == {"n": 1, "mean": 1.0, "spread": None, "low": None, "high": None}


@pytest.mark.parametrize(
    ("mine", "theirs", "better", "end"),
    [
        ([1.0, 1.01, 1.02], [2.0, 2.01, 2.02], "lower", "a is better, the intervals are apart."),
        ([1.0, 1.01, 1.02], [2.0, 2.01, 2.02], "higher", "b is better, the intervals are apart."),
        ([1.0, 1.01, 1.02], [2.0, 2.01, 2.02], None, "the intervals are apart."),
        ([1.0, 2.0, 3.0], [2.0, 3.0, 4.0], "lower", "within noise."),
        ([1.0], [2.0, 3.0], "lower", "with one seed it is not known how much of it is chance."),
        ([], [2.0, 3.0], "lower", "cannot be compared, as one of them has no value."),
    ],
)
def test_sentences_about_two_contestants(mine: list[float], theirs: list[float], better: Any, end: str) -> None:
    sentence = compare(Measure("loss", "loss", "", better), ("a", Estimate.of(mine)), ("b", Estimate.of(theirs)))
    assert sentence.startswith("loss: a ") and sentence.endswith(end)


def outcome(tmp_path: Path, setting: int, seed: int, value: Any, cause: str = "finished") -> Outcome:
    run = tmp_path / f"run-{setting}-{seed}"
    run.mkdir()
    stamps = {"start": "2026-01-01T00:00:00+0000", "end": "2026-01-01T00:01:00+0000"}
    (run / "attempts.jsonl").write_text(json.dumps({"attempt": 1, **stamps, "cause": cause}) + "\n")
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "valid_loss": value}) + "\n")
    return Outcome("tune", 0, setting, seed, Run(run))


def chosen(tmp_path: Path, values: list[tuple[Any, str]], better: str = "lower", by: str = "valid_loss") -> Choice:
    rows = [{"peak_learning_rate": f"{number + 1}e-3"} for number in range(len(values))]
    study = Study("mine", [Contestant("ours", rows)], by, [1], [2], ["test_loss"])
    outcomes = [outcome(tmp_path, number, 1, *value) for number, value in enumerate(values)]
    return choose(study, outcomes, better)[0]


def test_the_best_setting_is_chosen(tmp_path: Path) -> None:
    choice = chosen(tmp_path, [(3.0, "finished"), (1.0, "finished"), (2.0, "finished")])
    assert choice == Choice(1, [3.0, 1.0, 2.0], [])


def test_the_edge_of_what_was_tried_is_named(tmp_path: Path) -> None:
    choice = chosen(tmp_path, [(1.0, "finished"), (2.0, "finished"), (3.0, "finished")], better="higher")
    assert choice.setting == 2
    assert choice.notes == ["ours: peak_learning_rate 0.003 is the largest that was tried; the best may lie beyond it."]


def test_ties_and_bad_ends_are_named(tmp_path: Path) -> None:
    choice = chosen(
        tmp_path,
        [(math.nan, "finished"), (1.0, "finished"), (1.0, "finished"), (0.5, "diverged: nan"), (0.1, "error: x")],
    )
    assert choice.setting == 1 and [math.isnan(score) for score in choice.scores] == [True, False, False, True, True]
    assert choice.notes == [
        "ours: peak_learning_rate 1e-3 has no finite valid_loss, and counts as lost.",
        "ours: peak_learning_rate 4e-3 diverged, and counts as lost.",
        "ours: peak_learning_rate 5e-3 failed, and counts as lost.",
        "ours: peak_learning_rate 2e-3 is level with peak_learning_rate 3e-3; the first in the file is taken.",
    ]


def test_nothing_to_choose_from(tmp_path: Path) -> None:
    choice = chosen(tmp_path, [(1.0, "diverged: nan"), (1.0, "diverged: nan")])
    assert choice.setting is None and choice.notes[-1] == "ours: no setting could be judged, so none is confirmed."


def test_a_run_that_did_not_measure_what_it_is_chosen_by(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^run-0-1 has no valid_near: it has valid_loss.$"):
        chosen(tmp_path, [(1.0, "finished")], by="valid_near")


def test_a_table_as_csv_has_a_column_for_every_key() -> None:
    assert csv_text([{"a": 1, "b": "x, y"}, {"c": None, "a": 2}]) == 'a,b,c\n1,"x, y",\n2,,\n'


# -- on this machine -------------------------------------------------------------------------------------------------


def test_a_study_from_tuning_to_the_table(launcher: Launcher) -> None:
    output = apply(launcher, "--dry_run")
    assert "4 rows: 4 new; 4 to submit" in output and "nothing was made: --dry_run" in output
    assert not launcher.logs.exists()
    output = apply(launcher, "--max_parallel", "2")
    assert "tuning: 2 settings for each of 2, 4 runs" in output and "4 runs on this machine, 2 at a time" in output
    assert "chosen  ours: peak_learning_rate 3e-3 (valid_loss 1.0000)" in output
    assert "chosen  theirs: peak_learning_rate 1e-3 (valid_loss 2.0000)" in output
    assert "confirming: 2 winners, 3 seeds each" in output
    assert "test loss: ours 1.0120, theirs 2.0120: ours is better, the intervals are apart." in output
    runs = launcher.runs()
    assert len(runs) == 4 + 6 and all(run.state == "finished" for run in runs)
    tested = [run for run in runs if "confirm" in run.name]
    assert {run.settings["seed"] for run in tested} == {11, 12, 13}
    assert all(run.settings["run_testing_after_training"] == (run in tested) for run in runs), "tuning sees no test"
    assert {run.settings["peak_learning_rate"] for run in tested if "ours" in run.name} == {0.003}
    record = results(launcher)
    ours, theirs = record["contestants"]
    assert ours["chosen"] == {"peak_learning_rate": "3e-3"} and ours["flops"] == 1000 and ours["parameters"] == 1234
    assert ours["measures"]["test_loss"]["n"] == 3
    assert ours["measures"]["test_loss"]["mean"] == pytest.approx(1.012)
    assert theirs["settings_tried"] == 2 and record["stage"] == "done" and len(record["runs"]) == 10
    folder = launcher.logs / "sweeps" / "mine"
    table = (folder / "table.md").read_text()
    assert "| ours | peak_learning_rate 3e-3 | 2 | 3 | 1.0120 ± 0.0010 [1.0095, 1.0145] | 1e+03 | 1,234 |" in table
    assert "which tuning had not seen" in table and "## Settings tried" in table and table.count("| chosen |") == 3
    with open(folder / "runs.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["stage"] for row in rows] == ["tune"] * 4 + ["confirm"] * 6 and rows[0]["valid_loss"] == "1.5"
    # again: nothing is trained, and the table is the same
    again = apply(launcher)
    assert (
        len(launcher.runs()) == 10 and "test loss: ours 1.0120" in again and (folder / "table.md").read_text() == table
    )
    # with fresh seeds only these are trained
    apply(launcher, text=STUDY.replace("[11, 12, 13]", "[11, 12, 13, 14]"))
    assert len(launcher.runs()) == 12 and results(launcher)["contestants"][0]["measures"]["test_loss"]["n"] == 4


def test_a_study_without_tuning_has_no_interval_with_one_seed(launcher: Launcher) -> None:
    text = STUDY.replace("[1e-3, 3e-3]", "[1e-3]").replace("tune: {by: valid_loss, seeds: [1]}\n", "")
    output = apply(launcher, text=text.replace("[11, 12, 13]", "[11]"))
    assert "tuning" not in output.split("confirming")[0] and len(launcher.runs()) == 2
    assert "Each was trained with seed 11 as given, without tuning, and tested." in output
    assert "how much of a difference is chance is not known" in output and "theirs 2.0110:" not in output


def test_a_row_that_fails_stops_the_study_until_it_is_run_again_or_skipped(launcher: Launcher) -> None:
    launcher.tell("fails", "mine-ours-peak-learning-rate-3e-3")
    output = apply(launcher, status=1)
    assert "1 row did not come to the end: mine-ours-peak-learning-rate-3e-3_" in output and "(failed)" in output
    assert "apply the sweep again to run them again, or with --skip_failed to count them as lost." in output
    assert len(launcher.runs()) == 4, "nobody is confirmed before all are tuned"
    output = apply(launcher, "--skip_failed")
    assert "chosen  ours: peak_learning_rate 1e-3" in output and len(launcher.runs()) == 10
    assert "ours: peak_learning_rate 3e-3 failed, and counts as lost." in results(launcher)["notes"]
    (launcher.logs / "fails").unlink()
    output = apply(launcher)
    assert "4 rows: 3 done, 1 again; 1 to submit" in output and "chosen  ours: peak_learning_rate 3e-3" in output
    assert launcher.run_named("mine-ours-peak_learning_rate=3e-3").parent is not None


def test_a_row_that_diverges_has_lost_and_is_not_run_again(launcher: Launcher) -> None:
    launcher.tell("diverges", "mine-ours-peak-learning-rate-3e-3")
    output = apply(launcher)
    assert "chosen  ours: peak_learning_rate 1e-3" in output and len(launcher.runs()) == 10
    note = "ours: peak_learning_rate 3e-3 diverged, and counts as lost."
    assert note in output and note in (launcher.logs / "sweeps" / "mine" / "table.md").read_text()
    assert "4 rows: 3 done, 1 diverged; 0 to submit" in apply(launcher) and len(launcher.runs()) == 10


def test_seeds_that_diverge_are_in_no_mean(launcher: Launcher) -> None:
    launcher.tell("diverges", "ours-confirm-seed-12")
    output = apply(launcher)
    assert "ours: seed 12 diverged, and is in no mean." in output
    assert results(launcher)["contestants"][0]["measures"]["test_loss"]["n"] == 2


def test_nobody_can_be_judged(launcher: Launcher) -> None:
    launcher.tell("diverges", "mine")
    assert "No setting of any contestant could be judged" in apply(launcher, status=1)


def start_study(launcher: Launcher) -> subprocess.Popen[str]:
    launcher.tell("waits", "3e-3")
    file = launcher.file("mine.yaml", STUDY)
    command = [sys.executable, "-m", "launch", "sweep", file, "--cluster", "local", "--max_parallel", "2"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=launcher.root, env=launcher.environment(), **pipes)
    names = [f"mine-{name}-peak_learning_rate=3e-3" for name in ("ours", "theirs")]
    wait("its rows", lambda: len(launcher.runs()) == 4 and all(len(launcher.starts(name)) == 1 for name in names))
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_study_that_is_stopped_goes_on_where_it_stands(launcher: Launcher, number: signal.Signals) -> None:
    process = start_study(launcher)
    assert "is in use: another process works on this study; wait for its end." in apply(launcher, status=2)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75 and "stopped; apply the sweep again, and it goes on where it stands." in output
    assert sorted(run.state for run in launcher.runs()) == ["finished"] * 2 + ["interrupted"] * 2
    output = apply(launcher)
    assert "4 rows: 2 done, 2 resumes; 2 to submit" in output and "the intervals are apart" in output
    assert len(launcher.runs()) == 10
    starts = launcher.starts("mine-ours-peak_learning_rate=3e-3")
    assert [row["first_step"] for row in starts] == [0, 1], "it resumed in its folder"


def test_a_study_that_is_killed_begins_no_row_twice(launcher: Launcher) -> None:
    process = start_study(launcher)
    process.kill()
    process.communicate(timeout=60)
    (launcher.logs / "waits").unlink()
    name = "mine-ours-peak_learning_rate=3e-3"
    assert len(launcher.starts(name)) == 1
    for child in (name, name.replace("ours", "theirs")):  # as a reboot does; they are not ours to wait for here
        run = launcher.run_named(child).path
        for line in subprocess.run(["pgrep", "-f", str(run)], capture_output=True, text=True).stdout.split():
            os.kill(int(line), signal.SIGKILL)
    output = apply(launcher)
    assert "2 resumes; 2 to submit" in output and "the intervals are apart" in output
    assert [row["first_step"] for row in launcher.starts(name)] == [0, 1] and len(launcher.runs()) == 10


def test_rows_are_recognised_after_match_flops_chose_their_steps(launcher: Launcher) -> None:
    """A run's record has what was chosen; its row has not."""
    text = STUDY.replace("max_steps: 10", "match_flops: 1e9").replace("[1e-3, 3e-3]", "[1e-3]")
    apply(launcher, text=text)
    for run in launcher.runs():
        config = run.config | {"trainer": run.config["trainer"] | {"max_steps": 77}}
        (run.path / "config.json").write_text(json.dumps(config))
    assert "2 rows: 2 done; 0 to submit" in apply(launcher, text=text) and len(launcher.runs()) == 2 + 6
    assert "2 rows: 2 new; 2 to submit" in apply(launcher, "--dry_run", text=text.replace("1e9", "2e9"))


def test_a_study_in_the_queue(launcher: Launcher) -> None:
    launcher.file("mine.yaml", STUDY)
    assert "1 job is in the queue" in launcher.launch("queue", "mine.yaml")
    wait("the table", (launcher.logs / "sweeps" / "mine" / "table.csv").exists)
    wait("the end of the queue", lambda: "the queue runs" not in launcher.launch("queue", "status"))
    assert len(launcher.runs()) == 10


HOLDING = """\
import sys, time
from pathlib import Path
from runs.lock import Lock
run = Path(sys.argv[1])
lock = Lock(run / "lock")
lock.acquire()
print("held", flush=True)
time.sleep(1.5)
with open(run / "attempts.jsonl", "a") as file:
    file.write(sys.argv[2])
"""


def test_a_run_of_a_killed_study_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its process holds the run's lock, and its end is the row's."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    start, end = {"start": now, "host": platform.node()}, {"end": now, "cause": "finished"}
    (tmp_path / "attempts.jsonl").write_text(json.dumps({"attempt": 1, **start}) + "\n")
    command = [sys.executable, "-c", HOLDING, str(tmp_path), json.dumps({"attempt": 1, **end}) + "\n"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        row = SweepRow(1, "a", [], parse_command_line(["--no_wandb"]), {}, "running", tmp_path, is_submitted=False)
        rows = [StageRow("tune", 0, 0, 1, row)]
        study = Study("mine", [Contestant("a", [{}])], "", [], [1], ["test_loss"])
        options = Options([], dry_run=False, max_parallel=None, skip_failed=False, follow=False)
        Stages(study, tmp_path, tmp_path, None, options, tmp_path, {}).wait_for_others(rows)
        assert rows[0].outcome.state == "finished"
    assert f"waiting for {tmp_path.name}, which runs already" in capsys.readouterr().out


def test_workers_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "own_cpus", lambda: 4)
    monkeypatch.setattr(workers, "GPUS", tmp_path / "gpus")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert default_workers() == 4 and [threads_of_each(count) for count in (1, 2, 3, 8)] == [4, 2, 1, 1]
    runs = []
    for number in range(3):
        runs.append(tmp_path / f"run{number}")
        runs[-1].mkdir()
        script = 'cd "${0%/*}"; echo $OMP_NUM_THREADS; date +%s.%N > began; sleep 0.5; date +%s.%N > ended\n'
        (runs[-1] / "job_script.slurm").write_text(script)
    lines: list[str] = []
    assert Workers(2, lines.append).work(runs) and len(lines) == 3 and lines[0].startswith("[1/3] run")
    began, ended = ([float((run / name).read_text()) for run in runs] for name in ("began", "ended"))
    assert max(began[:2]) < min(ended[:2]) and began[2] > min(ended[:2]), "two at once, and the third after one of them"
    assert (runs[0] / "output.log").read_text() == "2\n"
    (tmp_path / "gpus" / "0").mkdir(parents=True)
    assert default_workers() == 1, "a run may use all GPUs"


def test_a_real_study_is_killed_and_comes_to_its_table(tmp_path: Path) -> None:
    """Real runs of the toy task, whose package is found from outside."""
    logs, file, toy = tmp_path / "logs", tmp_path / "toy.yaml", tmp_path / "outside"
    shutil.copytree(ROOT / "tests" / "toy", toy, ignore=shutil.ignore_patterns("__pycache__"))
    grid = {"peak_learning_rate": ["1e-3", "3e-3"]}
    tree: dict[str, Any] = {"base": TOY, "tune": {"by": "valid_near", "seeds": [1]}}
    tree["contestants"] = {"few": {"flags": {"num_modes": 3}, "grid": grid}, "same": {"flags": {"noise_level": 0.301}}}
    tree["contestants"]["same"]["grid"] = grid
    tree["confirm"] = {"seeds": [11, 12], "measures": ["test_near", "test_loss"]}
    file.write_text(json.dumps(tree))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "EBT_"))}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(toy)}
    command = [sys.executable, "-m", "launch", "sweep", str(file), "--cluster", "local", "--logs_dir", str(logs)]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wait("a start", lambda: len(list(logs.glob("runs/*/attempts.jsonl"))) > 0)
    process.kill()
    process.communicate(timeout=60)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = list((logs / "runs").iterdir())
    assert len(runs) == 8 and all(len(Run(run).attempts) == 1 for run in runs), "what ran on was not begun again"
    record = json.loads((logs / "sweeps" / "toy" / "study.json").read_bytes())
    assert all(run["state"] == "finished" and run["flops"] > 0 and run["parameters"] > 0 for run in record["runs"])
    for contestant in record["contestants"]:
        assert contestant["measures"]["test_near"]["n"] == 2 and contestant["measures"]["test_loss"]["mean"] > 0


# -- on Slurm --------------------------------------------------------------------------------------------------------


def test_the_job_that_goes_on_asks_for_little_and_uses_the_code_of_its_rows(tmp_path: Path) -> None:
    header = Header("mine", ["#SBATCH --nodes=4", "#SBATCH --time=48:00:00", "#SBATCH --partition=gpu"], ["module x"])
    run = tmp_path / "it's a run"
    text = next_script(tmp_path / "fair", header, run, ["sweep", "it's.yaml", "--follow"])
    assert "--nodes=1" in text and "--nodes=4" not in text and "--time=30" in text and "--partition=gpu" in text
    assert text.index("module x") < text.index("export EBT_JOB_RUN_DIR"), "a header that fails is not that run's end"
    assert "'it'\"'\"'s.yaml'" in text and subprocess.run(["bash", "-n"], input=text.encode()).returncode == 0


def test_a_job_that_goes_on_is_submitted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = {"7": {"JobState": "PENDING"}, "8": {"JobState": "COMPLETED"}}
    monkeypatch.setattr("launch.study.scontrol_show", lambda _, job: states[job])
    assert waiting_job(tmp_path) is None
    for job, answer in {"7": "7", "8": None}.items():
        (tmp_path / "next.json").write_text(json.dumps({"job": job}))
        assert waiting_job(tmp_path) == answer
    (tmp_path / "next.json").write_text('{"job": "7"}')
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert waiting_job(tmp_path) is None, "it is this very process"
