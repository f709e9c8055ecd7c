"""Sweeps and submitit on a real cluster: arrays whose tasks are runs of their own, and signals with one owner."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch import sweep
from launch.script import Header
from launch.slurm import largest_array
from launch.sweep import submit_arrays
from runs.run import Run
from tests.conftest import ROOT
from tests.launch.launcher import MEASURING_TRAIN_MODEL, STUDY, Launcher, wait
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import NASTY, TINY, attempts, environment, losses

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def quiet(cluster: Cluster) -> None:
    """Each test begins with an empty cluster."""
    cluster.stop_jobs()


def test_a_run_of_submitit_is_preempted_and_goes_on_bit_for_bit(cluster: Cluster, corpus: Path, tmp_path: Path) -> None:
    """Two runs of the same flags; one of them is interrupted."""
    flags = [*TINY, "--model_name", "baseline_transformer", "--dataset_dir", str(corpus)]
    command = [sys.executable, "-m", "launch", "submit", *flags, "--logs_dir", str(tmp_path / "logs")]
    runs, jobs = [], []
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, env=environment(cluster), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        jobs += re.findall(r"^job id  (\d+)$", done.stdout, re.MULTILINE)
        runs += [Path(path).parent for path in re.findall(r"^log     (.+)$", done.stdout, re.MULTILINE)]
    wait("its steps", lambda: (runs[0] / "metrics.jsonl").exists() and len(losses(runs[0])) > 20)
    (node,) = re.findall(r"BatchHost=(\S+)", cluster.run("scontrol", "show", "job", jobs[0]))
    cluster.run("sbatch", "--partition=urgent", f"--nodelist={node}", "-c2", "--output=/dev/null", "--wrap", "true")
    wait("their ends", lambda: all(Run(run).state == "finished" for run in runs))
    interrupted, whole = runs
    assert [row["cause"].split(":")[0] for row in attempts(whole)] == ["finished"]
    assert len(attempts(interrupted)) == 2 and attempts(interrupted)[0]["cause"] == "preempted"
    assert [row["job"] for row in attempts(interrupted)] == [jobs[0], jobs[0]], "it is the same job"
    assert losses(interrupted) == losses(whole) and [step for step, _ in losses(whole)] == list(range(1, 301))
    assert len(list((tmp_path / "logs" / "runs").iterdir())) == 2
    log = (interrupted / f"slurm-{jobs[0]}.log").read_text()
    assert "is queued again" in log and "timed-out" not in log and "Bypassing signal" not in log


def test_a_sweep(cluster: Cluster, tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / NASTY)
    (launcher.root / "inference").mkdir()
    (launcher.root / "inference" / "__main__.py").write_text("import sys\nopen(sys.argv[3] + '/evaluated', 'w')\n")
    header = launcher.root / "job_scripts" / "headers" / "mine.slurm"
    header.write_text("#SBATCH --cpus-per-task=1\n#SBATCH --mem=100M\nexport FROM_HEADER='it is'\n")
    launcher.tell("waits", "seed-2")
    launcher.tell("fails", "seed-3")
    file = launcher.file("it's $(touch gone).yaml", "base: {no_wandb: true}\ngrid: {seed: [1, 2, 3]}\n")
    words = ("sweep", file, "--header", "mine")
    output = launcher.launch(*words, "--evaluate", more=cluster.environment)
    (array,) = re.findall(r"^array (\d+): 3 runs$", output, re.MULTILINE)
    assert "3 rows: 3 new; 3 to submit" in output and "the evaluation of each" in output
    names = [f"it's $(touch gone)-seed={seed}" for seed in (1, 2, 3)]
    wait("their starts", lambda: all(launcher.starts(name) for name in names))
    assert [launcher.starts(name)[0]["array_task"] for name in names] == ["0", "1", "2"]
    wait("the end of two", lambda: [launcher.run_named(names[n]).state for n in (0, 2)] == ["finished", "failed"])
    output = launcher.launch(*words, "--dry_run", more=cluster.environment)
    assert re.search(r"3 rows: 1 done, 1 \w+, 1 again; 1 to submit", output), "what runs is left alone"

    cluster.run("scancel", "--signal=USR1", f"{array}_1")
    wait("the one that was interrupted", lambda: launcher.run_named(names[1]).state == "finished")
    assert [len(launcher.starts(name)) for name in names] == [1, 2, 1], "requeueing one leaves the others alone"
    run = launcher.run_named(names[1]).path
    assert (run / f"slurm-{array}_1.log").read_text().count("is queued again") == 1
    assert json.loads((run / "job.json").read_bytes())["array_task"] == "1"
    wait("the evaluations", lambda: (run / "evaluated").exists() and not cluster.run("squeue", "-h").strip())
    assert (launcher.run_named(names[0]).path / "evaluated").exists()
    assert not any((other.path / "evaluated").exists() for other in launcher.runs() if other.name == names[2])

    (launcher.logs / "fails").unlink()
    failed = launcher.run_named(names[2])
    assert "3 rows: 2 done, 1 again; 1 to submit" in launcher.launch(
        *words, "--max_parallel", "1", more=cluster.environment
    )
    wait("the one that failed", lambda: launcher.run_named(names[2]).state == "finished")
    assert launcher.run_named(names[2]).parent == failed.run_id
    assert "nothing to submit" in launcher.launch(*words, more=cluster.environment)
    assert not list(tmp_path.rglob("gone"))


def test_a_row_whose_job_is_lost_goes_on_in_its_folder(cluster: Cluster, tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "launcher")
    launcher.tell("waits", "one")
    file = launcher.file("one.csv", "seed,no_wandb\n1,true\n")
    launcher.launch("sweep", file, more=cluster.environment)
    wait("its start", lambda: bool(launcher.starts("one")))
    cluster.run("scancel", "--full", "--user=root")
    cluster.wait_until_idle()
    assert re.search(r"resumes: (cancelled|interrupted)", launcher.launch("sweep", file, more=cluster.environment))
    wait("its end", lambda: launcher.runs()[0].state == "finished")
    assert len(launcher.runs()) == 1 and [row["first_step"] for row in launcher.starts("one")] == [0, 1]


def test_a_study_goes_on_by_itself(cluster: Cluster, tmp_path: Path) -> None:
    """A job that depends on the rows of tuning submits those that confirm, another one writes the table."""
    launcher = Launcher(tmp_path / NASTY)
    (launcher.root / "train_model.py").write_text(MEASURING_TRAIN_MODEL)
    header = launcher.root / "job_scripts" / "headers" / "mine.slurm"
    header.write_text("#SBATCH --cpus-per-task=1\n#SBATCH --mem=100M\nexport FROM_HEADER='it is'\n")
    launcher.tell("waits", "mine-ours-peak-learning-rate-3e-3")
    file = launcher.file("mine.yaml", f"header: mine\n{STUDY.replace('max_steps: 10', 'dataset_dir: texts')}")
    output = launcher.launch("sweep", file, more=cluster.environment)
    assert "4 rows: 4 new; 4 to submit" in output and re.search(r"^array \d+: 4 runs$", output, re.MULTILINE)
    (job,) = re.findall(r"^next    job (\d+) goes on when these rows have ended", output, re.MULTILINE)
    name = "mine-ours-peak_learning_rate=3e-3"
    wait("its start", lambda: bool(launcher.starts(name)))
    wait("the others", lambda: sum(run.state == "finished" for run in launcher.runs()) == 3)
    output = launcher.launch("sweep", file, more=cluster.environment)
    assert f"next    job {job} goes on when these rows have ended" in output, "one is enough"
    (launcher.root / "launch" / "study.py").write_text("raise SystemExit('the checkout was changed')\n")
    array = launcher.run_named(name).job_name
    assert array is not None
    cluster.run("scancel", "--signal=USR1", array)  # interrupted and queued again, which is no end
    folder = launcher.logs / "sweeps" / "mine"

    def logs() -> str:
        return "\n".join(log.read_text() for log in folder.glob("next-*.log"))

    wait("the table", lambda: "table   " in logs())
    assert "ours is better, the intervals are apart." in logs(), "its log has the table"
    record = json.loads((folder / "study.json").read_bytes())
    assert record["stage"] == "done" and len(record["runs"]) == 10 and len(launcher.runs()) == 10
    assert {run.settings["dataset_dir"] for run in launcher.runs()} == {str(launcher.root / "texts")}
    codes = {(run.path / "code").resolve() for run in launcher.runs()}
    assert len(codes) == 1, "both stages ran the code that was there when the study was submitted"
    assert len(launcher.starts(name)) == 2 and not list(tmp_path.rglob("gone"))
    cluster.wait_until_idle()


def test_a_study_whose_row_failed_waits_for_a_person(cluster: Cluster, tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "launcher")
    (launcher.root / "train_model.py").write_text(MEASURING_TRAIN_MODEL)
    launcher.tell("fails", "mine-ours-peak-learning-rate-3e-3")
    file = launcher.file("mine.yaml", STUDY)
    words = ("sweep", file, "--slurm", "cpus_per_task=1", "--slurm", "mem=100M")
    launcher.launch(*words, more=cluster.environment)
    folder = launcher.logs / "sweeps" / "mine"
    wait("its end", lambda: any("did not come to the end" in log.read_text() for log in folder.glob("next-*.log")))
    assert len(launcher.runs()) == 4, "nothing is run again by itself"
    (launcher.logs / "fails").unlink()
    cluster.wait_until_idle()
    output = launcher.launch(*words, more=cluster.environment)
    assert "4 rows: 3 done, 1 again; 1 to submit" in output
    wait("the table", (folder / "table.csv").exists)
    assert len(launcher.runs()) == 11
    cluster.wait_until_idle()


def test_arrays_are_cut_to_the_limit(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    assert largest_array() == 2001
    runs = []
    for number in range(5):
        runs.append(tmp_path / "runs" / str(number))
        (runs[-1] / "code").mkdir(parents=True)
        (runs[-1] / "job_script.slurm").write_text('date +%s.%N > "$(dirname "$0")/began"; sleep 1\n')
        (runs[-1] / "submission.json").write_text('{"state": "submitting"}')
    monkeypatch.setattr(sweep, "largest_array", lambda: 2)
    (tmp_path / "launcher").mkdir()
    header = Header("mine", ["#SBATCH --cpus-per-task=1", "#SBATCH --mem=100M"], [])
    output = list(submit_arrays(runs, header, tmp_path / "launcher", 1, False))
    numbers = [line.split()[1].rstrip(":") for line in output]
    assert [line.split(": ")[1] for line in output] == ["2 runs", "2 runs", "1 run"]
    assert [Run(run).job_name for run in runs] == [f"{numbers[n // 2]}_{n % 2}" for n in range(5)]
    assert all(Run(run).submission["state"] == "released" for run in runs)
    wait("all of them", lambda: all((run / "began").exists() for run in runs))
    began = [float((run / "began").read_text()) for run in runs]
    assert all(later - earlier > 0.9 for earlier, later in itertools.pairwise(began)), "one at a time"


def test_slurm_says_no_to_an_array(cluster: Cluster, tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "launcher")
    (launcher.root / "job_scripts" / "headers" / "mine.slurm").write_text("#SBATCH --partition=nosuch\n")
    file = launcher.file("two.yaml", "base: {no_wandb: true}\ngrid: {seed: [1, 2]}\n")
    output = launcher.launch("sweep", file, "--header", "mine", status=2, more=cluster.environment)
    assert re.search(r"^sbatch refused the job \(.+\): correct the header", output, re.MULTILINE), output
    assert not launcher.logs.exists() and not cluster.run("squeue", "-h").strip()
    (launcher.root / "job_scripts" / "headers" / "mine.slurm").write_text("")
    output = launcher.launch("sweep", file, "--header", "mine", more=cluster.environment)
    assert "2 rows: 2 new; 2 to submit" in output and "start   now, on n" in output
    wait("them", lambda: [run.state for run in launcher.runs()] == ["finished"] * 2)
    assert "error" not in launcher.runs()[0].submission and os.path.samefile(
        launcher.runs()[0].path / "code", launcher.runs()[1].path / "code"
    )


def test_runs_after_another(cluster: Cluster, tmp_path: Path) -> None:
    """The first is interrupted and queued again in between, which is no end."""
    launcher = Launcher(tmp_path / "a launcher")
    launcher.tell("waits", "first")

    def submit(name: str, *words: str) -> str:
        output = launcher.launch(
            "submit", "--run_name", name, "--slurm", "cpus_per_task=1", *words, more=cluster.environment
        )
        return re.findall(r"^job id  (\d+)$", output, re.MULTILINE)[0]

    def state(job: str) -> str:
        return cluster.run("squeue", "-h", "--states=all", f"--jobs={job}", "-o", "%T %r").strip()

    first = submit("first")
    second = submit("second", "--after", "first")
    third = submit("third", "--after", first, "--if", "failed")
    fourth = submit("fourth", "--after", "second", "--if", "any")
    wait("its start", lambda: bool(launcher.starts("first")))
    waiting = (second, third, fourth)
    wait("Slurm's word", lambda: [state(job) for job in waiting] == ["PENDING Dependency"] * 3)
    cluster.run("scancel", "--signal=USR1", first)
    wait("the chain", lambda: [launcher.run_named(name).state for name in ("second", "fourth")] == ["finished"] * 2)
    start_times = [launcher.starts(name)[-1]["start"] for name in ("first", "second", "fourth")]
    assert len(launcher.starts("first")) == 2 and start_times == sorted(start_times)
    wait("the one that was left out", lambda: state(third).startswith("CANCELLED"))
    assert not launcher.starts("third") and launcher.run_named("third").submission["after"]["if"] == "failed"
    output = launcher.launch("requeue", "third", status=1, more=cluster.environment)
    assert "is finished, and will not be failed any more; choose --if finished or any." in output
    late = launcher.launch("submit", "--after", "first", "--run_name", "late", more=cluster.environment)
    assert "start   now, on n" in late
