"""Slurm from the outside and the inside: the one way to call its commands, this process's job, and its grace period."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core.environment import clean_environment
from core.errors import UserError
from core.text import format_value

TIMEOUT_SECONDS = 120.0  # for a command that has to succeed
SHOW_TIMEOUT_SECONDS = 10.0  # for one that a run does without
FAILED = "Batch job submission failed: "
SIGNAL = re.compile(r"(?:\w+:)?\w+@(\d+)")
SIGNAL_OPTION = re.compile(r"^#SBATCH\s.*--signal[= ]\s*(\S+)", re.MULTILINE)
DEFAULT_KILL_WAIT = 30  # seconds; Slurm's own default


# -- calling a command -----------------------------------------------------------------------------------------------


class SlurmError(UserError):
    """Why a Slurm command failed, as the beginning of a sentence."""


class SlurmTimeout(SlurmError):
    """There was no answer in time: whether the command took effect is unknown."""


class SlurmRefused(SlurmError):
    """Slurm has looked at the request and does not accept it."""


def call_slurm(
    words: Sequence[str], timeout: float, script: str = "", cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run one of Slurm's commands, with `script` as its standard input, outside of the job this process may be in."""
    return subprocess.run(
        words,
        cwd=cwd,
        input=script.encode(),
        env=clean_environment() if env is None else env,
        capture_output=True,
        timeout=timeout,
        start_new_session=True,  # Ctrl-C must not end it halfway
    )


def run_slurm(*words: str, timeout: float = 5.0) -> tuple[str, str]:
    """(output, ""), or ("", problem) where a Slurm command cannot answer within `timeout` seconds."""
    if shutil.which(words[0]) is None:
        return "", "no Slurm on this machine"
    try:
        done = call_slurm(words, timeout)
    except subprocess.TimeoutExpired:
        return "", f"Slurm's controller did not answer ({words[0]}: nothing within {timeout:g} s)"
    except OSError as error:
        return "", f"{words[0]} cannot be run ({error.strerror})"
    if done.returncode:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        return "", f"no answer from Slurm ({format_value(reason.split('error: ')[-1].split('fatal: ')[-1])})"
    return done.stdout.decode(errors="replace"), ""


def must_run_slurm(
    words: Sequence[str],
    script: str = "",
    timeout: float = TIMEOUT_SECONDS,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> tuple[str, str]:
    """The output of a Slurm command and its remarks (stderr); raises SlurmError where it fails."""
    try:
        done = call_slurm(words, timeout, script, cwd, env)
    except subprocess.TimeoutExpired:
        raise SlurmTimeout(
            f"{words[0]} had no answer from Slurm within {timeout:g} s: its controller is down"
        ) from None
    except OSError as error:
        raise SlurmError(f"{words[0]} cannot be run ({error.strerror})") from None
    output, remarks = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    if done.returncode:
        raise slurm_error(words[0], remarks)
    return output, remarks


def slurm_error(command: str, remarks: str) -> SlurmError:
    """The error that a failed command printed."""
    lines = [line.removeprefix(f"{command}: ").removeprefix("error: ") for line in remarks.strip().split("\n")]
    reason = lines[-1].removeprefix("fatal: ").removeprefix("allocation failure: ")
    if reason.startswith(FAILED):  # the line above is more specific
        reason = "; ".join([*lines[-2:-1], reason.removeprefix(FAILED)])
    reason = format_value(reason)
    if re.search("contact|onnection|configuration source", reason):
        here = ", or run it on this machine (no HEADER, or --cluster local)" if command == "sbatch" else ""
        why = "its controller is down or SLURM_CONF is wrong"
        return SlurmError(f"{command} cannot reach Slurm ({reason}): {why}; try again later{here}")
    if command != "sbatch":
        return SlurmRefused(f"{command} refused ({reason})")
    return SlurmRefused(
        f"{command} refused the job ({reason}): correct the header, --slurm, or SBATCH_* in the environment"
    )


def scontrol_show(*what: str) -> dict[str, str]:
    """{field: value} of `scontrol show job 17` and the like; empty without an answer. A value ends at a space."""
    output, _ = run_slurm("scontrol", "show", *what, "--oneliner", timeout=SHOW_TIMEOUT_SECONDS)
    return dict(re.findall(r"(?:^|\s)([\w:/]+)=(\S*)", output))


def slurm_config(timeout: float = SHOW_TIMEOUT_SECONDS) -> dict[str, str]:
    """`scontrol show config` as {name: value}; empty where Slurm does not answer."""
    output, _ = run_slurm("scontrol", "show", "config", timeout=timeout)
    return dict(re.findall(r"^(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", output, re.MULTILINE))


def parse_duration(text: str) -> float:
    """Seconds of 1-02:03:04, 02:03:04 or 03:04; infinite for anything else, such as UNLIMITED."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", text):
        return float("inf")
    days, _, clock = text.rpartition("-")
    total = 0
    for part in clock.split(":"):
        total = 60 * total + int(part)
    return float(86400 * int(days or 0) + total)


# -- the job of this process -----------------------------------------------------------------------------------------


def slurm_job() -> dict[str, Any]:
    """The job that this process belongs to: its id, how often it was queued again, and its nodes."""
    names = {"job": "SLURM_JOB_ID", "array_job": "SLURM_ARRAY_JOB_ID", "array_task": "SLURM_ARRAY_TASK_ID"}
    names |= {"restart": "SLURM_RESTART_COUNT", "nodes": "SLURM_JOB_NODELIST", "cluster": "SLURM_CLUSTER_NAME"}
    return {key: os.environ[name] for key, name in names.items() if name in os.environ}


def job_name(job: dict[str, Any]) -> str | None:
    """Slurm's name of a job: 17, or 17_3 for a task of an array, whose number alone would name all tasks."""
    return f"{job['array_job']}_{job['array_task']}" if "array_job" in job else job.get("job")


# -- the grace period between the notice and the end of a job --------------------------------------------------------


def warning_seconds(script: str) -> int | None:
    """Seconds of warning before the time limit that a job script asks for; None where it asks for none.

    `sbatch --signal` on the command line wins over the script, and the job cannot see that.
    """
    option = os.environ.get("SBATCH_SIGNAL") or next(reversed(SIGNAL_OPTION.findall(script)), "")
    match = SIGNAL.fullmatch(option)
    return int(match[1]) if match else None


def kill_wait(config: dict[str, str]) -> int:
    """Seconds between the SIGTERM of a cancel or requeue and SIGKILL."""
    match = re.match(r"\d+", config.get("KillWait", ""))
    return int(match[0]) if match else DEFAULT_KILL_WAIT


def shortest_grace_period(folder: Path) -> tuple[int, str] | None:
    """The shortest notice in seconds that this process's job may get, and before what; None outside of a job."""
    name = job_name(slurm_job())
    if name is None:
        return None
    periods = []
    try:
        script = (folder / "job_script.slurm").read_text(errors="replace")
    except OSError:
        script = ""
    if (seconds := warning_seconds(script)) is not None:
        periods.append((seconds, "its time limit"))
    partition_name = scontrol_show("job", name).get("Partition")
    partition = scontrol_show("partition", partition_name) if partition_name else {}
    if partition.get("PreemptMode", "OFF") != "OFF":
        periods.append((int(partition.get("GraceTime") or 0) + kill_wait(slurm_config()), "being preempted"))
    return min(periods, default=None)
