"""The commands of README.md and docs/ are real: all of them parse, and a handful is run."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from config import parse_command_line
from core.commands import CommandParser
from core.notify import hide
from inference.commands import find_command, parse
from tests.conftest import ROOT, TrainCommand
from tests.support.example_task import import_example

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"(?:^|(?<=`))python (?:train_model\.py|-m inference)(?: [^`\n]*)?(?=`|$)", re.MULTILINE)
MANAGING = re.compile(r"(?:^|(?<=`))python -m (?:runs|launch) [^`\n]*(?=`|$)", re.MULTILINE)
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
def example_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the settings file and the task that the pages speak of."""
    import_example(tmp_path, monkeypatch)
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
    assert len(commands(ROOT / "docs" / "commands.md")) > 20


@pytest.mark.parametrize("command", dict.fromkeys(command for page in PAGES for command in commands(page)))
def test_every_command_parses(
    command: str, example_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EBT_NOTIFY", "")  # set by what hides an address, and taken away after the test
    if command.startswith("python -m inference"):
        name, *flags = shlex.split(command)[3:]
        assert parse(name, find_command(name, flags), flags)
    elif "--help" in command:
        with pytest.raises(SystemExit) as leaving:
            parse_command_line(words(command))
        assert leaving.value.code == 0
        topic = [*words(command), "--max_steps"][words(command).index("--help") + 1]
        assert topic in capsys.readouterr().out.lower()
    else:
        parse_command_line(hide(words(command)))


class Parsed(Exception):
    """Raised where a command has read its words and would begin."""


@pytest.mark.parametrize(
    "command", dict.fromkeys(command for page in PAGES for command in MANAGING.findall(page.read_text()))
)
def test_every_command_of_runs_and_launch_parses(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outermost: list[bool] = []

    def parse_only(read: Callable[..., Any]) -> Callable[..., Any]:
        def parse(*arguments: Any, **options: Any) -> Any:
            outermost.append(not outermost)  # argparse's methods call each other
            result = read(*arguments, **options)
            if outermost.pop():
                raise Parsed(result[1] if isinstance(result, tuple) else [])
            return result

        return parse

    for name in ("parse_args", "parse_intermixed_args", "parse_known_args"):
        monkeypatch.setattr(CommandParser, name, parse_only(getattr(CommandParser, name)))
    monkeypatch.setenv("EBT_NOTIFY", "")
    typed = command.split(" #")[0].split(" > ")[0]
    room, *argv = shlex.split(typed)[2:]
    program = importlib.import_module(f"{room}.__main__")
    if len(argv) == 1:  # the name of a command in a sentence, or the list of them
        assert argv[0] in (*program.COMMANDS, "--help")
        return
    with pytest.raises((Parsed, SystemExit)) as ended:
        raise AssertionError(f"{command}: {program.main(argv)} {capsys.readouterr().err}")
    if isinstance(ended.value, Parsed):
        parse_command_line(ended.value.args[0])


@pytest.mark.parametrize("command", RUN)
def test_a_command_of_the_pages_runs(command: str, train_command: TrainCommand) -> None:
    assert any(command in commands(page) for page in PAGES)
    output = train_command(*words(command))
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
