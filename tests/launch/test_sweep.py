"""Sweeps: what a file means, what is wrong with it, and what happens to each row when it is applied once and again."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from config import SettingsError, parse_command_line
from config.record import to_dict, values_of
from core.errors import UserError
from launch.script import job_script
from launch.study import check_study
from launch.sweep import compare_with_runs, plan_rows, run_names, twins
from launch.sweep_file import SweepFile, flag_words, group_by_row, read_sweep, spans
from tests.conftest import ROOT
from tests.launch.launcher import Launcher, wait

BASE = {"model_size": "4xs", "no_wandb": True}
HOSTILE = [
    "$(touch gone)",
    "`touch gone`",
    "'; touch gone; '",
    "a\nb",
    "\n#SBATCH --nodes=9\n",
    "--no_wandb",
    "-1",
    "*",
]
HOSTILE += ["x" * 300, "é 漢字 \u202e", '"', "'", "\\", "%j", "true", "null", "007", "1e-3", " ", "a,b", "#c", "{x: 1}"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30) | st.sampled_from(HOSTILE)


def sweep_of(*rows: dict[str, Any], twin: bool = False) -> SweepFile:
    return SweepFile("mine", [BASE | row for row in rows], twin)


# -- what a file means -----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    base=st.dictionaries(st.sampled_from(["seed", "dataset_name"]), TEXT, max_size=2),
    grid=st.dictionaries(st.sampled_from(["max_steps", "text_field"]), st.lists(TEXT, min_size=1, max_size=3)),
    rows=st.lists(st.dictionaries(st.sampled_from(["seed", "wandb_project"]), TEXT), max_size=3),
)
def test_rows_of_a_yaml_file(
    tmp_path: Path, base: dict[str, str], grid: dict[str, list[str]], rows: list[dict[str, str]]
) -> None:
    path = tmp_path / "mine.yaml"
    content = {"base": base, "grid": grid, "rows": rows}
    path.write_text(yaml.safe_dump(content, allow_unicode=True, sort_keys=False))
    assume(yaml.safe_load(path.read_text()) == content)  # PyYAML writes a next-line character that it reads as a space
    crossed = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    if not grid and not rows:
        with pytest.raises(UserError, match=r"it has no rows; write `grid:` with a list for each flag"):
            read_sweep(path)
        return
    assert read_sweep(path).rows == [base | row | cell for row in rows or [{}] for cell in crossed]


def test_rows_of_a_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text('\ufeffseed, --text_field,no_wandb\r\n1,"a, ""b""\nc",true\r\n\r\n2,,\r\n')
    assert read_sweep(path) == SweepFile(
        "mine", [{"seed": "1", "text_field": 'a, "b"\nc', "no_wandb": "true"}, {"seed": "2"}]
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=60) | st.text("abgrids:[]{}-&*!,\"'\n \t01", max_size=60).map(str.encode),
    is_csv=st.booleans(),
)
@example(content=b"rows: &a [*a]", is_csv=False)
@example(content=b"grid: {seed: !!python/object/apply:os.system ['touch gone']}", is_csv=False)
@example(content=b'a\n"', is_csv=True)
def test_any_file_is_read_or_refused(tmp_path: Path, content: bytes, is_csv: bool) -> None:
    path = tmp_path / ("any.csv" if is_csv else "any.yaml")
    path.write_bytes(content)
    try:
        assert read_sweep(path).rows
    except UserError as error:
        assert str(error)
    assert not (ROOT / "gone").exists()


@settings(max_examples=120, deadline=None)
@given(
    flag=st.sampled_from(["run_name", "dataset_name", "text_field", "wandb_project"]), value=TEXT, tags=st.lists(TEXT)
)
def test_a_value_arrives_as_it_was_written_or_is_refused(flag: str, value: str, tags: list[str]) -> None:
    problems: list[str] = []
    words = flag_words({flag: value, "wandb_tags": tags}, problems)
    if problems:
        assert any(tag.startswith("--") for tag in tags)
        return
    try:
        config = values_of(parse_command_line(words))
    except SettingsError:
        return
    assert config[flag] == value and config["wandb_tags"] == tuple(tags) and not config["no_wandb"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(TEXT, min_size=1, max_size=3))
@example(values=["$(touch gone)", "it's `touch gone` é", "a #SBATCH --nodes=9"])
def test_rows_reach_a_run_as_they_were_written(tmp_path: Path, values: list[str]) -> None:
    """Through the names made of them, the parser, the job script and the real bash."""
    try:
        rows = plan_rows(sweep_of(*({"dataset_name": value} for value in values)), tmp_path)
    except SettingsError as error:
        assert "--dataset_name" in str(error)
        return
    assert len({row.name for row in rows}) == len(rows)
    (tmp_path / "code" / "job_scripts").mkdir(parents=True, exist_ok=True)
    for name in ("environment.sh", "under_slurm.sh"):
        (tmp_path / "code" / "job_scripts" / name).write_text(
            "under_slurm() { shift; printf '%s\\0' \"$@\"; }\npython=true\n"
        )
    row = rows[-1]
    made = job_script(None, "job_scripts/train.slurm", "", row.words, tmp_path, [])
    done = subprocess.run(["bash"], input=made.encode(), cwd=tmp_path, capture_output=True)
    assert done.stdout.decode().split("\0")[1:-1] == row.words and not done.stderr
    assert row.config.data.dataset_name == values[-1] and not list(tmp_path.rglob("gone"))


def test_the_examples_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "sweeps.md").read_text()
    examples = re.findall(r"^```(yaml|csv)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    rows, studies = [], []
    for kind, text in examples:
        (tmp_path / f"lr.{kind}").write_text(text)
        sweep = read_sweep(tmp_path / f"lr.{kind}")
        if sweep.study is not None:
            studies.append(check_study(sweep.study, tmp_path))
        else:
            rows.append(plan_rows(sweep, tmp_path))
    assert [len(each) for each in rows] == [6, 4, 2] and [list(each) for each in studies] == [
        ["valid_loss", "test_loss", "test_perplexity"]
    ]
    assert rows[0][2].name in page


# -- what is wrong with it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("grid: {max_stepz: [1]}", ["--max_stepz is unknown: did you mean --max_steps?"]),
        ("grids: {seed: [1]}", ["grids is no part of a sweep: did you mean grid?"]),
        ("seed: 3\nrows: [{seed: 1}]", ["seed is no part of a sweep: flags go under base, grid or rows."]),
        ("grid: {seed: 3}", ["seed under grid is 3: give a list, such as [1, 2]."]),
        ("grid: {seed: []}", ["seed under grid is []: give a list, such as [1, 2]."]),
        ("grid: [1, 2]", ["grid is [1, 2]: write it as `flag: value`."]),
        ("rows: {seed: 1}", ["rows is no list: write each run as `- flag: value`."]),
        ("rows: [seed]", ["row 1 is seed: write it as `flag: value`."]),
        ("twin: 2\nrows: [{seed: 1}]", ["twin is 2: write true or false."]),
        ("grid: {seed: [1]}\nrows: [{}, {seed: 2}]", ["seed is under grid and in row 2: keep one."]),
        ("rows: [{seed: 1, seed: 2}]", ["seed (line 1) is given twice: keep one."]),
        ("rows: [{embedding_dim: 4, override_embedding_dim: 4}]", ["--embedding_dim is given twice, in two spellings"]),
        ("rows: [{logs_dir: x}]", ["--logs_dir is not for a row: give --logs_dir to the sweep itself."]),
        ("rows: [{resume_training_ckpt: last}]", ["--resume_training_ckpt is not for a row: apply the sweep again"]),
        ("[]", ["it is no mapping; write `grid:`"]),
        ("", ["it has no rows; write `grid:`"]),
        ("base: {seed: 1}", ["it has no rows; write `grid:`"]),
        ("grid: {seed: [1", ["it is not valid YAML"]),
        ("rows: [{seed: [[[1]]]}]", ["it is nested too deeply; write `grid:`"]),
        (
            f"grid: {{seed: {list(range(200))}, max_steps: {list(range(1, 200))}}}",
            ["it makes 39,800 rows; a sweep has at most 20,000."],
        ),
    ],
)
def test_files_that_are_no_sweep(tmp_path: Path, text: str, sentences: list[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_sweep(path)
    assert all(sentence in str(error.value) for sentence in sentences), str(error.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seed,seed\n1,2\n", "column seed is there twice: keep one."),
        ("seed\n1,2\n", "row 1 has 2 cells, and there are 1 columns: correct it."),
        ('seed\n"1', "it is not valid CSV ("),
        ("seed\n", "it has no rows"),
    ],
)
def test_tables_that_are_no_sweep(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_sweep(path)
    assert sentence in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(b"\xff")
    for path, sentence in {
        tmp_path / "no.yaml": "there is no such file; give a YAML or CSV file.",
        tmp_path / "mine.yaml": "it is not a UTF-8 text; give a YAML or CSV file.",
        tmp_path: "it cannot be read (Is a directory); check the path and its permissions.",
    }.items():
        with pytest.raises(UserError) as error:
            read_sweep(path)
        assert str(error.value) == f"FILE is {str(path)!r}: {sentence}"


def test_the_problems_of_all_rows_are_told_together(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"max_steps": "x"},
        {},
        {"max_steps": "x", "no_wandb": "maybe"},
        {"seed": ["1"]},
        {"mcmc_num_steps": True},
    ]
    with pytest.raises(SettingsError) as error:
        plan_rows(sweep_of(*rows), tmp_path)
    assert str(error.value).split("\n") == [
        "rows 1, 3: --max_steps is 'x': give a whole number of at least 1.",
        "row 3: --no_wandb is 'maybe': write true or false.",
        "row 4: --seed is [1]: give a whole number of at least 0; several values to try go under grid.",
        "row 5: --mcmc_num_steps is true: give a whole number of at least 1.",
    ]


def test_numbers_of_rows() -> None:
    assert spans([3]) == "row 3" and spans([1, 2, 5]) == "rows 1, 2, 5" and spans([1, 2, 3, 7]) == "rows 1 to 3, 7"
    assert group_by_row((number, "no.") for number in range(1, 1001)) == ["rows 1 to 1000: no."]


# -- names, twins ----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.dictionaries(st.sampled_from(["text_field", "seed", "wandb_project"]), TEXT), min_size=1, max_size=6
    )
)
def test_names_are_good_and_differ(rows: list[dict[str, Any]]) -> None:
    differing = [flag for flag in ("text_field", "seed") if any(flag in row for row in rows)]
    names = run_names("mine", rows, differing)
    assert len(set(names)) == len(names)
    for name in names:
        assert parse_command_line([f"--run_name={name}"]).run.run_name == name


def test_names_say_what_differs() -> None:
    rows = [{"peak_learning_rate": "1e-3", "seed": "0"}, {"peak_learning_rate": "1e-3", "seed": "1"}]
    assert run_names("lr", rows, ["seed"]) == ["lr-seed=0", "lr-seed=1"]
    assert run_names("lr", [row | {"run_name": "x"} for row in rows], ["seed"]) == ["x-seed=0", "x-seed=1"]
    assert run_names("lr", [{"run_name": "a"}, {"run_name": "b"}], []) == ["a", "b"]
    long = ["mcmc_replay_buffer_sample_bs_percent", "randomize_mcmc_step_size_scale"]
    assert run_names("a", [dict.fromkeys(long, "1"), dict.fromkeys(long, "2")], long) == [
        "a-mrbsbp=1-rmsss=1",
        "a-mrbsbp=2-rmsss=2",
    ]


def test_each_ebt_has_a_twin(tmp_path: Path) -> None:
    rows = [{"seed": "1", "mcmc_num_steps": "3", "recipe": "s1"}, {"model_name": "baseline_transformer"}]
    assert twins(rows) == [{"seed": "1", "model_name": "baseline_transformer"}]
    planned = plan_rows(sweep_of({"mcmc_num_steps": "2"}, {"mcmc_num_steps": "3"}, twin=True), tmp_path)
    compare_with_runs(planned, tmp_path, set())
    assert [row.name for row in planned[:3]] == ["mine-mcmc_num_steps=2", "mine-mcmc_num_steps=3", "mine-transformer++"]
    assert [row.action for row in planned] == ["new", "new", "new", "as row 3"], "one twin is enough for both"


# -- the runs there are ----------------------------------------------------------------------------------------------


def make_run(logs: Path, name: str, flags: list[str], cause: str | None, has_script: bool = True) -> Path:
    """A run's folder; cause: how its attempt ended, None if it never began."""
    run = logs / "runs" / f"{name}_20260101-000000_{name}"
    (run / "code").mkdir(parents=True)
    config = parse_command_line(
        ["--model_size", "4xs", *flags, "--run_name", name, "--no_wandb", "--logs_dir", str(logs)]
    )
    (run / "config.json").write_text(json.dumps(to_dict(config)))
    if has_script:
        (run / "job_script.slurm").write_text("")
    if cause:
        rows = [
            {"attempt": 1, "start": "2026-01-01T00:00:00+0000", "host": "x"},
            {"attempt": 1, "end": "2026-01-01T00:01:00+0000", "cause": cause},
        ]
        (run / "attempts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_what_happens_to_rows_whose_runs_there_are(tmp_path: Path) -> None:
    causes = ["finished", "error: ValueError", "diverged", "preempted", "cancelled", "killed", None]
    runs = [make_run(tmp_path, f"r{seed}", ["--seed", str(seed)], cause) for seed, cause in enumerate(causes)]
    plain = make_run(tmp_path, "plain", ["--seed", "90"], "preempted", has_script=False)
    queued = make_run(tmp_path, "queued", ["--seed", "91"], None)
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "config.json").write_text('{"trainer": {"seed": {}}}')
    rows = plan_rows(sweep_of(*({"seed": str(seed)} for seed in [*range(len(causes)), 90, 91, 92])), tmp_path)
    compare_with_runs(rows, tmp_path, {queued})
    assert [row.action for row in rows] == [
        "done",
        "again: failed",
        "again: diverged",
        *("resumes: interrupted", "resumes: cancelled", "resumes: killed", "resumes: prepared"),
        "again: interrupted",
        "in the queue",
        "new",
    ]
    assert [row.is_submitted for row in rows] == [False, *[True] * 7, False, True]
    assert [row.run for row in rows if not row.is_new] == runs[3:7]
    assert rows[1].parent == runs[1].name and rows[7].parent == plain.name, "the new run knows which it repeats"


