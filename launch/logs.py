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
from core.text import format_time
from launch.slurm import ACTIVE, jobs_of, status_of
from runs.process import ATTEMPT_MARK, strip_control_codes
from runs.run import Run, find_run, seconds_of

FOLLOW_LINES = 40  # lines shown before following
POLL_SECONDS = 0.5  # between two reads of the files
SQUEUE_SECONDS = 30.0  # between two calls of squeue for a run whose state is unchanged: sites forbid more


@dataclass(frozen=True)
class LogSegment:
    """The output of one start of the run. began: seconds since the epoch, 0 if unknown."""

    began: float
    job: str
    lines: list[str]


class LogFile:
    """A growing file; `read` returns what was added since the last call, split at the marks of starts."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset, self.pending = path, 0, b""
        self.began, self.job = 0.0, job_of(path)

    def read(self) -> list[LogSegment]:
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                content = file.read()
        except OSError:
            return []
        self.offset += len(content)
        *lines, self.pending = (self.pending + content).split(b"\n")
        segments = [LogSegment(self.began, self.job, [])]
        for raw in lines:
            line = strip_control_codes(raw.decode(errors="replace"))
            if mark := ATTEMPT_MARK.fullmatch(line):
                self.began, self.job = seconds_of(mark["time"]), mark["job"] or ""
                segments.append(LogSegment(self.began, self.job, []))
            elif line or not raw.strip():
                segments[-1].lines.append(line)
        return segments

    def rest(self) -> list[str]:
        """A last line without a newline."""
        return [strip_control_codes(self.pending.decode(errors="replace"))] if self.pending.strip() else []


def job_of(path: Path) -> str:
    """The job in the name of a log file; empty if there is none."""
    match = re.search(r"(\d+(?:_\d+)?)\.(?:log|out)$", path.name)
    return match[1] if match else ""


class RunLog:
    """All log files of a run as one: those of its jobs, and its own, of which only what no job's log contains is shown.

    rank: the process; each but the first has a file of its own.
    """

    def __init__(self, run: Run, rank: int = 0) -> None:
        self.rank = rank
        self.path = run.path.resolve()  # as in job.json
        self.files: dict[Path, LogFile] = {}
        self.starts: set[float] = set()

    def read(self) -> list[LogSegment]:
        run = Run(self.path)
        run_log = self.path / str(run.settings.get("console_log_filename") or "console.log")
        if self.rank:
            run_log = self.path / f"rank_{self.rank}.log"
        job_logs = [] if self.rank else sorted(self.path.glob("slurm-*.log"))
        if not self.rank and isinstance(output := run.job.get("log"), str) and Path(output) not in job_logs:
            job_logs.append(Path(output))
        has_log = job_logs or run_log.exists() or self.rank
        submitit_logs = [] if has_log else sorted(self.path.glob("submitit/*_log.out"))
        jobs = {job_of(path) for path in job_logs if path.exists()}
        segments = []
        for path in (*job_logs, run_log, *submitit_logs):
            added = self.files.setdefault(path, LogFile(path)).read()
            if path == run_log and jobs:  # skip copies of the jobs' logs; what has no mark is of the first job
                added = [segment for segment in added if segment.began and segment.job not in jobs]
            segments += [segment for segment in added if segment.lines]
        self.starts |= {segment.began for segment in segments}
        return sorted(segments, key=lambda segment: segment.began)

    def attempts_in(self, run: Run, segment: LogSegment) -> list[dict[str, Any]]:
        """The attempts between this start and the next: one, or none if it ended before an attempt."""
        next_start = min((start for start in self.starts if start > segment.began), default=math.inf)
        return [attempt for attempt in run.attempts if segment.began <= seconds_of(attempt.get("start")) < next_start]


def last_lines(run: Run, lines: int = 200) -> str:
    """The last lines of the run's log."""
    return "\n".join([line for segment in RunLog(run).read() for line in segment.lines][-lines:])


