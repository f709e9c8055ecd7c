"""slurm_executor.sh on a real cluster: the job runs the code as it was, is on record, and goes on when interrupted."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from launch.resources import KINDS, RESERVED
from launch.script import job_script, read_header
from tests.conftest import ROOT
from tests.launch.checkout import SCRIPT, WORDS, Checkout
from tests.slurm.cluster import NODES, Cluster
from tests.slurm.jobs import NASTY, TINY, Submitted, attempts, losses, wait

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(600)]

# Saves its state when it is told to, and is done in the second attempt.
STOPPABLE = """\
import os, signal, sys, time
run = os.environ["EBT_JOB_RUN_DIR"]
for name in ("SIGUSR1", "SIGTERM"):
    signal.signal(getattr(signal, name), lambda *_: sys.exit(75))
with open(f"{run}/starts", "a") as file:
    file.write(os.environ.get("SLURM_RESTART_COUNT", "0") + "\\n")
count = len(open(f"{run}/starts").readlines())
open(f"{run}/checkpoints/step_{count:08}.ckpt", "w")
time.sleep(120 if count == 1 else 0)
"""


@pytest.fixture(autouse=True)
def quiet(cluster: Cluster) -> None:
    """Each test begins with an empty cluster."""
    cluster.stop_jobs()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / NASTY)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_the_job_runs_the_code_as_it_was_and_the_words_as_they_were(cluster: Cluster, checkout: Checkout) -> None:
    later = checkout.root / "job_scripts" / "headers" / "later.slurm"
    later.write_text("#SBATCH --begin=now+3\n#SBATCH --nodes=2\nexport FROM_HEADER='it is'\n")
    words = ["--run_name", f"{NASTY} #SBATCH --partition=urgent", "--dataset_dir", NASTY]
    job = Submitted(cluster, checkout.execute("later", SCRIPT, *words, more=cluster.environment))
    for file in ("train_model.py", SCRIPT, "job_scripts/under_slurm.sh", "launch/__main__.py", "slurm_executor.sh"):
        (checkout.root / file).write_text("exit 1\n")
    assert job.show("JobState") == "PENDING"
    job.wait_for_state("COMPLETED")
    received = checkout.received()
    assert received["code"].startswith(str(job.run / "code")) and received["env"]["FROM_HEADER"] == "it is"
    resolved = ["--dataset_dir", str(checkout.root / NASTY), "--logs_dir", str(checkout.logs)]
    assert received["argv"][-8:] == [*words, *resolved]
    first, second = [file.read_text() for file in job.run.glob("process-*")]
    assert first == second and first.isdigit(), "one process on each node, with one and the same random seed"
    assert job.show("Partition") == "main" and job.show("JobName") == job.run.name
    assert f"run folder  {job.run}" in job.log.read_text()
    record = json.loads((job.run / "job.json").read_bytes())
    assert record["job"] == job.id and record["cluster"] == "test" and record["starts"] == [0]
    assert not list(checkout.root.parent.rglob("gone"))


def test_an_interrupted_job_goes_on_and_a_cancelled_one_does_not(cluster: Cluster, checkout: Checkout) -> None:
    (checkout.root / "train_model.py").write_text(STOPPABLE)
    output = checkout.execute("local_cpu", SCRIPT, more=cluster.environment)
    job = Submitted(cluster, output)
    wait("its start", (job.run / "starts").exists)
    cluster.run("scancel", "--signal=USR1", job.id)
    job.wait_for_state("COMPLETED")
    assert (job.run / "starts").read_text() == "0\n1\n" and len(list((checkout.logs / "runs").iterdir())) == 1
    assert json.loads((job.run / "job.json").read_bytes())["starts"] == [0, 1]
    assert job.log.read_text().count(f"job {job.id} was interrupted and is queued again") == 1

    job = Submitted(cluster, checkout.execute("local_cpu", SCRIPT, more=cluster.environment))
    wait("its start", (job.run / "starts").exists)
    cluster.run("scancel", job.id)
    job.wait_for_state("CANCELLED")
    cluster.wait_until_idle()
    assert job.show("JobState") == "CANCELLED" and job.show("Restarts") == "0"
    assert "queued again" not in job.log.read_text()

    again = cluster.run("sbatch", "--parsable", str(job.run / "job_script.slurm")).strip()
    wait("the run of its script, submitted by hand", lambda: "status 0" in read(job.run / f"slurm-{again}.log"))
    assert (job.run / "starts").read_text() == "0\n0\n", "it goes on in its folder"
    record = json.loads((job.run / "job.json").read_bytes())
    assert record["job"] == again and record["starts"] == [1]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=WORDS, folder=st.text("ab %'\"$()`*é#;", min_size=1, max_size=20))
@example(words=["a\n#SBATCH --partition=urgent\n#SBATCH --nodes=2\n", "x" * 300], folder="a #SBATCH --nodes=2")
def test_slurm_reads_what_was_meant(cluster: Cluster, tmp_path: Path, words: list[str], folder: str) -> None:
    run = Path("/tmp") / folder / "run"
    made = tmp_path / "made.slurm"
    made.write_bytes(job_script(read_header(ROOT, "local_cpu"), SCRIPT, "text\n", words, run, []).encode())
    job = cluster.run("sbatch", "--hold", "--parsable", str(made)).strip()
    shown = cluster.run("scontrol", "show", "job", job)
    cluster.run("scancel", job)
    assert "Partition=main " in shown and "NumNodes=1-1 " in shown and "JobName=run\n" in shown
    assert "TimeLimit=02:00:00 " in shown and "Requeue=1 " in shown
    (output,) = re.findall(r"^   StdOut=(.*)$", shown, re.MULTILINE)
    assert "%" in folder or output == f"{run}/slurm-{job}.log"


def test_a_real_run_is_preempted_and_goes_on(cluster: Cluster, corpus: Path, tmp_path: Path) -> None:
    flags = [*TINY, "--dataset_dir", str(corpus), "--logs_dir", str(tmp_path / "logs")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
    environment |= {"VIRTUAL_ENV": sys.prefix, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", "slurm_executor.sh", "local_cpu", "job_scripts/nlp/pretrain/baseline_transformer.sh", *flags]
    done = subprocess.run(command, cwd=ROOT, env=environment | cluster.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    job = Submitted(cluster, done.stdout)
    wait(f"its steps: {job.log}", lambda: (job.run / "metrics.jsonl").exists() and len(losses(job.run)) > 20)
    node = job.show("BatchHost")
    cluster.run("sbatch", "--partition=urgent", f"--nodelist={node}", "-c2", "--output=/dev/null", "--wrap", "true")
    job.wait_for_state("COMPLETED")
    assert [row["cause"] for row in attempts(job.run)] == ["preempted", "finished"]
    assert [step for step, _ in losses(job.run)] == list(range(1, 301)), "no step is lost or done twice"
    assert len(list((tmp_path / "logs" / "runs").iterdir())) == 1


def test_submitted_from_inside_a_job(cluster: Cluster, checkout: Checkout) -> None:
    executor = shlex.join(["bash", str(checkout.root / "slurm_executor.sh"), "local_cpu", SCRIPT])
    outer, environment = checkout.root.parent / "outer.log", checkout.environment(cluster.environment)
    # local_cpu asks for --mem: srun of the inner job would refuse to see both
    words = ["sbatch", "--wait", "-n2", "-N2", "--mem-per-cpu=100M", f"--output={outer}", "--wrap", executor]
    environment |= {"SLURM_TRES_PER_TASK": "cpu:7", "SLURM_GPUS": "2", "SLURM_CPUS_PER_TASK": "9"}
    assert subprocess.run(words, env=environment, capture_output=True).returncode == 0, outer.read_text()
    job = Submitted(cluster, outer.read_text())
    job.wait_for_state("COMPLETED")
    received = checkout.received()["env"]
    assert received["SLURM_JOB_ID"] == job.id and received["SLURM_NTASKS"] == "1"


def test_train_slurm_from_another_folder(cluster: Cluster, checkout: Checkout, tmp_path: Path) -> None:
    script, elsewhere = checkout.root / "job_scripts" / "train.slurm", tmp_path / "else where"
    elsewhere.mkdir()
    (elsewhere / "train.slurm").write_text(script.read_text())
    for path, words in ((script, ["--dataset_dir", "a /train.slurm b"]), (elsewhere / "train.slurm", [])):
        command = ["sbatch", "--wait", "--output=out", str(path), *words]
        done = subprocess.run(command, cwd=elsewhere, env=checkout.environment(cluster.environment))
        assert done.returncode == (0 if words else 2), (elsewhere / "out").read_text()
    sentence = f"train.slurm: there is no code beside it or in {elsewhere}: call sbatch from the repo's root.\n"
    assert (elsewhere / "out").read_text().endswith(sentence)
    assert checkout.received()["code"] == str(checkout.root / "train_model.py")
    assert checkout.received()["argv"] == ["--dataset_dir", "a /train.slurm b"]


def test_one_off_resources(cluster: Cluster, checkout: Checkout) -> None:
    """Above the header, and above what the environment would put above the script's own lines."""
    (checkout.root / "job_scripts" / "headers" / "mine.slurm").write_text("#SBATCH --mem=100M\n#SBATCH --time=9\n")
    own = {"nodes": "2", "time": "7", "comment": """it's "a" #x""", "mem_per_cpu": "50M"}
    words = [word for name, value in own.items() for word in ("--slurm", f"{name}={value}")]
    output = checkout.execute("mine", SCRIPT, *words, more=cluster.environment | {"SBATCH_TIMELIMIT": "8"})
    assert "start   now, on n[1-2]\n" in output
    job = Submitted(cluster, output)
    job.wait_for_state("COMPLETED")
    assert job.show("TimeLimit") == "00:07:00" and job.show("MinMemoryCPU") == "50M"
    assert f"   Comment={own['comment']} \n" in cluster.run("scontrol", "show", "job", job.id)
    received = checkout.received()["env"]
    assert received["SLURM_NTASKS"] == received["SLURM_NNODES"] == "2"
    again = cluster.run("sbatch", "--hold", "--parsable", str(job.run / "job_script.slurm")).strip()
    shown = cluster.run("scontrol", "show", "job", again)
    assert f"   Comment={own['comment']} \n" in shown and "TimeLimit=00:07:00" in shown, "the script says the same"


