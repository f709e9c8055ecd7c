"""python -m launch resubmit: a new run from the code and the settings of an old one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import parse_command_line
from core.errors import UserError
from launch.control import read_setting_changes, typed_flags, with_changes
from runs.run import Run
from tests.launch.checkout import SCRIPT, Checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = Checkout(tmp_path / "check out")
    made.program("sbatch", "echo 7")
    made.program("scontrol", "true")
    return made


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """One with a run of this machine."""
    made = Checkout(tmp_path_factory.mktemp("work_dir") / "check out")
    made.execute(SCRIPT, "--run_name", "here")
    return made


def resubmit(checkout: Checkout, *words: str, status: int = 0) -> str:
    command = [sys.executable, "-m", "launch", "resubmit", *words]
    done = subprocess.run(command, cwd=checkout.root, env=checkout.environment(), capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def other(checkout: Checkout, first: Path) -> Path:
    (new_run,) = (run for run in (checkout.logs / "runs").iterdir() if run != first)
    return new_run


def test_the_same_code_and_settings_with_a_change(checkout: Checkout) -> None:
    (checkout.root / "mine.yaml").write_text("warm_up_steps: 3\n")
    (checkout.root / ".hidden").mkdir()
    (checkout.root / "job_scripts" / ".kept").write_text("x")
    words = ["--config", "mine.yaml", "--dataset_dir", "my texts", "--run_name", "it's é", "--no_wandb"]
    checkout.execute("local_cpu", SCRIPT, *words)
    first = checkout.run
    (first / "code.json").write_text('{"commit": "abc"}')
    for file in ("train_model.py", SCRIPT, "mine.yaml", "slurm_executor.sh", "job_scripts/headers/local_cpu.slurm"):
        (checkout.root / file).write_text("not any more\n")
    output = resubmit(checkout, "last", "--set", "max_steps=50", "no_wandb=false", "--set", "run_name=$(touch gone)")
    second = other(checkout, first)
    assert f"run id  {second.name}\njob id  7\n" in output
    lineage = json.loads((second / "lineage.json").read_bytes())
    assert lineage["parent"] == first.name and lineage["how"] == "resubmit"
    assert lineage["changes"] == {"max_steps": "50", "no_wandb": "false", "run_name": "$(touch gone)"}
    before, now = (json.loads((run / "config.json").read_bytes()) for run in (first, second))
    assert now["trainer"]["max_steps"] == 50 and now["run"]["run_name"] == "$(touch gone)"
    assert now["logging"]["no_wandb"] is False and before["logging"]["no_wandb"] is True
    assert now["optimizer"]["warm_up_steps"] == 3 and (second / "settings.yaml").read_text() == "warm_up_steps: 3\n"
    assert now["data"]["dataset_dir"] == str(checkout.root / "my texts")
    files = [{file.relative_to(run / "code") for file in (run / "code").rglob("*")} for run in (first, second)]
    assert files[0] == files[1] and (second / "code" / "train_model.py").read_text().startswith("import json")
    assert json.loads((second / "code.json").read_bytes()) == {"commit": "abc"}, "the code is what it was"
    assert "export EBT_JOB_RUN_DIR='" + str(second) in (second / "job_script.slurm").read_text()
    assert "#SBATCH --mem=4G" in (second / "job_script.slurm").read_text(), "the header, too"
    assert not list(checkout.root.parent.rglob("gone"))


def test_another_header_of_today_and_a_dry_run(here: Checkout) -> None:
    (here.root / "job_scripts" / "headers" / "new.slurm").write_text("#SBATCH --partition=new\n")
    made = resubmit(here, "here", "--header", "new", "--set", "max_steps=5", "--dry_run")
    assert "#SBATCH --partition=new\n" in made and "--max_steps=5" in made
    output = resubmit(here, "here", "--header", "nowhere", status=2)
    assert "HEADER is 'nowhere': choose local_cpu, new, reference_a100" in output
    assert here.run.name.startswith("here_"), "nothing was made"


def test_settings_are_judged_by_the_parser_of_the_snapshot(here: Checkout) -> None:
    with (here.root / "config" / "checks.py").open("a") as file:
        file.write("\ndef problems_of(*_): raise SystemExit(9)\n")
    output = resubmit(here, "here", "--set", "max_stepz=5", "batch_size_per_device=none", status=2)
    assert (
        "--max_stepz is unknown: did you mean --max_steps?" in output and "--batch_size_per_device is 'none'" in output
    )
    assert here.run.name.startswith("here_"), "nothing was made"


def test_a_run_of_this_machine_runs_here_and_now(checkout: Checkout) -> None:
    checkout.execute(SCRIPT, "--run_name", "here")
    first = checkout.run
    (first / "code.json").write_text('{"commit": "abc"}')
    shared = checkout.logs / "code" / "tree-1"  # as the runs of a sweep have it
    (first / "code").rename(shared)
    (first / "code").symlink_to(shared)
    resubmit(checkout, "here")
    received = json.loads((other(checkout, first) / "received.json").read_bytes())
    assert received["code"].startswith(str(other(checkout, first) / "code"))
    assert json.loads((other(checkout, first) / "code.json").read_bytes()) == {"commit": "abc"}
    assert "EBT_LINEAGE" not in received["env"], "what it starts itself is not resubmitted"


def test_a_run_without_a_snapshot_takes_the_checkout(checkout: Checkout) -> None:
    checkout.execute(SCRIPT, "--run_name", "plain")
    first = checkout.run
    (first / "submission.json").unlink()
    (first / "command.txt").write_text(
        "python train_model.py --run_name plain --max_steps 9 --resume_training_ckpt last\n"
    )
    output = resubmit(checkout, "plain", "--header", "local_cpu")
    assert f"{first.name} has no snapshot of its code: the new run has that of this checkout." in output
    second = other(checkout, first)
    assert json.loads((second / "config.json").read_bytes())["trainer"]["max_steps"] == 9
    assert json.loads((second / "submission.json").read_bytes())["script"] == "job_scripts/train.slurm"
    (first / "job.json").write_text('{"job": "3"}')
    output = resubmit(checkout, first.name, status=2)
    assert (
        "was submitted without a header, so what to ask Slurm for is not known: add --header local_cpu, ref" in output
    )


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("max_steps", "--set is max_steps: write FLAG=VALUE, such as --set max_steps=2000."),
        ("no_wandb=1", "--set is no_wandb=1: no_wandb is a switch; write no_wandb=true or =false."),
        ("logs_dir=x", "--set is logs_dir=x: a new run starts from step 0, beside the old one; leave it out."),
    ],
)
def test_mistakes(word: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        read_setting_changes(["seed=1", word])
    assert str(error.value) == sentence


def test_a_run_whose_settings_are_not_known(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a_1_2 has neither a command.txt nor a config.json: its settings are not"):
        typed_flags(Run(tmp_path / "a_1_2"))


FLAGS = {
    "max_steps": st.integers(1, 10**6).map(str),
    "run_name": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
    .filter(lambda text: text.strip() and text.isprintable() and "/" not in text and text not in (".", "..")),
    "no_wandb": st.sampled_from(["true", "false"]),
    "deterministic": st.sampled_from(["true", "false"]),
}  # fmt: skip


@given(st.fixed_dictionaries({}, optional=FLAGS), st.fixed_dictionaries({}, optional=FLAGS))
def test_the_last_change_counts(first: dict[str, str], second: dict[str, str]) -> None:
    words = with_changes(with_changes(["--max_steps", "7", "--no_wandb"], first), second)
    config = parse_command_line(
        with_changes(words, read_setting_changes([f"{name}={value}" for name, value in second.items()]))
    )
    expected = {"max_steps": "7", "no_wandb": "true", "deterministic": "false", "run_name": "default"} | first | second
    assert config.trainer.max_steps == int(expected["max_steps"]) and config.run.run_name == expected["run_name"]
    assert config.logging.no_wandb == (expected["no_wandb"] == "true")
    assert config.trainer.deterministic == (expected["deterministic"] == "true")
