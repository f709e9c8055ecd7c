"""Who runs and interrupts the runs of a drill: Slurm, or this process with signals in its place."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from core.environment import clean_environment
from core.errors import UserError
from core.notify import VARIABLE
from launch.execute import ROOT
from launch.prepare import prepare
from launch.rehearse import active_environment
from launch.script import Header, commands_of, read_text, slurm_quoted
from launch.slurm import GONE, ask
from launch.submit import complaint
from runs.reading import Run

READY = "ready_for_the_drill"  # the file by which training/rehearsal.py says that it waits for a signal
PATIENCE = 600.0  # seconds without any change, after which a run is given up
MINUTES = 15  # time limit of a job
COMMAND = re.compile(r"Go on with:\n  python (train_model\.py .*)")
Tell = Callable[[str, str], None]


class AnyWay(Protocol):
    """What a player has to know of a way (launch/drill.py)."""

    @property
    def name(self) -> str: ...
    @property
    def plant(self) -> str: ...
    @property
    def how(self) -> str: ...
    @property
    def back(self) -> str: ...
    @property
    def flags(self) -> tuple[str, ...]: ...
    @property
    def status(self) -> int: ...


def folder_name(way: AnyWay) -> str:
    return re.sub(r"\W+", "_", way.name).strip("_")


class Player:
    """Plays all ways in `desk`, each in a logs folder of its own there. cannot: what there is no way to do here."""

    cannot: tuple[str, ...] = ()
    where = ""

    def __init__(self, desk: Path, flags: list[str]) -> None:
        self.desk, self.flags = desk, flags
        self.problems: dict[str, str] = {}

    def logs(self, way: AnyWay) -> Path:
        return self.desk / folder_name(way)

    def log(self, way: AnyWay) -> Path:
        return self.logs(way) / "output.log"

    def words(self, way: AnyWay) -> list[str]:
        return [*self.flags, *way.flags, "--logs_dir", str(self.logs(way))]

    def run(self, way: AnyWay) -> Run | None:
        """What has become of it; read anew each time."""
        found = sorted((self.logs(way) / "runs").glob("[!.]*/config.json"))
        return Run(found[0].parent) if found else None

    def is_ready(self, way: AnyWay) -> bool:
        run = self.run(way)
        return run is not None and (run.path / READY).exists()

    def problem(self, way: AnyWay) -> str | None:
        return self.problems.get(way.name)

    def last_words(self, way: AnyWay) -> str:
        with suppress(OSError):
            lines = self.log(way).read_text(errors="replace").strip().splitlines()
            return lines[-1] if lines else ""
        return ""

    def play(self, ways: Sequence[AnyWay], tell: Tell) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """End what still runs."""
        raise NotImplementedError


class Local(Player):
    """One run after the other on this machine; what Slurm would start again is started again here."""

    cannot = ("requeue", "cancel")
    where = "on this machine"

    def __init__(self, desk: Path, flags: list[str]) -> None:
        super().__init__(desk, flags)
        self.process: subprocess.Popen[Any] | None = None

    def play(self, ways: Sequence[AnyWay], tell: Tell) -> None:
        for way in ways:
            tell(way.name, "trains")
            folder = prepare(self.words(way))
            status = self.start(way, self.command(way), folder, way.how)
            if way.plant:
                tell(way.name, "goes on")
                if status != way.status:
                    self.problems[way.name] = f"its first attempt ended with status {status}: {self.last_words(way)}"
                by_hand = printed_command(self.log(way)) if way.back == "person" else None
                status = self.start(way, by_hand or self.command(way), None if by_hand else folder, "")
            if status:
                self.problems[way.name] = f"it ended with status {status}: {self.last_words(way)}"
            tell(way.name, "done")

    def command(self, way: AnyWay) -> list[str]:
        return [sys.executable, "train_model.py", *self.words(way)]

    def start(self, way: AnyWay, command: list[str], folder: Path | None, sent: str) -> int:
        """The exit status of one attempt; a signal is sent as soon as it waits for one. folder: as its job knows it."""
        self.process = start_attempt(command, folder, way.plant, self.log(way))
        while self.process.poll() is None:
            if sent and self.is_ready(way):
                os.killpg(self.process.pid, getattr(signal, f"SIG{sent}"))
                sent = ""
            time.sleep(0.05)
        return self.process.returncode

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def start_attempt(command: list[str], folder: Path | None, plant: str, log: Path) -> subprocess.Popen[bytes]:
    """A process in a group of its own. folder: that of its run, where a job would name it."""
    mine = clean_environment() | {"EBT_DRILL": plant} | ({"EBT_JOB_RUN_DIR": str(folder)} if folder else {})
    mine.pop(VARIABLE, None)  # a drill is nobody's news
    with open(log, "ab") as output:
        return subprocess.Popen(
            command, cwd=ROOT, env=mine, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )


def printed_command(log: Path, since: int = 0) -> list[str] | None:
    """What a run that was stopped by hand told the person to type, in what the log has from `since` on."""
    found = COMMAND.findall(log.read_bytes()[since:].decode(errors="replace"))
    return [sys.executable, *shlex.split(found[-1])] if found else None


class OnSlurm(Player):
    """All runs at once, each a job of train.slurm."""

    where = "as jobs"

    def __init__(self, desk: Path, flags: list[str], header: Header) -> None:
        super().__init__(desk, flags)
        self.script = desk / "drill.slurm"
        self.script.write_text(drill_script(header))
        self.jobs: dict[str, str] = {}

    def play(self, ways: Sequence[AnyWay], tell: Tell) -> None:
        for way in ways:
            self.jobs[way.name] = submit_job(self.script, self.words(way), self.logs(way), self.log(way), way.plant)
            tell(way.name, "waits in the queue")
        open_ways = {way.name: way for way in ways}
        told: set[str] = set()
        gone: set[str] = set()  # the first attempt is over
        back: set[str] = set()  # queued again by hand
        seen: dict[str, tuple[str, float]] = {}
        while open_ways:
            states = states_of(self.jobs.values())
            for way in list(open_ways.values()):
                state = states.get(self.jobs[way.name], ("", ""))[0]
                if way.name in told and state != "RUNNING":
                    gone.add(way.name)
                tell(way.name, phase(state, way.name in told, way.name in gone))
                if way.how and way.name not in told and state == "RUNNING" and self.is_ready(way):
                    told |= {way.name} if self.interrupt(way) else set()
                elif state in GONE and way.back == "person" and way.name not in back:
                    if do("scontrol", "requeue", self.jobs[way.name]):  # as a person would
                        told.add(way.name)
                        back.add(way.name)
                elif state in GONE:
                    expected = "CANCELLED" if way.back == "nobody" else "COMPLETED"
                    if state != expected:
                        self.problems[way.name] = f"its job {self.jobs[way.name]} is {state}: {self.last_words(way)}"
                    tell(way.name, "done")
                    del open_ways[way.name]
                # A job may wait in a queue for as long as it likes.
                before = seen.get(way.name)
                if before is None or before[0] != state or state in ("PENDING", ""):
                    seen[way.name] = (state, time.monotonic())
                elif time.monotonic() - before[1] > PATIENCE:
                    raise UserError(
                        f"the job of {way.name!r} ({self.jobs[way.name]}) is {state} for {PATIENCE:.0f} s: "
                        f"its log is {self.log(way)}."
                    )
            time.sleep(0.5)

    def interrupt(self, way: AnyWay) -> bool:
        """Do to the job what this way is about."""
        job = self.jobs[way.name]
        words = {"requeue": ("scontrol", "requeue", job), "cancel": ("scancel", job)}
        return do(*words.get(way.how, ("scancel", f"--signal={way.how}", job)))

    def stop(self) -> None:
        if self.jobs:
            ask("scancel", *self.jobs.values(), patience=60)


def do(*words: str) -> bool:
    _, problem = ask(*words, patience=60)
    return not problem


def submit_job(script: Path, words: list[str], logs: Path, log: Path, plant: str) -> str:
    """The number of a job that has its log in a folder that is made for it."""
    logs.mkdir()
    command = ["sbatch", "--parsable", "--export=ALL", f"--output={slurm_quoted(str(log))}", str(script), *words]
    mine = clean_environment() | {"EBT_DRILL": plant}
    mine.pop(VARIABLE, None)  # a drill is nobody's news
    done = subprocess.run(command, cwd=ROOT, env=mine, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise UserError(f"{complaint('sbatch', done.stderr)}.")
    return done.stdout.strip().splitlines()[-1].partition(";")[0]


def states_of(jobs: Iterable[str]) -> dict[str, tuple[str, str]]:
    """{job: (state, when it started)}; empty where Slurm does not answer."""
    said, _ = ask("squeue", "--noheader", "--states=all", f"--jobs={','.join(jobs)}", "--format=%i|%T|%S")
    rows = [line.strip().split("|", 2) for line in said.splitlines() if line.count("|") == 2]
    return {job: (state, started) for job, state, started in rows}


def phase(state: str, told: bool, gone: bool) -> str:
    if state in ("PENDING", ""):
        return "waits to go on" if told else "waits in the queue"
    if state in ("RUNNING", "CONFIGURING"):
        return "goes on" if gone else "is told to end" if told else "trains"
    return "ends"


def drill_script(header: Header) -> str:
    """job_scripts/train.slurm with what the header asks for and this moment's Python, for a few minutes."""
    lines = read_text(ROOT / "job_scripts" / "train.slurm", "JOB_SCRIPT").splitlines()
    own = [line for line in lines if line.startswith("#SBATCH")]
    body = [line for line in lines if not line.startswith("#")]
    short = [f"#SBATCH --time={MINUTES}", "#SBATCH --signal=USR1@60", "#SBATCH --job-name=drill"]
    place = next(number for number, line in enumerate(body) if line.startswith("if in_batch_script"))
    commands = [*commands_of(header), *active_environment(ROOT)]
    return "\n".join([lines[0], *own, *header.options, *short, *body[:place], *commands, *body[place:]]) + "\n"
