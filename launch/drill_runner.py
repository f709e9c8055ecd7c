"""How the runs of a drill are started, interrupted and compared: as jobs of Slurm, or here, with signals instead."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.environment import DRILL, JOB_RUN_DIR, NOTIFY, clean_environment
from core.errors import UserError
from launch.job import prepare
from launch.script import (
    ROOT,
    Header,
    JobScript,
    active_environment,
    header_commands,
    quote_for_slurm,
    read_text,
    sbatch_lines,
    sbatch_options,
)
from launch.slurm import OVER
from launch.submission import sbatch
from runs.process import EXIT_RESUMABLE
from runs.run import Run
from runs.slurm import run_slurm

READY_FILE = "ready_for_the_drill"  # created by the training process when it waits for a signal
TIMEOUT_SECONDS = 600.0  # without any change; then a drill gives up
JOB_MINUTES = 15  # time limit of a job
RESUME_COMMAND = re.compile(r":\s+python (train_model\.py .*)")
Report = Callable[[str, str], None]
ROW_KINDS = {"train_loss": "step", "valid_loss": "the validation of step", "test_loss": "the test after step"}
# Columns about the machine; all others have to be equal.
MACHINE_COLUMNS = ("time", "seconds", "attempt", "loader_wait_share")
RowKey = tuple[str, int, float]  # kind of row, step, number of validation targets


@dataclass(frozen=True)
class DrillCase:
    """One way to interrupt a run.

    fault: what EBT_DRILL makes the training process do, and at which step: `pause:7` waits there for the action.
    action: what the drill then does: a signal's name, requeue, cancel; empty if the fault ends the process.
    causes: accepted beginnings of the cause in attempts.jsonl. lost: steps that it may cost.
    restarted_by: itself (the job), person, or nobody. flags: of this run alone.
    status: the exit status of its process without Slurm.
    """

    name: str
    fault: str
    action: str
    causes: tuple[str, ...]
    lost: int = 0
    restarted_by: str = "itself"
    flags: tuple[str, ...] = ()
    status: int = EXIT_RESUMABLE


def folder_name(case: DrillCase) -> str:
    return re.sub(r"\W+", "_", case.name).strip("_")


class DrillRunner:
    """Runs every case in its own logs folder under `work_dir`. unsupported: actions that are not possible here."""

    unsupported: tuple[str, ...] = ()
    where = ""

    def __init__(self, work_dir: Path, flags: list[str]) -> None:
        self.work_dir, self.flags = work_dir, flags
        self.problems: dict[str, str] = {}

    def logs_dir(self, case: DrillCase) -> Path:
        return self.work_dir / folder_name(case)

    def log_file(self, case: DrillCase) -> Path:
        return self.logs_dir(case) / "output.log"

    def flags_of(self, case: DrillCase) -> list[str]:
        return [*self.flags, *case.flags, "--logs_dir", str(self.logs_dir(case))]

    def run_of(self, case: DrillCase) -> Run | None:
        """The run folder of a case, read again at every call; None before it exists."""
        return run_in(self.logs_dir(case))

    def is_ready(self, case: DrillCase) -> bool:
        run = self.run_of(case)
        return run is not None and (run.path / READY_FILE).exists()

    def problem(self, case: DrillCase) -> str | None:
        return self.problems.get(case.name)

    def run_all(self, cases: Sequence[DrillCase], report: Report) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """End everything that still runs."""
        raise NotImplementedError


def run_in(logs: Path) -> Run | None:
    """The only run of a logs folder; None before it exists."""
    configs = sorted((logs / "runs").glob("[!.]*/config.json"))
    return Run(configs[0].parent) if configs else None


def last_line(log: Path, since: int = 0) -> str:
    """The last line of a log; empty if there is none. since: offset in the log."""
    with suppress(OSError):
        lines = log.read_bytes()[since:].decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
    return ""


class LocalRunner(DrillRunner):
    """One run after another on this machine; restarts what Slurm would restart."""

    unsupported = ("requeue", "cancel")
    where = "on this machine"

    def __init__(self, work_dir: Path, flags: list[str], root: Path = ROOT) -> None:
        """root: the folder of train_model.py."""
        super().__init__(work_dir, flags)
        self.root = root
        self.process: subprocess.Popen[Any] | None = None

    def run_all(self, cases: Sequence[DrillCase], report: Report) -> None:
        for case in cases:
            report(case.name, "trains")
            folder = prepare(self.flags_of(case))
            status = self.start(case, self.command(case), folder, case.action)
            if case.fault:
                report(case.name, "resumes")
                if status != case.status:
                    self.problems[case.name] = (
                        f"its first attempt ended with status {status}: {last_line(self.log_file(case))}"
                    )
                printed = printed_command(self.log_file(case)) if case.restarted_by == "person" else None
                status = self.start(case, printed or self.command(case), None if printed else folder, "")
            if status:
                self.problems[case.name] = f"it ended with status {status}: {last_line(self.log_file(case))}"
            report(case.name, "done")

    def command(self, case: DrillCase) -> list[str]:
        return [sys.executable, "train_model.py", *self.flags_of(case)]

    def start(self, case: DrillCase, command: list[str], folder: Path | None, signal_name: str) -> int:
        """Run one attempt; its exit status.

        folder: the run's folder. signal_name: of the signal that it gets as soon as it waits for one, such as USR1.
        """
        self.process = start_attempt(command, self.root, folder, case.fault, self.log_file(case))
        while self.process.poll() is None:
            if signal_name and self.is_ready(case):
                os.killpg(self.process.pid, getattr(signal, f"SIG{signal_name}"))
                signal_name = ""
            time.sleep(0.05)
        return self.process.returncode

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def start_attempt(
    command: list[str], root: Path, folder: Path | None, fault: str, log: Path
) -> subprocess.Popen[bytes]:
    """Start a process in its own group. root: of the code. folder: the run's, which a job passes on."""
    environment = clean_environment() | {DRILL: fault} | ({JOB_RUN_DIR: str(folder)} if folder else {})
    environment.pop(NOTIFY, None)  # a drill sends no notifications
    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def printed_command(log: Path, since: int = 0) -> list[str] | None:
    """The resume command that a run printed when it was stopped by hand. since: offset in the log."""
    commands = RESUME_COMMAND.findall(log.read_bytes()[since:].decode(errors="replace"))
    return [sys.executable, *shlex.split(commands[-1])] if commands else None


