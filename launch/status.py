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
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from core.commands import CommandParser
from core.text import shown
from launch.bad_nodes import BadNode, bad_node
from launch.slurm import LIVE, STATES, Answer, Standing, ask_for_jobs, duration, standing
from runs.reading import Run, all_runs, find_run, number, shortened

NEWEST = 20  # runs shown beside the live ones
SECONDS = 5.0  # between two looks of --watch into the run folders
ASKED = 30.0  # seconds between two questions to Slurm at the least: sites forbid more
SETTLED = ("finished", "stopped", "cancelled", "diverged", "failed", "out of memory", "not submitted")
WATCH = f"look again and again [{SECONDS:g}]; Slurm is asked every {ASKED:g} at the most"
HEADING = 8  # characters of a swept flag's name that are left at the least
NUMBERS = ("step", "loss", "rate", "left", "tries")
COLOURS = {
    **dict.fromkeys(("running", "starting"), "green"),
    **dict.fromkeys(("silent", "lost", "killed", "failed", "diverged", "out of memory", "not submitted"), "red"),
    **dict.fromkeys(("waiting", "queued again", "held", "suspended", "interrupted"), "yellow"),
}


@dataclass(frozen=True)
class Row:
    """One run of the table."""

    run: Run
    standing: Standing

    @property
    def is_live(self) -> bool:
        return self.standing.state in LIVE

    def values(self) -> dict[str, Any]:
        """For --json, and for the table."""
        run, now = self.run, progress(self.run)
        left = now.get("seconds_left") if self.standing.state == "running" else None
        return {
            "run": run.run_id,
            "swept": run.swept or None,
            "job": run.job_name,
            "state": self.standing.state,
            "detail": self.standing.detail or None,
            "node": self.standing.nodes or None,
            "expected_start": self.standing.expected or None,
            "step": now.get("step"),
            "total_steps": now.get("total_steps"),
            "train_loss": now.get("train_loss"),
            "valid_loss": now.get("valid_loss"),
            "tokens_per_second": now.get("tokens_per_second"),
            "seconds_left": left,
            "attempts": len(run.attempts),
        }


@dataclass(frozen=True)
class Seen:
    """The rows to show, what Slurm said, how many runs there are beside them, and a node that ends attempts."""

    rows: list[Row]
    answer: Answer
    more: int
    bad: BadNode | None


def status(argv: list[str]) -> int:
    options = parse(argv)
    if options.watch is None:
        show(look(options), options)
    else:
        watch(options)
    return 0


