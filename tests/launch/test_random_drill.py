"""`drill --random`: what it draws, how it goes on, and what it says of runs that do not come through."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.files import append_row, write_json
from launch.drill import drill
from launch.random_drill import CLOCKS, LOCAL_KINDS, SLURM_KINDS, Interruption, InterruptionPool, LocalInterruptedRun
from runs.run import Run
from tests.conftest import ROOT, TINY

# A run without torch: it saves every 13 steps and when it is told to end, and goes on from what it saved last.
STAND_IN = """\
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, ROOT)
from core.files import append_row, read_rows, write_text
from runs.attempts import merge_attempts
typed = sys.argv[1] == "--resume_training_ckpt"
run = Path(sys.argv[2]).parent.parent if typed else Path(os.environ["EBT_JOB_RUN_DIR"])
signals = []
for name in ("SIGUSR1", "SIGTERM", "SIGHUP", "SIGINT"):
    signal.signal(getattr(signal, name), lambda number, frame: signals.append(number))
saved = max([int(file.stem[5:]) for file in (run / "checkpoints").glob("step_*")], default=0)
earlier = merge_attempts(read_rows(run / "attempts.jsonl"))
def note(attempt, **more):
    append_row(run / "attempts.jsonl", {"attempt": attempt, **more})
def end(cause, status):
    note(attempt, end="x", cause=cause, steps_lost=step - saved, last_step=step)
    if status == 130:
        print(f"Resume with:\\n  python train_model.py --resume_training_ckpt {run}/checkpoints/last.ckpt")
    sys.exit(status)
if earlier and "end" not in earlier[-1]:
    note(earlier[-1]["attempt"], end="x", cause="killed", steps_lost=len(read_rows(run / "metrics.jsonl")) - saved)
rows = [f'{{"step": {step}, "train_loss": {1 / step}}}\\n' for step in range(1, saved + 1)]
write_text(run / "metrics.jsonl", "".join(rows))
attempt, step = 1 + len(earlier), saved
note(attempt, start="x", first_step=saved)
for step in range(saved, 150):
    if signals or step % 13 == 0:
        saved = step
        (run / "checkpoints" / f"step_{step:08}.ckpt").touch()
    if signals:
        end(*(("stopped by hand", 130) if signals[0] == signal.SIGINT else ("time limit", 75)))
    if (run / "hang_in_the_drill").exists():
        (run / "hang_in_the_drill").unlink()
        end("hung", 75)
    time.sleep(0.005)
    append_row(run / "metrics.jsonl", {"step": step + 1, "train_loss": 1 / (step + 1) FAULT})
step = saved = 150
end("finished", 0)
"""


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.doctor.choose_cluster", lambda requested: "local")


def stand_in(folder: Path, fault: str = "") -> None:
    (folder / "train_model.py").write_text(STAND_IN.replace("ROOT", repr(str(ROOT))).replace("FAULT", fault))


def test_a_seed_draws_the_same_again() -> None:
    one, same, other = (InterruptionPool(40, seed, LOCAL_KINDS).remaining for seed in (3, 3, 4))
    assert one == same != other
    assert {drawn.kind for drawn in one} == set(LOCAL_KINDS) and {drawn.clock for drawn in one} == set(CLOCKS)
    assert all(drawn.clock == "steps" for drawn in one if drawn.kind == "hung")
    assert {"requeued", "cancelled"} <= set(SLURM_KINDS) - set(LOCAL_KINDS), "what only Slurm does"


def test_one_that_came_too_late_comes_earlier_the_next_time() -> None:
    pool = InterruptionPool(1, 0, LOCAL_KINDS)
    drawn = pool.take()
    assert drawn is not None and pool.take() is None
    before = drawn.share
    pool.put_back(drawn)
    assert pool.take() is drawn and drawn.share < before


def test_every_kind_is_survived(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in(tmp_path)
    assert drill(["--random", "12", "--seed", "8", "--logs_dir", str(tmp_path / "logs")], root=tmp_path) == 0
    output = capsys.readouterr()
    assert output.out.startswith("12 interruptions, seed 8, on this machine; files in ")
    words = " ".join(output.out.split())
    assert " 12 interruptions of " in words and ": every run is the same, bit for bit" in words
    for kind in {drawn.kind for drawn in InterruptionPool(12, 8, LOCAL_KINDS).remaining}:
        assert f"{kind}, " in output.err
    assert list((tmp_path / "logs").iterdir()) == [], "nothing is left of it"


def seed_of_one_that_resumes() -> int:
    """A seed whose first interruption comes in the first half of training and loses no step."""
    for seed in range(10_000):
        (drawn,) = InterruptionPool(1, seed, LOCAL_KINDS).remaining
        if drawn.kind == "time limit (SIGUSR1)" and drawn.clock == "steps" and drawn.share < 0.5:
            return seed
    raise AssertionError("there is no such seed")


def test_a_run_that_differs_is_told_with_the_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in(tmp_path, "+ 1e-9 * (attempt > 1)")
    seed = seed_of_one_that_resumes()
    words = ["--random", "1", "--seed", str(seed), "--logs_dir", str(tmp_path / "logs")]
    assert drill(words, root=tmp_path) == 1
    output = " ".join(capsys.readouterr().out.split())
    (work_dir,) = (tmp_path / "logs").iterdir()
    assert ": 1 failed. fail: run_1: step " in output and ": train_loss is 0." in output
    assert f"The runs and their logs are kept in {work_dir}; again: --random 1 --seed {seed}." in output


def test_a_run_that_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train_model.py").write_text("raise SystemExit('no memory')")
    assert drill(["--random", "2", "--logs_dir", str(tmp_path / "logs")], root=tmp_path) == 1
    assert "fail: uninterrupted: it did not finish: no memory" in capsys.readouterr().out


def test_an_end_that_no_signal_explains_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "train_model.py").write_text("raise SystemExit('a bug')")
    session = LocalInterruptedRun(tmp_path, "run_1", [], root=tmp_path)
    session.begin()
    assert session.process.wait() == 1
    session.resume(Interruption("preempted (SIGTERM)", "start", 0.5))
    assert session.problem == "preempted (SIGTERM) ended it with status 1: a bug"


def test_what_attempts_say_is_judged(tmp_path: Path) -> None:
    folder = tmp_path / "run_1" / "runs" / "x"
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {})
    append_row(folder / "attempts.jsonl", {"attempt": 1, "cause": "time limit", "steps_lost": 0})
    append_row(folder / "metrics.jsonl", {"step": 1, "train_loss": 1.0})
    session = LocalInterruptedRun(tmp_path, "run_1", [])
    assert session.check(Run(folder)) is None
    append_row(folder / "attempts.jsonl", {"attempt": 2, "cause": "error: ValueError", "steps_lost": 0})
    assert session.check(Run(folder)) == "attempts.jsonl says 'error: ValueError' of attempt 2"


def test_real_runs(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*TINY, "--dataset_name", "text", "--dataset_dir", str(corpus), "--save_top_k_ckpts", "0"]
    status = drill(["--random", "4", "--seed", "549", *flags, "--logs_dir", str(tmp_path)], random_steps=40)
    output = capsys.readouterr()
    assert status == 0, output
    assert "4 interruptions of " in output.out and "the same, bit for bit" in output.out
