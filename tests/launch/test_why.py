"""python -m launch why: what happened, in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.__main__ import main
from launch.reasons import REASONS, reason_in_words
from launch.why import trouble
from tests.launch.written import Programs, began, ended, logs, programs, stamp, write_run

__all__ = ["logs", "programs"]


def told(capsys: pytest.CaptureFixture[str], logs: Path, name: str = "one") -> list[str]:
    assert main(["why", "--logs_dir", str(logs), name]) == 0
    return capsys.readouterr().out.splitlines()


def test_each_attempt_is_a_sentence(logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    programs.queue("7|PENDING|Resources||main|2099-01-02T03:04:05")
    programs.put("sinfo", "echo '2 idle~'; echo '1 idle'; echo '1 down*'")
    second = {"first_step": 6, "start": "2020-01-02T03:04:05+0000"}
    attempts = [began(1, 100, job="7", nodes="n1"), ended(1, "preempted", 40), began(2, 30) | second]
    attempts += [ended(2, "time limit", 0, steps_lost=0)]
    run = write_run(logs, "one", *attempts, job={"job": "7"})
    lines = told(capsys, logs)
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
        ("JobHeldUser", "it is held; python -m launch requeue RUN lets it go"),
        ("BeginTime", "its time to begin has not come"),
        ("PartitionTimeLimit", "it asks for more time than the partition gives: lower --time"),
        ("DependencyNeverSatisfied", "the job it depends on did not end as it had to, so it will never start"),
        ("SomethingNew", "Slurm's own word for it"),
    ],
)
def test_reasons(reason: str, words: str) -> None:
    assert reason_in_words(reason).startswith(words)
    assert all(reason_in_words(name) == words for name, words in REASONS.items())


def test_a_submission_that_failed(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(logs, "one", submission={"state": "failed", "error": "sbatch refused the job (Invalid partition)"})
    assert told(capsys, logs) == [
        f"{run.name} is not submitted.",
        "Its submission failed: sbatch refused the job (Invalid partition).",
        f"next: correct what is wrong, then python -m launch resubmit {run.name} --logs_dir {logs}",
    ]
    (run / "submission.json").write_text('{"state": "submitting"}')
    assert told(capsys, logs)[1].startswith("Its submission was broken off; squeue --name=one_2026")


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
    assert told(capsys, logs)[2:] == [
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
    lines = told(capsys, logs)
    assert lines[0] == f"{run.name} is failed: --text_field is 'text'."
    assert lines[1].endswith(f": {wrong}")
    assert lines[2:] == [f"next: python -m launch resubmit {run.name} --logs_dir {logs} --set text_field=…"]
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step_00000005.ckpt").touch()
    saved = f"{run}/checkpoints/step_00000005.ckpt"
    assert told(capsys, logs)[2:] == [
        f"next: python train_model.py --dataset_name jsonl --resume_training_ckpt {saved} --text_field=…"
    ]
    write_run(logs, "one", began(1), ended(1, "refused: a.jsonl:2 is not JSON (…): each line must be one."), number=2)
    assert told(capsys, logs)[2].startswith("next: correct what is wrong, then ")


def test_a_mistake_that_only_the_log_tells(logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    programs.queue("7|FAILED|NonZeroExitCode|n1|main|N/A")
    run = write_run(logs, "one", submission={"state": "released", "job": "7", "time": stamp(9)})
    (run / "slurm-7.log").write_text(
        f"run folder  {run}\n--dataset_dir is 'x': no such folder.\nsrun: error: n1: task 0: Exited with exit code 2\n"
        "train_model.py ended with status 2\n"
    )
    lines = told(capsys, logs)
    assert lines[0] == f"{run.name} is failed." and lines[1] == "It ended before it began to train."
    assert lines[2:4] == ["The end of its log says:", "  --dataset_dir is 'x': no such folder."] and len(lines) == 5


def test_signs_of_too_little_memory() -> None:
    for said in ("slurmstepd: error: Detected 1 oom_kill event", "torch.OutOfMemoryError: CUDA", "MemoryError"):
        assert trouble(said)[0].startswith("Its log has signs of too little memory: ask for more (--mem), or lower")
    assert trouble("step 4  loss 2.0\n") == []


def test_cancelled_and_no_slurm(
    logs: Path, programs: Programs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(programs.folder))
    submission = {"state": "cancelled", "time": stamp(), "job": "7"}
    write_run(logs, "one", began(1, job="7"), ended(1, "cancelled"), submission=submission)
    lines = told(capsys, logs)
    assert lines[0].endswith("is cancelled.") and lines[2].startswith("It was cancelled at ")
    assert lines[1].endswith("and was cancelled after 30s at step 9.")
    assert lines[3] == "Slurm: no Slurm on this machine: states are as the run folders tell."
    assert lines[4].startswith("next: sbatch job_scripts/train.slurm --config "), "a job without a script of its own"
