"""`python -m runs rerun RUN`: the same settings again, as a new run, with changes if there are any."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from config import parse_command_line
from config.config_file import upgrade
from config.flags import SettingsError
from config.parser import parse_mapping
from config.record import PER_RUN_FLAGS, changed_problems, own_values, plain_value, to_words, values_of
from config.task_flags import FlagSet, all_flags, choose_flags
from core.commands import CommandParser, read_changes
from core.environment import JOB_RUN_DIR, LINEAGE, RUN_DIR
from core.errors import UserError
from core.text import format_value, join_words
from runs.folder import code_state
from runs.run import RUN_HELP, Run, find_run

ROOT = Path(__file__).resolve().parent.parent


def rerun(argv: list[str]) -> int:
    """`python -m runs rerun`"""
    parser = CommandParser(
        "python -m runs rerun", "Train again here with a run's settings, as a new run that names it as its parent."
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="FLAG=VALUE", help="settings to change"
    )
    parser.add_argument("--dry_run", action="store_true", help="check it and print the command; start nothing")
    options = parser.parse_args(argv)
    run = find_run(Path(options.logs_dir), options.run)
    changes = read_set(options.set, flags_of_run(run))
    words, left_out = command_of(run, changes, options.logs_dir)
    for name in left_out:
        print(f"note: {format_value(name)} of the record is left out: this version has no such flag.", file=sys.stderr)
    if warning := code_warning(run):
        print(f"note: {warning}", file=sys.stderr)
    command = [sys.executable, str(ROOT / "train_model.py"), *words]
    print(shlex.join(["python", "train_model.py", *words]), flush=True)
    if options.dry_run:
        return 0
    environment = {name: value for name, value in os.environ.items() if name not in (RUN_DIR, JOB_RUN_DIR)}
    lineage = {"parent": run.run_id, "how": "rerun", "changes": changes}
    os.execve(command[0], command, environment | {LINEAGE: json.dumps(lineage)})


def flags_of_run(run: Run) -> FlagSet:
    """The flags of the run's task."""
    return choose_flags(run.settings)[1]


def read_set(words: Sequence[str], flags: FlagSet) -> dict[str, Any]:
    """What --set changes, {flag: plain value}, each checked as the flag is."""
    changes: dict[str, Any] = {}
    for name, value in read_changes(words).items():
        if name in ("config", "resume_training_ckpt"):
            raise UserError(
                f"--set is {format_value(f'{name}={value}')}: a new run starts at step 0 with its parent's "
                "settings; leave it out."
            )
        flag = flags.names.get(name)
        changes[name] = value
        if flag and flag.kind is bool and value.lower() in ("true", "false"):
            changes[name] = value.lower() == "true"
        elif flag and flag.optional and value.lower() in ("none", "null"):
            changes[name] = None
        elif flag and flag.kind is tuple:
            changes[name] = value.split()
    problems: list[str] = []
    parsed = parse_mapping(changes, "--set", problems, flags)
    if problems:
        raise SettingsError(problems)
    return {name: plain_value(value) for name, value in parsed.values.items()}


def command_of(run: Run, changes: Mapping[str, Any], logs_dir: str) -> tuple[list[str], list[str]]:
    """The flags that give this run's settings with `changes`, and the names of settings that no flag has any more."""
    if not run.settings:
        raise UserError(
            f"{format_value(run.run_id)} cannot be repeated: its config.json is missing or cannot be read; "
            "give another RUN."
        )
    tree, changed = upgrade(run.read("config.json"))
    if old := {name: why for name, why in changed.items() if name not in changes}:
        raise SettingsError(changed_problems(old, format_value(run.run_id)))
    settings = {name: value for group in tree.values() if isinstance(group, dict) for name, value in group.items()}
    flags = choose_flags(settings)[1].flags
    recorded = {name: value for name, value in settings.items() if name in flags and name not in PER_RUN_FLAGS}
    if recorded.get("is_random_seed") and "seed" not in changes:
        recorded["is_random_seed"] = False  # the seed that was drawn is in the record
    origin = f"the record of {run.run_id}"
    values = own_values(recorded, origin) | {"logs_dir": logs_dir} | dict(changes)
    words = to_words(values)
    parsed = values_of(parse_command_line(words))
    if unset := [name for name, value in values.items() if value is None and parsed[name] is not None]:
        raise UserError(
            f"{format_value(run.run_id)} cannot be repeated by a command line: {join_words(unset, 'and')} is "
            "null there, and only "
            f"a file can say so; --set {unset[0]}=VALUE gives it another value."
        )
    return words, [name for name in run.settings if name not in flags and name not in all_flags()]


def code_warning(run: Run) -> str | None:
    """A warning where the code here is not that of the run; None where it is."""
    then, (now, _) = run.read("code.json"), code_state()
    snapshot = run.path / "code"
    where = f"; its own lies in {format_value(str(snapshot))}" if snapshot.is_dir() else ""
    commits = [str(state.get("commit") or "unknown")[:10] for state in (then, now)]
    if commits[0] != commits[1]:
        return f"the run was made with commit {commits[0]} and this is {commits[1]}, so results may differ{where}."
    if then.get("dirty") or now["dirty"]:
        return f"there are or were uncommitted changes on commit {commits[1]}, so results may differ{where}."
    return None
