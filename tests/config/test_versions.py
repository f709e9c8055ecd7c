"""Records of earlier versions: they mean what they meant, and what no flag expresses any more is reported."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config import RunConfig, SettingsError, parse_command_line
from config.config_file import VERSION, VERSION_1_FLAGS, upgrade
from config.energy import Energy
from config.record import changed_problems, differences, from_dict, to_dict, to_yaml, values_of
from config.task_flags import all_flags
from tests.config.problems import problems
from tests.config.strategies import valid_settings

NEW = ("energy_form", "energy_blocks", "mcmc_last_step_loss", "is_slurm_run", "override_slurm_checks")
# What the recipes of version 1 set, beside what all flags of version 1 were by default.
OLD_RECIPES: dict[str, dict[str, Any]] = {
    "laptop": {"no_mcmc_detach": True, "truncate_mcmc": True},
    "s1": {
        "mcmc_step_size": 500.0,
        "mcmc_step_size_lr_multiplier": 1500.0,
        "randomize_mcmc_step_size_scale": 1.0,
        "gaussian_random_noise_scaling": 1.0,
        "update_from": "probabilities",
        "no_mcmc_detach": False,
        "truncate_mcmc": False,
    },
    "s2": {
        "mcmc_step_size": 5.0,
        "mcmc_step_size_learnable": False,
        "randomize_mcmc_num_steps": 2,
        "gaussian_random_noise_scaling": 1.0,
        "update_from": "probabilities",
        "langevin_dynamics_noise": 3.0,
        "no_langevin_during_eval": True,
        "no_mcmc_detach": True,
        "truncate_mcmc": True,
        "mcmc_replay_buffer": True,
    },
}
REPEATS = "the number of all steps was drawn, and evaluation took none of them; now each landscape is repeated"
SCALE = "a size was drawn for each step; now it is drawn once for a walk"
REPLAY = "old rows replaced those of a batch; now they are appended"
CONTRAST = "it compared with the end of the walk; now with the prediction before the last step"


def in_version_1(config: RunConfig, recipe: str = "laptop", **energy: Any) -> dict[str, Any]:
    """The record that version 1 wrote of a run, given with today's --recipe laptop, with this recipe and flags."""
    tree = to_dict(config)
    del tree["version"]
    for name in NEW:
        del tree[all_flags()[name].group][name]
    tree["run"]["recipe"] = recipe
    tree["energy"] |= {"randomize_mcmc_num_steps_min": None, **OLD_RECIPES[recipe], **energy}
    return tree


def old_record(*argv: str, recipe: str = "laptop", **energy: Any) -> dict[str, Any]:
    """A record of version 1: these flags, and in its words these energy flags."""
    return in_version_1(parse_command_line(["--recipe", "laptop", *argv]), recipe, **energy)


def old_baseline() -> dict[str, Any]:
    """A record of version 1 of a Transformer++."""
    tree = old_record()
    tree["run"]["model_name"] = "baseline_transformer"
    return tree


def written(tmp_path: Path, tree: dict[str, Any]) -> str:
    """The path of a --config file with this tree."""
    file = tmp_path / "old.json"
    file.write_text(json.dumps(tree))
    return str(file)


def changed_message(origin: str, name: str, why: str) -> str:
    """What a --config file of version 1 is refused with."""
    return f"{name} in {origin} is of an earlier version, in which it meant another thing: {why}; give --{name} too."


def test_a_record_of_version_1_has_the_flags_it_is_known_by() -> None:
    tree = old_record()
    assert "version" not in tree and tree["energy"].keys() >= set(VERSION_1_FLAGS)
    assert tree["energy"].keys().isdisjoint(NEW) and tree["run"].keys().isdisjoint(NEW)


def test_truncation_of_version_1_was_a_loss_of_the_last_step() -> None:
    for truncated in (True, False):
        config = from_dict(old_record(truncate_mcmc=truncated))
        assert config[Energy].mcmc_last_step_loss is truncated and config[Energy].truncate_mcmc is False
        assert "truncate_mcmc" not in config.changed, "it trains as it did"


def test_every_energy_of_version_1_is_scalar() -> None:
    for tree in (old_record(), old_record(recipe="s1"), old_record(recipe="s2"), old_baseline()):
        assert from_dict(tree)[Energy].energy_form == "scalar"


def test_no_fewest_steps_of_version_1_are_none() -> None:
    assert from_dict(old_record(randomize_mcmc_num_steps_min=None))[Energy].randomize_mcmc_num_steps_min == 0


