"""A run that is told to end saves its state, and the same command goes on as if nothing had happened; without Slurm."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.files import append_row, read_rows
from launch.drill_runner import first_difference
from launch.job import prepare
from runs import RunFolder
from runs.process import EXIT_RESUMABLE, SignalState
from tests.conftest import ROOT, TrainCommand
from tests.slurm.jobs import attempts, losses
from tests.support import warm
from tests.training.traces import trace
from training.interruption import InterruptionCallback
from training.recorder import MetricsFile

BEFORE_TRAINING = """
    import signal, data.language.build
    build = data.language.build.language_data
    def told_while_building(config, *runs):
        os.kill(os.getpid(), signal.SIGTERM)
        return build(config)
    data.language.build.language_data = told_while_building
"""
AT_BATCH_5 = """
    import signal
    from training.recorder import Recorder
    start = Recorder.on_train_batch_start
    def told_at_batch_5(self, trainer, model, batch, batch_idx):
        if batch_idx == 5 and trainer.global_rank == trainer.world_size - 1:  # of two processes, the second
            os.kill(os.getpid(), signal.SIGUSR1)
        start(self, trainer, model, batch, batch_idx)
    Recorder.on_train_batch_start = told_at_batch_5
"""
WHILE_SAVING = """
    import signal, core.files
    write = core.files.write_atomically
    def told_while_writing(path, content, *more):
        if path.name == "step_00000004.ckpt":
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGTERM)
        write(path, content, *more)
    core.files.write_atomically = told_while_writing
"""
IN_VALIDATION = """
    import signal
    from training.checkpoints import Checkpoints
    start = Checkpoints.on_validation_start
    def told_in_validation(self, trainer, model):
        start(self, trainer, model)
        if not trainer.sanity_checking:
            os.kill(os.getpid(), signal.SIGUSR1)
    Checkpoints.on_validation_start = told_in_validation
"""
AFTER_TRAINING = """
    import signal
    from training.interruption import InterruptionCallback
    end = InterruptionCallback.on_train_end
    def told_at_the_end(self, trainer, model):
        end(self, trainer, model)
        os.kill(os.getpid(), signal.SIGTERM)
    InterruptionCallback.on_train_end = told_at_the_end
"""
EACH_STEP_NOTED = """
    from training.recorder import Recorder
    end = Recorder.on_train_batch_end
    def noted(self, trainer, *rest):
        end(self, trainer, *rest)
        with open(os.path.join(os.environ["EBT_JOB_RUN_DIR"], f"rank{trainer.global_rank}"), "w") as file:
            file.write(str(trainer.global_step))
    Recorder.on_train_batch_end = noted
"""


@pytest.fixture
def pieces(corpus: Path, tmp_path: Path) -> TrainCommand:
    return TrainCommand(corpus, tmp_path / "pieces")


def metrics(folder: Path) -> list[dict[str, Any]]:
    return read_rows(folder / "metrics.jsonl")


def validations(folder: Path) -> list[int]:
    return [row["step"] for row in metrics(folder) if "valid_loss" in row]


def as_job(train_command: TrainCommand, monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    """What a job script does first: one folder for all that is started after it."""
    monkeypatch.setenv("EBT_JOB_RUN_DIR", str(prepare(train_command.command(*flags)[2:])))


PRESSED = """
    import signal
    from training.recorder import Recorder
    end = Recorder.on_train_batch_end
    def pressed(self, trainer, *rest):
        end(self, trainer, *rest)
        for _ in range(TIMES * (trainer.global_step == 4)):
            os.kill(os.getpid(), signal.SIGINT)
    Recorder.on_train_batch_end = pressed
