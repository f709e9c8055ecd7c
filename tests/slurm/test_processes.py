"""Several processes on a real cluster: one run whoever starts them, and an end with its cause whoever of them ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from core.files import read_rows
from tests.conftest import ROOT
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import SMALL, Job, attempts, environment, losses

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(600)]

TRANSFORMER = [*SMALL, "--model_name", "baseline_transformer", "--checkpoint_every_n_steps", "10"]
LONG = [*TRANSFORMER, "--max_steps", "1000000"]


@pytest.fixture(autouse=True)
def quiet(cluster: Cluster) -> None:
    """Each test begins with an empty cluster."""
    cluster.stop_jobs()


def typed(cluster: Cluster, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    mine = environment(cluster) | more
    return subprocess.run(words, cwd=ROOT, env=mine, capture_output=True, text=True, timeout=240)


def process_of(job: Job, rank: int) -> int:
    """The Python of this rank."""
    marks = {f"SLURM_JOB_ID={job.id}".encode(), f"SLURM_PROCID={rank}".encode(), b"SLURM_STEP_ID=0"}
    marks.add(f"SLURM_CONF={job.cluster.configuration}".encode())
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_python = b"train_model.py" in (entry / "cmdline").read_bytes().split(b"\0")
            if is_python and marks <= set((entry / "environ").read_bytes().split(b"\0")):
                return int(entry.name)
    raise AssertionError(f"no process {rank} of job {job.id}")


def test_salloc_with_two_tasks_is_one_run(cluster: Cluster, corpus: Path, tmp_path: Path) -> None:
    """And a MASTER_PORT that somebody has is no obstacle."""
    import socket

    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = [*TRANSFORMER, "--max_steps", "20", "--dataset_dir", str(corpus), "--logs_dir", str(tmp_path)]
        words = ["salloc", "-Q", "-N2", "-n2", "--ntasks-per-node=1", "bash", "job_scripts/train.slurm", *flags]
        done = typed(cluster, *words, MASTER_PORT=port)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"MASTER_PORT is {port}: it is in use; the processes meet at " in done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert [step for step, _ in losses(folder)] == list(range(1, 21)), "every row once"
    assert json.loads((folder / "model.json").read_bytes())["processes"] == 2
    assert not (folder / "processes.json").exists()


def test_scripts_of_ones_own(cluster: Cluster, corpus: Path, tmp_path: Path) -> None:
    """Without a folder in common, and without srun: a sentence, and nothing is written."""
    flags = [*TRANSFORMER, "--max_steps", "20", "--dataset_dir", str(corpus), "--logs_dir", str(tmp_path / "logs")]
    done = typed(cluster, "srun", "-N2", "-n2", "python", "train_model.py", *flags)
    assert done.returncode == 2 and "KeyError" not in done.stderr, done.stderr
    assert done.stderr.count("srun started 2 processes that have no run folder in common: sbatch job_scripts/tr") == 2
    done = typed(cluster, "salloc", "-Q", "-n2", "python", "train_model.py", *flags)
    assert "this job has 2 tasks, and train_model.py was started once, without srun" in done.stderr
    assert done.returncode == 2 and not (tmp_path / "logs").exists()
    folder = typed(cluster, "python", "-m", "launch", "prepare", *flags).stdout.strip()
    done = typed(cluster, "srun", "-N2", "-n2", "python", "train_model.py", *flags, EBT_JOB_RUN_DIR=folder)
    assert done.returncode == 0 and len(losses(Path(folder))) == 20, done.stderr


def test_a_task_that_never_comes(cluster: Cluster, corpus: Path, tmp_path: Path) -> None:
    flags = [*TRANSFORMER, "--max_steps", "20", "--dataset_dir", str(corpus), "--logs_dir", str(tmp_path / "logs")]
    folder = typed(cluster, "python", "-m", "launch", "prepare", *flags).stdout.strip()
    # The second one sleeps; the patience of the first is cut short.
    patch = (
        "import functools, sys, train_model; from training import peers; "
        "peers.connect = functools.partial(peers.connect, timings=peers.Timings(join=3)); "
        "sys.exit(train_model.main(sys.argv[1:]))"
    )
    script = 'if [[ $SLURM_PROCID == 1 ]]; then sleep 300; else exec python -c "$0" "$@"; fi'
    words = ["srun", "-N2", "-n2", "--wait=1", "bash", "-c", script, patch, *flags]
    done = typed(cluster, *words, EBT_JOB_RUN_DIR=folder)
    assert "the run stopped: task 1 of 2 never came; the saved state can be resumed." in done.stderr
    assert done.returncode != 0 and "Traceback" not in done.stderr
    (row,) = attempts(Path(folder))
    assert row["cause"] == "crashed: task 1 of 2 never came"
    # SIGTERM works in that phase, too.
    waiting = ["srun", "-N2", "-n2", "bash", "-c", script, patch.replace("join=3", "join=200"), *flags]
    mine = environment(cluster) | {"EBT_JOB_RUN_DIR": folder}
    process = subprocess.Popen(waiting, cwd=ROOT, env=mine, stderr=subprocess.PIPE, text=True)
    file, deadline = Path(folder) / "processes.json", time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (job,) = cluster.run("squeue", "-h", "-o", "%i").split()
    cluster.run("scancel", "--signal=TERM", f"{job}.0")
    _, output = process.communicate(timeout=60)
    assert "task 0: Exited with exit code 75" in output, output


def test_the_others_wait_for_a_busy_first_process(cluster: Cluster, corpus: Path, tmp_path: Path) -> None:
    """srun ends what is left a while (here seven seconds) after the first process has ended: none may end before."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if os.environ.get('SLURM_PROCID') == '0' and 'train_model.py' in sys.argv[0:1] + sys.orig_argv:\n"
        "    import threading, time\n"
        "    def slow():\n"
        "        while 'training.report' not in sys.modules: time.sleep(.01)\n"
        "        import training.report as r\n"
        "        time.sleep(.2)\n"
        "        report = r.print_results\n"
        "        r.print_results = lambda *w: (time.sleep(14), report(*w))\n"
        "    threading.Thread(target=slow, daemon=True).start()\n"
    )
    flags = [*TRANSFORMER, "--max_steps", "20", "--dataset_dir", str(corpus)]
    job = Job(cluster, tmp_path, flags, "--nodes=2", SLURM_WAIT="7", PYTHONPATH=str(tmp_path))
    job.wait_for_words("train_model.py ended with status", 1)
    assert "train_model.py ended with status 0" in job.log(), job.log()
    assert "test it " in job.log()


