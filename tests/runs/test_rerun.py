"""`python -m runs rerun RUN`: the same settings again, whatever gave them, and a record of where they came from."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import RunConfig, parse_command_line
from config.record import differences, from_dict, to_dict
from config.settings import Transformer
from runs.__main__ import main
from runs.rerun import command_of
from runs.run import Run
from tests.conftest import ROOT, TrainCommand
from tests.runs.folders import Command, make_run


def recorded(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def repeated(folder: Path, **changes: Any) -> RunConfig:
    words, left_out = command_of(Run(folder), changes, str(folder.parent.parent))
    assert left_out == []
    return parse_command_line(words)


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--model_size xs --recipe s2 --langevin_dynamics_noise 1.5 --no-mcmc_replay_buffer",
        "--model_name baseline_transformer --peak_learning_rate 0.001 --no_wandb",
        "--num_transformer_blocks 3 --wandb_tags a b --val_sanity -1 --mcmc_step_size 3.5",
        "--debug_mode --log_every_n_steps 3",
        "--recipe s1 --mcmc_step_size auto --is_random_seed",
    ],
)
def test_the_settings_are_the_same(tmp_path: Path, flags: str) -> None:
    folder = make_run(tmp_path, "a-name", *shlex.split(flags))
    changes = differences(repeated(folder), from_dict(recorded(folder)))
    assert changes.keys() <= {"logs_dir", "is_random_seed"}


def test_changes_win_and_what_follows_from_them_follows(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "try", "--model_size", "4xs", "--seed", "5", "--resume_training_ckpt", "last")
    config = repeated(folder, model_size="xs", max_steps=7)
    assert (config[Transformer].embedding_dim, config.trainer.max_steps, config.trainer.seed) == (384, 7, 5)
    assert config.checkpoint.resume_training_ckpt is None and config.logging.logs_dir == str(tmp_path)
    assert repeated(make_run(tmp_path, "seeded", "--is_random_seed", day=2)).trainer.seed == 0


@given(st.text(), st.sampled_from(["run_name", "wandb_project", "text_field"]))
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, text: str, flag: str) -> None:
    folder = tmp_path_factory.mktemp("run")
    try:
        config = from_dict({flag: text})
    except ValueError:
        return
    (folder / "config.json").write_text(json.dumps({"run": {flag: text}}))
    words, _ = command_of(Run(folder), {}, "logs")
    assert differences(parse_command_line(words), config) == {}


def test_a_dry_run_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path, "try", "--ebt_type", "adaln")
    (folder / "code.json").write_text('{"commit": "0123456789abcdef", "dirty": false}')
    (folder / "code").mkdir()
    words = ["--set", "run_name=it's mine", "compile_model=true", "no_wandb=true", "--set", "warm_up_steps=none"]
    command = Command(tmp_path, capsys)
    output = command("rerun", "try", "--dry_run", *words)
    assert shlex.split(output) == [
        *("python", "train_model.py", "--run_name", "it's mine", "--ebt_type", "adaln", "--max_steps", "20"),
        *("--logs_dir", str(tmp_path), "--compile_model", "--no_wandb"),
    ]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [folder.name]


def test_other_code_and_other_flags_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path, "try")
    (folder / "code.json").write_text('{"commit": "0123456789abcdef", "dirty": false}')
    (folder / "code").mkdir()
    config = recorded(folder)
    config["energy"]["of_the_future"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    assert main(["rerun", "try", "--dry_run", "--logs_dir", str(tmp_path)]) == 0
    errors = capsys.readouterr().err.splitlines()
    assert errors[0] == "note: of_the_future of the record is left out: this version has no such flag."
    assert errors[1].startswith("note: the run was made with commit 0123456789 and this is ")
    assert errors[1].endswith(f", so results may differ; its own lies in {folder}/code.")


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path, "try")
    runs = Command(tmp_path, capsys)
    for word, sentence in {
        "max_steps": "--set is max_steps: write FLAG=VALUE, such as --set max_steps=2000.",
        "max_step=3": "max_step in --set is unknown: did you mean max_steps?",
        "max_steps=x": "max_steps in --set is 'x': give a whole number of at least 1.",
        "compile_model=yes": "compile_model in --set is 'yes': write true or false.",
        "config=x.yaml": "--set is config=x.yaml: a new run starts at step 0 with its parent's settings; leave it out.",
    }.items():
        assert runs.refused("rerun", "try", "--dry_run", "--set", word) == sentence
    assert "not used by --model_name baseline_transformer" in runs.refused(
        "rerun", "try", "--dry_run", "--set", "model_name=baseline_transformer", "mcmc_num_steps=5"
    )
    config = to_dict(parse_command_line(["--run_name", "try", "--recipe", "s1"]))
    config["energy"]["mcmc_step_size_lr_multiplier"] = None
    (folder / "config.json").write_text(json.dumps(config))
    assert runs.refused("rerun", "try", "--dry_run") == (
        f"{folder.name} cannot be repeated by a command line: mcmc_step_size_lr_multiplier is null there, and only a "
        "file can say so; --set mcmc_step_size_lr_multiplier=VALUE gives it another value."
    )
    (folder / "config.json").write_text("{")
    assert runs.refused("rerun", folder.name, "--dry_run") == (
        f"{folder.name} cannot be repeated: its config.json is missing or cannot be read; give another RUN."
    )


def test_a_run_is_repeated_and_knows_its_parent(train_command: TrainCommand) -> None:
    flags = train_command.command(
        "--warm_up_steps", "0", "--limit_val_batches", "1", "--logs_dir", "of another machine"
    )[2:]
    parent = make_run(train_command.logs, "tiny", *flags, losses=(3.0,))
    command = [
        sys.executable,
        "-m",
        "runs",
        "rerun",
        "last",
        "--logs_dir",
        str(train_command.logs),
        "--set",
        "max_steps=2",
    ]
    environment = {**os.environ, "EBT_RUN_DIR": "/nowhere"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (child,) = set((train_command.logs / "runs").iterdir()) - {parent}
    lineage = json.loads((child / "lineage.json").read_text())
    assert lineage == {"parent": parent.name, "how": "rerun", "changes": {"max_steps": 2}}
    changes = differences(from_dict(recorded(parent)), from_dict(recorded(child)))
    assert changes == {"max_steps": (10, 2), "logs_dir": ("of another machine", str(train_command.logs))}
