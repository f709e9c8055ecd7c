"""--config files: what they may look like, and the message when they cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config import RunConfig, SettingsError, parse_command_line
from config.settings import Transformer
from tests.config.problems import problems


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("flat.yaml", "max_steps: 70\nno_wandb: true\nisolate_documents: False\nrun_name: 007\n"
                      "peak_learning_rate: 1e-3\nfloat_precision: 32\nwandb_entity: ~\n"),
        ("nested.yml", "trainer: {max_steps: 70, float_precision: '32'}\nlogging:\n  no_wandb: true\n"
                       "architecture:\n  isolate_documents: false\nrun: {run_name: 007}\n"
                       "optimizer: {peak_learning_rate: .001, optimizer: adamw}\n"),
        ("mixed.txt", "run_name: '007'\ntrainer: {max_steps: 70}\noptimizer: adamw\npeak_learning_rate: 1.0e-3\n"
                      "no_wandb: TRUE\nisolate_documents: false\n"),
        ("flat.json", '{"max_steps": 70, "no_wandb": true, "isolate_documents": false, "run_name": "007",'
                      '\t"peak_learning_rate": 1e-3, "float_precision": 32, "wandb_entity": null}'),
        ("nested.json", '\ufeff{"trainer": {"max_steps": 70}, "logging": {"no_wandb": true},'
                        '"run": {"run_name": "007"}, "architecture": {"isolate_documents": false},'
                        '"optimizer": {"peak_learning_rate": 0.001}}'),
    ],
)  # fmt: skip
def test_flat_and_nested_yaml_and_json_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    config = parse_command_line(["--config", str(file)])
    assert (config.trainer.max_steps, config.logging.no_wandb, config[Transformer].isolate_documents) == (
        70,
        True,
        False,
    )
    assert (config.run.run_name, config.optimizer.peak_learning_rate) == ("007", 0.001)
    assert config.trainer.float_precision == "32" and config.logging.wandb_entity is None
    assert config.sources["max_steps"] == config.sources["no_wandb"] == "file"


def test_lists_and_other_names_of_flags_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("wandb_tags: [a, 2]\noverride_embedding_dim: 64\nrun_name: 2024-01-01\n")
    config = parse_command_line(["--config", str(file)])
    assert config.logging.wandb_tags == ("a", "2") and config[Transformer].embedding_dim == 64
    assert config.run.run_name == "2024-01-01"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("max_stps: 3\n", ["max_stps in FILE is unknown: did you mean max_steps?"]),
        ("trainr: {max_steps: 3}\n", ["trainr in FILE is unknown: did you mean trainer?"]),
        ("qqq: 3\n", ["qqq in FILE is unknown: --help lists every flag."]),
        ("absolute_clamp: 3\n", [
            "absolute_clamp in FILE is retired: it was tried by its authors and abandoned; remove it."]),
        ("data: {max_steps: 3}\n", ["max_steps in FILE is under data: move it under trainer."]),
        ("logging:\n", ["logging in FILE is a group of flags: write its flags under it, as `flag: value`."]),
        ("seed: 1\ntrainer: {seed: 2}\n", [
            "seed in FILE is given twice, as seed in two places or spellings: keep one."]),
        ("embedding_dim: 64\noverride_embedding_dim: 64\n", [
            "override_embedding_dim in FILE is given twice, as embedding_dim in two places or spellings: keep one."]),
        ("seed: 1\nmax_steps: 60\nseed: 2\n", ["seed (line 3) in FILE is given twice: keep one."]),
        ("trainer:\n  seed: 1\n  seed: 2\n", ["seed (line 3) in FILE is given twice: keep one."]),
        ("max_steps: 16.0\nno_wandb: yes\nseed: -1\n", [
            "max_steps in FILE is '16.0': give a whole number of at least 1, written without point or exponent.",
            "no_wandb in FILE is 'yes': write true or false.",
            "seed in FILE is -1: give a whole number of at least 0."]),
        ("run_name: a/b\n", [
            "run_name in FILE is 'a/b': it becomes part of a file's name; leave out '/', "
            "and do not use '.' or '..'."]),
        ("max_steps: 20\nwarm_up_steps: 30\n", [
            "warm_up_steps in FILE is 30, over --max_steps 20: give --warm_up_steps of at most 20, or more steps."]),
        ("", ["--config is 'FILE': it is empty; write settings into it as `flag: value`, or remove --config."]),
        (" \n\n", ["--config is 'FILE': it is empty; write settings into it as `flag: value`, or remove --config."]),
        ("# nothing\n", [
            "--config is 'FILE': it holds no settings; write them as `flag: value`, or remove --config."]),
        ("{}\n", ["--config is 'FILE': it holds no settings; write them as `flag: value`, or remove --config."]),
        ("- a\n", ["--config is 'FILE': it holds no settings; write them as `flag: value`, or remove --config."]),
        ("a: [1\n", ["--config is 'FILE': it is not valid YAML (line 2, column 1: expected ',' or ']', but got "
                     "'<stream end>'); correct it."]),
        ("a: 1\n---\nb: 2\n", ["--config is 'FILE': it is not valid YAML (line 2, column 1: but found another "
                               "document); correct it."]),
        ("? [a]\n: 3\n", [
            "--config is 'FILE': it has a key that is not a text (line 1); write `flag: value`."]),
        ("a: &a [*a]\n", ["--config is 'FILE': it is nested too deeply; write `flag: value` lines."]),
        ("a: " + 2000 * "[" + "\n", ["--config is 'FILE': it is nested too deeply; write `flag: value` lines."]),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_yaml_file_is_told(tmp_path: Path, text: str, lines: list[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    assert problems("--config", str(file)) == [line.replace("FILE", str(file)) for line in lines]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('{"seed": 1, "seed": 2}', ["seed in FILE is given twice: keep one."]),
        ('{"seed": 1,}', ["--config is 'FILE': it is not valid JSON (line 1, column 12: "]),
        ('{"weight_decay": NaN}', ["weight_decay in FILE is nan: give a number of at least 0; it must be finite."]),
        ('{"max_steps": "x"}', ["max_steps in FILE is 'x': give a whole number of at least 1."]),
        (5000 * "[", ["--config is 'FILE': it is nested too deeply; write `flag: value` lines."]),
        ("3", ["--config is 'FILE': it holds no settings; write them as `flag: value`, or remove --config."]),
    ],
)
def test_what_is_wrong_in_a_json_file_is_told(tmp_path: Path, text: str, lines: list[str]) -> None:
    file = tmp_path / "run.json"
    file.write_text(text)
    messages = problems("--config", str(file))
    assert len(messages) == len(lines)
    for problem, line in zip(messages, lines, strict=True):
        assert problem.startswith(line.replace("FILE", str(file)))


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    missing, folder, binary = tmp_path / "a.yaml", tmp_path, tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert problems("--config", str(missing)) == [
        f"--config is '{missing}': there is no such file; give the path of a YAML or JSON file."
    ]
    assert problems("--config", str(folder)) == [
        f"--config is '{folder}': it is a folder; give the path of a YAML or JSON file."
    ]
    assert problems("--config", str(binary)) == [
        f"--config is '{binary}': it is not a UTF-8 text; give a YAML or JSON file."
    ]
    assert problems("--config", f"{binary}/c.yaml") == [
        f"--config is '{binary}/c.yaml': it cannot be read (Not a directory); check the path and its permissions."
    ]


def test_problems_of_file_and_command_line_are_told_together(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("max_stps: 3\n")
    assert problems("--config", str(file), "--seed", "x", "--only_test") == [
        "--seed is 'x': give a whole number of at least 0.",
        f"max_stps in {file} is unknown: did you mean max_steps?",
        "--only_test is given without a checkpoint to evaluate: add --only_test_model_ckpt PATH, or last.",
    ]
    # what the lost file might have said is not held against the command line
    assert problems("--config", str(tmp_path / "lost.yaml"), "--seed", "x", "--only_test")[0].startswith("--seed is")
    assert len(problems("--config", str(tmp_path / "lost.yaml"), "--only_test")) == 1


def test_a_file_of_aliases_within_aliases_does_not_grow(tmp_path: Path) -> None:
    rows = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    file = tmp_path / "run.yaml"
    file.write_text("\n".join(rows))
    assert problems("--config", str(file)) == [
        f"--config is '{file}': it is nested too deeply; write `flag: value` lines."
    ]


FILE_TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="abc:-[]{}&*!|>'\"\n 1.#?%@", max_size=60),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["seed", "trainer", "optimizer", "wandb_tags", "x"]), inner, max_size=3)
        ),
    ).map(json.dumps),
)


@pytest.mark.parametrize("suffix", ["yaml", "json"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=FILE_TEXTS)
def test_any_file_is_a_run_or_lines_of_problems(tmp_path: Path, suffix: str, text: str) -> None:
    file = tmp_path / f"run.{suffix}"
    file.write_text(text, encoding="utf-8")
    try:
        assert isinstance(parse_command_line(["--config", str(file)]), RunConfig)
    except SettingsError as error:
        assert str(error).splitlines() == list(error.args[0]) and all(error.args[0])
