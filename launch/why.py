"""`python -m launch why RUN`: what happened to a run, why its job waits, and what to type next."""

from __future__ import annotations

import math
import re
import shlex
import time
from pathlib import Path
from typing import Any, NamedTuple

from core.commands import CommandParser
from core.text import format_bytes, format_moment, format_short_duration, format_value, plural
from launch.bad_nodes import BadNode, bad_node, node_that_ended
from launch.control import is_resumable, resume_command
from launch.logs import last_lines
from launch.slurm import PENDING, Job, RunStatus, SlurmJobs, jobs_of, status_of, waits_until
from launch.submit import logs_flag
from runs.attempts import KILLED, REFUSED
from runs.run import Run, all_runs, find_run, seconds_of
from runs.slurm import parse_duration, run_slurm, scontrol_show

ERROR_LINES = 12
CAUSES = {
    "finished": "finished",
    "interrupted: SIGTERM": "got SIGTERM (preempted, requeued or cancelled) and saved its state",
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
    "killed": "was killed and recorded nothing: kill -9, no memory, or a lost node",
}
MEMORY = re.compile(r"oom.?kill|out of memory|OutOfMemoryError|MemoryError|can.t allocate memory", re.IGNORECASE)
TRACEBACK = re.compile(r"^Traceback \(most recent call last\)", re.MULTILINE)
FLAG = re.compile(r"--(\w+)")
HEADER = re.compile(r"job_scripts/headers/([\w.-]+)\.slurm")
# Lines at the end of every log, which explain nothing.
ROUTINE_LINES = re.compile(
    r"srun: error: .*: Exited with exit code|train_model.py ended with|run folder  |step +\d|\s*$"
)
# Slurm's reasons in words, by the beginning of the reason; the first match counts.
REASONS = {
    "Priority": "other jobs come first",
    "Resources": "it is the next, as soon as enough nodes, GPUs or memory are free",
    "Dependency": "another job has to end first",
    "DependencyNeverSatisfied": "the job it depends on did not end as it had to, so it will never start",
    "JobHeldUser": "it is held; python -m launch requeue RUN releases it",
    "JobHeldAdmin": "an administrator holds it, and only they can release it",
    "JobHoldMaxRequeue": "it was queued again too often, and Slurm holds it: look at its log before you release it",
    "launch failed requeued held": "a node could not start it (often its prolog failed), and Slurm holds it",
    "job requeued in held state": "it was queued again and held; python -m launch requeue RUN releases it",
    "BeginTime": "its time to begin has not come; a job that was queued again waits a minute or two",
    "PartitionTimeLimit": "it asks for more time than the partition gives: lower --time in its header",
    "PartitionNodeLimit": "it asks for more nodes than the partition gives, or than are up: lower --nodes",
    "PartitionDown": "its partition takes no jobs at the moment",
    "PartitionInactive": "its partition takes no jobs at the moment",
    "PartitionConfig": "the partition does not have what it asks for: nodes, CPUs, memory or GPUs",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved, often for maintenance",
    "Nodes required for job": "nodes that it needs are down, drained, or reserved for jobs that come first",
    "Reservation": "its reservation has not begun",
    "Licenses": "it waits for a licence",
    "NodeDown": "a node that it needs is down",
    "BadConstraints": "no node of its partition has all that it asks for together: memory, CPUs, GPUs, features",
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
    "Prolog": "its node is being made ready",
    "Cleaning": "what its last attempt left is being cleaned up",
    "None": "Slurm has not looked at it yet",
}
# Reasons for which the partition's load, its broken nodes, or the job's requests are worth a look.
LOAD_REASONS = ("Resources", "Priority", "ReqNodeNotAvail", "Nodes required", "Partition", "None")
NODE_REASONS = (
    "launch failed",
    "ReqNodeNotAvail",
    "Nodes required",
    "NodeDown",
    "PartitionNodeLimit",
    "PartitionConfig",
)
REQUEST_REASONS = ("BadConstraints", "Partition", "ReqNodeNotAvail", "Nodes required")
ASKS = "It asks for "
MAX_BROKEN_NODES = 3  # broken nodes that are named
UNITS = {"K": 1 / 1024, "G": 1024, "T": 1024**2}  # in megabytes, Slurm's default unit