def test_every_option_of_sbatch_is_known(cluster: Cluster) -> None:
    names = set(re.findall(r"^ +(?:-\w, +|-\w  )?--([\w-]+)", cluster.run("sbatch", "--help"), re.MULTILINE))
    assert (
        len(names) > 60 and names - {"help", "usage", "version", "quiet", "verbose"} <= KINDS.keys() | RESERVED.keys()
    )


NEVER = {  # what no node, partition or Slurm of this cluster has -> what is said of it
    "--mem=900G": r"sbatch refused the job \(Memory specification can not be satisfied; Requested node configuration",
    "--partition=nosuch": r"sbatch refused the job \(invalid partition specified: nosuch; Invalid partition name",
    "--nodes=5": r"Slurm would never start the job \(PartitionConfig\): it asks for more nodes, time or memory than",
    "--gres=gpu:2": r"sbatch refused the job \(Invalid generic resource",
}


@pytest.mark.parametrize("option", NEVER)
def test_what_can_never_start_is_not_submitted(cluster: Cluster, checkout: Checkout, option: str) -> None:
    """Slurm takes `--hold --mem=900G`, and it waits for ever."""
    mine = checkout.root / "job_scripts" / "headers" / "mine.slurm"
    mine.write_text(f"#SBATCH {option}\n#SBATCH --ntasks-per-node={2 if 'gpu' in option else 1}\n")
    output = checkout.execute("mine", SCRIPT, status=2, more=cluster.environment)
    assert re.match(NEVER[option], output) and len(output.splitlines()) == 1, output
    assert not checkout.logs.exists() and not cluster.run("squeue", "-h").strip()


