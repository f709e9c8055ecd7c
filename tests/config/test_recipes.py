"""--recipe: what it sets, what wins over it, that it comes back; the job scripts of public EBT code; and energy flags
that are wrong or wrong together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from config import RunConfig, parse_command_line
from config.energy import RECIPES, Energy
from config.flags import validated
from config.help import help_text
from config.record import describe, differences, from_dict, to_dict, to_yaml, values_of
from config.settings import Transformer
from config.task_flags import all_flags
from tests.config.problems import LANGUAGE, problems
from train_model import main

EBT = ("--model_name", "ebt")


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_sets_its_values_and_nothing_else(recipe: str) -> None:
    config = parse_command_line([*EBT, "--recipe", recipe])
    bare = {name: flag.default for name, flag in LANGUAGE.flags.items() if flag.group == "energy"}
    energy = {name: value for name, value in values_of(config).items() if name in bare}
    assert energy == bare | RECIPES[recipe]
    assert {name for name, source in config.sources.items() if source == f"--recipe {recipe}"} == set(RECIPES[recipe])
    for name, value in RECIPES[recipe].items():
        kind = all_flags()[name].kind
        assert type(value) is kind and (kind is bool or validated(all_flags()[name], value) == value), name


def test_there_is_a_recipe_for_every_choice() -> None:
    assert tuple(RECIPES) == all_flags()["recipe"].choices


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
    assert re.search(r"^  --mcmc_step_size_learnable +true +--recipe s1$", table, re.MULTILINE)
    assert re.search(r"^  --ebt_norm +rms +default$", table, re.MULTILINE)


@pytest.mark.parametrize(
    "line",
    [
        *[f"--recipe {recipe}" for recipe in RECIPES],
        "--model_name baseline_transformer",
        "--model_name baseline_transformer --no-tie_embeddings --gradient_checkpointing",
        "--recipe s1 --mcmc_num_steps 4 --no-mcmc_step_size_learnable --denoising_initial_condition zeros",
        "--recipe s2 --langevin_dynamics_noise 0 --no-mcmc_replay_buffer",
        "--recipe s1 --mcmc_step_size auto --update_from logits --no-normalize_initial_condition",
        "--recipe s1 --energy_form residual --energy_blocks 3 --denoising_initial_condition prior",
        "--recipe s2 --no-truncate_mcmc --mcmc_last_step_loss --randomize_mcmc_num_steps 0",
        "--mcmc_step_size 500",
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
    bare = {"no_mcmc_detach": True, "mcmc_num_steps": 1}
    assert all(value == all_flags()[name].default != RECIPES["s1"][name] for name, value in bare.items())
    energy = from_dict({"model_name": "baseline_transformer", "recipe": "s1", **bare})[Energy]
    assert (energy.no_mcmc_detach, energy.mcmc_num_steps) == (True, 1)


def test_an_idle_energy_flag_of_a_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model_name: baseline_transformer\nmcmc_num_steps: 3\n")
    assert problems("--config", str(file)) == [
        f"mcmc_num_steps in {file} is not used by --model_name baseline_transformer: "
        "remove it, or choose --model_name ebt."
    ]


def test_a_recipe_that_the_file_overrules_is_told(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(to_yaml(parse_command_line([*EBT, "--recipe", "s1"])))
    assert problems("--config", str(file), "--recipe", "public") == [
        f"--recipe public has no effect with {file}, which sets ebt_type, mcmc_step_size, mcmc_step_size_learnable, "
        "mcmc_step_size_lr_multiplier and normalize_initial_condition: remove one of them."
    ]
    message = problems("--config", str(file), "--recipe", "residual")[-1]
    assert message.startswith(f"--recipe residual has no effect with {file}, which sets energy_form, ")
    for recipe, first in (("s2", "mcmc_num_steps"), ("laptop", "ebt_type")):
        message = problems("--config", str(file), "--recipe", recipe)[-1]
        assert message.startswith(f"--recipe {recipe} has no effect with {file}, which sets {first}, ")
    parse_command_line(["--config", str(file), "--recipe", "s1"])


def test_a_recipe_that_cannot_be_read_has_one_problem() -> None:
    line = "--recipe s3 --no_langevin_during_eval --mcmc_step_size_lr_multiplier 3 --no-normalize_initial_condition"
    assert problems(*EBT, *line.split()) == ["--recipe is 's3': choose residual, laptop, public, s1 or s2."]


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
         "--randomize_mcmc_num_steps_min is 9: a landscape is repeated at most --randomize_mcmc_num_steps 2 + 1 = 3 "
         "times; give at most 3."),
        ("--randomize_mcmc_num_steps_min 4 --recipe s2",
         "--randomize_mcmc_num_steps_min is 4: a landscape is repeated at most --randomize_mcmc_num_steps 2 + 1 = 3 "
         "times; give at most 3."),
        ("--randomize_mcmc_num_steps_min 2",
         "--randomize_mcmc_num_steps_min has no effect with --randomize_mcmc_num_steps 0: "
         "remove it, or give --randomize_mcmc_num_steps of at least 1."),
        ("--randomize_mcmc_num_steps_min 2 --recipe s1",
         "--randomize_mcmc_num_steps_min has no effect with --randomize_mcmc_num_steps 0, which --recipe s1 sets: "
         "remove it, or give --randomize_mcmc_num_steps of at least 1."),
        ("--denoising_initial_condition most_recent_embedding",
         "--denoising_initial_condition is 'most_recent_embedding': a language prediction is a distribution over the "
         "vocabulary, and the most recent embedding is not one; choose random_noise or zeros."),
        ("--denoising_initial_condition zeros --gaussian_random_noise_scaling 0.5",
         "--gaussian_random_noise_scaling is not used by --denoising_initial_condition zeros: "
         "remove it, or choose --denoising_initial_condition random_noise or prior."),
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
        ("--mcmc_replay_buffer --mcmc_replay_buffer_size 7 --denoising_initial_condition random_noise",
         "--mcmc_replay_buffer_size is 7: it must give --mcmc_replay_buffer_sample_bs_percent 0.5 of "
         "--batch_size_per_device 16; give at least 8, or a smaller share."),
        ("--randomize_mcmc_num_steps_final_landscape",
         "--randomize_mcmc_num_steps_final_landscape has no effect with --randomize_mcmc_num_steps 0: "
         "remove it, or give --randomize_mcmc_num_steps of at least 1."),
        ("--randomize_mcmc_num_steps_final_landscape --mcmc_step_size 5",
         "--randomize_mcmc_num_steps_final_landscape has no effect with --randomize_mcmc_num_steps 0, which --recipe "
         "public sets: remove it, or give --randomize_mcmc_num_steps of at least 1."),
        ("--truncate_mcmc --mcmc_last_step_loss",
         "--truncate_mcmc contradicts --mcmc_last_step_loss: both judge the last step only, --truncate_mcmc "
         "differentiates only that one, --mcmc_last_step_loss all; add --no-mcmc_last_step_loss or "
         "--no-truncate_mcmc."),
        ("--mcmc_last_step_loss --recipe s2",
         "--mcmc_last_step_loss contradicts --truncate_mcmc, which --recipe s2 sets: both judge the last step only, "
         "--truncate_mcmc differentiates only that one, --mcmc_last_step_loss all; add --no-mcmc_last_step_loss or "
         "--no-truncate_mcmc."),
        ("--truncate_mcmc --recipe laptop",
         "--truncate_mcmc contradicts --mcmc_last_step_loss, which --recipe laptop sets: both judge the last step "
         "only, --truncate_mcmc differentiates only that one, --mcmc_last_step_loss all; add "
         "--no-mcmc_last_step_loss or --no-truncate_mcmc."),
        ("--denoising_initial_condition prior --recipe laptop",
         "--denoising_initial_condition is 'prior': there is no Transformer++ to start from with --energy_form scalar, "
         "which --recipe laptop sets; choose random_noise or zeros, or --energy_form residual."),
        ("--energy_form scalar",
         "--denoising_initial_condition is 'prior': there is no Transformer++ to start from with --energy_form scalar; "
         "choose random_noise or zeros, or --energy_form residual."),
        ("--mcmc_replay_buffer",
         "--mcmc_replay_buffer contradicts --denoising_initial_condition prior: a replayed row starts from its old "
         "prediction; remove it, or choose --denoising_initial_condition random_noise."),
        ("--update_from probabilities",
         "--update_from is not used by --energy_form residual: remove it, or choose --energy_form scalar."),
        ("--normalize_initial_condition",
         "--normalize_initial_condition is not used by --energy_form residual: "
         "remove it, or choose --energy_form scalar."),
        ("--no-normalize_initial_condition --recipe s1 --energy_form residual",
         "--no-normalize_initial_condition is not used by --energy_form residual: "
         "remove it, or choose --energy_form scalar."),
        ("--vocab_to_embed_uses_prob_dist",
         "--vocab_to_embed_uses_prob_dist is not used by --energy_form residual: "
         "remove it, or choose --energy_form scalar."),
        ("--energy_blocks 2 --energy_form scalar --denoising_initial_condition zeros",
         "--energy_blocks is not used by --energy_form scalar: remove it, or choose --energy_form residual."),
        ("--energy_blocks 2 --recipe laptop",
         "--energy_blocks is not used by --energy_form scalar, which --recipe laptop sets: "
         "remove it, or choose --energy_form residual."),
        ("--energy_blocks 0", "--energy_blocks is 0: give a whole number of at least 1."),
        ("--energy_form vector", "--energy_form is 'vector': choose scalar or residual."),
        ("--mcmc_step_size_lr_multiplier 3 --recipe s2",
         "--mcmc_step_size_lr_multiplier has no effect with --no-mcmc_step_size_learnable, which --recipe s2 sets: "
         "remove it, or add --mcmc_step_size_learnable."),
        ("--mcmc_step_size_lr_multiplier 3 --mcmc_step_size 30",
         "--mcmc_step_size_lr_multiplier has no effect with --no-mcmc_step_size_learnable, which --recipe public "
         "sets: remove it, or add --mcmc_step_size_learnable."),
        ("--tie_embeddings",
         "--tie_embeddings is not used by --model_name ebt: "
         "remove it, or choose --model_name baseline_transformer or looped_transformer."),
    ],
)  # fmt: skip
def test_a_wrong_energy_flag_is_told(line: str, problem: str) -> None:
    assert problems(*EBT, *line.split()) == [problem]


@pytest.mark.parametrize("name", ["recipe", *[flag.name for flag in LANGUAGE.flags.values() if flag.group == "energy"]])
def test_no_energy_flag_is_for_the_baseline(name: str) -> None:
    flag = all_flags()[name]
    words = [] if flag.kind is bool else [flag.choices[-1] if flag.choices else "1"]
    assert problems(f"--{name}", *words, "--model_name", "baseline_transformer") == [
        f"--{name} is not used by --model_name baseline_transformer: remove it, or choose --model_name ebt."
    ]


@pytest.mark.parametrize(
    "line",
    [
        "--denoising_initial_condition zeros",
        "--denoising_initial_condition zeros --recipe s1",
        "--randomize_mcmc_num_steps 2 --randomize_mcmc_num_steps_min 3",
        "--randomize_mcmc_num_steps 0 --recipe s2",
        "--randomize_mcmc_num_steps_min 0",
        "--randomize_mcmc_num_steps_min 1 --recipe s2",
        "--mcmc_replay_buffer --mcmc_replay_buffer_size 8 --denoising_initial_condition random_noise",
        "--mcmc_replay_buffer_size 8 --recipe s2",
        "--batch_size_per_device 1000",
        "--recipe s2 --langevin_dynamics_noise 0",
        "--langevin_dynamics_noise 1 --langevin_dynamics_noise_learnable --no_langevin_during_eval",
        "--no-langevin_dynamics_noise_learnable",
        "--randomize_mcmc_num_steps_final_landscape --randomize_mcmc_num_steps 1",
        "--randomize_mcmc_num_steps_final_landscape --recipe s2",
        "--no-normalize_initial_condition --update_from probabilities --recipe laptop",
        "--no-normalize_initial_condition --recipe s1",
        "--energy_form scalar --denoising_initial_condition zeros --vocab_to_embed_uses_prob_dist",
        "--energy_form residual --energy_blocks 2",
        "--denoising_initial_condition prior --gaussian_random_noise_scaling 0.5",
        "--denoising_initial_condition random_noise --recipe residual",
        "--truncate_mcmc",
        "--mcmc_last_step_loss",
        "--truncate_mcmc --no-mcmc_last_step_loss --recipe laptop",
        "--mcmc_last_step_loss --no-truncate_mcmc --recipe s2",
        "--contrastive_loss --contrastive_loss_coeff 0.2 --reconstruction_coeff 0",
        "--mcmc_step_size 1e-3 --no-mcmc_step_size_learnable",
        "--no-mcmc_step_size_learnable --recipe s1",
    ],
)
def test_sound_energy_flags_are_not_refused(line: str) -> None:
    parse_command_line([*EBT, *line.split()])


def test_help_of_the_energy_group_has_its_ranges_and_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    lines = [line.strip() for line in help_text("energy", LANGUAGE).splitlines()]
    assert lines[0] == "ENERGY  how an energy-based model finds its predictions"
    start = next(index for index, line in enumerate(lines) if line.startswith("--mcmc_step_size X"))
    assert lines[start].endswith("length of a step; a number means --recipe public [auto]")
    assert lines[start + 1 : start + 5] == [
        "a number above 0, or auto",
        "500 with --recipe s1",
        "5 with --recipe s2",
        "only with --model_name ebt",
    ]
    start = next(index for index, line in enumerate(lines) if line.startswith("--no_mcmc_detach"))
    assert lines[start].endswith("[on]"), "the default recipe has it on"
    assert lines[start + 1 : start + 4] == [
        "off with --mcmc_detach",
        "--mcmc_detach with --recipe public or s1",
        "only with --model_name ebt",
    ], "what a recipe leaves at the default is not told"
    start = next(index for index, line in enumerate(lines) if line.startswith("--mcmc_num_steps"))
    assert lines[start].endswith("[1]")
    assert lines[start + 1 : start + 4] == [
        "a whole number of at least 1",
        "2 with --recipe laptop, public or s1",
        "only with --model_name ebt",
    ]
    assert "only with --contrastive_loss" in lines and "only with --energy_form scalar" in lines


def test_a_found_step_size_needs_no_multiplier() -> None:
    assert problems(*EBT, "--mcmc_step_size_lr_multiplier", "3") == [
        "--mcmc_step_size_lr_multiplier has no effect with --mcmc_step_size auto, whose rate follows the size it "
        "finds: remove it, or give --mcmc_step_size a number."
    ]


# The flags of public EBT code's own job scripts, with another dataset, tokenizer and size.
OTHER_DATA = "--dataset_name pydocs --tokenizer bytes --model_size 4xs"
OF_BOTH_SCRIPTS = (
    "--modality NLP --model_name ebt --normalize_initial_condition --ebt_type time_embed "
    "--denoising_initial_condition random_noise --context_length 256 --gpus -1 --peak_learning_rate 0.0012 "
    "--batch_size_per_device 32 --accumulate_grad_batches 2 --gradient_clip_val 1.0 --weight_decay 0.01 "
    "--min_lr_scale 10 --max_steps 1000000 --max_scheduling_steps 1000000 --warm_up_steps 10000 --num_workers 12 "
    "--validation_split_pct 0.0005 --val_check_interval 20000 --wandb_project nlp_pretrain --log_model_archi "
    "--log_gradients --set_matmul_precision medium --is_slurm_run"
)
SCRIPTS = {
    "s1": "--mcmc_step_size_learnable --mcmc_step_size 500 --mcmc_step_size_lr_multiplier 1500 --mcmc_num_steps 2",
    "s2": "--mcmc_step_size 5 --mcmc_num_steps 1 --randomize_mcmc_num_steps 2 --randomize_mcmc_num_steps_min 2 "
    "--randomize_mcmc_step_size_scale 2 --no_mcmc_detach --truncate_mcmc --langevin_dynamics_noise 3 "
    "--mcmc_replay_buffer --override_slurm_checks",
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "s1": {
        "mcmc_num_steps": 2,
        "mcmc_step_size": 500.0,
        "mcmc_step_size_learnable": True,
        "mcmc_step_size_lr_multiplier": 1500.0,
        "randomize_mcmc_step_size_scale": 1.0,
        "randomize_mcmc_num_steps": 0,
        "randomize_mcmc_num_steps_min": 0,
        "langevin_dynamics_noise": 0.0,
        "no_mcmc_detach": False,
        "truncate_mcmc": False,
        "mcmc_replay_buffer": False,
    },
    "s2": {
        "mcmc_num_steps": 1,
        "mcmc_step_size": 5.0,
        "mcmc_step_size_learnable": False,
        "randomize_mcmc_step_size_scale": 2.0,
        "randomize_mcmc_num_steps": 2,
        "randomize_mcmc_num_steps_min": 2,
        "langevin_dynamics_noise": 3.0,
        "no_mcmc_detach": True,
        "truncate_mcmc": True,
        "mcmc_replay_buffer": True,
    },
}
OF_BOTH_PUBLISHED = {
    "energy_form": "scalar",
    "ebt_type": "time_embed",
    "denoising_initial_condition": "random_noise",
    "gaussian_random_noise_scaling": 1.0,
    "normalize_initial_condition": True,
    "vocab_to_embed_uses_prob_dist": False,
    "update_from": "probabilities",
    "no_langevin_during_eval": False,
    "mcmc_last_step_loss": False,
    "contrastive_loss": False,
}


def public_script(name: str) -> RunConfig:
    """The run of a public job script."""
    return parse_command_line(f"{OF_BOTH_SCRIPTS} {SCRIPTS[name]} {OTHER_DATA}".split())


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_public_job_script_has_the_published_values(name: str) -> None:
    config = public_script(name)
    published = PUBLISHED[name] | OF_BOTH_PUBLISHED
    assert {flag: values_of(config)[flag] for flag in published} == published
    assert (config.run.recipe, config.sources["recipe"]) == ("public", "--mcmc_step_size")
    assert config.sources["mcmc_num_steps"] == "command line"
    assert config.sources["update_from"] == config.sources["gaussian_random_noise_scaling"] == "--recipe public"
    trainer, optimizer = config.trainer, config.optimizer
    assert (trainer.max_steps, trainer.batch_size_per_device, trainer.accumulate_grad_batches) == (1_000_000, 32, 2)
    assert (trainer.gpus, trainer.set_matmul_precision, trainer.val_check_interval) == ("-1", "medium", 20_000.0)
    assert (optimizer.peak_learning_rate, optimizer.warm_up_steps, optimizer.min_lr_scale) == (0.0012, 10_000, 10.0)
    assert config.run.is_slurm_run and config.run.override_slurm_checks is (name == "s2")
    assert (config.run.model_size, config[Transformer].embedding_dim) == ("4xs", 128)


@pytest.mark.parametrize(
    ("name", "apart"),
    [
        ("s1", {}),
        # public language code adds its noise in evaluation too; the recipe leaves it out
        ("s2", {"no_langevin_during_eval": (False, True)}),
    ],
)
def test_a_public_job_script_has_the_energy_flags_of_its_recipe(name: str, apart: dict[str, tuple[Any, Any]]) -> None:
    script, recipe = public_script(name), parse_command_line(["--recipe", name])
    differing = differences(script, recipe)
    assert {flag: values for flag, values in differing.items() if all_flags()[flag].group == "energy"} == apart
    assert differing["recipe"] == ("public", name)


def test_the_multiplier_of_the_public_s2_script_is_idle_and_yet_the_recipes() -> None:
    script, recipe = public_script("s2"), parse_command_line(["--recipe", "s2"])
    for config in (script, recipe):
        assert config[Energy].mcmc_step_size_learnable is False
        assert config[Energy].mcmc_step_size_lr_multiplier == 5000.0, "public code's default; no step size is learned"


def test_the_record_of_a_public_job_script_comes_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    for name in SCRIPTS:
        file.write_text(to_yaml(public_script(name)))
        again = parse_command_line(["--config", str(file)])
        assert differences(public_script(name), again) == {"config": (None, str(file))}


def test_a_numeric_step_size_alone_takes_every_public_default() -> None:
    config = parse_command_line(["--mcmc_step_size", "500"])
    assert (config.run.recipe, config.sources["recipe"]) == ("public", "--mcmc_step_size")
    assert differences(config, parse_command_line(["--recipe", "public"])) == {"mcmc_step_size": (500.0, "auto")}
    assert {flag: values_of(config)[flag] for flag in RECIPES["public"]} == RECIPES["public"]
    assert {name for name, source in config.sources.items() if source == "--recipe public"} == set(RECIPES["public"])


def test_a_numeric_step_size_of_a_file_takes_every_public_default(tmp_path: Path) -> None:
    typed = parse_command_line(["--mcmc_step_size", "500"])
    for name, text in {"run.yaml": "mcmc_step_size: 500\n", "run.json": '{"energy": {"mcmc_step_size": 500}}'}.items():
        file = tmp_path / name
        file.write_text(text)
        config = parse_command_line(["--config", str(file)])
        assert differences(typed, config) == {"config": (None, str(file))}
        assert (config.sources["recipe"], config.sources["mcmc_step_size"]) == ("--mcmc_step_size", "file")


def test_the_table_tells_that_a_step_size_chose_the_recipe() -> None:
    table = describe(parse_command_line(["--mcmc_step_size", "500", "--update_from", "logits"]))
    assert re.search(r"^\* --recipe +public +--mcmc_step_size$", table, re.MULTILINE)
    assert re.search(r"^\* --mcmc_step_size +500 +command line$", table, re.MULTILINE)
    assert re.search(r"^\* --energy_form +scalar +--recipe public$", table, re.MULTILINE)
    assert re.search(r"^\* --mcmc_num_steps +2 +--recipe public$", table, re.MULTILINE)
    assert re.search(r"^  --update_from +logits +command line$", table, re.MULTILINE), "what is given wins"


@pytest.mark.parametrize(
    ("line", "is_shown"),
    [
        ("--mcmc_step_size 500", True),
        ("--mcmc_step_size 500 --recipe public", False),
        ("--mcmc_step_size auto", False),
        ("", False),
    ],
)
def test_the_door_says_that_public_defaults_were_taken(
    line: str, is_shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*line.split(), "--print_config"]) == 0
    sentence = "--mcmc_step_size without --recipe: energy flags that are not given have public EBT code's defaults."
    assert (sentence in capsys.readouterr().out.splitlines()) is is_shown


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_step_size_beside_a_recipe_changes_only_itself(recipe: str) -> None:
    config = parse_command_line(["--recipe", recipe, "--mcmc_step_size", "30"])
    assert (config.run.recipe, config.sources["recipe"]) == (recipe, "command line")
    plain = parse_command_line(["--recipe", recipe])
    assert differences(plain, config) == {"mcmc_step_size": (plain[Energy].mcmc_step_size, 30.0)}


def test_a_step_size_that_is_found_or_cannot_be_read_chooses_no_recipe() -> None:
    config = parse_command_line(["--mcmc_step_size", "auto"])
    assert config == parse_command_line([]) and config.sources["recipe"] == "default"
    assert problems("--mcmc_step_size", "fast", "--energy_blocks", "2") == [
        "--mcmc_step_size is 'fast': give a number above 0, or auto."
    ]


def test_a_step_size_beside_a_record_keeps_the_records_recipe(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(to_yaml(parse_command_line([])))
    config = parse_command_line(["--config", str(file), "--mcmc_step_size", "30"])
    assert (config.run.recipe, config[Energy].energy_form) == ("residual", "residual")
