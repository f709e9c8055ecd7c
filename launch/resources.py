"""What one submission asks of Slurm: `--slurm NAME=VALUE`, whether processes fit the GPUs, and job limits."""

from __future__ import annotations

import difflib
import os
import pwd
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from config.flags import SettingsError
from config.settings import Trainer
from core.errors import UserError
from core.text import format_value, plural
from launch.script import LONG_NAMES, option_line
from runs.slurm import run_slurm, slurm_config

# The options of sbatch, as `sbatch --help` of Slurm 20 to 25 has them.
VALUES = """\
    account acctg-freq batch bb bbf begin cluster-constraint clusters comment constraint consolidate-segments
    container container-id core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency
    distribution exclude export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket
    gpus-per-task gres gres-flags hint input licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu
    mincpus network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket
    open-mode partition power prefer priority profile qos reservation resv-ports segment signal sockets-per-node
    switches thread-spec threads-per-core time time-min tmp tres-bind tres-per-job tres-per-node tres-per-socket
    tres-per-task uid wckey"""
SWITCHES = """\
    contiguous ignore-pbs no-kill no-requeue overcommit oversubscribe reboot requeue spread-job stepmgr
    use-min-nodes"""
EITHER = "exclusive export get-user-env kill-on-invalid-dep nice propagate"
KINDS = {name: kind for kind in (VALUES, SWITCHES, EITHER) for name in kind.split()}
RESERVED = {
    "job-name": "a job has the name of its run; give --run_name",
    "output": "the log is in the run's folder",
    "error": "the log is in the run's folder, with both streams",
    "array": "one submission is one run; python -m launch sweep submits many",
    "chdir": "a job begins in the snapshot of its code",
    **dict.fromkeys(("hold", "parsable", "test-only", "wait", "wrap"), "how a job is handed to Slurm is our part"),
}
SYNONYMS = {
    **dict.fromkeys(("walltime", "time-limit", "timelimit", "timeout", "timeout-min"), "time"),
    **dict.fromkeys(("queue", "part"), "partition"),
    **dict.fromkeys(("memory", "mem-gb", "ram"), "mem"),
    **dict.fromkeys(("cpus", "cores", "threads"), "cpus-per-task"),
    **dict.fromkeys(("tasks-per-node", "processes", "procs"), "ntasks-per-node"),
    **{"gpu": "gpus-per-node", "tasks": "ntasks", "project": "account", "mail": "mail-user", "feature": "constraint"},
}
LIMIT_OPTIONS = ("account", "qos", "partition")
LIMIT_TIMEOUT_SECONDS = 5.0  # per call; accounting may be slow, or down


# -- --slurm NAME=VALUE ----------------------------------------------------------------------------------------------


def read_resources(words: Sequence[str]) -> list[str]:
    """The words after --slurm as sbatch spells them, the last of each name: ["nodes=2", "exclusive"]."""
    options: dict[str, str] = {}
    problems = []
    for word in words:
        typed, equals, value = word.removeprefix("--").partition("=")
        name = typed.replace("_", "-").lower()
        if problem := problem_of(name, typed, equals, value):
            problems.append(f"--slurm is {format_value(word)!r}: {problem}" + ("" if problem.endswith("?") else "."))
        else:
            options[name] = name + equals + value
    if problems:
        raise SettingsError(problems)
    return list(options.values())


def problem_of(name: str, typed: str, equals: str, value: str) -> str:
    if name in RESERVED:
        return f"{RESERVED[name]}; leave it out"
    if name not in KINDS:
        near = [SYNONYMS[name]] if name in SYNONYMS else difflib.get_close_matches(name, [*KINDS, *RESERVED], 1)
        long_name = LONG_NAMES.get(f"-{typed}", near[0] if near else "").removeprefix("--")
        return f"sbatch has no --{format_value(typed)}; " + (
            f"did you mean {long_name}?" if long_name else "sbatch --help lists all"
        )
    if KINDS[name] is SWITCHES and equals:
        return f"{name} has no value; write --slurm {name}"
    if not value and (equals or KINDS[name] is VALUES):
        return f"{name} has no value; write --slurm {name}=VALUE"
    if not value.isprintable() or "\\" in value:
        return "a value in a script for Slurm has no \\ and no newlines"
    return ""


def as_options(resources: Sequence[str]) -> list[str]:
    """For sbatch's command line, where they win over SBATCH_* in the environment."""
    return [f"--{resource}" for resource in resources]


# -- processes and GPUs ----------------------------------------------------------------------------------------------


