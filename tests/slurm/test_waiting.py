"""Jobs that wait on a real cluster: held by a failed prolog, asking for what no node has, after a run that failed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runs.run import Run
from tests.conftest import ROOT
from tests.launch.run_folders import stamp, write_run
from tests.slurm.cluster import NODES, Cluster
from tests.slurm.jobs import Launcher, Submitted, wait

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def repaired(cluster: Cluster) -> Iterator[None]:
    """What a test breaks works for the next one."""
    yield
    cluster.repair()


def launch(cluster: Cluster, logs: Path, *words: str, status: int = 0) -> str:
    command = [sys.executable, "-m", "launch", *words, "--logs_dir", str(logs)]
    environment = os.environ | cluster.environment | {"COLUMNS": "200"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def lines_of(launcher: Launcher, *words: str) -> list[str]:
    return launcher.launch(*words).splitlines()


def test_a_job_that_a_broken_node_could_not_start_is_held_released_and_kept_from_it(launcher: Launcher) -> None:
    cluster = launcher.cluster
    cluster.drain("n2", "a fan, ticket 7")
    cluster.broken("n1").touch()
    header = "local_cpu", "job_scripts/train.slurm", "--run_name", "mine"
    job = Submitted(cluster, launcher.checkout.execute(*header, more=cluster.environment))
    wait("Slurm to hold it", lambda: launcher.status()["state"] == "held")
    held = launcher.status()
    assert held["detail"] == "launch failed requeued held" and held["expected_start"] is None
    lines = lines_of(launcher, "why", "mine")
    assert lines[0] == f"{job.run.name} is held: launch failed requeued held."
    assert lines[1].startswith(f"Job {job.id} waits (launch failed requeued held): a node could not start it")
    (first, other) = (line for line in lines if line.startswith("Node "))
    assert first.startswith("Node n1 is drained since 20") and first.endswith(": Prolog error.")
    assert other.endswith(": a fan, ticket 7.")
    assert lines[-1] == f"next: python -m launch requeue {job.run.name}"
    expected = f"{job.run.name}: job {job.id} was held (launch failed requeued held), and is released."
    assert lines_of(launcher, "requeue", "mine") == [expected]
    assert launcher.status()["state"] == "waiting"

    cluster.run("scontrol", "update", "nodename=n2", "state=resume")
    wait("its start", lambda: launcher.status()["state"] == "running")
    assert launcher.status()["node"] == "n2"
    cluster.repair()
    output = launcher.launch("requeue", "mine", "--exclude_nodes", "last")
    assert output.endswith(" is queued again and resumes from there. It will not start on n2.\n")
    wait("its second attempt", lambda: (now := launcher.status())["state"] == "running" and now["attempts"] == 2)
    assert launcher.status()["node"] == "n1" and job.show("ExcNodeList") == "n2"

    launcher.launch("cancel", "mine")
    cluster.wait_until_idle()
    output = launcher.launch("requeue", "mine", "--exclude_nodes", "n1")
    again = Run(job.run).job_name
    assert f"submitted again as job {again}; it resumes from step 0, not on n1; start: now, on n2." in output
    assert " ExcNodeList=n1 " in cluster.run("scontrol", "show", "job", str(again), "--oneliner")


def test_a_job_that_runs_and_never_begins_is_called_silent(launcher: Launcher) -> None:
    (launcher.checkout.root / "train_model.py").write_text("import time; time.sleep(300)\n")
    reading = launcher.checkout.root / "runs" / "run.py"
    reading.write_text(reading.read_text().replace("START_UP = 600.0", "START_UP = 3.0"))
    words = "local_cpu", "job_scripts/train.slurm", "--run_name", "mine"
    job = Submitted(launcher.cluster, launcher.checkout.execute(*words, more=launcher.cluster.environment))
    wait("its start", lambda: launcher.status()["state"] == "starting")
    wait("it to be called silent", lambda: launcher.status()["state"] == "silent")
    assert (detail := launcher.status()["detail"]).startswith("for ") and detail.endswith("s")
    lines = lines_of(launcher, "why", "mine")
    assert lines[1].startswith("It has made no step yet, and its log was last written to ")
    assert lines[-1].endswith(f" then python -m launch requeue {job.run.name}")


def waiting(cluster: Cluster, logs: Path, name: str, *options: str, hold: bool = True, **more: object) -> Path:
    """A run whose job waits; let go after sbatch could have refused it."""
    words = ["sbatch", "--parsable", *(["--hold"] if hold else []), "--output=/dev/null", "--wrap=sleep 60", *options]
    job = cluster.run(*words).strip()
    if hold:
        subprocess.run(["scontrol", "release", job], env=os.environ | cluster.environment, capture_output=True)
    submission = {"state": "released", "job": job, "time": stamp(), **more}
    return write_run(logs, name, submission=submission, number=int(job))


def test_what_can_never_start_says_so_and_names_the_number(cluster: Cluster, tmp_path: Path) -> None:
    cluster.stop_jobs()
    logs, runs = tmp_path / "logs", {}
    runs["memory"] = waiting(cluster, logs, "memory", "--mem=900G")
    runs["each"] = waiting(cluster, logs, "each", "--mem-per-cpu=10000", "--cpus-per-task=2")
    runs["tasks"] = waiting(cluster, logs, "tasks", "--nodes=1", "--ntasks=4")
    runs["cpus"] = waiting(cluster, logs, "cpus", "--cpus-per-task=8")
    runs["nodes"] = waiting(cluster, logs, "nodes", "--nodes=5")
    failed = cluster.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=exit 1").strip()
    write_run(logs, "first", submission={"state": "released", "job": failed, "time": stamp()})
    first = next((logs / "runs").glob("first_*")).name
    after = {"run": first, "if": "finished"}
    runs["next"] = waiting(cluster, logs, "next", f"--dependency=afterok:{failed}", hold=False, after=after)

    wait("Slurm to give them up", lambda: launch(cluster, logs, "status").count(" never starts (") == 4)
    why = {name: launch(cluster, logs, "why", name).splitlines() for name in runs}
    job = Run(runs["memory"]).job_name
    assert why["memory"][1:] == [
        f"Job {job} waits (BadConstraints): no node of its partition has all that it asks for together: memory, CPUs, "
        "GPUs, features.",
        "It asks for 900.0 GiB of memory on a node (--mem, --mem-per-cpu); the largest node of main has 11.7 GiB.",
        f"next: python -m launch cancel {runs['memory'].name} --logs_dir {logs}, then python -m launch resubmit "
        f"{runs['memory'].name} --logs_dir {logs} --header … with one that asks for less",
    ]
    assert "It asks for 19.5 GiB of memory on a node (--mem, --mem-per-cpu)" in why["each"][2]
    cpus = "CPUs on a node (--cpus-per-task, --ntasks-per-node); no node of main has more than 2."
    assert f"It asks for 4 {cpus}" in why["tasks"] and f"It asks for 8 {cpus}" in why["cpus"]
    assert "It asks for 5 nodes (--nodes); main has 2." in why["nodes"]
    assert {lines[-1].split(", then ")[1].split(" --header ")[1] for name, lines in why.items() if name != "next"} == {
        "… with one that asks for less"
    }
    output = launch(cluster, logs, "requeue", "memory", status=1)
    assert f"job {job} waits, but can never start (BadConstraints): python -m launch why " in output

    job = Run(runs["next"]).job_name
    assert why["next"][0].endswith(" is waiting: never starts (DependencyNeverSatisfied).")
    assert why["next"][2] == f"It was submitted to wait until {first} is finished; that one is failed."
    assert why["next"][3].startswith(f"next: scontrol update JobId={job} Dependency= (it starts all the same), or ")
    cluster.run("scontrol", "update", f"JobId={job}", "Dependency=")
    wait("it to start", lambda: "RUNNING" in cluster.run("squeue", "-h", "-j", str(job), "-o", "%T"))


def test_nodes_that_are_gone_are_named_and_a_later_start_is_shown(cluster: Cluster, tmp_path: Path) -> None:
    cluster.stop_jobs()
    logs = tmp_path / "logs"
    for node in NODES:
        cluster.drain(node, "new kernel")
    bound = waiting(cluster, logs, "bound", "--nodelist=n1", hold=False)
    later = waiting(cluster, logs, "later", "--begin=now+2days", hold=False)
    held = waiting(cluster, logs, "held", "--begin=now+2days", hold=False)
    cluster.run("scontrol", "hold", str(Run(held).job_name))
    wait("Slurm to look at it", lambda: "ReqNodeNotAvail" in launch(cluster, logs, "status"))
    lines = launch(cluster, logs, "why", bound.name).splitlines()
    assert "It must run on n1 (--nodelist)." in lines and "Of 2 nodes in main: 2 drained." in lines
    assert any(line.startswith("Node n[1-2] is drained since ") and line.endswith(": new kernel.") for line in lines)
    head, *rows = launch(cluster, logs, "status").splitlines()
    (row,) = (row for row in rows if row.startswith(later.name))
    assert "starts" in head.split() and row[head.index("starts") :].split()[1].count(":") == 1
    lines = launch(cluster, logs, "why", held.name).splitlines()
    assert lines[0] == f"{held.name} is held: JobHeldAdmin." and lines[-1].startswith(
        "next: ask those who run the clus"
    )
    assert "(JobHeldAdmin), and is released." in launch(cluster, logs, "requeue", held.name), "root runs this cluster"
    assert Run(held).state == "waiting"
