"""`python -m launch why RUN`: what happened to a run, in words, and what to type next."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path
from typing import Any

from core.commands import CommandParser
from core.text import shown
from launch.bad_nodes import BadNode, bad_node, node_that_ended
from launch.control import command_that_goes_on, goes_on
from launch.execute import logs_flag
from launch.logs import tail_of
from launch.reasons import ASKS, explained
from launch.slurm import WAITS, Answer, Job, Standing, ask_for_jobs, duration, follows, standing
from runs.causes import REFUSED
from runs.reading import KILLED, Run, all_runs, find_run, seconds_of

ERROR_LINES = 12
CAUSES = {
    "finished": "finished",
    "interrupted: SIGTERM": "was told to end (SIGTERM: preempted, requeued or cancelled) and saved its state",
    "time limit": "came near its time limit",
    "preempted": "was preempted by a more urgent job",
    "requeued": "was put back into the queue",
    "node failure": "lost its node",
    "out of memory": "ran out of memory",
    "cancelled": "was cancelled",
    "diverged": "diverged",
    "stopped by hand": "was stopped with Ctrl-C",
    "stopped": "stopped by itself",
    "hung": "hung, so that it was ended",
    "killed": "was killed without a word: kill -9, no memory, or a lost node",
}
MEMORY = re.compile(r"oom.?kill|out of memory|OutOfMemoryError|MemoryError|can.t allocate memory", re.IGNORECASE)
TRACE = re.compile(r"^Traceback \(most recent call last\)", re.MULTILINE)
FLAG = re.compile(r"--(\w+)")
HEADER = re.compile(r"job_scripts/headers/([\w.-]+)\.slurm")
# What stands at the end of every log, whatever went wrong.
USUAL = re.compile(r"srun: error: .*: Exited with exit code|train_model.py ended with|run folder  |step +\d|\s*$")


def why(argv: list[str]) -> int:
    parser = CommandParser("python -m launch why", "What happened to a run, in words, and what to type next.")
    parser.add_argument("run", metavar="RUN", help="id, name, job, path, or last")
    options = parser.parse_args(argv)
    run = find_run(Path(options.logs_dir), options.run)
    print("\n".join(story(run, ask_for_jobs([run]))))
    return 0


def story(run: Run, answer: Answer) -> list[str]:
    """Everything there is to say, a line each."""
    now, job = standing(run, answer), answer.job_of(run)
    lines = [f"{run.run_id} is {now}.", *submission(run)]
    lines += [sentence(run, number) for number in range(len(run.attempts))]
    if not run.attempts and job is not None and job.is_over and now.state != "cancelled":
        lines.append("It ended before it began to train.")
    if now.state == "cancelled" and run.submission.get("state") == "cancelled":
        lines.append(f"It was cancelled {clock(run.submission.get('time'))}.")
    lines += (told := present(run, now, answer))
    if answer.problem:
        lines.append(f"Slurm: {answer.problem}.")
    if now.state in ("failed", "killed", "out of memory", "not submitted", "lost", "diverged", "prepared"):
        lines += trouble(tail_of(run)) if not (run.attempts and mistake_in(run.attempts[-1])) else []
    if run.attempts and str(run.attempts[-1].get("cause")).startswith("hung"):
        number = run.attempts[-1]["attempt"]
        lines.append(f"Where its processes stood is in its log: python -m launch logs {typed(run)} --attempt {number}")
    lines += warnings(run)
    bad = None if now.state in ("finished", "cancelled") else bad_node(all_runs(run.path.absolute().parent.parent))
    if bad is not None:
        lines.append(f"{bad.sentence(typed(run))}.")
    return [*lines, f"next: {advice_in_queue(run, job, told) or advice(run, now, bad)}"]


def submission(run: Run) -> list[str]:
    record = run.submission
    lines = []
    if isinstance(record.get("error"), str):
        lines.append(f"Its submission failed: {shown(record['error'])}.")
    elif record.get("state") == "submitting":
        lines.append(f"Its submission was broken off; squeue --name={run.run_id} shows whether there is a job.")
    return lines


def clock(stamp: Any) -> str:
    """A time of the record as one reads it on the wall; the day where it is not today's."""
    seconds = seconds_of(stamp)
    if not seconds:
        return "at an unknown time"
    then = time.localtime(seconds)
    return time.strftime("at %H:%M:%S" if then[:3] == time.localtime()[:3] else "on %Y-%m-%d at %H:%M:%S", then)


