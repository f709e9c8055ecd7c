"""A capsule: a run's folder with all that is needed to run it, made before it is submitted.

A snapshot of the code lies beside the run, so that later changes of the checkout do not reach it. Each distinct file
is stored once in `logs/code/`, by its content; a run's `code/` holds read-only hard links to them. The capsules of a
sweep share everything that is the same in all of its runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import track

from config import RunConfig
from config.record import to_dict, values_of
from config.settings import all_flags
from core.errors import UserError
from core.files import write_atomically, write_json, write_text
from core.text import format_value
from launch.script import (
    DEFAULT_SCRIPT,
    ROOT,
    Header,
    active_environment,
    check_syntax,
    header_name,
    job_script,
    read_text,
)
from runs import RunFolder
from runs.folder import code_state, environment, new_run_id, run_of, task_record_of

if TYPE_CHECKING:
    from launch.submit import SubmitRequest
    from launch.sweep import SweepRow

MAX_UNTRACKED_BYTES = 50_000_000  # larger files that git does not track are data, not code
SECRETS = (".env", ".env.*", ".netrc", "*.pem", "*.key", "id_rsa*", "id_ed25519*", "*credentials*", "*secret*")
GENERATED = re.compile(r"\.|(logs|build|__pycache__|wandb)$|.*\.egg-info$")  # folders that tools make
SHARED_FILES = ("code", "code.json", "code.diff", "environment.json", "submission.json")


# -- the snapshot of the code ----------------------------------------------------------------------------------------


def code_files(root: Path, logs: Path) -> tuple[list[str], list[str]]:
    """The code's files relative to `root`, and skipped ones: secrets, and data that git does not track."""
    if run_of(root):  # `root` is itself a snapshot: take all of it
        paths = [path for path in root.rglob("*") if path.is_symlink() or path.is_file()]
        return sorted(os.path.relpath(path, root) for path in paths), []
    tracked = git_files(root, "--cached")
    other = git_files(root, "--others", "--exclude-standard") if tracked else walked_files(root)
    files: list[str] = []
    skipped: list[str] = []
    for name in sorted({*tracked, *other}):
        file = root / name
        if file.is_relative_to(logs) or not (file.is_file() or file.is_symlink()):
            continue  # logs are not code; a tracked file may be deleted; a submodule is a folder
        secret = any(fnmatch(file.name.lower(), pattern) for pattern in SECRETS)
        large = name not in tracked and not file.is_symlink() and file.stat().st_size > MAX_UNTRACKED_BYTES
        (skipped if name not in tracked and (secret or large) else files).append(name)
    return files, skipped


def git_files(root: Path, *which: str) -> list[str]:
    """What git lists; empty without git, or if `root` only lies inside of another repository."""
    if not (root / ".git").exists():
        return []
    try:
        done = subprocess.run(["git", "ls-files", "-z", *which], cwd=root, capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name] if done.returncode == 0 else []


def walked_files(root: Path) -> list[str]:
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name == ".ci" or not GENERATED.match(name)]
        files += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return files


def snapshot(root: Path, names: list[str], store: Path, target: Path) -> None:
    """Link these files of `root` into `target`; their contents are in `store`."""
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
        stored = store_content(content, executable, store)
        try:
            os.link(stored, copy)
        except OSError:  # a file system without links, or with too many to one file
            shutil.copy2(stored, copy)


def store_content(content: bytes, executable: bool, store: Path) -> Path:
    """The stored copy of this content; a damaged copy is replaced."""
    digest = hashlib.sha256(content).hexdigest()
    stored = store / digest[:2] / (digest[2:] + (".x" if executable else ""))
    try:
        if hashlib.sha256(stored.read_bytes()).hexdigest() == digest:
            return stored
    except OSError:
        stored.parent.mkdir(exist_ok=True)
    write_atomically(stored, lambda file: file.write(content), sync=False, mode=0o555 if executable else 0o444)
    return stored


# -- one run ---------------------------------------------------------------------------------------------------------


