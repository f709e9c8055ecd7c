"""The drill: what it notices, what it refuses, and how it plays a run where there is no Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import parse_command_line
from core.files import append_row
from launch.__main__ import main
from launch.drill import CASES, CHECKPOINT_EVERY, FAULT_STEP, REFERENCE, STEPS, check_case, drill, small_run_flags
from launch.drill_runner import LocalRunner, drill_script, first_difference
from launch.script import Header, check_syntax
from runs.run import Run
from tests.conftest import ROOT, TINY

# A run as the drill sees it, without torch: it does what EBT_DRILL asks for, and goes on from its last checkpoint.
STAND_IN = """\
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, ROOT)
from core.files import append_row, read_rows, write_text
typed = sys.argv[1] == "--resume_training_ckpt"  # as a person was told to
run = Path(sys.argv[2]).parent.parent if typed else Path(os.environ["EBT_JOB_RUN_DIR"])
fault, _, at = os.environ["EBT_DRILL"].partition(":")
attempt = 1 + len({row["attempt"] for row in read_rows(run / "attempts.jsonl")})
saved = max([int(file.stem[5:]) for file in (run / "checkpoints").glob("step_*")], default=0)
if attempt == 2:
    last = len(read_rows(run / "metrics.jsonl"))
    if fault in ("kill", "save", "abort"):
        append_row(run / "attempts.jsonl", {"attempt": 1, "end": "x", "cause": "killed", "steps_lost": last - saved})
    rows = [f'{{"step": {step}, "train_loss": {1 / step}}}\\n' for step in range(1, saved + 1)]
    write_text(run / "metrics.jsonl", "".join(rows))
append_row(run / "attempts.jsonl", {"attempt": attempt, "start": "x", "first_step": saved})
signals = []
for name in ("SIGUSR1", "SIGTERM", "SIGHUP", "SIGINT"):
    signal.signal(getattr(signal, name), lambda number, frame: signals.append(number))
for step in range(saved, 12):
    if attempt == 1 and fault and step == int(at):
        if fault == "abort":
            os.abort()
        if fault == "hang":
            append_row(run / "attempts.jsonl", {"attempt": 1, "end": "x", "cause": "hung", "steps_lost": 2})
            sys.exit(75)
        if fault != "pause":
            os.killpg(0, signal.SIGKILL)
        (run / "ready_for_the_drill").touch()
        while not signals:
            time.sleep(0.01)
        (run / "checkpoints" / f"step_{step:08}.ckpt").touch()
        by_hand = signals == [signal.SIGINT]
        cause = f"interrupted: {signal.Signals(signals[0]).name}"
        cause = {signal.SIGUSR1: "time limit", signal.SIGINT: "stopped by hand"}.get(signals[0], cause)
        append_row(run / "attempts.jsonl", {"attempt": 1, "end": "x", "cause": cause, "steps_lost": 0})
        if by_hand:
            print(f"Resume with:\\n  python train_model.py --resume_training_ckpt {run}/checkpoints/last.ckpt")
        sys.exit(130 if by_hand else 75)
    if step == 5:
        (run / "checkpoints" / "step_00000005.ckpt").touch()
    append_row(run / "metrics.jsonl", {"step": step + 1, "train_loss": LOSS})
