"""python -m launch why: what happened, in words."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from core.files import append_row
from launch.__main__ import main
from launch.why import REASONS, last_error, reason_in_words
from tests.launch.run_folders import Programs, began, ended, logs, programs, stamp, write_run

__all__ = ["logs", "programs"]


def report_of(capsys: pytest.CaptureFixture[str], logs: Path, name: str = "one") -> list[str]:
    assert main(["why", "--logs_dir", str(logs), name]) == 0
    return capsys.readouterr().out.splitlines()


def test_each_attempt_is_a_sentence(logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    programs.queue("7|PENDING|Resources||main|2099-01-02T03:04:05")
    programs.put("sinfo", "echo '2 idle~'; echo '1 idle'; echo '1 down*'")
    second = {"first_step": 6, "start": "2020-01-02T03:04:05+0000"}
    attempts = [began(1, 100, job="7", nodes="n1"), ended(1, "preempted", 40), began(2, 30) | second]
    attempts += [ended(2, "time limit", 0, steps_lost=0)]
    run = write_run(logs, "one", *attempts, job={"job": "7"})
    lines = report_of(capsys, logs)
    assert lines[0] == f"{run.name} is queued again: Resources."
    assert lines[1].startswith("Attempt 1 started ") and lines[1].endswith(
        " on n1 as job 7 from step 0 and was preempted by a more urgent job after 1m 00s at step 9; 3 steps were lost."
    )
    assert "Attempt 2 started on 2020-01-02 at " in lines[2] and "and came near its time limit" in lines[2]
    assert lines[3:6] == [
        "Job 7 waits (Resources): it is the next, as soon as enough nodes, GPUs or memory are free.",
        "Slurm expects it to start 2099-01-02 at 03:04:05.",
        "Of 4 nodes in main: 3 idle, 1 down.",
    ]
    assert lines[6:] == [f"next: wait, or python -m launch cancel {run.name} --logs_dir {logs}"]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "other jobs come first"),
        ("QOSMaxJobsPerUserLimit", "you have as much running or waiting as its QOS allows"),
        ("QOSGrpGRES", "everybody together uses what its QOS has"),
        ("AssocGrpCPUMinutesLimit", "your group uses what its account has"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "nodes that it needs are down, drained or reserved"),
        ("launch failed requeued held", "a node could not start it (often its prolog failed), and Slurm holds it"),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in", "nodes that it needs are down, drained"),
        ("JobHeldUser", "it is held; python -m launch requeue RUN releases it"),
        ("BeginTime", "its time to begin has not come"),
        ("PartitionTimeLimit", "it asks for more time than the partition gives: lower --time"),
        ("DependencyNeverSatisfied", "the job it depends on did not end as it had to, so it will never start"),
        ("SomethingNew", "see JOB REASON CODES of man squeue"),
    ],
)
def test_reasons(reason: str, words: str) -> None:
    assert reason_in_words(reason).startswith(words)
    assert all(reason_in_words(name) == words for name, words in REASONS.items())


def test_a_submission_that_failed(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(logs, "one", submission={"state": "failed", "error": "sbatch refused the job (Invalid partition)"})
    assert report_of(capsys, logs) == [
        f"{run.name} is not submitted.",
        "Its submission failed: sbatch refused the job (Invalid partition).",
        f"next: correct what is wrong, then python -m launch resubmit {run.name} --logs_dir {logs}",
    ]
    (run / "submission.json").write_text('{"state": "submitting"}')
    assert report_of(capsys, logs)[1].startswith("Its submission was broken off; squeue --name=one_2026")


def test_an_error_is_shown_with_what_the_run_noticed(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(logs, "one", began(1), ended(1, "error: ValueError"))
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step_00000005.ckpt").touch()
    (run / "command.txt").write_text("python train_model.py --run_name 'a b'\n")
    (run / "console.log").write_text(
        "fine\nTraceback (most recent call last):\n  File x, line 1\nKeyError: 1\nTraceback (most recent call last):\n"
        "  File y, line 2\n    raise\nValueError: \x1b[31mno\nsrun: gone\n"
    )
    (run / "alarms.jsonl").write_text(json.dumps({"step": 3, "text": "the loss\nrises", "advice": "lower it"}) + "\n")
    (run / "divergence.jsonl").write_text(json.dumps({"step": 4, "what": "NaN"}) + "\n")
    assert report_of(capsys, logs)[2:] == [
        *("The end of its log says:", "  Traceback (most recent call last):", "    File y, line 2", "      raise"),
        "  ValueError: no",
        "Alarm at step 3: 'the loss\\nrises' (lower it)",
        "Trouble at step 4: NaN",
        "next: correct what is wrong, then python train_model.py --run_name 'a b' --resume_training_ckpt "
        f"{run}/checkpoints/step_00000005.ckpt",
    ]


def test_a_command_that_would_fail_again_is_not_proposed(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = "--text_field is 'text': a.jsonl:1 has no such field; it has body."
    run = write_run(logs, "one", began(1), ended(1, f"refused: {wrong}"))
    (run / "command.txt").write_text("python train_model.py --dataset_name jsonl\n")
    (run / "console.log").write_text(f"{wrong}\n")
    lines = report_of(capsys, logs)
    assert lines[0] == f"{run.name} is failed: --text_field is 'text'."
    assert lines[1].endswith(f": {wrong}")
    assert lines[2:] == [f"next: python -m launch resubmit {run.name} --logs_dir {logs} --set text_field=…"]
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step_00000005.ckpt").touch()
    saved = f"{run}/checkpoints/step_00000005.ckpt"
    assert report_of(capsys, logs)[2:] == [
        f"next: python train_model.py --dataset_name jsonl --resume_training_ckpt {saved} --text_field=…"
    ]
    write_run(logs, "one", began(1), ended(1, "refused: a.jsonl:2 is not JSON (…): each line must be one."), number=2)
    assert report_of(capsys, logs)[2].startswith("next: correct what is wrong, then ")


def test_a_command_of_the_header_that_failed(
    logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "job_scripts/headers/ours.slurm: `module load --quiet cuda` ended with status 1; correct that line."
    run = write_run(logs, "one", began(1, 100), ended(1, f"refused: {sentence}"))
    again = f"python -m launch resubmit {run.name} --logs_dir {logs}"
    expected = f"next: correct job_scripts/headers/ours.slurm, then {again} --header ours"
    assert report_of(capsys, logs)[-1] == expected, "its own script would fail again"


def test_a_mistake_that_only_the_log_tells(logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    programs.queue("7|FAILED|NonZeroExitCode|n1|main|N/A")
    run = write_run(logs, "one", submission={"state": "released", "job": "7", "time": stamp(9)})
    (run / "slurm-7.log").write_text(
        f"run folder  {run}\n--dataset_dir is 'x': no such folder.\nsrun: error: n1: task 0: Exited with exit code 2\n"
        "train_model.py ended with status 2\n"
    )
    lines = report_of(capsys, logs)
    assert lines[0] == f"{run.name} is failed." and lines[1] == "It ended before it began to train."
    assert lines[2:4] == ["The end of its log says:", "  --dataset_dir is 'x': no such folder."] and len(lines) == 5


def test_signs_of_too_little_memory() -> None:
    for output in ("slurmstepd: error: Detected 1 oom_kill event", "torch.OutOfMemoryError: CUDA", "MemoryError"):
        assert last_error(output)[0].startswith(
            "Its log has signs of too little memory: ask for more (--mem), or lower"
        )
    assert last_error("step 4  loss 2.0\n") == []


def test_cancelled_and_no_slurm(
    logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(programs.folder))
    submission = {"state": "cancelled", "time": stamp(), "job": "7"}
    write_run(logs, "one", began(1, job="7"), ended(1, "cancelled"), submission=submission)
    lines = report_of(capsys, logs)
    assert lines[0].endswith("is cancelled.") and lines[2].startswith("It was cancelled at ")
    assert lines[1].endswith("and was cancelled after 30s at step 9.")
    assert lines[3] == "Slurm: no Slurm on this machine: states are as the run folders tell."
    assert lines[4].startswith("next: sbatch job_scripts/train.slurm --config "), "a job without a script of its own"


# What scontrol says of a job; sinfo's nodes: number, megabytes, CPUs, GPUs, features.
ASKS = (
    "JobId=7 Reason=BadConstraints TimeLimit=2-00:00:00 ReqNodeList=(null) ExcNodeList=n9 NumNodes=2-2 NumCPUs=8 "
    "MinCPUsNode=4 MinMemoryNode=100G Features=fast&new TresPerNode=gres:gpu:a100:4"
)
NODES = ["4|64000|16|gpu:a100:8(S:0-1)|fast,old", "2|256000|16|(null)|fast,new", "1|256000|8|gpu:4|fast"]


@pytest.mark.parametrize(
    ("asks", "says"),
    [
        (ASKS, ["It asks for 2 nodes with 4 CPUs, 4 GPUs, 100.0 GiB, fast, new; main has 0 that have all of it."]),
        (ASKS.replace("a100:4", "a100:9"), ["It asks for 9 GPUs on a node (--gpus-per-node, --gres); no node of main "
                                            "has more than 8."]),
        (ASKS.replace("&new", "&green"), ["It asks for feature green (--constraint), which no node of main has."]),
        (ASKS.replace("&new", "|green").replace("gpu:a100:4", "none"), []),
        (ASKS.replace("2-00", "9-00"), ["It asks for", "It asks for 9-00:00:00 (--time); main gives 7-00:00:00"]),
        (ASKS.replace("2-2", "5-5"), ["It asks for", "It asks for 5 nodes (--nodes); main gives a job 4 at the most."]),
        (ASKS.replace("2-2", "9-9"), ["It asks for 9 nodes (--nodes); main has 7.", "It asks for 9 nodes"]),
    ],
)  # fmt: skip
def test_what_no_node_has_is_named(
    logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str], asks: str, says: list[str]
) -> None:
    programs.queue("7|PENDING|BadConstraints||main|2020-01-02T03:04:05")
    programs.put("sinfo", "\n".join(f"echo '{line}'" for line in NODES))
    programs.put("scontrol", f"[[ $2 == job ]] && echo '{asks}' || echo MaxTime=7-00:00:00 MaxNodes=4")
    write_run(logs, "one", submission={"state": "released", "job": "7", "time": stamp(9)})
    _, _, *lines, away, advice = report_of(capsys, logs)
    assert away == "It must not run on n9 (--exclude)." and advice.endswith(" --header … with one that asks for less")
    assert len(lines) == len(says) and all(line.startswith(words) for line, words in zip(lines, says, strict=True))


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("JobHeldUser", "python -m launch requeue NAME"),
        ("launch failed requeued held", "python -m launch requeue NAME"),
        ("JobHoldMaxRequeue", "python -m launch logs NAME --lines 50, then python -m launch requeue NAME"),
        ("JobHeldAdmin", "ask those who run the cluster, or python -m launch cancel NAME"),
    ],
)
def test_what_to_type_for_a_held_job(
    logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str], reason: str, advice: str
) -> None:
    programs.queue(f"7|PENDING|{reason}||main|2020-01-02T03:04:05")
    programs.put("sinfo", "")
    run = write_run(logs, "one", submission={"state": "released", "job": "7", "time": stamp(9)})
    lines = report_of(capsys, logs)
    assert lines[0] == f"{run.name} is held: {reason}." and not any("expects" in line for line in lines)
    assert lines[-1] == f"next: {advice.replace('NAME', f'{run.name} --logs_dir {logs}')}"


def test_a_run_that_hung_or_crashed(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(logs, "one", began(1, nodes="n[1-2]"), ended(1, "hung", 50, ended_on="n2", ended_rank=1))
    lines = report_of(capsys, logs)
    assert lines[0] == f"{run.name} is interrupted: hung."
    assert lines[1].endswith(" and hung, so that it was ended after 10s at step 9 (process 1 on n2).")
    logs_of = f"python -m launch logs {run.name} --logs_dir {logs} --attempt 1"
    assert lines[2] == f"Where its processes stood is in its log: {logs_of}"
    append_row(run / "attempts.jsonl", began(2, 40))
    append_row(run / "attempts.jsonl", ended(2, "crashed: NCCL watchdog (SIGABRT)", 0))
    lines = report_of(capsys, logs)
    assert lines[0] == f"{run.name} is killed: crashed: NCCL watchdog (SIGABRT)."
    assert lines[2].endswith(" and crashed (NCCL watchdog (SIGABRT)) after 40s at step 9.")
    one = {"ended_on": "n1", "ended_rank": 0}
    append_row(run / "attempts.jsonl", {"attempt": 2, "nodes": "n1", "cause": "out of memory or killed", **one})
    lines = report_of(capsys, logs)
    assert lines[0] == f"{run.name} is killed: perhaps out of memory."
    assert lines[2].endswith(" and was killed (by the kernel for its memory, or by hand) after 40s at step 9.")


def test_a_run_that_is_silent_before_its_first_step(
    logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    hour_ago = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 3600))
    programs.queue(f"7|RUNNING|None|n1|main|{hour_ago}")
    run = write_run(logs, "one", began(1, 3000, job="7"), job={"job": "7"})
    assert report_of(capsys, logs)[2] == (
        "It has made no step yet, and its log was last written to never: it hangs, or prepares data."
    )
    (run / "slurm-7.log").touch()
    os.utime(run / "slurm-7.log", (0, time.time() - 1200))
    lines = report_of(capsys, logs)
    assert lines[0].endswith(" is silent for 20m 00s.") and " its log was last written to 20m 00s ago: " in lines[2]


def test_a_run_that_follows_another(logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    programs.queue("7|PENDING|Dependency||main|N/A", "6|PENDING|Priority||main|N/A")
    first = write_run(logs, "first", submission={"state": "released", "job": "6", "time": stamp(9)})
    after = {"run": first.name, "if": "failed"}
    run = write_run(
        logs, "one", submission={"state": "released", "job": "7", "time": stamp(9), "after": after}, number=1
    )
    assert report_of(capsys, logs)[:3] == [
        f"{run.name} is waiting: until {first.name} has failed.",
        "Job 7 waits (Dependency): another job has to end first.",
        f"It was submitted to wait until {first.name} has failed; that one is waiting: Priority.",
    ]
