"""A run that is killed and resumed is the run that was never interrupted, bit for bit."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from core.files import read_rows
from tests.conftest import TrainCommand
from tests.training.traces import final, same, trace

FLAGS = (  # 60 steps cross two epochs of 25 batches
    *("--max_steps", "60", "--log_every_n_steps", "3", "--val_check_interval", "20", "--checkpoint_every_n_steps", "7"),
    *("--limit_train_batches", "25", "--resume_training_ckpt", "last_or_new"),
)

KILLED_WHILE_SAVING = """
    import signal
    replace = os.replace
    def die_at_step_28(source, target):
        if str(target).endswith("step_00000028.ckpt"):
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
    os.replace = die_at_step_28
"""


def kill_at(train_command: TrainCommand, step: int, *flags: str) -> None:
    """Start the training and SIGKILL it (and its loader processes) as soon as it has logged `step`."""
    process = train_command.start(*FLAGS, *flags)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        folders = list((train_command.logs / "runs").glob("[!.]*"))
        if folders and any(row["step"] >= step for row in read_rows(folders[0] / "metrics.jsonl")):
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.005)
    assert process.wait(30) == -signal.SIGKILL


# Noise, random steps and sizes and the replay buffer all have to survive.
REPLAY = ("--mcmc_replay_buffer", "--mcmc_replay_buffer_size", "6")
DRAWN = ("--langevin_dynamics_noise", "0.1", "--randomize_mcmc_num_steps", "2")
ENERGIES = {
    "residual": ("--recipe", "residual"),
    "residual, noisy": (
        *("--recipe", "residual", "--ebt_type", "time_embed", "--mcmc_num_steps", "2", "--energy_blocks", "2", *DRAWN),
        *("--gaussian_random_noise_scaling", "0.1", "--randomize_mcmc_step_size_scale", "2"),
    ),
    "laptop": ("--recipe", "laptop", *REPLAY, *DRAWN),
    "s2": ("--recipe", "s2", *REPLAY),
}


@pytest.mark.parametrize("model", ["baseline_transformer", *ENERGIES])
def test_pieces_equal_the_whole(corpus: Path, tmp_path: Path, model: str) -> None:
    whole, pieces = TrainCommand(corpus, tmp_path / "whole"), TrainCommand(corpus, tmp_path / "pieces")
    pieces.cold = model == "baseline_transformer"  # one of them in new interpreters, with other hash seeds
    if model in ENERGIES:
        whole, pieces = whole.ebt(*ENERGIES[model]), pieces.ebt(*ENERGIES[model])
    whole(*FLAGS)
    # Each kill is well past the one before, so that the rows of an earlier attempt do not trigger it.
    before, after, late = random.randrange(9, 15, 3), random.randrange(33, 40, 3), random.randrange(51, 58, 3)
    print("killed at", before, after, late)

    kill_at(pieces, before, "--num_workers", "1")
    pieces.with_fault(KILLED_WHILE_SAVING, *FLAGS, status=-signal.SIGKILL)
    assert any(".tmp" in file.name for file in (pieces.run_folder / "checkpoints").iterdir()), "the write was not cut"
    if pieces.cold:
        kill_at(pieces, after)
    kill_at(pieces, late, "--num_workers", "2")
    output = pieces(*FLAGS)

    assert "resuming from step" in output
    assert trace(whole.run_folder) == trace(pieces.run_folder)
    assert [row["step"] for row in trace(whole.run_folder) if "valid_loss" in row] == [0, 20, 40, 60]
    one, other = final(whole.run_folder), final(pieces.run_folder)
    replayed = ("replay",) if REPLAY[0] in whole.tiny else ()
    assert set(replayed) == {"replay"} & one.keys() == {"replay"} & other.keys()
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "rng", *replayed):
        assert same(one[part], other[part]), part
    attempts = [row for row in read_rows(pieces.run_folder / "attempts.jsonl") if "start" in row]
    assert len(attempts) == (5 if pieces.cold else 4)
    assert not list((pieces.run_folder / "checkpoints").glob(".*.tmp")), "left-overs of killed writes are cleared away"


def test_resume_takes_the_settings_of_the_run(train_command: TrainCommand) -> None:
    train_command("--embedding_dim", "64", "--checkpoint_every_n_steps", "3")
    checkpoint = str(train_command.run_folder / "checkpoints" / "last.ckpt")
    output = train_command("--resume_training_ckpt", checkpoint, "--max_steps", "9")
    assert "resuming from step 6" in output
    assert read_rows(train_command.run_folder / "metrics.jsonl")[-1]["step"] == 9


def test_a_resume_cannot_become_another_run(train_command: TrainCommand) -> None:
    train_command()
    output = train_command("--resume_training_ckpt", "last", "--embedding_dim", "64", "--seed", "3", status=2)
    assert (
        "--embedding_dim is 64: the run of --resume_training_ckpt has 128; leave it out, or start a new run." in output
    )
    assert "--seed is 3: the run of --resume_training_ckpt has 0; leave it out, or start a new run." in output


def test_last_needs_a_checkpoint_and_passes_over_runs_without_one(train_command: TrainCommand) -> None:
    output = train_command("--resume_training_ckpt", "last", status=2)
    assert output == (
        f"--resume_training_ckpt is 'last': no run named 'default' in {train_command.logs}/runs has a checkpoint; "
        "leave the flag out to start a run, or give last_or_new, which resumes where it can and else starts a run.\n"
    )
    output = train_command("--resume_training_ckpt", "last_or_new", "--max_steps", "2")
    assert "no checkpoint of a run named 'default' yet: starting from step 0." in output
    first = train_command.run_folder
    later = first.with_name("default_29991231-235959_abcdef")
    shutil.copytree(first, later)
    for file in (later / "checkpoints").iterdir():
        file.unlink()
    output = train_command("--resume_training_ckpt", "last", "--max_steps", "3")
    assert f"passed over, without a checkpoint: {later.name}\n" in output and f"resuming from step 2 ({first}" in output
    shutil.rmtree(first)
    output = train_command("--resume_training_ckpt", "last", status=2)
    assert f"has a checkpoint, only {later.name} without one; leave the flag out" in output


def test_missing_checkpoint(train_command: TrainCommand) -> None:
    output = train_command("--resume_training_ckpt", "nowhere.ckpt", status=2)
    assert "--resume_training_ckpt is 'nowhere.ckpt': there is no such file; give a .ckpt file, or last." in output


@pytest.mark.parametrize("change", ["truncate", "flip"])
def test_a_damaged_newest_checkpoint_falls_back(train_command: TrainCommand, change: str) -> None:
    train_command("--checkpoint_every_n_steps", "3")
    newest = train_command.run_folder / "checkpoints" / "step_00000006.ckpt"
    content = bytearray(newest.read_bytes())
    if change == "truncate":
        content = content[: len(content) // 2]
    else:
        content[len(content) // 2] ^= 255
    newest.write_bytes(content)
    output = train_command("--resume_training_ckpt", "last", "--max_steps", "7")
    assert "warning:" in output and "step_00000006.ckpt" in output
    assert "resuming from step 3" in output
