"""`python -m launch sweep FILE` where FILE is a study: tune every contestant, then confirm the winners, then the table.

What is done follows from the runs there are, so applying the file again goes on where it stands: rows of tuning that
are missing, else the rows that confirm, else the table. On this machine one application comes to the end, several runs
at a time. On Slurm a stage is submitted as arrays, and a small job that depends on them applies the file again.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from config import SettingsError
from config.record import values_of
from config.task import Measure, find_task, measure_of
from core.environment import JOB_RUN_DIR
from core.errors import UserError
from core.files import write_json, write_text
from core.text import format_value, join_words, plural
from launch.capsule import make_capsules, new_sweep_folder
from launch.job import read_record
from launch.queue import locked, unfinished_runs
from launch.script import (
    DEFAULT_OPTIONS,
    DEFAULT_SCRIPT,
    ROOT,
    Header,
    JobScript,
    active_environment,
    check_syntax,
    header_commands,
    header_name,
    quote_for_slurm,
    read_text,
    sbatch_lines,
    sbatch_options,
)
from launch.study_file import Contestant, Study, results_folder, study_text
from launch.study_results import Choice, Outcome, Results, choose, write_results
from launch.submission import sbatch
from launch.submit import logs_flag, print_start
from launch.sweep import (
    SweepRow,
    check_array,
    compare_with_runs,
    differing_flags,
    name_part,
    plan_rows,
    run_names,
    show_rows,
    submit_arrays,
    with_absolute_paths,
)
from launch.sweep_file import SweepFile
from launch.workers import Workers, default_workers, threads_of_each
from runs.compare import why_not_comparable
from runs.metrics import task_from_text
from runs.process import EXIT_RESUMABLE
from runs.run import Run
from runs.slurm import run_slurm, scontrol_show

POLL_SECONDS = 1.0
NEXT_SCRIPT = "next.slurm"
NEXT_RECORD = "next.json"
NEXT_OPTIONS = ("--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--time=30")  # a job of seconds
TABLE_WIDTH = 160  # if the terminal's width is not known
TUNE, CONFIRM = "tune", "confirm"
OVER = "diverged"  # an end of a run that says something of its setting, so that it is not run again


@dataclass(frozen=True)
class Options:
    """Of the command. follow: called by the job that waits for a stage, which runs nothing again."""

    typed: list[str]
    dry_run: bool
    max_parallel: int | None
    skip_failed: bool
    follow: bool


@dataclass(frozen=True)
class StageRow:
    """One run that a stage needs. contestant, setting: their numbers in the study."""

    stage: str
    contestant: int
    setting: int
    seed: int
    row: SweepRow

    @property
    def run(self) -> Run:
        """Its newest run, read afresh."""
        assert self.row.run is not None
        return Run(self.row.run)

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.stage, self.contestant, self.setting, self.seed, self.run)


class Incomplete(Exception):
    """The study cannot go on now. status: the exit status of the command."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def apply_study(study: Study, path: Path, logs: Path, header: Header | None, options: Options) -> int:
    """Go on with a study; its exit status: 0 done or submitted, 1 rows failed, 75 stopped and to be applied again."""
    measures = check_study(study, logs)
    folder = results_folder(logs, name_part(study.name))
    try:
        with only_one(folder, options.dry_run):
            return Stages(study, path, logs, header, options, folder, measures).go_on()
    except Incomplete as end:
        print(end, file=sys.stderr if end.status else sys.stdout)
        return end.status


@contextmanager
def only_one(folder: Path, dry_run: bool) -> Iterator[None]:
    """One process at a time works on a study."""
    if dry_run:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--logs_dir is {str(folder.parent.parent)!r}: cannot write there ({error.strerror}): "
            "choose a folder you can write to."
        ) from None
    try:
        with locked(folder / "lock", wait=False):
            yield
    except BlockingIOError:
        raise UserError(
            f"{format_value(str(folder))} is in use: another process works on this study; wait for its end."
        ) from None


# -- checks ----------------------------------------------------------------------------------------------------------


