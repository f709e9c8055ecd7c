"""A study in the file of a sweep: contestants, what of each is tuned, and how the winners are confirmed.

base: {...}                 flags of all
contestants:                each has flags of its own, and a grid or rows of settings to choose from
  EBT: {flags: {...}, grid: {...}}
tune: {by: valid_loss, seeds: [1]}
confirm: {seeds: [11, 12, 13], measures: [test_loss]}
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.task import SPLITS
from core.errors import UserError
from core.text import format_value, join_words, plural
from launch.sweep_file import MAX_ROWS, Row, canonical_names, flag_names, mapping_of

STUDY_KEYS = ("base", "contestants", "tune", "confirm", "header")
CONTESTANT_KEYS = ("flags", "grid", "rows")
TUNE_KEYS = ("by", "seeds")
CONFIRM_KEYS = ("seeds", "measures")
OWN_FLAGS = {  # flags that a study sets itself
    "seed": "tune and confirm have `seeds`",
    "is_random_seed": "tune and confirm have `seeds`",
    "run_name": "a study names its runs",
    "run_testing_after_training": "the runs that confirm are tested, those of tuning are not",
}
EXAMPLE = "write `EBT: {flags: {model_name: ebt}, grid: {peak_learning_rate: [1e-3, 2e-3]}}`"


@dataclass(frozen=True)
class Contestant:
    """settings: all flags of each setting that is tried, but the seed."""

    name: str
    settings: list[Row]

    @property
    def tuned(self) -> list[str]:
        """The flags that differ between its settings."""
        flags = dict.fromkeys(name for setting in self.settings for name in setting)
        return [name for name in flags if any(row.get(name) != self.settings[0].get(name) for row in self.settings)]

    def chosen_values(self, setting: int) -> Row:
        """What tells a setting from its others."""
        return {name: self.settings[setting].get(name) for name in self.tuned}

    def label(self, setting: int) -> str:
        """A setting in a table: peak_learning_rate 1e-3, loops_max 4"""
        values = self.chosen_values(setting)
        return ", ".join(f"{name} {format_value(value)}" for name, value in values.items()) or "as given"


@dataclass(frozen=True)
class Study:
    """by: the column that a setting is chosen by, empty where each contestant has one setting only."""

    name: str
    contestants: list[Contestant]
    by: str
    tune_seeds: list[int]
    confirm_seeds: list[int]
    measures: list[str]

    @property
    def budget(self) -> int:
        """The number of settings of each contestant."""
        return len(self.contestants[0].settings)

    def as_file(self) -> dict[str, Any]:
        """The same study as the content of a file."""
        tree: dict[str, Any] = {"contestants": {one.name: {"rows": one.settings} for one in self.contestants}}
        if self.by:
            tree["tune"] = {"by": self.by, "seeds": self.tune_seeds}
        return tree | {"confirm": {"seeds": self.confirm_seeds, "measures": self.measures}}


def read_study(name: str, tree: Mapping[str, Any], problems: list[str]) -> Study:
    """The study of a file; what is wrong with its form is added to `problems`."""
    unknown_keys(tree, STUDY_KEYS, "a study", problems)
    base = mapping_of(tree.get("base"), "base", problems)
    entries = tree.get("contestants")
    if not isinstance(entries, dict) or not entries:
        problems.append(f"contestants is {format_value(entries)}: name each, {EXAMPLE}.")
        entries = {}
    bodies = {str(title): read_body(str(title), body, problems) for title, body in entries.items()}
    tune, confirm = (mapping_of(tree.get(key), key, problems) for key in ("tune", "confirm"))
    unknown_keys(tune, TUNE_KEYS, "tune", problems)
    unknown_keys(confirm, CONFIRM_KEYS, "confirm", problems)
    if not confirm and not isinstance(tree.get("confirm"), list | str):
        problems.append("confirm is missing: write `confirm: {seeds: [11, 12, 13], measures: [test_loss]}`.")
    by = read_by(tune, problems) if "tune" in tree else ""
    tune_seeds = read_seeds(tune, "tune", problems) if "tune" in tree else []
    confirm_seeds = read_seeds(confirm, "confirm", problems) if confirm else []
    if again := sorted(set(tune_seeds) & set(confirm_seeds)):
        seeds = join_words(list(map(str, again)), "and")
        problems.append(f"confirm.seeds has {seeds}, which tuning uses: give fresh ones, such as 11.")
    measures = read_measures(confirm, problems) if confirm else []
    if problems:
        return Study(name, [], by, tune_seeds, confirm_seeds, measures)
    contestants = complete_settings(base, bodies, problems)
    if not problems:
        check_budgets(contestants, by, problems)
    return Study(name, contestants, by, tune_seeds, confirm_seeds, measures)


def unknown_keys(tree: Mapping[str, Any], keys: Sequence[str], what: str, problems: list[str]) -> None:
    for key in [key for key in tree if key not in keys]:
        near = difflib.get_close_matches(str(key), keys, 1)
        advice = f"did you mean {near[0]}?" if near else f"it has {join_words(list(keys), 'and')}."
        problems.append(f"{format_value(key)} is no part of {what}: {advice}")


def read_body(title: str, body: Any, problems: list[str]) -> dict[str, Any]:
    """{flags, grid, rows} of one contestant."""
    if not isinstance(body, dict):
        problems.append(f"contestant {format_value(title)} is {format_value(body)}: {EXAMPLE}.")
        return {}
    name = f"contestant {format_value(title)}"
    unknown_keys(body, CONTESTANT_KEYS, name, problems)
    flags, grid = (mapping_of(body.get(key), f"{key} of {name}", problems) for key in ("flags", "grid"))
    for flag, values in grid.items():
        if not isinstance(values, list) or not values:
            problems.append(f"{format_value(flag)} in grid of {name} is {format_value(values)}: give a list.")
    rows = body.get("rows")
    if rows is not None and (not isinstance(rows, list) or not rows):
        problems.append(f"rows of {name} is {format_value(rows)}: write each setting as `- flag: value`.")
        rows = None
    rows = [mapping_of(row, f"row {number} of {name}", problems) for number, row in enumerate(rows or [{}], 1)]
    return {"flags": flags, "grid": grid, "rows": rows}


def read_by(tune: Mapping[str, Any], problems: list[str]) -> str:
    by = tune.get("by")
    if not isinstance(by, str) or not by:
        problems.append(f"tune.by is {format_value(by)}: name a measure of the validation split, such as valid_loss.")
        return ""
    if not by.startswith("valid_"):
        split, _, rest = by.partition("_")
        near = f"valid_{rest if split in SPLITS and rest else by}"
        problems.append(
            f"tune.by is {format_value(by)}: settings are chosen on the validation split, never on what confirms "
            f"them; write {format_value(near)}."
        )
    return by


def read_seeds(part: Mapping[str, Any], what: str, problems: list[str]) -> list[int]:
    seeds = part.get("seeds")
    texts = [str(seed) for seed in seeds] if isinstance(seeds, list) else []
    if not texts or not all(text.isascii() and text.isdecimal() for text in texts):
        problems.append(f"{what}.seeds is {format_value(seeds)}: give a list of whole numbers, such as [1, 2, 3].")
        return []
    numbers = list(map(int, texts))
    if len(set(numbers)) < len(numbers):
        problems.append(f"{what}.seeds is {format_value(seeds)}: a seed is there twice; keep one.")
    return numbers


def read_measures(confirm: Mapping[str, Any], problems: list[str]) -> list[str]:
    measures = confirm.get("measures")
    if not isinstance(measures, list) or not measures or not all(isinstance(name, str) for name in measures):
        problems.append(f"confirm.measures is {format_value(measures)}: give a list, such as [test_loss].")
        return []
    for name in measures:
        if not name.startswith("test_"):
            problems.append(f"confirm.measures has {format_value(name)}: winners are confirmed on the test split; "
                            "write a measure that begins with test_.")  # fmt: skip
    if len(set(measures)) < len(measures):
        problems.append(f"confirm.measures is {format_value(measures)}: a measure is there twice; keep one.")
    return measures


def complete_settings(
    base: Mapping[str, Any], bodies: Mapping[str, Mapping[str, Any]], problems: list[str]
) -> list[Contestant]:
    """The contestants, with all flags of each setting."""
    parts = [base, *(part for body in bodies.values() for part in (body["flags"], *body["rows"]))]
    grids = [body["grid"] for body in bodies.values()]
    names = flag_names([*parts, *({"task": task} for grid in grids for task in grid.get("task", ()))])
    (shared,) = canonical_names([base], names, problems)
    contestants = []
    for title, body in bodies.items():
        (flags,), (grid,), rows = (
            canonical_names(part, names, problems) for part in ([body["flags"]], [body["grid"]], body["rows"])
        )
        for flag in dict.fromkeys(name for part in (shared, flags, grid, *rows) for name in part if name in OWN_FLAGS):
            sentence = f"--{flag} is not for a study: {OWN_FLAGS[flag]}; remove it."
            if sentence not in problems:
                problems.append(sentence)
        for flag in grid:
            if flag in flags or any(flag in row for row in rows):
                problems.append(f"{flag} is under grid and in flags or rows of contestant {format_value(title)}: "
                                "keep one.")  # fmt: skip
        count = len(rows) * math.prod(len(values) for values in grid.values())
        if count > MAX_ROWS:
            raise UserError(
                f"Contestant {format_value(title)} has {count:,} settings: a sweep has at most {MAX_ROWS:,}."
            )
        cells = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        contestants.append(Contestant(title, [shared | flags | row | cell for row in rows for cell in cells]))
    return contestants


def check_budgets(contestants: Sequence[Contestant], by: str, problems: list[str]) -> None:
    """Equal numbers of settings; and a way to choose where there is a choice."""
    counts = {one.name: len(one.settings) for one in contestants}
    if len(set(counts.values())) > 1:
        listed = join_words([f"{format_value(name)} {count}" for name, count in counts.items()], "and")
        problems.append(
            f"contestants have unequal budgets ({listed}): give each the same number of settings; where one has "
            "nothing else to tune, add rates."
        )
    most = max(counts.values())
    if not by and most > 1:
        problems.append(f"tune is missing, and there are {plural(most, 'setting')} to choose from: write "
                        "`tune: {by: valid_loss, seeds: [1]}`.")  # fmt: skip


def study_text(study: Study) -> str:
    """The study as a YAML file that means the same from any folder once its paths are absolute."""
    import yaml

    return yaml.safe_dump(study.as_file(), sort_keys=False, allow_unicode=True)


def results_folder(logs: Path, name: str) -> Path:
    """Where a study writes what it found; the same each time that it is applied."""
    return logs / "sweeps" / name
