"""`python -m launch status`: where every run stands, by its folder and by Slurm."""

from __future__ import annotations

import json
import math
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from core.commands import CommandParser
from core.text import format_compact, format_short_duration, format_short_time, format_value, shortened
from launch.bad_nodes import BadNode, bad_node
from launch.slurm import ACTIVE, STATES, RunStatus, SlurmJobs, jobs_of, status_of
from runs.metrics import number_or
from runs.run import Run, all_runs, find_run

NEWEST = 20  # runs shown in addition to active ones
WATCH_INTERVAL = 5.0  # seconds between two reads of the run folders with --watch
SLURM_INTERVAL = 30.0  # seconds between two calls of squeue: sites forbid more
FINAL_STATES = ("finished", "stopped", "cancelled", "diverged", "failed", "out of memory", "not submitted")
WATCH_HELP = f"look again and again [{WATCH_INTERVAL:g}]; Slurm is asked every {SLURM_INTERVAL:g} at the most"
MIN_HEADING = 8  # characters that a shortened heading keeps
LEFT_ALIGNED = ("run", "job", "state", "starts", "node")  # columns; those of swept flags are, too


@dataclass(frozen=True)
class Row:
    """One run of the table."""

    run: Run
    status: RunStatus

    @property
    def is_live(self) -> bool:
        return self.status.state in ACTIVE

    def values(self) -> dict[str, Any]:
        """The values for --json and for the table."""
        run, now = self.run, progress(self.run)
        left = now.get("seconds_left") if self.status.state == "running" else None
        return {
            "run": run.run_id,
            "swept": run.swept or None,
            "job": run.job_name,
            "state": self.status.state,
            "detail": self.status.detail or None,
            "node": self.status.nodes or None,
            "expected_start": self.status.expected or None,
            "step": now.get("step"),
            "total_steps": now.get("total_steps"),
            **{column: now.get(column) for column in run_columns(run)},
            "seconds_left": left,
            "attempts": len(run.attempts),
        }


@dataclass(frozen=True)
class StatusView:
    """The rows to show, the jobs, the number of runs that are not shown, and a bad node."""

    rows: list[Row]
    jobs: SlurmJobs
    more: int
    bad_node: BadNode | None


def status(argv: list[str]) -> int:
    options = parse(argv)
    if options.watch is None:
        show(read_status(options), options)
    else:
        watch(options)
    return 0