"""


def test_ctrl_c_saves_and_names_the_command_that_goes_on(pieces: TrainCommand, corpus: Path, tmp_path: Path) -> None:
    flags = ("--limit_train_batches", "5", "--val_check_interval", "3")
    whole = TrainCommand(corpus, tmp_path / "whole")
    whole(*flags)
    output = pieces.with_fault(PRESSED.replace("TIMES", "1"), *flags, status=130)
    assert "Ctrl-C: the state is saved before the next batch; once more ends the run at once\n" in output
    last = pieces.run_folder / "checkpoints" / "last.ckpt"
    words = "the run stopped: it was stopped by hand (Ctrl-C); step 4 is saved. Resume with:\n"
    command = f"python train_model.py --resume_training_ckpt {last}"
    assert f"{words}  {command}\n" in output and "Traceback" not in output
    assert attempts(pieces.run_folder)[-1]["cause"] == "stopped by hand"
    done = warm.run([sys.executable, *command.split()[1:]], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "resuming from step 4" in done.stdout, done.stdout + done.stderr
    assert first_difference(metrics(pieces.run_folder), metrics(whole.run_folder)) is None


def test_a_second_ctrl_c_ends_at_once(train_command: TrainCommand) -> None:
    output = train_command.with_fault(PRESSED.replace("TIMES", "2"), status=130)
    assert "is saved. Resume" not in output and "Traceback" not in output
    assert not list((train_command.run_folder / "checkpoints").iterdir())
    assert attempts(train_command.run_folder)[-1]["cause"] == "stopped by hand"


SLOW = """
    import time
    from training.recorder import Recorder
    start = Recorder.on_train_batch_start
    def slow(self, trainer, *rest):
        start(self, trainer, *rest)
        if trainer.global_step == 2:
            open(READY, "w").close()
            time.sleep(3)
    Recorder.on_train_batch_start = slow
"""


@pytest.mark.parametrize("deaf", [False, True])
def test_a_closed_terminal(train_command: TrainCommand, tmp_path: Path, deaf: bool) -> None:
    """A lost connection saves the state; under nohup it changes nothing. All that is written then goes nowhere."""
    ready = tmp_path / "ready"
    script = train_command.fault_script(SLOW.replace("READY", repr(str(ready))))
    master, terminal = os.openpty()

    def begin() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if deaf else signal.SIG_DFL)  # whatever the tests were started with

    command = train_command.command(script=str(script))
    process = subprocess.Popen(command, cwd=ROOT, preexec_fn=begin, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    while not ready.exists():
        assert process.poll() is None
        if select.select([master], [], [], 0.05)[0]:
            os.read(master, 65536)
    os.close(master)
    status = process.wait(timeout=120)
    (row,) = attempts(train_command.run_folder)
    assert (status, row["cause"]) == ((0, "finished") if deaf else (EXIT_RESUMABLE, "interrupted: SIGHUP"))
    copy = (train_command.run_folder / "console.log").read_text()
    assert ("its terminal is gone (SIGHUP); step 2 is saved. Resume with:" in copy) is not deaf


def test_a_run_in_pieces_is_the_whole_run(
    pieces: TrainCommand, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise and a random number of steps make every random number count."""
    flags = ("--accumulate_grad_batches", "2", "--val_check_interval", "10")
    energy = ("--langevin_dynamics_noise", "0.1", "--randomize_mcmc_num_steps", "1")
    pieces, whole = pieces.ebt(*energy), TrainCommand(corpus, tmp_path / "whole").ebt(*energy)
    whole(*flags)
    as_job(pieces, monkeypatch, *flags)

    pieces.with_fault(BEFORE_TRAINING, *flags, status=EXIT_RESUMABLE)
    assert not (pieces.run_folder / "attempts.jsonl").exists(), "it did not get as far as an attempt"
    output = pieces.with_fault(AT_BATCH_5, *flags, status=EXIT_RESUMABLE)
    sentence = "the run stopped: the time limit is near (SIGUSR1); step 3 is saved, and the job resumes from there when"
    assert sentence in output and "Traceback" not in output
    output = pieces.with_fault(WHILE_SAVING, *flags, "--checkpoint_every_n_steps", "4", status=EXIT_RESUMABLE)
    assert "resuming from step 3" in output and "step 4 is saved" in output
    output = pieces.with_fault(IN_VALIDATION, *flags, status=EXIT_RESUMABLE)
    assert "step 5 is saved, and the job resumes from there when it is queued again." in output
    assert validations(pieces.run_folder) == [0], "it did not wait for its end"
    output = pieces.with_fault(AFTER_TRAINING, *flags, status=EXIT_RESUMABLE)
    assert "resuming from step 5" in output and validations(pieces.run_folder) == [0, 5, 6]
    assert "resuming from step 6" in pieces(*flags), "all is trained, and the report is still to come"

    rows = attempts(pieces.run_folder)
    assert [(row["first_step"], row["last_step"], row["cause"]) for row in rows] == [
        (0, 3, "time limit"),
        (3, 4, "time limit"),
        (4, 5, "time limit"),
        (5, 6, "interrupted: SIGTERM"),
        (6, 6, "finished"),
    ]
    assert [row["steps_lost"] for row in rows] == [0, 0, 0, 0, 0]
    assert [row.get("signal") for row in rows] == ["SIGUSR1", "SIGUSR1", "SIGUSR1", "SIGTERM", None]
    assert all(row["checkpoint_seconds"] > 0 for row in rows[:4])
    assert [step for step, _ in losses(pieces.run_folder)] == [1, 2, 3, 4, 5, 6]
    assert validations(whole.run_folder) == validations(pieces.run_folder)
    assert first_difference(metrics(pieces.run_folder), metrics(whole.run_folder)) is None
    assert trace(pieces.run_folder) == trace(whole.run_folder)


