"""--notify: who is told of what, in bounded time, and that no file of a run has the address."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from config import RunConfig, SettingsError, parse_command_line
from core.environment import JOB_RUN_DIR, NOTIFY
from core.files import append_row, write_json
from core.notify import hide, mark_of, masked, target_of
from launch.__main__ import main
from runs.notify import Notifier, notifier, tell_the_end
from runs.process import EXIT_BY_HAND, EXIT_RESUMABLE
from tests.conftest import ROOT, TrainCommand
from tests.runs.hook import TOKEN, Hook, hook
from tests.support import warm

__all__ = ["hook"]


@pytest.fixture(autouse=True)
def no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """No target is left from another test."""
    monkeypatch.setenv(NOTIFY, "")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "logs" / "runs" / "try_1"
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {"run": {"run_name": "try"}, "logging": {"notify": None}})
    return folder


def deliver(target: str, run: Path, *sentences: str, timeout: float = 10, patience: float = 22) -> float:
    """Seconds that it took to deliver all of them. timeout: of one try; patience: of the run that ends."""
    os.environ[NOTIFY] = target
    one = Notifier(timeout, pause=0.05)
    one.begin(None, run)
    for sentence in sentences:
        one.tell("alarm", sentence)
    began = time.monotonic()
    one.close(patience)
    return time.monotonic() - began


# --- what is kept


@pytest.mark.parametrize(
    ("target", "mark"),
    [
        ("https://hooks.slack.com/services/T0/B0/abc", "https://hooks.slack.com/***"),
        ("https://me:secret@ntfy.example:8443/topic?auth=x", "https://ntfy.example:8443/***"),
        ("http://[::1]:80/x", "http://[::1]:80/***"),
        ("http://host", "http://host"),
        ("http://host/", "http://host/"),
        ("https://host:notaport/x", "***"),
        ("./tell.sh", "./tell.sh"),
        ("curl -H 'Authorization: Bearer abc' example.org", "curl ***"),
        ("KEY=abc tell.sh", "***"),
        ("KEY=abc", "***"),
        ("mail ***", "mail ***"),
        ("https://host/***", "https://host/***"),
    ],
)
def test_the_record_has_a_mark(target: str, mark: str) -> None:
    assert mark_of(target) == mark and mark_of(mark) == mark


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--notify", "https://a/b", "--seed", "1"], ["--notify", "https://a/***", "--seed", "1"]),
        (["--notify=https://a/b"], ["--notify=https://a/***"]),
        (["--set", "notify=https://a/b"], ["--set", "notify=https://a/***"]),
        (["--notify", "tell.sh"], ["--notify", "tell.sh"]),
        (["--notify", "--seed", "1"], ["--notify", "--seed", "1"]),
    ],
)
def test_a_command_line_is_hidden_and_the_environment_has_it(words: list[str], shown: list[str]) -> None:
    assert hide(words) == shown and hide(shown) == shown
    assert os.environ[NOTIFY] == ("https://a/b" if "***" in str(shown) else "")


def test_a_script_without_a_secret_is_its_own_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NOTIFY, "https://a/b")
    assert [target_of(mark) for mark in ("tell.sh", "https://x/***", None)] == ["tell.sh", "https://a/b", "https://a/b"]
    assert masked(b"train --notify https://a/b --seed 1") == b"train --notify https://a/*** --seed 1"


def test_what_no_command_line_hid_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"notify: https://a/{TOKEN}\n")
    with pytest.raises(SettingsError) as caught:
        parse_command_line(["--config", str(file)])
    assert str(caught.value) == (
        f"notify in {file} may hold a secret, and what is written there is kept with the run: put it into the variable "
        "EBT_NOTIFY, or into a script, and give the script's name."
    )


def test_a_submission_has_the_mark(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["submit", "--cluster", "local", "--dry_run", "--notify", f"https://a/{TOKEN}", "--logs_dir", str(tmp_path)]
    assert main(words) == 0
    script = capsys.readouterr().out
    assert "--notify 'https://a/***'" in script and TOKEN not in script
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(f"base:\n  notify: https://a/{TOKEN}\ngrid:\n  seed: [0, 1]\n")
    assert main(["sweep", str(sweep), "--dry_run", "--logs_dir", str(tmp_path)]) == 2
    assert "may hold a secret" in capsys.readouterr().err


# --- how it is told


def test_a_url_gets_a_text_and_what_it_is_about(hook: Hook, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    deliver(hook.url, run, "the loss rises.")
    assert hook.notices == [
        {
            **{"text": "try_1: the loss rises.", "event": "alarm", "run": "try_1", "name": "try", "job": "7"},
            **{"folder": str(run), "path": f"/services/{TOKEN}"},
        }
    ]


def test_a_command_gets_the_sentence_and_variables(run: Path, tmp_path: Path) -> None:
    deliver(
        f'cat > {tmp_path}/in; echo "$EBT_NOTIFY_EVENT $EBT_NOTIFY_RUN $EBT_NOTIFY_NAME" > {tmp_path}/env', run, "up."
    )
    assert (tmp_path / "in").read_text() == "try_1: up.\n" and (tmp_path / "env").read_text() == "alarm try_1 try\n"


def test_one_retry(hook: Hook, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hook.answers = [500, 200]
    deliver(hook.url, run, "x.")
    assert len(hook.notices) == 2 and capsys.readouterr().err == ""
    hook.answers = [500]
    deliver(hook.url, run, "y.")
    assert len(hook.notices) == 4
    where = hook.url.partition("/services")[0]
    assert capsys.readouterr().err == f"--notify {where}/***: it answered 500; the message was not sent: try_1: y.\n"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("exit 3", "exit ***: exit status 3"),
        ("sleep 60", "sleep ***: not done within 0 s"),
        (f"http://127.0.0.1:1/{TOKEN}", "http://127.0.0.1:1/***: it cannot be reached (Connection refused)"),
        (f"http://127.0.0.1:1/a b{TOKEN}", "http://127.0.0.1:1/***: InvalidURL"),
        (f"http://[{TOKEN}/x", "***: ValueError"),
    ],
)
def test_what_fails_or_hangs_is_a_line(target: str, words: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert deliver(target, run, "x.", timeout=0.3) < 3
    errors = capsys.readouterr().err
    assert errors == f"--notify {words}; the message was not sent: try_1: x.\n" and TOKEN not in errors


def test_a_hook_that_hangs_holds_nothing_up(hook: Hook, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hook.answers = [0]
    assert deliver(hook.url, run, "x.", timeout=0.3) < 3 and "no answer within 0 s" in capsys.readouterr().err
    assert deliver(hook.url, run, "x.", timeout=60, patience=0.2) < 1
    assert "not every message was delivered within 0 s, and the run waits no longer" in capsys.readouterr().err


# --- of what


def ended(run: Path, cause: str, status: int, target: str) -> None:
    """A run that ends in this way."""
    os.environ[NOTIFY] = target

    def train(config: RunConfig) -> int:
        notifier.begin(config, run)
        append_row(run / "attempts.jsonl", {"attempt": 1, "cause": cause, "last_step": 7})
        append_row(run / "metrics.jsonl", {"step": 7, "valid_loss": 1.5})
        if cause == "raises":
            raise RuntimeError("no\nmemory")
        return status

    tell_the_end(train, parse_command_line([]))


@pytest.mark.parametrize(
    ("cause", "status", "event", "text"),
    [
        ("finished", 0, "end", "try_1: finished at step 7, validation loss 1.5000."),
        ("finished", 3, "end", "try_1: finished at step 7, validation loss 1.5000; its --goal was not met."),
        ("diverged", 1, "failure", "try_1: ended at step 7: diverged, validation loss 1.5000."),
        (
            "interrupted: SIGHUP",
            EXIT_RESUMABLE,
            "failure",
            "try_1: ended at step 7: interrupted: SIGHUP, validation loss",
        ),
    ],
)
def test_ends(cause: str, status: int, event: str, text: str, run: Path, hook: Hook) -> None:
    ended(run, cause, status, hook.url)
    (notice,) = hook.notices
    assert notice["event"] == event and notice["text"].startswith(text)


def test_an_error_is_told_and_raised(run: Path, hook: Hook) -> None:
    with pytest.raises(RuntimeError):
        ended(run, "raises", 1, hook.url)
    assert [notice["text"] for notice in hook.notices] == ["try_1: failed: error: RuntimeError: no memory"]


def test_what_goes_on_by_itself_or_was_stopped_by_hand_is_not_told(
    run: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(run, "stopped by hand", EXIT_BY_HAND, hook.url)
    monkeypatch.setenv(JOB_RUN_DIR, str(run))
    ended(run, "preempted", EXIT_RESUMABLE, hook.url)
    assert hook.notices == []


def test_a_job_that_is_not_queued_again(run: Path, hook: Hook, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(run / "job.json", {"starts": [0, 0, 0]})
    assert main(["ended", str(run), "no.log", str(EXIT_RESUMABLE), "--notify", hook.url]) == 2
    (notice,) = hook.notices
    assert notice["event"] == "stuck" and "it is not queued again" in notice["text"]
    assert "it is not queued again" in capsys.readouterr().err


def test_a_run_that_was_killed_is_told_of_by_its_script(run: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    append_row(run / "attempts.jsonl", {"attempt": 1, "start": "x", "first_step": 3})
    for _ in range(2):  # the second time its end is known
        assert main(["ended", str(run), "no.log", "137", "--notify", hook.url]) == 1
    assert [notice["text"] for notice in hook.notices] == ["try_1: ended at step 3: out of memory or killed."]
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # another start, which ends before its attempt begins
    assert main(["ended", str(run), "no.log", "137", "--notify", hook.url]) == 1
    assert hook.notices[1]["text"] == "try_1: ended at step 0: out of memory or killed."


def test_a_run_tells_and_keeps_nothing(train_command: TrainCommand, hook: Hook) -> None:
    """A goal that is met, and its end; taken up again, EBT_NOTIFY has the address."""
    flags = ("--goal", "valid_loss<99", "--wandb_offline", "--val_check_interval", "2")
    output = train_command(*flags, "--wandb", "--notify", hook.url)
    assert [notice["event"] for notice in hook.notices] == ["goal", "end"]
    assert "finished: goal met at step 2" in hook.notices[1]["text"]
    files = [file for file in train_command.logs.rglob("*") if file.is_file()]
    assert not [file for file in files if TOKEN.encode() in file.read_bytes()] and TOKEN not in output
    (run,) = (train_command.logs / "runs").iterdir()
    assert json.loads((run / "config.json").read_bytes())["logging"]["notify"].endswith("/***")
    assert "/***" in (run / "command.txt").read_text()
    assert list(run.glob("wandb/*run-*")), "the files of W&B were among them"
    command = [sys.executable, "train_model.py", "--resume_training_ckpt", str(run / "checkpoints" / "last.ckpt")]
    own = {**os.environ, NOTIFY: hook.url}
    done = warm.run(
        [*command, "--logs_dir", str(train_command.logs)], cwd=ROOT, env=own, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [notice["event"] for notice in hook.notices[2:]] == ["goal", "end"]


def test_a_run_whose_address_is_gone_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(run / "config.json", {"logging": {"notify": "https://host/***"}})
    one = Notifier()
    one.begin(parse_command_line([]), run)
    one.tell("end", "finished.")
    assert capsys.readouterr().err == (
        "warning: --notify https://host/***: the rest is not kept with the run, so no message is sent; "
        "export EBT_NOTIFY, or give --notify again.\n"
    )
