"""Runs of the reasoning task with their puzzles, and the runs that they are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from config.record import values_of
from config.task import SPLITS
from core.errors import UserError
from core.text import plural
from data.reasoning.puzzle import KINDS, Puzzle, PuzzleSet
from inference.loading import Loaded, ModelFlags, find_run, load, trained_runs
from models.energy_model import EnergyModel
from models.model import Batch
from runs.pictures import picture_text
from runs.run import Run

MOST_RIVALS = 4  # that are looked for; --compare may name more


@dataclass(frozen=True)
class PuzzleRun:
    """A run of the reasoning task, ready to think."""

    loaded: Loaded

    @property
    def model(self) -> Any:
        return self.loaded.model

    @property
    def puzzle(self) -> Puzzle:
        puzzle: Puzzle = self.loaded.processor.puzzle
        return puzzle

    @property
    def name(self) -> str:
        return self.loaded.name

    @property
    def title(self) -> str:
        """What people call its model: EBT."""
        return str(self.loaded.task.models[self.loaded.config.run.model_name])

    @property
    def has_energy(self) -> bool:
        return isinstance(self.model, EnergyModel)

    @cached_property
    def values(self) -> dict[str, Any]:
        return values_of(self.loaded.config)

    @property
    def thinks(self) -> bool:
        """Whether it can think for longer: a feed-forward model has one pass."""
        return self.has_energy or self.loaded.config.run.model_name == "looped_transformer"

    @property
    def unit(self) -> str:
        """What its thinking is counted in, in the singular."""
        return "step" if self.has_energy else "loop" if self.thinks else "pass"

    @property
    def units(self) -> str:
        return "passes" if self.unit == "pass" else f"{self.unit}s"

    def count(self, steps: int) -> str:
        """16 steps, 1 loop, 1 pass"""
        return plural(steps, self.unit, self.units)

    @property
    def evaluation_steps(self) -> int:
        """Steps, loops or passes of an evaluation."""
        return int(self.values["evaluation_steps"]) if self.thinks else 1

    @property
    def score_name(self) -> str:
        """The score of an answer that is the model's own."""
        return "energy" if self.has_energy else "log p"


def load_puzzle_run(flags: ModelFlags) -> PuzzleRun:
    return PuzzleRun(load(flags))


def blank_cells(puzzles: PuzzleSet) -> np.ndarray:
    """Cells that are to be predicted, bool [R, N]."""
    return np.asarray(puzzles.real & (puzzles.given < 0))


def on_device(run: PuzzleRun, batch: Batch) -> Batch:
    return {name: tensor.to(run.model.device) for name, tensor in batch.items()}


def sample_puzzles(run: PuzzleRun, split: str, rows: int) -> PuzzleSet:
    """So many puzzles of each kind, or all there are, spread evenly over them."""
    data = run.loaded.task.data(run.loaded.config, run.loaded.run)
    puzzles: PuzzleSet = data.rows[split].puzzles
    indices: list[int] = []
    for kind in KINDS:
        (of_kind,) = np.nonzero(puzzles.kind == kind)
        count = min(rows, len(of_kind))
        indices += of_kind[np.arange(count) * len(of_kind) // max(1, count)].tolist()
    if not indices:
        raise UserError(f"The {SPLITS[split]} split is empty: choose another with --split.")
    return puzzles.rows(indices)


def kinds_in(puzzles: PuzzleSet) -> list[int]:
    return [kind for kind in KINDS if (puzzles.kind == kind).any()]


def find_rivals(run: PuzzleRun, flags: ModelFlags, names: Sequence[str]) -> tuple[list[PuzzleRun], str]:
    """The runs of --compare; without any the run's twin and those of its sweep. -> runs, a note about them"""
    if names:
        return [named_rival(run, flags, name) for name in names], ""
    rivals, problems = [], []
    for path in related_runs(run, flags.logs_dir):
        try:
            other = load_puzzle_run(replace(flags, run=str(path.path), ckpt=None))
        except UserError as error:
            problems.append(f"{path.run_id} cannot be read ({error})")
            continue
        if problem := comparison_problem(run, other):
            problems.append(f"{path.run_id} is left out: {problem}")
        else:
            rivals.append(other)
    if not rivals:
        problems.append("no other model to compare with: name runs with --compare")
    return rivals, "; ".join(problems)


def named_rival(run: PuzzleRun, flags: ModelFlags, name: str) -> PuzzleRun:
    path = find_run(name, flags.logs_dir, "--compare")
    other = load_puzzle_run(replace(flags, run=str(path), ckpt=None))
    if problem := comparison_problem(run, other):
        raise UserError(f"--compare is {name!r}: {problem}.")
    return other


def comparison_problem(run: PuzzleRun, other: PuzzleRun) -> str | None:
    """Why a run cannot be compared with this one, and what to do."""
    if other.loaded.task.name != run.loaded.task.name:
        return f"its task is {other.loaded.task.name}, and not {run.loaded.task.name}; choose another run"
    if other.loaded.run == run.loaded.run:
        return "it is the run itself; choose another"
    names = [str(each.puzzle.spec.dataset) for each in (other, run)]
    if names[0] != names[1]:
        return f"its puzzles are {names[0]}, and not {names[1]}; choose a run with the same --dataset_name"
    return None


def related_runs(run: PuzzleRun, logs_dir: str) -> list[Run]:
    """Runs of other models that were trained beside this one: in its sweep, or with a name that is this one's with more
    behind it (NAME-looped), or less; all on the same puzzles with the same seed.

    Of each model and depth the newest, at most MOST_RIVALS.
    """
    folder = run.loaded.folder
    if folder is None:
        return []
    logs = str(folder.path.parent.parent) if folder.path.parent.name == "runs" else logs_dir
    this = Run(folder.path)
    sweep = this.read("lineage.json").get("sweep")
    runs: dict[tuple[Any, ...], Run] = {}
    for other in trained_runs(logs):
        if other.run_id == this.run_id or other.task.name != this.task.name:
            continue
        names = ("dataset_name", "seed")
        same_sweep = sweep is not None and other.read("lineage.json").get("sweep") == sweep
        # --compare_baseline, and whoever trains several models for one comparison, adds the model to the name
        same_name = other.name.startswith(f"{this.name}-") or this.name.startswith(f"{other.name}-")
        same_data = all(other.settings.get(name) == this.settings.get(name) for name in names)
        model = (other.settings.get("model_name"), other.settings.get("num_transformer_blocks"))
        if same_data and (same_sweep or same_name) and model[0] != this.settings.get("model_name"):
            runs.setdefault(model, other)
    return list(runs.values())[:MOST_RIVALS]


def run_labels(runs: Sequence[PuzzleRun]) -> list[str]:
    """What legends call the runs: by their models, and by their names where two have the same."""
    titles = [run.title for run in runs]
    return [
        picture_text(run.title if titles.count(run.title) == 1 else f"{run.title} {run.loaded.config.run.run_name}")
        for run in runs
    ]