def absolute_paths(config: RunConfig, run: Path) -> list[str]:
    """Flags that replace relative paths, which do not hold in the snapshot, and the logs folder by absolute ones."""
    flags = []
    for name, value in values_of(config).items():
        if name == "config" and value:
            flags += ["--config", str(run / f"settings{Path(value).suffix}")]
        elif name == "logs_dir" or (isinstance(value, str) and is_relative_path(name, value)):
            flags += [f"--{name}", os.path.abspath(ROOT / value)]
    return flags


def is_relative_path(name: str, value: str) -> bool:
    if os.path.isabs(value) or value == "last":
        return False
    return "PATH" in (all_flags()[name].metavar or "") or (name == "tokenizer" and (ROOT / value).is_dir())


def make_capsule(request: SubmitRequest, config: RunConfig, write_script: Callable[[Path], str]) -> RunFolder:
    """Create the run's folder with all that is needed to run it, atomically."""
    logs = Path(config.logging.logs_dir)
    names, skipped = code_files(ROOT, logs)
    for name in skipped:
        print(
            f"not kept with the run: {format_value(name)}, which git does not track and which is large or "
            "looks like a secret"
        )
    staged: list[Path] = []

    def add(staging: Path) -> None:
        staged.append(staging)
        run = staging.with_name(staging.name.removeprefix("."))
        snapshot(ROOT, sorted({*names, request.script}), logs / "code", staging / "code")
        if path := config.run.config:
            shutil.copyfile(ROOT / path, staging / f"settings{Path(path).suffix}")
        write_text(staging / "command.txt", request.typed + "\n")
        write_text(staging / "job_script.slurm", write_script(run))
        state = "submitting" if request.header else "here"
        write_json(staging / "submission.json", request.record(config, run) | {"state": state})

    try:
        return RunFolder.create(config, add)
    except BaseException:
        for staging in staged:
            shutil.rmtree(staging, ignore_errors=True)
        raise


def copy_job_script(run: Path) -> None:
    """Copy the script into logs/job_scripts/, which has one file per submission, for grep."""
    copies = run.parent.parent / "job_scripts"
    try:
        copies.mkdir(exist_ok=True)
        shutil.copyfile(run / "job_script.slurm", copies / f"{time.strftime('%Y%m%d-%H%M%S')}_{run.name}.slurm")
    except OSError as error:
        raise UserError(
            f"{format_value(str(copies))} cannot be written to ({error.strerror}): nothing was submitted; "
            f"the run's record stays in {format_value(str(run))}."
        ) from None


# -- the runs of a sweep ---------------------------------------------------------------------------------------------


def make_capsules(
    rows: Sequence[SweepRow], header: Header | None, logs: Path, sweep_dir: Path, typed: list[str]
) -> None:
    """Create the folder of every new row, each atomically. sweep_dir: the sweep's folder."""
    new_rows = [row for row in rows if row.is_new]
    if not new_rows:
        return
    names, skipped = code_files(ROOT, logs)
    for name in skipped:
        print(
            f"not kept with the runs: {format_value(name)}, which git does not track and which is large or "
            "looks like a secret"
        )
    text, environment_lines = read_text(ROOT / DEFAULT_SCRIPT, "JOB_SCRIPT"), active_environment(ROOT)
    staging = None
    try:
        record = {"typed": typed, "header": header_name(header), "slurm": header.resources if header else []}
        tree = shared_tree(names, logs / "code")
        write_shared_files(sweep_dir, tree, record | {"script": DEFAULT_SCRIPT})
        (logs / "job_scripts").mkdir(exist_ok=True)
        (logs / "runs").mkdir(exist_ok=True)
        for row in with_progress(new_rows):
            run = logs / "runs" / new_run_id(row.name)
            staging = run.with_name(f".{run.name}")
            (staging / "checkpoints").mkdir(parents=True)
            script = job_script(
                header, DEFAULT_SCRIPT, text, row.words + absolute_paths(row.config, run), run, environment_lines
            )
            if row is new_rows[0]:  # the others differ only in quoted words
                check_syntax(script, DEFAULT_SCRIPT)
            write_run_files(staging, row, script, sweep_dir)
            staging.rename(run)
            row.run = run
            link(run / "job_script.slurm", logs / "job_scripts" / f"{time.strftime('%Y%m%d-%H%M%S')}_{run.name}.slurm")
        os.sync()  # once, because syncing a thousand folders one by one takes minutes
    except OSError as error:
        raise UserError(
            f"--logs_dir is {str(logs)!r}: cannot write there ({error.strerror}): nothing was submitted; "
            "choose a folder you can write to, or free some space."
        ) from None
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)


