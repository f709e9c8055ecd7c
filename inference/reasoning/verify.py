"""`python -m inference verify`: does the energy rank right answers above wrong ones, within and across puzzles?"""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np

from config.settings import Inference
from config.task import SPLITS
from core.files import write_atomically, write_text
from core.progress import progress
from data.reasoning.puzzle import KINDS
from inference.intervals import Interval
from inference.loading import ModelFlags, output_folder
from inference.reasoning.answers import (
    SORTS,
    Verification,
    VerifyResult,
    made_answers,
    right_answers,
    steps_of,
    verify_run,
    within_interval,
)
from inference.reasoning.puzzle_runs import find_rivals, kinds_in, load_puzzle_run, sample_puzzles
from inference.reasoning.verify_report import draw, report
from inference.think_curve import print_lines
from inference.verification import area_interval, auroc_interval
from tasks.reasoning_commands import VerifyFlags

CSV_HEADER = ("run", "model", "scope", "kind", "against", "score", "measure", "value", "low", "high", "puzzles")


def main(model: ModelFlags, command: VerifyFlags, inference: Inference) -> int:
    run = load_puzzle_run(model)
    rivals, note = find_rivals(run, model, command.compare)
    folder = output_folder(run.loaded, inference)
    puzzles = sample_puzzles(run, command.split, command.rows)
    right = right_answers(run.puzzle, puzzles)
    made = made_answers(run.puzzle, puzzles, right, command.answers, model.seed)
    runs = [run, *rivals]
    total = sum(-(-len(puzzles) // command.batch_size) * steps_of(each, command.steps) for each in runs)
    results = []
    with progress("Verifying", "steps", total) as advance:
        for each in runs:
            results.append(verify_run(each, puzzles, right, made, command, model.seed, advance))
    what = f"{run.puzzle.spec.dataset}, {SPLITS[command.split]} split"
    result = VerifyResult(results, puzzles.kind, what, note, kinds_in(puzzles))
    about = f"{run.name}, training step {run.loaded.step:,}"
    write_text(folder / "verify.csv", csv_text(result))
    write_atomically(folder / "verify.png", lambda file: draw(result, about, file))
    print_lines(*report(result, about))
    print(f"drawn in {folder / 'verify.png'}, numbers in {folder / 'verify.csv'}")
    return 0


def csv_text(result: VerifyResult) -> str:
    """A row for each number."""
    file = io.StringIO()
    writer = csv.DictWriter(file, CSV_HEADER, restval="", lineterminator="\n")
    writer.writeheader()

    def add(each: Verification, value: Interval, puzzles: int, **fields: Any) -> None:
        numbers = {name: f"{number:.6g}" for name, number in zip(("value", "low", "high"), value, strict=True)}
        writer.writerow({"run": each.run.name, "model": each.run.title, **fields, **numbers, "puzzles": puzzles})

    for each in result.runs:
        for kind in (*result.kinds, None):
            rows = result.rows_of(kind)
            name = "all" if kind is None else KINDS[kind]
            for sort in (*SORTS, None):
                aurocs = each.within.all_aurocs() if sort is None else each.within.aurocs(sort)
                value, count = within_interval(aurocs, rows)
                about = {"scope": "within a puzzle", "kind": name, "against": sort or "all"}
                add(each, value, count, **about, score=each.run.score_name, measure="AUROC")
            solved = each.across.solved[rows]
            for score, values in each.across.scores.items():
                about = {"scope": "across puzzles", "kind": name, "against": "its own unsolved", "score": score}
                add(each, auroc_interval(values[rows], solved), len(solved), **about, measure="AUROC")
                add(each, area_interval(values[rows], solved), len(solved), **about, measure="risk-coverage area")
        for direction, share in zip(("falls", "stays", "rises"), each.falls or (), strict=False):
            value = Interval(share, np.nan, np.nan)
            add(each, value, len(result.kind), scope="along a walk", score="energy", measure=f"energy {direction}")
    return file.getvalue()