def test_a_run_is_known_by_its_settings_and_not_by_its_name(tmp_path: Path) -> None:
    make_run(tmp_path, "other", ["--seed", "1", "--wandb_tags", "a"], "finished")
    make_run(tmp_path, "drawn", ["--is_random_seed", "--max_steps", "7"], "finished")
    row_flags = [
        {"seed": "1", "run_name": "mine"},
        {"seed": "1", "max_steps": "8"},
        {"is_random_seed": "true", "max_steps": "7"},
    ]
    rows = plan_rows(sweep_of(*row_flags), tmp_path)
    compare_with_runs(rows, tmp_path, set())
    assert [row.action for row in rows] == ["done", "new", "done"]


# -- on this machine -------------------------------------------------------------------------------------------------


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(tmp_path / "it's a launcher")


def states(launcher: Launcher) -> dict[str, list[str]]:
    """Of all runs of each name, in the order in which they were made."""
    states_by_name: dict[str, list[str]] = {}
    for run in launcher.runs():
        states_by_name.setdefault(run.name, []).append(run.state)
    return states_by_name


def test_a_sweep_on_this_machine(launcher: Launcher) -> None:
    (launcher.root / "inference").mkdir()
    (launcher.root / "inference" / "__main__.py").write_text("import sys\nopen(sys.argv[3] + '/evaluated', 'w')\n")
    launcher.tell("fails", "seed-2")
    file = launcher.file("lr.yaml", "base: {no_wandb: true, dataset_dir: texts}\ngrid: {seed: [1, 2]}\n")
    output = launcher.launch("sweep", file, "--cluster", "local", "--dry_run")
    assert "lr-seed=1" in output and "2 rows: 2 new; 2 to submit" in output and "nothing was made: --dry_run" in output
    assert not launcher.runs()
    output = launcher.launch("sweep", file, "--cluster", "local", "--evaluate")
    assert "4 jobs are in the queue of this machine" in output and "the queue runs in the background" in output
    wait("the runs", lambda: states(launcher) == {"lr-seed=1": ["finished"], "lr-seed=2": ["failed"]})
    first, second = launcher.run_named("lr-seed=1"), launcher.run_named("lr-seed=2")
    wait("the evaluation", (first.path / "evaluated").exists)
    assert launcher.starts("lr-seed=1")[0]["argv"][-2:] == ["--logs_dir", str(launcher.logs)]
    assert f"--dataset_dir={launcher.root / 'texts'}" in launcher.starts("lr-seed=1")[0]["argv"]
    assert (first.path / "code").resolve() == (second.path / "code").resolve(), "one snapshot for all"
    record = {
        "config.json",
        "task.json",
        "command.txt",
        "code.json",
        "code.diff",
        "environment.json",
        "job_script.slurm",
        "lineage.json",
    }
    assert record <= {file.name for file in first.path.iterdir()}
    assert len(list((launcher.logs / "job_scripts").iterdir())) == 2
    wait("the end of the queue", lambda: "the queue runs" not in launcher.launch("queue", "status"))
    assert (
        "skipped: its run is not finished" in launcher.launch("queue", "status")
        and not (second.path / "evaluated").exists()
    )

    (launcher.logs / "fails").unlink()
    output = launcher.launch("queue", file)
    assert "2 rows: 1 done, 1 again; 1 to submit" in output
    wait("it", lambda: states(launcher) == {"lr-seed=1": ["finished"], "lr-seed=2": ["failed", "finished"]})
    assert launcher.run_named("lr-seed=2").parent == second.run_id
    assert "nothing to submit" in launcher.launch("sweep", file, "--cluster", "local")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--max_parallel", "0"], "--max_parallel is 0: give a whole number of at least 1."),
        (["--max_parallel", "2"], "--max_parallel has no effect on this machine, where rows run one after another"),
        (
            ["--header", "local_cpu"],
            "--header is 'local_cpu': it has no effect with --cluster local; remove one of them.",
        ),
        (["--logs_dir", "/proc/x"], "--logs_dir is '/proc/x': cannot write there ("),
    ],
)
def test_mistakes_at_the_door(launcher: Launcher, words: list[str], sentence: str) -> None:
    file = launcher.file("lr.yaml", "grid: {seed: [1, 2]}\n")
    assert sentence in launcher.launch("sweep", file, "--cluster", "local", *words, status=2)
    assert not launcher.runs()


def test_nothing_is_made_when_a_row_is_wrong(launcher: Launcher) -> None:
    file = launcher.file("lr.csv", "seed,max_steps\n1,10\n2,0\n")
    assert "row 2: --max_steps is 0: give a whole number of at least 1." in launcher.launch("sweep", file, status=2)
    assert not launcher.logs.exists()
