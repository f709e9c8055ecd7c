"""Does thinking for longer help? An EBT trained for it, its Transformer++ beside it, and the think-curve of both.

It is trained with a random length and a random number of steps, and only the last one judged: the two that the paper's
ablation calls essential for thinking at inference.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import ROOT, Sheet
from core.progress import print_note

RECIPE = (
    *("--recipe", "laptop", "--model_size", "4xs", "--mcmc_num_steps", "1"),
    *("--randomize_mcmc_num_steps", "3", "--randomize_mcmc_num_steps_min", "2"),  # 2 to 4
    *("--max_steps", "800", "--val_check_interval", "400"),
)
PICTURE = Path("logs/think_curve.png")
CURVE = ("--steps", "10")


def run(recipe: tuple[str, ...] = RECIPE, curve: tuple[str, ...] = CURVE, picture: Path = PICTURE) -> list[Sheet]:
    """recipe: flags of the training. curve: flags of think-curve. picture: where the curve is saved."""
    with tempfile.TemporaryDirectory() as logs:
        print_note(f"thinking: training an EBT with {' '.join(recipe)}, and its Transformer++")
        where = ("--logs_dir", logs)
        call("train_model.py", "--no_wandb", "--compare_baseline", "--run_name", "thinking", *where, *recipe)
        print_note("thinking: the curve")
        output = ("--infer_output_dir", logs)
        call("-m", "inference", "think-curve", "--run", "thinking", *where, *output, *curve)
        with open(Path(logs) / "think_curve.csv", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["seed"] == "mean"]
        picture.parent.mkdir(exist_ok=True)
        shutil.copy(Path(logs) / "think_curve.png", picture)
    return [sheet_of(rows, picture)]


def call(*words: str) -> None:
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def sheet_of(rows: list[dict[str, str]], picture: Path) -> Sheet:
    """A line for each number of steps and candidates, and the Transformer++, on both texts."""
    losses: dict[tuple[str, ...], dict[str, str]] = {}  # by point of the curve, and by text
    for row in rows:
        loss, half = float(row["loss"]), (float(row["high"]) - float(row["low"])) / 2
        point = (row["model"], row["steps"], row["candidates"], f"{float(row['ratio']):.2f}")
        losses.setdefault(point, {})[row["text"]] = f"{loss:.4f} +- {half:.4f}"
    texts = list(dict.fromkeys(row["text"] for row in rows))
    cells = [(*point, *(by_text.get(text, "") for text in texts)) for point, by_text in losses.items()]
    title = f"thinking: loss in nats per token, with the interval over rows and seeds; drawn in {picture}"
    headings = ("model", "steps", "candidates", "x T++ FLOPs", *texts)
    return Sheet(title, headings, cells, frozenset({"model"}))
