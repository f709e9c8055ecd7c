"""The runs of a sweep as arrays of Slurm, cut to the cluster's limit; each task is a run of its own."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from core.files import write_text
from launch.capsules import write_quickly
from launch.cluster import USUAL, largest_array
from launch.execute import DRY, ROOT
from launch.limits import check_limits
from launch.prepare import read_job
from launch.rehearse import active_environment
from launch.resources import as_options, check_placement
from launch.script import FIRST, Header, check_syntax, commands_of, each_once, options_of, read_text, slurm_quoted
from launch.submit import Submission, check_with_slurm
from launch.sweep_rows import Planned

SCRIPT = "array.slurm"


class ArraySubmission(Submission):
    """One array, from a folder with its script; how far it came is noted there and in the run of each task."""

    def __init__(self, desk: Path, options: Sequence[str], runs: Sequence[Path] = ()) -> None:
        super().__init__(desk, options)
        self.runs = runs

    def send(self) -> str:
        return self.ask(["sbatch", "--hold", "--parsable", *self.options, str(self.run / SCRIPT)])

    def note(self, state: str, **more: Any) -> None:
        super().note(state, **more)
        job = more.pop("job", None)
        cluster = {name: value for name, value in read_job(self.run / "job.json").items() if name == "cluster"}
        written: dict[str, Path] = {}
        for task, run in enumerate(self.runs):
            if job is not None:  # it is held; that it waits, each run says already
                write_quickly(run / "job.json", {"array_job": job, "array_task": str(task), **cluster}, {})
                continue
            record = {name: value for name, value in read_job(run / "submission.json").items() if name != "error"}
            record |= {"state": state, "time": self.record["time"], **more}
            write_quickly(run / "submission.json", record, written)


def check_array(header: Header, rows: Sequence[Planned], logs: Path, evaluate: bool) -> str:
    """When and where the first array of these rows is expected to start; raises where it never would."""
    text = script_text(logs / "sweeps" / DRY, header, "slurm-%A_%a.log", [])
    for settings in {(s.gpus, s.allow_idle_gpus): s for s in (row.config.trainer for row in rows)}.values():
        check_placement(options_of(text), settings)
    check_limits(options_of(text), header.resources, len(rows), 1 + evaluate)
    return check_with_slurm(text, [f"--array=0-{min(len(rows), largest_array()) - 1}", *as_options(header.resources)])


def submit_arrays(
    runs: Sequence[Path], header: Header, desk: Path, most_at_once: int | None, evaluate: bool
) -> Iterator[str]:
    """What is submitted, a line each, as it comes. desk: the sweep's own folder."""
    limit, before = largest_array(), ""
    for first in range(0, len(runs), limit):
        part = runs[first : first + limit]
        table = lay_out(desk / f"array{first // limit}", part)
        write_script(table, header, "slurm-%A_%a.log", ['exec bash "$run/job_script.slurm"'])
        tasks = f"--array=0-{len(part) - 1}" + (f"%{most_at_once}" if most_at_once else "")
        # several arrays one after another, else each would have that many at once
        after = [f"--dependency=afterany:{before}"] if before and most_at_once else []
        before = ArraySubmission(table, [*as_options(header.resources), tasks, *after], part).submit()
        yield f"array {before}: {len(part)} runs"
        if evaluate:
            judge = lay_out(desk / f"evaluation{first // limit}", part)
            write_script(judge, header, "evaluation-%A_%a.log", evaluation(header), "--nodes=1", "--ntasks=1")
            after = [f"--dependency=aftercorr:{before}", "--kill-on-invalid-dep=yes"]
            yield f"array {ArraySubmission(judge, [tasks, *after]).submit()}: the evaluation of each"


def lay_out(table: Path, runs: Sequence[Path]) -> Path:
    """A folder with a link for each task, so that one script and one name of a log serve them all."""
    table.mkdir()
    for task, run in enumerate(runs):
        (table / str(task)).symlink_to(os.path.relpath(run, table))
    (table / "code").symlink_to(os.path.relpath((runs[0] / "code").resolve(), table))
    return table


def evaluation(header: Header) -> list[str]:
    return [
        "export PYTHONDONTWRITEBYTECODE=1 # the snapshot stays as it is",
        'cd -- "$run/code" || exit',
        "# shellcheck source=/dev/null",
        "source job_scripts/environment.sh",
        *commands_of(header),
        *active_environment(ROOT),
        'exec "${python:?}" -m inference evaluate --run "$run"',
    ]


def write_script(desk: Path, header: Header, log: str, body: Sequence[str], *more: str) -> None:
    write_text(desk / SCRIPT, script_text(desk, header, log, body, *more))


def script_text(desk: Path, header: Header, log: str, body: Sequence[str], *more: str) -> str:
    """more: options that win over the header's."""
    own = options_of(read_text(ROOT / USUAL, "JOB_SCRIPT"))
    lines = ["#!/usr/bin/env bash"]
    lines += each_once(
        [
            ("", [f"#SBATCH {option}" for option in FIRST]),
            (f"# {USUAL}:", own),
            *header.lines,
            ("", [f"#SBATCH {option}" for option in more]),
        ]
    )
    lines += [f"#SBATCH --job-name={desk.parent.name}", f'#SBATCH --output="{slurm_quoted(str(desk))}/%a/{log}"']
    lines += ["set -uo pipefail", f'run=$(readlink -f {shlex.quote(str(desk))}/"$SLURM_ARRAY_TASK_ID") || exit', *body]
    text = "\n".join(lines) + "\n"
    check_syntax(text, header.name)
    return text
