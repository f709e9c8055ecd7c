"""`python -m runs sync`: upload what W&B could not take while a run trained.

A run that was stopped and went on has a piece for each of its processes. Pieces that follow each other are uploaded in
their order. Where a process was killed, or steps were trained twice, W&B would cut or shift the curves: then one clean
piece is written from metrics.jsonl and uploaded instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from core.commands import CommandParser
from core.files import read_rows
from core.text import shown
from runs.reading import Run, all_runs, find_run, number
from runs.wandb_page import Piece, Rows, close_page, log_checkpoints, log_results, open_page, pieces_of, why_offline

REBUILT = "rebuilt"  # folder of the clean piece, beside the others
REBUILT_LIMITS = {"x_disable_stats": True, "x_disable_machine_info": True, "x_save_requirements": False}


@dataclass(frozen=True)
class Plan:
    """What to do with a run, and why. pieces: those that wait, in order. page: W&B's id of what is rebuilt."""

    action: Literal["nothing", "upload", "rebuild", "ask"]
    why: str
    pieces: tuple[Piece, ...] = ()
    page: str = ""


def plan(run_id: str, pieces: Sequence[Piece], is_running: bool = False, rebuild: bool = False, again: int = 0) -> Plan:
    """again: how many clean pages of this run were uploaded before."""
    waiting = tuple(piece for piece in pieces if not piece.is_synced)
    begun = again > 0 or any(piece.is_synced or piece.is_online for piece in pieces)
    if is_running:
        return Plan("nothing", "it is still running")
    if rebuild:  # W&B cannot take rows back, so what it has of a run stays, and the clean page is another
        return Plan("rebuild", "as asked", waiting, f"{run_id}-{REBUILT}{again + 1}" if begun else run_id)
    if not waiting:
        return Plan("nothing", "W&B has it" if pieces else "it has no W&B files")
    trouble = why_not_in_order(pieces)
    if trouble is None:
        return Plan("upload", "one piece" if len(pieces) == 1 else f"{len(waiting)} of {len(pieces)} pieces", waiting)
    if begun:
        return Plan(
            "ask", f"W&B has a part of it, and {trouble}: --rebuild makes a clean page beside that one", waiting
        )
    return Plan("rebuild", trouble, waiting, run_id)


def why_not_in_order(pieces: Sequence[Piece]) -> str | None:
    """What is against uploading the waiting pieces one after the other, in words."""
    if any(piece.is_online and not piece.is_synced for piece in pieces):
        return "its upload broke off"
    if any(piece.steps is None for piece in pieces):
        return "a process of it was killed"
    steps = [piece.steps for piece in pieces if piece.steps is not None]
    if any(earlier[1] >= later[0] for earlier, later in pairwise(steps)):
        return "steps were trained twice"
    if sorted(pieces, key=lambda piece: not piece.is_synced) != list(pieces):
        return "a later piece is there already"
    return None


def sync(argv: list[str]) -> int:
    parser = CommandParser("python -m runs sync", "Upload to W&B what was kept in run folders.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="which runs [all that have something to upload]")
    parser.add_argument("--rebuild", action="store_true", help="upload a clean page written from metrics.jsonl")
    parser.add_argument("--dry_run", action="store_true", help="say what would be done")
    options = parser.parse_args(argv)
    logs = Path(options.logs_dir)
    runs = [find_run(logs, name) for name in options.runs] or list(reversed(list(all_runs(logs))))
    if options.rebuild and not options.runs:
        parser.error("--rebuild without RUN: name the runs to rebuild")
    plans = [(run, plan_for(run, options.rebuild)) for run in runs]
    todo = [(run, plan) for run, plan in plans if plan.action in ("upload", "rebuild")]
    for run, idle in plans:
        if idle.action == "ask" or (idle.action == "nothing" and options.runs):
            print(f"{shown(run.run_id)}: nothing uploaded, {idle.why}.")
    if not todo:
        if not options.runs:
            print(f"None of the {len(runs):,} runs in {shown(str(logs))} has anything to upload.")
        return 0
    if options.dry_run:
        for run, found in todo:
            print(f"{shown(run.run_id)}: would {found.action}, {found.why}.")
        return 0
    if why := why_offline():
        waits = f"{len(todo):,} run{'s wait' if len(todo) > 1 else ' waits'}"
        print(f"W&B: {why}: nothing was uploaded, {waits}; call this again later.", file=sys.stderr)
        return 1
    return min(1, sum(not carry_out(run, found) for run, found in todo))


def plan_for(run: Run, rebuild: bool) -> Plan:
    again = len(list((run.path / "wandb" / REBUILT).glob("*/wandb/*/*.wandb.synced")))
    return plan(run.run_id, pieces_of(run.path), run.state == "running", rebuild, again)


def carry_out(run: Run, plan: Plan) -> bool:
    """Do it and say so in a line; whether W&B has everything now."""
    with Console(stderr=True).status(f"{shown(run.run_id)}: {plan.action} …"):
        try:
            files = [rebuild(run, plan.page)] if plan.action == "rebuild" else [piece.file for piece in plan.pieces]
        except Exception as error:  # the next run may do better
            print(f"{shown(run.run_id)}: could not be rebuilt, {type(error).__name__}: {error}", file=sys.stderr)
            return False
        trouble = upload(files, run.path)
    if trouble:
        print(f"{shown(run.run_id)}: not uploaded, {trouble}", file=sys.stderr)
        return False
    for piece in plan.pieces:
        piece.mark_synced()
    done = f"a clean page {shown(plan.page)} from metrics.jsonl" if plan.action == "rebuild" else "uploaded"
    print(f"{shown(run.run_id)}: {done}, {plan.why}.")
    if plan.action == "rebuild" and plan.page != run.run_id:
        print("  W&B had a part of it under the old id, which stays as it is; delete that page by hand.")
    return True


def upload(files: Sequence[Path], folder: Path) -> str | None:
    """Hand the files to `wandb sync`, whose logs come into `folder`; None when all arrived, else its last words."""
    command = [sys.executable, "-m", "wandb", "sync", *map(str, files)]
    own = {**os.environ, "WANDB_DIR": str(folder.absolute())}
    done = subprocess.run(command, env=own, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if all(file.with_suffix(".wandb.synced").exists() for file in files):
        return None
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return said[-1] if said else f"wandb sync ended with status {done.returncode}"


def rebuild(run: Run, page_id: str) -> Path:
    """Write one whole piece from the run folder, as if one process had trained the run without a stop; its file."""
    folder = run.path / "wandb" / REBUILT / page_id
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    page = open_page(run, folder, page_id, offline=True, x_start_time=run.began, **REBUILT_LIMITS)
    file = Path(page.settings.sync_dir) / f"run-{page_id}.wandb"
    try:
        rows = Rows(page)
        for row in in_order(run):
            rows.log(row)
        for text in run.path.glob(str(run.settings.get("console_log_filename", "console.log"))):
            page.write_logs(text.read_text(errors="replace"))
        log_results(rows, run)
        log_checkpoints(page, run, file.parent)
    finally:
        close_page(page, 0 if run.state == "finished" else 1)
    return file


def in_order(run: Run) -> list[dict[str, Any]]:
    """The rows of metrics and of usage by step; those of one step are one row for W&B."""
    usage = [
        {"step": row.get("step")}
        | {f"usage/{name}": value for name, value in row.items() if name not in ("step", "time")}
        for row in read_rows(run.path / "usage.jsonl")
    ]
    found = [row for row in (*run.metrics(), *usage) if isinstance(row.get("step"), int)]
    return sorted(found, key=lambda row: number(row["step"], 0.0))
