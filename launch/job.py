"""What a job's script calls on its node: it finds the run's folder, records starts, and judges how processes ended.

- `launch prepare FLAGS` prints the run's folder.
- `launch begin RUN` records a start.
- `launch refused RUN SENTENCE` records that a command of the header failed.
- `launch ended RUN LOG STATUS FLAGS` is called when the processes ended badly: it records the end of those that could
  not do so, names the task that ended first, and exits with 0 if the run should be queued again. Of its FLAGS, which
  are the run's, --notify is used.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from config import parse_command_line
from core.errors import UserError
from core.files import append_row, read_rows, write_json
from core.notify import masked
from runs import RunFolder
from runs.attempts import OUT_OF_MEMORY, REFUSED, Attempt, cause_by_slurm, is_resumable, merge_attempts
from runs.notify import tell_once
from runs.process import ATTEMPT_MARK, EXIT_RESUMABLE, attempt_mark
from runs.slurm import call_slurm, job_name, scontrol_show, slurm_job

JOB_KEYS = ("cluster", "job", "array_job", "array_task")
MAX_STARTS = 3  # from the same step; then a job is not queued again
TAIL_BYTES = 65_536  # of a log, where srun prints how tasks ended
# srun's message about a task that failed, such as `srun: error: n2: task 1: Killed`
TASK_ENDED = re.compile(r"^srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)[\d,-]*: (?P<how>.+)$", re.MULTILINE)
CAUSES_BY_SIGNAL = {  # by the beginning of srun's message; the first match counts
    "Killed": "out of memory or killed",
    "Out Of Memory": "out of memory",
    "Aborted": "crashed: aborted (SIGABRT)",
    "Bus error": "crashed: bus error (SIGBUS)",
    "Segmentation fault": "error: segmentation fault",
}
SIGNALS_BY_STATUS = {134: "Aborted", 135: "Bus error", 137: "Killed", 139: "Segmentation fault"}
UNREPORTED = ("out of memory", "killed", "error: segmentation")  # ends that the run itself could not log
CONSEQUENCES = (f"Exited with exit code {EXIT_RESUMABLE}", "Terminated")  # of a process that ended because another had


# -- before the processes start --------------------------------------------------------------------------------------


def prepare(argv: list[str]) -> Path:
    """The folder of this job's run. At the first start it is created, with the job's script and number in it."""
    config = parse_command_line(argv)
    job = slurm_job()
    if not job:
        return (RunFolder.resumed(config) or RunFolder.create(config)).path.absolute()
    if int(job.get("restart", 0)) > 0 and (earlier_folder := find_run_folder(job, Path(config.logging.logs_dir))):
        record_start(earlier_folder)
        return earlier_folder.absolute()
    if folder := RunFolder.resumed(config):
        save_job(folder.path, job)
    else:
        folder = RunFolder.create(config, lambda staging: save_job(staging, job))
    record_start(folder.path)
    return folder.path.absolute()


def prepare_command(argv: list[str]) -> int:
    """`launch prepare FLAGS`."""
    print(prepare(argv))
    return 0


def save_job(folder: Path, job: dict[str, Any]) -> None:
    save_script(job_name(job) or "", folder / "job_script.slurm")
    write_json(folder / "job.json", job)


def find_run_folder(job: dict[str, Any], logs: Path) -> Path | None:
    """The newest run of a job that was queued again."""
    folders = []
    for file in logs.glob("runs/[!.]*/job.json"):
        other = read_record(file)
        if all(other.get(key) == job.get(key) for key in JOB_KEYS) and (file.parent / "config.json").is_file():
            folders.append(file.parent)
    return max(folders, key=lambda run: run.name.rsplit("_", 2)[-2:], default=None)


def read_record(file: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if the file is missing or damaged."""
    try:
        job = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return job if isinstance(job, dict) else {}


