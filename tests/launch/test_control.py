"""python -m launch cancel and requeue: done to the right one, and on record."""

from __future__ import annotations

import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from core.commands import dispatch
from core.files import append_row
from launch import control
from launch.__main__ import COMMANDS
from runs.run import Run
from tests.conftest import ROOT
from tests.launch.run_folders import Programs, began, ended, logs, programs, stamp, write_run

__all__ = ["logs", "programs"]
SENT = {"state": "released", "job": "7", "time": stamp(2000)}
# Holds the run's lock as a run does, and says how it ended.
HOLDER = """\
import signal, sys
from pathlib import Path
from runs import RunFolder
from core.commands import dispatch
from core.files import append_row
folder = RunFolder(Path(sys.argv[1]))
folder.lock()
def end(*_):
    append_row(folder.attempts, {"attempt": 1, "end": sys.argv[2], "last_step": 5, "cause": "interrupted: SIGTERM"})
    sys.exit(75)
signal.signal(signal.SIGTERM, end)
print("held", flush=True)
signal.pause()
"""


def output_of(capsys: pytest.CaptureFixture[str], logs: Path, command: str, *words: str, status: int = 0) -> str:
    commands = COMMANDS | {"cancel": (partial(control.cancel, timeout=1.5), "RUN…", "")}
    assert dispatch("python -m launch", commands, [command, "--logs_dir", str(logs), *words]) == status
    out, err = capsys.readouterr()
    return out + err


@pytest.fixture
def holder(logs: Path) -> Iterator[Any]:
    """A living process in the run that it is called with."""
    started: list[subprocess.Popen[str]] = []

    def hold(run: Path) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", HOLDER, str(run), stamp()]
        process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout and process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


# -- cancel ----------------------------------------------------------------------------------------------------------