def why(argv: list[str]) -> int:
    parser = CommandParser("python -m launch why", "What happened to a run, in words, and what to type next.")
    parser.add_argument("run", metavar="RUN", help="id, name, job, path, or last")
    options = parser.parse_args(argv)
    run = find_run(Path(options.logs_dir), options.run)
    print("\n".join(report(run, jobs_of([run]))))
    return 0


def report(run: Run, jobs: SlurmJobs) -> list[str]:
    """All lines of the report."""
    status, job = status_of(run, jobs), jobs.job_of(run)
    lines = [f"{run.run_id} is {status}.", *submission_problem(run)]
    lines += [attempt_sentence(run, number) for number in range(len(run.attempts))]
    if not run.attempts and job is not None and job.is_over and status.state != "cancelled":
        lines.append("It ended before it began to train.")
    if status.state == "cancelled" and run.submission.get("state") == "cancelled":
        lines.append(f"It was cancelled {moment(run.submission.get('time'))}.")
    lines += (current := current_state(run, status, jobs))
    if jobs.problem:
        lines.append(f"Slurm: {jobs.problem}.")
    if status.state in ("failed", "killed", "out of memory", "not submitted", "lost", "diverged", "prepared"):
        lines += last_error(last_lines(run)) if not (run.attempts and user_error_in(run.attempts[-1])) else []
    if run.attempts and str(run.attempts[-1].get("cause")).startswith("hung"):
        number = run.attempts[-1]["attempt"]
        lines.append(
            f"Where its processes stood is in its log: python -m launch logs {run_argument(run)} --attempt {number}"
        )
    lines += warnings(run)
    bad = None if status.state in ("finished", "cancelled") else bad_node(all_runs(run.path.absolute().parent.parent))
    if bad is not None:
        lines.append(f"{bad.sentence(run_argument(run))}.")
    return [*lines, f"next: {advice_in_queue(run, job, current) or advice(run, status, bad)}"]


def submission_problem(run: Run) -> list[str]:
    record = run.submission
    lines = []
    if isinstance(record.get("error"), str):
        lines.append(f"Its submission failed: {format_value(record['error'])}.")
    elif record.get("state") == "submitting":
        lines.append(f"Its submission was broken off; squeue --name={run.run_id} shows whether there is a job.")
    return lines


def moment(stamp: Any) -> str:
    """A recorded time in words."""
    seconds = seconds_of(stamp)
    return format_moment(seconds) if seconds else "at an unknown time"


def attempt_sentence(run: Run, index: int) -> str:
    """The sentence about one attempt."""
    attempt = run.attempts[index]
    nodes = str(attempt.get("nodes") or attempt.get("host") or "an unknown machine")
    text = f"Attempt {attempt['attempt']} started {moment(attempt.get('start'))} on {format_value(nodes)}"
    text += f" as job {format_value(str(attempt['job']))}" if "job" in attempt else ""
    text += f" from step {attempt.get('first_step', 0)}"
    if "end" not in attempt:
        return f"{text}."
    duration = seconds_of(attempt["end"]) - seconds_of(attempt.get("start"))
    last = attempt.get("last_step")
    text += f" and {cause_in_words(str(attempt.get('cause', 'killed')))} after {format_short_duration(duration)}"
    text += f" at step {last}" if isinstance(last, int) else ""
    node, rank = attempt.get("ended_on"), attempt.get("ended_rank")
    if isinstance(node, str) and (node != attempt.get("nodes") or rank):
        text += f" (process {rank} on {format_value(node)})"
    if mistake := user_error_in(attempt):
        return f"{text}: {format_value(mistake)}"
    lost = attempt.get("steps_lost")
    if not isinstance(lost, int) and index + 1 < len(run.attempts) and isinstance(last, int):
        lost = max(0, last - int(run.attempts[index + 1].get("first_step") or 0))
    return f"{text}; {plural(lost, 'step')} {'was' if lost == 1 else 'were'} lost." if lost else f"{text}."


