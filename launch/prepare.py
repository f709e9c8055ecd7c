"""What a job does around its processes: it finds its run's folder, and notices when it gets nowhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from config import parse_command_line
from core.errors import UserError
from core.files import write_json
from core.notify import masked
from runs import RunFolder
from runs.attempts import slurm_job
from runs.causes import job_name
from runs.console import start_mark
from runs.notify import tell_once

IDENTITY = ("cluster", "job", "array_job", "array_task")
TRIES = 3  # starts from one and the same step, after which a job is not queued again


def prepare(argv: list[str]) -> Path:
    """The folder of this job's run. The first time it is made, with the job's script and number in it."""
    config = parse_command_line(argv)
    job = slurm_job()
    if not job:
        return (RunFolder.resumed(config) or RunFolder.create(config)).path.absolute()
    if int(job.get("restart", 0)) > 0 and (found := folder_of(job, Path(config.logging.logs_dir))):
        note_start(found)
        return found.absolute()
    if folder := RunFolder.resumed(config):
        keep_job(folder.path, job)
    else:
        folder = RunFolder.create(config, lambda staging: keep_job(staging, job))
    note_start(folder.path)
    return folder.path.absolute()


def prepare_command(argv: list[str]) -> int:
    print(prepare(argv))
    return 0


def keep_job(folder: Path, job: dict[str, Any]) -> None:
    keep_script(job_name(job) or "", folder / "job_script.slurm")
    write_json(folder / "job.json", job)


def folder_of(job: dict[str, Any], logs: Path) -> Path | None:
    """The newest run of a job that was queued again."""
    found = []
    for file in logs.glob("runs/[!.]*/job.json"):
        other = read_job(file)
        if all(other.get(key) == job.get(key) for key in IDENTITY) and (file.parent / "config.json").is_file():
            found.append(file.parent)
    return max(found, key=lambda run: run.name.rsplit("_", 2)[-2:], default=None)


def read_job(file: Path) -> dict[str, Any]:
    """What job.json says; nothing where it is damaged."""
    try:
        job = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return job if isinstance(job, dict) else {}


def keep_script(job: str, path: Path) -> None:
    """The script as Slurm has it; a cluster that does not give it away costs the copy, not the run."""
    try:
        done = subprocess.run(["scontrol", "write", "batch_script", job, "-"], capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return
    if done.returncode == 0 and done.stdout:
        path.write_bytes(masked(done.stdout))


def note_start(folder: Path) -> None:
    """Add the step that the job starts from to job.json, and say so if it started from there before."""
    job, step = read_job(folder / "job.json"), RunFolder(folder).newest_step
    job["starts"] = [*starts(job), step]
    with suppress(OSError):
        if (log := Path(os.readlink("/proc/self/fd/2"))).is_file():  # wherever sbatch was told to write
            job["log"] = str(log)
    write_json(folder / "job.json", job)
    print(start_mark(), file=sys.stderr, flush=True)
    if (before := starts_from(job, step) - 1) > 0:
        print(
            f"warning: this job starts from step {step} again, {before + 1} times now: it was ended before a later "
            "step was saved. Where its own time limit did that, give it more with sbatch --time.",
            file=sys.stderr,
        )


def starts(job: dict[str, Any]) -> list[Any]:
    found = job.get("starts")
    return found if isinstance(found, list) else []


def starts_from(job: dict[str, Any], step: int) -> int:
    """How many of the latest starts in a row were from this step."""
    earlier = [start != step for start in reversed(starts(job))]
    return earlier.index(True) if True in earlier else len(earlier)


def check_progress(folder: Path) -> None:
    """Refuse to go on with a job that is ended each time before it comes any further."""
    step = RunFolder.open(folder).newest_step
    if starts_from(read_job(folder / "job.json"), step) >= TRIES:
        words = (
            f"the job started {TRIES} times from step {step} and was ended before a later step was saved: it is not "
            "queued again. Give it more time (sbatch --time), then go on with the same flags and "
            "--resume_training_ckpt last."
        )
        tell_once(folder, "stuck", words)
        raise UserError(words)
