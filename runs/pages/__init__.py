"""The pages where runs are read and compared in a browser, from files alone: `python -m runs page`, `... serve`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from core.commands import CommandParser
from core.errors import UserError
from core.progress import progress
from core.text import format_value
from runs.ranks import is_first_process

if TYPE_CHECKING:
    from config import RunConfig
    from runs.folder import RunFolder

OTHER_PAGES_SECONDS = 2.0  # that the end of a run may spend on the pages of other runs


def page(argv: list[str]) -> int:
    """`python -m runs page`"""
    parser = CommandParser("python -m runs page", "Write logs/index.html: every run, its curves, and comparisons.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="write only the pages of these runs, and the list")
    parser.add_argument(
        "--watch", nargs="?", const=5.0, type=float, metavar="SECONDS", help="go on, as runs change, every so often [5]"
    )
    options = parser.parse_args(argv)
    watch: float | None = options.watch
    if watch is not None and not 0.5 <= watch <= 86_400:
        raise UserError(f"--watch is {watch:g}: give seconds from 0.5 to 86400, or nothing for 5.")
    logs = logs_folder(options.logs_dir)
    from runs.pages.site import Site
    from runs.run import find_run

    names = [find_run(logs, name).run_id for name in options.runs]
    site = Site(logs)
    with progress("pages", "runs", count_runs(logs)) as advance:
        written = site.write(names, 0 if names else float("inf"), watch or 0.0, advance)
    others = f", {written.left} as they were" if written.left else ""
    print(f"runs: {written.runs}, pages written anew: {written.rewritten}{others}")
    print(f"page  {written.index}")
    while watch is not None:
        time.sleep(watch)
        written = site.write(names, 0 if names else float("inf"), watch)
        if written.rewritten:
            print(f"{time.strftime('%H:%M:%S')}  {written.rewritten} of {written.runs} runs changed", flush=True)
    return 0


def serve(argv: list[str]) -> int:
    """`python -m runs serve`"""
    parser = CommandParser("python -m runs serve", "Show the pages live, on this machine only.")
    parser.add_argument("--port", type=int, default=8686, metavar="N", help="where to listen; 0 is any free one [8686]")
    options = parser.parse_args(argv)
    if not 0 <= options.port <= 65_535:
        raise UserError(f"--port is {options.port}: give a whole number from 0 to 65535; 0 takes one that is free.")
    logs = logs_folder(options.logs_dir)
    from runs.pages.server import run_server
    from runs.pages.site import Site

    with progress("pages", "runs", count_runs(logs)) as advance:
        Site(logs).write(advance=advance)
    return run_server(logs, options.port)


def write_after_run(logs: Path, run_id: str) -> Path | None:
    """The index after a run has ended, with that run's page; a failure is one line, since the run itself is well."""
    try:
        from runs.pages.site import Site

        return Site(logs).write([run_id], OTHER_PAGES_SECONDS).index
    except Exception as error:  # whatever it is, it must not cost a finished run its exit status
        print(f"the pages were not written: {format_value(str(error) or type(error).__name__)}", file=sys.stderr)
        return None


@contextmanager
def failure_on_page(folder: RunFolder, config: RunConfig, step: int) -> Iterator[None]:
    """Record a UserError that is raised before the attempt begins as an attempt that it ended, and update the pages."""
    try:
        yield
    except UserError as error:
        with suppress(UserError), folder.attempt(config, step):
            raise error
        if is_first_process():
            write_after_run(folder.path.parent.parent, folder.run_id)
        raise


def logs_folder(name: str) -> Path:
    """The folder of all runs, if there is one."""
    logs = Path(name)
    if not (logs / "runs").is_dir():
        raise UserError(
            f"--logs_dir is {format_value(name)}: there is no {format_value(str(logs / 'runs'))} yet; "
            "train something first, or name the folder that has your runs."
        )
    return logs


def count_runs(logs: Path) -> int:
    return sum(1 for _ in (logs / "runs").iterdir())