def sentence(run: Run, index: int) -> str:
    """One attempt."""
    attempt = run.attempts[index]
    place = str(attempt.get("nodes") or attempt.get("host") or "an unknown machine")
    said = f"Attempt {attempt['attempt']} started {clock(attempt.get('start'))} on {shown(place)}"
    said += f" as job {shown(str(attempt['job']))}" if "job" in attempt else ""
    said += f" from step {attempt.get('first_step', 0)}"
    if "end" not in attempt:
        return f"{said}."
    took = seconds_of(attempt["end"]) - seconds_of(attempt.get("start"))
    last = attempt.get("last_step")
    said += f" and {ended(str(attempt.get('cause', 'killed')))} after {duration(took)}"
    said += f" at step {last}" if isinstance(last, int) else ""
    culprit, rank = attempt.get("ended_on"), attempt.get("ended_rank")
    if isinstance(culprit, str) and (culprit != attempt.get("nodes") or rank):
        said += f" (process {rank} on {shown(culprit)})"
    if mistake := mistake_in(attempt):
        return f"{said}: {shown(mistake)}"
    lost = attempt.get("steps_lost")
    if not isinstance(lost, int) and index + 1 < len(run.attempts) and isinstance(last, int):
        lost = max(0, last - int(run.attempts[index + 1].get("first_step") or 0))
    return f"{said}; {lost} steps were lost." if lost else f"{said}."


def ended(cause: str) -> str:
    if cause in CAUSES:
        return CAUSES[cause]
    if cause.startswith(REFUSED):
        return "failed"
    if cause.startswith("error: "):
        return f"failed with {shown(cause.removeprefix('error: '))}"
    if cause.startswith(KILLED):
        whose = shown(cause.removeprefix(KILLED)) if cause != KILLED else ""
        return f"was killed (by the kernel for its memory, or by hand{whose})"
    if cause.startswith("crashed: "):
        return f"crashed ({shown(cause.removeprefix('crashed: '))})"
    return f"ended ({shown(cause)})"


def mistake_in(attempt: dict[str, Any]) -> str:
    """The sentence that ended an attempt, where it was something that a person can put right."""
    cause = str(attempt.get("cause", ""))
    return cause.removeprefix(REFUSED) if cause.startswith(REFUSED) else ""


def present(run: Run, now: Standing, answer: Answer) -> list[str]:
    """What it waits for, or how it does."""
    job = answer.job_of(run)
    if job is not None and now.state in ("waiting", "queued again", "held"):
        return explained(job) + predecessor(run, answer)
    step, total = run.heartbeat.get("step"), run.heartbeat.get("total_steps")
    if now.state == "silent" and run.has_beaten:
        ago = duration(run.silence)
        return [f"Its last sign of life was {ago} ago, at step {step}: it hangs, or a step takes that long."]
    if now.state == "silent":
        said = f"{duration(time.time() - run.last_line)} ago" if run.last_line else "never"
        return [f"It has made no step yet, and its log was last written to {said}: it hangs, or prepares data."]
    if now.state == "running" and step is not None:
        return [f"It is at step {step} of {total}; its last sign of life was {duration(run.silence)} ago."]
    return []


def predecessor(run: Run, answer: Answer) -> list[str]:
    """The run that it was submitted to follow, and where that stands."""
    if not (until := follows(run)):
        return []
    other = Run(run.path.parent / str(run.submission["after"].get("run")))
    there = f"that one is {standing(other, answer)}" if other.path.is_dir() else "that one is gone"
    return [f"It was submitted to wait {until}; {there}."]