def parse(argv: list[str]) -> Namespace:
    parser = CommandParser("python -m launch status", "Where runs stand: the live ones, then the newest.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="id, name, job or path; nothing for all")
    parser.add_argument("--all", action="store_true", help=f"all runs, and not only the newest {NEWEST}")
    parser.add_argument("--state", choices=("live", *STATES), metavar="STATE", help=f"live, {', '.join(STATES)}")
    parser.add_argument("--watch", nargs="?", type=pause, const=SECONDS, metavar="SECONDS", help=WATCH)
    parser.add_argument("--json", action="store_true", help="one JSON object a run, one line each")
    return parser.parse_args(argv)


def pause(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86400:
        raise ArgumentTypeError(f"{word!r} is no number of seconds from 0.1 to 86400")
    return seconds


def look(options: Namespace, before: Answer | None = None) -> Seen:
    """before: what Slurm said a short while ago, if that will do."""
    logs = Path(options.logs_dir)
    runs = [find_run(logs, word) for word in options.runs] or list(all_runs(logs))
    states = [(run, run.state) for run in runs]
    answer = before or ask_for_jobs(run for run, state in states if state not in SETTLED)
    rows = [Row(run, standing(run, answer, state)) for run, state in states]
    rows.sort(key=lambda row: not row.is_live)  # all_runs has the newest first, and sorting keeps that
    if options.state:
        rows = [row for row in rows if row.standing.state == options.state or (options.state == "live" and row.is_live)]
    bad = bad_node(all_runs(logs) if options.runs else runs)
    if options.runs or options.all or options.state:
        return Seen(rows, answer, 0, bad)
    live = sum(row.is_live for row in rows)
    return Seen(rows[: live + NEWEST], answer, max(0, len(rows) - live - NEWEST), bad)


def show(seen: Seen, options: Namespace, more: str = "") -> None:
    """more: a line below the table."""
    if options.json:
        for row in seen.rows:
            print(json.dumps({"name": row.run.name, **row.values()}, ensure_ascii=False))
        if seen.answer.problem:
            print(seen.answer.problem, file=sys.stderr)
        return
    console = Console()
    console.print(picture(seen, options, console.width, more), crop=False)


def watch(options: Namespace) -> None:
    """The table, drawn anew until Ctrl-C; where it goes into a file, one below the other."""
    console = Console()
    live = Live(console=console, auto_refresh=False, screen=True)
    redrawn = console.is_terminal and not options.json
    answer: Answer | None = None
    if options.json and options.watch < ASKED:
        said = f"--watch is {options.watch:g}: run folders are read that often, Slurm is asked every {ASKED:g} s"
        print(said, file=sys.stderr)
    try:
        with live if redrawn else nullcontext():
            while True:
                recent = answer is not None and 0 <= time.time() - answer.time < ASKED
                seen = look(options, answer if recent else None)
                answer = seen.answer
                if redrawn:
                    clock = f"{time.strftime('%H:%M:%S')}  {age(answer, options.watch)}; Ctrl-C ends this, not the runs"
                    live.update(picture(seen, options, console.width, clock), refresh=True)
                else:
                    show(seen, options, age(answer, options.watch))
                    sys.stdout.flush()
                time.sleep(options.watch)
    except KeyboardInterrupt:
        pass


def age(answer: Answer, pause: float) -> str:
    """How old what is shown may be."""
    if math.isinf(answer.time):
        return f"read from the run folders every {pause:g} s"
    ago = max(0, round(time.time() - answer.time))
    return f"Slurm's answer is {ago} s old (asked every {max(ASKED, pause):g} s, run folders every {pause:g} s)"


def picture(seen: Seen, options: Namespace, width: int, last: str = "") -> Group:
    rows, answer, more = seen.rows, seen.answer, seen.more
    lines: list[Any] = [table(rows, width)] if rows else []
    if not rows:
        which = f" whose state is {options.state}" if options.state else ""
        where = shown(str(Path(options.logs_dir) / "runs"))
        lines.append(Text(f"{where} has no runs{which}.", no_wrap=True, overflow="ignore"))  # a path that can be copied
    if more:
        lines.append(Text(f"and {more:,} older: --all shows them", style="dim"))
    if answer.problem:
        lines.append(Text(answer.problem, style="yellow"))
    if seen.bad is not None:
        lines.append(Text(seen.bad.sentence(), style="yellow"))
    if last:
        lines.append(Text(last, style="dim"))
    return Group(*lines)


def table(rows: Sequence[Row], width: int) -> Text:
    """Columns that no row has anything in are left out, so that 80 columns do for the rest.

    One Text and not a rich Table, which takes a millisecond a row.
    """
    swept = list(dict.fromkeys(name for row in rows for name in row.run.swept))
    cells = [cells_of(row, swept) for row in rows]
    names = [name for name in cells[0] if name in ("run", "state", "step") or any(row[name] for row in cells)]
    widths = {name: max(len(name), *(cell_len(row[name]) for row in cells)) for name in names}
    # Shortened in this order, if need be; of what was swept only the headings: it says more than a name made of it.
    headings = [(name, max(HEADING, *(cell_len(row[name]) for row in cells))) for name in swept]
    for name, least in (("run", 16), ("state", 12), *headings, ("node", 5), ("run", 9)):
        over = sum(widths.values()) + len(names) - 1 - width
        if name in widths and over > 0:
            widths[name] = max(min(least, widths[name]), widths[name] - over)
    lines = [Text(" ".join(aligned(name, name, widths) for name in names).rstrip(), style="bold")]
    for row, texts in zip(rows, cells, strict=True):
        line = Text(" ".join(aligned(name, texts[name], widths) for name in names).rstrip())
        if (colour := COLOURS.get(row.standing.state)) and "state" in names:
            first = sum(widths[name] + 1 for name in names[: names.index("state")])
            line.stylize(colour, first, first + widths["state"])
        lines.append(line)
    return Text("\n", no_wrap=True, overflow="crop").join(lines)


def aligned(name: str, text: str, widths: dict[str, int]) -> str:
    """A cell of column `name`, as wide as that is."""
    if cell_len(text) > widths[name]:
        text = shortened(text, widths[name], 6 if name == "run" else HEADING // 2 if text == name else 0)
    room = " " * (widths[name] - cell_len(text))
    return room + text if name in NUMBERS else text + room


def cells_of(row: Row, swept: Sequence[str]) -> dict[str, str]:
    values = row.values()
    rate, left, loss = values["tokens_per_second"], values["seconds_left"], values["train_loss"]
    quick = rate if row.standing.state in ("running", "silent") else None
    return {
        "run": shown(values["run"]),
        **{name: shown(row.run.swept[name]) if name in row.run.swept else "" for name in swept},
        "job": shown(values["job"]) if values["job"] else "",
        "state": shown(str(row.standing)),
        "starts": moment(row.standing.expected),
        "node": shown(values["node"]) if values["node"] else "",
        "step": steps(values["step"], values["total_steps"]),
        "loss": f"{loss:.3f}" if isinstance(loss, float | int) else "",
        "rate": f"{compact(quick)}/s" if isinstance(quick, float | int) else "",
        "left": duration(left) if isinstance(left, float | int) else "",
        "tries": str(values["attempts"] or ""),
    }


def moment(text: str) -> str:
    """A time of Slurm's as one reads it on the wall: 14:05, Thu 14:05, 2026-11-30."""
    if not text:
        return ""
    then = datetime.fromisoformat(text)
    days = (then.date() - datetime.now().date()).days
    return then.strftime("%H:%M" if days < 1 else "%a %H:%M" if days < 7 else "%Y-%m-%d")


def steps(step: Any, total: Any) -> str:
    if not isinstance(step, int):
        return ""
    return f"{compact(step)}/{compact(total)}" if isinstance(total, int) and total > 0 else compact(step)


def compact(value: float) -> str:
    """At most five characters: 9999, 12.3k, 1.25M."""
    if value < 10_000:
        return f"{value:.0f}"
    for unit in "kMGT":
        value /= 1000
        if value < 1000:
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}{unit}"
    return f"{value:.0f}T"


def progress(run: Run) -> dict[str, Any]:
    """Step, losses, rate and time left: the heartbeat's or, where a run has none, the last rows of its metrics."""
    found = dict(run.heartbeat)
    for row in [] if "train_loss" in found else run.last_metrics():
        found |= {name: row[name] for name in ("step", "train_loss", "valid_loss", "tokens_per_second") if name in row}
    if run.attempts and isinstance(last := run.attempts[-1].get("last_step"), int):
        found["step"] = last
    if "total_steps" not in found and (total := number(run.settings.get("max_steps"), 0)) > 0:
        found["total_steps"] = int(total)
    return found
