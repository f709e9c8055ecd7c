"""`python -m launch logs RUN`: one log across all attempts of a run, and across its jobs."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.commands import CommandParser
from core.errors import UserError
from launch.slurm import LIVE, ask_for_jobs, standing
from runs.console import START, settle
from runs.reading import Run, find_run, seconds_of

FOLLOWED = 40  # lines shown before following
PAUSE = 0.5  # seconds between two looks into the files
ASKED = 30.0  # seconds between two questions to Slurm about a run whose folder says the same: sites forbid more


@dataclass(frozen=True)
class Part:
    """What one start of the run wrote. began: seconds since the epoch, 0 where it is not known."""

    began: float
    job: str
    lines: list[str]


class LogFile:
    """A file that grows; `read` gives what came since the last time, cut at the marks of starts."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset, self.pending = path, 0, b""
        self.began, self.job = 0.0, job_of(path)

    def read(self) -> list[Part]:
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                content = file.read()
        except OSError:
            return []
        self.offset += len(content)
        *lines, self.pending = (self.pending + content).split(b"\n")
        parts = [Part(self.began, self.job, [])]
        for raw in lines:
            line = settle(raw.decode(errors="replace"))
            if mark := START.fullmatch(line):
                self.began, self.job = seconds_of(mark["time"]), mark["job"] or ""
                parts.append(Part(self.began, self.job, []))
            elif line or not raw.strip():
                parts[-1].lines.append(line)
        return parts

    def rest(self) -> list[str]:
        """A last line that has no end."""
        return [settle(self.pending.decode(errors="replace"))] if self.pending.strip() else []


def job_of(path: Path) -> str:
    found = re.search(r"(\d+(?:_\d+)?)\.(?:log|out)$", path.name)
    return found[1] if found else ""


class RunLog:
    """All files of a run as one. What a job's own log has is left out of the copy that the run keeps.

    rank: of another process than the first, which has a file of its own.
    """

    def __init__(self, run: Run, rank: int = 0) -> None:
        self.rank = rank
        self.path = run.path.resolve()  # as the log's own place in job.json is
        self.files: dict[Path, LogFile] = {}
        self.starts: set[float] = set()

    def read(self) -> list[Part]:
        run = Run(self.path)
        copy = self.path / str(run.settings.get("console_log_filename") or "console.log")
        if self.rank:
            copy = self.path / f"rank_{self.rank}.log"
        own = [] if self.rank else sorted(self.path.glob("slurm-*.log"))
        if not self.rank and isinstance(elsewhere := run.job.get("log"), str) and Path(elsewhere) not in own:
            own.append(Path(elsewhere))
        before = [] if own or copy.exists() or self.rank else sorted(self.path.glob("submitit/*_log.out"))
        jobs = {job_of(path) for path in own if path.exists()}
        parts = []
        for path in (*own, copy, *before):
            found = self.files.setdefault(path, LogFile(path)).read()
            again = path == copy and jobs  # a copy from before there were marks is as old as the first job
            parts += [part for part in found if part.lines and not (again and (part.job in jobs or not part.began))]
        self.starts |= {part.began for part in parts}
        return sorted(parts, key=lambda part: part.began)

    def attempts_in(self, run: Run, part: Part) -> list[dict[str, Any]]:
        """The attempts that began after this start and before the next: one, or none where it came to nothing."""
        following = min((start for start in self.starts if start > part.began), default=math.inf)
        return [attempt for attempt in run.attempts if part.began <= seconds_of(attempt.get("start")) < following]


def tail_of(run: Run, lines: int = 200) -> str:
    """The last lines, for who looks for an error in them."""
    return "\n".join([line for part in RunLog(run).read() for line in part.lines][-lines:])


def logs(argv: list[str]) -> int:
    parser = CommandParser("python -m launch logs", "A run's log across its attempts.")
    parser.add_argument("run", metavar="RUN", help="id, name, job, path, or last")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended, through requeues")
    parser.add_argument("--attempt", type=int, metavar="N", help="only that of the Nth attempt")
    parser.add_argument("--rank", type=int, default=0, metavar="R", help="what that process printed [0]")
    parser.add_argument("--lines", type=int, metavar="N", help=f"only the last N lines [all; {FOLLOWED} with -f]")
    options = parser.parse_args(argv)
    if options.lines is not None and options.lines < 0:
        raise UserError(f"--lines is {options.lines}: give a number of at least 0.")
    run = find_run(Path(options.logs_dir), options.run)
    if options.attempt is not None and options.follow:
        raise UserError("--attempt and -f do not go together: an attempt that is followed is the newest one.")
    ranks = {0, *(int(file.stem[5:]) for file in run.path.glob("rank_*.log") if file.stem[5:].isdecimal())}
    if options.rank not in ranks:
        raise UserError(f"--rank is {options.rank}: {run.run_id} has {', '.join(map(str, sorted(ranks)))}.")
    log = RunLog(run, options.rank)
    parts = log.read()
    if options.attempt is not None:
        parts = parts_of(log, run, parts, options.attempt)
    if not parts and not options.follow:
        raise UserError(f"{run.run_id} has no log yet: python -m launch why {run.run_id} says where it stands.")
    limit = options.lines if options.lines is not None else FOLLOWED if options.follow else None
    lines = [line for part in parts for line in [mark_of(log, run, part), *part.lines]]
    rest = [] if options.follow else [line for file in log.files.values() for line in file.rest()]
    lines = lines + rest if options.attempt is None else lines
    for line in lines if limit is None else lines[len(lines) - min(limit, len(lines)) :]:
        print(line)
    if options.follow:
        follow(run, log, parts[-1].began if parts else -1.0)
    return 0


def parts_of(log: RunLog, run: Run, parts: list[Part], number: int) -> list[Part]:
    """What the Nth attempt wrote."""
    if number not in [attempt["attempt"] for attempt in run.attempts]:
        known = f"choose 1 to {len(run.attempts)}" if run.attempts else "it has none yet"
        raise UserError(f"--attempt is {number}: {known}.")
    return [part for part in parts if any(attempt["attempt"] == number for attempt in log.attempts_in(run, part))]


def mark_of(log: RunLog, run: Run, part: Part) -> str:
    """The line between two attempts."""
    words = [time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(part.began))] if part.began else []
    if part.job:
        words.append(f"job {part.job}")
    if attempts := log.attempts_in(run, part):
        words.insert(0, f"attempt {attempts[0]['attempt']}")
        words.append(f"from step {attempts[0].get('first_step', 0)}")
    return f"──── {', '.join(words) or run.run_id} ────"


def follow(run: Run, log: RunLog, began: float) -> None:
    """Print what comes until the run has ended; a run that is queued again is waited for."""
    asked, ended, before = 0.0, False, ""
    while True:
        for part in log.read():
            if part.began != began:
                began = part.began
                print(mark_of(log, Run(run.path), part))
            print("\n".join(part.lines), flush=True)
        if ended:
            return
        fresh = Run(run.path)
        if time.monotonic() - asked > ASKED or fresh.state != before:
            asked, before = time.monotonic(), fresh.state
            now = standing(fresh, ask_for_jobs([fresh]))
            ended = now.state not in LIVE and not (now.state == "interrupted" and settling(fresh))
        time.sleep(PAUSE)


def settling(run: Run) -> bool:
    """Whether it was interrupted just now, so that its job may still be on its way back into the queue."""
    return (
        bool(run.attempts) and run.job_name is not None and time.time() - seconds_of(run.attempts[-1].get("end")) < 30
    )
