"""Hands a script to Slurm: held, noted, then released, so that there is never a job without its record."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from config.errors import UserError
from config.flags import shown
from launch.prepare import read_job
from runs.files import write_json

PATIENCE = 120  # seconds that Slurm may take to answer
# What says where Slurm is; every other SLURM_ variable is of the job that this is called from.
SLURM = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS")
# These would win over the script's own lines and part the job from its run folder.
OWN = ("JOB_NAME", "OUTPUT", "ERROR", "ARRAY_INX", "WAIT")
PROCESSES = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
RUN = ("EBT_RUN_DIR", "EBT_JOB_RUN_DIR", "EBT_STEP_OF", "EBT_RANDOM_SEED", "EBT_LINEAGE", "EBT_HEADERS")


def clean_environment() -> dict[str, str]:
    """This process's environment without what belongs to the job or the run it may itself be in."""

    def foreign(name: str) -> bool:
        if name in PROCESSES or name in RUN or name in [f"SBATCH_{option}" for option in OWN]:
            return True
        return name.startswith(("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_")) and name not in SLURM

    return {name: value for name, value in os.environ.items() if not foreign(name)}


def need_slurm(instead: str = "leave HEADER out to run here and now") -> None:
    if shutil.which("sbatch") is None:
        raise UserError(f"There is no sbatch on this machine: {instead}, or go to a login node.")


class Submission:
    """`submission.json` of a run: what was asked for, and how far it came."""

    def __init__(self, run: Path, options: Sequence[str] = ()) -> None:
        """options: words for sbatch, which win over the script's own lines."""
        self.run, self.options = run, options
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
            raise UserError(f"{error}. Job {job} waits, held: scontrol release {job} lets it go.") from None
        self.note_if_possible("released")
        return job

    def send(self) -> str:
        """Give the script to Slurm, held; the answer is JOB, or JOB;CLUSTER."""
        return self.ask(["sbatch", "--hold", "--parsable", *self.options, str(self.run / "job_script.slurm")])

    def ask(self, words: list[str]) -> str:
        """What a command of Slurm answers; its complaint as a UserError."""
        try:
            done = subprocess.run(
                words,
                cwd=code if (code := self.run / "code").is_dir() else self.run,
                env=clean_environment(),
                capture_output=True,
                timeout=PATIENCE,
                start_new_session=True,  # Ctrl-C must not end it halfway
            )
        except subprocess.TimeoutExpired:
            raise UserError(
                f"{words[0]} had no answer from Slurm within {PATIENCE} s: its controller is down"
            ) from None
        except OSError as error:
            raise UserError(f"{words[0]} cannot be run ({error.strerror})") from None
        if done.returncode:
            raise UserError(complaint(words[0], done.stderr.decode(errors="replace")))
        for line in done.stderr.decode(errors="replace").splitlines():  # what the cluster wants to be read
            print(shown(line), file=sys.stderr)
        return (done.stdout.decode(errors="replace").strip().splitlines() or [""])[-1]


def complaint(command: str, said: str) -> str:
    """What Slurm complains of, as the beginning of a sentence."""
    lines = [line.removeprefix(f"{command}: ").removeprefix("error: ") for line in said.strip().split("\n")]
    reason = shown(lines[-1].removeprefix("fatal: ").removeprefix("Batch job submission failed: "))
    if re.search("contact|onnection|configuration source", reason):
        here = ", or run it on this machine (no HEADER, or --cluster local)" if command == "sbatch" else ""
        why = "its controller is down or SLURM_CONF is wrong"
        return f"{command} cannot reach Slurm ({reason}): {why}; try again later{here}"
    if command != "sbatch":
        return f"{command} refused ({reason})"
    return f"{command} refused the job ({reason}): correct the header, or SBATCH_* in the environment"
