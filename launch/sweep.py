"""`python -m launch sweep FILE`: many runs from one file; applied again, it submits what failed or is new."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from core.commands import CommandParser
from core.errors import UserError
from core.text import shown
from launch import queue
from launch.arrays import check_array, submit_arrays
from launch.capsules import make_capsules, new_desk
from launch.cluster import SLURM_HELP, choose_cluster, header_for
from launch.execute import logs_flag, print_start
from launch.queue_worker import unfinished_runs
from launch.sweep_file import read_sweep
from launch.sweep_rows import Planned, compare_with_runs, plan

SHOWN = 200  # rows of a table that a person may read
WIDTH = 140  # of the table where the screen is not known
PURPOSE = """\
Submit many runs from a YAML file (base, grid, rows) or a CSV file (a column a flag). Every row is checked first.
Rows with the settings of a run that is finished or under way are left alone, so the same file can be applied again."""


def sweep(argv: list[str]) -> int:
    """Check, compare with the runs there are, show, submit."""
    parser = CommandParser("python -m launch sweep", PURPOSE)
    parser.add_argument("file", metavar="FILE", help="YAML or CSV; docs/sweeps.md shows both")
    parser.add_argument("--dry_run", action="store_true", help="show what would happen, and make nothing")
    parser.add_argument("--max_parallel", type=int, metavar="N", help="at most so many runs at once, on Slurm")
    parser.add_argument("--header", metavar="H", help="a file of job_scripts/headers/: what to ask Slurm for")
    parser.add_argument("--slurm", action="append", default=[], metavar="NAME=VALUE", help=SLURM_HELP)
    parser.add_argument(
        "--cluster",
        choices=("auto", "slurm", "local"),
        default="auto",
        help="slurm: as arrays; local: one after another on this machine; auto: slurm, else local",
    )
    parser.add_argument("--with_twin", action="store_true", help="a Transformer++ beside every EBT")
    parser.add_argument("--evaluate", action="store_true", help="python -m inference evaluate after each run")
    options = parser.parse_args(argv)
    if options.max_parallel is not None and options.max_parallel < 1:
        raise UserError(f"--max_parallel is {options.max_parallel}: give a whole number of at least 1.")
    path, logs = Path(options.file), Path(options.logs_dir).absolute()
    found = read_sweep(path)
    rows = plan(replace(found, twin=found.twin or options.with_twin), logs)
    cluster = choose_cluster(options.cluster)
    header = header_for(options.header, cluster, options.slurm)
    if options.max_parallel is not None and header is None:
        raise UserError("--max_parallel has no effect on this machine, where rows run one after another: remove it.")
    compare_with_runs(rows, logs, unfinished_runs(logs))
    show(rows)
    chosen = [row for row in rows if row.is_submitted]
    if options.dry_run or not chosen:
        print("nothing was made: --dry_run" if options.dry_run else "nothing to submit")
        return 0
    start = check_array(header, chosen, logs, options.evaluate) if header else ""
    desk = new_desk(logs, found.name)
    shutil.copyfile(path, desk / f"sweep{path.suffix}")
    make_capsules(chosen, header, logs, desk, argv)
    runs = [row.run for row in chosen if row.run is not None]
    if header is None:
        count = queue.add_runs(logs, runs, options.evaluate)
        print(f"{count} jobs are in the queue of this machine")
        queue.start(logs)
        print(f"follow  python -m launch queue status{logs_flag(logs)}")
        return 0
    for line in submit_arrays(runs, header, desk, options.max_parallel, options.evaluate):
        print(line, flush=True)
    print(f"sweep   {desk}")
    print_start(start)
    print(f"follow  python -m launch status{logs_flag(logs)}")
    return 0


def show(rows: Sequence[Planned]) -> None:
    """A line a row, and how many of each kind."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(console.width, WIDTH))
    table = Table(box=None, pad_edge=False)
    for heading in ("row", "run", "what differs", "what happens"):
        table.add_column(heading, justify="right" if heading == "row" else "left", overflow="fold")
    for row in rows if len(rows) <= SHOWN else rows[: SHOWN // 2]:
        differs = "  ".join(f"{name}={shown(value)}" for name, value in row.differs.items())
        name = row.run.name if row.run is not None else row.name
        table.add_row(str(row.number), Text(name), Text(differs), Text(row.happens, style=colour(row)))
    console.print(table)
    if len(rows) > SHOWN:
        print(f" …  and {len(rows) - SHOWN // 2} rows more")
    kinds = Counter("repeated" if row.happens.startswith("as row") else row.happens.partition(":")[0] for row in rows)
    parts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    print(
        f"{len(rows)} {'row' if len(rows) == 1 else 'rows'}: {parts}; {sum(row.is_submitted for row in rows)} to submit"
    )


def colour(row: Planned) -> str:
    return "green" if row.happens == "new" else "yellow" if row.is_submitted else "dim"
