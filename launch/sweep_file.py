"""Reads the file of a sweep, YAML or CSV, into rows of flags; nothing in it is ever run."""

from __future__ import annotations

import csv
import difflib
import io
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.config_file import load_yaml
from config.flags import Flag, SettingsError, allowed_text
from config.names import unknown_name
from config.task import find_task
from config.task_flags import all_names, task_flags
from core.errors import UserError
from core.text import format_value

if TYPE_CHECKING:
    from launch.study_file import Study

KEYS = ("base", "grid", "rows", "twin", "header")
ONLY_OF_STUDY = ("contestants", "tune", "confirm")  # keys by which a file is a study
DEEPEST_OF_STUDY = 6  # contestants, name, rows, row, flag, item of a list
MAX_ROWS = 20_000  # more are a mistake
EXAMPLE = "write `grid:` with a list for each flag, or `rows:` with a list of flags for each run"
SWEEP_FLAGS = {  # flags that the sweep sets for all rows
    "logs_dir": "give --logs_dir to the sweep itself",
    "resume_training_ckpt": "apply the sweep again, and interrupted rows resume",
}

Row = dict[str, Any]  # {flag: value}, by the flag's canonical name


@dataclass(frozen=True)
class SweepFile:
    """name: the beginning of the runs' names. rows: one per run. twin: add the baseline of each.

    header: the --header of this file where none is given. study: where the file is one; its rows come in stages.
    """

    name: str
    rows: list[Row]
    twin: bool = False
    header: str | None = None
    study: Study | None = None


def read_sweep(path: Path) -> SweepFile:
    """The rows of a file; all problems of its form are one error."""
    problems: list[str] = []
    text = read_file(path, "give a YAML or CSV file", "give a YAML or CSV file")
    if path.suffix.lower() == ".csv":
        sweep = SweepFile(path.stem, read_table(text, problems))
    else:
        sweep = read_yaml(path, text, problems)
    if problems:
        raise SettingsError(problems)
    if not sweep.rows and sweep.study is None:
        raise UserError(f"FILE is {str(path)!r}: it has no rows; {EXAMPLE}.")
    return sweep