def cause_in_words(cause: str) -> str:
    if cause in CAUSES:
        return CAUSES[cause]
    if cause.startswith(REFUSED):
        return "failed"
    if cause.startswith("error: "):
        return f"failed with {format_value(cause.removeprefix('error: '))}"
    if cause.startswith(KILLED):
        detail = format_value(cause.removeprefix(KILLED)) if cause != KILLED else ""
        return f"was killed (by the kernel for its memory, or by hand{detail})"
    if cause.startswith("crashed: "):
        return f"crashed ({format_value(cause.removeprefix('crashed: '))})"
    return f"ended ({format_value(cause)})"


def user_error_in(attempt: dict[str, Any]) -> str:
    """The message of the UserError that ended an attempt; empty for other ends."""
    cause = str(attempt.get("cause", ""))
    return cause.removeprefix(REFUSED) if cause.startswith(REFUSED) else ""


def current_state(run: Run, status: RunStatus, jobs: SlurmJobs) -> list[str]:
    """What a waiting run waits for, or the progress of a running one."""
    job = jobs.job_of(run)
    if job is not None and status.state in ("waiting", "queued again", "held"):
        return explain_pending(job) + predecessor(run, jobs)
    step, total = run.heartbeat.get("step"), run.heartbeat.get("total_steps")
    if status.state == "silent" and run.has_beaten:
        ago = format_short_duration(run.seconds_since_heartbeat)
        return [f"Its last heartbeat was {ago} ago, at step {step}: it hangs, or a step takes that long."]
    if status.state == "silent":
        last_written = f"{format_short_duration(time.time() - run.last_line)} ago" if run.last_line else "never"
        return [f"It has made no step yet, and its log was last written to {last_written}: it hangs, or prepares data."]
    if status.state == "running" and step is not None:
        return [
            f"It is at step {step} of {total}; its last heartbeat was "
            f"{format_short_duration(run.seconds_since_heartbeat)} ago."
        ]
    return []


def predecessor(run: Run, jobs: SlurmJobs) -> list[str]:
    """The run of --after, and its status."""
    if not (until := waits_until(run)):
        return []
    other = Run(run.path.parent / str(run.submission["after"].get("run")))
    status = str(status_of(other, jobs)) if other.path.is_dir() else "gone"
    return [f"It was submitted to wait {until}; that one is {status}."]


def last_error(log: str) -> list[str]:
    """The last error of a log: a traceback, or the last lines without routine ones."""
    lines = []
    if MEMORY.search(log):
        lines.append("Its log has signs of too little memory: ask for more (--mem), or lower --batch_size_per_device.")
    traces = list(TRACEBACK.finditer(log))
    if traces:
        error_lines = log[traces[-1].start() :].splitlines()
        end = next(
            (index for index, line in enumerate(error_lines) if index and line and not line[0].isspace()),
            len(error_lines),
        )
        error_lines = error_lines[: end + 1][-ERROR_LINES:]
    else:
        error_lines = [line for line in log.splitlines() if not ROUTINE_LINES.match(line)][-3:]
    if error_lines:
        lines += ["The end of its log says:", *(f"  {format_value(line)}" for line in error_lines)]
    return lines


