"""A capsule: a run's folder with all that is needed to run it, made before it is submitted.

A snapshot of the code lies beside the run, so that later changes of the checkout do not reach it. Each distinct file
is stored once in `logs/code/`, by its content; a run's `code/` holds read-only hard links to them. The package of a
task from outside of the checkout (`--task lab.mixture`) is part of the snapshot, so that a job finds it on any node.
The capsules of a sweep share everything that is the same in all of its runs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config import RunConfig
from config.flags import Flag
from config.record import flag_named, to_dict, values_of
from core.errors import UserError
from core.files import write_atomically, write_json, write_text
from core.progress import progress
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
CHOSEN_BY_MATCH_FLOPS = ("max_steps", "num_transformer_blocks", "warm_up_steps", "max_scheduling_steps")
SHARED_FILES = ("code", "code.json", "code.diff", "environment.json", "submission.json")


# -- the snapshot of the code ----------------------------------------------------------------------------------------


@dataclass
class Code:
    """The files of a snapshot, {name in it: file}, and skipped ones: secrets, and data that git does not track.

    packages: {name: folder} of tasks from outside of the checkout.
    """

    files: dict[str, Path] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    packages: dict[str, str] = field(default_factory=dict)

    @property
    def record(self) -> dict[str, Any]:
        """For submission.json: what the snapshot has beside the checkout, which code.json describes."""
        return {"task_packages": self.packages} if self.packages else {}


def code_of(tasks: Iterable[str], logs: Path, *more: str) -> Code:
    """The checkout's code and the packages of these tasks. more: files of the checkout that belong to it in any case.

    Prints what is skipped.
    """
    names, skipped = code_files(ROOT, logs)
    code = Code({name: ROOT / name for name in sorted({*names, *more})}, skipped)
    for task in sorted(set(tasks)):
        add_task(code, task)
    for name in code.skipped:
        print(
            f"not kept with the run: {format_value(name)}, which git does not track and which is large or looks like a "
            "secret"
        )
    return code


def code_files(root: Path, logs: Path, max_untracked_bytes: int = MAX_UNTRACKED_BYTES) -> tuple[list[str], list[str]]:
    """The code's files relative to `root`, and skipped ones."""
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
        (skipped if name not in tracked and is_no_code(file, max_untracked_bytes) else files).append(name)
    return files, skipped


def is_no_code(file: Path, max_bytes: int = MAX_UNTRACKED_BYTES) -> bool:
    """Whether a file that git does not track is a secret or data."""
    secret = any(fnmatch(file.name.lower(), pattern) for pattern in SECRETS)
    return secret or (not file.is_symlink() and file.stat().st_size > max_bytes)


def add_task(code: Code, task: str) -> None:
    """Add the package of a task that is not of this checkout: the job may run where it is not found otherwise."""
    if "." not in task:
        return
    package, source = package_of(task)
    folder = Path(*package.split("."))
    if source == ROOT / folder and str(folder / "__init__.py") in code.files:
        return
    for name in sorted(walked_files(source)):
        file = source / name
        if is_no_code(file):
            code.skipped.append(str(folder / name))
        else:
            code.files[str(folder / name)] = file
    code.packages[package] = str(source)


def package_of(task: str) -> tuple[str, Path]:
    """The outermost package that a task's module is in: its name and its folder."""
    words = task.split(".")
    for count in range(1, len(words) + 1):
        name = ".".join(words[:count])
        spec = importlib.util.find_spec(name)
        if spec and spec.origin and spec.submodule_search_locations and Path(spec.origin).is_file():
            return name, Path(spec.origin).resolve().parent
    raise UserError(
        f"--task is {task!r}: its module is in no package with an __init__.py, so which files to keep with the run is "
        f"not known; add one to the folder {words[-2]!r}."
    )


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


def snapshot(files: Mapping[str, Path], store: Path, target: Path) -> None:
    """Link these files, {name: file}, into `target`; their contents are in `store`."""
    store.mkdir(parents=True, exist_ok=True)
    for name, source in files.items():
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            copy.symlink_to(os.readlink(source))
            continue
        try:
            content, executable = source.read_bytes(), os.access(source, os.X_OK)
        except OSError as error:
            raise UserError(f"{name!r} cannot be read ({error.strerror}), so the code cannot be kept with the run: "
                            "make it readable, or add it to .gitignore.") from error  # fmt: skip
        link(store_content(content, executable, store), copy)