def read_file(path: Path, if_missing: str, if_binary: str) -> str:
    """The text of FILE, an argument of a command. if_missing, if_binary: what to do then, for the message."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"FILE is {str(path)!r}: there is no such file; {if_missing}.") from None
    except UnicodeError:
        raise UserError(f"FILE is {str(path)!r}: it is not a UTF-8 text; {if_binary}.") from None
    except OSError as error:
        raise UserError(
            f"FILE is {str(path)!r}: it cannot be read ({error.strerror}); check the path and its permissions."
        ) from None


def read_table(text: str, problems: list[str]) -> list[Row]:
    """The rows of a CSV file, whose first line names flags; an empty cell leaves its flag out."""
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        problems.append(f"it is not valid CSV ({error}): correct it.")
        return []
    lines = [line for line in lines if any(cell.strip() for cell in line)]
    if not lines:
        return []
    head, *body = [[cell.strip() for cell in line] for line in lines]
    for name in dict.fromkeys(head):
        if head.count(name) > 1:
            problems.append(f"column {format_value(name)} is there twice: keep one.")
    rows = []
    for number, cells in enumerate(body, 1):
        if len(cells) > len(head):
            problems.append(f"row {number} has {len(cells)} cells, and there are {len(head)} columns: correct it.")
        rows.append({name: cell for name, cell in zip(head, cells, strict=False) if cell})
    return canonical_names(rows, flag_names(rows), problems)


def read_yaml(path: Path, text: str, problems: list[str]) -> SweepFile:
    repeated: list[str] = []
    is_deep = any(key in text for key in ONLY_OF_STUDY)
    try:
        tree = load_yaml(text, repeated, DEEPEST_OF_STUDY) if is_deep else load_yaml(text, repeated)
    except RecursionError:
        raise UserError(f"FILE is {str(path)!r}: it is nested too deeply; {EXAMPLE}.") from None
    except ValueError as problem:
        raise UserError(f"FILE is {str(path)!r}: {problem}.") from None
    problems += [f"{key} is given twice: keep one." for key in repeated]
    if not isinstance(tree, dict):
        raise UserError(f"FILE is {str(path)!r}: it is no mapping; {EXAMPLE}.")
    header = tree.get("header")
    if header is not None and not (isinstance(header, str) and header):
        problems.append(f"header is {format_value(header)}: name a file of job_scripts/headers/.")
        header = None
    if any(key in tree for key in ONLY_OF_STUDY):
        from launch.study_file import read_study  # here, since that module imports this one

        return SweepFile(path.stem, [], header=header, study=read_study(path.stem, tree, problems))
    for key in tree.keys() - set(KEYS):
        near = difflib.get_close_matches(key, KEYS, 1)
        what = f"did you mean {near[0]}?" if near else "flags go under base, grid or rows."
        problems.append(f"{format_value(key)} is no part of a sweep: {what}")
    base = mapping_of(tree.get("base"), "base", problems)
    grid = mapping_of(tree.get("grid"), "grid", problems)
    rows = tree.get("rows")
    if rows is not None and not isinstance(rows, list):
        problems.append("rows is no list: write each run as `- flag: value`.")
        rows = None
    rows = [mapping_of(row, f"row {number}", problems) for number, row in enumerate(rows or [{}], 1)]
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            problems.append(f"{format_value(name)} under grid is {format_value(values)}: give a list, such as [1, 2].")
    twin = tree.get("twin", False)
    if not isinstance(twin, bool):
        problems.append(f"twin is {format_value(twin)}: write true or false.")
    if problems or not (tree.get("grid") or tree.get("rows")):
        return SweepFile(path.stem, [])
    count = len(rows) * math.prod(len(values) for values in grid.values())
    if count > MAX_ROWS:
        raise UserError(f"FILE is {str(path)!r}: it makes {count:,} rows; a sweep has at most {MAX_ROWS:,}.")
    names = flag_names([base, *rows, *({"task": task} for task in grid.get("task", ()))])
    (base,), rows, (grid,) = (canonical_names(part, names, problems) for part in ([base], rows, [grid]))
    for name in grid:
        if numbers := [number for number, row in enumerate(rows, 1) if name in row]:
            problems.append(f"{name} is under grid and in row {numbers[0]}: keep one.")
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return SweepFile(path.stem, [base | row | cell for row in rows for cell in combinations], bool(twin), header)


def mapping_of(value: Any, what: str, problems: list[str]) -> dict[str, Any]:
    if value is None or isinstance(value, dict):
        return value or {}
    problems.append(f"{what} is {format_value(value)}: write it as `flag: value`.")
    return {}


def flag_names(rows: Iterable[Mapping[str, Any]]) -> dict[str, Flag]:
    """Every flag that rows may have, by any spelling: with those of tasks that are no modules of tasks/."""
    tasks = {str(row["task"]) for row in rows if "." in str(row.get("task"))}
    return {
        name: flag for task in sorted(tasks) for name, flag in task_flags(find_task(task)).names.items()
    } | all_names()


def canonical_names(rows: Sequence[Mapping[str, Any]], names: Mapping[str, Flag], problems: list[str]) -> list[Row]:
    """The rows with canonical flag names; an unknown flag is reported once. names: every flag by any spelling."""
    options = {f"--{name}": flag for name, flag in names.items()}
    canonical = []
    reported: set[str] = set()
    for row in rows:
        renamed: Row = {}
        for spelling, value in row.items():
            name = spelling.strip().removeprefix("--")
            flag = names.get(name)
            if flag is None:
                problem = unknown_name(f"--{name}", options, format_value(f"--{name}"), set())
            elif flag.name in SWEEP_FLAGS:
                problem = f"--{flag.name} is not for a row: {SWEEP_FLAGS[flag.name]}."
            elif flag.name in renamed:
                problem = f"--{flag.name} is given twice, in two spellings: keep one."
            else:
                renamed[flag.name] = value
                continue
            if problem not in reported:
                problems.append(problem)
            reported.add(problem)
        canonical.append(renamed)
    return canonical


def flag_words(row: Row, problems: list[str]) -> list[str]:
    """The row as arguments of train_model.py; as `--flag=value`, so that a value is never taken for a flag."""
    words: list[str] = []
    names = flag_names([row])
    for name, value in row.items():
        flag = names[name]
        if value is None:
            continue
        if flag.kind is bool:
            switch = {"true": True, "false": False}.get(str(value).lower())
            if switch is None:
                problems.append(f"--{name} is {value!r}: write true or false.")
            else:
                words.append(flag.spelled(switch))
        elif flag.kind is tuple:
            items = value.split() if isinstance(value, str) else value
            if not isinstance(items, list) or not all(isinstance(item, str) and item[:2] != "--" for item in items):
                problems.append(f"--{name} is {format_value(value)}: give a list of texts.")
            elif items:
                words += [f"--{name}={items[0]}", *items[1:]]
        elif isinstance(value, (dict, list, bool)):
            where = "; several values to try go under grid" if isinstance(value, list) else ""
            problems.append(f"--{name} is {format_value(value)}: {allowed_text(flag)}{where}.")
        else:
            words.append(f"--{name}={value}")
    return words


def group_by_row(problems: Iterable[tuple[int, str]]) -> list[str]:
    """One line per problem, with the numbers of its rows."""
    numbers: dict[str, list[int]] = {}
    for number, problem in problems:
        numbers.setdefault(problem, []).append(number)
    return [f"{spans(rows)}: {problem}" for problem, rows in numbers.items()]


def spans(numbers: Sequence[int]) -> str:
    """row 3; rows 1, 2, 5; rows 1 to 1000"""
    parts: list[str] = []
    for _, pairs in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        span = [number for _, number in pairs]  # consecutive numbers
        parts += [f"{span[0]} to {span[-1]}"] if len(span) > 2 else [str(number) for number in span]
    return ("row " if len(numbers) == 1 else "rows ") + ", ".join(parts)
