"""Many runs at once, each with all that is needed to run it: what they have in common is on the disk once."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shlex
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from config.record import to_dict
from core.errors import UserError
from core.files import write_json, write_text
from core.text import shown
from launch.capsule import own_files, snapshot
from launch.cluster import USUAL, header_word
from launch.execute import ROOT, absolute_paths
from launch.rehearse import active_environment
from launch.script import Header, check_syntax, job_script, read_text
from launch.sweep_rows import Planned
from runs.folder import code_state, environment, new_run_id

COMMON = ("code", "code.json", "code.diff", "environment.json", "submission.json")


def make_capsules(rows: Sequence[Planned], header: Header | None, logs: Path, desk: Path, typed: list[str]) -> None:
    """The folder of every row that is new; each is complete or not there. desk: the sweep's own folder."""
    fresh = [row for row in rows if row.is_new]
    if not fresh:
        return
    names, left_out = own_files(ROOT, logs)
    for name in left_out:
        print(
            f"not kept with the runs: {shown(name)}, which git does not track and which is large or looks like a secret"
        )
    text, entering = read_text(ROOT / USUAL, "JOB_SCRIPT"), active_environment(ROOT)
    staged = None
    try:
        order = {"typed": typed, "header": header_word(header), "slurm": header.resources if header else []}
        tree = shared_tree(names, logs / "code")
        write_common(desk, tree, order | {"script": USUAL})
        (logs / "job_scripts").mkdir(exist_ok=True)
        (logs / "runs").mkdir(exist_ok=True)
        for row in with_bar(fresh):
            run = logs / "runs" / new_run_id(row.name)
            staged = run.with_name(f".{run.name}")
            (staged / "checkpoints").mkdir(parents=True)
            script = job_script(header, USUAL, text, row.words + absolute_paths(row.config, run), run, entering)
            if row is fresh[0]:  # the others are the same but for words in quotes
                check_syntax(script, USUAL)
            fill(staged, row, script, desk)
            staged.rename(run)
            row.run = run
            link(run / "job_script.slurm", logs / "job_scripts" / f"{time.strftime('%Y%m%d-%H%M%S')}_{run.name}.slurm")
        os.sync()  # a thousand folders one by one would take minutes
    except OSError as error:
        raise UserError(
            f"--logs_dir is {str(logs)!r}: cannot write there ({error.strerror}): nothing was submitted; "
            "choose a folder you can write to, or free some space."
        ) from None
    finally:
        if staged is not None:
            shutil.rmtree(staged, ignore_errors=True)


def with_bar(rows: Sequence[Planned]) -> Iterable[Planned]:
    """On a terminal, and when it takes its time."""
    console = Console(stderr=True)
    return track(
        rows, "keeping runs", console=console, transient=True, disable=not console.is_terminal or len(rows) < 50
    )


def new_desk(logs: Path, name: str) -> Path:
    """A folder for what the rows of one sweep have in common, by its name and time."""
    desk = logs / "sweeps" / new_run_id(name)
    try:
        desk.mkdir(parents=True)
    except OSError as error:
        raise UserError(
            f"--logs_dir is {str(logs)!r}: cannot write there ({error.strerror}): choose a folder you can write to."
        ) from None
    return desk


def shared_tree(names: Sequence[str], store: Path) -> Path:
    """The one snapshot of this code, by its content; made where it is missing."""
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


def write_common(desk: Path, tree: Path, order: dict[str, Any]) -> None:
    """What is the same in all runs, to be linked from each: a new file costs ten times as much as a link."""
    code, diff = code_state()
    write_json(desk / "code.json", code)
    write_text(desk / "code.diff", diff)
    write_json(desk / "environment.json", environment())
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    write_json(desk / "submission.json", order | {"state": "submitting", "time": now})
    (desk / "code").symlink_to(os.path.relpath(tree, desk))  # as far from a run as from here


def fill(staged: Path, row: Planned, script: str, desk: Path) -> None:
    """All files of one run."""
    lineage = {"parent": row.parent, "how": "sweep", "changes": row.differs, "sweep": desk.name}
    for name in COMMON:
        link(desk / name, staged / name)
    (staged / "config.json").write_text(as_json(to_dict(row.config)))
    (staged / "lineage.json").write_text(as_json(lineage))
    (staged / "command.txt").write_text(shlex.join(["python", "train_model.py", *row.words]) + "\n")
    (staged / "job_script.slurm").write_text(script)
    if path := row.config.run.config:
        shutil.copyfile(ROOT / path, staged / f"settings{Path(path).suffix}")


def as_json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def write_quickly(path: Path, value: Any, written: dict[str, Path]) -> None:
    """Whole or not at all, and in no hurry to be on the disk. written: {content: file} of others of the same kind, so
    that the same content is there once."""
    temporary, text = path.with_name(f".{path.name}.{os.getpid()}.tmp"), as_json(value)
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
