"""--after RUN: what Slurm is asked to wait for, and what would wait in vain."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from launch.script import Header
from launch.submission import Dependency, dependency_on, read_dependency, same_dependency
from runs.run import Run
from tests.launch.checkout import SCRIPT
from tests.launch.launcher import Launcher
from tests.launch.run_folders import Programs, began, ended, logs, programs, stamp, write_run

__all__ = ["logs", "programs"]

SENT = {"state": "released", "time": stamp(90), "job": "7"}
HEADER = Header("mine", [], [])


@pytest.mark.parametrize("line", ["7|RUNNING|None|n1|main|N/A", "7|PENDING|BeginTime||main|N/A"])
@pytest.mark.parametrize(
    ("condition", "option"), [("finished", "afterok:7"), ("failed", "afternotok:7"), ("any", "afterany:7")]
)
def test_a_run_with_a_job(logs: Path, programs: Programs, line: str, condition: str, option: str) -> None:
    run = write_run(logs, "one", submission=SENT, job={"job": "7"})
    programs.queue(line)
    after = dependency_on(logs, "one", condition)
    assert after.options == [f"--dependency={option}", "--kill-on-invalid-dep=yes"]
    assert after.start.startswith(f"when {run.name} (job 7) ") and after.record == {"run": run.name, "if": condition}


GOAL = {"config": {"run": {"run_name": "one"}, "trainer": {"goal": "valid_loss<1"}}}
ENDS: dict[str, tuple[str, dict[str, Any], str]] = {  # name: cause, files, what it counts as
    "finished": ("finished", {}, "finished"),
    "goal met": ("finished: goal met", GOAL, "finished"),
    "goal not met": ("finished", GOAL, "failed"),
    "stopped early": ("finished: no longer getting better", GOAL, "failed"),
    "error": ("error: ValueError", {}, "failed"),
    "interrupted": ("interrupted: SIGTERM", {}, "failed"),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_run_that_is_over_is_judged_at_once(logs: Path, programs: Programs, name: str) -> None:
    cause, files, counts_as = ENDS[name]
    run = write_run(logs, "one", began(1, job="7"), ended(1, cause), submission=SENT, job={"job": "7"}, **files)
    programs.queue()
    other = "failed" if counts_as == "finished" else "finished"
    for condition in (counts_as, "any"):
        assert dependency_on(logs, "one", condition) == Dependency(run.name, condition), "it waits for nothing"
    with pytest.raises(UserError) as error:
        dependency_on(logs, "one", other)
    output = str(error.value)
    assert output.startswith(f"--after is 'one': {run.name} is ") and f"and will not be {other} any more; " in output
    assert output.endswith(f"choose --if {counts_as} or any.")
    assert ("without meeting its goal" in output) == (files == GOAL and counts_as == "failed")
    assert (f"python -m launch requeue {run.name} resumes it, or " in output) == ("finished" not in cause)


def test_what_slurm_cannot_wait_for(logs: Path, programs: Programs) -> None:
    programs.queue()
    write_run(logs, "here", began(1) | {"host": os.uname().nodename}, heartbeat={"time": 1e11}, number=1)
    run = write_run(logs, "there", submission=SENT, job={"job": "7", "cluster": "moon"}, number=2)
    other = write_run(logs, "later", began(1), heartbeat={"time": 1e11}, number=3)
    with pytest.raises(UserError, match=f"{other.name} is running without a job, and Slurm cannot wait for that."):
        dependency_on(logs, "later", "any")
    with pytest.raises(UserError, match=f"whether {run.name} has ended is not known .its job is one of cluster moon"):
        dependency_on(logs, "there", "any")
    with pytest.raises(UserError, match="RUN is nosuch: there is no such run; choose"):
        dependency_on(logs, "nosuch", "any")


@pytest.mark.parametrize(
    ("run_word", "condition", "header", "sentence"),
    [
        (None, "any", HEADER, "--if has no effect without --after: add --after RUN, or remove it."),
        ("one", "done", HEADER, "--if is 'done': choose finished, failed, any."),
        ("one", None, None, "--after waits with Slurm, and this runs on this machine: remove it, or let python -m"),
        ("one", None, Header("mine", [], [], ["dependency=singleton"]), "--after and --slurm dependency both say what"),
    ],
)
def test_mistakes(run_word: str | None, condition: str | None, header: Header | None, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        read_dependency(run_word, condition, header)
    assert sentence in str(error.value)


def test_put_back_it_waits_again_unless_it_has_begun(logs: Path, programs: Programs) -> None:
    programs.queue("9|RUNNING|None|n1|main|N/A")
    first = write_run(logs, "one", submission=SENT, job={"job": "9"}, number=1)
    record = SENT | {"after": {"run": first.name, "if": "failed"}}
    second = write_run(logs, "two", submission=record, number=2)
    assert same_dependency(Run(second)) == Dependency(first.name, "failed", "9"), "whatever number its job has by now"
    third = write_run(logs, "three", began(1), ended(1, "error: x"), submission=record, number=3)
    assert same_dependency(Run(third)) is None and same_dependency(Run(first)) is None


def test_both_doors(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "launcher")
    note = f'echo "$@" >> {shlex.quote(str(launcher.programs))}/calls'
    launcher.program("sbatch", f'{note}; [[ "$*" == *--parsable* ]] && echo 7 || echo "Submitted batch job 7"')
    launcher.program("squeue", "echo '7|RUNNING|None|n1|main|N/A'")
    launcher.program("scontrol", "true")
    launcher.execute("local_cpu", SCRIPT, "--run_name", "one")
    one = launcher.run_named("one").run_id
    for number, words in enumerate((["submit"], ["execute", "local_cpu", SCRIPT])):
        name = f"two{number}"
        output = launcher.launch(*words, "--after", "one", "--if", "any", "--run_name", name)
        assert f"start   when {one} (job 7) has ended\n" in output
        calls = (launcher.programs / "calls").read_text().splitlines()
        assert "--dependency" not in calls[-2] and "--dependency=afterany:7 --kill-on-invalid-dep=yes " in calls[-1]
        assert launcher.run_named(name).submission["after"] == {"run": one, "if": "any"}
        assert "dependency" not in (launcher.run_named(name).path / "job_script.slurm").read_text()
    before = len(launcher.runs())
    assert "RUN is nosuch: there is no such run" in launcher.launch("submit", "--after", "nosuch", status=2)
    assert "--after waits with Slurm" in launcher.launch("submit", "--cluster", "local", "--after", "one", status=2)
    assert len(launcher.runs()) == before