def with_progress(rows: Sequence[SweepRow]) -> Iterable[SweepRow]:
    """The rows with a progress bar, on a terminal and if they are many."""
    console = Console(stderr=True)
    return track(
        rows, "keeping runs", console=console, transient=True, disable=not console.is_terminal or len(rows) < 50
    )


def new_sweep_folder(logs: Path, name: str) -> Path:
    """Create the folder of what the rows of a sweep share, named by the sweep and the time."""
    sweep_dir = logs / "sweeps" / new_run_id(name)
    try:
        sweep_dir.mkdir(parents=True)
    except OSError as error:
        raise UserError(
            f"--logs_dir is {str(logs)!r}: cannot write there ({error.strerror}): choose a folder you can write to."
        ) from None
    return sweep_dir


def shared_tree(names: Sequence[str], store: Path) -> Path:
    """The snapshot of this code, found by its content, or created."""
    staging = store / f".tree-{os.getpid()}-{secrets.token_hex(3)}"
    try:
        snapshot(ROOT, list(names), store, staging)
        digest = hashlib.sha256()
        for name in names:
            file = staging / name
            content = os.readlink(file).encode() if file.is_symlink() else file.read_bytes()
            digest.update(repr((name, file.is_symlink(), os.access(file, os.X_OK), len(content))).encode() + content)
        tree = store / f"tree-{digest.hexdigest()[:20]}"
        if not tree.is_dir():
            staging.rename(tree)
        return tree
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write_shared_files(sweep_dir: Path, tree: Path, record: dict[str, Any]) -> None:
    """Write what is the same in all runs. Each run links to it, which is ten times as fast as a new file."""
    code, diff = code_state()
    write_json(sweep_dir / "code.json", code)
    write_text(sweep_dir / "code.diff", diff)
    write_json(sweep_dir / "environment.json", environment())
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    write_json(sweep_dir / "submission.json", record | {"state": "submitting", "time": now})
    # The relative path is the same from a run's folder.
    (sweep_dir / "code").symlink_to(os.path.relpath(tree, sweep_dir))


def write_run_files(staging: Path, row: SweepRow, script: str, sweep_dir: Path) -> None:
    """Write all files of one run."""
    lineage = {"parent": row.parent, "how": "sweep", "changes": row.varied, "sweep": sweep_dir.name}
    for name in SHARED_FILES:
        link(sweep_dir / name, staging / name)
    (staging / "config.json").write_text(json_text(to_dict(row.config)))
    (staging / "task.json").write_text(json_text(task_record_of(row.config)))
    (staging / "lineage.json").write_text(json_text(lineage))
    (staging / "command.txt").write_text(shlex.join(["python", "train_model.py", *row.words]) + "\n")
    (staging / "job_script.slurm").write_text(script)
    if path := row.config.run.config:
        shutil.copyfile(ROOT / path, staging / f"settings{Path(path).suffix}")


def json_text(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def write_or_link(path: Path, value: Any, written: dict[str, Path]) -> None:
    """Write JSON atomically, without a sync. written: {content: file} of earlier calls, so that equal content is
    stored once and linked."""
    temporary, text = path.with_name(f".{path.name}.{os.getpid()}.tmp"), json_text(value)
    if text in written:
        link(written[text], temporary)
    else:
        temporary.write_text(text)
    os.replace(temporary, path)
    written[text] = path


def link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # a file system without links, or with too many to one file
        shutil.copyfile(source, target, follow_symlinks=False)