def test_evaluation_of_version_1_took_no_random_steps() -> None:
    tree = old_record(
        randomize_mcmc_num_steps=2,
        randomize_mcmc_num_steps_min=4,
        randomize_mcmc_num_steps_final_landscape=True,
        ebt_type="adaln",
    )
    energy = from_dict(tree)[Energy]
    assert (energy.mcmc_num_steps, energy.randomize_mcmc_num_steps, energy.randomize_mcmc_num_steps_min) == (2, 0, 0)
    assert energy.randomize_mcmc_num_steps_final_landscape is False and energy.ebt_type == "adaln"


@pytest.mark.parametrize(
    ("energy", "changed"),
    [
        ({}, {}),
        ({"randomize_mcmc_num_steps": 1}, {"randomize_mcmc_num_steps": REPEATS}),
        ({"randomize_mcmc_num_steps": 3, "randomize_mcmc_num_steps_min": 2}, {"randomize_mcmc_num_steps": REPEATS}),
        ({"randomize_mcmc_step_size_scale": 1.01}, {"randomize_mcmc_step_size_scale": SCALE}),
        ({"mcmc_replay_buffer": True}, {"mcmc_replay_buffer": REPLAY}),
        ({"contrastive_loss": True}, {"contrastive_loss": CONTRAST}),
        ({"langevin_dynamics_noise": 1.0, "ebt_type": "time_embed", "mcmc_num_steps": 5}, {}),
        ({"randomize_mcmc_num_steps": 1, "randomize_mcmc_step_size_scale": 2.0, "mcmc_replay_buffer": True,
          "contrastive_loss": True},
         {"randomize_mcmc_num_steps": REPEATS, "randomize_mcmc_step_size_scale": SCALE, "mcmc_replay_buffer": REPLAY,
          "contrastive_loss": CONTRAST}),
    ],
)  # fmt: skip
def test_what_training_meant_and_cannot_mean_any_more_is_told(energy: dict[str, Any], changed: dict[str, str]) -> None:
    assert from_dict(old_record(**{"randomize_mcmc_step_size_scale": 1.0} | energy)).changed == changed


def test_a_transformer_of_version_1_has_no_changes() -> None:
    tree = old_record(recipe="s2", contrastive_loss=True)
    assert list(upgrade(tree)[1]) == [
        "randomize_mcmc_num_steps",
        "randomize_mcmc_step_size_scale",
        "mcmc_replay_buffer",
        "contrastive_loss",
    ]
    tree["run"]["model_name"] = "baseline_transformer"
    assert upgrade(tree)[1] == {}
    assert from_dict(old_baseline()).changed == {}, "though its record states a scale of 2"


@pytest.mark.parametrize(
    ("recipe", "changed"),
    [
        ("laptop", ["randomize_mcmc_step_size_scale"]),
        ("s1", []),
        ("s2", ["randomize_mcmc_num_steps", "randomize_mcmc_step_size_scale", "mcmc_replay_buffer"]),
    ],
)
def test_recipes_of_version_1(recipe: str, changed: list[str]) -> None:
    tree = old_record(recipe=recipe)
    config = from_dict(tree)
    assert list(config.changed) == changed and config.run.recipe == recipe
    unchanged = tree["energy"].keys() - {"truncate_mcmc", "randomize_mcmc_num_steps", "randomize_mcmc_num_steps_min"}
    assert {name: values_of(config)[name] for name in unchanged} == {name: tree["energy"][name] for name in unchanged}


def test_nothing_but_the_energy_is_changed_and_the_given_tree_is_left_alone() -> None:
    tree = old_record("--max_steps", "70", "--wandb_tags", "a", "--model_size", "3xs", recipe="s2")
    before = copy.deepcopy(tree)
    now, _ = upgrade(tree)
    assert tree == before
    assert {name: group for name, group in now.items() if name != "energy"} == {
        name: group for name, group in before.items() if name != "energy"
    }
    assert now["energy"].keys() - before["energy"].keys() == {"energy_form", "mcmc_last_step_loss"}


def test_what_an_old_record_became_is_a_record_of_this_version() -> None:
    config = from_dict(old_record(recipe="s2"))
    again = from_dict(to_dict(config))
    assert again == config and to_dict(config)["version"] == VERSION and again.changed == {}


@pytest.mark.parametrize("recipe", ["residual", "laptop", "public", "s1", "s2"])
def test_a_record_of_this_version_comes_back_unchanged(tmp_path: Path, recipe: str) -> None:
    config = parse_command_line(["--recipe", recipe, "--contrastive_loss"])
    tree = to_dict(config)
    assert tree["version"] == VERSION
    assert upgrade(tree) == ({name: group for name, group in tree.items() if name != "version"}, {})
    assert from_dict(tree) == config and from_dict(tree).changed == {}
    for name, text in {"run.json": json.dumps(tree), "run.yaml": to_yaml(config)}.items():
        file = tmp_path / name
        file.write_text(text)
        assert differences(config, parse_command_line(["--config", str(file)])) == {"config": (None, str(file))}