def test_the_ends_of_a_process(cluster: Cluster, corpus: Path, tmp_path: Path) -> None:
    """Aborted: queued again. Stopped for ever: ended with stacks, and queued again. Killed: named, and not queued."""
    flags = [*LONG, "--dataset_dir", str(corpus), "--hang_minutes", "0.25"]
    job = Job(cluster, tmp_path, flags, "--nodes=2", SLURM_WAIT="3")
    job.wait_for_steps(1, 15)
    os.kill(process_of(job, 1), signal.SIGABRT)
    job.wait_for_words("was interrupted and is queued again", 1)
    job.wait_for_steps(2, 15)
    os.kill(process_of(job, 1), signal.SIGSTOP)
    job.wait_for_words("was interrupted and is queued again", 2)
    job.wait_for_steps(3, 15)
    os.kill(process_of(job, 1), signal.SIGKILL)
    job.wait_for_state("FAILED")
    first, second, third = attempts(job.folder)
    assert first["cause"] == "crashed: aborted (SIGABRT)"
    assert second["cause"] == "hung"
    assert third["cause"] == "out of memory or killed"
    assert all((row["ended_on"], row["ended_rank"]) == ("n2", 1) for row in (first, third))
    log = job.log()
    assert re.search(r"no heartbeat for 0\.\d minutes; the longest pause before was [\d.]+ s: the run hangs", log)
    assert re.search(r"stacks of process 0:\n(  .*\n)*  .* in train_together\n", log), "where the others wait"
    assert "stacks of task 1 on n2:\n  it does not answer: stopped, or its machine hangs" in log
    assert "the run stopped: task 1 on n2 died; the saved state can be resumed." in log
    assert "not queued again: out of memory or killed (task 1 on n2); python -m launch why " in log
    assert log.count("train_model.py ended with status") == 3


def test_preemption_that_cancels(cluster: Cluster, corpus: Path, tmp_path: Path) -> None:
    """PreemptMode=CANCEL without a grace time: Slurm would not bring the job back, so its script does."""
    flags = [*TRANSFORMER, "--max_steps", "300", "--dataset_dir", str(corpus)]
    job = Job(cluster, tmp_path, flags, "--partition=cheap", "--nodelist=n1")
    job.wait_for_steps(1, 15)
    words = ("--partition=urgent", "--nodelist=n1", "-c2", "--output=/dev/null", "--wrap", "true")
    cluster.run("sbatch", *words)
    job.wait_for_state("COMPLETED")
    assert [row["cause"] for row in attempts(job.folder)] == ["preempted", "finished"]
    assert [step for step, _ in losses(job.folder)] == list(range(1, 301))
    again = Job(cluster, tmp_path / "cancelled", flags, "--partition=cheap")
    again.wait_for_steps(1, 5)
    cluster.run("scancel", again.id)
    cluster.wait_until_idle()
    assert again.show("JobState") == "CANCELLED" and again.show("Restarts") == "0"
    assert not any("queued again" in str(row) for row in read_rows(again.folder / "attempts.jsonl"))
