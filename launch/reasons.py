"""Why a job waits: Slurm's reason in words, the nodes that are broken, and what it asks for that no node has."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from core.text import shown
from launch.slurm import Job, ask
from runs.causes import ask_slurm, seconds

# What Slurm says a job waits for; the first that the reason begins with counts.
REASONS = {
    "Priority": "other jobs come first",
    "Resources": "it is the next, as soon as enough nodes, GPUs or memory are free",
    "Dependency": "another job has to end first",
    "DependencyNeverSatisfied": "the job it depends on did not end as it had to, so it will never start",
    "JobHeldUser": "it is held; python -m launch requeue RUN lets it go",
    "JobHeldAdmin": "an administrator holds it, and only they can release it",
    "JobHoldMaxRequeue": "it was queued again too often, and Slurm holds it: look at its log before you release it",
    "launch failed requeued held": "a node could not start it (often its prolog failed), and Slurm holds it",
    "job requeued in held state": "it was queued again and held; python -m launch requeue RUN lets it go",
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
CROWDED = ("Resources", "Priority", "ReqNodeNotAvail", "Nodes required", "Partition", "None")  # how busy it is matters
BROKEN = ("launch failed", "ReqNodeNotAvail", "Nodes required", "NodeDown", "PartitionNodeLimit", "PartitionConfig")
UNFIT = ("BadConstraints", "Partition", "ReqNodeNotAvail", "Nodes required")  # it may ask for what is not there
ASKS = "It asks for "
MOST = 3  # broken nodes that are named
UNITS = {"K": 1 / 1024, "G": 1024, "T": 1024**2}  # in megabytes, which Slurm means where it names no unit


class Node(NamedTuple):
    """So many nodes of a partition that are alike. memory: megabytes."""

    number: int
    memory: float
    cpus: int
    gpus: int
    features: frozenset[str]


def explained(job: Job) -> list[str]:
    """What a waiting job waits for, a line each; those of what it asks for in vain begin with ASKS."""
    lines = [f"Job {job.name} waits ({shown(job.reason)}): {reason_in_words(job.reason)}."]
    if job.expected:
        lines.append(f"Slurm expects it to start {job.expected.replace('T', ' at ')}.")
    if job.reason.startswith(UNFIT):
        lines += missing(job)
    if job.reason.startswith(CROWDED):
        lines += free_nodes(job.partition)
    return lines + (broken_nodes(job.partition) if job.reason.startswith(BROKEN) else [])


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


def broken_nodes(partition: str) -> list[str]:
    """The nodes of a partition that take no jobs and why, the newest first."""
    said, _ = ask("sinfo", "--noheader", "--list-reasons", f"--partition={partition}", "--format=%N|%T|%H|%E")
    rows = [line.strip().split("|", 3) for line in said.splitlines() if line.count("|") >= 3]
    rows.sort(key=lambda row: row[2], reverse=True)
    lines = [
        f"Node {shown(names)} is {state.rstrip('*~#!%$@^-+')} since {when.replace('T', ' at ')}: {shown(reason)}."
        for names, state, when, reason in rows[:MOST]
    ]
    return [*lines, f"{len(rows) - MOST} more are: sinfo -R."] if len(rows) > MOST else lines


def missing(job: Job) -> list[str]:
    """What the job asks for that its partition does not have, with both numbers."""
    fields, nodes, here = ask_slurm("job", job.name), nodes_of(job.partition), shown(job.partition)
    if not fields or not nodes:
        return []
    least, _, most = fields.get("NumNodes", "1").partition("-")
    count = int(least) if least.isdecimal() else 1
    cpus = cpus_per_node(fields, int(most) if most.isdecimal() else 0)
    memory, gpus, features = memory_per_node(fields, cpus), gpus_per_node(fields, count), features_of(fields)
    total, largest = sum(node.number for node in nodes), max(node.memory for node in nodes)
    lines = []
    if count > total:
        lines.append(f"{ASKS}{count} nodes (--nodes); {here} has {total}.")
    if memory > largest:
        lines.append(
            f"{ASKS}{gigabytes(memory)} of memory on a node (--mem, --mem-per-cpu); the largest node of {here} "
            f"has {gigabytes(largest)}."
        )
    for wanted, there, word in (
        (cpus, max(node.cpus for node in nodes), "CPUs on a node (--cpus-per-task, --ntasks-per-node)"),
        (gpus, max(node.gpus for node in nodes), "GPUs on a node (--gpus-per-node, --gres)"),
    ):
        if wanted > there:
            lines.append(f"{ASKS}{wanted} {word}; no node of {here} has more than {there}.")
    for name in sorted(features - frozenset().union(*(node.features for node in nodes))):
        lines.append(f"{ASKS}feature {shown(name)} (--constraint), which no node of {here} has.")
    fits = [
        node
        for node in nodes
        if node.memory >= memory and node.cpus >= cpus and node.gpus >= gpus and features <= node.features
    ]
    if not lines and sum(node.number for node in fits) < count:
        words = [f"{number} {what}" for number, what in ((cpus, "CPUs"), (gpus, "GPUs")) if number]
        words += [gigabytes(memory)] * bool(memory) + sorted(map(shown, features))
        there = sum(node.number for node in fits)
        lines.append(f"{ASKS}{count} nodes with {', '.join(words)}; {here} has {there} that have all of it.")
    return [*lines, *limits(fields, job.partition, count)]


def limits(fields: dict[str, str], partition: str, count: int) -> list[str]:
    """What the partition does not allow, and the nodes that the job is bound to or kept from."""
    allowed, lines, here = ask_slurm("partition", partition), [], shown(partition)
    limit, most = fields.get("TimeLimit", ""), allowed.get("MaxNodes", "")
    if allowed and seconds(limit) > seconds(allowed.get("MaxTime", "")):
        lines.append(f"{ASKS}{limit} (--time); {here} gives {allowed['MaxTime']} at the most.")
    if most.isdecimal() and count > int(most):
        lines.append(f"{ASKS}{count} nodes (--nodes); {here} gives a job {most} at the most.")
    for name, words in (("ReqNodeList", "It must run on {} (--nodelist)."), ("ExcNodeList", "It is kept from {}.")):
        if (names := fields.get(name, "(null)")) not in ("(null)", ""):
            lines.append(words.format(shown(names)))
    return lines


def nodes_of(partition: str) -> list[Node]:
    """What the nodes of a partition have, whether they are up or not; alike ones together."""
    said, _ = ask("sinfo", "--noheader", "--exact", f"--partition={partition}", "--format=%D|%m|%c|%G|%f")
    nodes = []
    for line in said.splitlines():
        words = line.strip().split("|")
        if len(words) == 5 and words[0].isdecimal() and words[2].isdecimal():
            features = frozenset() if words[4] == "(null)" else frozenset(words[4].split(","))
            gpus = sum(map(int, re.findall(r"\bgpu:(?:[^:,(]+:)?(\d+)", words[3])))
            nodes.append(Node(int(words[0]), megabytes(words[1]), int(words[2]), gpus, features))
    return nodes


def cpus_per_node(fields: dict[str, str], most: int) -> int:
    """most: nodes that the job may have at the most; 0 where it does not say."""
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
    """The features that a node must have; of alternatives, none."""
    wanted = fields.get("Features", "(null)")
    return frozenset(wanted.split("&")) if re.fullmatch(r"[\w.-]+(&[\w.-]+)*", wanted) else frozenset()


def megabytes(text: str) -> float:
    found = re.fullmatch(r"([\d.]+)(\w?)\+?", text)
    return float(found[1]) * UNITS.get(found[2], 1) if found else 0.0


def gigabytes(size: float) -> str:
    return f"{size / 1024:.4g}G"
