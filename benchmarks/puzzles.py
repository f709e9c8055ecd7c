"""How well models of puzzles learn, think and verify: three seeds of each at equal training FLOPs, against bars.

The runs are a study without tuning (`python -m launch sweep`), with the settings that job_scripts/reasoning/fair.yaml
found. A quarter of an hour on two cores.
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml

from benchmarks.measure import ROOT, Sheet, run_python
from core.progress import print_note

STUDY = ROOT / "job_scripts" / "reasoning" / "reasoning.yaml"
SEEDS = (0, 1, 2)
SHIFTED = "test_solved_shifted"
AUROC = "AUROC within a puzzle"
# Contestant of the study, measure, whether it has to be above or below, and the bound.
BARS = (
    ("EBT", SHIFTED, "at least", 0.90),
    ("EBT", AUROC, "at least", 0.99),
    ("looped", SHIFTED, "at least", 0.90),
    ("feed-forward", SHIFTED, "below", 0.30),
    ("feed-forward, 12 blocks", SHIFTED, "below", 0.30),
)


def run(seeds: Sequence[int] = SEEDS, changes: dict[str, Any] | None = None, rows: int = 256) -> list[Sheet]:
    """changes: flags of every run besides those of the study. rows: puzzles that the energies are verified on."""
    study = yaml.safe_load(STUDY.read_text())
    study["base"] |= changes or {}
    study["confirm"]["seeds"] = list(seeds)
    with tempfile.TemporaryDirectory() as logs:
        file = Path(logs) / "puzzles.yaml"
        file.write_text(yaml.safe_dump(study))
        print_note(f"puzzles: {len(study['contestants'])} models, {len(seeds)} seeds of each")
        run_python("-m", "launch", "sweep", str(file), "--logs_dir", logs, "--cluster", "local")
        records = json.loads((Path(logs) / "sweeps" / "puzzles" / "study.json").read_text())["runs"]
        values = {
            (contestant, SHIFTED): [row[SHIFTED] for row in records if row["contestant"] == contestant]
            for contestant in study["contestants"]
        }
        walkers = [row["run"] for row in records if row["contestant"] == "EBT"]
        values["EBT", AUROC] = [auroc_within(logs, run_id, rows) for run_id in walkers]
        costs = {row["contestant"]: row["flops"] for row in records}
    cells = []
    for contestant, measure, sign, bound in BARS:
        numbers = values[contestant, measure]
        reached = mean(numbers) >= bound if sign == "at least" else mean(numbers) < bound
        spread = f"{stdev(numbers):.3f}" if len(numbers) > 1 else "-"
        by_seed = " ".join(f"{number:.3f}" for number in numbers)
        bar = f"{sign} {bound:.2f}: {'yes' if reached else 'NO'}"
        cells.append(
            (contestant, measure, f"{costs[contestant] / 1e12:.2f}", f"{mean(numbers):.3f}", spread, by_seed, bar)
        )
    title = (
        f"puzzles ({study['base']['dataset_name']}), {len(seeds)} seeds; spread is the standard deviation over seeds"
    )
    headings = ("model", "measure", "TFLOP", "mean", "spread", "by seed", "bar")
    return [Sheet(title, headings, cells, frozenset({"model", "measure", "by seed", "bar"}))]


def auroc_within(logs: str, run_id: str, rows: int) -> float:
    """How surely the energy of a run ranks right answers below wrong ones of the same puzzle, of all kinds."""
    where = ("--logs_dir", logs, "--infer_output_dir", logs)
    run_python("-m", "inference", "verify", "--run", run_id, "--rows", str(rows), *where)
    with open(Path(logs) / "verify.csv", newline="") as file:
        whole = {"scope": "within a puzzle", "kind": "all", "against": "all", "measure": "AUROC"}
        (row,) = (row for row in csv.DictReader(file) if whole.items() <= row.items() and row["run"] in run_id)
    return float(row["value"])
