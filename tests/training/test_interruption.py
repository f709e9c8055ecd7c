"""A run that is told to end saves its state, and the same command goes on as if nothing had happened; without Slurm."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.prepare import prepare
from runs.signals import GOES_ON, Listener
from tests.conftest import Door
from tests.slurm.jobs import attempts, losses
from tests.training.test_exact_resume import trace

BEFORE_TRAINING = """
    import signal, data
    build = data.build_data
    def told_while_building(config):
        os.kill(os.getpid(), signal.SIGTERM)
        return build(config)
    data.build_data = told_while_building
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
    import signal, runs.files
    write = runs.files.write_atomically
    def told_while_writing(path, content):
        if path.name == "step_00000004.ckpt":
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGTERM)
        write(path, content)
    runs.files.write_atomically = told_while_writing
"""
AFTER_TRAINING = """
    import signal
    from training.interruption import Interruption
    end = Interruption.on_train_end
    def told_at_the_end(self, trainer, model):
        end(self, trainer, model)
        os.kill(os.getpid(), signal.SIGTERM)
    Interruption.on_train_end = told_at_the_end
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
def pieces(corpus: Path, tmp_path: Path) -> Door:
    return Door(corpus, tmp_path / "pieces")


def as_job(door: Door, monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    """What a job script does first: one folder for all that is started after it."""
    monkeypatch.setenv("EBT_JOB_RUN_DIR", str(prepare(door.command(*flags)[2:])))


def test_a_run_in_pieces_is_the_whole_run(
    pieces: Door, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--accumulate_grad_batches", "2")
    whole = Door(corpus, tmp_path / "whole")
    whole(*flags)
    as_job(pieces, monkeypatch, *flags)

    pieces.with_fault(BEFORE_TRAINING, *flags, status=GOES_ON)
    assert not (pieces.run_folder / "attempts.jsonl").exists(), "it did not get as far as an attempt"
    output = pieces.with_fault(AT_BATCH_5, *flags, status=GOES_ON)
    sentence = "the run stopped: the time limit is near (SIGUSR1); step 3 is saved, and the same command goes on from"
    assert sentence in output and "Traceback" not in output
    output = pieces.with_fault(WHILE_SAVING, *flags, "--checkpoint_every_n_steps", "4", status=GOES_ON)
    assert "going on from step 3" in output and "step 4 is saved" in output
    output = pieces.with_fault(AFTER_TRAINING, *flags, status=GOES_ON)
    assert "going on from step 4" in output
    assert "going on from step 6" in pieces(*flags), "all is trained, and the report is still to come"

    rows = attempts(pieces.run_folder)
    assert [(row["first_step"], row["last_step"], row["cause"]) for row in rows] == [
        (0, 3, "interrupted: SIGUSR1"),
        (3, 4, "interrupted: SIGUSR1"),
        (4, 6, "interrupted: SIGTERM"),
        (6, 6, "finished"),
    ]
    assert [step for step, _ in losses(pieces.run_folder)] == [1, 2, 3, 4, 5, 6]
    assert trace(pieces.run_folder) == trace(whole.run_folder)


def test_two_processes_stop_at_the_same_step(pieces: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the second of them gets the signal."""
    flags = ("--cpu_processes", "2")
    as_job(pieces, monkeypatch, *flags)
    output = pieces.with_fault(AT_BATCH_5 + EACH_STEP_NOTED, *flags, status=GOES_ON)
    assert "another of its processes was told to end; step 5 is saved" in output
    assert [(pieces.run_folder / f"rank{rank}").read_text() for rank in (0, 1)] == ["5", "5"]
    assert (pieces.run_folder / "checkpoints" / "step_00000005.ckpt").is_file()
    assert attempts(pieces.run_folder)[0]["cause"] == "interrupted"


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_over(
    pieces: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_job(pieces, monkeypatch)
    pieces.with_fault(AT_BATCH_5.replace("SIGUSR1", "SIGKILL"), status=-signal.SIGKILL)
    assert [step for step, _ in losses(pieces.run_folder)] == [1, 2, 3, 4, 5]
    pieces()
    assert [step for step, _ in losses(pieces.run_folder)] == [1, 2, 3, 4, 5, 6], "no step stands there twice"
    killed, finished = attempts(pieces.run_folder)
    assert (killed["last_step"], killed["cause"]) == (5, "killed")
    assert (finished["first_step"], finished["cause"]) == (0, "finished")


def test_a_job_that_resumes_a_path_goes_on_from_its_own_state(pieces: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint that a job names is where it starts, not where it starts over each time it is queued again."""
    pieces("--checkpoint_every_n_steps", "2", "--save_top_k_ckpts", "0", "--max_steps", "8")
    checkpoints = pieces.run_folder / "checkpoints"
    start = str(checkpoints / "step_00000006.ckpt")
    flags = ("--resume_training_ckpt", start, "--save_top_k_ckpts", "0", "--max_steps", "9")
    as_job(pieces, monkeypatch, *flags)
    output = pieces.with_fault(AT_BATCH_5.replace("== 5", "== 7"), *flags, status=GOES_ON)
    assert "going on from step 6" in output and "step 7 is saved" in output
    assert sorted(file.name for file in (checkpoints / "later").iterdir()) == ["step_00000008.ckpt"]
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert "going on from step 7" in pieces(*flags)
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
    listener = Listener()
    listener.listen()
    with pytest.raises(SystemExit) as leaving:
        os.kill(os.getpid(), signal.SIGTERM)
    assert leaving.value.code == GOES_ON


def test_while_training_the_first_signal_is_noted(handlers: None) -> None:
    listener = Listener()
    listener.listen()
    listener.training = True
    assert listener.cause == "interrupted" and listener.why == "another of its processes was told to end"
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert listener.cause == "interrupted: SIGUSR1" and listener.why == "the time limit is near (SIGUSR1)"
