"""--help: every flag once, in groups, within the width of the terminal."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from config import RunConfig, parse_command_line
from config.help import detail, help_text
from config.task_flags import all_flags
from tests.config.problems import LANGUAGE

ROOT = Path(__file__).parents[2]


def help_of(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command line prints before it exits with status 0."""
    with pytest.raises(SystemExit) as caught:
        parse_command_line(argv)
    assert caught.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("group", ["", *LANGUAGE.sections])
def test_every_flag_is_there_once_and_no_line_is_too_long(
    monkeypatch: pytest.MonkeyPatch, group: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = help_text(group, LANGUAGE).splitlines()
    starts = [line.split()[0] for line in lines if line.startswith("  --")]
    assert starts == [f"--{flag.name}" for flag in LANGUAGE.flags.values() if group in ("", flag.group)]
    assert max(map(len, lines)) <= max(width, 44)
    monkeypatch.setenv("COLUMNS", "300")
    assert " ".join(lines).split() == help_text(group, LANGUAGE).split(), "no word is cut"


def test_a_wide_terminal_has_one_line_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "130")
    lines = help_text("", LANGUAGE).splitlines()
    few = {flag.name for flag in LANGUAGE.flags.values() if not flag.choices}  # a list of choices may need another line
    at = [number for number, line in enumerate(lines) if line.startswith("  --") and line.split()[0][2:] in few]
    assert len(at) == len(few) and all(lines[number + 1][:4] in ("", "  --") for number in at)
    helps = {line.index(all_flags()[line.split()[0][2:]].help) for line in lines if line.startswith("  --")}
    assert len(helps) == 1, "the helps stand in one column"


def test_help_begins_with_commands_and_has_titled_groups(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "130")
    lines = help_of(["--help"], capsys).splitlines()
    assert [line.split("  ")[0] for line in lines[:6]] == [
        "python train_model.py",
        "python train_model.py --debug_dataloader --no_wandb",
        "python train_model.py --help GROUP",
        "python train_model.py --help --FLAG",
        "python train_model.py --task NAME --help",
        "python train_model.py --help all",
    ]
    assert "DATA  what it learns from" in lines and "DEBUGGING  find a problem in a minute" in lines
    entries = {line.split()[0]: line for line in lines if line.startswith("  --")}
    assert entries["--max_steps"].split() == [
        "--max_steps",
        "N",
        "optimizer",
        "steps",
        f"[{RunConfig().trainer.max_steps}]",
    ]
    assert entries["--embedding_dim"].endswith("model width, D [by size]")
    assert entries["--tie_embeddings"].endswith("output head [on]")
    assert entries["--config"].split()[:2] == ["--config", "FILE"]
    assert entries["--wandb_tags"].split()[:3] == ["--wandb_tags", "TEXT", "..."]


@pytest.mark.parametrize("argv", [["-h"], ["--no_wandb", "--help"], ["--help", "-h"], ["--seed", "x", "-h"]])
def test_help_is_given_wherever_it_is_asked_for(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert help_of(argv, capsys).startswith("python train_model.py")


@pytest.mark.parametrize("argv", [["--help", "optimizer"], ["--help=optimizer"], ["-h", "OPTIMIZER"]])
def test_help_of_a_group_has_details(
    argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    text = help_of(argv, capsys)
    lines = [line.strip() for line in text.splitlines()]
    assert lines[0] == "OPTIMIZER  how the weights are updated" and "--max_steps" not in text
    assert "--optimizer WORD             which optimizer {[adamw], adafactor, sgd}" in lines
    assert "a number from 0 to 0.9999" in lines and "only with --optimizer adamw" in lines
    assert "a whole number of at least 0" in lines


def test_details_of_switches_other_names_and_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    shape, testing = help_text("architecture", LANGUAGE), help_text("testing", LANGUAGE)
    assert "off with --no-tie_embeddings" in shape and "also --override_embedding_dim" in shape
    assert "only with --only_test" in testing


@pytest.mark.parametrize(
    ("name", "fact"), [("no_wandb", "not with --no_wandb"), ("tie_embeddings", "not with --no-tie_embeddings")]
)
def test_a_need_that_is_met_by_default_is_told_as_what_ends_it(name: str, fact: str) -> None:
    flag = dataclasses.replace(all_flags()["seed"], needs={name: (all_flags()[name].default,)})
    assert fact in [line.strip() for line in detail(flag, LANGUAGE, 4, 120)]


@pytest.mark.parametrize(
    "argv", [["--help", "--optimizer"], ["--help=--optimizer"], ["-h", "--optimizer=sgd", "--no_wandb"]]
)
def test_help_of_a_flag_is_that_flag_though_a_group_has_its_name(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert help_of(argv, capsys).splitlines()[:4] == [
        "  --optimizer WORD  which optimizer {[adamw], adafactor, sgd}",
        "      needed by --beta1 and --beta2",
        "      --help optimizer has the flags beside it",
        "",
    ]


@pytest.mark.parametrize(
    ("word", "name", "facts"),
    [
        ("mcmc_replay_buffer_size", "mcmc_replay_buffer_size", ["only with --mcmc_replay_buffer"]),
        ("--Embedding-Dim", "embedding_dim", ["also --override_embedding_dim"]),
        ("--override_embedding_dim", "embedding_dim", []),
        ("--no-tie_embeddings", "tie_embeddings", ["off with --no-tie_embeddings"]),
        ("mcmc_detach", "no_mcmc_detach", ["off with --mcmc_detach", "--mcmc_detach with --recipe public or s1"]),
        ("ebt_type", "ebt_type", ["time_embed with --recipe s1 or s2", "only with --model_name ebt"]),
        ("mcmc_step_size", "mcmc_step_size", ["a number above 0, or auto"]),
    ],
)
def test_help_of_a_flag_says_what_it_needs(
    word: str, name: str, facts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    first, *lines = [line.strip() for line in help_of(["--help", word], capsys).splitlines()]
    assert first.startswith(f"--{name}") and set(facts) <= set(lines)


def test_every_choice_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    entries = {line.split()[0][2:]: line for line in help_text("", LANGUAGE).splitlines() if line.startswith("  --")}
    for flag in LANGUAGE.flags.values():
        if flag.choices:
            shown = entries[flag.name].partition("{")[2].replace("[", "").replace("]", "").removesuffix("}")
            assert tuple(shown.split(", ")) == flag.choices
    assert entries["profiler"].endswith("{simple, advanced, pytorch}"), "no default, so no brackets"


def test_help_into_a_closed_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = "import config; config.parse_command_line(['--help'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
