"""`python -m launch why RUN`: what happened to a run, in words, and what to type next."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path
from typing import Any

from config.command import CommandParser
from config.flags import shown
from launch.control import command_that_goes_on, goes_on
from launch.execute import logs_flag
from launch.logs import tail_of
from launch.slurm import Answer, Job, Standing, ask, ask_for_jobs, duration, standing
from runs.causes import REFUSED
from runs.reading import Run, find_run, seconds_of

ERROR_LINES = 12
# What Slurm says a job waits for; the first that the reason begins with counts.
REASONS = {
    "Priority": "other jobs come first",
    "Resources": "it is the next, as soon as enough nodes, GPUs or memory are free",
    "Dependency": "another job has to end first",
    "DependencyNeverSatisfied": "the job it depends on failed, so it will never start: cancel it",
    "JobHeldUser": "it is held; python -m launch requeue RUN lets it go",
    "JobHeldAdmin": "an administrator holds it: ask them why",
    "JobHoldMaxRequeue": "it was queued again too often, and Slurm holds it: look at its log, then release it",
    "BeginTime": "its time to begin has not come; a job that was queued again waits a minute or two",
    "PartitionTimeLimit": "it asks for more time than the partition gives: lower --time in its header",
    "PartitionNodeLimit": "it asks for more nodes than the partition gives: lower --nodes in its header",
    "PartitionDown": "its partition takes no jobs at the moment",
    "PartitionInactive": "its partition takes no jobs at the moment",
    "PartitionConfig": "the partition does not have what it asks for: look at its header",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved, often for maintenance",
    "Reservation": "its reservation has not begun",
    "Licenses": "it waits for a licence",
    "NodeDown": "a node that it needs is down",
    "BadConstraints": "no node is as its --constraint asks for: correct the header",
    "InvalidAccount": "its account is not valid: correct --account in the header",
    "InvalidQOS": "its QOS is not valid: correct --qos in the header",
    "AccountNotAllowed": "its account may not use this partition",
    "QOSNotAllowed": "its QOS may not be used there",
    "QOSMax": "you have as much running or waiting as its QOS allows: it starts when others of yours end",
    "QOSGrp": "everybody together uses what its QOS has: it starts when others end",
    "QOS": "a limit of its QOS is reached",
    "AssocMax": "you have as much running as your account allows: it starts when others of yours end",
    "AssocGrp": "your group uses what its account has: it starts when others end, or the budget is refilled",
    "Assoc": "a limit of your account is reached",
    "JobArrayTaskLimit": "as many tasks of its array run as were allowed at a time",
    "launch failed requeued held": "its node could not start it, and Slurm holds it: scontrol release it",
    "Prolog": "its node is being made ready",
    "Cleaning": "what its last attempt left is being cleaned up",
    "None": "Slurm has not looked at it yet",
}
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
    "killed": "was killed without a word: kill -9, no memory, or a lost node",
}
MEMORY = re.compile(r"oom.?kill|out of memory|OutOfMemoryError|MemoryError|can.t allocate memory", re.IGNORECASE)
TRACE = re.compile(r"^Traceback \(most recent call last\)", re.MULTILINE)
FLAG = re.compile(r"--(\w+)")
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
    lines += present(run, now, job)
    if answer.problem:
        lines.append(f"Slurm: {answer.problem}.")
    if now.state in ("failed", "killed", "out of memory", "not submitted", "lost", "diverged", "prepared"):
        lines += trouble(tail_of(run)) if not (run.attempts and mistake_in(run.attempts[-1])) else []
    lines += warnings(run)
    return [*lines, f"next: {advice(run, now)}"]


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
    return f"ended ({shown(cause)})"


def mistake_in(attempt: dict[str, Any]) -> str:
    """The sentence that ended an attempt, where it was something that a person can put right."""
    cause = str(attempt.get("cause", ""))
    return cause.removeprefix(REFUSED) if cause.startswith(REFUSED) else ""


def present(run: Run, now: Standing, job: Job | None) -> list[str]:
    """What it waits for, or how it does."""
    if job is not None and now.state in ("waiting", "queued again", "held"):
        lines = [f"Job {job.name} waits ({shown(job.reason)}): {reason_in_words(job.reason)}."]
        if job.start not in ("N/A", ""):
            lines.append(f"Slurm expects it to start {job.start.replace('T', ' at ')}.")
        if job.reason.startswith(("Resources", "Priority", "ReqNodeNotAvail", "Partition", "None")):
            lines += free_nodes(job.partition)
        return lines
    step, total = run.heartbeat.get("step"), run.heartbeat.get("total_steps")
    if now.state == "silent":
        ago = duration(run.silence)
        return [f"Its last sign of life was {ago} ago, at step {step}: it hangs, or a step takes that long."]
    if now.state == "running" and step is not None:
        return [f"It is at step {step} of {total}; its last sign of life was {duration(run.silence)} ago."]
    return []


def reason_in_words(reason: str) -> str:
    exact = REASONS.get(reason)
    return exact or next(
        (words for name, words in REASONS.items() if reason.startswith(name)), "Slurm's own word for it"
    )


def free_nodes(partition: str) -> list[str]:
    """How busy the partition is."""
    said, problem = ask("sinfo", "--noheader", f"--partition={partition}", "--format=%D %T")
    counts: dict[str, int] = {}
    for line in said.splitlines():
        count, _, marked = line.strip().partition(" ")
        state = marked.rstrip("*~#!%$@^-+")  # marks of nodes that do not answer, sleep and the like
        if count.isdigit() and state:
            counts[state] = counts.get(state, 0) + int(count)
    if problem or not counts:
        return []
    total = sum(counts.values())
    return [
        f"Of {total} nodes in {shown(partition)}: {', '.join(f'{count} {state}' for state, count in counts.items())}."
    ]


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


def advice(run: Run, now: Standing) -> str:
    """What to type."""
    name = shlex.quote(run.run_id) + logs_flag(run.path.absolute().parent.parent)
    again = f"python -m launch resubmit {name}"
    going_on = f"python -m launch requeue {name}" if goes_on(run) else command_that_goes_on(run)
    if run.attempts and now.state == "failed" and (flag := FLAG.search(mistake_in(run.attempts[-1]))):
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