def check_study(study: Study, logs: Path) -> dict[str, Measure]:
    """Read every setting with the parser of train_model.py; the measures of all columns. All problems are one error."""
    problems: list[str] = []
    planned: list[list[SweepRow]] = []
    seed = (study.tune_seeds or study.confirm_seeds)[0]
    for contestant in study.contestants:
        flags = [setting | {"seed": seed} for setting in contestant.settings]
        try:
            planned.append(plan_rows(SweepFile(study.name, flags), logs))
        except SettingsError as error:
            title = format_value(contestant.name)
            problems += [f"{title}, {problem.replace('row', 'setting', 1)}" for problem in error.args[0]]
    if problems:
        raise SettingsError(problems)
    check_seeds(study, planned[0][0], logs)
    problems += same_settings(study, planned)
    first = planned[0][0].config
    task = find_task(first.run.task)
    for contestant, rows in zip(study.contestants, planned, strict=True):
        if any(row.config.run.task != first.run.task for row in rows):
            problems.append(f"{contestant.name} has another task than {study.contestants[0].name}: a study has one.")
    if problems:
        raise SettingsError(problems)
    columns = [*([study.by] if study.by else []), *study.measures]
    measures: dict[str, Measure] = {}
    for contestant, rows in zip(study.contestants, planned, strict=True):
        declared = task.measures(values_of(rows[0].config))
        for column in columns:
            measure = measure_of(column, declared)
            if measure is None:
                split = column.partition("_")[0]
                names = [f"{split}_{each.name}" for each in declared if each.split and each.better]
                problems.append(
                    f"{column} is no measure of {format_value(contestant.name)}: choose {join_words(names)}."
                )
            elif column == study.by and measure.better is None:
                problems.append(f"tune.by is {column}: neither a low nor a high value of it is better; choose another.")
            else:
                measures.setdefault(column, measure)
    problems += incomparable(study, planned, measures)
    if problems:
        raise SettingsError(list(dict.fromkeys(problems)))
    return measures


def check_seeds(study: Study, row: SweepRow, logs: Path) -> None:
    """The flags that a study adds itself are read before anything is made, too."""
    setting = study.contestants[0].settings[0]
    rows = [setting | {"seed": seed} for seed in study.tune_seeds]
    plan_rows(SweepFile(study.name, rows + confirm_flags(setting, study.confirm_seeds)), logs)


def same_settings(study: Study, planned: Sequence[Sequence[SweepRow]]) -> Iterator[str]:
    """Two settings that compute the same are one, and budgets would not be equal."""
    first: dict[tuple[Any, ...], str] = {}
    for contestant, rows in zip(study.contestants, planned, strict=True):
        for number, row in enumerate(rows):
            title = f"{format_value(contestant.name)} ({contestant.label(number)})"
            if row.identity in first:
                yield (
                    f"{first[row.identity]} and {title} compute the same: what differs is not used by this model; "
                    "change one of them."
                )
            first.setdefault(row.identity, title)


def incomparable(study: Study, planned: Sequence[Sequence[SweepRow]], measures: dict[str, Measure]) -> Iterator[str]:
    """Contestants whose numbers do not tell who is better, as of other data."""
    from launch.capsule import json_text
    from runs.folder import task_record_of

    values = [values_of(row.config) for rows in planned for row in rows]
    owners = [contestant.name for contestant in study.contestants for _ in contestant.settings]
    task = task_from_text(json_text(task_record_of(planned[0][0].config)))
    for column in measures:
        for owner, other in zip(owners, values, strict=True):
            if why := why_not_comparable(values[0], other, column, task):
                yield f"{format_value(owners[0])} and {format_value(owner)} cannot be compared by {column}: {why}."


def confirm_flags(setting: dict[str, Any], seeds: Sequence[int]) -> list[dict[str, Any]]:
    return [setting | {"seed": seed, "run_testing_after_training": True} for seed in seeds]