def store_content(content: bytes, executable: bool, store: Path) -> Path:
    """The stored copy of this content; a damaged copy is replaced."""
    digest = hashlib.sha256(content).hexdigest()
    path = store / digest[:2] / (digest[2:] + (".x" if executable else ""))
    try:
        if hashlib.sha256(path.read_bytes()).hexdigest() == digest:
            return path
    except OSError:
        path.parent.mkdir(exist_ok=True)
    write_atomically(path, lambda file: file.write(content), sync=False, mode=0o555 if executable else 0o444)
    return path


# -- one run ---------------------------------------------------------------------------------------------------------


def absolute_paths(config: RunConfig, run: Path) -> list[str]:
    """Flags that make relative paths and the logs folder absolute, because a run starts in the snapshot."""
    words, values = [], values_of(config)
    for name, value in values.items():
        if name == "config" and value:
            words += ["--config", str(run / f"settings{Path(value).suffix}")]
        elif name == "logs_dir" or (isinstance(value, str) and is_relative_path(flag_named(name, values), value)):
            words += [f"--{name}", os.path.abspath(ROOT / value)]
    return words


def is_relative_path(flag: Flag, value: str) -> bool:
    """Whether the value is a path relative to the checkout. If the flag also takes a name, the path has to exist."""
    kinds = (flag.metavar or "").split("|")
    return "PATH" in kinds and not os.path.isabs(value) and (kinds == ["PATH"] or (ROOT / value).exists())


def make_capsule(request: SubmitRequest, config: RunConfig, write_script: Callable[[Path], str]) -> RunFolder:
    """Create the run's folder with all that is needed to run it, atomically."""
    logs = Path(config.logging.logs_dir)
    code = code_of([config.run.task], logs, request.script)
    staged: list[Path] = []

    def add(staging: Path) -> None:
        staged.append(staging)
        run = staging.with_name(staging.name.removeprefix("."))
        snapshot(code.files, logs / "code", staging / "code")
        if path := config.run.config:
            shutil.copyfile(ROOT / path, staging / f"settings{Path(path).suffix}")
        write_text(staging / "command.txt", request.typed + "\n")
        write_text(staging / "job_script.slurm", write_script(run))
        state = "submitting" if request.header else "here"
        write_json(staging / "submission.json", request.record(config, run) | code.record | {"state": state})

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
    code = code_of({row.config.run.task for row in new_rows}, logs)
    text, environment_lines = read_text(ROOT / DEFAULT_SCRIPT, "JOB_SCRIPT"), active_environment(ROOT)
    staging = None
    try:
        record = {"typed": typed, "header": header_name(header), "slurm": header.resources if header else []}
        tree = shared_tree(code.files, logs / "code")
        write_shared_files(sweep_dir, tree, record | code.record | {"script": DEFAULT_SCRIPT})
        (logs / "job_scripts").mkdir(exist_ok=True)
        (logs / "runs").mkdir(exist_ok=True)
        for row in rows_with_progress(new_rows):
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


def rows_with_progress(rows: Sequence[SweepRow]) -> Iterator[SweepRow]:
    with progress("keeping runs", "runs", len(rows)) as advance:
        for row in rows:
            yield row
            advance(1)


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


def shared_tree(files: Mapping[str, Path], store: Path) -> Path:
    """The snapshot of this code, found by its content, or created."""
    staging = store / f".tree-{os.getpid()}-{secrets.token_hex(3)}"
    try:
        snapshot(files, store, staging)
        digest = hashlib.sha256()
        for name in files:
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
    lineage: dict[str, Any] = {"parent": row.parent, "how": "sweep", "changes": row.varied, "sweep": sweep_dir.name}
    values = values_of(row.config)
    if values.get("match_flops") is not None:  # the run's settings will have what it chose
        lineage["asked"] = {name: values[name] for name in CHOSEN_BY_MATCH_FLOPS if name in values}
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


def write_or_link(path: Path, value: Any, files: dict[str, Path]) -> None:
    """Write JSON atomically, without a sync. files: {content: file} of earlier calls, so that equal content is
    stored once and linked."""
    temporary, text = path.with_name(f".{path.name}.{os.getpid()}.tmp"), json_text(value)
    if text in files:
        link(files[text], temporary)
    else:
        temporary.write_text(text)
    os.replace(temporary, path)
    files[text] = path


def link(source: Path, target: Path) -> None:
    """Make `target` a hard link to `source`, or a copy of it."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # a file system without links, or with too many to one file
        shutil.copy2(source, target, follow_symlinks=False)