class SlurmRunner(DrillRunner):
    """All runs at once, each a job of train.slurm."""

    where = "as jobs"

    def __init__(self, work_dir: Path, flags: list[str], header: Header) -> None:
        super().__init__(work_dir, flags)
        self.script = work_dir / "drill.slurm"
        self.script.write_text(drill_script(header))
        self.jobs: dict[str, str] = {}

    def run_all(self, cases: Sequence[DrillCase], report: Report) -> None:
        for case in cases:
            self.jobs[case.name] = submit_job(
                self.script, self.flags_of(case), self.logs_dir(case), self.log_file(case), case.fault
            )
            report(case.name, "waits in the queue")
        open_cases = {case.name: case for case in cases}
        interrupted: set[str] = set()
        ended: set[str] = set()  # the first attempt is over
        requeued: set[str] = set()  # by the drill, as a person would
        last_change: dict[str, tuple[str, float]] = {}
        while open_cases:
            states = job_states(self.jobs.values())
            for case in list(open_cases.values()):
                state = states.get(self.jobs[case.name], ("", ""))[0]
                if case.name in interrupted and state != "RUNNING":
                    ended.add(case.name)
                report(case.name, phase(state, case.name in interrupted, case.name in ended))
                if case.action and case.name not in interrupted and state == "RUNNING" and self.is_ready(case):
                    interrupted |= {case.name} if interrupt_job(self.jobs[case.name], case.action) else set()
                elif state in OVER and case.restarted_by == "person" and case.name not in requeued:
                    if try_slurm("scontrol", "requeue", self.jobs[case.name]):  # as a person would
                        interrupted.add(case.name)
                        requeued.add(case.name)
                elif state in OVER:
                    expected = "CANCELLED" if case.restarted_by == "nobody" else "COMPLETED"
                    if state != expected:
                        line = last_line(self.log_file(case))
                        self.problems[case.name] = f"its job {self.jobs[case.name]} is {state}: {line}"
                    report(case.name, "done")
                    del open_cases[case.name]
                # The time in the queue is not limited.
                before = last_change.get(case.name)
                if before is None or before[0] != state or state in ("PENDING", ""):
                    last_change[case.name] = (state, time.monotonic())
                elif time.monotonic() - before[1] > TIMEOUT_SECONDS:
                    raise UserError(
                        f"the job of {case.name!r} ({self.jobs[case.name]}) is {state} for {TIMEOUT_SECONDS:.0f} s: "
                        f"its log is {self.log_file(case)}."
                    )
            time.sleep(0.5)

    def stop(self) -> None:
        if self.jobs:
            run_slurm("scancel", *self.jobs.values(), timeout=60)