def test_what_waits_for_a_node_is_submitted(cluster: Cluster, checkout: Checkout) -> None:
    """`sbatch --test-only` says no to it, too: it looks at the nodes that are up."""
    for node in NODES:
        cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    try:
        with pytest.raises(RuntimeError, match="Requested node configuration is not available"):
            cluster.run("sbatch", "--test-only", "--wrap", "true")
        job = Submitted(cluster, checkout.execute("local_cpu", SCRIPT, more=cluster.environment))
        assert job.show("JobState") == "PENDING"
        assert cluster.run("squeue", "-h", "-o", "%i").split() == [job.id], "what was tried is gone"
    finally:
        for node in NODES:
            cluster.run("scontrol", "update", f"nodename={node}", "state=resume")
    job.wait_for_state("COMPLETED")


def test_a_controller_that_is_down(cluster: Cluster, checkout: Checkout, tmp_path: Path) -> None:
    elsewhere = tmp_path / "slurm.conf"  # at a port where nobody listens
    elsewhere.write_text(re.sub(r"SlurmctldPort=\d+", "SlurmctldPort=1", cluster.configuration.read_text()))
    output = checkout.execute("local_cpu", SCRIPT, status=2, more={"SLURM_CONF": str(elsewhere)})
    assert (
        "sbatch cannot reach Slurm (Unable to contact slurm controller (connect failure)): its controller is" in output
    )
    assert not checkout.logs.exists()
