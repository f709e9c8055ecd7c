"""The doctor where there is no Slurm, and what it makes of what a job may find."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import launch.doctor
from launch.__main__ import main
from launch.doctor import (
    check_accounting,
    check_cpus,
    check_files_of_nodes,
    check_preemption,
    check_python_of_jobs,
    check_requeue,
    check_signals,
    header_text,
)
from launch.probe import (
    Finding,
    check_memory_and_files,
    check_network,
    check_port,
    check_space,
    is_locked,
    is_rename_whole,
    machine_facts,
    process_facts,
    quotas,
)
from launch.script import sbatch_lines
from runs.slurm import kill_wait, shortest_grace_period, warning_seconds
from tests.conftest import ROOT

HEADER_VALUES = {"partition": "main", "cores": "2", "requeue": True, "time": 86400.0, "account": None, "tasks": 1}
HEADER_VALUES |= {"nodes": "1", "gpus": None}
PROCESS = {"host": "n1", "python": sys.prefix, "bound_cpus": 2, "requested_cpus": 2, "is_locked": True}
PROCESS |= {"is_rename_whole": True, "python_command": "", "usable_cpus": 2, "threads": None}


@pytest.fixture
def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.doctor.choose_cluster", lambda requested: "local")


def verdict_and_text(finding: Finding) -> tuple[str, str]:
    return finding.verdict, f"{finding.message}: {finding.advice}"


def test_without_slurm_it_checks_what_there_is(
    tmp_path: Path, no_slurm: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["doctor", "--logs_dir", str(tmp_path / "logs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    verdicts = {line.split(maxsplit=1)[1].split("  ")[0]: line.split()[0] for line in lines[:8]}
    here = ["log folder", "locks", "renames", "disk", "home", "Python", "shared memory", "open files"]
    assert list(verdicts) == here and set(verdicts.values()) <= {"ok", "look"}
    assert lines[8] == "There is no Slurm here: signals, requeueing, nodes and accounting were not checked."
    assert list((tmp_path / "logs").iterdir()) == []


def test_a_folder_that_cannot_be_written_to(no_slurm: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--logs_dir", "/proc/nowhere"]) == 1
    words = " ".join(capsys.readouterr().out.split())
    assert words.startswith("fails log folder /proc/nowhere cannot be written to (No such file or directory): choose a")


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    disk = check_space("disk", tmp_path, min_free_bytes=1e18)
    assert (disk.name, disk.verdict, disk.advice) == ("disk", "look", "remove what is not needed, or ask for more")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--header", "x"], "--header is 'x': there is no Slurm here that could be asked for it; leave it out."),
        (["--header_out", "x"], "--header_out is 'x': without Slurm there is nothing to put into a header."),
        (["--header_out", "../x"], "--header_out is '../x': give a name of letters, digits, _ and -, without .slurm."),
        (
            ["--header_out", "local_cpu"],
            "--header_out is 'local_cpu': job_scripts/headers/local_cpu.slurm exists; choose",
        ),
        (["--headr"], "unrecognized arguments: --headr: python -m launch doctor --help lists the options."),
    ],
)
def test_mistakes(words: list[str], sentence: str, no_slurm: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    assert capsys.readouterr().err.startswith(sentence)


def test_what_a_process_finds(tmp_path: Path) -> None:
    words = [sys.executable, "-c", launch.doctor.HOLD_LOCK, str(tmp_path / "lock")]
    holder = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.read(1) == b"k"
    facts = process_facts(tmp_path, "0")
    assert facts["is_locked"] and facts["is_rename_whole"]
    assert facts["python"] == sys.prefix and facts["bound_cpus"] >= 1
    holder.kill()
    holder.communicate()
    assert not is_locked(tmp_path / "lock") and is_rename_whole(tmp_path, "x")
    assert [file.name for file in tmp_path.iterdir()] == ["lock"]


def test_signals() -> None:
    processes = [{"signal_time": 10.5}, {"signal_time": 11.0}]
    assert verdict_and_text(check_signals(processes, True, 10.0, True)) == (
        "ok",
        "reach all 2 processes within 1.0 s; the script outlives them: ",
    )
    assert (
        check_signals([{"signal_time": None}, {"signal_time": 1.0}], False, 1.0, True).message
        == "1 of 2 processes got no signal"
    )
    assert verdict_and_text(check_signals(processes, True, 10.0, False)) == (
        "fails",
        "they end the job's script too: the script cannot queue its job again: submit it with --resume_training_ckpt "
        "last",
    )


def test_grace() -> None:
    wait = {"KillWait": "30 sec"}
    assert verdict_and_text(check_preemption({"PreemptMode": "OFF"}, wait))[1].startswith(
        "jobs of this partition stay; a cancelled one has 30 s"
    )
    preempts = {"PreemptMode": "REQUEUE", "GraceTime": "15"}
    assert check_preemption(preempts, wait).verdict == "ok"
    short = check_preemption(preempts, {"KillWait": "5 sec"})
    assert short.verdict == "look" and short.message == "requeue, with 15 + 5 s between notice and end"


def test_jobs_that_preemption_cancels() -> None:
    finding = check_preemption({"PreemptMode": "CANCEL", "GraceTime": "0"}, {"KillWait": "30 sec"})
    assert finding.verdict == "look"
    assert finding.message == "cancel, with 0 + 30 s of notice: Slurm does not bring such a job back"
    assert finding.advice.endswith("otherwise python -m launch requeue RUN brings it back")


def test_shared_memory_and_open_files() -> None:
    here = machine_facts()
    assert here["shared_memory"] > 0 and 0 < here["open_files"][0] <= here["open_files"][1]
    plenty = {"host": "n1", "shared_memory": 8e9, "open_files": [65536, 65536]}
    assert [finding.verdict for finding in check_memory_and_files([plenty])] == ["ok", "ok"]
    shared, files = check_memory_and_files([plenty, {"host": "n2", "shared_memory": 64e6, "open_files": [1024, 4096]}])
    assert verdict_and_text(shared) == (
        "look",
        "61 MiB free in /dev/shm of n2: batches pass through it; use --num_workers 0, or start the "
        "container with more (--shm-size)",
    )
    assert (files.verdict, files.message) == ("look", "1,024 at a time on n2")
    assert files.advice == "many loader processes may need more: ulimit -n 4096 in the header"


def test_space_and_quotas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota = tmp_path / "quota"
    output = f"{tmp_path} 95000000* 90000000 100000000 6days 1200 0 5000"
    quota.write_text(f"#!/bin/sh\necho 'Disk quotas for user ada (uid 1000):'\necho '{output}'\nexit 1\n")
    quota.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert quotas(tmp_path) == [(95, 100, "GB"), (1200, 5000, "files")]
    assert quotas(Path("/proc")) == [], "of another file system"
    finding = check_space("home", tmp_path)
    assert finding.verdict == "look" and finding.message.endswith("; quota: 95 of 100 GB; quota: 1,200 of 5,000 files")
    quota.unlink()
    assert "quota" not in check_space("home", tmp_path).message
    assert (
        check_space("home", tmp_path / "no").message == f"{tmp_path / 'no'} cannot be seen (No such file or directory)"
    )


def test_network_and_port(monkeypatch: pytest.MonkeyPatch) -> None:
    machine: dict[str, Any] = {
        "host": "h1",
        "node": "n1",
        "address": "10.0.0.1",
        "interfaces": {"lo": "127.0.0.1", "ib0": "10.0.0.1"},
    }
    machine |= {"interface_variables": {}, "all_reduce": 0.42}
    assert check_network([machine]).message.startswith(
        "h1 is 10.0.0.1 (ib0); not tried, as one process is alone: a header"
    )
    both = [machine, machine | {"node": "n2", "all_reduce": 0.5}]
    assert verdict_and_text(check_network(both)) == (
        "ok",
        "h1 is 10.0.0.1 (ib0); 2 processes on 2 nodes added numbers over Gloo in 0.5 s: ",
    )
    assert verdict_and_text(
        check_network(
            [machine | {"interface_variables": {"GLOO_SOCKET_IFNAME": "eth7"}, "all_reduce": "no such device"}, machine]
        )
    ) == (
        "fails",
        "GLOO_SOCKET_IFNAME=eth7; 2 processes cannot compute together (no such device): "
        "export GLOO_SOCKET_IFNAME= and NCCL_SOCKET_IFNAME= in the header, with one of ib0",
    )
    assert check_port([machine_facts()]).message == "processes meet at a free one, which the first of them chooses"
    with socket.create_server(("", 0)) as server:
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        assert (
            check_port([machine_facts()]).verdict == "look"
            and "which is taken" in check_port([machine_facts()]).message
        )
    assert check_port([machine_facts()]).verdict == "ok"


def test_cores(tmp_path: Path) -> None:
    probe_job: Any = type("ProbeJob", (), {"work_dir": tmp_path})
    (tmp_path / "inherited-0").write_text("1\n")
    words = "2 asked for, bound to 2, 2 used by each process; given to srun, which inherits fewer"
    assert check_cpus(probe_job, [PROCESS]) == Finding("CPUs", "ok", words, check_cpus(probe_job, [PROCESS]).advice)
    unbound = check_cpus(probe_job, [{**PROCESS, "bound_cpus": 64}])
    assert unbound.verdict == "ok" and "not bound (to 64 of the node), 2 used" in unbound.message
    assert check_cpus(probe_job, [PROCESS, {**PROCESS, "bound_cpus": 1, "usable_cpus": 1}]).verdict == "fails"
    own = check_cpus(probe_job, [{**PROCESS, "threads": "16"}])
    assert (own.verdict, own.advice) == ("look", "OMP_NUM_THREADS is 16; leave it out")


def test_files_and_python_of_nodes() -> None:
    assert check_files_of_nodes([PROCESS]).verdict == "ok"
    unseen = check_files_of_nodes([PROCESS, {**PROCESS, "host": "n2", "is_locked": False}])
    assert unseen.verdict == "look" and unseen.message == "a lock of this machine is not seen on n2"
    assert check_files_of_nodes([{**PROCESS, "is_rename_whole": False}]).verdict == "fails"
    assert check_python_of_jobs([PROCESS]).verdict == "ok"
    other = check_python_of_jobs([{**PROCESS, "python": "/usr"}])
    assert other.verdict == "fails" and other.message.startswith("jobs run /usr and this is ")


def test_a_cluster_that_forbids_requeueing(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = "no answer from Slurm (Requested operation is presently disabled)"
    monkeypatch.setattr("launch.doctor.run_slurm", lambda *words, timeout: ("", answer))
    probe_job: Any = type("ProbeJob", (), {"job": "17"})
    assert verdict_and_text(check_requeue(probe_job)) == (
        "fails",
        "no answer from Slurm (Requested operation is presently disabled): after a time limit, submit again with "
        "--resume_training_ckpt last",
    )


def test_accounting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.doctor.run_slurm", lambda *words, timeout: ("", ""))
    assert check_accounting({"AccountingStorageType": "accounting_storage/slurmdbd"}).message == "sacct answers"
    assert check_accounting({"AccountingStorageType": "accounting_storage/none"}).message.startswith("none")


@pytest.mark.parametrize(
    ("changed", "lines"),
    [
        ({}, ["--partition=main", "--cpus-per-task=2", "--time=24:00:00", "--signal=USR1@120", "--requeue"]),
        ({"requeue": False}, ["--no-requeue"]),
        ({"account": "lab"}, ["--account=lab"]),
        ({"time": 240.0}, ["--time=00:04:00", "--signal=USR1@60"]),
    ],
)
def test_the_header_has_what_was_learned(changed: dict[str, Any], lines: list[str]) -> None:
    text = header_text(HEADER_VALUES | changed)
    assert {f"#SBATCH {line}" for line in lines} <= set(sbatch_lines(text))
    assert "gres" not in text and "##SBATCH --gres=gpu:a100:4" in header_text(HEADER_VALUES | {"gpus": "gpu:a100:4"})


@pytest.mark.parametrize(
    ("script", "variable", "seconds"),
    [
        ("#SBATCH --signal=USR1@120\n#SBATCH --signal=B:USR1@60\n", "", 60),
        ("#SBATCH --time=1 --signal USR1@90\n", "", 90),
        ("#SBATCH --signal=USR1\n", "", None),
        ("echo --signal=USR1@5\n", "", None),
        ("#SBATCH --signal=USR1@120\n", "USR1@30", 30),
    ],
)
def test_the_lead_that_a_script_asks_for(
    script: str, variable: str, seconds: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_SIGNAL", variable)
    assert warning_seconds(script) == seconds
    assert kill_wait({}) == 30 and kill_wait({"KillWait": "5 sec"}) == 5


SLURM = """\
#!/bin/bash
case "$*" in
"show job 17 --oneliner") echo "JobId=17 Partition=main" ;;
"show partition main --oneliner") echo "PartitionName=main GraceTime=15 PreemptMode=MODE" ;;
"show config") printf 'KillWait                = 5 sec\\n' ;;
*) exit 1 ;;
esac
"""


@pytest.mark.parametrize(
    ("job", "mode", "signal", "notice"),
    [
        ("17", "REQUEUE", "USR1@120", (20, "being preempted")),
        ("17", "REQUEUE", "USR1@10", (10, "its time limit")),
        ("17", "OFF", "USR1@120", (120, "its time limit")),
        ("17", "OFF", "USR1", None),
        ("18", "REQUEUE", "USR1@120", (120, "its time limit")),  # Slurm does not answer
        ("", "REQUEUE", "USR1@120", None),
    ],
)
def test_the_shortest_notice_of_a_job(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    job: str,
    mode: str,
    signal: str,
    notice: tuple[int, str] | None,
) -> None:
    (tmp_path / "scontrol").write_text(SLURM.replace("MODE", mode))
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "job_script.slurm").write_text(f"#SBATCH --signal={signal}\n")
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SBATCH_SIGNAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    assert shortest_grace_period(tmp_path) == notice