def parse(argv: list[str]) -> Namespace:
    parser = CommandParser("python -m launch status", "Where runs stand: the live ones, then the newest.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="id, name, job or path; nothing for all")
    parser.add_argument("--all", action="store_true", help=f"all runs, and not only the newest {NEWEST}")
    parser.add_argument("--state", choices=("live", *STATES), metavar="STATE", help=f"live, {', '.join(STATES)}")
    parser.add_argument(
        "--watch", nargs="?", type=watch_interval, const=WATCH_INTERVAL, metavar="SECONDS", help=WATCH_HELP
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a run, one line each")
    return parser.parse_args(argv)


def watch_interval(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86400:
        raise ArgumentTypeError(f"{word!r} is no number of seconds from 0.1 to 86400")
    return seconds


def read_status(options: Namespace, recent_jobs: SlurmJobs | None = None) -> StatusView:
    """Read run folders and jobs. recent_jobs: to use instead of asking Slurm."""
    logs = Path(options.logs_dir)
    runs = [find_run(logs, word) for word in options.runs] or list(all_runs(logs))
    states = [(run, run.state) for run in runs]
    jobs = recent_jobs or jobs_of(run for run, state in states if state not in FINAL_STATES)
    rows = [Row(run, status_of(run, jobs, state)) for run, state in states]
    rows.sort(key=lambda row: not row.is_live)  # a stable sort: all_runs has the newest first
    if options.state:
        rows = [row for row in rows if row.status.state == options.state or (options.state == "live" and row.is_live)]
    bad = bad_node(all_runs(logs) if options.runs else runs)
    if options.runs or options.all or options.state:
        return StatusView(rows, jobs, 0, bad)
    live = sum(row.is_live for row in rows)
    return StatusView(rows[: live + NEWEST], jobs, max(0, len(rows) - live - NEWEST), bad)


def show(view: StatusView, options: Namespace, more: str = "") -> None:
    """Print the table or JSON. more: a line below the table."""
    if options.json:
        for row in view.rows:
            print(json.dumps({"name": row.run.name, **row.values()}, ensure_ascii=False))
        if view.jobs.problem:
            print(view.jobs.problem, file=sys.stderr)
        return
    console = Console()
    console.print(render(view, options, console.width, more), crop=False)


def watch(options: Namespace) -> None:
    """Redraw the table until Ctrl-C; without a terminal, print one table after another."""
    console = Console()
    live = Live(console=console, auto_refresh=False, screen=True)
    is_redrawn = console.is_terminal and not options.json
    jobs: SlurmJobs | None = None
    if options.json and options.watch < SLURM_INTERVAL:
        note = (
            f"--watch is {options.watch:g}: run folders are read that often, Slurm is asked every {SLURM_INTERVAL:g} s"
        )
        print(note, file=sys.stderr)
    try:
        with live if is_redrawn else nullcontext():
            while True:
                is_recent = jobs is not None and 0 <= time.time() - jobs.time < SLURM_INTERVAL
                view = read_status(options, jobs if is_recent else None)
                jobs = view.jobs
                if is_redrawn:
                    clock = f"{time.strftime('%H:%M:%S')}  {age(jobs, options.watch)}; Ctrl-C ends this, not the runs"
                    live.update(render(view, options, console.width, clock), refresh=True)
                else:
                    show(view, options, age(jobs, options.watch))
                    sys.stdout.flush()
                time.sleep(options.watch)
    except KeyboardInterrupt:
        pass


def age(jobs: SlurmJobs, watch_interval: float) -> str:
    """How old the shown data may be."""
    if math.isinf(jobs.time):
        return f"read from the run folders every {watch_interval:g} s"
    ago = max(0, round(time.time() - jobs.time))
    interval = f"asked every {max(SLURM_INTERVAL, watch_interval):g} s"
    return f"Slurm's answer is {ago} s old ({interval}, run folders every {watch_interval:g} s)"


def render(view: StatusView, options: Namespace, width: int, last: str = "") -> Group:
    rows, jobs, more = view.rows, view.jobs, view.more
    lines: list[Any] = [table(rows, width)] if rows else []
    if not rows:
        which = f" whose state is {options.state}" if options.state else ""
        where = format_value(str(Path(options.logs_dir) / "runs"))
        lines.append(
            Text(f"{where} has no runs{which}.", no_wrap=True, overflow="ignore")
        )  # so that the path can be copied
    if more:
        lines.append(Text(f"and {more:,} older: --all shows them", style="dim"))
    if jobs.problem:
        lines.append(Text(jobs.problem, style="yellow"))
    if view.bad_node is not None:
        lines.append(Text(view.bad_node.sentence(), style="yellow"))
    if last:
        lines.append(Text(last, style="dim"))
    return Group(*lines)


def table(rows: Sequence[Row], width: int) -> Text:
    """The table without empty columns, so that it fits 80 characters.

    One Text and not a rich Table, which takes a millisecond a row.
    """
    swept = list(dict.fromkeys(name for row in rows for name in row.run.swept))
    labels = list(dict.fromkeys(row.run.task.label for row in rows))
    units = list(dict.fromkeys(f"{row.run.task.unit}/s" for row in rows))
    order = [*("run", *swept, "job", "state", "starts", "node", "step"), *labels, *units, "left", "tries"]
    cells = [cells_of(row) for row in rows]
    names = [name for name in order if name in ("run", "state", "step") or any(row.get(name) for row in cells)]
    widths = {name: max(len(name), *(cell_len(row.get(name, "")) for row in cells)) for name in names}
    # Shortened in this order if necessary; of swept flags and measures only the headings, as their values matter most.
    headings = [(name, max(MIN_HEADING, *(cell_len(row.get(name, "")) for row in cells))) for name in [*swept, *labels]]
    for name, least in (("run", 16), ("state", 12), *headings, ("node", 5), ("run", 9)):
        over = sum(widths.values()) + len(names) - 1 - width
        if name in widths and over > 0:
            widths[name] = max(min(least, widths[name]), widths[name] - over)
    left = (*LEFT_ALIGNED, *swept)
    lines = [Text(" ".join(align(name, name, widths, left) for name in names).rstrip(), style="bold")]
    for row, texts in zip(rows, cells, strict=True):
        line = Text(" ".join(align(name, texts.get(name, ""), widths, left) for name in names).rstrip())
        if (state := STATES.get(row.status.state)) and state.colour:
            first = sum(widths[name] + 1 for name in names[: names.index("state")])
            line.stylize(state.colour, first, first + widths["state"])
        lines.append(line)
    return Text("\n", no_wrap=True, overflow="crop").join(lines)


def align(name: str, text: str, widths: dict[str, int], left: Sequence[str]) -> str:
    """A cell, padded or shortened to the width of column `name`. left: columns that are aligned to the left."""
    if cell_len(text) > widths[name]:
        text = shortened(text, widths[name], 6 if name == "run" else MIN_HEADING // 2 if text == name else 0)
    room = " " * (widths[name] - cell_len(text))
    return text + room if name in left else room + text


def cells_of(row: Row) -> dict[str, str]:
    """The texts of a row by column: what its run is judged by, and its speed, as its task names them."""
    values, task = row.values(), row.run.task
    trained, headline, speed = (values[column] for column in run_columns(row.run))
    measure, left = headline if trained is None else trained, values["seconds_left"]
    speed = speed if row.status.state in ("running", "silent") else None
    return {
        "run": format_value(values["run"]),
        **{name: format_value(value) for name, value in row.run.swept.items()},
        "job": format_value(values["job"]) if values["job"] else "",
        "state": format_value(str(row.status)),
        "starts": format_short_time(row.status.expected),
        "node": format_value(values["node"]) if values["node"] else "",
        "step": steps(values["step"], values["total_steps"]),
        task.label: f"{measure:.3f}" if isinstance(measure, float | int) else "",
        f"{task.unit}/s": format_compact(speed) if isinstance(speed, float | int) else "",
        "left": format_short_duration(left) if isinstance(left, float | int) else "",
        "tries": str(values["attempts"] or ""),
    }


def run_columns(run: Run) -> tuple[str, str, str]:
    """The columns of metrics that a table of runs shows: the task's headline in training and validation, the speed."""
    task = run.task
    return task.headline_on("train"), task.headline, f"{task.unit}_per_second"


def steps(step: Any, total: Any) -> str:
    if not isinstance(step, int):
        return ""
    return (
        f"{format_compact(step)}/{format_compact(total)}"
        if isinstance(total, int) and total > 0
        else format_compact(step)
    )


def progress(run: Run) -> dict[str, Any]:
    """Step, headline, speed and time left, from the heartbeat or else from the last rows of metrics."""
    values, columns = dict(run.heartbeat), run_columns(run)
    for row in [] if any(column in values for column in columns) else run.last_metrics():
        values |= {name: row[name] for name in ("step", *columns) if name in row}
    if run.attempts and isinstance(last := run.attempts[-1].get("last_step"), int):
        values["step"] = last
    if "total_steps" not in values and (total := number_or(run.settings.get("max_steps"), 0)) > 0:
        values["total_steps"] = int(total)
    return values
