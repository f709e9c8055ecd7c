"""--debug_mode, --fast_dev_run and --overfit_batches: what they set, what wins over it, and that it comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from config import RunConfig, parse_command_line
from config.checks import ResolvedFlags
from config.flags import validated
from config.record import differences, from_dict, to_dict, to_yaml, values_of
from config.settings import DEBUG_PRESETS
from config.task_flags import all_flags
from tests.config.problems import LANGUAGE, problems

LINES = {"debug_mode": ["--debug_mode"], "fast_dev_run": ["--fast_dev_run"], "overfit_batches": ["--overfit_batches=2"]}


def value_and_source(config: RunConfig, *names: str) -> list[tuple[Any, str]]:
    """Value and source of each of these flags."""
    return [(values_of(config)[name], config.sources[name]) for name in names]


@pytest.mark.parametrize("switch", DEBUG_PRESETS)
def test_a_rehearsal_sets_its_values_and_nothing_else(switch: str) -> None:
    config, plain = parse_command_line(LINES[switch]), parse_command_line([])
    for name, value in DEBUG_PRESETS[switch].items():
        assert value_and_source(config, name) == [(value, f"--{switch}")]
        assert validated(all_flags()[name], value) == value and type(value) is all_flags()[name].kind, name
    assert differences(plain, config).keys() <= {switch, *DEBUG_PRESETS[switch]}
    rest = LANGUAGE.flags.keys() - DEBUG_PRESETS[switch].keys() - {switch}
    assert {name: config.sources[name] for name in rest} == {name: plain.sources[name] for name in rest}
    assert config.sources[switch] == "command line" and DEBUG_PRESETS[switch].keys().isdisjoint(DEBUG_PRESETS)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--no-debug_mode --no-fast_dev_run --overfit_batches 0",
        "--debug_mode --no-debug_mode --fast_dev_run --no_fast_dev_run --overfit_batches 3 --overfit_batches 0",
    ],
)
def test_a_rehearsal_that_is_off_sets_nothing(line: str) -> None:
    config = parse_command_line(line.split())
    sources = set(config.sources.values())
    assert config == parse_command_line([]) and sources <= {"default", "size table", "command line"}


def test_what_is_given_wins_over_a_rehearsal(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("num_workers: 3\nno_wandb: false\nlog_every_n_steps: 7\n")
    argv = ["--config", str(file), "--debug_mode", "--max_steps", "300", "--no-detect_anomaly", "--log_every_n_steps=8"]
    names = ("num_workers", "no_wandb", "max_steps", "detect_anomaly", "log_every_n_steps", "val_sanity")
    assert value_and_source(parse_command_line(argv), *names) == [
        (3, "file"),
        (False, "file"),
        (300, "command line"),
        (False, "command line"),
        (8, "command line"),
        (2, "--debug_mode"),
    ]


def test_a_file_can_rehearse_and_the_command_line_can_end_it(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("debug_mode: true\nval_sanity: 4\n")
    rehearsal = parse_command_line(["--config", str(file)])
    assert value_and_source(rehearsal, "debug_mode", "max_steps", "val_sanity") == [
        (True, "file"),
        (20, "--debug_mode"),
        (4, "file"),
    ]
    run = parse_command_line(["--config", str(file), "--no-debug_mode"])
    assert value_and_source(run, "max_steps", "val_sanity") == [(RunConfig().trainer.max_steps, "default"), (4, "file")]


def test_of_two_rehearsals_the_shorter_wins() -> None:
    config = parse_command_line(["--fast_dev_run", "--debug_mode", "--overfit_batches", "2"])
    assert value_and_source(config, "max_steps", "val_sanity", "detect_anomaly", "run_testing_after_training") == [
        (1, "--fast_dev_run"),
        (0, "--overfit_batches"),
        (True, "--debug_mode"),
        (True, "--fast_dev_run"),
    ]


@pytest.mark.parametrize(
    ("source", "value", "is_given"),
    [
        ("--debug_mode", 20, False),
        ("default", 20, False),
        ("file", 20, False),
        ("file", 300, True),
        ("command line", 20, True),
    ],
)
def test_a_person_did_not_give_what_a_rehearsal_set(source: str, value: int, is_given: bool) -> None:
    settled = ResolvedFlags({"max_steps": value}, {"max_steps": source}, {"max_steps": 20}, preset_flags={"max_steps"})
    assert settled.is_set("max_steps") is is_given


def test_a_rehearsal_that_cannot_be_read_has_one_problem() -> None:
    assert problems("--debug_mode", "yes", "--warm_up_steps", "700") == [
        "--debug_mode is followed by 'yes': it is a switch: write --debug_mode."
    ]


@pytest.mark.parametrize(
    "line",
    [
        "--debug_mode",
        "--fast_dev_run",
        "--overfit_batches 2",
        "--debug_mode --fast_dev_run --overfit_batches 0.5",
        "--debug_mode --warm_up_steps 50",
        "--fast_dev_run --warm_up_steps 700",
        "--debug_mode --max_steps 300 --val_sanity -1 --no-detect_anomaly --log_every_n_steps 10",
        "--debug_mode --num_workers 2 --prefetch_factor 3",
        "--fast_dev_run --no-run_testing_after_training",
    ],
)
def test_the_record_of_a_rehearsal_comes_back_as_it_was(tmp_path: Path, line: str) -> None:
    config = parse_command_line(line.split())
    again = from_dict(to_dict(config))
    assert again == config and set(again.sources.values()) == {"file"}
    file = tmp_path / "run.yaml"
    file.write_text(to_yaml(config))
    assert differences(config, parse_command_line(["--config", str(file)])) == {"config": (None, str(file))}


@pytest.mark.parametrize("switch", DEBUG_PRESETS)
def test_every_value_of_a_record_wins_over_its_rehearsal(switch: str) -> None:
    record = to_dict(parse_command_line([]))
    record["debugging"][switch] = 2.0 if switch == "overfit_batches" else True
    config = from_dict(record)
    assert to_dict(config) == record and config.trainer.max_steps == RunConfig().trainer.max_steps
