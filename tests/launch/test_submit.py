"""`python -m launch submit`: the same record as with every other command, and submitit with no say in signals."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from core.errors import UserError
from launch.slurm import choose_cluster, largest_array
from launch.submit import logs_flag
from tests.conftest import ROOT
from tests.launch.checkout import RECORD
from tests.launch.launcher import Launcher, wait

SCRIPT = "job_scripts/nlp/pretrain/ebt_s1.sh"


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(tmp_path / "it's a launcher")


def test_in_the_background_of_this_machine(launcher: Launcher) -> None:
    more = {"CUDA_VISIBLE_DEVICES": "1,3", "SLURM_JOB_ID": "9", "EBT_JOB_RUN_DIR": "/elsewhere"}
    output = launcher.launch("submit", SCRIPT, "--cluster", "local", "--run_name", "$(touch gone) it's", more=more)
    run = launcher.run
    assert f"run id  {run.name}\nscript  {run / 'job_script.slurm'}\nprocess " in output
    assert f"follow  python -m launch logs {run.name} -f\n" in output
    assert {file.name for file in run.iterdir()} >= RECORD
    wait("its end", lambda: launcher.runs()[0].state == "finished")
    (start,) = launcher.starts("$(touch gone) it's")
    assert start["cuda"] == "1,3", "submitit would have hidden them"
    assert start["session"] != os.getsid(0), "the end of a terminal is not its end"
    assert start["code"].startswith(str(run / "code")) and "job" not in start
    assert launcher.submission()["state"] == "here" and str(launcher.submission()["process"]) in output
    assert (run / "command.txt").read_text().startswith("python -m launch submit job_scripts/")
    assert not list(launcher.root.rglob("gone"))


def test_without_gpus_chosen_all_are_seen(launcher: Launcher) -> None:
    launcher.launch("submit", "--cluster", "local", "--run_name", "all")
    wait("its end", lambda: launcher.runs()[0].state == "finished")
    assert launcher.starts("all")[0]["cuda"] is None


def test_it_does_not_hold_the_terminal_and_is_told_to_end_by_a_signal(launcher: Launcher) -> None:
    launcher.tell("waits", "long")
    command = [sys.executable, "-m", "launch", "submit", "--cluster", "local", "--run_name", "long"]
    piped = shlex.join(command) + " | cat"  # cat ends when nobody has the other end of the pipe any more
    subprocess.run(["bash", "-c", piped], cwd=launcher.root, env=launcher.environment(), timeout=60, check=True)
    wait("its start", lambda: bool(launcher.starts("long")))
    os.kill(launcher.submission()["process"], 15)
    wait("its end", lambda: launcher.runs()[0].state == "interrupted")


def test_here_and_now(launcher: Launcher) -> None:
    (launcher.root / "train_model.py").write_text("import os, sys\nprint('trains in', os.getcwd())\nsys.exit(7)\n")
    output = launcher.launch("submit", "--cluster", "debug", status=7)
    assert f"trains in {launcher.run / 'code'}" in output


def test_a_dry_run_makes_nothing(launcher: Launcher) -> None:
    output = launcher.launch("submit", "--cluster", "local", "--dry_run", "--seed", "3", "--logs_dir", "else where")
    assert "under_slurm bash job_scripts/train.slurm --seed 3 --logs_dir 'else where' --logs_dir " in output
    assert not launcher.logs.exists() and not (launcher.root / "else where").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--max_stepz", "3"], "--max_stepz is unknown: did you mean --max_steps?"),
        (["--cluster", "moon"], "argument --cluster: invalid choice: 'moon' (choose from"),
        (
            ["--header", "local_cpu"],
            "--header is 'local_cpu': it has no effect with --cluster local; remove one of them.",
        ),
        (["--logs_dir", "a%jb"], "submitit would read %j as the number of a job; choose another path, or submit with"),
        (["--resume_training_ckpt", "no.ckpt"], "--resume_training_ckpt is 'no.ckpt': there is no such file"),
    ],
)
def test_mistakes(launcher: Launcher, words: list[str], sentence: str) -> None:
    assert sentence in launcher.launch("submit", "--cluster", "local", *words, status=2)
    assert "JOB_SCRIPT is 'no.sh': there is no such file" in launcher.launch(
        "submit", "no.sh", "--cluster", "local", status=2
    )
    assert not launcher.logs.exists()


# -- Slurm, played by programs of the tests' own ---------------------------------------------------------------------


@pytest.fixture
def slurm(launcher: Launcher) -> Launcher:
    """A Slurm that accepts everything and records its calls."""
    folder = shlex.quote(str(launcher.programs))
    tested = "echo 'sbatch: Job 7 to start at 2020-01-01T00:00:00 using 1 processors on nodes n1 in partition main' >&2"
    note = f'echo "$@" >> {folder}/calls; [[ $1 != --test-only ]] || {{ {tested}; exit; }}'
    note += f'; cp "${{@: -1}}" {folder}/script'
    launcher.program("sbatch", f'{note}; [[ "$*" == *--parsable* ]] && echo 7 || echo "Submitted batch job 7"')
    launcher.program("squeue", "")
    launcher.program("scontrol", f'echo "$@" >> {folder}/calls; [[ $1 != show ]] || echo "MaxArraySize = 2001"')
    launcher.program("srun", "")
    return launcher


def test_held_noted_released(slurm: Launcher) -> None:
    output = slurm.launch("submit", "--header", "local_cpu", "--run_name", "mine")
    run = slurm.run
    assert f"job id  7\nlog     {run / 'slurm-7.log'}\nstart   now, on n1\nfollow  " in output
    calls = (slurm.programs / "calls").read_text().splitlines()
    assert calls[:2] == ["show config", "--test-only"] and calls[2].startswith("--hold ") and calls[3:] == ["release 7"]
    assert slurm.submission()["state"] == "released" and slurm.submission()["header"] == "local_cpu"
    script = (slurm.programs / "script").read_text()
    assert [line for line in script.splitlines() if line.startswith("#SBATCH")] == [
        line for line in (run / "job_script.slurm").read_text().splitlines() if line.startswith("#SBATCH")
    ], "what Slurm is asked for is what the record says"
    assert script.splitlines()[-1].startswith("exec "), "no process stands between Slurm and the run"
    assert (run / "submitit" / "7_submitted.pkl").is_file()


def test_without_a_header_it_is_submitted_again_as_it_was(slurm: Launcher) -> None:
    slurm.launch("submit", "--run_name", "usual", "--seed", "5")
    first = slurm.run_named("usual")
    assert first.submission["header"] is None, "what train.slurm asks for is no header"
    assert "resumes from step 0" in slurm.launch("requeue", first.run_id)
    assert (slurm.programs / "calls").read_text().splitlines()[-2].endswith(f"{first.run_id}/job_script.slurm")
    output = slurm.launch("resubmit", first.run_id, "--set", "max_steps=7")
    (second,) = (run for run in slurm.runs() if run.run_id != first.run_id)
    assert second.run_id in output and "job id  7" in output
    assert (second.settings["max_steps"], second.settings["seed"]) == (7, 5)
    assert second.submission["cluster"] == "slurm" and second.read("lineage.json")["parent"] == first.run_id
    options = [
        [line for line in (run.path / "job_script.slurm").read_text().splitlines() if line.startswith("#SBATCH")]
        for run in (first, second)
    ]
    assert [line.replace(first.run_id, second.run_id) for line in options[0]] == options[1]
    assert slurm.launch("resubmit", first.run_id, "--dry_run").count("#SBATCH --time=") == 1


def test_what_ran_in_the_background_goes_on_and_runs_again_there(launcher: Launcher) -> None:
    launcher.tell("waits", "back")
    launcher.launch("submit", "--cluster", "local", "--run_name", "back")
    wait("its start", lambda: bool(launcher.starts("back")))
    launcher.launch("cancel", "back")
    output = launcher.launch("requeue", "back", more={"SLURM_JOB_ID": "9", "EBT_JOB_RUN_DIR": "/elsewhere"})
    assert "started again as process " in output and "it resumes from step 1." in output
    wait("its end", lambda: launcher.runs()[0].state == "finished")
    assert len(launcher.starts("back")) == 2 and "job" not in launcher.starts("back")[1]
    (first,) = launcher.runs()
    output = launcher.launch("resubmit", "back")
    (again,) = (run for run in launcher.runs() if run.run_id != first.run_id)
    assert "process " in output
    wait("its start", lambda: bool(launcher.starts("back")))
    launcher.launch("cancel", again.run_id)


def test_a_dry_run_prints_each_request_once(slurm: Launcher) -> None:
    for more in ([], ["--header", "local_cpu"]):
        lines = [line for line in slurm.launch("submit", *more, "--dry_run").splitlines() if "#SBATCH" in line]
        options = [line.split("=")[0] for line in lines]
        assert len(options) == len(set(options)) and "#SBATCH --signal" in options
    assert sum("--signal=USR1@60" in line for line in lines) == 1, "the header's own"


def test_a_slurm_that_is_not_set_up_is_told(launcher: Launcher) -> None:
    launcher.program("sbatch", "exit 1")
    launcher.program("scontrol", "echo 'scontrol: fatal: Could not establish a configuration source' >&2; exit 1")
    output = launcher.launch("submit", "--run_name", "here")
    sentence = "Slurm is installed here but not set up (Could not establish a configuration source): what is submitted"
    assert sentence in output
    wait("its end", lambda: launcher.runs()[0].state == "finished")
    log = next(launcher.runs()[0].path.glob("submitit/*_log.out")).read_text()
    assert log.count("this is not a job of Slurm: it runs on this machine") == 1
    launcher.program("sbatch", "echo 'sbatch: fatal: Could not establish a configuration source' >&2; exit 1")
    output = launcher.execute("local_cpu", SCRIPT, status=2)
    assert "sbatch cannot reach Slurm (Could not establish a configuration source): its controller is down" in output
    assert "or run it on this machine (no HEADER, or --cluster local)" in output


def test_slurm_says_no(slurm: Launcher) -> None:
    slurm.program(
        "sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid partition name specified' >&2; exit 1"
    )
    output = slurm.launch("submit", status=2)
    assert (
        "sbatch refused the job (Invalid partition name specified): correct the header, --slurm, or SBATCH_" in output
    )
    assert output.count("Invalid partition") == 1 and not slurm.logs.exists()
    slurm.program(
        "sbatch", "[[ $1 == --test-only ]] || { echo 'sbatch: error: Batch job submission failed: No' >&2; exit 1; }"
    )
    assert "sbatch refused the job (No): correct the header" in slurm.launch("submit", status=2)
    assert not any((slurm.logs / "runs").iterdir()), "the record of what is refused does not stay among the runs"


def test_which_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    output: tuple[str, str] = ("MaxArraySize            = 501\n", "")
    for module in ("launch.slurm", "runs.slurm"):
        monkeypatch.setattr(f"{module}.run_slurm", lambda *words, timeout: output)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert choose_cluster("auto") == "local" and choose_cluster("debug") == "debug"
    with pytest.raises(
        UserError, match="--cluster is slurm: there is no sbatch on this machine; choose local, or go to a"
    ):
        choose_cluster("slurm")
    monkeypatch.setattr(shutil, "which", lambda name: name)
    assert choose_cluster("auto") == choose_cluster("slurm") == "slurm" and largest_array() == 501
    output = ("", "scontrol failed (Unable to contact slurm controller (connect failure))")
    with pytest.raises(
        UserError, match=r"connect failure\)\): try again later, or run on this machine with --cluster local"
    ):
        choose_cluster("auto")
    output = (
        "",
        "scontrol failed (Could not establish a configuration source)",
    )
    assert choose_cluster("auto") == "local" and largest_array() == 1001


def test_the_next_command_names_the_logs_where_they_are_elsewhere() -> None:
    assert logs_flag(ROOT / "logs") == "" and logs_flag(Path("/a b")) == " --logs_dir '/a b'"
