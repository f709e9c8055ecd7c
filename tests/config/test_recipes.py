"""--recipe: what it sets, what wins over it, that it comes back; and energy flags that are wrong or wrong together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from config import parse_command_line
from config.flags import FLAGS, judged
from config.help import help_text
from config.recipes import RECIPES
from config.record import describe, differences, from_dict, to_dict, to_yaml, values_of
from tests.config.problems import problems

EBT = ("--model_name", "ebt")


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_sets_its_values_and_nothing_else(recipe: str) -> None:
    config = parse_command_line([*EBT, "--recipe", recipe])
    bare = {name: flag.default for name, flag in FLAGS.items() if flag.group == "energy"}
    energy = {name: value for name, value in values_of(config).items() if name in bare}
    assert energy == bare | RECIPES[recipe]
    assert {name for name, source in config.sources.items() if source == f"--recipe {recipe}"} == set(RECIPES[recipe])
    for name, value in RECIPES[recipe].items():
        kind = FLAGS[name].kind
        assert type(value) is kind and (kind is bool or judged(FLAGS[name], value) == value), name


def test_there_is_a_recipe_for_every_choice() -> None:
    assert tuple(RECIPES) == FLAGS["recipe"].choices


def test_what_is_given_wins_over_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("recipe: s2\nlangevin_dynamics_noise: 1\nmcmc_step_size: 7\nno_mcmc_detach: false\n")
    config = parse_command_line([*EBT, "--config", str(file), "--mcmc_step_size", "auto", "--no-truncate_mcmc"])
    names = ("langevin_dynamics_noise", "mcmc_step_size", "no_mcmc_detach", "truncate_mcmc", "mcmc_replay_buffer")
    assert [(values_of(config)[name], config.sources[name]) for name in names] == [
        (1.0, "file"),
        ("auto", "command line"),
        (False, "file"),
        (False, "command line"),
        (True, "--recipe s2"),
    ]


def test_the_table_names_the_recipe() -> None:
    table = describe(parse_command_line([*EBT, "--recipe", "s1", "--mcmc_num_steps", "3"]))
    assert re.search(r"^\* --mcmc_step_size +500 +--recipe s1$", table, re.MULTILINE)
    assert re.search(r"^\* --mcmc_num_steps +3 +command line$", table, re.MULTILINE)
    assert re.search(r"^  --mcmc_step_size_learnable +true +default$", table, re.MULTILINE)


@pytest.mark.parametrize(
    "line",
    [
        *[f"--recipe {recipe}" for recipe in RECIPES],
        "--model_name baseline_transformer",
        "--model_name baseline_transformer --no-tie_embeddings --gradient_checkpointing",
        "--recipe s1 --mcmc_num_steps 4 --no-mcmc_step_size_learnable --denoising_initial_condition zeros",
        "--recipe s2 --langevin_dynamics_noise 0 --no-mcmc_replay_buffer",
        "--recipe s1 --mcmc_step_size auto --update_from logits --no-normalize_initial_condition",
    ],
)
def test_the_record_of_a_recipe_comes_back_as_it_was(tmp_path: Path, line: str) -> None:
    config = parse_command_line([*EBT, *line.split()])
    again = from_dict(to_dict(config))
    assert again == config and set(again.sources.values()) == {"file"}
    file = tmp_path / "run.yaml"
    file.write_text(to_yaml(config))
    assert differences(config, parse_command_line(["--config", str(file)])) == {"config": (None, str(file))}


def test_a_record_is_good_for_the_other_model_too(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    for first, then in (("ebt", "baseline_transformer"), ("baseline_transformer", "ebt")):
        file.write_text(to_yaml(parse_command_line(["--model_name", first])))
        config = parse_command_line(["--config", str(file), "--model_name", then])
        plain = parse_command_line(["--model_name", then])
        assert differences(plain, config) == {"config": (None, str(file))}


def test_a_baseline_record_may_state_bare_defaults() -> None:
    tree = {"model_name": "baseline_transformer", "no_mcmc_detach": False, "mcmc_num_steps": 2}
    assert from_dict(tree).energy.no_mcmc_detach is False


def test_an_idle_energy_flag_of_a_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model_name: baseline_transformer\nmcmc_num_steps: 3\n")
    assert problems("--config", str(file)) == [
        f"mcmc_num_steps in {file} is not used by --model_name baseline_transformer: "
        "remove it, or choose --model_name ebt."
    ]


def test_a_recipe_that_the_file_overrules_is_told(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(to_yaml(parse_command_line([*EBT, "--recipe", "s2"])))
    assert problems("--config", str(file), "--recipe", "s1") == [
        f"--recipe s1 has no effect with {file}, which sets mcmc_step_size, mcmc_step_size_lr_multiplier, "
        "randomize_mcmc_step_size_scale and randomize_mcmc_num_steps: remove one of them."
    ]
    parse_command_line(["--config", str(file), "--recipe", "s2"])


def test_a_recipe_that_cannot_be_read_has_one_problem() -> None:
    line = "--recipe s3 --no_langevin_during_eval --mcmc_step_size_lr_multiplier 3 --no-normalize_initial_condition"
    assert problems(*EBT, *line.split()) == ["--recipe is 's3': choose laptop, s1 or s2."]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--mcmc_num_steps 0", "--mcmc_num_steps is 0: give a whole number of at least 1."),
        ("--mcmc_step_size nan", "--mcmc_step_size is nan: give a number above 0, or auto; it must be finite."),
        ("--mcmc_step_size inf", "--mcmc_step_size is inf: give a number above 0, or auto; it must be finite."),
        ("--mcmc_step_size 0", "--mcmc_step_size is 0: give a number above 0, or auto."),
        ("--mcmc_step_size -1", "--mcmc_step_size is -1: give a number above 0, or auto."),
        ("--mcmc_step_size fast", "--mcmc_step_size is 'fast': give a number above 0, or auto."),
        ("--ebt_type adaln2", "--ebt_type is 'adaln2': choose default, time_embed, adaln or adaln_zero."),
        ("--randomize_mcmc_num_steps 2 --randomize_mcmc_num_steps_min 9",
         "--randomize_mcmc_num_steps_min is 9: the most steps drawn is --mcmc_num_steps 2 + "
         "--randomize_mcmc_num_steps 2 = 4; give at most 4."),
        ("--randomize_mcmc_num_steps_min 2 --recipe s1",
         "--randomize_mcmc_num_steps_min has no effect with --randomize_mcmc_num_steps 0, which --recipe s1 sets: "
         "remove it, or give --randomize_mcmc_num_steps of at least 1."),
        ("--denoising_initial_condition most_recent_embedding",
         "--denoising_initial_condition is 'most_recent_embedding': a language prediction is a distribution over the "
         "vocabulary, and the most recent embedding is not one; choose random_noise or zeros."),
        ("--denoising_initial_condition zeros --gaussian_random_noise_scaling 0.5",
         "--gaussian_random_noise_scaling is not used by --denoising_initial_condition zeros: "
         "remove it, or choose --denoising_initial_condition random_noise."),
        ("--contrastive_loss_coeff 0.2",
         "--contrastive_loss_coeff has no effect without --contrastive_loss: remove it, or add --contrastive_loss."),
        ("--reconstruction_coeff 0.2",
         "--reconstruction_coeff has no effect without --contrastive_loss: remove it, or add --contrastive_loss."),
        ("--langevin_dynamics_noise_learnable",
         "--langevin_dynamics_noise_learnable has no effect with --langevin_dynamics_noise 0: it would stay 0; "
         "remove it, or give --langevin_dynamics_noise above 0."),
        ("--no_langevin_during_eval",
         "--no_langevin_during_eval has no effect with --langevin_dynamics_noise 0: "
         "remove it, or give --langevin_dynamics_noise above 0."),
        ("--mcmc_replay_buffer_size 100",
         "--mcmc_replay_buffer_size has no effect without --mcmc_replay_buffer: "
         "remove it, or add --mcmc_replay_buffer."),
        ("--mcmc_replay_buffer --mcmc_replay_buffer_size 7",
         "--mcmc_replay_buffer_size is 7: it must give --mcmc_replay_buffer_sample_bs_percent 0.5 of "
         "--batch_size_per_device 16; give at least 8, or a smaller share."),
        ("--no-normalize_initial_condition --update_from probabilities",
         "--no-normalize_initial_condition contradicts --update_from probabilities: without softmax(y) there are no "
         "probabilities to step from; remove it, or choose --update_from logits."),
        ("--no-normalize_initial_condition --recipe s1",
         "--no-normalize_initial_condition contradicts --update_from probabilities, which --recipe s1 sets: without "
         "softmax(y) there are no probabilities to step from; remove it, or choose --update_from logits."),
        ("--randomize_mcmc_num_steps_final_landscape",
         "--randomize_mcmc_num_steps_final_landscape is not used by --ebt_type default: "
         "remove it, or choose --ebt_type time_embed, adaln or adaln_zero."),
        ("--mcmc_step_size_lr_multiplier 3 --recipe s2",
         "--mcmc_step_size_lr_multiplier has no effect with --no-mcmc_step_size_learnable, which --recipe s2 sets: "
         "remove it, or add --mcmc_step_size_learnable."),
        ("--tie_embeddings",
         "--tie_embeddings is not used by --model_name ebt: remove it, or choose --model_name baseline_transformer."),
    ],
)  # fmt: skip
def test_a_wrong_energy_flag_is_told(line: str, problem: str) -> None:
    assert problems(*EBT, *line.split()) == [problem]


@pytest.mark.parametrize("name", ["recipe", *[flag.name for flag in FLAGS.values() if flag.group == "energy"]])
def test_no_energy_flag_is_for_the_baseline(name: str) -> None:
    flag = FLAGS[name]
    words = [] if flag.kind is bool else [flag.choices[-1] if flag.choices else "1"]
    assert problems(f"--{name}", *words, "--model_name", "baseline_transformer") == [
        f"--{name} is not used by --model_name baseline_transformer: remove it, or choose --model_name ebt."
    ]


@pytest.mark.parametrize(
    "line",
    [
        "--denoising_initial_condition zeros",
        "--denoising_initial_condition zeros --recipe s1",
        "--randomize_mcmc_num_steps 2 --randomize_mcmc_num_steps_min 4",
        "--randomize_mcmc_num_steps_min 1 --recipe s2",
        "--mcmc_replay_buffer --mcmc_replay_buffer_size 8",
        "--mcmc_replay_buffer_size 8 --recipe s2",
        "--batch_size_per_device 1000",
        "--recipe s2 --langevin_dynamics_noise 0",
        "--langevin_dynamics_noise 1 --langevin_dynamics_noise_learnable --no_langevin_during_eval",
        "--no-langevin_dynamics_noise_learnable",
        "--randomize_mcmc_num_steps_final_landscape --ebt_type adaln",
        "--contrastive_loss --contrastive_loss_coeff 0.2 --reconstruction_coeff 0",
        "--mcmc_step_size 1e-3 --no-mcmc_step_size_learnable",
        "--no-mcmc_step_size_learnable --recipe s1",
    ],
)
def test_sound_energy_flags_are_not_refused(line: str) -> None:
    parse_command_line([*EBT, *line.split()])


def test_help_of_the_energy_group_has_its_ranges_and_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    lines = [line.strip() for line in help_text("energy").splitlines()]
    assert lines[0] == "ENERGY  how an energy-based model finds its predictions"
    start = next(index for index, line in enumerate(lines) if line.startswith("--mcmc_step_size X"))
    assert lines[start].endswith("length of a step; auto fits it to the first batch [auto]")
    assert lines[start + 1 : start + 6] == [
        "a number above 0",
        "or auto",
        "500 with --recipe s1",
        "5 with --recipe s2",
        "only with --model_name ebt",
    ]
    start = next(index for index, line in enumerate(lines) if line.startswith("--no_mcmc_detach"))
    assert lines[start].endswith("[on]") and lines[start + 1] == "off with --recipe s1", "the default recipe has it on"
    assert "off with --recipe s2" in lines and "only with --contrastive_loss" in lines
    assert "2 with --recipe s1" not in lines, "what a recipe leaves at the default is not told"


def test_a_found_step_size_needs_no_multiplier() -> None:
    assert problems(*EBT, "--mcmc_step_size_lr_multiplier", "3") == [
        "--mcmc_step_size_lr_multiplier has no effect with --mcmc_step_size auto, whose rate follows the size it "
        "finds: remove it, or give --mcmc_step_size a number."
    ]
