"""Handing a job script to Slurm: checked, submitted held, recorded, then released, so that no job lacks its record.

Also `--after RUN [--if finished|failed|any]`: a run that starts when another has ended, as a dependency of Slurm. Slurm
decides by exit statuses, and so do we where RUN has ended already: `finished` is 0, which includes that a goal is met;
`failed` is every other final end. A job that is queued again has not ended.
"""

from __future__ import annotations

import glob
import re
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.files import write_json
from core.text import format_value
from launch.job import read_record
from launch.resources import as_options
from launch.script import Header, JobScript, sbatch_lines
from launch.slurm import ACTIVE, END_CONDITIONS, jobs_of, status_of
from runs.run import Run, find_run
from runs.slurm import SlurmRefused, SlurmTimeout, must_run_slurm

TEST_COMMAND = ("sbatch", "--test-only")
TEST_TIMEOUT_SECONDS = 30  # for an optional answer
TRIAL_OPTIONS = ("--parsable", "--begin=now+10minutes", "--mail-type=NONE")
# Reasons of jobs that Slurm accepts and never starts.
IMPOSSIBLE_REASONS = ("BadConstraints", "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit")
YEAR = 365 * 86400
CONDITIONS = {"finished": "afterok", "failed": "afternotok", "any": "afterany"}
AFTER_HELP = "start when RUN has ended: id, name, job, path, or last; on Slurm"
IF_HELP = "how RUN has to end: finished (its goal met, if it has one), failed (any other end), or any [finished]"


# -- before the submission -------------------------------------------------------------------------------------------


def need_slurm(instead: str = "leave HEADER out to run here and now") -> None:
    if shutil.which("sbatch") is None:
        raise UserError(f"There is no sbatch on this machine: {instead}, or go to a login node.")


def check_with_slurm(script: str, options: Sequence[str] = ()) -> str:
    """When and where Slurm expects to start this script, in words; raises where it never would.

    Slurm does not check a job that is submitted held, so `sbatch --test-only` is asked first. It also refuses while
    nodes are down, and on some clusters it does not work. So if it refuses, sbatch is asked to accept a job that does
    nothing and may begin later, which is cancelled at once.
    """
    trial = JobScript([("", sbatch_lines(script))], ["true"]).text
    try:
        try:
            return expected_start("".join(must_run_slurm([*TEST_COMMAND, *options], script, TEST_TIMEOUT_SECONDS)))
        except SlurmRefused:
            job, _, cluster = must_run_slurm(["sbatch", *options, *TRIAL_OPTIONS], trial)[0].strip().partition(";")
    except SlurmTimeout:
        return ""
    except UserError as error:
        raise UserError(f"{error}.") from None
    on, output = ["-M", cluster] if cluster else [], ""
    with suppress(UserError):
        try:
            output, _ = must_run_slurm(["scontrol", *on, "show", "job", job, "--oneliner"])
        finally:
            must_run_slurm(["scancel", *on, job])
    reason = re.search(r" Reason=(\w+)", output)
    if reason and reason[1] in IMPOSSIBLE_REASONS:
        raise UserError(
            f"Slurm would never start the job ({reason[1]}): it asks for more nodes, time or memory than its partition "
            "gives; lower --nodes, --time or --mem in the header, or with --slurm."
        )
    return ""


def expected_start(output: str) -> str:
    """`about 14:05, on n[1-2]` from the output of sbatch --test-only; empty without an estimate."""
    match = re.search(r"to start at (\S+) using .* on (?:nodes )?(\S+) in partition", output)
    try:
        when = datetime.fromisoformat(match[1]) if match else None
    except ValueError:
        return ""
    if match is None or when is None or (wait := when.timestamp() - time.time()) > YEAR:
        return ""
    days = "%H:%M" if when.date() == datetime.now().date() else "%Y-%m-%d %H:%M"
    return f"{'now' if wait < 60 else when.strftime(f'about {days}')}, on {format_value(match[2])}"


