"""The snapshot of the code: all of it, nothing else, once on the disk, and never changed afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from core.errors import UserError
from launch.capsule import code_files, snapshot


def git(root: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=root, check=True, capture_output=True
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    (root / "rooms").mkdir(parents=True)
    (root / "rooms" / "a.py").write_text("a = 1\n")
    (root / "gone.py").write_text("\n")
    (root / "run me.sh").write_text("echo\n")
    (root / "run me.sh").chmod(0o755)
    (root / "link").symlink_to("rooms/a.py")
    (root / ".gitignore").write_text("logs/\n*.pyc\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "all")
    (root / "gone.py").unlink()
    (root / "new.py").write_text("new = 1\n")
    (root / "x.pyc").write_text("made")
    (root / ".env").write_text("WANDB_API_KEY=hidden\n")
    (root / "logs" / "runs").mkdir(parents=True)
    (root / "logs" / "runs" / "r.py").write_text("\n")
    return root


def take(root: Path, name: str = "run") -> Path:
    names, _ = code_files(root, root / "logs")
    target = root / "logs" / name / "code"
    snapshot({name: root / name for name in names}, root / "logs" / "code", target)
    return target


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_tracked_files_and_untracked_ones_that_are_not_ignored(root: Path) -> None:
    files, skipped = code_files(root, root / "logs")
    assert files == [".gitignore", "link", "new.py", "rooms/a.py", "run me.sh"]
    assert skipped == [".env"], "what looks like a secret is left out"


def test_logs_are_no_code_even_where_git_would_take_them(root: Path) -> None:
    (root / "out" / "runs").mkdir(parents=True)
    (root / "out" / "runs" / "metrics.jsonl").write_text("{}\n")
    files, _ = code_files(root, root / "out")
    assert not [name for name in files if name.startswith("out/")]


def test_large_files_that_git_does_not_track_are_data(root: Path) -> None:
    files, skipped = code_files(root, root / "logs", max_untracked_bytes=7)
    assert skipped == [".env", "new.py"] and ".gitignore" in files


def test_without_git(root: Path) -> None:
    shutil.rmtree(root / ".git")
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "a.py").write_text("\n")
    files, skipped = code_files(root, root / "logs")
    assert {"new.py", "rooms/a.py", "run me.sh"} <= set(files) and skipped == [".env"]
    assert not [name for name in files if name.startswith(("logs", "__pycache__", ".git/"))]


def test_a_snapshot_is_exact_and_read_only(root: Path) -> None:
    code = take(root)
    names, _ = code_files(root, root / "logs")
    assert contents(code) == {name: (root / name).read_bytes() for name in names}
    assert os.readlink(code / "link") == "rooms/a.py"
    assert (code / "new.py").stat().st_mode & 0o777 == 0o444
    assert (code / "run me.sh").stat().st_mode & 0o777 == 0o555


def test_two_runs_share_what_is_the_same(root: Path) -> None:
    first = take(root, "one")
    (root / "new.py").write_text("new = 2\n")
    second = take(root, "two")
    assert (first / "rooms" / "a.py").samefile(second / "rooms" / "a.py")
    assert (first / "new.py").read_text() == "new = 1\n" and (second / "new.py").read_text() == "new = 2\n"


def test_a_damaged_copy_is_not_used_again(root: Path) -> None:
    copy = take(root, "one") / "new.py"
    copy.chmod(0o644)
    copy.write_text("new = 3\n")  # through its link, this also changes the one copy
    assert (take(root, "two") / "new.py").read_text() == "new = 1\n"


def test_a_file_system_without_links(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    code = take(root)
    assert (code / "new.py").read_text() == "new = 1\n" and (code / "new.py").stat().st_nlink == 1
    assert (code / "run me.sh").stat().st_mode & 0o777 == 0o555


def test_a_file_that_cannot_be_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UserError, match=r"'new.py' cannot be read \(Permission denied\), so the code cannot be kept"):
        snapshot({"new.py": root / "new.py"}, root / "logs" / "code", root / "logs" / "run" / "code")