def warnings(run: Run) -> list[str]:
    """The last alarms and divergences that the run recorded."""
    lines = []
    for row in run.rows("alarms.jsonl")[-3:]:
        lines.append(f"Alarm at step {row.get('step')}: {format_value(str(row.get('text', row.get('kind', ''))))}")
        if row.get("advice"):
            lines[-1] += f" ({format_value(str(row['advice']))})"
    for row in run.rows("divergence.jsonl")[-3:]:
        lines.append(
            f"Trouble at step {row.get('step')}: {format_value(str(row.get('what', row.get('kind', 'it diverged'))))}"
        )
    return lines


def run_argument(run: Run) -> str:
    """The run as an argument of a command, with --logs_dir if needed."""
    return shlex.quote(run.run_id) + logs_flag(run.path.absolute().parent.parent)


def advice_in_queue(run: Run, job: Job | None, current: list[str]) -> str:
    """What to type for a job that will not start by itself; empty for others. current: what it waits for."""
    name, give_up = run_argument(run), f"python -m launch cancel {run_argument(run)}"
    if job is None or job.state not in PENDING:
        return ""
    if job.reason == "BadConstraints" or any(line.startswith(ASKS) for line in current):
        return f"{give_up}, then python -m launch resubmit {name} --header … with one that asks for less"
    if job.reason == "DependencyNeverSatisfied":
        return f"scontrol update JobId={job.name} Dependency= (it starts all the same), or {give_up}"
    if job.reason == "JobHeldAdmin":
        return f"ask those who run the cluster, or {give_up}"
    if job.reason == "JobHoldMaxRequeue":
        return f"python -m launch logs {name} --lines 50, then python -m launch requeue {name}"
    return ""


def advice(run: Run, now: RunStatus, bad: BadNode | None) -> str:
    """What to type next."""
    name = run_argument(run)
    resubmit = f"python -m launch resubmit {name}"
    resume = f"python -m launch requeue {name}" if is_resumable(run) else resume_command(run)
    if is_resumable(run) and bad is not None and run.attempts and node_that_ended(run.attempts[-1]) == bad.name:
        resume += f" --exclude_nodes {shlex.quote(bad.name)}"
    mistake = user_error_in(run.attempts[-1]) if run.attempts and now.state == "failed" else ""
    if header := HEADER.match(mistake):  # the run's script contains the old header
        return f"correct {header[0]}, then {resubmit} --header {header[1]}"
    if flag := FLAG.search(mistake):
        has_checkpoint = any(run.path.glob("checkpoints/step_*.ckpt"))  # resubmitting would start from step 0
        return f"{resume_command(run)} --{flag[1]}=…" if has_checkpoint else f"{resubmit} --set {flag[1]}=…"
    return {
        "finished": f"python -m runs show {name}",
        "running": f"python -m launch logs -f {name}",
        "starting": f"python -m launch logs -f {name}",
        "silent": f"python -m launch logs {name} --lines 50, then python -m launch requeue {name}",
        "suspended": "wait: Slurm will continue it",
        "waiting": "wait, or python -m launch cancel " + name,
        "queued again": "wait, or python -m launch cancel " + name,
        "held": f"python -m launch requeue {name}",
        "not submitted": f"correct what is wrong, then {resubmit}",
        "lost": resume,
        "failed": f"correct what is wrong, then {resume if run.attempts else resubmit}",
        "diverged": f"{resubmit} --set peak_learning_rate=…",
        "out of memory": f"{resubmit} --set batch_size_per_device=…",
    }.get(now.state, resume)


# -- why a job waits: Slurm's reason in words, broken nodes, and requests that no node can meet ----------------------


class Node(NamedTuple):
    """`number` equal nodes of a partition. memory: megabytes."""

    number: int
    memory: float
    cpus: int
    gpus: int
    features: frozenset[str]


def explain_pending(job: Job) -> list[str]:
    """Lines about what a job waits for; requests that cannot be met begin with ASKS."""
    lines = [f"Job {job.name} waits ({format_value(job.reason)}): {reason_in_words(job.reason)}."]
    if job.expected:
        lines.append(f"Slurm expects it to start {job.expected.replace('T', ' at ')}.")
    if job.reason.startswith(REQUEST_REASONS):
        lines += unmet_requests(job)
    if job.reason.startswith(LOAD_REASONS):
        lines += free_nodes(job.partition)
    return lines + (broken_nodes(job.partition) if job.reason.startswith(NODE_REASONS) else [])