def save_script(job: str, path: Path) -> None:
    """Copy the script as Slurm has it. A cluster may not allow that; the run continues without the copy."""
    try:
        done = call_slurm(["scontrol", "write", "batch_script", job, "-"], timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return
    if done.returncode == 0 and done.stdout:
        path.write_bytes(masked(done.stdout))


def record_start(folder: Path) -> None:
    """Add the job's first step to job.json, and warn if it started from there before."""
    job, step = read_record(folder / "job.json"), RunFolder(folder).newest_step
    job["starts"] = [*starts(job), step]
    with suppress(OSError):
        if (log := Path(os.readlink("/proc/self/fd/2"))).is_file():  # the path given to sbatch --output
            job["log"] = str(log)
    write_json(folder / "job.json", job)
    print(attempt_mark(), file=sys.stderr, flush=True)
    if (before := starts_from(job, step) - 1) > 0:
        print(
            f"warning: this job starts from step {step} again, {before + 1} times now: it was ended before a later "
            "step was saved. Where its own time limit did that, give it more with sbatch --time.",
            file=sys.stderr,
        )


def starts(job: dict[str, Any]) -> list[Any]:
    steps = job.get("starts")
    return steps if isinstance(steps, list) else []


def starts_from(job: dict[str, Any], step: int) -> int:
    """How many of the latest starts in a row were from this step."""
    earlier = [start != step for start in reversed(starts(job))]
    return earlier.index(True) if True in earlier else len(earlier)


def begin_command(argv: list[str]) -> int:
    """`launch begin RUN`."""
    record_job(Path(argv[0]))
    return 0


def record_job(run: Path) -> None:
    """Record which job this is and from which step it starts."""
    record, job = read_record(run / "job.json"), slurm_job()
    if record.get("job") != job.get("job"):
        record.pop("starts", None)  # the script was submitted again
    write_json(run / "job.json", record | job)
    record_start(run)


def refused_command(argv: list[str]) -> int:
    """`launch refused RUN SENTENCE`: record an attempt that ended because a header command failed."""
    folder, sentence = RunFolder.open(Path(argv[0])), argv[1]
    record_job(folder.path)
    folder.lock()
    folder.record_killed()
    attempt = Attempt(folder, folder.newest_step)
    attempt.begin()
    attempt.end(folder.newest_step, f"{REFUSED}{sentence}")
    return 0


# -- after the processes have ended ----------------------------------------------------------------------------------


def ended_command(argv: list[str]) -> int:
    """`launch ended RUN LOG STATUS FLAGS`; 0 if the run should be queued again."""
    folder, log, status = RunFolder.open(Path(argv[0])), log_tail(Path(argv[1])), int(argv[2])
    folder.lock()  # raises if one of the processes is alive
    is_unrecorded = any("start" in row and "end" not in row for row in merge_attempts(read_rows(folder.attempts)))
    last = record_end(folder, log, status)
    cause = str(last.get("cause") or "")
    if not is_resumable(status, cause):
        if cause.startswith(UNREPORTED):
            print(f"not queued again: {cause}{first_task(last)}; python -m launch why {folder.run_id} says more")
        if (is_unrecorded or "attempt" not in last) and last.get("cause") not in (None, "cancelled"):
            # Other ends were reported by the run itself; a cancelled run needs no notification.
            tell_once(
                folder.path, "failure", f"ended at step {last.get('last_step', folder.newest_step)}: {last['cause']}."
            )
        return 1
    check_progress(folder.path)
    return 0


def first_task(attempt: dict[str, Any]) -> str:
    return f" (task {attempt['ended_rank']} on {attempt['ended_on']})" if "ended_on" in attempt else ""


def log_tail(log: Path) -> str:
    """The end of the job's log, from the mark of this start."""
    text = ""
    with suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, os.path.getsize(log) - TAIL_BYTES))
        text = file.read().decode(errors="replace")
    positions = [match.start() for match in ATTEMPT_MARK.finditer(text)]
    return text[positions[-1] :] if positions else text


def record_end(folder: RunFolder, log: str, status: int) -> dict[str, Any]:
    """Record the end of this start's attempt and return the attempt; only the cause if no attempt had begun."""
    task, cause = first_end(log, status)
    if cause != "out of memory":
        cause = cause_of_job_end() or cause
    attempts = merge_attempts(read_rows(folder.attempts))
    last = attempts[-1] if attempts else {}
    job = slurm_job()
    if any(last.get(key) != job.get(key) for key in ("job", "restart")):  # it ended before its attempt began
        return {"cause": cause}
    if "start" in last and "end" not in last:
        folder.record_killed(cause)
    elif cause and str(last.get("cause", "")).startswith("crashed"):  # process 0 recorded that one died, but not why
        append_row(folder.attempts, {"attempt": last["attempt"], "cause": cause})
    newest = merge_attempts(read_rows(folder.attempts))[-1:]
    if newest and task and str(newest[0].get("cause")) not in ("finished", "time limit", "preempted", "requeued"):
        append_row(folder.attempts, {"attempt": newest[0]["attempt"], **task})
        newest[0] |= task
    return newest[0] if newest else {}


def first_end(log: str, status: int) -> tuple[dict[str, Any], str | None]:
    """The task that failed first, and its cause if the log tells."""
    ends = [match for match in TASK_ENDED.finditer(log) if not match["how"].startswith(CONSEQUENCES)]
    how = ends[0]["how"] if ends else SIGNALS_BY_STATUS.get(status, "")
    task = {"ended_on": ends[0]["node"], "ended_rank": int(ends[0]["rank"])} if ends else {}
    if OUT_OF_MEMORY.search(log.encode()):
        return task, "out of memory"
    return task, next((cause for words, cause in CAUSES_BY_SIGNAL.items() if how.startswith(words)), None)


def cause_of_job_end() -> str | None:
    """Slurm's cause for the end of this job; None if it gives none."""
    job = slurm_job()
    name = job_name(job)
    return cause_by_slurm(scontrol_show("job", name), int(job.get("restart", 0))) if name else None


def check_progress(folder: Path) -> None:
    """Raise if the job was ended several times before it saved a later step."""
    step = RunFolder.open(folder).newest_step
    if starts_from(read_record(folder / "job.json"), step) >= MAX_STARTS:
        message = (
            f"the job started {MAX_STARTS} times from step {step} and was ended before a later step was saved: it is "
            "not queued again. Give it more time (sbatch --time), then resume with the same flags and "
            "--resume_training_ckpt last."
        )
        tell_once(folder, "stuck", message)
        raise UserError(message)
