"""Hands a script to Slurm: held, noted, then released, so that there is never a job without its record."""

from __future__ import annotations

import glob
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from core.environment import clean_environment
from core.errors import UserError
from core.files import write_json
from core.text import shown
from launch.prepare import read_job
from launch.resources import as_options
from launch.script import options_of

PATIENCE = 120  # seconds that Slurm may take to answer
TEST = ("sbatch", "--test-only")
TEST_PATIENCE = 30  # seconds for an answer that is good to have
TRIAL = ("--parsable", "--begin=now+10minutes", "--mail-type=NONE")
# Why a job that Slurm takes waits for ever.
IMPOSSIBLE = ("BadConstraints", "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit")
YEAR = 365 * 86400
FAILED = "Batch job submission failed: "


def need_slurm(instead: str = "leave HEADER out to run here and now") -> None:
    if shutil.which("sbatch") is None:
        raise UserError(f"There is no sbatch on this machine: {instead}, or go to a login node.")


class Refused(UserError):
    """Slurm has looked at the job, and does not take it."""


def check_with_slurm(script: str, options: Sequence[str] = ()) -> str:
    """When and where Slurm expects to start this script, in words; raises where it never would.

    A job that is submitted held is judged by nobody, so `sbatch --test-only` is asked before. It also says no while
    nodes are down, and there are clusters where it does not work. So where it says no, sbatch itself is asked for a job
    that does nothing and may begin later, which is taken back at once.
    """
    nothing = "\n".join(["#!/bin/bash", *options_of(script), "true", ""])
    try:
        try:
            return expected_start("".join(ask([*TEST, *options], script, TEST_PATIENCE)))
        except Refused:
            job, _, cluster = ask(["sbatch", *options, *TRIAL], nothing)[0].strip().partition(";")
    except subprocess.TimeoutExpired:
        return ""
    except UserError as error:
        raise UserError(f"{error}.") from None
    on, said = ["-M", cluster] if cluster else [], ""
    with suppress(UserError, subprocess.TimeoutExpired):
        try:
            said, _ = ask(["scontrol", *on, "show", "job", job, "--oneliner"])
        finally:
            ask(["scancel", *on, job])
    reason = re.search(r" Reason=(\w+)", said)
    if reason and reason[1] in IMPOSSIBLE:
        raise UserError(
            f"Slurm would never start the job ({reason[1]}): it asks for more nodes, time or memory than its partition "
            "gives; lower --nodes, --time or --mem in the header, or with --slurm."
        )
    return ""


def expected_start(said: str) -> str:
    """`about 14:05, on n[1-2]`, of what sbatch --test-only says; nothing where Slurm has no idea."""
    found = re.search(r"to start at (\S+) using .* on (?:nodes )?(\S+) in partition", said)
    try:
        when = datetime.fromisoformat(found[1]) if found else None
    except ValueError:
        return ""
    if found is None or when is None or (wait := when.timestamp() - time.time()) > YEAR:
        return ""
    days = "%H:%M" if when.date() == datetime.now().date() else "%Y-%m-%d %H:%M"
    return f"{'now' if wait < 60 else when.strftime(f'about {days}')}, on {shown(found[2])}"