def reason_in_words(reason: str) -> str:
    exact = REASONS.get(reason)
    return exact or next(
        (words for name, words in REASONS.items() if reason.startswith(name)), "see JOB REASON CODES of man squeue"
    )


def free_nodes(partition: str) -> list[str]:
    """The number of nodes of a partition in each state."""
    output, problem = run_slurm("sinfo", "--noheader", f"--partition={partition}", "--format=%D %T")
    counts: dict[str, int] = {}
    for line in output.splitlines():
        count, _, marked = line.strip().partition(" ")
        state = marked.rstrip("*~#!%$@^-+")  # suffixes of nodes that do not respond, sleep and the like
        if count.isdigit() and state:
            counts[state] = counts.get(state, 0) + int(count)
    if problem or not counts:
        return []
    total = sum(counts.values())
    return [
        f"Of {total} nodes in {format_value(partition)}: "
        f"{', '.join(f'{count} {state}' for state, count in counts.items())}."
    ]


def broken_nodes(partition: str) -> list[str]:
    """The nodes of a partition that accept no jobs, and why; the newest first."""
    output, _ = run_slurm("sinfo", "--noheader", "--list-reasons", f"--partition={partition}", "--format=%N|%T|%H|%E")
    rows = [line.strip().split("|", 3) for line in output.splitlines() if line.count("|") >= 3]
    rows.sort(key=lambda row: row[2], reverse=True)
    lines = [
        f"Node {format_value(names)} is {state.rstrip('*~#!%$@^-+')} since {when.replace('T', ' at ')}: "
        f"{format_value(reason)}."
        for names, state, when, reason in rows[:MAX_BROKEN_NODES]
    ]
    return [*lines, f"{len(rows) - MAX_BROKEN_NODES} more are: sinfo -R."] if len(rows) > MAX_BROKEN_NODES else lines


def unmet_requests(job: Job) -> list[str]:
    """Requests of the job that its partition cannot meet, with both numbers."""
    fields, nodes, partition = scontrol_show("job", job.name), nodes_of(job.partition), format_value(job.partition)
    if not fields or not nodes:
        return []
    least, _, most = fields.get("NumNodes", "1").partition("-")
    count = int(least) if least.isdecimal() else 1
    cpus = cpus_per_node(fields, int(most) if most.isdecimal() else 0)
    memory, gpus, features = memory_per_node(fields, cpus), gpus_per_node(fields, count), features_of(fields)
    total, largest = sum(node.number for node in nodes), max(node.memory for node in nodes)
    lines = []
    if count > total:
        lines.append(f"{ASKS}{count} nodes (--nodes); {partition} has {total}.")
    if memory > largest:
        lines.append(
            f"{ASKS}{format_bytes(memory * 2**20)} of memory on a node (--mem, --mem-per-cpu); the largest node of "
            f"{partition} has {format_bytes(largest * 2**20)}."
        )
    for requested, available, word in (
        (cpus, max(node.cpus for node in nodes), "CPUs on a node (--cpus-per-task, --ntasks-per-node)"),
        (gpus, max(node.gpus for node in nodes), "GPUs on a node (--gpus-per-node, --gres)"),
    ):
        if requested > available:
            lines.append(f"{ASKS}{requested} {word}; no node of {partition} has more than {available}.")
    for name in sorted(features - frozenset().union(*(node.features for node in nodes))):
        lines.append(f"{ASKS}feature {format_value(name)} (--constraint), which no node of {partition} has.")
    fits = [
        node
        for node in nodes
        if node.memory >= memory and node.cpus >= cpus and node.gpus >= gpus and features <= node.features
    ]
    if not lines and sum(node.number for node in fits) < count:
        words = [f"{number} {what}" for number, what in ((cpus, "CPUs"), (gpus, "GPUs")) if number]
        words += [format_bytes(memory * 2**20)] * bool(memory) + sorted(map(format_value, features))
        available = sum(node.number for node in fits)
        lines.append(f"{ASKS}{count} nodes with {', '.join(words)}; {partition} has {available} that have all of it.")
    return [*lines, *partition_limits(fields, job.partition, count)]


