"""A job's run folder: created once, found again, whatever the run is called and whatever is damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.errors import UserError
from launch.__main__ import main
from launch.job import MAX_STARTS, check_progress, find_run_folder, prepare, starts_from
from runs import RunFolder
from runs.process import ATTEMPT_MARK
from tests.conftest import ROOT

JOB = {"SLURM_JOB_ID": "17", "SLURM_CLUSTER_NAME": "test", "SLURM_JOB_NODELIST": "n1"}
IDENTITY = {"job": "17", "cluster": "test"}


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("SLURM_"):
            monkeypatch.delenv(name)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Inside of job 17, on a machine whose Slurm does not answer."""
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", "")
    return monkeypatch


@pytest.fixture(scope="session")
def names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("names")


def runs(logs: Path) -> list[Path]:
    return sorted((logs / "runs").iterdir())


def save(folder: Path, step: int) -> None:
    (folder / "checkpoints" / f"step_{step:08}.ckpt").touch()


HOSTILE = (
    "a b",
    "it's",
    'say "x"',
    "$(touch gone)",
    "`touch gone`",
    "#SBATCH --uid=0",
    "x;rm -rf *",
    "ü✓",
)


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.text(max_size=300), st.text(st.sampled_from("ab \n\t'\"$()`\\;|&#*?~./-é漢\x1b"), max_size=30)))
@example("x" * 300)
@example("..")
@example("a/b")
@example("two\nlines")
@example("not UTF-8: \udcff")
def test_any_run_name_is_refused_or_gets_its_folder(names: Path, name: str) -> None:
    check_name(names, name)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_run_names_get_their_folders(names: Path, name: str) -> None:
    assert check_name(names, name)


def check_name(logs: Path, name: str) -> bool:
    """Whether it was accepted; then the folder is right there, with a plain name, and knows the run's own."""
    before = set((logs / "runs").glob("*"))
    try:
        path = prepare(["--run_name", name, "--logs_dir", str(logs)])
    except UserError as error:
        assert "--run_name" in str(error)
        assert set((logs / "runs").glob("*")) == before, "nothing is left of it"
        return False
    assert set((logs / "runs").glob("*")) == before | {path} and path.parent == logs / "runs"
    assert path.name.isascii() and path.name.replace("_", "").replace("-", "").replace(".", "").isalnum()
    assert len(path.name) < 100 and path.name[0] not in ".-"
    assert json.loads((path / "config.json").read_bytes())["run"]["run_name"] == name
    return True


def test_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--run_name is 'a\\udcff': give a text in UTF-8\."):
        prepare(["--run_name", "a\udcff", "--logs_dir", str(tmp_path)])


def test_the_real_command_prints_the_folder_and_nothing_else(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "launch",
        "prepare",
        "--run_name",
        "$(touch gone) 'x'",
        "--logs_dir",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == "" and done.stdout == f"{runs(tmp_path)[0]}\n"
    assert not (ROOT / "gone").exists()


def test_a_mistake_is_the_parsers_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "--logs_dir", str(tmp_path), "--max_steps", "many"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("--max_steps is 'many':")
    assert not (tmp_path / "runs").exists()


def test_an_unknown_command_names_the_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["statsu"]) == 2
    assert capsys.readouterr().err.startswith(
        "statsu is no command of python -m launch: did you mean status? There are"
    )
    assert main([]) == 2
    listed = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == listed
    assert "status" in listed and "ended" not in listed


def test_a_job_that_is_queued_again_finds_its_folder(job: pytest.MonkeyPatch, tmp_path: Path) -> None:
    flags = ["--logs_dir", str(tmp_path)]
    first = prepare(flags)
    save(first, 30)
    job.setenv("SLURM_RESTART_COUNT", "1")
    assert prepare(flags) == first and runs(tmp_path) == [first]
    assert json.loads((first / "job.json").read_bytes()) == {**IDENTITY, "nodes": "n1", "starts": [0, 30]}
    job.setenv("SLURM_CLUSTER_NAME", "another")
    assert prepare(flags) != first


def test_a_job_whose_number_was_used_before_gets_a_folder_of_its_own(job: pytest.MonkeyPatch, tmp_path: Path) -> None:
    flags = ["--logs_dir", str(tmp_path)]
    assert prepare(flags) != prepare(flags)


