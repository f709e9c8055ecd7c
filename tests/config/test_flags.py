"""The list of flags is a decision; values of every type are read strictly."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from config import parse_command_line
from config.flags import FROM_SIZE, flag, flags_of, parse_value, parse_word
from config.names import RETIRED
from config.record import differences, values_of
from config.settings import COMMON, SIZE_TABLE_FLAGS, SIZES, Inference, RunConfig, Size, Text, Transformer
from config.task import all_tasks
from config.task_flags import all_flags, all_names, task_flags
from core.text import format_value, join_words
from tests.config.problems import LANGUAGE

GOLDEN = Path(__file__).with_name("flags.golden.txt")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Sample:
    """a group with the types that settings.py has not used yet"""

    step: float | str = flag("auto", "a number or a word", above=0, words=("auto",))
    count: int | None = flag(None, "a number or nothing", low=1, words=("all", "half"))
    bound: float = flag(1, "a number with an upper bound only", high=5)
    band: float = flag(1, "a number between", above=0, high=5)


SAMPLE = flags_of("sample", Sample)


def test_the_list_of_flags_is_the_golden_one() -> None:
    printed = subprocess.run([sys.executable, "-m", "config"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert printed.stdout == GOLDEN.read_text(encoding="utf-8"), (
        "The flags changed. If that is what you want: python -m config > tests/config/flags.golden.txt"
    )


def test_no_name_is_used_twice_or_retired() -> None:
    names = [name for flag in all_flags().values() for name in (flag.name, *flag.aliases)]
    assert len(names) == len(set(names))
    assert not RETIRED & set(names) and len(RETIRED) == 31


def test_every_part_of_a_run_is_a_group_of_flags_but_where_they_came_from() -> None:
    assert set(vars(RunConfig())) - set(COMMON) == {"groups", "sources", "changed"}
    config = parse_command_line([])
    assert list(config.sections()) == list(LANGUAGE.sections) and values_of(config).keys() == LANGUAGE.flags.keys()


def test_a_group_is_addressed_by_its_type() -> None:
    config = parse_command_line(["--context_length", "32", "--tokenizer", "bpe:512"])
    assert config[Transformer].context_length == 32
    assert config[Text] is config.data and config[Text].tokenizer == "bpe:512"
    changed = config.with_values({"context_length": 8, "max_steps": 3, "tokenizer": "bytes"})
    assert differences(config, changed) == {
        "context_length": (32, 8),
        "max_steps": (1450, 3),
        "tokenizer": ("bpe:512", "bytes"),
    }
    with pytest.raises(KeyError, match="--task language has no flags of the group Inference"):
        config[Inference]


def test_needs_name_flags_and_values_that_exist() -> None:
    for task in all_tasks().values():
        flags = task_flags(task, inference=True).flags
        for flag_ in flags.values():
            for other, values in flag_.needs.items():
                assert not flags[other].choices or set(values) <= set(flags[other].choices)


def test_defaults_are_values_their_own_flag_accepts() -> None:
    for name, flag_ in all_flags().items():
        if name not in SIZE_TABLE_FLAGS:
            assert parse_value(flag_, flag_.default) == flag_.default


def test_the_size_table_has_every_size_and_fills_every_open_field() -> None:
    assert tuple(SIZES) == all_flags()["model_size"].choices
    assert {flag.name for flag in all_flags().values() if flag.default == FROM_SIZE} == set(SIZE_TABLE_FLAGS)
    for size in SIZES.values():
        assert size.embedding_dim % (2 * size.multiheaded_attention_heads) == 0


@pytest.mark.parametrize(
    ("name", "layers", "width", "heads", "rate"),
    [
        ("tiny", 4, 96, 2, 0.0024),
        ("4xs", 2, 128, 2, 0.0024),
        ("xxs", 6, 384, 6, 0.0012),
        ("xs", 12, 384, 6, 0.0009),
        ("xl", 24, 2048, 32, 0.0002),
    ],
)
def test_rows_of_the_size_table(name: str, layers: int, width: int, heads: int, rate: float) -> None:
    assert SIZES[name] == Size(layers, width, heads, rate)


def test_an_alias_is_its_flag() -> None:
    assert all_names()["override_embedding_dim"] is all_flags()["embedding_dim"]


@pytest.mark.parametrize(
    ("flag_", "text", "value"),
    [
        (all_flags()["max_steps"], "+7", 7),
        (all_flags()["val_sanity"], "-1", -1),
        (all_flags()["weight_decay"], "1e3", 1000.0),
        (all_flags()["weight_decay"], ".5", 0.5),
        (all_flags()["weight_decay"], "3", 3.0),
        (all_flags()["run_name"], "007", "007"),
        (SAMPLE["step"], "auto", "auto"),
        (SAMPLE["step"], "2", 2.0),
        (SAMPLE["count"], "half", "half"),
        (SAMPLE["count"], "3", 3),
        (SAMPLE["bound"], "5", 5.0),
        (all_flags()["validation_split_pct"], "0.9", 0.9),
    ],
)
def test_a_word_is_read_by_the_type_of_its_flag(flag_: Any, text: str, value: Any) -> None:
    read = parse_word(flag_, text)
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    ("flag_", "text", "problem"),
    [
        (
            all_flags()["seed"],
            "16.0",
            "is '16.0': give a whole number of at least 0, written without point or exponent.",
        ),
        (
            all_flags()["max_steps"],
            "1e3",
            "is '1e3': give a whole number of at least 1, written without point or exponent.",
        ),
        (all_flags()["max_steps"], "1_000", "is '1_000': give a whole number of at least 1."),
        (all_flags()["max_steps"], " 5", "is ' 5': give a whole number of at least 1."),
        (all_flags()["max_steps"], "٣", "is '٣': give a whole number of at least 1."),
        (all_flags()["max_steps"], str(2**63), f"is {2**63}: give a whole number of at least 1, below 2**63."),
        (all_flags()["weight_decay"], "lots", "is 'lots': give a number of at least 0."),
        (all_flags()["weight_decay"], "1_0", "is '1_0': give a number of at least 0."),
        (all_flags()["weight_decay"], "nan", "is nan: give a number of at least 0; it must be finite."),
        (all_flags()["weight_decay"], "-Infinity", "is -inf: give a number of at least 0; it must be finite."),
        (all_flags()["weight_decay"], "1e999", "is inf: give a number of at least 0; it must be finite."),
        (all_flags()["validation_split_pct"], "1.5", "is 1.5: give a number from 0 to 0.9."),
        (all_flags()["ffn_dim_multiplier"], "0", "is 0: give a number above 0."),
        (all_flags()["optimizer"], "adam", "is 'adam': choose adamw, adafactor or sgd."),
        (all_flags()["dataset_dir"], "", "is empty: give a text, or leave the flag out."),
        (all_flags()["dataset_dir"], "a\nb", "is 'a\\nb': give a text without control characters."),
        (all_flags()["dataset_dir"], "a\x7f", "is 'a\\x7f': give a text without control characters."),
        (SAMPLE["step"], "fast", "is 'fast': give a number above 0, or auto."),
        (SAMPLE["count"], "0", "is 0: give a whole number of at least 1, or all or half."),
        (SAMPLE["bound"], "6", "is 6: give a number of at most 5."),
        (SAMPLE["band"], "0", "is 0: give a number above 0 and at most 5."),
    ],
)
def test_a_wrong_word_is_told_with_what_is_allowed(flag_: Any, text: str, problem: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_word(flag_, text)
    assert str(caught.value) == problem


@pytest.mark.parametrize("name", [name for name, flag_ in all_flags().items() if flag_.kind is float])
@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_no_float_takes_what_is_not_finite(name: str, number: str) -> None:
    with pytest.raises(ValueError, match="it must be finite"):
        parse_word(all_flags()[name], number)
    with pytest.raises(ValueError, match="it must be finite"):
        parse_value(all_flags()[name], float(number))


@pytest.mark.parametrize(
    ("name", "plain", "value"),
    [
        ("max_steps", 7, 7),
        ("max_steps", "7", 7),
        ("max_epochs", None, None),
        ("weight_decay", 1, 1.0),
        ("weight_decay", "1e-3", 0.001),
        ("float_precision", 32, "32"),
        ("gpus", -1, "-1"),
        ("no_wandb", True, True),
        ("wandb_tags", ["a", "b"], ("a", "b")),
        ("wandb_tags", [], ()),
    ],
)
def test_a_plain_value_is_read_by_the_type_of_its_flag(name: str, plain: Any, value: Any) -> None:
    read = parse_value(all_flags()[name], plain)
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    ("name", "plain", "problem"),
    [
        ("max_steps", None, "is null: give a whole number of at least 1, or leave it out."),
        ("max_steps", True, "is True: give a whole number of at least 1."),
        ("max_steps", 16.0, "is '16.0': give a whole number of at least 1, written without point or exponent."),
        ("max_steps", [1], "is a list: give a whole number of at least 1."),
        ("max_steps", {"a": 1}, "is a group of values: give a whole number of at least 1."),
        ("weight_decay", False, "is False: give a number of at least 0."),
        ("weight_decay", 10**400, "is inf: give a number of at least 0; it must be finite."),
        ("run_name", True, "is True: give a text, in quotes."),
        ("run_name", 1.5, "is 1.5: give a text, in quotes."),
        ("no_wandb", "yes", "is 'yes': write true or false."),
        ("no_wandb", 1, "is 1: write true or false."),
        ("wandb_tags", "a", "is 'a': give a list of texts."),
        ("wandb_tags", ["a", ["b"]], "is ['a', ['b']]: give a list of texts."),
        ("wandb_tags", ["a", ""], "is empty: give a text, or leave the flag out."),
    ],
)
def test_a_wrong_plain_value_is_told_with_what_is_allowed(name: str, plain: Any, problem: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_value(all_flags()[name], plain)
    assert str(caught.value) == problem


def test_lists_and_values_in_words() -> None:
    assert [join_words(["a"]), join_words(["a", "b"]), join_words(["a", "b", "c"], "and")] == [
        "a",
        "a or b",
        "a, b and c",
    ]
    assert [format_value(value) for value in (True, None, 1.0, 0.05, ("a", "b"), "x", "", "a\u2028b")] == [
        "true", "null", "1", "0.05", "[a, b]", "x", "''", "'a\\u2028b'",
    ]  # fmt: skip
