"""The rows of a sweep: judged by the real parser, named by what differs, and compared with the runs there are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config import RunConfig, SettingsError, parse_command_line
from config.flags import FLAGS
from config.record import values_of
from core.text import shown
from launch.execute import ROOT, is_relative_path
from launch.slurm import LIVE, ask_for_jobs, standing
from launch.sweep_file import Row, SweepFile, by_row, words_of
from runs.reading import Run, all_runs

BASELINE = "baseline_transformer"
TWIN = "-transformer++"
LONGEST_NAME = 60  # characters, as many as a run's folder takes of it
# Where a run is kept and shown says nothing about what it computes.
ELSEWHERE = (
    *("run_name", "logs_dir", "config", "resume_training_ckpt", "console_log_filename", "notify"),
    *("no_wandb", "wandb_offline", "wandb_entity", "wandb_project", "wandb_tags"),
)
QUEUED = "in the queue"
LEFT = ("waiting", "lost", "interrupted", "killed", "stopped", "cancelled", "not submitted", "prepared")


@dataclass
class Planned:
    """One row. differs: the flags that tell it from the others. happens: what is done about it, in words. run: its
    folder, once there is one; `is_new` says whether it has to be made. parent: the run that it repeats."""

    number: int
    name: str
    words: list[str]
    config: RunConfig
    differs: Row
    happens: str = "new"
    run: Path | None = None
    parent: str | None = None
    is_new: bool = True
    is_submitted: bool = True
    identity: tuple[Any, ...] = field(default=(), repr=False)


def plan(sweep: SweepFile, logs: Path) -> list[Planned]:
    """All rows, judged; the problems of all of them are one error."""
    rows = [*sweep.rows, *twins(sweep.rows)] if sweep.twin else sweep.rows
    differing = differing_flags(rows)
    names = run_names(sweep.name, rows, differing)
    planned, problems = [], []
    with chdir(ROOT):  # a path in a row is seen from there, as it is at every other door
        for number, (row, name) in enumerate(zip(rows, names, strict=True), 1):
            wrong: list[str] = []
            words = words_of(with_absolute_paths(row) | {"run_name": name}, wrong)
            try:
                config = parse_command_line([*words, f"--logs_dir={logs}"])
            except SettingsError as error:
                wrong += error.args[0]
            if wrong:
                problems += [(number, problem) for problem in wrong]
                continue
            differs = {flag: row[flag] for flag in differing if flag in row}
            planned.append(Planned(number, name, words, config, differs, identity=identity(values_of(config))))
    if problems:
        raise SettingsError(by_row(problems))
    return planned


def twins(rows: Iterable[Row]) -> list[Row]:
    """Each EBT as a Transformer++: the same flags without those that only an energy uses."""
    return [
        {name: value for name, value in row.items() if BASELINE in FLAGS[name].needs.get("model_name", (BASELINE,))}
        | {"model_name": BASELINE}
        for row in rows
        if row.get("model_name", "ebt") == "ebt"
    ]


def with_absolute_paths(row: Row) -> Row:
    return {
        name: os.path.abspath(value) if isinstance(value, str) and value and is_path(name, value) else value
        for name, value in row.items()
    }


def is_path(name: str, value: str) -> bool:
    return name == "config" or is_relative_path(name, value)


def differing_flags(rows: Sequence[Row]) -> list[str]:
    """The flags that are not the same in all rows, in the order in which they are written."""
    flags = dict.fromkeys(name for row in rows for name in row if name != "run_name")
    return [name for name in flags if any(row.get(name) != rows[0].get(name) for row in rows)]


def run_names(sweep: str, rows: Sequence[Row], differing: Sequence[str]) -> list[str]:
    """A name for each row, no two the same: its own run_name or the sweep's name, and what differs."""
    own = [row.get("run_name") for row in rows]
    if len(set(map(str, own))) == len(rows) > 1:
        return [str(name) for name in own]
    names: list[str] = []
    taken: set[str] = set()
    for number, row in enumerate(rows, 1):
        begin = str(row.get("run_name") or sweep)
        is_twin = row.get("model_name") == BASELINE and "model_name" in differing
        told = [flag for flag in differing if flag in row and not (is_twin and flag == "model_name")]
        parts = {flag: plain(shown(row[flag])) for flag in told}
        end = TWIN if is_twin else ""
        name = "-".join([begin, *(f"{flag}={value}" for flag, value in parts.items())]) + end
        if len(name) > LONGEST_NAME:
            name = "-".join([begin, *(f"{initials(flag)}={value}" for flag, value in parts.items())]) + end
        if len(name) > LONGEST_NAME or name in taken:
            end = f"-{number}{end}"
            name = name[: LONGEST_NAME - len(end)] + end
        taken.add(name)
        names.append(name)
    return names


def plain(text: str) -> str:
    """What can stand in a name without a thought."""
    return re.sub(r"[^\w.+-]+", "-", text, flags=re.ASCII).strip("-") or "x"


def initials(flag: str) -> str:
    return "".join(word[0] for word in flag.split("_") if word)


def identity(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a run computes, whatever it is called: the values of all flags that have a say in it."""
    model, drawn = values.get("model_name"), values.get("is_random_seed")
    kept = []
    for name, flag in FLAGS.items():
        idle = model not in flag.needs.get("model_name", (model,)) or (drawn and name == "seed")
        value = None if name in ELSEWHERE or idle else values.get(name, flag.default)
        kept.append(tuple(map(str, value)) if isinstance(value, (list, tuple)) else value)
    return tuple(kept)


def compare_with_runs(rows: Sequence[Planned], logs: Path, queued: set[Path]) -> None:
    """Settle what happens to each row: rows that are done or under way are left alone, others go on or begin.

    queued: runs that wait in the queue of this machine.
    """
    wanted = {row.identity for row in rows}
    known: dict[tuple[Any, ...], list[Run]] = {}
    for run in all_runs(logs):
        try:
            key = identity(run.settings)
            if key in wanted:
                known.setdefault(key, []).append(run)
        except TypeError:  # a record with values that no flag can have
            continue
    answer = ask_for_jobs([run for runs in known.values() for run in runs])
    first: dict[tuple[Any, ...], int] = {}
    for row in rows:
        if row.identity in first:
            row.happens, row.is_submitted = f"as row {first[row.identity]}", False
            continue
        first[row.identity] = row.number
        runs = known.get(row.identity, [])
        settle(row, [(run, QUEUED if run.path in queued else standing(run, answer).state) for run in runs])


def settle(row: Planned, states: Sequence[tuple[Run, str]]) -> None:
    """By the runs of these settings, the newest first, and the state of each."""
    for run, state in states:
        if state == "finished":
            row.happens, row.run, row.is_submitted = "done", run.path, False
            return
    for run, state in states:
        forgotten = state == "waiting" and run.job_name is None  # its submission was cut short
        if (state in (*LIVE, QUEUED) and not forgotten) or (state == "prepared" and run.is_held):
            row.happens, row.run, row.is_submitted = state, run.path, False
            return
    for run, state in states:
        if state in LEFT and is_kept(run):
            row.happens, row.run, row.is_new = f"goes on: {state}", run.path, False
            return
    if states:
        run, state = states[0]
        row.happens, row.parent = f"again: {state}", run.run_id


def is_kept(run: Run) -> bool:
    """Whether its folder has all that is needed to go on in it."""
    return (run.path / "job_script.slurm").is_file() and (run.path / "code").is_dir() and os.access(run.path, os.W_OK)
