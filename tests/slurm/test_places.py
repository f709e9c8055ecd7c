"""What differs between clusters, on a real one: commands of headers, containers, and nodes that do not bind tasks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from runs.run import Run
from tests.conftest import ROOT
from tests.launch.checkout import SCRIPT, Checkout
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import Submitted, attempts, wait
from tests.support.threads import THREADS

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(300)]


@pytest.fixture
def checkout(cluster: Cluster, tmp_path: Path) -> Checkout:
    cluster.stop_jobs()
    return Checkout(tmp_path / "checkout")


def header(checkout: Checkout, text: str) -> None:
    (checkout.root / "job_scripts" / "headers" / "mine.slurm").write_text(text)


def commands_of_reference(name: str) -> str:
    lines = (ROOT / "job_scripts" / "headers" / f"{name}.slurm").read_text().splitlines()
    return "".join(line + "\n" for line in lines if not line.startswith("#"))


def test_a_module_that_cannot_be_loaded_stops_the_job(cluster: Cluster, checkout: Checkout) -> None:
    header(checkout, "#SBATCH --nodes=1\nmodule purge\nmodule load cuda/99\nexport REACHED=1\n")
    job = Submitted(cluster, checkout.execute("mine", SCRIPT, more=cluster.environment))
    wait("its end", lambda: job.show("JobState") == "FAILED")
    output = "job_scripts/headers/mine.slurm: `module load cuda/99` ended with status 127; correct that line, or add ||"
    assert output in job.log.read_text() and "there is no `module` on" in job.log.read_text()
    (attempt,) = attempts(job.run)
    assert attempt["cause"].startswith(f"refused: {output}") and attempt["job"] == job.id
    assert not (job.run / "received.json").exists() and job.show("Restarts") == "0"
    assert Run(job.run).state == "failed"


def test_the_header_for_apptainer(cluster: Cluster, checkout: Checkout) -> None:
    """With a stand-in for apptainer: each Python of the job is called by way of it, in the script and on both nodes."""
    header(checkout, "#SBATCH --nodes=2\n" + commands_of_reference("reference_apptainer"))
    calls = checkout.root.parent / "calls"
    checkout.program("apptainer", f'echo "$APPTAINER_BIND $*" >> {calls}; [[ $3 == /an.sif ]] && shift 3 && exec "$@"')
    more = cluster.environment | {"EBT_IMAGE": "/an.sif"}
    job = Submitted(cluster, checkout.execute("mine", SCRIPT, "--run_name", "a b", more=more))
    job.wait_for_state("COMPLETED")
    assert len(list(job.run.glob("process-*"))) == 2 and checkout.received()["argv"][-4:-2] == ["--run_name", "a b"]
    bound = f"{job.run}/code,{checkout.logs}"
    lines = calls.read_text().splitlines()
    assert lines[0] == f"{bound} exec --nv /an.sif python -m launch begin {job.run}"
    assert len(lines) == 3 and all(" exec --nv /an.sif python train_model.py" in line for line in lines[1:])


def test_the_header_for_pyxis(cluster: Cluster, checkout: Checkout) -> None:
    """With a stand-in for a srun that has pyxis' options, in front of the real one."""
    header(checkout, "#SBATCH --nodes=2\n" + commands_of_reference("reference_pyxis"))
    calls = checkout.root.parent / "calls"
    taken = 'rest=(); for word in "$@"; do [[ $word == --container-* ]] || rest+=("$word"); done'
    checkout.program("srun", f'echo "$*" > {calls}; {taken}; exec /usr/bin/srun "${{rest[@]}}"')
    more = cluster.environment | {"EBT_IMAGE": "nvcr.io#nvidia/pytorch"}
    job = Submitted(cluster, checkout.execute("mine", SCRIPT, more=more))
    job.wait_for_state("COMPLETED")
    assert len(list(job.run.glob("process-*"))) == 2
    code = f"{job.run}/code"
    mounts = f"--container-mounts={code}:{code},{checkout.logs}:{checkout.logs}"
    output = calls.read_text()
    assert f"--container-image=nvcr.io#nvidia/pytorch {mounts} --container-workdir={code} bash {SCRIPT}" in output


def test_threads_follow_the_task_where_the_node_does_not_bind(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    bound = "import os; print(len(os.sched_getaffinity(0)))"
    assert int(cluster.run("srun", "-c1", sys.executable, "-c", bound)) > 1, "a task of one CPU may use all cores"
    assert cluster.run("srun", "-c1", sys.executable, "-c", THREADS) == "1\n"


def test_the_doctor_lets_two_nodes_compute_together(
    cluster: Cluster, checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    header(checkout, "#SBATCH --nodes=2\n#SBATCH --cpus-per-task=1\n")
    words = [sys.executable, "-m", "launch", "doctor", "--header", "mine", "--logs_dir", str(checkout.logs)]
    own = checkout.environment(cluster.environment)
    own.pop("OMP_NUM_THREADS")
    output = subprocess.run(words, cwd=checkout.root, env=own, capture_output=True, text=True).stdout
    assert re.search(r"ok +network .*; 2 processes on 2 nodes added numbers over Gloo in \d", output), output
    assert "ok    CPUs            1 asked for, not bound (to " in output and "of the node), 1 used by each" in output
    assert "processes meet at a free one, which the first of them chooses" in output

    header(checkout, "#SBATCH --nodes=2\nmodule load nothing\n")
    output = subprocess.run(words, cwd=checkout.root, env=own, capture_output=True, text=True).stdout
    text = " ".join(output.split())
    assert "fails job its processes did not start (job_scripts/headers/mine.slurm: `module load nothing` ended" in text
