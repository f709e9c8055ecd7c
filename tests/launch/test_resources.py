"""--slurm NAME=VALUE, and whether the processes of a job fit its GPUs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from config.settings import Trainer
from core.errors import UserError
from launch.resources import check_placement, read_resources, requested_options
from launch.script import merge_options, option_line
from tests.launch.checkout import SCRIPT
from tests.launch.launcher import Launcher


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("nodez=2", "--slurm is 'nodez=2': sbatch has no --nodez; did you mean nodes?"),
        ("N=2", "--slurm is 'N=2': sbatch has no --N; did you mean nodes?"),
        ("walltime=1", "--slurm is 'walltime=1': sbatch has no --walltime; did you mean time?"),
        ("xyzzy=1", "--slurm is 'xyzzy=1': sbatch has no --xyzzy; sbatch --help lists all."),
        ("nodes", "--slurm is 'nodes': nodes has no value; write --slurm nodes=VALUE."),
        ("exclusive=", "--slurm is 'exclusive=': exclusive has no value; write --slurm exclusive=VALUE."),
        ("requeue=1", "--slurm is 'requeue=1': requeue has no value; write --slurm requeue."),
        ("job_name=a", "--slurm is 'job_name=a': a job has the name of its run; give --run_name; leave it out."),
        ("comment=a\nb", "a value in a script for Slurm has no \\ and no newlines."),
    ],
)
def test_names_and_values_are_judged(word: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        read_resources(["time=1", word])
    assert sentence in str(error.value)


def test_the_last_of_a_name_counts_in_every_spelling() -> None:
    words = ["--gpus_per_node=2", "time=1", "gpus-per-node=4", "exclusive"]
    assert read_resources(words) == ["gpus-per-node=4", "time=1", "exclusive"]


def test_they_win_over_what_says_the_same_in_another_way() -> None:
    header = ["#SBATCH --mem=4G", "#SBATCH --gres=gpu:4", "#SBATCH --gres=nvme:1", "#SBATCH --time=1"]
    own = [option_line(word) for word in ("mem-per-cpu=2G", "gpus-per-node=2", 'comment=it is "so"')]
    assert merge_options([("# one:", header), ("# two:", own)]) == [
        *("# one:", "#SBATCH --gres=nvme:1", "#SBATCH --time=1", "# two:", "#SBATCH --mem-per-cpu=2G"),
        *("#SBATCH --gpus-per-node=2", '#SBATCH --comment="it is \\"so\\""'),
    ]
    assert len(merge_options([("", ["#SBATCH --gres=gpu:4", "#SBATCH --gpus-per-task=1"])])) == 2, (
        "one and the same header"
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--nodes=2 --ntasks-per-node=4 --gres=gpu:a100:4", ""),
        ("-N2 -n 8 --ntasks-per-node=4 --gpus-per-node=4", ""),
        ("-n2 --ntasks-per-node=1", ""),
        ("-n1", ""),
        ("--nodes=1-4 -n7 --gres=gpu:4", ""),
        ("--gres=gpu", ""),
        ("--gres=nvme:4", ""),
        ("--gpus-per-task=1", ""),
        ("--nodes=2 --gpus=2", ""),
        ("--gpus-per-task=1 --ntasks-per-node=4", ""),
        ("-N2 -n4", ""),
        ("-N2 -n2 --ntasks-per-node=4", ""),
        ("-N2 -n8 --gres=gpu:4", ""),
        (
            "-n4",
            "--ntasks is 4, and Slurm would choose how many of them are on each node, which has to be the same num",
        ),
        ("-N2 -n1", "--ntasks is 1 and --nodes is 2: nodes need the same number of processes each; write --nodes=2"),
        ("-N 2 --ntasks 3", "--ntasks is 3 and --nodes is 2: nodes need the same number of processes each; write"),
        ("-n3 --ntasks-per-node=2", "--ntasks is 3 and --ntasks-per-node is 2: nodes need the same number of proc"),
        (
            "-N2 -n4 --ntasks-per-node=1",
            "--ntasks is 4, and --nodes=2 with --ntasks-per-node=1 have room for 2: write --nodes=2 and "
            "--ntasks-per-node=2, and leave --ntasks out.",
        ),
        (
            "--gres=gpu:a100:4,nvme:1",
            "it asks for 4 GPUs and 1 process on each node, and each trains on one GPU: write "
            "--ntasks-per-node=4, or say --allow_idle_gpus.",
        ),
        ("--gpus-per-node=a:1,b:1", "it asks for 2 GPUs and 1 process on each node"),
        ("-N2 -n2 --ntasks-per-node=4 --gres=gpu:4", "it asks for 4 GPUs and 1 process on each node"),
        ("--gpus-per-task=2", "it asks for 2 GPUs and 1 process on each node"),
        ("--nodes=2 --gpus=8 --ntasks-per-node=8", "it asks for 4 GPUs and 8 processes on each node, and each trains"),
        ("--nodes=2 --gpus=3", "--gpus is 3 and --nodes is 2: nodes need the same number of GPUs each; write --gpus-"),
    ],
)
def test_processes_and_gpus_that_do_not_fit(options: str, sentence: str) -> None:
    lines = [f"#SBATCH {options} # remark"]
    if not sentence:
        check_placement(lines, Trainer())
        return
    with pytest.raises(UserError) as error:
        check_placement(lines, Trainer())
    assert sentence in str(error.value)
    if "GPUs and 1 process" in sentence:
        check_placement(lines, Trainer(allow_idle_gpus=True))
    if "GPU" in sentence:
        check_placement(lines, Trainer(gpus="none"))
    if sentence.startswith("it asks for 2 GPUs and 1 process"):
        check_placement(lines, Trainer(gpus="2"))  # the one process has them both


def test_the_lines_are_read_as_sbatch_reads_them() -> None:
    lines = ["#SBATCH -N 1 --mem 4G", "#SBATCH --nodes=2 --exclusive --comment='-N 5'", "#SBATCH -n4", "#SBATCH '"]
    assert requested_options(lines) == {"nodes": "2", "mem": "4G", "exclusive": "", "comment": "-N 5", "ntasks": "4"}


@pytest.fixture
def slurm(tmp_path: Path) -> Launcher:
    """A Slurm that accepts everything and records the calls of sbatch."""
    launcher = Launcher(tmp_path / "launcher")
    launcher.program("sbatch", f'echo "$@" >> {shlex.quote(str(launcher.programs))}/calls; echo Submitted batch job 7')
    launcher.program("squeue", "")
    launcher.program("scontrol", "true")
    return launcher


def test_every_door_takes_them_and_resubmit_keeps_them(slurm: Launcher) -> None:
    own = ["--slurm", "nodes=2", "--slurm=time=3:00"]
    slurm.program("sbatch", f'echo "$@" >> {shlex.quote(str(slurm.programs))}/calls; echo 7')
    slurm.execute("local_cpu", SCRIPT, *own, "--run_name", "one")
    first = slurm.run_named("one")
    script = (first.path / "job_script.slurm").read_text()
    assert "# asked for with --slurm:\n#SBATCH --nodes=2\n#SBATCH --time=3:00\n" in script
    assert "--nodes=1" not in script and "--time=02" not in script
    assert first.submission["slurm"] == ["nodes=2", "time=3:00"] and first.submission["header"] == "local_cpu"
    calls = (slurm.programs / "calls").read_text().splitlines()
    assert calls[0] == "--test-only --nodes=2 --time=3:00", "they win over SBATCH_* of the environment, too"
    assert calls[1].startswith("--hold --parsable --nodes=2 --time=3:00 ")
    assert "resumes from step 0" in slurm.launch("requeue", "one")
    assert (slurm.programs / "calls").read_text().splitlines()[2:] == calls
    slurm.launch("resubmit", "one", "--slurm", "time=4:00", "--set", "run_name=two")
    second = slurm.run_named("two")
    assert second.submission["slurm"] == ["nodes=2", "time=4:00"]
    assert "--time=4:00\n" in (second.path / "job_script.slurm").read_text()


def test_submit_and_sweep(slurm: Launcher) -> None:
    slurm.launch("submit", "--slurm", "mem_per_cpu=2G", "--header", "local_cpu", "--run_name", "one")
    run = slurm.run_named("one")
    script = (run.path / "job_script.slurm").read_text()
    assert "#SBATCH --mem-per-cpu=2G\n" in script and "--mem=" not in script and run.submission["slurm"]
    assert "--hold --mem-per-cpu=2G " in (slurm.programs / "calls").read_text()
    slurm.program("sbatch", f'echo "$@" >> {shlex.quote(str(slurm.programs))}/calls; echo 7')
    file = slurm.file("two.yaml", "base: {no_wandb: true}\ngrid: {seed: [1, 2]}\n")
    slurm.launch("sweep", file, "--slurm", "partition=fast")
    (array,) = slurm.logs.glob("sweeps/*/array0/array.slurm")
    assert "#SBATCH --partition=fast\n" in array.read_text()
    assert "--hold --parsable --partition=fast --array=0-1 " in (slurm.programs / "calls").read_text()
    sweep = slurm.run_named("two-seed=2")
    assert sweep.submission["slurm"] == ["partition=fast"]
    assert "--partition=fast" in (sweep.path / "job_script.slurm").read_text()
    output = slurm.launch("sweep", file, "--slurm", "gres=gpu:2", "--logs_dir", "else", status=2)
    assert "it asks for 2 GPUs and 1 process on each node" in output and not (slurm.root / "else").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["submit", "--cluster", "local"],
            "--slurm is 'nodes=2': it has no effect with --cluster local; remove one of",
        ),
        (["queue"], "--slurm has no effect on the queue of this machine: python -m launch sweep FILE --slurm"),
        (["execute", SCRIPT], "--slurm has no effect without a HEADER, as the script runs here and now: remove one"),
        (["execute", "local_cpu", SCRIPT, "--slurm", "nodez=1"], "sbatch has no --nodez; did you mean nodes?"),
        (
            ["execute", "local_cpu", SCRIPT, "--slurm", "ntasks=3"],
            "--ntasks is 3 and --nodes is 2: nodes need the same",
        ),
    ],
)
def test_where_they_are_of_no_use(slurm: Launcher, words: list[str], sentence: str) -> None:
    output = slurm.launch(*words, "--slurm", "nodes=2", status=2)
    assert sentence in output
    assert not slurm.logs.exists()


def test_a_snapshot_that_does_not_know_them(slurm: Launcher) -> None:
    slurm.program("sbatch", "echo 7")
    slurm.execute("local_cpu", SCRIPT, "--run_name", "old")
    run = slurm.run_named("old").path
    (run / "code" / "launch" / "resources.py").unlink()
    (run / "submission.json").write_text(json.dumps({"header": "local_cpu", "script": SCRIPT, "flags": []}))
    output = slurm.launch("resubmit", "old", "--slurm", "nodes=2", status=2)
    assert f"--slurm is not known to the code that {run.name} keeps: give --header instead." in output