class Submission:
    """`submission.json` of a run: what was asked for, and how far it came."""

    def __init__(self, run: Path, options: Sequence[str] = (), is_new: bool = False) -> None:
        """options: words for sbatch, which win over the script's own lines. is_new: made for this submission alone."""
        self.run, self.options, self.is_new = run, options, is_new
        self.record: dict[str, Any] = read_job(run / "submission.json")

    def note(self, state: str, **more: Any) -> None:
        self.record |= {"state": state, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **more}
        write_json(self.run / "submission.json", self.record)

    def note_if_possible(self, state: str, **more: Any) -> None:
        with suppress(OSError):
            self.note(state, **more)

    def submit(self) -> str:
        """The number of the job. Whatever goes wrong is in the record and in one sentence."""
        try:
            job, _, cluster = self.send().partition(";")
            if not re.fullmatch(r"\d+", job):
                raise UserError(f"sbatch answered {job!r} and not with the number of a job")
        except UserError as error:
            if self.is_new and isinstance(error, Refused):
                forget(self.run)
                raise UserError(f"{error}.") from None
            self.note_if_possible("failed", error=str(error))
            raise UserError(f"{error}. The run's record stays in {shown(str(self.run))}.") from None
        except BaseException:  # Ctrl-C: nobody knows whether Slurm has it
            doubt = f"stopped by hand; squeue --name={self.run.name} shows whether there is a job"
            self.note_if_possible("unknown", error=doubt)
            raise
        on = ["-M", cluster] if cluster else []
        try:
            write_json(self.run / "job.json", {"job": job, **({"cluster": cluster} if cluster else {})})
            self.note("held", job=job)
        except OSError as error:
            self.ask(["scancel", *on, job])
            raise UserError(
                f"{shown(str(self.run))} cannot be written to ({error.strerror}): job {job}, whose number cannot be "
                "kept, was cancelled before it began."
            ) from None
        try:
            self.ask(["scontrol", *on, "release", job])
        except UserError as error:
            self.note_if_possible("held", error=str(error))
            what = f"python -m launch cancel {shlex.quote(self.run.name)} takes it back"
            if not isinstance(error, Refused):  # it was not heard
                what = f"scontrol release {job} lets it go"
            raise UserError(f"{error}. Job {job} is held: {what}.") from None
        self.note_if_possible("released")
        return job

    def send(self) -> str:
        """Give the script to Slurm, held; the answer is JOB, or JOB;CLUSTER."""
        return self.ask(["sbatch", "--hold", "--parsable", *self.own_options, str(self.run / "job_script.slurm")])

    @property
    def own_options(self) -> list[str]:
        """With those of --slurm, whose lines in the script would give way to SBATCH_* in the environment."""
        return [*as_options(self.record.get("slurm") or []), *self.options]

    def ask(self, words: list[str]) -> str:
        """What a command of Slurm answers; its complaint as a UserError."""
        try:
            answer, remarks = ask(words, cwd=code if (code := self.run / "code").is_dir() else self.run)
        except subprocess.TimeoutExpired:
            raise UserError(
                f"{words[0]} had no answer from Slurm within {PATIENCE} s: its controller is down"
            ) from None
        for line in remarks.splitlines():  # what the cluster wants to be read
            print(shown(line), file=sys.stderr)
        return (answer.strip().splitlines() or [""])[-1]


def ask(words: list[str], script: str = "", patience: float = PATIENCE, cwd: Path | None = None) -> tuple[str, str]:
    """What a command of Slurm answers, and its remarks; its complaint as a UserError, Refused where Slurm was heard."""
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            input=script.encode(),
            env=clean_environment(),
            capture_output=True,
            timeout=patience,
            start_new_session=True,  # Ctrl-C must not end it halfway
        )
    except OSError as error:
        raise UserError(f"{words[0]} cannot be run ({error.strerror})") from None
    answer, remarks = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    if done.returncode:
        raise complaint(words[0], remarks)
    return answer, remarks


def complaint(command: str, said: str) -> UserError:
    """What Slurm complains of, as the beginning of a sentence."""
    lines = [line.removeprefix(f"{command}: ").removeprefix("error: ") for line in said.strip().split("\n")]
    reason = lines[-1].removeprefix("fatal: ").removeprefix("allocation failure: ")
    if reason.startswith(FAILED):  # the line above says it more closely
        reason = "; ".join([*lines[-2:-1], reason.removeprefix(FAILED)])
    reason = shown(reason)
    if re.search("contact|onnection|configuration source", reason):
        here = ", or run it on this machine (no HEADER, or --cluster local)" if command == "sbatch" else ""
        why = "its controller is down or SLURM_CONF is wrong"
        return UserError(f"{command} cannot reach Slurm ({reason}): {why}; try again later{here}")
    if command != "sbatch":
        return Refused(f"{command} refused ({reason})")
    return Refused(f"{command} refused the job ({reason}): correct the header, --slurm, or SBATCH_* in the environment")


def forget(run: Path) -> None:
    """Remove the folder of a run that never was, and the copy of its script."""
    shutil.rmtree(run, ignore_errors=True)
    for copy in (run.parent.parent / "job_scripts").glob(f"*_{glob.escape(run.name)}.slurm"):
        copy.unlink(missing_ok=True)