# -- stages ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stages:
    """One application of a study. path: its file. folder: where its results are."""

    study: Study
    path: Path
    logs: Path
    header: Header | None
    options: Options
    folder: Path
    measures: dict[str, Measure]

    def go_on(self) -> int:
        """Each stage in turn, until one is not complete."""
        study = self.study
        tuned: list[Outcome] = []
        choices = [Choice(0, [], []) for _ in study.contestants]
        if study.by:
            count = len(study.contestants) * study.budget * len(study.tune_seeds)
            print(f"tuning: {plural(study.budget, 'setting')} for each of {len(study.contestants)}, {count} runs")
            tuned = self.complete(self.tuning_rows())
            better = self.measures[study.by].better
            assert better is not None
            choices = choose(study, tuned, better)
        results = Results(study, self.measures, tuned, choices, [])
        if study.by:
            for number, choice in enumerate(choices):
                print(f"chosen  {format_value(study.contestants[number].name)}: {results.setting_of(number)}"
                      f"{self.score_text(choice)}")  # fmt: skip
            self.write(results)
        if not results.rows:
            raise Incomplete(
                "No setting of any contestant could be judged: python -m launch why RUN says what happened.", 1
            )
        print(f"confirming: {plural(len(results.rows), 'winner')}, {plural(len(study.confirm_seeds), 'seed')} each")
        results = replace(results, confirmed=self.complete(self.confirming_rows(choices)))
        self.write(results)
        show_results(results)
        print(f"table   {self.folder / 'table.md'} (also table.csv, runs.csv, study.json)")
        return 0

    def score_text(self, choice: Choice) -> str:
        if choice.setting is None:
            return ""
        return f" ({self.study.by} {self.measures[self.study.by].format(choice.scores[choice.setting])})"

    def write(self, results: Results) -> None:
        if not self.options.dry_run:
            write_results(results, self.folder)

    def tuning_rows(self) -> list[StageRow]:
        study, places, flags = self.study, [], []
        for number, contestant in enumerate(study.contestants):
            for setting in range(len(contestant.settings)):
                places += [(TUNE, number, setting, seed) for seed in study.tune_seeds]
            rows = [row | {"seed": seed} for row in contestant.settings for seed in study.tune_seeds]
            flags += named_rows(self.prefix(contestant), rows)
        return self.plan(places, flags)

    def confirming_rows(self, choices: Sequence[Choice]) -> list[StageRow]:
        study, places, flags = self.study, [], []
        for number, (contestant, choice) in enumerate(zip(study.contestants, choices, strict=True)):
            if choice.setting is not None:
                places += [(CONFIRM, number, choice.setting, seed) for seed in study.confirm_seeds]
                rows = confirm_flags(contestant.settings[choice.setting], study.confirm_seeds)
                flags += named_rows(f"{self.prefix(contestant)}-confirm", rows)
        return self.plan(places, flags)

    def prefix(self, contestant: Contestant) -> str:
        return f"{self.study.name}-{name_part(contestant.name)}"

    def plan(self, places: Sequence[tuple[str, int, int, int]], flags: Sequence[dict[str, Any]]) -> list[StageRow]:
        rows = plan_rows(SweepFile(self.study.name, unique_names(flags)), self.logs)
        return [StageRow(*place, row) for place, row in zip(places, rows, strict=True)]

    def compare(self, rows: Sequence[StageRow]) -> None:
        """Set what happens to each row."""
        sweep_rows = [each.row for each in rows]
        compare_with_runs(sweep_rows, self.logs, unfinished_runs(self.logs))
        for row in sweep_rows:
            is_failed = row.is_submitted and row.action.startswith("again: ") and row.parent is not None
            if is_failed and (row.action == f"again: {OVER}" or self.options.skip_failed or self.options.follow):
                assert row.parent is not None
                row.run, row.is_submitted = self.logs / "runs" / row.parent, False
                row.action = row.action.removeprefix("again: ")

    def complete(self, rows: Sequence[StageRow]) -> list[Outcome]:
        """The outcomes of all rows; raises Incomplete as long as some are under way or failed."""
        self.compare(rows)
        show_rows([each.row for each in rows])
        submitted = [each.row for each in rows if each.row.is_submitted]
        if self.options.dry_run and any(each.row.action not in ("done", OVER) for each in rows):
            raise Incomplete("nothing was made: --dry_run; what comes next depends on these rows", 0)
        if self.header is None:
            self.run_here(submitted)
            self.wait_for_others(rows)
        else:
            self.run_on_slurm(rows, submitted, self.header)
        outcomes = [each.outcome for each in rows]
        self.check_ends(outcomes)
        return outcomes

    def check_ends(self, outcomes: Sequence[Outcome]) -> None:
        """Raise if rows neither finished nor diverged, unless they are to be skipped."""
        bad = [one for one in outcomes if one.state not in ("finished", OVER)]
        if not bad or self.options.skip_failed:
            return
        words = join_words([f"{format_value(one.run.run_id)} ({one.state})" for one in bad[:5]], "and")
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise Incomplete(
            f"{plural(len(bad), 'row')} did not come to the end: {words}{more}. python -m launch why RUN says what "
            "happened; apply the sweep again to run them again, or with --skip_failed to count them as lost.",
            1,
        )

    def save(self, submitted: Sequence[SweepRow]) -> Path:
        """The folder of what the rows share, with the file and their capsules."""
        sweep_dir = new_sweep_folder(self.logs, self.study.name)
        shutil.copyfile(self.path, sweep_dir / f"sweep{self.path.suffix}")
        make_capsules(submitted, self.header, self.logs, sweep_dir, self.options.typed)
        return sweep_dir

    # -- on this machine

    def run_here(self, submitted: Sequence[SweepRow]) -> None:
        if not submitted:
            return
        self.save(submitted)
        count = self.options.max_parallel or default_workers()
        parallel = min(count, len(submitted))
        threads = os.environ.get("OMP_NUM_THREADS") or threads_of_each(parallel)
        each = "thread" if str(threads) == "1" else "threads"
        print(
            f"{plural(len(submitted), 'run')} on this machine, {parallel} at a time, {threads} {each} each", flush=True
        )
        workers = Workers(count, print_now)
        if not workers.work([row.run for row in submitted if row.run is not None]):
            raise Incomplete(f"stopped; {APPLY_AGAIN}", EXIT_RESUMABLE)

    def wait_for_others(self, rows: Sequence[StageRow]) -> None:
        """Rows that another process of this machine runs, such as one of a killed application, are waited for."""
        for each in [each for each in rows if each.run.state in ("running", "silent")]:
            print_now(f"waiting for {format_value(each.run.run_id)}, which runs already")
            while each.run.is_held:
                time.sleep(POLL_SECONDS)
        under_way = [each for each in rows if each.row.action == "in the queue" and each.run.state != "finished"]
        if under_way:
            raise Incomplete(
                f"{plural(len(under_way), 'row')} of this study wait in the queue of this machine: when it is done, "
                f"{APPLY_AGAIN}",
                1,
            )

    # -- on Slurm

    def run_on_slurm(self, rows: Sequence[StageRow], submitted: Sequence[SweepRow], header: Header) -> None:
        """Submit what has to be, and a job that goes on when all have ended; raises Incomplete if there was any."""
        active = [each.row for each in rows if not each.row.is_submitted and each.row.action not in FINAL_ACTIONS]
        active = [row for row in active if row.run is not None and Run(row.run).state != "finished"]
        interrupted = [row for row in submitted if row.action != "new"]  # a person may have cancelled them
        if self.options.follow and (interrupted or active):
            names = join_words([row.name for row in (*interrupted, *active)][:5], "and")
            raise Incomplete(f"Rows have not come to their end ({names}): nothing was submitted; {APPLY_AGAIN}", 1)
        if not submitted and not active:
            return
        jobs = [str(Run(row.run).job_name) for row in active if row.run is not None and Run(row.run).job_name]
        if submitted:
            start = check_array(header, submitted, self.logs, evaluate=False)
            sweep_dir = self.save(submitted)
            runs = [row.run for row in submitted if row.run is not None]
            for line in submit_arrays(runs, header, sweep_dir, self.options.max_parallel, evaluate=False):
                print(line, flush=True)
                jobs.append(line.split()[1].rstrip(":"))
            print_start(start)
        elif next_job := waiting_job(self.folder):
            raise Incomplete(f"next    job {next_job} goes on when these rows have ended", 0)
        first = next(row.run for row in (*submitted, *active) if row.run is not None)
        self.submit_next(header, first, jobs)
        print(f"follow  python -m launch status{logs_flag(self.logs)}")
        raise Incomplete(f"results {self.folder}", 0)

    def submit_next(self, header: Header, run: Path, jobs: Sequence[str]) -> None:
        """Submit the job that applies the study again, from the snapshot of the code that its rows run."""
        if earlier := waiting_job(self.folder):  # it waits for fewer rows
            run_slurm("scancel", earlier)
        file = self.folder / f"{self.study.name}.yaml"
        write_text(file, study_text(absolute_study(self.study)))
        words = ["sweep", str(file), "--follow", "--cluster", "slurm", "--logs_dir", str(self.logs)]
        if name := header_name(header):
            words += ["--header", name]
        words += [word for resource in header.resources for word in ("--slurm", resource)]
        if self.options.max_parallel:
            words += ["--max_parallel", str(self.options.max_parallel)]
        if self.options.skip_failed:
            words.append("--skip_failed")
        write_text(self.folder / NEXT_SCRIPT, next_script(self.folder, header, run, words))
        try:
            job = sbatch([f"--dependency=afterany:{':'.join(jobs)}", str(self.folder / NEXT_SCRIPT)], run / "code")
        except UserError as error:
            print(f"{error} When the rows have ended, {APPLY_AGAIN}", file=sys.stderr)
            return
        write_json(self.folder / NEXT_RECORD, {"job": job, "after": list(jobs)})
        print(f"next    job {job} goes on when these rows have ended; or {APPLY_AGAIN}")