def test_a_waiting_job(logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    programs.queue("7|PENDING|Priority||main|N/A")
    programs.put("scancel", "true")
    run = write_run(logs, "one", submission=SENT)
    output = output_of(capsys, logs, "cancel", "one", run.name)
    assert output == f"{run.name}: job 7 was cancelled while it was waiting.\n", "named twice, done once"
    assert programs.calls("scancel") == ["7"]
    assert json.loads((run / "submission.json").read_bytes())["state"] == "cancelled"
    assert Run(run).state == "cancelled"
    programs.queue("7|CANCELLED|None||main|N/A")
    assert output_of(capsys, logs, "cancel", "one") == f"{run.name}: nothing to cancel: it is cancelled.\n"


def test_a_cancel_that_slurm_refuses_is_none(
    logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.queue("7|PENDING|Priority||main|N/A", "8|PENDING|Priority||main|N/A")
    programs.put("scancel", '[[ $1 == 8 ]] || { echo "scancel: error: Access denied" >&2; exit 1; }')
    run = write_run(logs, "one", submission=SENT)
    other = write_run(logs, "two", submission=SENT | {"job": "8"}, number=2)
    output = output_of(capsys, logs, "cancel", "one", "two", status=1)
    assert f"{run.name}: scancel refused (Access denied)" in output
    assert f"{other.name}: job 8 was cancelled while it was waiting." in output
    assert Run(run).state == "waiting" and Run(other).state == "cancelled"


def test_a_running_job_ends_as_cancelled(logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    programs.queue("7|RUNNING|None|n1|main|N/A")
    run = write_run(logs, "one", began(1, job="7"), submission=SENT)
    row = json.dumps(ended(1, "interrupted: SIGTERM", 0))
    programs.put("scancel", f"echo {shlex.quote(row)} >> {shlex.quote(str(run))}/attempts.jsonl")
    assert "job 7 was cancelled while it was running." in output_of(capsys, logs, "cancel", "one")
    (attempt,) = Run(run).attempts
    assert attempt["cause"] == "cancelled" and attempt["last_step"] == 9 and Run(run).state == "cancelled"


def test_a_process_of_this_machine(logs: Path, holder: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(logs, "one", began(1) | {"host": platform.node()})
    process = holder(run)
    assert Run(run).state == "running" and Run(run).holder == process.pid
    output = output_of(capsys, logs, "cancel", "one")
    assert output == f"{run.name}: process {process.pid} of this machine got a signal to save its state and end.\n"
    assert process.wait(10) == 75
    assert Run(run).attempts[0]["cause"] == "cancelled" and Run(run).state == "cancelled"


def test_a_process_that_ends_meanwhile(
    logs: Path, holder: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(logs, "one", began(1) | {"host": platform.node()})
    process, told_to_end, kill = holder(run), [], os.kill

    def end_first(number: int, which: int) -> None:
        told_to_end.append(number)
        kill(process.pid, signal.SIGKILL)
        process.wait()
        kill(number, which)

    monkeypatch.setattr(os, "kill", end_first)
    output = output_of(capsys, logs, "cancel", "one")
    assert told_to_end == [process.pid]
    ending = "of this machine ended by itself just now; the run is noted as cancelled."
    assert output == f"{run.name}: process {process.pid} {ending}\n"


def test_a_job_that_is_killed_before_it_can_say_so(
    logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.queue("7|RUNNING|None|n1|main|N/A")
    programs.put("scancel", "true")
    run = write_run(logs, "one", began(1, job="7") | {"host": platform.node()}, submission=SENT)
    output_of(capsys, logs, "cancel", "one")
    (attempt,) = Run(run).attempts
    assert attempt["cause"] == "cancelled" and "end" in attempt and Run(run).state == "cancelled"


def test_a_process_of_another_machine_is_left_alone(logs: Path, holder: Any, capsys: Any) -> None:
    run = write_run(logs, "one", began(1))
    process = holder(run)
    output = output_of(capsys, logs, "cancel", "one", status=1)
    assert output == f"{run.name}: it runs on elsewhere without a job: cancel it there.\n"
    assert process.poll() is None and Run(run).state == "running"


def test_nothing_to_cancel(logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    programs.queue()
    run = write_run(logs, "one", began(1, job="7"), ended(1, "finished"), submission=SENT)
    failed = write_run(logs, "two", began(1), ended(1, "error: ValueError"), number=2)
    lost = write_run(logs, "three", submission=SENT | {"job": "9"}, number=3)
    assert output_of(capsys, logs, "cancel", "one", "two", "three").splitlines() == [
        f"{run.name}: nothing to cancel: it is finished.",
        f"{failed.name}: nothing to cancel: it is failed: ValueError.",
        f"{lost.name}: it has no job and no process any more; it is noted as cancelled.",
    ]
    assert Run(lost).state == "cancelled" and not programs.calls("scancel")


def test_no_word_from_slurm(logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    programs.put("squeue", "echo down >&2; exit 1")
    run = write_run(logs, "one", submission=SENT)
    output = output_of(capsys, logs, "cancel", "one", status=1)
    assert "job 7 cannot be cancelled from here (no answer from Slurm (down): " in output
    assert output_of(capsys, logs, "requeue", "one", status=1).endswith("so nothing was done: try again later.\n")
    programs.queue("7|PENDING|Priority||main|N/A")
    (run / "job.json").write_text('{"job": "7", "cluster": "far"}')
    assert "(it is a job of cluster far): try again later, or there." in output_of(
        capsys, logs, "cancel", "one", status=1
    )
    assert Run(run).state == "waiting"


def test_one_that_takes_its_time(logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    programs.queue("7|RUNNING|None|n1|main|N/A")
    programs.put("scancel", "true")
    run = write_run(logs, "one", began(1, 0, job="7"), submission=SENT, heartbeat={"time": time.time(), "step": 1})
    output = output_of(capsys, logs, "cancel", "one")
    assert output.endswith("waiting up to 1.5 s for the end of 1; Ctrl-C changes nothing\n")
    assert Run(run).state == "running", "until it has ended; then its submission.json says cancelled"
    append_row(run / "attempts.jsonl", ended(1, "interrupted: SIGTERM", -5))
    assert Run(run).state == "cancelled"


# -- requeue ---------------------------------------------------------------------------------------------------------


def test_a_running_a_waiting_and_a_held_job(logs: Path, programs: Programs, capsys: Any) -> None:
    programs.queue("7|RUNNING|None|n1|main|N/A", "8|PENDING|Priority||main|N/A", "9|PENDING|JobHeldUser||main|N/A")
    names = [write_run(logs, f"r{job}", submission=SENT | {"job": str(job)}, number=job).name for job in (7, 8, 9)]
    assert output_of(capsys, logs, "requeue", "r7", "r8", "r9").splitlines() == [
        f"{names[0]}: job 7 saves its state, is queued again and resumes from there.",
        f"{names[1]}: job 8 waits already (Priority).",
        f"{names[2]}: job 9 was held, and is released.",
    ]
    assert programs.calls("scontrol") == ["requeue 7", "release 9"]
    run = write_run(logs, "doubt", submission=SENT | {"state": "held", "error": "no answer", "job": "9"}, number=10)
    output_of(capsys, logs, "requeue", "doubt")
    assert (now := json.loads((run / "submission.json").read_bytes()))["state"] == "released" and now["error"] is None


def test_only_those_who_run_the_cluster_release_what_they_hold(logs: Path, programs: Programs, capsys: Any) -> None:
    programs.queue("7|PENDING|JobHeldAdmin||main|N/A", "8|PENDING|JobHoldMaxRequeue||main|N/A",
                   "9|PENDING|BadConstraints||main|N/A")  # fmt: skip
    programs.put("scontrol", "[[ $2 != 7 ]] || { echo 'Access/permission denied' >&2; exit 1; }")
    names = [write_run(logs, f"r{job}", submission=SENT | {"job": str(job)}, number=job).name for job in (7, 8, 9)]
    lines = output_of(capsys, logs, "requeue", "r7", "r8", "r9", status=1).splitlines()
    assert sorted(lines) == [
        f"{names[0]}: job 7 is held (JobHeldAdmin), and scontrol refused (Access/permission denied): only those who "
        "run the cluster can release it: ask them, or cancel it.",
        f"{names[1]}: job 8 was held (JobHoldMaxRequeue), and is released.",
        f"{names[2]}: job 9 waits, but can never start (BadConstraints): python -m launch why {names[2]} --logs_dir "
        f"{logs} says what to do.",
    ]


def test_a_job_is_not_kept_from_the_nodes_that_it_is_bound_to(logs: Path, programs: Programs, capsys: Any) -> None:
    programs.queue("7|RUNNING|None|n1|main|N/A")
    one_by_one = "[[ $3 == n1 ]] && echo n1 || echo n1 n2"
    programs.put("scontrol", f"if [[ $2 == hostnames ]]; then {one_by_one}; else echo 'JobId=7 ReqNodeList=n[1-2]'; fi")
    write_run(logs, "r7", began(1, nodes="n1"), job={"job": "7"})
    output = output_of(capsys, logs, "requeue", "r7", "--exclude_nodes", "n1", status=1)
    assert "it has to run on n[1-2] (--nodelist), so without n1 it could never start: exclude other nodes." in output
    assert not any(words.startswith(("requeue", "update")) for words in programs.calls("scontrol")), "it is left alone"


def test_nodes_are_excluded_beside_those_that_were(logs: Path, programs: Programs, capsys: Any) -> None:
    programs.queue("7|RUNNING|None|n1|main|N/A", "8|PENDING|Priority||main|N/A")
    programs.put("scontrol", "[[ $1 != show ]] || echo JobId=1 ExcNodeList=n[7-8]")
    programs.put("sbatch", "echo 12")
    for job, more in ((7, {}), (8, {"nodes": "n[1-2]", "ended_on": "n2"})):
        write_run(logs, f"r{job}", began(1, nodes="n1") | more, ended(1, "hung"), job={"job": str(job)}, number=job)
    assert (
        output_of(capsys, logs, "requeue", "r7", "r8", "--exclude_nodes", "last")
        .splitlines()[1]
        .endswith(": job 8 waits already (Priority). It will not start on n2.")
    )
    commands = [words for words in programs.calls("scontrol") if not words.startswith("show")]
    assert commands == ["requeue 7", "update JobId=7 ExcNodeList=n[7-8],n1", "update JobId=8 ExcNodeList=n[7-8],n2"]
    run = write_run(logs, "gone", began(1, nodes="n1"), ended(1, "hung"), job={"job": "9"}, number=9)
    script = f"#!/bin/bash\n#SBATCH --exclude=n3\nexport EBT_JOB_RUN_DIR={shlex.quote(str(run))}\n"
    (run / "job_script.slurm").write_text(script)
    output = output_of(capsys, logs, "requeue", "gone", "--exclude_nodes", "n[4-5]")
    assert output == f"{run.name}: submitted again as job 12; it resumes from step 0, not on n[4-5].\n"
    held = f"--hold --parsable --exclude=n3,n[4-5] {run / 'job_script.slurm'}"
    assert programs.calls("sbatch") == ["--test-only --exclude=n3,n[4-5]", held]


@pytest.mark.parametrize(
    ("attempt", "nodes", "sentence"),
    [
        (None, "last", "--exclude_nodes is last: it has no attempt yet; name the nodes, as in n1,n[3-4]."),
        ({"nodes": "n[1-2]"}, "last", "which node of n[1-2] ended its last attempt is not known; name it."),
        ({"nodes": "n1"}, "n99", "--exclude_nodes is n99: Slurm has no such nodes; sinfo -N lists them."),
    ],
)
def test_nodes_that_cannot_be_excluded(
    logs: Path, programs: Programs, capsys: Any, attempt: dict[str, Any] | None, nodes: str, sentence: str
) -> None:
    programs.queue("7|RUNNING|None|n1|main|N/A")
    programs.put("scontrol", "[[ $2 != node ]] || { echo 'Node n99 not found'; exit 1; }")
    write_run(logs, "one", *([] if attempt is None else [began(1) | attempt]), job={"job": "7"})
    assert sentence in output_of(capsys, logs, "requeue", "one", "--exclude_nodes", nodes, status=1)
    assert not [words for words in programs.calls("scontrol") if words.startswith(("requeue", "update"))]


def test_a_job_that_is_gone_is_submitted_again(logs: Path, programs: Programs, capsys: Any) -> None:
    programs.queue()
    programs.put("sbatch", "echo 12")
    run = write_run(logs, "one", began(1, job="7"), ended(1, "error: OSError"), submission=SENT, job={"job": "7"})
    (run / "code").mkdir()
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step_00000040.ckpt").touch()
    script = run / "job_script.slurm"
    script.write_text(f"#!/bin/bash\nexport EBT_JOB_RUN_DIR={shlex.quote(str(run))}\n")
    output = output_of(capsys, logs, "requeue", "one")
    assert output == f"{run.name}: submitted again as job 12; it resumes from step 40.\n"
    assert (
        programs.calls("sbatch") == ["--test-only", f"--hold --parsable {script}"]
        and programs.calls("scontrol")[-1] == "release 12"
    )
    assert json.loads((run / "job.json").read_bytes()) == {"job": "12"} and Run(run).state == "waiting"


def test_what_slurm_would_never_start_again_stays_as_it_is(logs: Path, programs: Programs, capsys: Any) -> None:
    programs.queue()
    programs.put("sbatch", "echo 'sbatch: error: Batch job submission failed: Too much' >&2; exit 1")
    run = write_run(logs, "one", began(1, job="7"), ended(1, "error: OSError"), submission=SENT, job={"job": "7"})
    script = run / "job_script.slurm"
    script.write_text(f"#!/bin/bash\n#SBATCH --mem=9\nexport EBT_JOB_RUN_DIR={shlex.quote(str(run))}\n")
    output = output_of(capsys, logs, "requeue", "one", status=1)
    assert output.startswith(f"{run.name}: sbatch refused the job (Too much): correct the header")
    assert json.loads((run / "submission.json").read_bytes()) == SENT and Run(run).state == "failed"


def test_what_cannot_be_queued_again_says_what_goes_on(
    logs: Path, programs: Programs, holder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.queue()
    programs.put("sbatch", "echo 12")
    done = write_run(logs, "done", began(1), ended(1, "finished"))
    plain = write_run(logs, "plain", began(1), ended(1, "killed"), number=1)
    (plain / "command.txt").write_text("python /x/train_model.py --run_name 'a b'\n")
    (plain / "job_script.slurm").write_text("#!/bin/bash\nexport EBT_JOB_RUN_DIR=/of/another\n")
    here = write_run(logs, "here", began(1) | {"host": platform.node()}, number=2)
    holder(here)
    output = output_of(capsys, logs, "requeue", "done", "plain", "here", status=1)
    assert (
        f"{done.name}: it is finished; python -m launch resubmit {done.name} --logs_dir {logs} runs it once" in output
    )
    assert (
        f"{plain.name}: it has no job script; this resumes it: "
        "python train_model.py --run_name 'a b' (from step 0: it saved nothing)" in output
    )
    assert (
        f"{here.name}: it runs on {platform.node()} without a job, so there is nothing to put into a queue." in output
    )
    assert not programs.calls("sbatch")


def test_a_folder_of_somebody_else_is_left_alone(
    logs: Path, holder: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(logs, "one", began(1) | {"host": platform.node()})
    process = holder(run)

    def refuse(self: object, state: str, **more: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(control.Submission, "save_state", refuse)
    output = output_of(capsys, logs, "cancel", "one", status=1)
    assert f"{run} cannot be written to (Permission denied): it was left alone." in output
    assert process.poll() is None