# -- the submission --------------------------------------------------------------------------------------------------


class Submission:
    """The submission of a run, and its record `submission.json`: what was requested, and its state."""

    def __init__(self, run: Path, options: Sequence[str] = (), is_new: bool = False) -> None:
        """options: words for sbatch, which win over the script's own lines. is_new: made for this submission alone."""
        self.run, self.options, self.is_new = run, options, is_new
        self.record: dict[str, Any] = read_record(run / "submission.json")

    def save_state(self, state: str, **more: Any) -> None:
        self.record |= {"state": state, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **more}
        write_json(self.run / "submission.json", self.record)

    def try_save_state(self, state: str, **more: Any) -> None:
        with suppress(OSError):
            self.save_state(state, **more)

    def submit(self) -> str:
        """Submit; the number of the job. Every failure is recorded and raised as one sentence."""
        try:
            job, _, cluster = self.send().partition(";")
            if not re.fullmatch(r"\d+", job):
                raise UserError(f"sbatch answered {job!r} and not with the number of a job")
        except UserError as error:
            if self.is_new and isinstance(error, SlurmRefused):
                remove_run(self.run)
                raise UserError(f"{error}.") from None
            self.try_save_state("failed", error=str(error))
            raise UserError(f"{error}. The run's record stays in {format_value(str(self.run))}.") from None
        except BaseException:  # Ctrl-C: whether Slurm has the job is unknown
            error_text = f"stopped by hand; squeue --name={self.run.name} shows whether there is a job"
            self.try_save_state("unknown", error=error_text)
            raise
        on = ["-M", cluster] if cluster else []
        try:
            write_json(self.run / "job.json", {"job": job, **({"cluster": cluster} if cluster else {})})
            self.save_state("held", job=job)
        except OSError as error:
            self.call_slurm(["scancel", *on, job])
            raise UserError(
                f"{format_value(str(self.run))} cannot be written to ({error.strerror}): job {job} was cancelled "
                "before it began, as its number cannot be recorded; free some space, or choose another --logs_dir."
            ) from None
        try:
            self.call_slurm(["scontrol", *on, "release", job])
        except UserError as error:
            self.try_save_state("held", error=str(error))
            advice = f"python -m launch cancel {shlex.quote(self.run.name)} takes it back"
            if not isinstance(error, SlurmRefused):  # Slurm was not reached
                advice = f"scontrol release {job} releases it"
            raise UserError(f"{error}. Job {job} is held: {advice}.") from None
        self.try_save_state("released")
        return job

    def send(self) -> str:
        """Submit the script, held; the answer is JOB, or JOB;CLUSTER."""
        return self.call_slurm(
            ["sbatch", "--hold", "--parsable", *self.own_options, str(self.run / "job_script.slurm")]
        )

    @property
    def own_options(self) -> list[str]:
        """With those of --slurm: their lines in the script would lose against SBATCH_* in the environment."""
        return [*as_options(self.record.get("slurm") or []), *self.options]

    def call_slurm(self, words: list[str]) -> str:
        """The last line of a Slurm command's output; what the cluster remarks on stderr is printed."""
        answer, remarks = must_run_slurm(words, cwd=code if (code := self.run / "code").is_dir() else self.run)
        for line in remarks.splitlines():
            print(format_value(line), file=sys.stderr)
        return (answer.strip().splitlines() or [""])[-1]


def sbatch(words: Sequence[str], cwd: Path, env: dict[str, str] | None = None) -> str:
    """Submit a job that has no run folder; its number."""
    try:
        answer, _ = must_run_slurm(["sbatch", "--parsable", "--export=ALL", *words], cwd=cwd, env=env)
    except UserError as error:
        raise UserError(f"{error}.") from None
    return answer.strip().splitlines()[-1].partition(";")[0]


