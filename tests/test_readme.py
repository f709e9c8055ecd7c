"""The commands of README.md and docs/ are real: all of them parse, and a handful is run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from config import parse_command_line
from core.notify import hide
from inference.commands import parse
from tests.conftest import ROOT, Door

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"(?:^|(?<=`))python (?:train_model\.py|-m inference)(?: [^`\n]*)?(?=`|$)", re.MULTILINE)
RUN = {  # command -> words that its output has
    "python train_model.py --no_wandb": ("bigram counts", "run folder", "index.html"),
    "python train_model.py --print_config": ("--max_steps", "command line"),
    "python train_model.py --plan": ("parameters", "tokens to be seen"),
    "python train_model.py --debug_dataloader --no_wandb": ("0 problem(s) found.",),
    "python train_model.py --fast_dev_run": ("test split", "run folder"),
}


def commands(page: Path) -> list[str]:
    """Every `python train_model.py ...` and `python -m inference ...` in a code span or at the start of a line."""
    return COMMAND.findall(page.read_text())


def words(command: str) -> list[str]:
    return shlex.split(command)[2:]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the settings file that the pages speak of."""
    (tmp_path / "run.yaml").write_text("model_size: 4xs\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands_are_found() -> None:
    assert COMMAND.findall(
        "| x | `python train_model.py --plan` |\npython train_model.py\ntest it  python train_model.py"
    ) == [
        "python train_model.py --plan",
        "python train_model.py",
    ]
    assert len(commands(ROOT / "README.md")) > 20


@pytest.mark.parametrize("command", dict.fromkeys(command for page in PAGES for command in commands(page)))
def test_every_command_parses(
    command: str, desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EBT_NOTIFY", "")  # set by what hides an address, and taken away after the test
    if command.startswith("python -m inference"):
        name, *flags = shlex.split(command)[3:]
        assert parse(name, flags)
    elif "--help" in command:
        with pytest.raises(SystemExit) as leaving:
            parse_command_line(words(command))
        assert leaving.value.code == 0
        assert (words(command)[1:] or ["--max_steps"])[0] in capsys.readouterr().out
    else:
        parse_command_line(hide(words(command)))


@pytest.mark.parametrize("command", RUN)
def test_a_command_of_the_readme_runs(command: str, door: Door) -> None:
    assert command in commands(ROOT / "README.md")
    output = door(*words(command))
    for expected in RUN[command]:
        assert expected in output


def make(*arguments: str) -> str:
    """What make prints, called as from a shell even where make runs the tests."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_make_lists_every_target_that_the_pages_name() -> None:
    named = {
        target for page in PAGES for target in re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", page.read_text(), re.M)
    }
    targets = {one or other for one, other in named}
    assert {"train", "test", "lint", "bench", "setup"} <= targets
    assert targets <= set(re.findall(r"^make ([a-z-]+) +\S", make(), re.MULTILINE))


@pytest.mark.parametrize(("target", "does"), [("train", "train_model.py --no_wandb"), ("test", "-m pytest")])
def test_the_two_commands_can_be_made(target: str, does: str) -> None:
    assert does in make("-n", target)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_links_every_page() -> None:
    readme = (ROOT / "README.md").read_text()
    for page in PAGES[1:]:
        assert f"(docs/{page.name})" in readme
