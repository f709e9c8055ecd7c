"""`python -m runs tag`, `archive` and `rm`: mark runs, hide them, delete them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from core.commands import CommandParser
from core.errors import UserError
from core.files import write_json
from core.text import format_value, join_words
from runs.run import RUN_HELP, Run, all_runs, find_run

MAX_TAG = 60  # letters


def tag(argv: list[str]) -> int:
    """`python -m runs tag`"""
    parser = CommandParser("python -m runs tag", "Mark a run; python -m runs list --where tags=TAG finds it.")
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("tags", nargs="*", metavar="TAG")
    parser.add_argument("--remove", nargs="+", default=[], metavar="TAG", help="take these away")
    options = parser.parse_intermixed_args(argv)
    run = find_run(Path(options.logs_dir), options.run)
    for word in options.tags:
        if not word.isprintable() or not word.strip() or "," in word or len(word) > MAX_TAG:
            raise UserError(f"TAG is {format_value(word)}: give up to {MAX_TAG} letters on one line, without a comma.")
    for word in options.remove:
        if word not in run.tags:
            there = f"it has {join_words(list(map(format_value, run.tags)), 'and')}" if run.tags else "it has no tags"
            raise UserError(f"--remove is {format_value(word)}: {format_value(run.run_id)} has no such tag; {there}.")
    tags = [word for word in dict.fromkeys([*run.tags, *options.tags]) if word not in options.remove]
    if tags != run.tags:
        apply_change(run, lambda: write_json(run.path / "tags.json", tags))
    print(f"{format_value(run.run_id)}: {', '.join(map(format_value, tags)) or 'no tags'}")
    return 0


def archive(argv: list[str]) -> int:
    """`python -m runs archive`"""
    parser = CommandParser("python -m runs archive", "Hide runs from list and best; nothing is deleted.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--undo", action="store_true", help="bring them back")
    options = parser.parse_intermixed_args(argv)
    for run in find_runs(options.logs_dir, options.runs):
        mark = run.path / "archived"
        apply_change(run, partial(mark.unlink, missing_ok=True) if options.undo else mark.touch)
        print(f"{format_value(run.run_id)} is {'back' if options.undo else 'archived: --undo brings it back'}.")
    return 0


def remove(argv: list[str]) -> int:
    """`python -m runs rm`"""
    parser = CommandParser("python -m runs rm", "Delete runs with all their files. Asks first.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    options = parser.parse_intermixed_args(argv)
    runs = find_runs(options.logs_dir, options.runs)
    for name in options.runs:
        check_unambiguous(name, Path(options.logs_dir))
    for run in runs:
        check_removable(run, Path(options.logs_dir))
    if not options.yes and not confirm_deletion(runs):
        print("Nothing was deleted.")
        return 1
    for run in runs:
        check_removable(run, Path(options.logs_dir))  # it may have begun while nobody answered
        apply_change(run, partial(delete, run.path))
        print(f"{format_value(run.run_id)} is deleted.")
    return 0


def find_runs(logs_dir: str, names: list[str]) -> list[Run]:
    """The runs of these names, each once."""
    runs = [find_run(Path(logs_dir), name) for name in names]
    return list({run.run_id: run for run in runs}.values())


def check_unambiguous(name: str, logs: Path) -> None:
    """Refuse a name that several runs have: other commands take the newest, but a deletion must not guess."""
    ids = [format_value(run.run_id) for run in all_runs(logs) if run.name == name != run.run_id]
    if len(ids) > 1:
        raise UserError(
            f"RUN is {format_value(name)}: {len(ids)} runs have that name; give the id of the one that is meant "
            f"({', '.join(ids[:5])}); nothing was deleted."
        )


def check_removable(run: Run, logs: Path) -> None:
    """Refuse a run of another folder, and one that is running."""
    if run.path.absolute().parent.resolve() != (logs / "runs").resolve():
        raise UserError(
            f"{format_value(str(run.path))} does not lie in {format_value(str(logs / 'runs'))}: "
            "give --logs_dir, or delete it yourself; nothing was deleted."
        )
    if run.is_held or run.state in ("running", "silent"):
        raise UserError(f"{format_value(run.run_id)} is running: python -m launch cancel ends it; nothing was deleted.")


def confirm_deletion(runs: list[Run]) -> bool:
    """Ask on the terminal whether to delete these runs; an error where there is none."""
    if not sys.stdin.isatty():
        raise UserError(
            "rm asks before it deletes, and there is no terminal to ask in: add --yes; nothing was deleted."
        )
    for run in runs:
        print(f"  {format_value(run.run_id)}: {run.state}, {size_of(run.path) / 1e6:,.1f} MB")
    many = "this run" if len(runs) == 1 else f"these {len(runs)} runs"
    try:
        return input(f"Delete {many} permanently? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def size_of(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total


def delete(path: Path) -> None:
    """Rename the folder, then delete it: a folder that is half deleted is then never taken for a run."""
    if path.is_symlink():
        path.unlink()
        return
    aside = path.with_name(f".{path.name}.deleted")
    path.rename(aside)
    shutil.rmtree(aside)


def apply_change(run: Run, action: Callable[[], object]) -> None:
    """Change a run folder; a UserError where it is not writable."""
    try:
        action()
    except OSError as error:
        raise UserError(
            f"{format_value(str(run.path))} cannot be changed ({error.strerror}): "
            "it may be another person's run; ask its owner."
        ) from None
