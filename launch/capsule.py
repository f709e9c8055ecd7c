"""A snapshot of the code beside a run: what was run stays what was run, whatever happens to the checkout.

Each distinct file lies once in `logs/code/`, by its content; a run's `code/` holds hard links to them, read-only.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

from core.errors import UserError
from core.files import write_atomically
from runs.folder import run_of

LARGEST = 50_000_000  # bytes of a file that git does not track; beyond that it is data, not code
SECRETS = (".env", ".env.*", ".netrc", "*.pem", "*.key", "id_rsa*", "id_ed25519*", "*credentials*", "*secret*")
MADE = re.compile(r"\.|(logs|build|__pycache__|wandb)$|.*\.egg-info$")  # folders that tools make


def own_files(root: Path, logs: Path) -> tuple[list[str], list[str]]:
    """The code's files relative to `root`, and those left out: secrets, and data that git does not track."""
    if run_of(root):  # complete as it is, and inside of logs
        files = [file for file in root.rglob("*") if file.is_symlink() or file.is_file()]
        return sorted(os.path.relpath(file, root) for file in files), []
    tracked = git_files(root, "--cached")
    other = git_files(root, "--others", "--exclude-standard") if tracked else walked_files(root)
    kept: list[str] = []
    left_out: list[str] = []
    for name in sorted({*tracked, *other}):
        file = root / name
        if file.is_relative_to(logs) or not (file.is_file() or file.is_symlink()):
            continue  # a run is no code; a tracked file may be deleted, a submodule is a folder
        secret = any(fnmatch(file.name.lower(), pattern) for pattern in SECRETS)
        large = name not in tracked and not file.is_symlink() and file.stat().st_size > LARGEST
        (left_out if name not in tracked and (secret or large) else kept).append(name)
    return kept, left_out


def git_files(root: Path, *which: str) -> list[str]:
    """What git lists; nothing where there is no git, or where `root` only lies inside somebody else's repository."""
    if not (root / ".git").exists():
        return []
    try:
        done = subprocess.run(["git", "ls-files", "-z", *which], cwd=root, capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name] if done.returncode == 0 else []


def walked_files(root: Path) -> list[str]:
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name == ".ci" or not MADE.match(name)]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return found


def snapshot(root: Path, names: list[str], store: Path, target: Path) -> None:
    """Put these files of `root` into `target`, by way of `store`."""
    store.mkdir(parents=True, exist_ok=True)
    for name in names:
        source, copy = root / name, target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            copy.symlink_to(os.readlink(source))
            continue
        try:
            content, executable = source.read_bytes(), os.access(source, os.X_OK)
        except OSError as error:
            raise UserError(f"{name!r} cannot be read ({error.strerror}), so the code cannot be kept with the run: "
                            "make it readable, or add it to .gitignore.") from error  # fmt: skip
        kept = keep(content, executable, store)
        try:
            os.link(kept, copy)
        except OSError:  # a file system without links, or with too many to one file
            shutil.copy2(kept, copy)


def keep(content: bytes, executable: bool, store: Path) -> Path:
    """The one copy of this content; one that was damaged is replaced."""
    digest = hashlib.sha256(content).hexdigest()
    kept = store / digest[:2] / (digest[2:] + (".x" if executable else ""))
    try:
        if hashlib.sha256(kept.read_bytes()).hexdigest() == digest:
            return kept
    except OSError:
        kept.parent.mkdir(exist_ok=True)
    write_atomically(kept, lambda file: file.write(content), sync=False, mode=0o555 if executable else 0o444)
    return kept