def logs(argv: list[str]) -> int:
    parser = CommandParser("python -m launch logs", "A run's log across its attempts.")
    parser.add_argument("run", metavar="RUN", help="id, name, job, path, or last")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="continue until the run has ended, through requeues"
    )
    parser.add_argument("--attempt", type=int, metavar="N", help="only the log of the Nth attempt")
    parser.add_argument("--rank", type=int, default=0, metavar="R", help="what that process printed [0]")
    parser.add_argument("--lines", type=int, metavar="N", help=f"only the last N lines [all; {FOLLOW_LINES} with -f]")
    options = parser.parse_args(argv)
    if options.lines is not None and options.lines < 0:
        raise UserError(f"--lines is {options.lines}: give a number of at least 0.")
    run = find_run(Path(options.logs_dir), options.run)
    if options.attempt is not None and options.follow:
        raise UserError("--attempt and -f do not go together: -f follows the newest attempt; remove one of them.")
    ranks = {0, *(int(file.stem[5:]) for file in run.path.glob("rank_*.log") if file.stem[5:].isdecimal())}
    if options.rank not in ranks:
        raise UserError(f"--rank is {options.rank}: {run.run_id} has {', '.join(map(str, sorted(ranks)))}.")
    log = RunLog(run, options.rank)
    segments = log.read()
    if options.attempt is not None:
        segments = segments_of(log, run, segments, options.attempt)
    if not segments and not options.follow:
        raise UserError(f"{run.run_id} has no log yet: python -m launch why {run.run_id} shows its state.")
    limit = options.lines if options.lines is not None else FOLLOW_LINES if options.follow else None
    lines = [line for segment in segments for line in [segment_title(log, run, segment), *segment.lines]]
    rest = [] if options.follow else [line for file in log.files.values() for line in file.rest()]
    lines = lines + rest if options.attempt is None else lines
    for line in lines if limit is None else lines[len(lines) - min(limit, len(lines)) :]:
        print(line)
    if options.follow:
        follow(run, log, segments[-1].began if segments else -1.0)
    return 0


def segments_of(log: RunLog, run: Run, segments: list[LogSegment], number: int) -> list[LogSegment]:
    """The segments of the Nth attempt."""
    if number not in [attempt["attempt"] for attempt in run.attempts]:
        choices = f"choose 1 to {len(run.attempts)}" if run.attempts else "it has none yet"
        raise UserError(f"--attempt is {number}: {choices}.")
    return [
        segment
        for segment in segments
        if any(attempt["attempt"] == number for attempt in log.attempts_in(run, segment))
    ]


def segment_title(log: RunLog, run: Run, segment: LogSegment) -> str:
    """The line above a segment."""
    words = [format_time(segment.began)] if segment.began else []
    if segment.job:
        words.append(f"job {segment.job}")
    if attempts := log.attempts_in(run, segment):
        words.insert(0, f"attempt {attempts[0]['attempt']}")
        words.append(f"from step {attempts[0].get('first_step', 0)}")
    return f"──── {', '.join(words) or run.run_id} ────"


def follow(
    run: Run,
    log: RunLog,
    began: float = -1.0,
    poll_seconds: float = POLL_SECONDS,
    squeue_seconds: float = SQUEUE_SECONDS,
) -> None:
    """Print new lines until the run has ended; wait for a run that is queued again.

    began: the start whose lines were printed last.
    """
    squeue_at, ended, state_before = 0.0, False, ""
    while True:
        for segment in log.read():
            if segment.began != began:
                began = segment.began
                print(segment_title(log, Run(run.path), segment))
            print("\n".join(segment.lines), flush=True)
        if ended:
            return
        fresh = Run(run.path)
        if time.monotonic() - squeue_at > squeue_seconds or fresh.state != state_before:
            squeue_at, state_before = time.monotonic(), fresh.state
            status = status_of(fresh, jobs_of([fresh]))
            ended = status.state not in ACTIVE and not (status.state == "interrupted" and may_be_requeued(fresh))
        time.sleep(poll_seconds)


def may_be_requeued(run: Run) -> bool:
    """Whether it was interrupted just now, so that its job may still be queued again."""
    return (
        bool(run.attempts) and run.job_name is not None and time.time() - seconds_of(run.attempts[-1].get("end")) < 30
    )