def test_a_job_that_was_queued_again_before_it_had_a_folder(job: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job.setenv("SLURM_RESTART_COUNT", "1")
    flags = ["--logs_dir", str(tmp_path)]
    folder = prepare(flags)
    job.setenv("SLURM_RESTART_COUNT", "2")
    assert prepare(flags) == folder


def test_a_job_that_dies_while_its_folder_is_made_leaves_no_run(job: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with job.context() as patch, pytest.raises(Killed):
        patch.setattr("launch.job.save_script", die)
        prepare(["--logs_dir", str(tmp_path)])
    assert not [run for run in runs(tmp_path) if not run.name.startswith(".")]


def test_tasks_of_an_array_have_their_own_folders(job: pytest.MonkeyPatch, tmp_path: Path) -> None:
    flags = ["--logs_dir", str(tmp_path)]
    job.setenv("SLURM_ARRAY_JOB_ID", "17")
    folders = []
    for task, number in (("0", "18"), ("1", "17")):
        job.setenv("SLURM_ARRAY_TASK_ID", task)
        job.setenv("SLURM_JOB_ID", number)
        folders.append(prepare(flags))
    job.setenv("SLURM_RESTART_COUNT", "1")
    assert prepare(flags) == folders[1] != folders[0]


def test_a_job_goes_on_in_the_folder_of_another(job: pytest.MonkeyPatch, tmp_path: Path) -> None:
    flags = ["--logs_dir", str(tmp_path)]
    earlier = prepare(flags)
    (earlier / "attempts.jsonl").write_text('{"attempt": 1, "start": "x"}\n')
    save(earlier, 80)
    job.setenv("SLURM_JOB_ID", "40")
    assert prepare([*flags, "--resume_training_ckpt", "last"]) == earlier
    record = json.loads((earlier / "job.json").read_bytes())
    assert record["job"] == "40" and record["starts"] == [80]


DAMAGED = (b"", b"{", b"[]", b"null", b'"17"', b"\xff\xfe\x00", b'{"job": 17}', b'{"job": "17"')


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_record_is_no_record(tmp_path: Path, content: bytes) -> None:
    for name, text in (
        ("broken_20260101-000002_aa", content),
        ("whole_20260101-000001_aa", json.dumps(IDENTITY).encode()),
    ):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "job.json").write_bytes(text)
    assert find_run_folder(IDENTITY, tmp_path) == tmp_path / "runs" / "whole_20260101-000001_aa"


def test_the_newest_of_several_is_taken(tmp_path: Path) -> None:
    for name in ("z_20260101-000001_aa", "a_20260101-000002_bb", ".b_20260101-000003_cc", "c_20260101-000004_dd"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "job.json").write_text(json.dumps(IDENTITY))
        if not name.startswith("c"):  # that one is not a run
            (tmp_path / "runs" / name / "config.json").write_text("{}")
    assert find_run_folder(IDENTITY, tmp_path) == tmp_path / "runs" / "a_20260101-000002_bb"
    assert find_run_folder({"job": "18", "cluster": "test"}, tmp_path) is None
    assert find_run_folder(IDENTITY, tmp_path / "nowhere") is None


@given(st.lists(st.integers(0, 3)), st.integers(0, 3))
def test_starts_are_counted_from_the_last(steps: list[int], step: int) -> None:
    count = starts_from({"starts": steps}, step)
    assert steps[len(steps) - count :] == [step] * count
    assert count == len(steps) or steps[len(steps) - count - 1] != step


@pytest.fixture
def three_starts(job: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Path]:
    """The folder of a job that was started three times from step 0."""
    for restart in range(MAX_STARTS):
        job.setenv("SLURM_RESTART_COUNT", str(restart))
        folder = prepare(["--logs_dir", str(tmp_path)])
        if restart + 1 < MAX_STARTS:
            check_progress(folder)
    output = capsys.readouterr().err.splitlines()
    assert sum(bool(ATTEMPT_MARK.fullmatch(line)) for line in output) == MAX_STARTS
    assert [line for line in output if not ATTEMPT_MARK.fullmatch(line)] == [
        f"warning: this job starts from step 0 again, {count} times now: it was ended before a later step was saved. "
        "Where its own time limit did that, give it more with sbatch --time."
        for count in (2, 3)
    ]
    yield folder


def test_a_job_without_progress_is_not_queued_again(three_starts: Path) -> None:
    with pytest.raises(UserError) as refused:
        check_progress(three_starts)
    assert str(refused.value) == (
        "the job started 3 times from step 0 and was ended before a later step was saved: it is not queued again. "
        "Give it more time (sbatch --time), then resume with the same flags and --resume_training_ckpt last."
    )


def test_a_job_that_came_further_in_the_end_is(three_starts: Path) -> None:
    save(three_starts, 1)
    check_progress(three_starts)


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_count_starts_anew(three_starts: Path, content: bytes) -> None:
    (three_starts / "job.json").write_bytes(content)
    check_progress(three_starts)


def test_the_newest_step_is_that_of_the_newest_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.newest_step == 0
    folder.checkpoints.mkdir()
    for step in (5, 100_000_000, 40):
        save(tmp_path, step)
    assert folder.newest_step == 100_000_000