@pytest.mark.parametrize("left_out", VERSION_1_FLAGS)
def test_a_file_that_lacks_a_flag_of_version_1_is_no_record(left_out: str) -> None:
    tree = old_record(recipe="s2")
    del tree["energy"][left_out]
    assert upgrade(tree) == (tree, {})


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"recipe": "s2", "truncate_mcmc": True, "randomize_mcmc_num_steps": 2},
        {"run": {"recipe": "s2"}, "energy": {"truncate_mcmc": True, "randomize_mcmc_num_steps": 2}},
        {"recipe": "s2", "truncate_mcmc": True, "mcmc_replay_buffer": True, "energy": {}},
    ],
)
def test_a_small_file_that_a_person_wrote_is_not_taken_for_a_record(tree: dict[str, Any]) -> None:
    assert upgrade(tree) == (tree, {})
    config = from_dict(tree)
    assert config.changed == {} and config[Energy].truncate_mcmc is bool(tree)
    assert config[Energy].randomize_mcmc_num_steps == (2 if tree else 0)
    assert config[Energy].mcmc_last_step_loss is False


@pytest.mark.parametrize("energy", [None, 3, "scalar", ["mcmc_num_steps"]])
def test_a_group_that_is_none_is_told_and_not_upgraded(energy: Any) -> None:
    tree = {"energy": energy}
    assert upgrade(tree) == (tree, {})
    with pytest.raises(SettingsError, match="energy in the record is"):
        from_dict(tree)


def test_a_wrong_value_of_an_old_record_is_told() -> None:
    with pytest.raises(SettingsError) as caught:
        from_dict(old_record(randomize_mcmc_step_size_scale="wide", mcmc_num_steps=0), "config.json")
    assert str(caught.value).split("\n") == [
        "mcmc_num_steps in config.json is 0: give a whole number of at least 1.",
        "randomize_mcmc_step_size_scale in config.json is 'wide': give a number of at least 1.",
    ]


def test_an_old_file_is_refused_until_what_changed_is_given_too(tmp_path: Path) -> None:
    file = written(tmp_path, old_record())
    assert problems("--config", file) == [changed_message(file, "randomize_mcmc_step_size_scale", SCALE)]
    config = parse_command_line(["--config", file, "--randomize_mcmc_step_size_scale", "2"])
    energy = config[Energy]
    assert (energy.randomize_mcmc_step_size_scale, energy.mcmc_last_step_loss, energy.truncate_mcmc) == (2, True, False)
    assert (config.run.recipe, energy.energy_form) == ("laptop", "scalar")


def test_every_change_of_an_old_file_is_told_and_can_be_given(tmp_path: Path) -> None:
    file = written(tmp_path, old_record(recipe="s2", contrastive_loss=True))
    repeats, scale, replay, contrast = (
        changed_message(file, "randomize_mcmc_num_steps", REPEATS),
        changed_message(file, "randomize_mcmc_step_size_scale", SCALE),
        changed_message(file, "mcmc_replay_buffer", REPLAY),
        changed_message(file, "contrastive_loss", CONTRAST),
    )
    assert problems("--config", file) == [repeats, scale, replay, contrast]
    line = ["--config", file, "--randomize_mcmc_num_steps", "1", "--no-mcmc_replay_buffer"]
    assert problems(*line) == [scale, contrast]
    energy = parse_command_line([*line, "--randomize_mcmc_step_size_scale", "1", "--contrastive_loss"])[Energy]
    assert (energy.randomize_mcmc_num_steps, energy.mcmc_replay_buffer, energy.contrastive_loss) == (1, False, True)


def test_an_old_file_without_changes_is_accepted(tmp_path: Path) -> None:
    for tree in (old_record(recipe="s1"), old_baseline()):
        config = parse_command_line(["--config", written(tmp_path, tree)])
        assert values_of(config)["mcmc_step_size"] == tree["energy"]["mcmc_step_size"]
        assert config[Energy].mcmc_last_step_loss is tree["energy"]["truncate_mcmc"]


def test_the_changes_of_an_old_file_are_told_with_its_other_problems(tmp_path: Path) -> None:
    file = written(tmp_path, old_record())
    assert problems("--config", file, "--seed", "x") == [
        "--seed is 'x': give a whole number of at least 0.",
        changed_message(file, "randomize_mcmc_step_size_scale", SCALE),
    ]


def test_what_cannot_be_trained_on_has_a_sentence_for_each_flag() -> None:
    assert changed_problems({}, "the run") == []
    changed = from_dict(old_record(mcmc_replay_buffer=True)).changed
    assert changed_problems(changed, "the run of --resume_training_ckpt") == [
        f"the run of --resume_training_ckpt was made by an earlier version, in which --{name} meant another thing: "
        f"{why}; start a new run, or train on with the version that made it."
        for name, why in (("randomize_mcmc_step_size_scale", SCALE), ("mcmc_replay_buffer", REPLAY))
    ]


