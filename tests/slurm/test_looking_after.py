"""status, why, requeue and cancel on a real cluster: what they say is so, and what they do is on record."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runs.run import Run
from tests.slurm.jobs import Launcher, Submitted, wait

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(600)]


def test_a_job_from_its_queue_to_its_end(launcher: Launcher, tmp_path: Path) -> None:
    header = launcher.checkout.root / "job_scripts" / "headers" / "later.slurm"
    header.write_text("#SBATCH --begin=now+1hour\n#SBATCH --cpus-per-task=1\n")
    output = launcher.checkout.execute(
        "later", "job_scripts/train.slurm", "--run_name", "mine", more=launcher.cluster.environment
    )
    job = Submitted(launcher.cluster, output)
    wait("Slurm to look at it", lambda: launcher.status()["detail"] == "BeginTime")
    assert launcher.status()["job"] == job.id and launcher.status()["state"] == "waiting"
    assert f"Job {job.id} waits (BeginTime): its time to begin has not come" in launcher.launch("why", "mine")

    launcher.cluster.run("scontrol", "update", f"jobid={job.id}", "StartTime=now")
    wait("its start", lambda: launcher.status()["state"] == "running")
    running = launcher.status()
    assert (running["step"], running["total_steps"], running["train_loss"], running["attempts"]) == (3, 10, 2.5, 1)
    assert running["node"] in ("n1", "n2") and Run(job.run).attempts[0]["job"] == job.id

    assert f"job {job.id} saves its state, is queued again and resumes from there" in launcher.launch("requeue", "mine")
    wait("its second attempt", lambda: (now := launcher.status())["state"] == "running" and now["attempts"] == 2)
    log = launcher.launch("logs", "mine").splitlines()
    marks = [line for line in log if line.startswith("──── attempt ")]
    assert [mark.split(",")[0] for mark in marks] == ["──── attempt 1", "──── attempt 2"]
    assert log.count("it has begun") == 2, "once an attempt, and not once more from the copy in the run folder"

    assert f"job {job.id} was cancelled while it was running." in launcher.launch("cancel", "mine")
    job.wait_for_state("CANCELLED")
    launcher.cluster.wait_until_idle()
    assert job.show("JobState") == "CANCELLED" and job.show("Restarts") == "1"
    assert [attempt["cause"] for attempt in Run(job.run).attempts] == ["requeued", "cancelled"]
    assert launcher.status()["state"] == "cancelled"
    assert "nothing to cancel: it is cancelled." in launcher.launch("cancel", "mine")

    output = launcher.launch("requeue", "mine")
    again = Run(job.run).job_name
    assert f"submitted again as job {again}; it resumes from step 0; start: about " in output and again != job.id
    launcher.cluster.run("scontrol", "update", f"jobid={again}", "StartTime=now")
    wait("its third attempt", lambda: (now := launcher.status())["state"] == "running" and now["attempts"] == 3)
    elsewhere = tmp_path / "slurm.conf"  # at a port where nobody listens
    elsewhere.write_text(launcher.cluster.configuration.read_text().replace("SlurmctldPort=", "SlurmctldPort=1 #"))
    blind = launcher.launch("status", more={"SLURM_CONF": str(elsewhere)})
    assert " running " in blind and "states are as the run folders tell" in " ".join(blind.split())


def test_a_task_of_a_plain_array_is_cancelled_alone(launcher: Launcher) -> None:
    words = ["sbatch", "--parsable", "--array=0-1%1", "--output=slurm-%A_%a.out", "job_scripts/train.slurm"]
    environment = launcher.checkout.environment(launcher.cluster.environment)
    array = subprocess.run(
        words, cwd=launcher.checkout.root, env=environment, capture_output=True, text=True
    ).stdout.strip()
    wait("its start", lambda: "running" in launcher.launch("status"))
    status = launcher.status()
    assert status["job"] == f"{array}_0"
    assert "it has begun" in launcher.launch("logs", "last")
    assert f"job {array}_0 was cancelled while it was running." in launcher.launch("cancel", status["run"])
    assert launcher.launch("why", status["run"]).splitlines()[0] == f"{status['run']} is cancelled."
    wait("the other task", lambda: launcher.launch("status", "--state", "running").count(f"{array}_1") == 1)


def test_what_was_submitted_without_a_header_goes_on_and_runs_again(launcher: Launcher) -> None:
    launcher.launch("submit", "--run_name", "plain")
    run = Run(launcher.checkout.run)
    wait("its start", lambda: launcher.status()["state"] == "running")
    launcher.launch("cancel", run.run_id)
    launcher.cluster.wait_until_idle()
    assert "submitted again as job " in launcher.launch("requeue", run.run_id)
    wait("its second attempt", lambda: (now := launcher.status())["state"] == "running" and now["attempts"] == 2)
    output = launcher.launch("resubmit", run.run_id, "--set", "seed=4")
    (other,) = (path for path in run.path.parent.iterdir() if path != run.path)
    assert f"run id  {other.name}\n" in output and "job id  " in output
    wait("its start", lambda: Run(other).state == "running")
    assert Run(other).settings["seed"] == 4 and Run(other).submission["header"] is None
