"""`python -m runs tag`, `archive` and `rm`: nothing is lost that was not meant to be."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runs.__main__ import main
from tests.runs.folders import Command, make_run

ONE = "one_20260101-120000_01abcd"


@pytest.fixture
def runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    make_run(tmp_path, "one", day=1)
    make_run(tmp_path, "other", day=2)
    return Command(tmp_path, capsys)


def test_tags(runs: Command) -> None:
    assert runs("tag", "one", "paper", "seed study", "paper") == f"{ONE}: paper, seed study\n"
    assert runs("tag", "one", "late", "--remove", "paper") == f"{ONE}: seed study, late\n"
    assert json.loads((runs.logs / "runs" / ONE / "tags.json").read_text()) == ["seed study", "late"]
    assert runs.names("--where", "tags='seed study'") == ["one"]
    assert runs("tag", "other") == "other_20260102-120000_02abcd: no tags\n"
    assert runs.refused("tag", "one", "--remove", "paper") == (
        f"--remove is paper: {ONE} has no such tag; it has seed study and late."
    )
    assert runs.refused("tag", "other", "--remove", "x").endswith("has no such tag; it has no tags.")
    for wrong in ("a\x1bb", " ", "a,b", "x" * 61):
        assert runs.refused("tag", "one", wrong).endswith(": give up to 60 letters on one line, without a comma.")


def test_archive_and_back(runs: Command) -> None:
    assert runs("archive", "one", ONE) == f"{ONE} is archived: --undo brings it back.\n"
    assert runs.names() == ["other"]
    assert runs("archive", "one", "--undo") == f"{ONE} is back.\n"
    assert runs.names() == ["other", "one"]


def test_rm_asks(runs: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = runs.logs / "runs" / ONE
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert runs.refused("rm", "one") == (
        "rm asks before it deletes, and there is no terminal to ask in: add --yes; nothing was deleted."
    )
    for answer, left in (("n", True), ("", True), ("yes", False)):
        terminal = io.StringIO(f"{answer}\n" if answer else "")
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", terminal)
        assert main(["rm", "one", "--logs_dir", str(runs.logs)]) == left
        output = runs.capsys.readouterr().out
        assert f"  {ONE}: finished, 0.0 MB\nDelete this run permanently? [y/N] " in output
        assert ("Nothing was deleted." in output) is left is folder.exists()
    assert runs.names() == ["other"]
    assert runs("rm", "other", "--yes") == "other_20260102-120000_02abcd is deleted.\n"
    assert list((runs.logs / "runs").iterdir()) == []


def test_a_run_that_runs_is_kept(runs: Command) -> None:
    sentence = f"{ONE} is running: python -m launch cancel ends it; nothing was deleted."
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, sys; f = open(sys.argv[1], 'a+'); fcntl.lockf(f, fcntl.LOCK_EX);"
         "print('held', flush=True); sys.stdin.read()", str(runs.logs / "runs" / ONE / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    assert runs.refused("rm", "other", "one", "--yes") == sentence
    assert runs.names() == ["other", "one"], "none of them is deleted"
    holder.communicate()
    elsewhere = make_run(runs.logs, "elsewhere", day=3, cause=None)  # on a machine whose locks are not seen here
    (elsewhere / "heartbeat.json").write_text(json.dumps({"time": time.time(), "step": 3}))
    assert "is running" in runs.refused("rm", "elsewhere", "--yes")
    runs("rm", "one", "--yes")
    assert runs.names() == ["elsewhere", "other"]


def test_only_runs_of_the_folder_are_deleted(runs: Command, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "config.json").write_text("{}")
    assert runs.refused("rm", str(project), "--yes") == (
        f"{project} does not lie in {runs.logs}/runs: give --logs_dir, or delete it yourself; nothing was deleted."
    )
    folder = (runs.logs / "runs" / ONE).rename(tmp_path / ONE)
    (runs.logs / "runs" / ONE).symlink_to(folder)
    runs("rm", "one", "--yes")
    assert (folder / "config.json").exists() and runs.names() == ["other"], "only the link goes"


def test_a_name_of_several_runs_is_not_enough_to_delete_one(runs: Command) -> None:
    again = make_run(runs.logs, "one", day=3)
    assert runs.refused("rm", "one", "--yes") == (
        f"RUN is one: 2 runs have that name; give the id of the one that is meant ({again.name}, {ONE}); "
        "nothing was deleted."
    )
    output = runs("show", "one")
    assert output.startswith(f"{again.name}\n") and f"Of the same name: {ONE}." in output, "the newest is shown"
    assert runs("rm", ONE, "--yes") == f"{ONE} is deleted.\n"


def test_what_cannot_be_changed_is_said(runs: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("runs.manage.write_json", refuse)
    monkeypatch.setattr("runs.manage.delete", refuse)
    for words in (["tag", "one", "x"], ["rm", "one", "--yes"]):
        assert runs.refused(*words) == (
            f"{runs.logs}/runs/{ONE} cannot be changed (Permission denied): "
            "it may be another person's run; ask its owner."
        )