def try_slurm(*words: str) -> bool:
    """Whether Slurm accepted a command."""
    _, problem = run_slurm(*words, timeout=60)
    return not problem


def interrupt_job(job: str, action: str) -> bool:
    """Requeue or cancel a job, or send it the signal of this name; whether Slurm accepted it."""
    commands = {"requeue": ("scontrol", "requeue", job), "cancel": ("scancel", job)}
    return try_slurm(*commands.get(action, ("scancel", f"--signal={action}", job)))


def submit_job(script: Path, flags: list[str], logs: Path, log: Path, fault: str) -> str:
    """Create the logs folder and submit the job; its number."""
    logs.mkdir()
    environment = clean_environment() | {DRILL: fault}
    environment.pop(NOTIFY, None)  # a drill sends no notifications
    return sbatch([f"--output={quote_for_slurm(str(log))}", str(script), *flags], ROOT, environment)


def job_states(jobs: Iterable[str]) -> dict[str, tuple[str, str]]:
    """{job: (state, start)}; empty if Slurm does not answer."""
    output, _ = run_slurm("squeue", "--noheader", "--states=all", f"--jobs={','.join(jobs)}", "--format=%i|%T|%S")
    rows = [line.strip().split("|", 2) for line in output.splitlines() if line.count("|") == 2]
    return {job: (state, started) for job, state, started in rows}


def phase(state: str, interrupted: bool, ended: bool) -> str:
    if state in ("PENDING", ""):
        return "waits to resume" if interrupted else "waits in the queue"
    if state in ("RUNNING", "CONFIGURING"):
        return "resumes" if ended else "is stopping" if interrupted else "trains"
    return "ends"


def drill_script(header: Header) -> str:
    """job_scripts/train.slurm with the header's options, a short time limit and the active Python."""
    text = read_text(ROOT / "job_scripts" / "train.slurm", "JOB_SCRIPT")
    body = [line for line in text.splitlines() if not line.startswith("#")]
    short = sbatch_options(f"--time={JOB_MINUTES}", "--signal=USR1@60", "--job-name=drill")
    index = next(number for number, line in enumerate(body) if line.startswith("if in_batch_script"))
    commands = [*header_commands(header), *active_environment(ROOT)]
    options = [("", sbatch_lines(text)), ("", header.options), short]
    return JobScript(options, [*body[:index], *commands, *body[index:]]).text


# -- comparison: every step once, and every value the same to the last bit -------------------------------------------


def compared_rows(rows: Iterable[dict[str, Any]]) -> tuple[dict[RowKey, dict[str, Any]], str | None]:
    """The compared values of each row, and a message about the first repeated row."""
    values: dict[RowKey, dict[str, Any]] = {}
    counts: Counter[RowKey] = Counter()
    for row in rows:
        for name, kind in ROW_KINDS.items():
            if name in row and isinstance(row.get("step"), int):
                # the last one tells validation on a sample from that on the whole split
                key = (kind, row["step"], row.get("valid_targets") or 0)
                counts[key] += 1
                values[key] = {name: value for name, value in row.items() if is_compared(name)}
    repeated = next(
        (f"{kind} {step} is recorded twice" for (kind, step, _), count in counts.items() if count > 1), None
    )
    return values, repeated


def is_compared(column: str) -> bool:
    return column not in MACHINE_COLUMNS and not column.endswith("_per_second")


def first_difference(
    rows: Iterable[dict[str, Any]], reference: Iterable[dict[str, Any]], until: int | None = None
) -> str | None:
    """The first difference between the metrics of a run and of the uninterrupted one, in words; None if there is none.

    until: the last step of a run that is not resumed.
    """
    actual, repeated = compared_rows(rows)
    expected, _ = compared_rows(reference)
    if repeated:
        return repeated
    for key in sorted(actual.keys() | expected.keys(), key=lambda key: (key[1], key[0], key[2])):
        kind, step, _ = key
        if until is not None and step > until:
            break
        if key not in actual:
            if until == step and kind != ROW_KINDS["train_loss"]:
                continue  # it ended before the validation
            return f"{kind} {step} is missing"
        if key not in expected:
            return f"{kind} {step} should not be there"
        for name in sorted(actual[key].keys() | expected[key].keys()):
            a, b = actual[key].get(name), expected[key].get(name)
            if a != b and not (a != a and b != b):  # two NaNs are equal
                return f"{kind} {step}: {name} is {a!r} and not {b!r}"
    return None
