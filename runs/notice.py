"""How long Slurm waits between telling a job to end and killing it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from runs.attempts import slurm_job
from runs.causes import PATIENCE, ask_slurm, job_name

SIGNAL = re.compile(r"(?:\w+:)?\w+@(\d+)")
ASKED = re.compile(r"^#SBATCH\s.*--signal[= ]\s*(\S+)", re.MULTILINE)


def lead(script: str) -> int | None:
    """Seconds of the warning ahead of the time limit that a job script asks for; None where it asks for none.

    `sbatch --signal` on the command line wins over it, and nothing in the job tells of that.
    """
    asked = os.environ.get("SBATCH_SIGNAL") or next(reversed(ASKED.findall(script)), "")
    found = SIGNAL.fullmatch(asked)
    return int(found[1]) if found else None


def settings() -> dict[str, str]:
    """`scontrol show config`; empty where Slurm does not answer."""
    try:
        done = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(re.findall(r"^(\w+)\s*= (.*)$", done.stdout, re.MULTILINE))


def kill_wait(config: dict[str, str]) -> int:
    """Seconds between the SIGTERM of a cancel or requeue and SIGKILL."""
    found = re.match(r"\d+", config.get("KillWait", ""))
    return int(found[0]) if found else 30  # Slurm's own default


def shortest(folder: Path) -> tuple[int, str] | None:
    """The shortest notice that this process's job may get, and of what; None outside of a job."""
    name = job_name(slurm_job())
    if name is None:
        return None
    notices = []
    try:
        script = (folder / "job_script.slurm").read_text(errors="replace")
    except OSError:
        script = ""
    if (seconds := lead(script)) is not None:
        notices.append((seconds, "its time limit"))
    where = ask_slurm("job", name).get("Partition")
    partition = ask_slurm("partition", where) if where else {}
    if partition.get("PreemptMode", "OFF") != "OFF":
        notices.append((int(partition.get("GraceTime") or 0) + kill_wait(settings()), "being preempted"))
    return min(notices, default=None)