def remove_run(run: Path) -> None:
    """Remove the folder of a run that Slurm refused, and the copy of its script."""
    shutil.rmtree(run, ignore_errors=True)
    for copy in (run.parent.parent / "job_scripts").glob(f"*_{glob.escape(run.name)}.slurm"):
        copy.unlink(missing_ok=True)


# -- --after RUN -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dependency:
    """The run to wait for, how it has to end, and its job; no job if it has ended like that already.

    run: as typed; after `dependency_on`, its id.
    """

    run: str
    condition: str
    job: str = ""

    @property
    def record(self) -> dict[str, Any]:
        """For submission.json."""
        return {"run": self.run, "if": self.condition}

    @property
    def options(self) -> list[str]:
        """Options of sbatch. Slurm cancels the job when its condition can no longer come true."""
        if not self.job:
            return []
        return [f"--dependency={CONDITIONS[self.condition]}:{self.job}", "--kill-on-invalid-dep=yes"]

    @property
    def start(self) -> str:
        """The start in words, because Slurm's estimate ignores the dependency."""
        return f"when {self.run} (job {self.job}) {END_CONDITIONS.get(self.condition, 'has ended')}" if self.job else ""


def read_dependency(run_word: str | None, condition: str | None, header: Header | None) -> Dependency | None:
    """The checked options, before the run is read. header: None without Slurm."""
    if condition and run_word is None:
        raise UserError("--if has no effect without --after: add --after RUN, or remove it.")
    if run_word is None:
        return None
    if condition not in (None, *CONDITIONS):
        raise UserError(f"--if is {condition!r}: choose {', '.join(CONDITIONS)}.")
    if header is None:
        raise UserError(
            "--after waits with Slurm, and this runs on this machine: remove it, or let python -m launch queue run one "
            "after another."
        )
    if any(resource.startswith("dependency=") for resource in header.resources):
        raise UserError("--after and --slurm dependency both say what to wait for: remove one of them.")
    return Dependency(run_word, condition or "finished")


def dependency_on(logs: Path, run_word: str, condition: str) -> Dependency:
    """The dependency on a run; raises if Slurm cannot wait for it, or would wait forever."""
    run = find_run(logs, run_word)
    jobs = jobs_of([run])
    job, status, name = jobs.job_of(run), status_of(run, jobs), format_value(run.run_id)
    if job is not None and not job.is_over:
        return Dependency(run.run_id, condition, job.name)
    if run.job_name is not None and status.state != "finished" and not jobs.covers(run):
        why = jobs.problem or f"its job is one of cluster {format_value(run.job.get('cluster'))}"
        raise UserError(f"--after is {run_word!r}: whether {name} has ended is not known ({why}); try again later.")
    if run.is_held or status.state in ACTIVE:
        raise UserError(f"--after is {run_word!r}: {name} is {status} without a job, and Slurm cannot wait for that.")
    is_good = status.state == "finished" and meets_goal(run)
    if condition != "any" and is_good != (condition == "finished"):
        end = f"{status} without meeting its goal" if status.state == "finished" and not is_good else str(status)
        other = "failed" if condition == "finished" else "finished"
        is_over = status.state == "finished"
        resume = "" if is_over else f"python -m launch requeue {shlex.quote(run.run_id)} resumes it, or "
        raise UserError(
            f"--after is {run_word!r}: {name} is {end}, and will not be {condition} any more; {resume}choose --if "
            f"{other} or any."
        )
    return Dependency(run.run_id, condition)


def meets_goal(run: Run) -> bool:
    """Whether a finished run ended with status 0."""
    return not run.settings.get("goal") or str(run.attempts[-1].get("cause")) == "finished: goal met"


def same_dependency(run: Run) -> Dependency | None:
    """For a requeued run: the dependency of its submission, unless it has begun already."""
    after = run.submission.get("after")
    if run.attempts or not isinstance(after, dict):
        return None
    return dependency_on(run.path.parent.parent, str(after.get("run")), str(after.get("if")))
