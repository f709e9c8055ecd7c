"""`python -m launch sweep FILE`: many runs from one file; applied again, it submits what failed or is new.

The rows are checked by the parser of train_model.py, named after what differs between them, and compared with existing
runs. New ones become tasks of Slurm arrays, cut to the cluster's limit, or jobs of the queue of this machine.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import chdir
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from config import RunConfig, SettingsError, parse_command_line
from config.record import flag_named, identity, values_of
from config.task import TaskFacts, find_task
from config.task_flags import SELECTORS, choose_flags, task_flags
from config.twin import twin_values
from core.commands import CommandParser
from core.errors import UserError
from core.files import write_text
from core.text import format_value, plural
from launch import queue
from launch.capsule import is_relative_path, make_capsules, new_sweep_folder, write_or_link
from launch.job import read_record
from launch.queue import unfinished_runs
from launch.resources import as_options, check_limits, check_placement
from launch.script import (
    DEFAULT_OPTIONS,
    DEFAULT_SCRIPT,
    ROOT,
    Header,
    JobScript,
    active_environment,
    check_syntax,
    header_commands,
    quote_for_slurm,
    read_text,
    sbatch_lines,
    sbatch_options,
)
from launch.slurm import ACTIVE, SLURM_HELP, STATES, choose_cluster, header_for, jobs_of, largest_array, status_of
from launch.study_file import Study
from launch.submission import Submission, check_with_slurm
from launch.submit import DRY_RUN_ID, logs_flag, print_start
from launch.sweep_file import Row, SweepFile, flag_words, group_by_row, read_sweep
from runs.run import Run, all_runs

MAX_ROWS_SHOWN = 200  # larger tables are shortened
TABLE_WIDTH = 140  # of the table if the terminal's width is not known
PURPOSE = """\
Submit many runs from a YAML file (base, grid, rows) or a CSV file (a column a flag). Every row is checked first.
Rows with the settings of a run that is finished or under way are left alone, so the same file can be applied again."""
MAX_NAME_LENGTH = 60  # characters that a run's folder takes of its name
QUEUED = "in the queue"
ARRAY_SCRIPT = "array.slurm"


def sweep(argv: list[str]) -> int:
    """The command: check all rows, compare them with existing runs, show them, submit."""
    parser = CommandParser("python -m launch sweep", PURPOSE)
    parser.add_argument("file", metavar="FILE", help="YAML or CSV; docs/sweeps.md shows both")
    parser.add_argument("--dry_run", action="store_true", help="show what would happen, and make nothing")
    parser.add_argument(
        "--max_parallel", type=int, metavar="N", help="at most so many runs at once, on Slurm; a study's also here"
    )
    parser.add_argument("--header", metavar="H", help="a file of job_scripts/headers/: what to ask Slurm for")
    parser.add_argument("--slurm", action="append", default=[], metavar="NAME=VALUE", help=SLURM_HELP)
    parser.add_argument(
        "--cluster",
        choices=("auto", "slurm", "local"),
        default="auto",
        help="slurm: as arrays; local: one after another on this machine; auto: slurm, else local",
    )
    parser.add_argument("--with_twin", action="store_true", help="beside every run the baseline of its task")
    parser.add_argument("--evaluate", action="store_true", help="python -m inference evaluate after each run")
    parser.add_argument(
        "--skip_failed", action="store_true", help="of a study: rows that failed are not run again, and count as lost"
    )
    parser.add_argument("--follow", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.max_parallel is not None and options.max_parallel < 1:
        raise UserError(f"--max_parallel is {options.max_parallel}: give a whole number of at least 1.")
    path, logs = Path(options.file), Path(options.logs_dir).absolute()
    sweep_file = read_sweep(path)
    cluster = choose_cluster(options.cluster)
    if options.header is None and cluster == "slurm":
        options.header = sweep_file.header
    if sweep_file.study is not None:
        return start_study(sweep_file.study, path, logs, options, argv, cluster)
    if options.skip_failed:
        raise UserError("--skip_failed has no effect on this file, which is no study: remove it.")
    rows = plan_rows(replace(sweep_file, twin=sweep_file.twin or options.with_twin), logs)
    header = header_for(options.header, cluster, options.slurm)
    if options.max_parallel is not None and header is None:
        raise UserError("--max_parallel has no effect on this machine, where rows run one after another: remove it.")
    compare_with_runs(rows, logs, unfinished_runs(logs))
    show_rows(rows)
    submitted = [row for row in rows if row.is_submitted]
    if options.dry_run or not submitted:
        print("nothing was made: --dry_run" if options.dry_run else "nothing to submit")
        return 0
    start = check_array(header, submitted, logs, options.evaluate) if header else ""
    sweep_dir = new_sweep_folder(logs, sweep_file.name)
    shutil.copyfile(path, sweep_dir / f"sweep{path.suffix}")
    make_capsules(submitted, header, logs, sweep_dir, argv)
    runs = [row.run for row in submitted if row.run is not None]
    if header is None:
        count = queue.add_runs(logs, runs, options.evaluate)
        print(f"{queue.are_jobs(count)} in the queue of this machine")
        queue.start(logs)
        print(f"follow  python -m launch queue status{logs_flag(logs)}")
        return 0
    for line in submit_arrays(runs, header, sweep_dir, options.max_parallel, options.evaluate):
        print(line, flush=True)
    print(f"sweep   {sweep_dir}")
    print_start(start)
    print(f"follow  python -m launch status{logs_flag(logs)}")
    return 0


def start_study(
    study: Study, path: Path, logs: Path, options: argparse.Namespace, argv: list[str], cluster: str
) -> int:
    """The command for a file that is a study."""
    from launch.study import Options, apply_study  # here, since that module imports this one

    for flag, instead in {
        "with_twin": "name the baseline under contestants",
        "evaluate": "its winners are tested when they are confirmed",
    }.items():
        if getattr(options, flag):
            raise UserError(f"--{flag} has no effect on a study: {instead}; remove it.")
    header = header_for(options.header, cluster, options.slurm)
    of_command = Options(argv, options.dry_run, options.max_parallel, options.skip_failed, options.follow)
    return apply_study(study, path, logs, header, of_command)


def show_rows(rows: Sequence[SweepRow]) -> None:
    """Print one line per row, and the count of each action."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(console.width, TABLE_WIDTH))
    table = Table(box=None, pad_edge=False)
    for heading in ("row", "run", "what differs", "what happens"):
        table.add_column(heading, justify="right" if heading == "row" else "left", overflow="fold")
    for row in rows if len(rows) <= MAX_ROWS_SHOWN else rows[: MAX_ROWS_SHOWN // 2]:
        varied = "  ".join(f"{name}={format_value(value)}" for name, value in row.varied.items())
        name = row.run.name if row.run is not None else row.name
        table.add_row(str(row.number), Text(name), Text(varied), Text(row.action, style=colour(row)))
    console.print(table)
    if len(rows) > MAX_ROWS_SHOWN:
        print(f" …  and {len(rows) - MAX_ROWS_SHOWN // 2} rows more")
    kinds = Counter("repeated" if row.action.startswith("as row") else row.action.partition(":")[0] for row in rows)
    parts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    print(f"{plural(len(rows), 'row')}: {parts}; {sum(row.is_submitted for row in rows)} to submit")


def colour(row: SweepRow) -> str:
    return "green" if row.action == "new" else "yellow" if row.is_submitted else "dim"


# -- rows ------------------------------------------------------------------------------------------------------------


@dataclass
class SweepRow:
    """One row, which becomes a run.

    varied: its flags that differ between rows. action: what is done with it, in words. run: its folder, once it exists;
    is_new: whether it has to be created. parent: the run that it repeats.
    """

    number: int
    name: str
    words: list[str]
    config: RunConfig
    varied: Row
    action: str = "new"
    run: Path | None = None
    parent: str | None = None
    is_new: bool = True
    is_submitted: bool = True
    identity: tuple[Any, ...] = field(default=(), repr=False)


def plan_rows(sweep: SweepFile, logs: Path) -> list[SweepRow]:
    """All rows, checked; the problems of all rows are one error."""
    rows = [*sweep.rows, *twins(sweep.rows)] if sweep.twin else sweep.rows
    differing = differing_flags(rows)
    names = run_names(sweep.name, rows, differing)
    planned, problems = [], []
    with chdir(ROOT):  # relative paths are relative to it, as for the other commands
        for number, (row, name) in enumerate(zip(rows, names, strict=True), 1):
            row_problems: list[str] = []
            words = flag_words(with_absolute_paths(row) | {"run_name": name}, row_problems)
            try:
                config = parse_command_line([*words, f"--logs_dir={logs}"])
            except SettingsError as error:
                row_problems += error.args[0]
            if row_problems:
                problems += [(number, problem) for problem in row_problems]
                continue
            varied = {flag: row[flag] for flag in differing if flag in row}
            planned.append(SweepRow(number, name, words, config, varied, identity=identity(values_of(config))))
    if problems:
        raise SettingsError(group_by_row(problems))
    return planned


def twins(rows: Iterable[Row]) -> list[Row]:
    """The baseline of each row by its task: the same flags without those that only its own model uses."""
    return [twin_values(task, row) for row in rows if not is_twin(row, task := task_with_twin(row))]


def task_of(row: Row) -> TaskFacts:
    return find_task(choose_flags({name: str(row[name]) for name in SELECTORS if row.get(name) is not None})[0])


def task_with_twin(row: Row) -> TaskFacts:
    task = task_of(row)
    if not task.twin:
        raise UserError(f"--with_twin has no effect with --task {task.name}, which has no baseline: remove it.")
    return task


def is_twin(row: Row, task: TaskFacts) -> bool:
    """Whether a row is a run of the task's baseline already."""
    flags = task_flags(task).flags
    return bool(task.twin) and all(row.get(name, flags[name].default) == value for name, value in task.twin.items())


def twin_suffix(row: Row) -> str:
    """The end of a baseline's name, such as -transformer++; empty for other rows."""
    task = task_of(row)
    if not is_twin(row, task):
        return ""
    return f"-{name_part(task.models.get(str(row.get('model_name')), 'twin').lower())}"


def with_absolute_paths(row: Row) -> Row:
    return {
        name: os.path.abspath(value) if isinstance(value, str) and value and is_path(name, value, row) else value
        for name, value in row.items()
    }


def is_path(name: str, value: str, row: Row) -> bool:
    return name == "config" or is_relative_path(flag_named(name, row), value)


def differing_flags(rows: Sequence[Row]) -> list[str]:
    """The flags that differ between rows, in the order in which they are written."""
    flags = dict.fromkeys(name for row in rows for name in row if name != "run_name")
    return [name for name in flags if any(row.get(name) != rows[0].get(name) for row in rows)]


def run_names(sweep: str, rows: Sequence[Row], differing: Sequence[str]) -> list[str]:
    """A name for each row, no two the same: its own run_name or the sweep's name, and what differs."""
    own_names = [row.get("run_name") for row in rows]
    if len(set(map(str, own_names))) == len(rows) > 1:
        return [str(name) for name in own_names]
    names: list[str] = []
    taken: set[str] = set()
    for number, row in enumerate(rows, 1):
        prefix = str(row.get("run_name") or sweep)
        suffix = twin_suffix(row) if "model_name" in differing else ""
        flags = [flag for flag in differing if flag in row and not (suffix and flag == "model_name")]
        parts = {flag: name_part(format_value(row[flag])) for flag in flags}
        name = "-".join([prefix, *(f"{flag}={value}" for flag, value in parts.items())]) + suffix
        if len(name) > MAX_NAME_LENGTH:
            name = "-".join([prefix, *(f"{initials(flag)}={value}" for flag, value in parts.items())]) + suffix
        if len(name) > MAX_NAME_LENGTH or name in taken:
            suffix = f"-{number}{suffix}"
            name = name[: MAX_NAME_LENGTH - len(suffix)] + suffix
        taken.add(name)
        names.append(name)
    return names


def name_part(text: str) -> str:
    """The text with only characters that are safe in a name."""
    return re.sub(r"[^\w.+-]+", "-", text, flags=re.ASCII).strip("-") or "x"


def initials(flag: str) -> str:
    return "".join(word[0] for word in flag.split("_") if word)


def compare_with_runs(rows: Sequence[SweepRow], logs: Path, queued: set[Path]) -> None:
    """Set the action of each row: done and running ones are skipped, others are resumed or started.

    queued: runs that wait in the queue of this machine.
    """
    identities = {row.identity for row in rows}
    runs_by_identity: dict[tuple[Any, ...], list[Run]] = {}
    for run in all_runs(logs):
        try:
            key = identity(asked_settings(run))
            if key in identities:
                runs_by_identity.setdefault(key, []).append(run)
        except TypeError:  # a record with values that no flag can have
            continue
    jobs = jobs_of([run for runs in runs_by_identity.values() for run in runs])
    first: dict[tuple[Any, ...], int] = {}
    for row in rows:
        if row.identity in first:
            row.action, row.is_submitted = f"as row {first[row.identity]}", False
            continue
        first[row.identity] = row.number
        runs = runs_by_identity.get(row.identity, [])
        decide(row, [(run, QUEUED if run.path in queued else status_of(run, jobs).state) for run in runs])


def asked_settings(run: Run) -> dict[str, Any]:
    """The settings of a run as its row had them: --match_flops has replaced some by what it chose."""
    if run.settings.get("match_flops") is None:
        return run.settings
    asked = run.read("lineage.json").get("asked")
    return run.settings | (asked if isinstance(asked, dict) else {})


def decide(row: SweepRow, states: Sequence[tuple[Run, str]]) -> None:
    """Set the action of a row. states: the runs with its settings, newest first, and their states."""
    for run, state in states:
        if state == "finished":
            row.action, row.run, row.is_submitted = "done", run.path, False
            return
    for run, state in states:
        is_abandoned = state == "waiting" and run.job_name is None  # its submission was interrupted
        if (state in (*ACTIVE, QUEUED) and not is_abandoned) or (state == "prepared" and run.is_held):
            row.action, row.run, row.is_submitted = state, run.path, False
            return
    for run, state in states:
        if state in STATES and STATES[state].resumable and has_capsule(run):
            row.action, row.run, row.is_new = f"resumes: {state}", run.path, False
            return
    if states:
        run, state = states[0]
        row.action, row.parent = f"again: {state}", run.run_id


def has_capsule(run: Run) -> bool:
    """Whether its folder has all that is needed to resume it."""
    return (run.path / "job_script.slurm").is_file() and (run.path / "code").is_dir() and os.access(run.path, os.W_OK)


# -- arrays ----------------------------------------------------------------------------------------------------------


class ArraySubmission(Submission):
    """The submission of one array, from a folder with its script; its state is saved there and in each task's run."""

    def __init__(self, array_dir: Path, options: Sequence[str], runs: Sequence[Path] = ()) -> None:
        super().__init__(array_dir, options)
        self.runs = runs

    def send(self) -> str:
        return self.call_slurm(["sbatch", "--hold", "--parsable", *self.options, str(self.run / ARRAY_SCRIPT)])

    def save_state(self, state: str, **more: Any) -> None:
        super().save_state(state, **more)
        job = more.pop("job", None)
        cluster = {name: value for name, value in read_record(self.run / "job.json").items() if name == "cluster"}
        written: dict[str, Path] = {}
        for task, run in enumerate(self.runs):
            if job is not None:  # held; each run is recorded as submitting already
                write_or_link(run / "job.json", {"array_job": job, "array_task": str(task), **cluster}, {})
                continue
            record = {name: value for name, value in read_record(run / "submission.json").items() if name != "error"}
            record |= {"state": state, "time": self.record["time"], **more}
            write_or_link(run / "submission.json", record, written)


def check_array(header: Header, rows: Sequence[SweepRow], logs: Path, evaluate: bool) -> str:
    """When and where the first array of these rows is expected to start; raises if it never would."""
    text = array_script(logs / "sweeps" / DRY_RUN_ID, header, "slurm-%A_%a.log", [])
    for settings in {(s.gpus, s.allow_idle_gpus): s for s in (row.config.trainer for row in rows)}.values():
        check_placement(sbatch_lines(text), settings)
    check_limits(sbatch_lines(text), header.resources, len(rows), 1 + evaluate)
    return check_with_slurm(text, [f"--array=0-{min(len(rows), largest_array()) - 1}", *as_options(header.resources)])


def submit_arrays(
    runs: Sequence[Path], header: Header, sweep_dir: Path, max_parallel: int | None, evaluate: bool
) -> Iterator[str]:
    """Submit the runs as arrays; yields a line for each. sweep_dir: the sweep's folder."""
    limit, previous = largest_array(), ""
    for first in range(0, len(runs), limit):
        chunk = runs[first : first + limit]
        array_dir = link_tasks(sweep_dir / f"array{first // limit}", chunk)
        write_array_script(array_dir, header, "slurm-%A_%a.log", ['exec bash "$run/job_script.slurm"'])
        tasks = f"--array=0-{len(chunk) - 1}" + (f"%{max_parallel}" if max_parallel else "")
        # arrays one after another, otherwise each would run max_parallel tasks
        after = [f"--dependency=afterany:{previous}"] if previous and max_parallel else []
        previous = ArraySubmission(array_dir, [*as_options(header.resources), tasks, *after], chunk).submit()
        yield f"array {previous}: {plural(len(chunk), 'run')}"
        if evaluate:
            evaluation_dir = link_tasks(sweep_dir / f"evaluation{first // limit}", chunk)
            write_array_script(
                evaluation_dir, header, "evaluation-%A_%a.log", evaluation_commands(header), "--nodes=1", "--ntasks=1"
            )
            after = [f"--dependency=aftercorr:{previous}", "--kill-on-invalid-dep=yes"]
            yield f"array {ArraySubmission(evaluation_dir, [tasks, *after]).submit()}: the evaluation of each"


def link_tasks(array_dir: Path, runs: Sequence[Path]) -> Path:
    """Create a folder with a link for each task, so that one script and one log path serve all tasks."""
    array_dir.mkdir()
    for task, run in enumerate(runs):
        (array_dir / str(task)).symlink_to(os.path.relpath(run, array_dir))
    (array_dir / "code").symlink_to(os.path.relpath((runs[0] / "code").resolve(), array_dir))
    return array_dir


def evaluation_commands(header: Header) -> list[str]:
    return [
        "export PYTHONDONTWRITEBYTECODE=1 # the snapshot stays as it is",
        'cd -- "$run/code" || exit',
        "# shellcheck source=/dev/null",
        "source job_scripts/environment.sh",
        *header_commands(header),
        *active_environment(ROOT),
        'exec "${python:?}" -m inference evaluate --run "$run"',
    ]


def write_array_script(array_dir: Path, header: Header, log: str, body: Sequence[str], *more: str) -> None:
    write_text(array_dir / ARRAY_SCRIPT, array_script(array_dir, header, log, body, *more))


def array_script(array_dir: Path, header: Header, log: str, body: Sequence[str], *more: str) -> str:
    """The script of an array, whose tasks find their runs by links in `array_dir`.

    log: the name of a task's log in its run. more: options that win over the header's.
    """
    own = sbatch_lines(read_text(ROOT / DEFAULT_SCRIPT, "JOB_SCRIPT"))
    output = f'--output="{quote_for_slurm(str(array_dir))}/%a/{log}"'
    options = [sbatch_options(*DEFAULT_OPTIONS), (f"# {DEFAULT_SCRIPT}:", own), *header.lines]
    options += [sbatch_options(*more, f"--job-name={array_dir.parent.name}", output)]
    find_run = f'run=$(readlink -f {shlex.quote(str(array_dir))}/"$SLURM_ARRAY_TASK_ID") || exit'
    text = JobScript(options, ["set -uo pipefail", find_run, *body]).text
    check_syntax(text, header.name)
    return text