def requested_options(lines: Sequence[str]) -> dict[str, str]:
    """{long name: value} of #SBATCH lines; the last of a name counts, as it does for sbatch."""
    options = {}
    for line in lines:
        try:
            words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
        except ValueError:
            continue
        while words:
            word = words.pop(0)
            name, equals, value = word.partition("=")
            if word[:1] == "-" != word[1:2]:
                name, value, equals = LONG_NAMES.get(word[:2], word[:2]), word[2:], word[2:]
            name = name.removeprefix("--")
            if not equals and KINDS.get(name) is VALUES and words:
                value = words.pop(0)
            options[name] = value
    return options


def check_placement(lines: Sequence[str], settings: Trainer) -> None:
    """Raise if the numbers of processes, nodes and GPUs do not fit, as training would at its start."""
    requested = requested_options(lines)
    ntasks, per_node, nodes = (fixed_count(requested.get(name)) for name in ("ntasks", "ntasks-per-node", "nodes"))
    if "nodes" in requested and nodes is None:  # a range: Slurm decides
        return
    if ntasks is not None:
        check_tasks(ntasks, per_node, nodes)
        per_node = ntasks // nodes if nodes else per_node or ntasks
    per_node, nodes = per_node or 1, nodes or 1
    if settings.gpus == "auto" or (settings.gpus != "none" and per_node * nodes > 1):
        check_gpus(requested, per_node, nodes, settings.allow_idle_gpus)