def test_a_validation_that_is_run_again_stands_there_once(tmp_path: Path) -> None:
    for row in ({"step": 2, "valid_loss": 3.0}, {"step": 4, "train_loss": 2.0}, {"step": 4, "valid_loss": 2.5}):
        append_row(tmp_path / "metrics.jsonl", row)
    MetricsFile.drop_validation(tmp_path / "metrics.jsonl", 4)
    assert metrics(tmp_path) == [{"step": 2, "valid_loss": 3.0}, {"step": 4, "train_loss": 2.0}]


def test_two_processes_stop_at_the_same_step(pieces: TrainCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the second of them gets the signal."""
    flags = ("--cpu_processes", "2")
    as_job(pieces, monkeypatch, *flags)
    output = pieces.with_fault(AT_BATCH_5 + EACH_STEP_NOTED, *flags, status=EXIT_RESUMABLE)
    assert "another of its processes got a signal; step 5 is saved" in output
    assert [(pieces.run_folder / f"rank{rank}").read_text() for rank in (0, 1)] == ["5", "5"]
    assert (pieces.run_folder / "checkpoints" / "step_00000005.ckpt").is_file()
    assert attempts(pieces.run_folder)[0]["cause"] == "interrupted"


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_over(
    pieces: TrainCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_job(pieces, monkeypatch)
    pieces.with_fault(AT_BATCH_5.replace("SIGUSR1", "SIGKILL"), status=-signal.SIGKILL)
    assert [step for step, _ in losses(pieces.run_folder)] == [1, 2, 3, 4, 5]
    pieces()
    assert [step for step, _ in losses(pieces.run_folder)] == [1, 2, 3, 4, 5, 6], "no step stands there twice"
    killed, finished = attempts(pieces.run_folder)
    assert (killed["last_step"], killed["steps_lost"], killed["cause"]) == (5, 5, "killed")
    assert (finished["first_step"], finished["cause"]) == (0, "finished")


def test_a_job_that_resumes_a_path_goes_on_from_its_own_state(
    pieces: TrainCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint that a job names is where it starts, not where it starts over each time it is queued again."""
    pieces("--checkpoint_every_n_steps", "2", "--save_top_k_ckpts", "0", "--max_steps", "8")
    checkpoints = pieces.run_folder / "checkpoints"
    start = str(checkpoints / "step_00000006.ckpt")
    flags = ("--resume_training_ckpt", start, "--save_top_k_ckpts", "0", "--max_steps", "9")
    as_job(pieces, monkeypatch, *flags)
    output = pieces.with_fault(AT_BATCH_5.replace("== 5", "== 7"), *flags, status=EXIT_RESUMABLE)
    assert "resuming from step 6" in output and "step 7 is saved" in output
    assert sorted(file.name for file in (checkpoints / "later").iterdir()) == ["step_00000008.ckpt"]
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert "resuming from step 7" in pieces(*flags)
    assert [step for step, _ in losses(pieces.run_folder)] == list(range(1, 10))
    assert (checkpoints / "last.ckpt").resolve().name == "step_00000009.ckpt"


@pytest.fixture
def handlers() -> Iterator[None]:
    """Leaves the signals as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_before_training_a_signal_ends_the_process(handlers: None) -> None:
    listener = SignalState()
    listener.listen()
    with pytest.raises(SystemExit) as leaving:
        os.kill(os.getpid(), signal.SIGTERM)
    assert leaving.value.code == EXIT_RESUMABLE


def test_while_training_the_first_signal_is_noted(handlers: None) -> None:
    listener = SignalState()
    listener.listen()
    listener.training = True
    assert listener.cause == "interrupted" and listener.why == "another of its processes got a signal"
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert listener.cause == "time limit" and listener.why == "the time limit is near (SIGUSR1)"


@pytest.mark.parametrize(
    ("notice", "taken", "every"),
    [(None, 100.0, None), ((120, "its time limit"), 60.0, None), ((120, "its time limit"), 61.0, 1220.0)],
)
def test_a_notice_too_short_to_save_in_is_reported_and_the_clock_takes_over(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    notice: tuple[int, str] | None,
    taken: float,
    every: float | None,
) -> None:
    """The durations of the attempts before are known at the start."""
    monkeypatch.setattr("training.interruption.shortest_grace_period", lambda folder: notice)
    folder = RunFolder(tmp_path)
    append_row(folder.attempts, {"attempt": 1, "checkpoint_seconds": taken})
    saved: list[int] = []
    checkpoints: Any = SimpleNamespace(saved_step=0, seconds=0.0, saved_at=0.0, save=lambda _: saved.append(1))
    trainer: Any = SimpleNamespace(is_global_zero=True, world_size=1, accumulate_grad_batches=1, global_step=5)
    callback = InterruptionCallback(checkpoints, folder, 2)
    callback.on_train_start(trainer, None)  # type: ignore[arg-type]
    assert callback.save_seconds == every
    sentence = (
        "warning: a checkpoint took 61 s, and between the warning of its time limit and the end this job has 120 s: "
        "that may be too short to save in, so it also saves every 1220 s. Ask for more with sbatch --signal=USR1@496, "
        "or on a partition with a longer grace time.\n"
    )
    assert capsys.readouterr().out == ("" if every is None else sentence)
    callback.on_train_batch_start(trainer, None, None, 5)  # type: ignore[arg-type]
    assert saved == []
    checkpoints.saved_at -= 1300
    callback.on_train_batch_start(trainer, None, None, 5)  # type: ignore[arg-type]
    assert saved == ([] if every is None else [1])


def test_how_long_a_checkpoint_takes_is_written_down(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    checkpoints: Any = SimpleNamespace(seconds=0.0)
    trainer: Any = SimpleNamespace(is_global_zero=True)
    callback = InterruptionCallback(checkpoints, folder, 3)
    for seconds in (0.0, 2.0, 2.5, 1.0, 4.0):
        checkpoints.seconds = seconds
        callback.record_duration(trainer)
    assert read_rows(folder.attempts) == [{"attempt": 3, "checkpoint_seconds": taken} for taken in (2.0, 4.0)]
