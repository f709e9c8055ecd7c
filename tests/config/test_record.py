"""A run's settings go to JSON and YAML and come back as they were."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from config import RunConfig, SettingsError, parse_command_line
from config.config_file import VERSION
from config.record import (
    defaults_like,
    describe,
    differences,
    flags_shown_first,
    from_dict,
    identity,
    is_changeable,
    is_of_model,
    own_values,
    record_flags,
    to_dict,
    to_words,
    to_yaml,
    values_of,
    without_flags,
)
from config.settings import Transformer
from config.task_flags import all_flags
from tests.config.problems import LANGUAGE
from tests.config.strategies import valid_settings


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(flags=valid_settings())
def test_a_record_comes_back_as_it_was(tmp_path: Path, flags: dict[str, Any]) -> None:
    config = from_dict(flags)
    assert {name: values_of(config)[name] for name in flags} == flags
    assert from_dict(to_dict(config)) == config
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    for name, text in {"run.json": json.dumps(to_dict(config)), "run.yaml": to_yaml(config)}.items():
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        again = parse_command_line(["--config", str(file)])
        assert differences(config, again) == {"config": (None, str(file))}
        assert values_of(again).keys() == values_of(config).keys()
        for flag, value in values_of(config).items():
            assert flag == "config" or type(values_of(again)[flag]) is type(value)


@settings(deadline=None)
@given(flags=valid_settings())
def test_a_command_line_and_a_record_say_the_same(flags: dict[str, Any]) -> None:
    if flags.get("is_random_seed"):
        flags.pop("seed", None)
    given_ = {name: value for name, value in flags.items() if value is not None and value != ()}
    for name in [name for name, value in given_.items() if name.startswith("no_") and not value]:
        given_.pop(name)  # only a file can turn these off
    argv: list[str] = []
    for name, value in given_.items():
        if all_flags()[name].kind is bool:
            argv.append(all_flags()[name].spelled(value))
        elif all_flags()[name].kind is tuple:
            argv += [f"--{name}={value[0]}", *[word for word in value[1:] if not word.startswith("--")]]
            given_[name] = (value[0], *[word for word in value[1:] if not word.startswith("--")])
        else:
            argv.append(f"--{name}={value}")
    config = parse_command_line(argv)
    assert config == from_dict(given_)


def test_a_name_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"--dataset_dir is 'caf.*': give a text in UTF-8"):
        parse_command_line(["--dataset_dir", "caf\udce9"])


def test_every_flag_says_what_it_affects() -> None:
    assert {flag.affects for flag in all_flags().values()} == {"result", "speed", "record"}
    assert {"run_name", "logs_dir", "config", "notify", "no_wandb"} <= record_flags()
    assert not record_flags() & {"seed", "max_steps", "dataset_name", "val_check_interval", "limit_val_batches"}
    assert flags_shown_first(1) == ("model_name", "model_size", "recipe", "ebt_type", "dataset_name")
    assert flags_shown_first()[:5] == flags_shown_first(1) and "tokenizer" in flags_shown_first()
    of_model = {name for name, flag in all_flags().items() if is_of_model(flag)}
    assert {"task", "recipe", "tokenizer", "ebt_type", "context_length"} <= of_model
    assert not of_model & {"dataset_name", "seed", "infer_temp", "max_steps"}
    changeable = {name for name, flag in all_flags().items() if is_changeable(flag)}
    assert {"max_steps", "gpus", "num_workers", "run_name", "save_top_k_ckpts"} <= changeable
    assert not changeable & {"seed", "batch_size_per_device", "peak_learning_rate", "ebt_type"}


def test_runs_that_compute_the_same_are_identical() -> None:
    values = values_of(parse_command_line(["--run_name", "a", "--seed", "3"]))
    assert identity(values) == identity(values | {"run_name": "b", "logs_dir": "elsewhere"})
    assert identity(values) != identity(values | {"seed": 4})
    assert identity(values | {"is_random_seed": True}) == identity(values | {"is_random_seed": True, "seed": 4})
    plain = values | {"model_name": "baseline_transformer"}
    assert identity(plain) == identity(plain | {"mcmc_num_steps": 9}), "a Transformer++ has no steps"
    old = {name: value for name, value in values.items() if name not in ("task", "image_task")}
    assert identity(values) == identity(old)


def test_a_command_line_of_a_record() -> None:
    line = ["--recipe", "s1", "--wandb_tags", "a", "b"]
    config = parse_command_line([*line, "--max_steps", "9", "--debug_mode"])
    assert parse_command_line(to_words(own_values(values_of(config)))) == config
    words = [
        "--max_steps",
        "9",
        "--override_embedding_dim=64",
        "--no-tie_embeddings",
        "--wandb_tags",
        "a",
        "b",
        "--plan",
    ]
    assert without_flags(words, ["embedding_dim", "tie_embeddings", "wandb_tags"]) == ["--max_steps", "9", "--plan"]
    assert defaults_like({"model_size": "small"})["embedding_dim"] == 768


def test_a_record_is_plain_and_nested_by_concern() -> None:
    tree = to_dict(parse_command_line(["--wandb_tags", "a", "b"]))
    lines = to_yaml(parse_command_line([])).splitlines()
    assert lines[0] == f"version: {VERSION}" and tree["version"] == VERSION == 2
    assert [line.partition(":")[0] for line in lines if line[0] != " "] == list(tree)
    assert list(tree) == [
        "version", "run", "architecture", "energy", "loops", "data", "optimizer", "trainer", "checkpoint", "logging",
        "debugging", "testing",
    ]  # fmt: skip
    assert tree["logging"]["wandb_tags"] == ["a", "b"] and tree["architecture"]["embedding_dim"] == 96
    assert tree["optimizer"]["min_lr_scale"] == 10.0 and isinstance(tree["optimizer"]["min_lr_scale"], float)


def test_a_record_keeps_the_file_it_was_made_from(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("seed: 3\n")
    config = parse_command_line(["--config", str(file)])
    assert from_dict(to_dict(config)) == config and from_dict(to_dict(config)).run.config == str(file)
    saved = tmp_path / "saved.yaml"
    saved.write_text(to_yaml(config))
    assert differences(config, parse_command_line(["--config", str(saved)])) == {"config": (str(file), str(saved))}


def test_a_record_of_an_older_version_gets_defaults_for_what_it_lacks() -> None:
    config = from_dict({"trainer": {"seed": 3}})
    assert config.trainer.max_steps == RunConfig().trainer.max_steps and config[Transformer].embedding_dim == 96
    assert config.sources["seed"] == "file" and config.sources["max_steps"] == "default"


def test_a_wrong_record_is_told() -> None:
    with pytest.raises(SettingsError) as caught:
        from_dict({"trainer": {"sed": 3, 7: 1}, "sources": {}, "data": {"num_workers": -1}}, "config.json")
    assert str(caught.value).split("\n") == [
        "sed in config.json is unknown: did you mean seed?",
        "7 in config.json is unknown: --help lists every flag.",
        "sources in config.json is unknown: --help lists every flag.",
        "num_workers in config.json is -1: give a whole number of at least 0.",
    ]


def test_differences_are_by_flag() -> None:
    a, b = (parse_command_line(["--model_size", size, *more]) for size, more in (("3xs", []), ("4xs", ["--no_wandb"])))
    assert differences(a, a) == {}
    assert differences(a, b) == {
        "model_size": ("3xs", "4xs"),
        "num_transformer_blocks": (4, 2),
        "multiheaded_attention_heads": (4, 2),
        "embedding_dim": (256, 128),
        "peak_learning_rate": (0.0018, 0.0024),
        "no_wandb": (False, True),
    }


def test_the_table_shows_value_source_and_what_was_changed(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("num_workers: 2\n")
    steps = str(RunConfig().trainer.max_steps)
    argv = [
        "--config",
        str(file),
        "--model_size",
        "3xs",
        "--max_steps",
        steps,
        "--wandb_tags",
        "a",
        "b",
        "--debug_mode",
    ]
    lines = describe(parse_command_line(argv)).splitlines()
    matches = [re.fullmatch(r"([* ]) --(\w+) +(.*?)  +([a-z0-9_ -]+)", line) for line in lines]
    rows = {row[2]: row.groups() for row in matches if row}
    assert rows.keys() == LANGUAGE.flags.keys()
    assert rows["max_steps"] == (" ", "max_steps", steps, "command line")
    assert rows["num_workers"] == ("*", "num_workers", "2", "file")
    assert rows["limit_val_batches"] == ("*", "limit_val_batches", "5", "--debug_mode")
    assert rows["debug_mode"] == ("*", "debug_mode", "true", "command line")
    assert rows["embedding_dim"] == ("*", "embedding_dim", "256", "size table")
    assert rows["wandb_tags"] == ("*", "wandb_tags", "[a, b]", "command line")
    assert rows["tie_embeddings"] == (" ", "tie_embeddings", "true", "default")
    assert "OPTIMIZER  how the weights are updated" in lines and lines[-1] == "* differs from the default"


def test_the_table_of_bare_settings_needs_no_sources() -> None:
    assert "--max_steps" in describe(RunConfig())


def test_a_record_that_watched_what_nothing_measures_can_be_read() -> None:
    record = to_dict(parse_command_line([]))
    record["checkpoint"]["checkpoint_monitor_string"] = "valid_los"
    assert from_dict(record).checkpoint.checkpoint_monitor_string == "valid_los"
    with pytest.raises(SettingsError, match=r"does not measure valid_los; choose valid_loss, "):
        parse_command_line(["--checkpoint_monitor_string", "valid_los"])