def test_changes_are_no_part_of_what_makes_two_runs_equal() -> None:
    old = from_dict(old_record())
    assert old.changed and from_dict(to_dict(old)) == old


OLD_ENERGY: dict[str, st.SearchStrategy[Any]] = {
    "ebt_type": st.sampled_from(["default", "time_embed", "adaln", "adaln_zero"]),
    "mcmc_num_steps": st.integers(1, 9),
    "mcmc_step_size": st.just("auto") | st.floats(0.1, 1e4),
    "mcmc_step_size_learnable": st.booleans(),
    "randomize_mcmc_step_size_scale": st.floats(1, 9),
    "randomize_mcmc_num_steps": st.integers(0, 9),
    "randomize_mcmc_num_steps_min": st.none() | st.integers(1, 9),
    "randomize_mcmc_num_steps_final_landscape": st.booleans(),
    "denoising_initial_condition": st.sampled_from(["random_noise", "zeros"]),
    "update_from": st.sampled_from(["logits", "probabilities"]),
    "vocab_to_embed_uses_prob_dist": st.booleans(),
    "langevin_dynamics_noise": st.floats(0.1, 9),
    "langevin_dynamics_noise_learnable": st.booleans(),
    "no_mcmc_detach": st.booleans(),
    "truncate_mcmc": st.booleans(),
    "mcmc_replay_buffer": st.booleans(),
    "contrastive_loss": st.booleans(),
    "ebt_norm": st.sampled_from(["rms", "layer", "none", "dyt"]),
    "ebt_act_func": st.sampled_from(["silu", "gelu", "relu", "elu"]),
}


@st.composite
def old_records(draw: st.DrawFn) -> dict[str, Any]:
    """Any record of version 1: the settings of a run that is fine, with the energy flags that version 1 had."""
    flags = draw(valid_settings().filter(lambda flags: flags.get("model_name") != "looped_transformer"))
    old = {name: value for name, value in flags.items() if all_flags()[name].group != "energy" and name not in NEW}
    config = from_dict(old | {"recipe": "laptop"})
    if config.run.model_name == "baseline_transformer":
        return in_version_1(config)
    energy = draw(st.fixed_dictionaries({}, optional=OLD_ENERGY))
    tree = in_version_1(config, draw(st.sampled_from(sorted(OLD_RECIPES))), **energy)
    if tree["energy"]["langevin_dynamics_noise"] == 0:
        tree["energy"]["langevin_dynamics_noise_learnable"] = False
    tree["trainer"]["batch_size_per_device"] = min(tree["trainer"]["batch_size_per_device"], 64)  # the buffer holds it
    return tree


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(tree=old_records())
def test_any_record_of_version_1_is_accepted_and_keeps_what_it_meant(tree: dict[str, Any]) -> None:
    before = copy.deepcopy(tree)
    config = from_dict(tree)
    assert tree == before, "the given tree is left alone"
    again = from_dict(json.loads(json.dumps(to_dict(config))))
    assert again == config and again.changed == {}
    was, now = before["energy"], to_dict(config)["energy"]
    moved = {"truncate_mcmc", *(name for name in was if name.startswith("randomize_mcmc_num_steps"))}
    assert {name: now[name] for name in was.keys() - moved} == {name: was[name] for name in was.keys() - moved}
    assert (now["truncate_mcmc"], now["mcmc_last_step_loss"]) == (False, was["truncate_mcmc"])
    in_use = {
        "randomize_mcmc_num_steps": was["randomize_mcmc_num_steps"] > 0,
        "randomize_mcmc_step_size_scale": was["randomize_mcmc_step_size_scale"] > 1,
        "mcmc_replay_buffer": was["mcmc_replay_buffer"],
        "contrastive_loss": was["contrastive_loss"],
    }
    is_ebt = before["run"]["model_name"] == "ebt"
    assert set(config.changed) == {name for name, used in in_use.items() if used and is_ebt}


def test_an_old_yaml_file_without_random_steps_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text(yaml.safe_dump(old_record(recipe="s1")))  # whose scalars are read as texts
    assert parse_command_line(["--config", str(file)])[Energy].randomize_mcmc_num_steps == 0


def test_a_changed_flag_that_cannot_be_read_has_one_problem(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    file.write_text(json.dumps(old_record()))
    assert problems("--config", str(file), "--randomize_mcmc_step_size_scale", "x") == [
        "--randomize_mcmc_step_size_scale is 'x': give a number of at least 1."
    ]


def test_a_record_of_a_later_version_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "new.json"
    file.write_text(json.dumps(to_dict(parse_command_line([])) | {"version": 3}))
    assert problems("--config", str(file)) == [
        f"{file} was written by a later version of these settings (3; this is 2): update."
    ]