def partition_limits(fields: dict[str, str], partition: str, count: int) -> list[str]:
    """Requests beyond the partition's limits, and the nodes of --nodelist and --exclude."""
    allowed, lines, here = scontrol_show("partition", partition), [], format_value(partition)
    limit, most = fields.get("TimeLimit", ""), allowed.get("MaxNodes", "")
    if allowed and parse_duration(limit) > parse_duration(allowed.get("MaxTime", "")):
        lines.append(f"{ASKS}{limit} (--time); {here} gives {allowed['MaxTime']} at the most.")
    if most.isdecimal() and count > int(most):
        lines.append(f"{ASKS}{count} nodes (--nodes); {here} gives a job {most} at the most.")
    for name, words in (
        ("ReqNodeList", "It must run on {} (--nodelist)."),
        ("ExcNodeList", "It must not run on {} (--exclude)."),
    ):
        if (names := fields.get(name, "(null)")) not in ("(null)", ""):
            lines.append(words.format(format_value(names)))
    return lines


def nodes_of(partition: str) -> list[Node]:
    """The nodes of a partition, up or down, grouped by their resources."""
    output, _ = run_slurm("sinfo", "--noheader", "--exact", f"--partition={partition}", "--format=%D|%m|%c|%G|%f")
    nodes = []
    for line in output.splitlines():
        words = line.strip().split("|")
        if len(words) == 5 and words[0].isdecimal() and words[2].isdecimal():
            features = frozenset() if words[4] == "(null)" else frozenset(words[4].split(","))
            gpus = sum(map(int, re.findall(r"\bgpu:(?:[^:,(]+:)?(\d+)", words[3])))
            nodes.append(Node(int(words[0]), megabytes(words[1]), int(words[2]), gpus, features))
    return nodes


def cpus_per_node(fields: dict[str, str], most: int) -> int:
    """most: the job's maximum number of nodes; 0 if unknown."""
    total, least = fields.get("NumCPUs", "").partition("-")[0], fields.get("MinCPUsNode", "")
    spread = math.ceil(int(total) / most) if most and total.isdecimal() else 1
    return max(spread, int(least) if least.isdecimal() else 1)


def memory_per_node(fields: dict[str, str], cpus: int) -> float:
    return max(megabytes(fields.get("MinMemoryNode", "0")), cpus * megabytes(fields.get("MinMemoryCPU", "0")))


def gpus_per_node(fields: dict[str, str], count: int) -> int:
    each = re.findall(r"\bgpu(?:[:/][^:,=]*[A-Za-z][^:,=]*)?[:=](\d+)", fields.get("TresPerNode", ""))
    total = re.findall(r"\bgres/gpu=(\d+)", fields.get("ReqTRES") or fields.get("TRES", ""))
    return sum(map(int, each)) if each else math.ceil(sum(map(int, total)) / count)


def features_of(fields: dict[str, str]) -> frozenset[str]:
    """The features that a node must have; empty for expressions with alternatives."""
    features = fields.get("Features", "(null)")
    return frozenset(features.split("&")) if re.fullmatch(r"[\w.-]+(&[\w.-]+)*", features) else frozenset()


def megabytes(text: str) -> float:
    match = re.fullmatch(r"([\d.]+)(\w?)\+?", text)
    return float(match[1]) * UNITS.get(match[2], 1) if match else 0.0
