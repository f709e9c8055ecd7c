"""The energy-based model through train_model.py: it learns, thinks, resumes and spreads over processes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from core.files import read_rows
from tests.conftest import TrainCommand

LAPTOP = ("--recipe", "laptop")


def rows_of(train_command: TrainCommand, name: str) -> list[dict[str, float]]:
    return [row for row in read_rows(train_command.run_folder / "metrics.jsonl") if name in row]


@pytest.mark.parametrize("recipe", ["residual", "laptop"])
@pytest.mark.parametrize("kind", ["default", "time_embed", "adaln", "adaln_zero"])
def test_every_conditioning_learns(train_command: TrainCommand, kind: str, recipe: str) -> None:
    walk = ("--recipe", recipe, "--mcmc_num_steps", "2")
    train_command.ebt("--ebt_type", kind, *walk)("--max_steps", "25", "--peak_learning_rate", "0.003")
    rows = rows_of(train_command, "train_loss")
    assert rows[-1]["train_loss"] < rows[0]["train_loss"] - 0.5


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--recipe", "public"),
        ("--recipe", "s1"),
        ("--recipe", "s2"),
        ("--contrastive_loss",),
        (*LAPTOP, "--contrastive_loss"),
        (*LAPTOP, "--no-mcmc_last_step_loss", "--truncate_mcmc", "--vocab_to_embed_uses_prob_dist"),
        (*LAPTOP, "--denoising_initial_condition", "zeros", "--update_from", "probabilities"),
        (*LAPTOP, "--langevin_dynamics_noise", "0.1", "--langevin_dynamics_noise_learnable"),
        (*LAPTOP, "--ebt_norm", "layer", "--ebt_act_func", "gelu", "--no-mcmc_step_size_learnable"),
        (*LAPTOP, "--ebt_norm", "dyt", "--ebt_act_func", "elu", "--no-normalize_initial_condition"),
        (*LAPTOP, "--float_precision", "bf16"),
        ("--float_precision", "bf16"),
        ("--energy_blocks", "2", "--mcmc_num_steps", "2", "--truncate_mcmc", "--gaussian_random_noise_scaling", "0.1"),
        ("--mcmc_num_steps", "2", "--randomize_mcmc_num_steps", "2", "--randomize_mcmc_step_size_scale", "2"),
        ("--mcmc_num_steps", "2", "--mcmc_last_step_loss", "--langevin_dynamics_noise", "0.1", "--ebt_type", "adaln"),
        ("--mcmc_replay_buffer", "--denoising_initial_condition", "random_noise", "--ebt_norm", "layer"),
    ],
)
def test_every_energy_flag_trains_to_finite_losses(train_command: TrainCommand, flags: tuple[str, ...]) -> None:
    train_command.ebt(*flags)("--max_steps", "8")
    rows = rows_of(train_command, "train_loss")
    assert len(rows) == 8 and all(math.isfinite(row["train_loss"]) for row in rows)
    assert all(row["nonfinite_steps"] == 0 for row in rows)


def test_the_walk_is_written_down(train_command: TrainCommand) -> None:
    output = train_command.ebt(*LAPTOP, "--no-mcmc_last_step_loss")()
    assert "--mcmc_step_size auto: 0." in output
    row = rows_of(train_command, "train_loss")[-1]
    names = {"steps", "energy_first", "energy_last", "energy_gap", "energy_gradient_norm", "step_size", "thinking_gain"}
    assert names <= row.keys() and "train_loss_step_2" in row
    rates = [name for name in row if name.startswith("learning_rate")]
    assert rates == ["learning_rate", "learning_rate/step_size"], "whatever size is found: curves of runs compare"
    valid = rows_of(train_command, "valid_loss")[-1]
    assert valid["valid_loss_step_2"] == pytest.approx(valid["valid_loss"], rel=1e-6)
    assert valid["valid_thinking_gain"] == pytest.approx(valid["valid_loss_step_1"] - valid["valid_loss_step_2"])


def test_the_default_run_starts_from_its_own_transformer(train_command: TrainCommand) -> None:
    """One step from the prior, whose loss is that of a Transformer++; nothing is random but the order of the rows."""
    output = train_command.ebt()()
    assert "--mcmc_step_size auto: 1\n" in output
    settings = json.loads((train_command.run_folder / "config.json").read_text())
    assert settings["version"] == 2 and settings["run"]["recipe"] == "residual"
    assert (settings["energy"]["energy_form"], settings["energy"]["mcmc_num_steps"]) == ("residual", 1)
    rows = rows_of(train_command, "train_loss")
    assert all(row["steps"] == 1 for row in rows) and rows[0]["thinking_gain"] == pytest.approx(0, abs=1e-5)
    assert rows[0]["step_size"] == 1 != rows[-1]["step_size"]
    first, *_, last = rows_of(train_command, "valid_loss")
    for valid in (first, last):
        assert {name for name in valid if "loss_step" in name} == {"valid_loss_step_0", "valid_loss_step_1"}
        assert valid["valid_loss_step_1"] == pytest.approx(valid["valid_loss"], rel=1e-6)
        assert valid["valid_thinking_gain"] == pytest.approx(valid["valid_loss_step_0"] - valid["valid_loss_step_1"])
    assert first["valid_loss_step_0"] == pytest.approx(first["valid_loss_step_1"], abs=1e-5)  # no correction yet
    assert last["valid_loss_step_0"] != pytest.approx(last["valid_loss_step_1"], abs=1e-5)


@pytest.mark.parametrize("recipe", ["residual", "laptop"])
def test_the_found_step_size_survives_a_resume(train_command: TrainCommand, recipe: str) -> None:
    ebt = train_command.ebt("--recipe", recipe, "--no-mcmc_step_size_learnable")
    assert "--mcmc_step_size auto: " in ebt("--max_steps", "3")
    assert "--mcmc_step_size auto" not in ebt("--max_steps", "6", "--resume_training_ckpt", "last")
    assert len({row["step_size"] for row in rows_of(train_command, "step_size")}) == 1


@pytest.mark.parametrize("recipe", ["residual", "laptop"])
def test_two_processes_give_the_gradient_of_the_doubled_batch(corpus: Path, tmp_path: Path, recipe: str) -> None:
    # No noise and a fixed walk: two processes draw other noise than one, and only the gradient is compared here.
    zeros = ("--denoising_initial_condition", "zeros", "--randomize_mcmc_step_size_scale", "1")
    fixed = ("--recipe", recipe, *(zeros if recipe == "laptop" else ("--mcmc_num_steps", "2")))
    one, two = (TrainCommand(corpus, tmp_path / name).ebt(*fixed) for name in ("one", "two"))
    one("--batch_size_per_device", "4")
    two("--batch_size_per_device", "2", "--cpu_processes", "2")
    for a, b in zip(rows_of(one, "train_loss"), rows_of(two, "train_loss"), strict=True):
        for name in ("train_loss", "gradient_norm", "step_size"):
            assert a[name] == pytest.approx(b[name], rel=1e-3), (name, a["step"])


def test_two_processes_resume_with_their_own_replay_buffers(corpus: Path, tmp_path: Path) -> None:
    flags = ("--batch_size_per_device", "2", "--cpu_processes", "2", "--max_scheduling_steps", "6")
    replay = (*LAPTOP, "--mcmc_replay_buffer", "--mcmc_replay_buffer_size", "4")
    whole, pieces = (TrainCommand(corpus, tmp_path / name).ebt(*replay, *flags) for name in ("whole", "pieces"))
    whole()
    pieces("--max_steps", "3")
    pieces("--resume_training_ckpt", "last")
    losses = [[row["train_loss"] for row in rows_of(train_command, "train_loss")] for train_command in (whole, pieces)]
    assert losses[0] == losses[1] and len(losses[0]) == 6


def test_a_checkpoint_of_another_kind_of_energy(train_command: TrainCommand) -> None:
    train_command.ebt("--ebt_type", "adaln", "--mcmc_num_steps", "2")()
    checkpoint = str(train_command.run_folder / "checkpoints" / "last.ckpt")
    flags = ("--execution_mode", "finetune", "--finetuning_model_ckpt", checkpoint, "--ebt_type", "default")
    output = train_command.ebt()(*flags, status=2)
    assert "--finetuning_model_ckpt: its weights do not fit this model" in output


def test_a_checkpoint_with_another_vocabulary(train_command: TrainCommand) -> None:
    train_command.ebt()()
    checkpoint = str(train_command.run_folder / "checkpoints" / "last.ckpt")
    flags = ("--execution_mode", "finetune", "--finetuning_model_ckpt", checkpoint, "--tokenizer", "bpe:300")
    output = train_command.ebt()(*flags, "--model_size", "tiny", status=2)
    for name, value, old in (("tokenizer", "bpe:300", "bytes"), ("model_size", "tiny", "4xs")):
        words = f"--{name} is '{value}': the run of --finetuning_model_ckpt has '{old}'; leave it out, or start a new"
        assert words in output


def test_finetuning_keeps_the_learned_step_size_unless_one_is_given(train_command: TrainCommand) -> None:
    train_command.ebt("--recipe", "laptop")("--peak_learning_rate", "0.1")
    checkpoint = train_command.run_folder / "checkpoints" / "last.ckpt"
    learned = float(torch.load(checkpoint, weights_only=True)["state_dict"]["step_size"])
    tuned = TrainCommand(train_command.corpus, train_command.logs / "tuned").ebt()
    flags = ("--execution_mode", "finetune", "--finetuning_model_ckpt", str(checkpoint), "--peak_learning_rate", "1e-9")
    assert "--mcmc_step_size auto" not in tuned(*flags)
    assert rows_of(tuned, "step_size")[0]["step_size"] == pytest.approx(learned, rel=1e-3)
    given = TrainCommand(train_command.corpus, train_command.logs / "given").ebt()
    given(*flags, "--recipe", "laptop", "--mcmc_step_size", "0.25")
    assert rows_of(given, "step_size")[0]["step_size"] == pytest.approx(0.25, rel=1e-3)


def test_a_replay_buffer_larger_than_memory(train_command: TrainCommand) -> None:
    output = train_command.ebt(*LAPTOP, "--mcmc_replay_buffer", "--mcmc_replay_buffer_size", str(10**12))(status=2)
    assert "--mcmc_replay_buffer_size is 1000000000000: a row has" in output and "GB are free; choose at most" in output


@pytest.mark.parametrize("recipe", ["residual", "laptop"])
def test_a_compiled_run_learns_the_same(corpus: Path, tmp_path: Path, recipe: str) -> None:
    losses = []
    for name, flags in (("plain", ()), ("compiled", ("--compile_model",))):
        one = TrainCommand(corpus, tmp_path / name).ebt("--max_steps", "3", "--recipe", recipe, *flags)
        assert ("--compile_model: " in one()) is bool(flags)
        losses.append([row["train_loss"] for row in rows_of(one, "train_loss")])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[0] != losses[1]