def check_tasks(ntasks: int, per_node: int | None, nodes: int | None) -> None:
    """Raise if tasks do not spread evenly. For Slurm --ntasks-per-node is a maximum that determines the nodes."""
    if nodes:
        fits = ntasks % nodes == 0 and (per_node is None or ntasks <= per_node * nodes)
    else:
        fits = ntasks % per_node == 0 if per_node else ntasks == 1
    if fits:
        return
    suggested = max(1, ntasks // (nodes or 1))
    instead = f"write --nodes={nodes or 1} and --ntasks-per-node={suggested}, and leave --ntasks out"
    if nodes is None and per_node is None:
        raise UserError(
            f"--ntasks is {ntasks}, and Slurm would choose how many of them are on each node, which has to be the same "
            f"number: {instead}."
        )
    if ntasks % (nodes or per_node or 1):
        over = f"--nodes is {nodes}" if nodes else f"--ntasks-per-node is {per_node}"
        raise UserError(f"--ntasks is {ntasks} and {over}: nodes need the same number of processes each; {instead}.")
    raise UserError(
        f"--ntasks is {ntasks}, and --nodes={nodes} with --ntasks-per-node={per_node} have room for "
        f"{(per_node or 1) * (nodes or 1)}: {instead}."
    )


def check_gpus(requested: dict[str, str], per_node: int, nodes: int, may_idle: bool) -> None:
    """Raise if a node's processes do not match its GPUs."""
    on_node = count_gpus(requested.get("gpus-per-node"))
    if on_node is None and (listed := re.findall(r"(?:^|,)(?:gres[/:])?gpu\b:?([^,(]*)", requested.get("gres", ""))):
        on_node = count_gpus(",".join(listed))
    if on_node is None and (of_task := count_gpus(requested.get("gpus-per-task"))) is not None:
        on_node = of_task * per_node
    if on_node is None and (of_job := count_gpus(requested.get("gpus"))) is not None:
        if of_job % nodes:
            raise UserError(
                f"--gpus is {of_job} and --nodes is {nodes}: nodes need the same number of GPUs each; write "
                f"--gpus-per-node={max(1, of_job // nodes)} instead."
            )
        on_node = of_job // nodes
    if on_node and (per_node > on_node or (per_node < on_node and not may_idle)):
        flag = ", or say --allow_idle_gpus" if on_node > per_node else ""
        raise UserError(
            f"it asks for {plural(on_node, 'GPU')} and {processes(per_node)} on each node, and each trains on one GPU: "
            f"write --ntasks-per-node={on_node}{flag}."
        )


def fixed_count(text: str | None) -> int | None:
    """The count in 2 or in 2-2; None for anything else, such as a range."""
    first, _, last = (text or "").partition("-")
    return int(first) if first.isdigit() and int(first) > 0 and last in ("", first) else None


def count_gpus(text: str | None) -> int | None:
    """The number in 4, a100:4 or a100:2,v100:2; a type without a number counts as one; None if unknown."""
    total = 0
    for part in text.split(",") if text is not None else ["?:?"]:
        kind, _, count = part.rpartition(":")
        if not count.isdigit() and (kind or not re.fullmatch(r"\w*", count)):
            return None
        total += int(count) if count.isdigit() else 1
    return total


def processes(count: int) -> str:
    return plural(count, "process", "processes")


# -- job limits of a user, where the cluster enforces them; one that cannot be read is taken for none ----------------


@dataclass(frozen=True)
class Limit:
    """The number of jobs that may be in the queue at a time, and how many are (taken)."""

    name: str
    most: int
    taken: int = 0


def check_limits(
    lines: Sequence[str],
    resources: Sequence[str],
    rows: int,
    jobs_of_a_row: int,
    timeout: float = LIMIT_TIMEOUT_SECONDS,
) -> None:
    """Raise if a sweep has too many jobs.

    lines: the #SBATCH lines of the job. resources: what --slurm asks for. timeout: of each call of Slurm.
    """
    jobs = rows * jobs_of_a_row
    tightest = min(submit_limits(lines, resources, timeout), key=lambda limit: limit.most - limit.taken, default=None)
    if tightest is None or jobs <= tightest.most - tightest.taken:
        return
    taken = f", of which {tightest.taken} are taken" if tightest.taken else ""
    left = (tightest.most - tightest.taken) // jobs_of_a_row
    advice = f"cut the file into parts of at most {left} rows" if left > 0 else "wait until some of them have ended"
    raise UserError(
        f"The sweep would be {jobs} jobs, and {tightest.name} allows {tightest.most} at a time{taken}: {advice}."
    )


def submit_limits(lines: Sequence[str], resources: Sequence[str], timeout: float) -> list[Limit]:
    """The known limits for a job with these options."""
    fields = slurm_config(timeout)
    max_jobs = parse_count(fields.get("MaxJobCount", ""))
    limits = [Limit("MaxJobCount of the cluster", max_jobs)] if max_jobs else []
    if "limits" not in fields.get("AccountingStorageEnforce", ""):
        return limits
    requested = requested_options(lines)  # overridden by the environment and the command line
    requested |= {name: os.environ[key] for name in LIMIT_OPTIONS if (key := f"SBATCH_{name.upper()}") in os.environ}
    requested |= requested_options([option_line(resource) for resource in resources])
    account, qos, partition = (requested.get(name, "") for name in LIMIT_OPTIONS)
    own = own_jobs(timeout)
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return limits
    where = [f"user={user}", f"cluster={fields.get('ClusterName', '')}", *([f"account={account}"] if account else [])]
    associations = accounting("association", where, "Account,MaxSubmitJobs,GrpSubmitJobs,DefaultQOS", timeout)
    if len(associations) == 1:  # otherwise the job's association is not known
        name, most, group, default_qos = associations[0]
        taken = sum(job[0] == name for job in own)
        limits += limit_of(f"MaxSubmitJobs of account {format_value(name)}", most, taken)
        limits += limit_of(f"GrpSubmitJobs of account {format_value(name)}", group, taken)
        qos = qos or default_qos
    partition, partition_qos = partition_and_qos(partition, timeout)
    for name, column, value in ((qos, 1, qos), (partition_qos, 2, partition)):
        rows = accounting("qos", [f"name={name}"], "MaxSubmitJobsPU,GrpSubmitJobs", timeout) if name else []
        for most, group in rows:
            taken = sum(job[column] == value for job in own)
            limits += limit_of(f"MaxSubmitJobsPerUser of QOS {format_value(name)}", most, taken)
            limits += limit_of(f"GrpSubmitJobs of QOS {format_value(name)}", group, taken)
    return limits


def limit_of(name: str, most: str, taken: int) -> list[Limit]:
    return [Limit(name, count, taken)] if (count := parse_count(most)) is not None else []


def parse_count(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def accounting(what: str, where: Sequence[str], fields: str, timeout: float) -> list[list[str]]:
    """The rows of sacctmgr; empty without accounting or without an answer."""
    words = ["sacctmgr", "--noheader", "--parsable2", "--readonly", "show", what, *where, f"format={fields}"]
    output, _ = run_slurm(*words, timeout=timeout)
    rows = [line.split("|") for line in output.splitlines()]
    return [row for row in rows if len(row) == fields.count(",") + 1]


def own_jobs(timeout: float) -> list[list[str]]:
    """[account, QOS, partition] of each job and each task of an array that waits or runs."""
    output, _ = run_slurm(
        "squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%a|%q|%P", timeout=timeout
    )
    return [row for line in output.splitlines() if len(row := line.strip().split("|")) == len(LIMIT_OPTIONS)]


def partition_and_qos(name: str, timeout: float) -> tuple[str, str]:
    """The partition of the job, and the QOS that applies to all jobs of that partition."""
    output, _ = run_slurm("scontrol", "--oneliner", "show", "partition", *([name] if name else []), timeout=timeout)
    for line in output.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if fields.get("PartitionName") == name or (not name and fields.get("Default") == "YES"):
            return fields["PartitionName"], fields.get("QoS", "").replace("N/A", "")
    return name, ""
