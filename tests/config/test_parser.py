"""Command lines: what they give, where each value came from, and every problem reported at once."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config import RunConfig, SettingsError, parse_command_line
from config.energy import Energy
from config.help import help_topic
from config.names import FLAG_BY_NAME, FOREIGN_NAMES, RETIRED
from config.record import values_of
from config.settings import Transformer
from config.task_flags import all_flags, all_names
from core.errors import UserError
from tests.config.problems import LANGUAGE, problems

ROOT = Path(__file__).parents[2]


def test_no_flag_at_all_is_a_complete_run() -> None:
    config = parse_command_line([])
    assert (config[Transformer].num_transformer_blocks, config[Transformer].embedding_dim) == (4, 96)
    assert config[Transformer].multiheaded_attention_heads == 2 and config.optimizer.peak_learning_rate == 0.0024
    assert (config.run.recipe, config[Energy].energy_form) == ("residual", "residual")
    assert set(config.sources) == set(LANGUAGE.flags) and set(config.sources.values()) == {"default", "size table"}
    assert config.sources["peak_learning_rate"] == "size table" and config.sources["max_steps"] == "default"


def test_the_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse_command_line([]).trainer.max_steps = 3  # type: ignore[misc]


def test_the_order_is_default_size_table_file_command_line(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model_size: small\nembedding_dim: 96\nmax_steps: 70\nseed: 5\n")
    config = parse_command_line(["--config", str(file), "--max_steps", "80", "--num_transformer_blocks", "3"])
    values = {
        "model_size": (config.run.model_size, "small", "file"),
        "num_transformer_blocks": (config[Transformer].num_transformer_blocks, 3, "command line"),
        "embedding_dim": (config[Transformer].embedding_dim, 96, "file"),
        "multiheaded_attention_heads": (config[Transformer].multiheaded_attention_heads, 12, "size table"),
        "peak_learning_rate": (config.optimizer.peak_learning_rate, 0.0006, "size table"),
        "max_steps": (config.trainer.max_steps, 80, "command line"),
        "seed": (config.trainer.seed, 5, "file"),
        "config": (config.run.config, str(file), "command line"),
        "optimizer": (config.optimizer.optimizer, "adamw", "default"),
    }
    for name, (value, expected, source) in values.items():
        assert (value, config.sources[name]) == (expected, source), name


def test_the_size_of_the_command_line_wins_over_the_files(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model_size: small\n")
    config = parse_command_line(["--config", str(file), "--model_size", "xl"])
    assert config[Transformer].embedding_dim == 2048


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--max_steps=60"], "max_steps", 60),
        (["--max_steps", "60", "--max_steps", "70"], "max_steps", 70),
        (["--gpus", "-1"], "gpus", "-1"),
        (["--gpus=-1"], "gpus", "-1"),
        (["--run_name", "-x"], "run_name", "-x"),
        (["--run_name=--x=y"], "run_name", "--x=y"),
        (["--run_name", " x"], "run_name", " x"),
        (["--weight_decay", "1e3"], "weight_decay", 1000.0),
        (["--override_embedding_dim", "64"], "embedding_dim", 64),
        (["--wandb_tags", "a", "-b", "c d"], "wandb_tags", ("a", "-b", "c d")),
        (["--isolate_documents"], "isolate_documents", True),
        (["--no-isolate_documents"], "isolate_documents", False),
        (["--no_isolate_documents"], "isolate_documents", False),
        (["--no-isolate_documents", "--isolate_documents"], "isolate_documents", True),
        (["--no_wandb"], "no_wandb", True),
        (["--wandb"], "no_wandb", False),
        (["--mcmc_detach"], "no_mcmc_detach", False),
        (["--float_precision", "16"], "float_precision", "16"),
    ],
)
def test_ways_to_give_a_flag(argv: list[str], name: str, value: object) -> None:
    config = parse_command_line(argv)
    assert values_of(config)[name] == value
    assert config.sources[name] == "command line"


@pytest.mark.parametrize(
    ("argv", "lines"),
    [
        (["--max_steps"], ["--max_steps has no value: give a whole number of at least 1."]),
        (["--wandb_tags"], ["--wandb_tags has no value: give one or more texts."]),
        (["--run_name", "--no_wandb"], ["--run_name has no value: give a text."]),
        (["--run_name="], ["--run_name is empty: give a text, or leave the flag out."]),
        (["--batch_size_per_device", "-4"], ["--batch_size_per_device is -4: give a whole number of at least 1."]),
        (["--peak_learning_rate", "-1e-3"], ["--peak_learning_rate is -0.001: give a number above 0."]),
        (["--max_steps", "x", "--max_steps", "70"], ["--max_steps is 'x': give a whole number of at least 1."]),
        (["--override_embedding_dim", "1"], ["--override_embedding_dim is 1: give a whole number of at least 2."]),
        (
            ["--wandb_offline", "False"],
            ["--wandb_offline is followed by 'False': it is a switch: write --no-wandb_offline."],
        ),
        (
            ["--wandb_offline=true"],
            ["--wandb_offline is followed by 'true': it is a switch: write --wandb_offline."],
        ),
        (["--no_wandb", "True"], ["--no_wandb is followed by 'True': it is a switch: write --no_wandb."]),
        (["--no_wandb", "False"], ["--no_wandb is followed by 'False': it is a switch: write --wandb."]),
        (["--no-wandb_offline=0"], ["--no-wandb_offline is followed by '0': it is a switch: write --wandb_offline."]),
        (["--no_wandb", "maybe"], ["--no_wandb is followed by 'maybe': it is a switch: write --no_wandb or --wandb."]),
        (
            ["--run_name", "my", "run"],
            ["--run_name is followed by 'my' and 'run': it takes one value; put quotes around one that has spaces."],
        ),
        (["train"], ["'train' belongs to no flag: write --flag value; --help lists them."]),
        (["--"], ["'--' belongs to no flag: write --flag value; --help lists them."]),
        (["--lerning_rate", "3"], ["--lerning_rate is unknown: did you mean --peak_learning_rate?"]),
        (["--batch-size=3"], ["--batch-size is unknown: did you mean --batch_size_per_device?"]),
        (["--max_step", "3"], ["--max_step is unknown: did you mean --max_steps?"]),
        (["--RUN_NAME", "a"], ["--RUN_NAME is unknown: did you mean --run_name?"]),
        (["--no-isolate_document"], ["--no-isolate_document is unknown: did you mean --no-isolate_documents?"]),
        (["--no-no_wandb"], ["--no-no_wandb is unknown: did you mean --no_wandb?"]),
        (["--qqq", "3"], ["--qqq is unknown: --help lists every flag."]),
        (["--q\nq"], ["'--q\\nq' is unknown: --help lists every flag."]),
        (["--only_test", "--only_test_model_ckp", "x"], [
            "--only_test_model_ckp is unknown: did you mean --only_test_model_ckpt?"]),
        (["--model_size", "big", "--embedding_dim", "7"], [
            "--model_size is 'big': choose tiny, 5xs, 4xs, 3xs, 2xs, xxs, xs, small, medium, large or xl."]),
        (["--help", "dta"], ["--help dta is unknown: did you mean data?"]),
        (["--help", "lr"], ["--help lr is unknown: did you mean --peak_learning_rate?"]),
        (["--help", "--qqq"], ["--help --qqq is unknown: --help lists every flag."]),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told(argv: list[str], lines: list[str]) -> None:
    assert problems(*argv) == lines


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("lr", "peak_learning_rate"), ("learning-rate", "peak_learning_rate"), ("bs", "batch_size_per_device"),
        ("batch_size", "batch_size_per_device"), ("epochs", "max_epochs"), ("steps", "max_steps"), ("name", "run_name"),
        ("layers", "num_transformer_blocks"), ("random_seed", "seed"), ("Heads", "multiheaded_attention_heads"),
        ("warmup", "warm_up_steps"), ("resume", "resume_training_ckpt"), ("seq-len", "context_length"),
    ],
)  # fmt: skip
def test_another_projects_word_for_a_flag_is_told_ours(word: str, name: str, tmp_path: Path) -> None:
    assert problems(f"--{word}", "3") == [f"--{word} is unknown: did you mean --{name}?"]
    (tmp_path / "run.yaml").write_text(f"{word}: 3\n")
    file = str(tmp_path / "run.yaml")
    assert problems("--config", file) == [f"{word} in {file} is unknown: did you mean {name}?"]


def test_words_of_other_projects_are_of_flags_that_exist_and_none_is_ours() -> None:
    assert set(FLAG_BY_NAME.values()) <= set(all_flags()) and not set(FLAG_BY_NAME) & set(all_names())
    assert len(FLAG_BY_NAME) == sum(len(words.split()) for words in FOREIGN_NAMES.values()), "a word has one meaning"
    assert not {spelling for flag in all_flags().values() for spelling in flag.off} & {
        f"--{word}" for word in FLAG_BY_NAME
    }


@pytest.mark.parametrize("name", sorted(RETIRED))
def test_a_retired_flag_says_so(name: str) -> None:
    end = "is retired: it was tried by its authors and abandoned; remove it."
    assert problems(f"--{name}", "3") == [f"--{name} {end}"]
    assert problems(f"--no-{name}") == [f"--no-{name} {end}"]


def test_all_problems_are_told_at_once() -> None:
    assert problems(
        "stray", "--batch_size_per_device", "-4", "--max_stps", "3", "--absolute_clamp", "--optimizer", "adam",
        "--validation_split_pct", "0.5", "--test_split_pct", "0.5", "--gpus", "two",
    ) == [
        "--batch_size_per_device is -4: give a whole number of at least 1.",
        "--optimizer is 'adam': choose adamw, adafactor or sgd.",
        "'stray' belongs to no flag: write --flag value; --help lists them.",
        "--max_stps is unknown: did you mean --max_steps?",
        "--absolute_clamp is retired: it was tried by its authors and abandoned; remove it.",
        "--gpus is 'two': choose auto, none, -1 (all), a number of GPUs, or a list of them such as 0,2.",
        "--validation_split_pct is 0.5 and --test_split_pct 0.5: nothing is left to train on; "
        "give shares that sum to less than 1.",
    ]  # fmt: skip


def test_the_error_is_the_doors_and_survives_a_process_border() -> None:
    error = SettingsError(["one", "two"])
    assert isinstance(error, UserError) and str(pickle.loads(pickle.dumps(error))) == "one\ntwo"


WORDS = st.one_of(
    st.sampled_from([f"--{name}" for name in all_flags()]),
    st.sampled_from(["--", "-", "", "=", "--=", "-1", "0", "1", "0.5", "--no-x", "true", "bpe:400", "2"]),
    st.text(max_size=8),
    st.builds("--{}={}".format, st.sampled_from(sorted(all_flags())), st.text(max_size=4)),
)


@settings(deadline=None)
@given(st.lists(WORDS, max_size=8).filter(lambda argv: help_topic(argv) is None))
def test_any_words_are_a_run_or_lines_of_problems(argv: list[str]) -> None:
    try:
        assert isinstance(parse_command_line(argv), RunConfig)
    except SettingsError as error:
        assert str(error).splitlines() == list(error.args[0]) and all(error.args[0])


def test_no_heavy_package_is_imported() -> None:
    code = (
        "import sys, config, config.record\n"
        "config.parse_command_line(['--run_name', 'x'])\n"
        "heavy = {'torch', 'numpy', 'pytorch_lightning', 'lightning', 'rich', 'yaml', 'transformers', 'datasets'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "config.parse_command_line(['--help'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[]\npython train_model.py")
