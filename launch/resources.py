"""What one submission asks of Slurm: `--slurm NAME=VALUE` beyond its header, and whether its processes fit its GPUs."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence

from config.flags import SettingsError
from config.settings import Trainer
from core.errors import UserError
from core.text import shown
from launch.script import SHORT

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
OWN = {
    "job-name": "a job has the name of its run; give --run_name",
    "output": "the log is in the run's folder",
    "error": "the log is in the run's folder, with both streams",
    "array": "one submission is one run; python -m launch sweep submits many",
    "chdir": "a job begins in the snapshot of its code",
    **dict.fromkeys(("hold", "parsable", "test-only", "wait", "wrap"), "how a job is handed to Slurm is our part"),
}
MEANT = {
    **dict.fromkeys(("walltime", "time-limit", "timelimit", "timeout", "timeout-min"), "time"),
    **dict.fromkeys(("queue", "part"), "partition"),
    **dict.fromkeys(("memory", "mem-gb", "ram"), "mem"),
    **dict.fromkeys(("cpus", "cores", "threads"), "cpus-per-task"),
    **dict.fromkeys(("tasks-per-node", "processes", "procs"), "ntasks-per-node"),
    **{"gpu": "gpus-per-node", "tasks": "ntasks", "project": "account", "mail": "mail-user", "feature": "constraint"},
}


# -- --slurm NAME=VALUE ----------------------------------------------------------------------------------------------


def read_resources(words: Sequence[str]) -> list[str]:
    """The words after --slurm as sbatch spells them, the last of each name: ["nodes=2", "exclusive"]."""
    found: dict[str, str] = {}
    problems = []
    for word in words:
        typed, equals, value = word.removeprefix("--").partition("=")
        name = typed.replace("_", "-").lower()
        if problem := problem_of(name, typed, equals, value):
            problems.append(f"--slurm is {shown(word)!r}: {problem}" + ("" if problem.endswith("?") else "."))
        else:
            found[name] = name + equals + value
    if problems:
        raise SettingsError(problems)
    return list(found.values())


def problem_of(name: str, typed: str, equals: str, value: str) -> str:
    if name in OWN:
        return f"{OWN[name]}; leave it out"
    if name not in KINDS:
        near = [MEANT[name]] if name in MEANT else difflib.get_close_matches(name, [*KINDS, *OWN], 1)
        meant = SHORT[f"-{typed}"].removeprefix("--") if f"-{typed}" in SHORT else near[0] if near else ""
        return f"sbatch has no --{shown(typed)}; " + (f"did you mean {meant}?" if meant else "sbatch --help lists all")
    if KINDS[name] is SWITCHES and equals:
        return f"{name} has no value; write --slurm {name}"
    if not value and (equals or KINDS[name] is VALUES):
        return f"{name} has no value; write --slurm {name}=VALUE"
    if not value.isprintable() or "\\" in value:
        return "a value in a script for Slurm has no \\ and no newlines"
    return ""


def as_options(resources: Sequence[str]) -> list[str]:
    """For sbatch's command line, where they win over SBATCH_* in the environment, too."""
    return [f"--{resource}" for resource in resources]


# -- processes and GPUs ----------------------------------------------------------------------------------------------


def asked_for(lines: Sequence[str]) -> dict[str, str]:
    """{long name: value} of #SBATCH lines; the last of a name counts, as it does for sbatch."""
    found = {}
    for line in lines:
        try:
            words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
        except ValueError:
            continue
        while words:
            word = words.pop(0)
            name, equals, value = word.partition("=")
            if word[:1] == "-" != word[1:2]:
                name, value, equals = SHORT.get(word[:2], word[:2]), word[2:], word[2:]
            name = name.removeprefix("--")
            if not equals and KINDS.get(name) is VALUES and words:
                value = words.pop(0)
            found[name] = value
    return found


def check_placement(lines: Sequence[str], settings: Trainer) -> None:
    """Refuse numbers of processes, nodes and GPUs that do not fit, as the processes would when they begin."""
    asked = asked_for(lines)
    total, each, nodes = (whole(asked.get(name)) for name in ("ntasks", "ntasks-per-node", "nodes"))
    if "nodes" in asked and nodes is None:  # a range: Slurm decides
        return
    if total is not None:
        check_tasks(total, each, nodes)
        each = total // nodes if nodes else each or total
    each, nodes = each or 1, nodes or 1
    if settings.gpus == "auto" or (settings.gpus != "none" and each * nodes > 1):
        check_gpus(asked, each, nodes, settings.allow_idle_gpus)


def check_tasks(total: int, each: int | None, nodes: int | None) -> None:
    """Slurm takes --ntasks-per-node for the most that a node may have, and as many nodes as that needs."""
    if nodes:
        fits = total % nodes == 0 and (each is None or total <= each * nodes)
    else:
        fits = total % each == 0 if each else total == 1
    if fits:
        return
    per_node = max(1, total // (nodes or 1))
    instead = f"write --nodes={nodes or 1} and --ntasks-per-node={per_node}, and leave --ntasks out"
    if nodes is None and each is None:
        raise UserError(
            f"--ntasks is {total}, and Slurm would choose how many of them are on each node, which has to be the same "
            f"number: {instead}."
        )
    if total % (nodes or each or 1):
        over = f"--nodes is {nodes}" if nodes else f"--ntasks-per-node is {each}"
        raise UserError(f"--ntasks is {total} and {over}: nodes need the same number of processes each; {instead}.")
    raise UserError(
        f"--ntasks is {total}, and --nodes={nodes} with --ntasks-per-node={each} have place for "
        f"{(each or 1) * (nodes or 1)}: {instead}."
    )


def check_gpus(asked: dict[str, str], each: int, nodes: int, may_idle: bool) -> None:
    """Processes on a node against its GPUs."""
    on_node = count_gpus(asked.get("gpus-per-node"))
    if on_node is None and (listed := re.findall(r"(?:^|,)(?:gres[/:])?gpu\b:?([^,(]*)", asked.get("gres", ""))):
        on_node = count_gpus(",".join(listed))
    if on_node is None and (of_task := count_gpus(asked.get("gpus-per-task"))) is not None:
        on_node = of_task * each
    if on_node is None and (of_job := count_gpus(asked.get("gpus"))) is not None:
        if of_job % nodes:
            raise UserError(
                f"--gpus is {of_job} and --nodes is {nodes}: nodes need the same number of GPUs each; write "
                f"--gpus-per-node={max(1, of_job // nodes)} instead."
            )
        on_node = of_job // nodes
    if on_node and (each > on_node or (each < on_node and not may_idle)):
        flag = ", or say --allow_idle_gpus" if on_node > each else ""
        raise UserError(
            f"it asks for {gpus(on_node)} and {processes(each)} on each node, and a process trains on one GPU: write "
            f"--ntasks-per-node={on_node}{flag}."
        )


def whole(text: str | None) -> int | None:
    """A number, also as the range 2-2; None where it is not one."""
    first, _, last = (text or "").partition("-")
    return int(first) if first.isdigit() and int(first) > 0 and last in ("", first) else None


def count_gpus(text: str | None) -> int | None:
    """4, a100:4 or a100:2,v100:2 as a number, a kind alone or nothing as one; None where it is not known."""
    total = 0
    for part in text.split(",") if text is not None else ["?:?"]:
        kind, _, count = part.rpartition(":")
        if not count.isdigit() and (kind or not re.fullmatch(r"\w*", count)):
            return None
        total += int(count) if count.isdigit() else 1
    return total


def gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def processes(count: int) -> str:
    return f"{count} process" if count == 1 else f"{count} processes"
