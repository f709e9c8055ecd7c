"""The house as a whole: who may import whom, the names people rely on, and nothing of one person's machine."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

ROOMS: dict[str, set[str] | None] = {  # room -> the other rooms it may import; None: any
    "core": set(),
    "config": {"core"},
    "data": {"core", "config"},
    "models": {"core"},
    "runs": {"core", "config"},
    "tasks": {"core", "config", "data", "models", "runs"},
    "training": {"core", "config", "data", "models", "runs", "tasks"},
    "inference": {"core", "config", "data", "models", "runs", "tasks"},
    "launch": {"core", "config", "runs"},
    "benchmarks": None,
    "train_model": None,
}
KEPT_OUT = {  # room -> packages it must do without
    "core": {"torch", "numpy", "pytorch_lightning", "lightning", "torchmetrics"},
    "config": {"torch", "numpy", "pytorch_lightning", "lightning", "torchmetrics"},
    "models": {"argparse", "tokenizers", "transformers", "datasets", "logging", "wandb"},
}
FIXED = (
    *("train_model.py", "abbreviations.md", "README.md", "Makefile", "setup.cfg", "pyproject.toml"),
    *(".ci/run", "job_scripts/debug/debug_dataloader.sh", "slurm_executor.sh", "job_scripts/train.slurm"),
)
HOME = re.compile(rb"/(?:root|home/[\w.-]+|Users/[\w.-]+)/")
MADE = re.compile(r"\.|(logs|build|__pycache__)$|.*\.egg-info$")  # folders that tools make


def modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py")) if (ROOT / room).is_dir() else [ROOT / f"{room}.py"]


def imported(source: str, package: str) -> set[str]:
    """The top-level names that a module imports, inside functions too; `package` is the one it is in."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            names |= {parents[0]} if parents else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).split(".")[0])
    return names


def imports_of(file: Path) -> set[str]:
    return imported(file.read_text(), ".".join(file.relative_to(ROOT).parent.parts))


def test_imports_are_found_wherever_they_stand() -> None:
    source = "import torch.nn\ndef f():\n    from data import module\n    from .. import runs\n    from . import x\n"
    assert imported(source, "models") == {"torch", "data", "runs", "models"}


def test_every_room_has_its_rule() -> None:
    packages = {file.parent.name for file in ROOT.glob("[!.]*/*.py")} - {"tests", "logs", "build"}
    programs = {file.stem for file in ROOT.glob("*.py")}
    assert packages | programs == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_run_one_way(room: str) -> None:
    allowed = ROOMS[room]
    files = modules(room)
    assert files, f"{room} has no modules"
    for file in files:
        names = imports_of(file)
        assert "tests" not in names, f"{file} imports the tests"
        if allowed is not None:
            wrong = names & ROOMS.keys() - allowed - {room}
            assert not wrong, f"{file} imports {wrong}; {room} may import {allowed or 'no other room'}"
        wrong = names & KEPT_OUT.get(room, set())
        assert not wrong, f"{file} imports {wrong}, which {room} does without"


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "train_model"])
def test_a_room_says_what_it_may_import(room: str) -> None:
    allowed = ROOMS[room]
    docstring = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text())) or ""
    rooms = "any room" if allowed is None else ", ".join(name for name in ROOMS if name in allowed) or "no other room"
    assert docstring.splitlines()[-1:] == [f"May import: {rooms}."]


def test_training_knows_no_language() -> None:
    words = re.compile(r"input_ids|tokenizer|\bnats\b|bits_per_byte|vocab")
    named = {file.name: matches for file in modules("training") if (matches := words.findall(file.read_text()))}
    assert not named


def test_one_file_touches_the_internals_of_lightning() -> None:
    """A new version of Lightning is tested against that file alone."""
    internals = re.compile(r"fit_loop|epoch_loop|batch_progress|_connector|trainer\._\w+")
    files = [file for room in ROOMS if room != "benchmarks" for file in modules(room)]
    assert {file.relative_to(ROOT).as_posix() for file in files if internals.search(file.read_text())} == {
        "training/lightning.py"
    }


def test_there_is_one_display_of_progress() -> None:
    words = re.compile(r"rich\.progress|tqdm|\\x1b\[2K")
    files = [file for room in ROOMS for file in modules(room)]
    assert {file.relative_to(ROOT).as_posix() for file in files if words.search(file.read_text())} == {
        "core/progress.py"
    }


def test_only_the_language_commands_of_inference_know_language() -> None:
    words = re.compile(r"input_ids|tokenizer|\bnats\b|EnergyLM|LanguageModel|vocab")
    general = sorted((ROOT / "inference").glob("*.py"))
    assert {"commands.py", "evaluate.py", "loading.py", "think_curve.py", "thinking.py"} <= {f.name for f in general}
    named = {file.name: matches for file in general if (matches := words.findall(file.read_text()))}
    assert not named


@pytest.mark.parametrize("name", FIXED)
def test_names_that_people_type_exist(name: str) -> None:
    assert (ROOT / name).is_file()


@pytest.mark.parametrize("name", [name for name in FIXED if name.endswith((".sh", "run"))])
def test_scripts_can_be_run(name: str) -> None:
    assert os.access(ROOT / name, os.X_OK), f"{name} is not executable"
    subprocess.run(["bash", "-n", str(ROOT / name)], check=True)


def test_no_test_file_is_imported() -> None:
    """What tests share is in modules without `test_`: importing a test file would collect or start what it has."""
    for file in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
                wrong = [name for name in names if re.search(r"(^|\.)test_", name)]
                assert not wrong, f"{file.relative_to(ROOT)}:{node.lineno} imports {wrong[0]}"


def test_make_has_the_two_commands() -> None:
    assert {"train", "test"} <= set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def own_files() -> list[Path]:
    """What git tracks or would track; without git, every file that is not made by a tool."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
        files = [ROOT / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        files = []
        for folder, folders, names in os.walk(ROOT):
            folders[:] = [name for name in folders if name == ".ci" or not MADE.match(name)]
            files += [Path(folder) / name for name in names if name != ".git"]  # a file in a worktree
    return [file for file in files if file.is_file()]


def test_files_are_found_without_git_too(monkeypatch: pytest.MonkeyPatch) -> None:
    tracked = set(own_files())
    monkeypatch.setenv("PATH", "")
    walked = set(own_files())
    rooms = {ROOT / ".ci" / "run", *(file for room in ROOMS for file in modules(room))}
    assert rooms <= tracked and rooms <= walked
    assert not any(".git" in file.parts for file in walked)


def test_no_file_names_somebodys_home() -> None:
    files = own_files()
    assert ROOT / "train_model.py" in files
    named = {str(file.relative_to(ROOT)): matches[0] for file in files if (matches := HOME.findall(file.read_bytes()))}
    assert not named


def test_a_home_is_recognised() -> None:
    assert HOME.search(b"--logs_dir " + b"/".join([b"", b"home", b"ada", b"runs"]))
    assert HOME.search(b"/".join([b"", b"root", b"x"]))
    assert not HOME.search(b"at home/ or in the root/ of the repo")