APPLY_AGAIN = "apply the sweep again, and it goes on where it stands."
FINAL_ACTIONS = ("done", OVER, "failed", "out of memory")


def print_now(line: str) -> None:
    print(line, flush=True)


def named_rows(prefix: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of one contestant, named by what differs between them."""
    names = run_names(prefix, rows, differing_flags(rows))
    return [row | {"run_name": name} for row, name in zip(rows, names, strict=True)]


def unique_names(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Long names of two contestants may be cut to the same one."""
    taken: set[str] = set()
    named = []
    for number, row in enumerate(rows, 1):
        name = row["run_name"] if row["run_name"] not in taken else f"{row['run_name']}-{number}"
        taken.add(name)
        named.append(row | {"run_name": name})
    return named


def absolute_study(study: Study) -> Study:
    """The study with paths that are right from any folder."""

    def absolute(contestant: Contestant) -> Contestant:
        here = os.getcwd()
        try:
            os.chdir(ROOT)
            return Contestant(contestant.name, [with_absolute_paths(setting) for setting in contestant.settings])
        finally:
            os.chdir(here)

    return replace(study, contestants=[absolute(contestant) for contestant in study.contestants])


def waiting_job(folder: Path) -> str | None:
    """The job that waits to go on with a study; None if there is none, or if it is this process's own."""
    job = read_record(folder / NEXT_RECORD).get("job")
    if job is None or str(job) == os.environ.get("SLURM_JOB_ID"):
        return None
    return str(job) if scontrol_show("job", str(job)).get("JobState") == "PENDING" else None


def next_script(folder: Path, header: Header, run: Path, words: Sequence[str]) -> str:
    """The script of the job that applies a study again. run: one whose code it uses."""
    own = sbatch_lines(read_text(ROOT / DEFAULT_SCRIPT, "JOB_SCRIPT"))
    output = f'--output="{quote_for_slurm(str(folder))}/next-%j.log"'
    options = [sbatch_options(*DEFAULT_OPTIONS), (f"# {DEFAULT_SCRIPT}:", own), *header.lines]
    options += [sbatch_options(*NEXT_OPTIONS, f"--job-name={name_part(folder.name)}-next", output)]
    text = JobScript(
        options,
        [
            "set -uo pipefail",
            "export PYTHONDONTWRITEBYTECODE=1 # the snapshot stays as it is",
            f"cd -- {shlex.quote(str(run / 'code'))} || exit",
            *("# shellcheck source=/dev/null", "source job_scripts/environment.sh"),
            *header_commands(header),
            *active_environment(ROOT),
            # the snapshot is taken over as it is by the runs of the next stage
            f"export {JOB_RUN_DIR}={shlex.quote(str(run))}",
            f'exec "${{python:?}}" -m launch {shlex.join(words)}',
        ],
    ).text
    check_syntax(text, header.name)
    return text


def show_results(results: Results) -> None:
    """Print the table and its sentences."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(console.width, TABLE_WIDTH))
    table = Table(box=None, pad_edge=False)
    for heading in results.head:
        table.add_column(heading, overflow="fold")
    for row in results.rows:
        table.add_row(*map(Text, results.cells(row)))
    console.print(table)
    for line in (*results.method(), *results.comparisons(), *results.notes()):
        print(line)
