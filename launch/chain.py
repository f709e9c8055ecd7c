"""`--after RUN [--if finished|failed|any]`: a run that starts when another has ended, as a dependency of Slurm.

Slurm goes by exit statuses, and so do we where RUN is over already: `finished` is 0, where a goal that was set is met
too; `failed` is every other end for good. A job that is queued again has not ended.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.text import shown
from launch.script import Header
from launch.slurm import AFTER, LIVE, ask_for_jobs, standing
from runs.reading import Run, find_run

CONDITIONS = {"finished": "afterok", "failed": "afternotok", "any": "afterany"}
AFTER_HELP = "start when RUN has ended: id, name, job, path, or last; on Slurm"
IF_HELP = "how RUN has to end: finished (its goal met, if it has one), failed (any other end), or any [finished]"


@dataclass(frozen=True)
class After:
    """The run to wait for (as it was typed, until wait_for has looked), how it has to end, and its job; no job where it
    has ended like that already."""

    run: str
    condition: str
    job: str = ""

    @property
    def record(self) -> dict[str, Any]:
        """For submission.json."""
        return {"run": self.run, "if": self.condition}

    @property
    def options(self) -> list[str]:
        """For sbatch; a job whose condition can no longer come true is cancelled by Slurm, and waits no longer."""
        if not self.job:
            return []
        return [f"--dependency={CONDITIONS[self.condition]}:{self.job}", "--kill-on-invalid-dep=yes"]

    @property
    def start(self) -> str:
        """In words, where Slurm's own estimate would not know of it."""
        return f"when {self.run} (job {self.job}) {AFTER.get(self.condition, 'has ended')}" if self.job else ""


def read_after(wanted: str | None, condition: str | None, header: Header | None) -> After | None:
    """What was typed, judged as far as that goes without looking at the run. header: None where there is no Slurm."""
    if condition and wanted is None:
        raise UserError("--if has no effect without --after: add --after RUN, or remove it.")
    if wanted is None:
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
    return After(wanted, condition or "finished")


def wait_for(logs: Path, wanted: str, condition: str) -> After:
    """What to tell Slurm; raises where it cannot wait for that run, or would wait in vain."""
    run = find_run(logs, wanted)
    answer = ask_for_jobs([run])
    job, now, name = answer.job_of(run), standing(run, answer), shown(run.run_id)
    if job is not None and not job.is_over:
        return After(run.run_id, condition, job.name)
    if run.job_name is not None and now.state != "finished" and not answer.is_about(run):
        why = answer.problem or f"its job is one of cluster {shown(run.job.get('cluster'))}"
        raise UserError(f"--after is {wanted!r}: whether {name} has ended is not known ({why}); try again later.")
    if run.is_held or now.state in LIVE:
        raise UserError(f"--after is {wanted!r}: {name} is {now} without a job, and Slurm cannot wait for that.")
    is_good = now.state == "finished" and meets_goal(run)
    if condition != "any" and is_good != (condition == "finished"):
        end = f"{now} without meeting its goal" if now.state == "finished" and not is_good else str(now)
        other = "failed" if condition == "finished" else "finished"
        on = "" if now.state == "finished" else f"python -m launch requeue {shlex.quote(run.run_id)} lets it go on, or "
        raise UserError(
            f"--after is {wanted!r}: {name} is {end}, and will not be {condition} any more; {on}choose --if {other} or "
            "any."
        )
    return After(run.run_id, condition)


def meets_goal(run: Run) -> bool:
    """Whether a finished run ended with status 0."""
    return not run.settings.get("goal") or str(run.attempts[-1].get("cause")) == "finished: goal met"


def wait_again(run: Run) -> After | None:
    """For a run that is put back into the queue: it waits as before, unless it has begun already."""
    after = run.submission.get("after")
    if run.attempts or not isinstance(after, dict):
        return None
    return wait_for(run.path.parent.parent, str(after.get("run")), str(after.get("if")))