append_row(run / "attempts.jsonl", {"attempt": attempt, "end": "x", "cause": "finished", "steps_lost": 0})
"""

Rows = list[dict[str, Any]]


@pytest.fixture
def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.doctor.choose_cluster", lambda requested: "local")


def stand_in(folder: Path, loss: str = "1 / (step + 1)") -> None:
    (folder / "train_model.py").write_text(STAND_IN.replace("ROOT", repr(str(ROOT))).replace("LOSS", loss))


def test_runs_that_survive_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str], no_slurm: None) -> None:
    stand_in(tmp_path)
    assert drill(["--logs_dir", str(tmp_path / "logs"), "--model_size", "4xs"], root=tmp_path) == 0
    output = capsys.readouterr()
    lines = [line.split() for line in output.out.splitlines()]
    assert lines[1] == ["interruption", "attempts", "steps", "lost", "verdict"] and lines[2] == [
        "uninterrupted",
        "1",
        "pass",
    ]
    assert [line[-3:] for line in lines[3:11]] == [["2", lost, "pass"] for lost in "00002225"]
    assert "Not here, where there is no Slurm: requeued and cancelled." in output.out
    assert "killed while saving: resumes" in output.err
    assert list((tmp_path / "logs").iterdir()) == [], "nothing is left of it"


def test_a_run_that_differs_fails_and_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], no_slurm: None
) -> None:
    stand_in(tmp_path, "1 / (step + 1) + 1e-9 * (attempt > 1)")
    assert drill(["--logs_dir", str(tmp_path / "logs")], CASES[:1], root=tmp_path) == 1
    words = " ".join(capsys.readouterr().out.split())
    (work_dir,) = (tmp_path / "logs").iterdir()
    assert f"fail: step {FAULT_STEP + 1}: train_loss is 0.125000001 and not 0.125" in words
    assert (
        f"The runs and their logs are kept in {work_dir}." in words
        and (work_dir / "time_limit_SIGUSR1" / "runs").is_dir()
    )


def test_a_run_that_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str], no_slurm: None) -> None:
    (tmp_path / "train_model.py").write_text("raise SystemExit('no memory')")
    assert drill(["--logs_dir", str(tmp_path / "logs")], CASES[:1], root=tmp_path) == 1
    words = " ".join(capsys.readouterr().out.split())
    assert "uninterrupted 0 fail: it ended with status 1: no memory" in words
    assert "fail: there is no uninterrupted run to compare it with" in words


def test_a_real_run_that_is_killed_while_saving(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], no_slurm: None
) -> None:
    cases = [case for case in CASES if case.fault.startswith("save")]
    flags = [*TINY, "--dataset_name", "text", "--dataset_dir", str(corpus), "--save_top_k_ckpts", "0"]
    status = drill([*flags, "--logs_dir", str(tmp_path)], cases)
    output = capsys.readouterr()
    assert status == 0, output
    rows = [line.split() for line in output.out.splitlines()]
    assert ["killed", "while", "saving", "2", str(CHECKPOINT_EVERY), "pass"] in rows


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--only_test"], "--only_test"),
        (
            ["--resume_training_ckpt", "last"],
            "--resume_training_ckpt does not go with a drill, which trains a new run:",
        ),
        (["--fast_dev_run"], "--fast_dev_run does not go with a drill, which trains a new run: leave it out."),
        (["--max_stepz", "3"], "did you mean --max_steps?"),
        (["--notify", "tell.sh"], "--notify does not go with a drill, which trains a new run: leave it out."),
        (["--random", "0"], "--random is 0: give a number of interruptions from 1 on."),
        (["--random", "many"], "argument --random: invalid int value: 'many': python -m launch drill --help"),
        (
            ["--header", "local_cpu"],
            "--header is 'local_cpu': there is no Slurm here that could be asked for it; leave",
        ),
        (["--logs_dir", "/proc/nowhere"], "--logs_dir is /proc/nowhere: cannot write there (No such file"),
    ],
)
def test_mistakes(words: list[str], sentence: str, no_slurm: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drill", *words]) == 2
    output = capsys.readouterr()
    assert sentence in output.err and output.out == ""


def test_the_job_script_has_the_header_and_is_bash() -> None:
    text = drill_script(Header("x", ["#SBATCH --time=9"], ["module load 'it is'"]))
    check_syntax(text, "drill")
    options = [line for line in text.splitlines() if line.startswith("#SBATCH --time")]
    assert options == ["#SBATCH --time=15"], "the last one wins, and each is there once"
    assert text.index("under_slurm.sh") < text.index("module load 'it is'") < text.index("launch prepare")


def test_flags_of_a_long_run_become_those_of_a_small_one() -> None:
    flags = ["--warm_up_steps", "5000", "--max_steps", "100000", "--check_val_every_n_epoch", "1"]
    config = parse_command_line([*flags, *small_run_flags(parse_command_line(flags))])
    assert (config.optimizer.warm_up_steps, config.trainer.max_steps, config.logging.no_wandb) == (4, STEPS, True)
    config = parse_command_line(small_run_flags(parse_command_line([])))
    assert config.trainer.val_check_interval == 4 and config.checkpoint.checkpoint_every_n_steps == CHECKPOINT_EVERY


# --- what is compared

rows_of_a_run = st.lists(st.floats(allow_nan=False), min_size=2, max_size=9).map(
    lambda losses: [{"step": step, "train_loss": loss, "seconds": step} for step, loss in enumerate(losses, 1)]
)


@given(rows_of_a_run, st.data())
def test_every_difference_is_found(rows: Rows, data: st.DataObject) -> None:
    assert first_difference([{**row, "seconds": 0, "attempt": 2} for row in rows], rows) is None
    index = data.draw(st.integers(0, len(rows) - 1))
    step = rows[index]["step"]
    assert first_difference(rows[:index] + rows[index + 1 :], rows) == f"step {step} is missing"
    assert first_difference([*rows, rows[index]], rows) == f"step {step} is recorded twice"
    other = data.draw(st.floats(allow_nan=False).filter(lambda loss: loss != rows[index]["train_loss"]))
    changed = [*rows[:index], {**rows[index], "train_loss": other}, *rows[index + 1 :]]
    assert str(first_difference(changed, rows)).startswith(f"step {step}: train_loss is {other!r} and not ")
    assert first_difference(rows[: index + 1], rows, until=step) is None


def test_validations_are_compared_too() -> None:
    whole = [{"step": 4, "train_loss": 1.0}, {"step": 4, "valid_loss": 2.0}, {"step": 5, "train_loss": 1.0}]
    assert first_difference([whole[0], whole[2]], whole) == "the validation of step 4 is missing"
    assert first_difference([*whole, whole[1]], whole) == "the validation of step 4 is recorded twice"
    assert first_difference([*whole, {"step": 6, "train_loss": 1.0}], whole) == "step 6 should not be there"
    assert first_difference(whole[:1], whole, until=4) is None, "cancelled before its validation"


# --- what is judged


def fake_run(folder: Path, *attempts: dict[str, Any], steps: int = STEPS) -> Run:
    folder.mkdir()
    for number, attempt in enumerate(attempts, 1):
        append_row(folder / "attempts.jsonl", {"attempt": number, "start": "x", **attempt})
    for step in range(1, steps + 1):
        append_row(folder / "metrics.jsonl", {"step": step, "train_loss": 1 / step})
    (folder / "config.json").write_text(json.dumps({}))
    return Run(folder)


TOLD = {"cause": "time limit", "steps_lost": 0, "last_step": FAULT_STEP}
DONE = {"cause": "finished", "steps_lost": 0}
LIMIT, PREEMPTED, _, _, _, _, _, NODE, _, CANCELLED = CASES


@pytest.mark.parametrize(
    ("case", "attempts", "problem"),
    [
        (LIMIT, [TOLD, DONE], None),
        (LIMIT, [TOLD], "it did not resume: time limit"),
        (LIMIT, [], "it made no attempt"),
        (LIMIT, [TOLD, {"cause": "error: X"}], "it did not finish: error: X"),
        (LIMIT, [{**TOLD, "steps_lost": 1}, DONE], "it lost 1 steps and may lose 0"),
        (PREEMPTED, [{**TOLD, "cause": "preempted"}, DONE], None),
        (PREEMPTED, [TOLD, DONE], "attempts.jsonl says 'time limit' and not 'interrupted: SIGTERM'"),
        (NODE, [{**TOLD, "cause": "node failure", "steps_lost": 2}, DONE], None),
        (NODE, [{**TOLD, "cause": "node failure", "steps_lost": 3}, DONE], "it lost 3 steps and may lose 2"),
        (CANCELLED, [{**TOLD, "cause": "cancelled"}], None),
        (CANCELLED, [{**TOLD, "cause": "cancelled"}, DONE], "it continued after it was cancelled: 2 attempts"),
        (REFERENCE, [DONE], None),
        (REFERENCE, [TOLD], "it did not finish"),
    ],
)
def test_verdicts(case: Any, attempts: Rows, problem: str | None, tmp_path: Path) -> None:
    whole = fake_run(tmp_path / "whole", DONE)
    assert check_case(case, fake_run(tmp_path / "run", *attempts), whole, None) == problem


def test_the_first_attempt_has_to_end_as_it_was_meant_to(tmp_path: Path) -> None:
    whole, run = fake_run(tmp_path / "whole", DONE), fake_run(tmp_path / "run", TOLD, DONE)
    assert check_case(LIMIT, run, whole, "its first attempt ended with status 1: x") == (
        "its first attempt ended with status 1: x"
    )
    assert check_case(LIMIT, None, whole, None) == "it made no run folder"


def test_an_interrupted_drill_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train_model.py").write_text("import time; time.sleep(600)")
    runner = LocalRunner(tmp_path, [], tmp_path)
    monkeypatch.setattr("launch.drill_runner.time.sleep", lambda seconds: (_ for _ in ()).throw(KeyboardInterrupt))
    (tmp_path / "uninterrupted").mkdir()
    with pytest.raises(KeyboardInterrupt):
        runner.start(REFERENCE, runner.command(REFERENCE), tmp_path, "")
    runner.stop()
    assert runner.process is not None and runner.process.poll() == -9
