"""How many jobs a user may have at a time, asked before a sweep is submitted that would be more.

Only a cluster that enforces limits is asked for them, and none is waited for long: what is not known is no limit.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Sequence
from dataclasses import dataclass

from core.errors import UserError
from core.text import shown
from launch.resources import asked_for
from launch.script import as_line
from launch.slurm import ask

USED = ("account", "qos", "partition")
PATIENCE = 5.0  # seconds for each question; accounting may be slow, or down


@dataclass(frozen=True)
class Limit:
    """Jobs that may wait and run at a time, and those that do already."""

    name: str
    most: int
    taken: int = 0


def check_limits(lines: Sequence[str], resources: Sequence[str], rows: int, jobs_of_a_row: int) -> None:
    """Refuse more jobs than are allowed. lines: the #SBATCH lines of the job; resources: what --slurm asks for."""
    jobs = rows * jobs_of_a_row
    room = min(limits(lines, resources), key=lambda limit: limit.most - limit.taken, default=None)
    if room is None or jobs <= room.most - room.taken:
        return
    taken = f", of which {room.taken} are taken" if room.taken else ""
    left = (room.most - room.taken) // jobs_of_a_row
    what = f"cut the file into parts of at most {left} rows" if left > 0 else "wait until some of them have ended"
    raise UserError(f"The sweep would be {jobs} jobs, and {room.name} allows {room.most} at a time{taken}: {what}.")


def limits(lines: Sequence[str], resources: Sequence[str]) -> list[Limit]:
    """Those that are known for a job like this."""
    config, _ = ask("scontrol", "show", "config", patience=PATIENCE)
    fields = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", config, re.MULTILINE))
    whole = number(fields.get("MaxJobCount", ""))
    found = [Limit("MaxJobCount of the cluster", whole)] if whole else []
    if "limits" not in fields.get("AccountingStorageEnforce", ""):
        return found
    asked = asked_for(lines)  # and what sbatch takes before it, from the environment and its command line
    asked |= {name: os.environ[key] for name in USED if (key := f"SBATCH_{name.upper()}") in os.environ}
    asked |= asked_for([as_line(resource) for resource in resources])
    account, qos, partition = (asked.get(name, "") for name in USED)
    own = own_jobs()
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return found
    where = [f"user={user}", f"cluster={fields.get('ClusterName', '')}", *([f"account={account}"] if account else [])]
    associations = accounting("association", where, "Account,MaxSubmitJobs,GrpSubmitJobs,DefaultQOS")
    if len(associations) == 1:  # else which of them the job would be of is not known
        name, most, group, usual = associations[0]
        taken = sum(job[0] == name for job in own)
        found += known(f"MaxSubmitJobs of account {shown(name)}", most, taken)
        found += known(f"GrpSubmitJobs of account {shown(name)}", group, taken)
        qos = qos or usual
    partition, of_partition = partition_and_qos(partition)
    for name, column, value in ((qos, 1, qos), (of_partition, 2, partition)):
        for most, group in accounting("qos", [f"name={name}"], "MaxSubmitJobsPU,GrpSubmitJobs") if name else []:
            taken = sum(job[column] == value for job in own)
            found += known(f"MaxSubmitJobsPerUser of QOS {shown(name)}", most, taken)
            found += known(f"GrpSubmitJobs of QOS {shown(name)}", group, taken)
    return found


def known(name: str, most: str, taken: int) -> list[Limit]:
    return [Limit(name, count, taken)] if (count := number(most)) is not None else []


def number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def accounting(what: str, where: Sequence[str], fields: str) -> list[list[str]]:
    """The rows that sacctmgr shows; none where there is no accounting, or it does not answer."""
    words = ["sacctmgr", "--noheader", "--parsable2", "--readonly", "show", what, *where, f"format={fields}"]
    said, _ = ask(*words, patience=PATIENCE)
    rows = [line.split("|") for line in said.splitlines()]
    return [row for row in rows if len(row) == fields.count(",") + 1]


def own_jobs() -> list[list[str]]:
    """[account, QOS, partition] of each job and each task of an array that waits or runs."""
    said, _ = ask("squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%a|%q|%P", patience=PATIENCE)
    return [row for line in said.splitlines() if len(row := line.strip().split("|")) == len(USED)]


def partition_and_qos(name: str) -> tuple[str, str]:
    """The partition that the job would be in, and the QOS that all of its jobs are under."""
    said, _ = ask("scontrol", "--oneliner", "show", "partition", *([name] if name else []), patience=PATIENCE)
    for line in said.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if fields.get("PartitionName") == name or (not name and fields.get("Default") == "YES"):
            return fields["PartitionName"], fields.get("QoS", "").replace("N/A", "")
    return name, ""
