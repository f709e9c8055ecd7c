"""Limits per user, played by programs of the tests' own: the cluster of the tests has no accounting."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from core.errors import UserError
from launch.resources import check_limits
from tests.launch.launcher import Launcher
from tests.launch.run_folders import Programs, programs

__all__ = ["programs"]

CONFIG = {"AccountingStorageEnforce": "associations,limits,qos", "ClusterName": "test", "MaxJobCount": "10000"}


class Accounts:
    """Programs that answer as a cluster with accounting does."""

    def __init__(self, programs: Programs, **config: str) -> None:
        self.programs = programs
        lines = "; ".join(f"echo '{name} = {value}'" for name, value in (CONFIG | config).items())
        partitions = "echo 'PartitionName=main Default=YES QoS=N/A'; echo 'PartitionName=gpu Default=NO QoS=big'"
        gpu_partition = "[[ $# == 3 ]] && echo 'PartitionName=gpu Default=NO QoS=big'"
        programs.put(
            "scontrol", f"if [[ $2 == config ]]; then {lines}; else {gpu_partition} || {{ {partitions}; }}; fi"
        )
        self.jobs()
        self.say()

    def jobs(self, *lines: str) -> None:
        self.programs.put("squeue", "\n".join(f"echo '{line}'" for line in lines))

    def say(self, associations: str = "", qos: str = "") -> None:
        both = f"[[ $* == *association* ]] && printf {shlex.quote(associations)} || printf {shlex.quote(qos)}"
        self.programs.put("sacctmgr", both)


def refused(
    rows: int, *lines: str, resources: tuple[str, ...] = (), jobs_of_a_row: int = 1, timeout: float = 5.0
) -> str:
    try:
        check_limits(lines, resources, rows, jobs_of_a_row, timeout)
    except UserError as error:
        return str(error)
    return ""


def test_an_account(programs: Programs) -> None:
    accounts = Accounts(programs)
    accounts.say(r"lab|200|500|\n")
    accounts.jobs(*["lab|normal|main"] * 30, "other|normal|main")
    assert not refused(170)
    sentence = (
        "and MaxSubmitJobs of account lab allows 200 at a time, of which 30 are taken: cut the file into parts of"
    )
    assert refused(171) == f"The sweep would be 171 jobs, {sentence} at most 170 rows."
    assert refused(86, jobs_of_a_row=2) == f"The sweep would be 172 jobs, {sentence} at most 85 rows."
    accounts.jobs(*["lab|normal|main"] * 200)
    assert refused(1).endswith("of which 200 are taken: wait until some of them have ended.")
    assert programs.calls("sacctmgr")[0].startswith("--noheader --parsable2 --readonly show association user=")
    assert "--array" in programs.calls("squeue")[0], "each task of an array counts"


def test_which_account_and_qos_it_would_be(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = Accounts(programs)
    accounts.say(r"lab|5||\nother|7||\n")
    assert not refused(100), "it may be of either"
    for lines, resources in ((["#SBATCH --account=one -q two"], ()), ([], ("account=one", "qos=two"))):
        refused(100, *lines, resources=resources)
        assert "account=one" in programs.calls("sacctmgr")[-2] and "name=two" in programs.calls("sacctmgr")[-1]
    monkeypatch.setenv("SBATCH_ACCOUNT", "three")
    refused(100, "#SBATCH --account=one")
    assert "account=three" in programs.calls("sacctmgr")[-1]
    refused(100, resources=("account=one",))
    assert "account=one" in programs.calls("sacctmgr")[-1]


def test_a_qos_and_that_of_the_partition(programs: Programs) -> None:
    accounts = Accounts(programs)
    accounts.say(r"lab|||short\n", r"8|\n")
    accounts.jobs("lab|short|main", "lab|long|main", "lab|long|gpu")
    assert not refused(7)
    assert "and MaxSubmitJobsPerUser of QOS short allows 8 at a time, of which 1 are taken" in refused(8)
    accounts.say("", r"|8\n")
    assert not refused(9), "the default partition has none"
    assert "and GrpSubmitJobs of QOS big allows 8 at a time, of which 1 are taken" in refused(8, "#SBATCH -p gpu")


@pytest.mark.parametrize("sacctmgr", ["exit 1", "exec sleep 60", "echo lab; echo 'x|y|z|w'; echo '||||'", "echo '|||'"])
def test_what_does_not_answer_is_no_limit(programs: Programs, sacctmgr: str) -> None:
    Accounts(programs)
    programs.put("sacctmgr", sacctmgr)
    assert not refused(9000, timeout=0.3)


def test_a_cluster_that_enforces_nothing_is_not_asked(programs: Programs) -> None:
    accounts = Accounts(programs, AccountingStorageEnforce="none")
    accounts.say(r"lab|2||\n")
    assert not refused(10_000) and not programs.calls("sacctmgr")
    assert "10001 jobs, and MaxJobCount of the cluster allows 10000 at a time: cut the file" in refused(10_001)
    programs.put("scontrol", "exit 1")
    assert not refused(10_001)


def test_nothing_is_made_of_a_sweep_that_is_too_large(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "launcher")
    launcher.program("sbatch", "echo 7")
    launcher.program("squeue", "")
    launcher.program("scontrol", "echo 'MaxJobCount = 3'")
    file = launcher.file("two.yaml", "base: {no_wandb: true}\ngrid: {seed: [1, 2]}\n")
    output = launcher.launch("sweep", file, "--evaluate", status=2)
    assert (
        "The sweep would be 4 jobs, and MaxJobCount of the cluster allows 3 at a time: cut the file into parts"
        in output
    )
    assert not launcher.logs.exists()