def trouble(log: str) -> list[str]:
    """The last error of a log: a traceback, or the last lines that say more than every log does."""
    lines = []
    if MEMORY.search(log):
        lines.append("Its log has signs of too little memory: ask for more (--mem), or lower --batch_size_per_device.")
    traces = list(TRACE.finditer(log))
    if traces:
        found = log[traces[-1].start() :].splitlines()
        end = next((index for index, line in enumerate(found) if index and line and not line[0].isspace()), len(found))
        found = found[: end + 1][-ERROR_LINES:]
    else:
        found = [line for line in log.splitlines() if not USUAL.match(line)][-3:]
    if found:
        lines += ["The end of its log says:", *(f"  {shown(line)}" for line in found)]
    return lines


def warnings(run: Run) -> list[str]:
    """What the run itself noticed."""
    lines = []
    for row in run.rows("alarms.jsonl")[-3:]:
        lines.append(f"Alarm at step {row.get('step')}: {shown(str(row.get('text', row.get('kind', ''))))}")
        if row.get("advice"):
            lines[-1] += f" ({shown(str(row['advice']))})"
    for row in run.rows("divergence.jsonl")[-3:]:
        lines.append(
            f"Trouble at step {row.get('step')}: {shown(str(row.get('what', row.get('kind', 'it diverged'))))}"
        )
    return lines


def typed(run: Run) -> str:
    """The run as a command wants it."""
    return shlex.quote(run.run_id) + logs_flag(run.path.absolute().parent.parent)


def advice_in_queue(run: Run, job: Job | None, told: list[str]) -> str:
    """What to type for a job that does not start by itself; nothing for any other. told: what it waits for."""
    name, give_up = typed(run), f"python -m launch cancel {typed(run)}"
    if job is None or job.state not in WAITS:
        return ""
    if job.reason == "BadConstraints" or any(line.startswith(ASKS) for line in told):
        return f"{give_up}, then python -m launch resubmit {name} --header … with one that asks for less"
    if job.reason == "DependencyNeverSatisfied":
        return f"scontrol update JobId={job.name} Dependency= (it starts all the same), or {give_up}"
    if job.reason == "JobHeldAdmin":
        return f"ask those who run the cluster, or {give_up}"
    if job.reason == "JobHoldMaxRequeue":
        return f"python -m launch logs {name} --lines 50, then python -m launch requeue {name}"
    return ""


def advice(run: Run, now: Standing, bad: BadNode | None) -> str:
    """What to type."""
    name = typed(run)
    again = f"python -m launch resubmit {name}"
    going_on = f"python -m launch requeue {name}" if goes_on(run) else command_that_goes_on(run)
    if goes_on(run) and bad is not None and run.attempts and node_that_ended(run.attempts[-1]) == bad.name:
        going_on += f" --exclude_nodes {shlex.quote(bad.name)}"
    mistake = mistake_in(run.attempts[-1]) if run.attempts and now.state == "failed" else ""
    if header := HEADER.match(mistake):  # the run's own script has the old one
        return f"correct {header[0]}, then {again} --header {header[1]}"
    if flag := FLAG.search(mistake):
        saved = any(run.path.glob("checkpoints/step_*.ckpt"))  # the same command would fail again
        return f"{command_that_goes_on(run)} --{flag[1]}=…" if saved else f"{again} --set {flag[1]}=…"
    return {
        "finished": f"python -m runs show {name}",
        "running": f"python -m launch logs -f {name}",
        "starting": f"python -m launch logs -f {name}",
        "silent": f"python -m launch logs {name} --lines 50, then python -m launch requeue {name}",
        "suspended": "wait: Slurm goes on with it",
        "waiting": "wait, or python -m launch cancel " + name,
        "queued again": "wait, or python -m launch cancel " + name,
        "held": f"python -m launch requeue {name}",
        "not submitted": f"correct what is wrong, then {again}",
        "lost": going_on,
        "failed": f"correct what is wrong, then {going_on if run.attempts else again}",
        "diverged": f"{again} --set peak_learning_rate=…",
        "out of memory": f"{again} --set batch_size_per_device=…",
    }.get(now.state, going_on)
