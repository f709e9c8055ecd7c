"""Messages about a run to the target of --notify: sent by a thread, tried twice; a failure never costs the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import Any

from config import RunConfig
from core.environment import JOB_RUN_DIR, NOTIFY
from core.errors import UserError
from core.files import read_rows
from core.notify import is_url, mark_of, target_of
from runs.attempts import cause_of_error, merge_attempts
from runs.folder import RunFolder
from runs.process import EXIT_BY_HAND, EXIT_RESUMABLE
from runs.ranks import is_first_process
from runs.run import Run
from runs.slurm import job_name, slurm_job

TIMEOUT_SECONDS = 10.0  # that one try may take
PAUSE_SECONDS = 1.0  # between the two tries
LONGEST = 2000  # characters of a sentence
CLOSE_SECONDS = 2 * TIMEOUT_SECONDS + PAUSE_SECONDS + 1  # that a run waits for messages not delivered yet


class Notifier:
    """One for a process; it sends nothing before `begin`, in a process that is not the first, and without a target.

    timeout: seconds of one try. pause: seconds between the two tries.
    """

    def __init__(self, timeout: float = TIMEOUT_SECONDS, pause: float = PAUSE_SECONDS) -> None:
        self.timeout = timeout
        self.pause = pause
        self.target: str | None = None
        self.about: dict[str, Any] = {}
        self.queue: Queue[dict[str, Any]] = Queue()

    def begin(self, config: RunConfig | None, folder: Path) -> None:
        """Start to deliver messages about the run in `folder`. config: its --notify wins over that of config.json."""
        if not is_first_process():
            return
        recorded: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            recorded = json.loads((folder / "config.json").read_bytes())
        mark = config.logging.notify if config else None
        mark = mark or recorded.get("logging", {}).get("notify")
        self.target = target_of(mark)
        if mark and self.target is None:
            print(
                f"warning: --notify {mark}: the rest is not kept with the run, so no message is sent; export {NOTIFY}, "
                "or give --notify again.",
                file=sys.stderr,
            )
        if self.target is None:
            return
        name = config.run.run_name if config else recorded.get("run", {}).get("run_name")
        self.about = {"run": folder.name, "name": name, "folder": str(folder.absolute()), "job": job_name(slurm_job())}
        threading.Thread(target=self.work, daemon=True).start()

    def tell(self, event: str, sentence: str) -> None:
        """Returns at once. event: end, failure, alarm, goal, or stuck where a job is not queued again."""
        if self.target is not None:
            text = f"{self.about['run']}: {sentence}"[:LONGEST]
            self.queue.put({"text": text, "event": event, **self.about})

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Wait until every message is delivered, at most `timeout` seconds; later messages are dropped."""
        if self.target is None:
            return
        deadline = time.monotonic() + timeout
        while self.queue.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.02)
        if timeout and self.queue.unfinished_tasks:
            problem = f"not every message was delivered within {timeout:.0f} s, and the run waits no longer"
            print(f"--notify {mark_of(self.target)}: {problem}", file=sys.stderr)
        self.target = None

    def work(self) -> None:
        """The thread that delivers messages one by one."""
        while self.target is not None:
            notice = self.queue.get()
            self.deliver(self.target, notice)
            self.queue.task_done()

    def deliver(self, target: str, notice: dict[str, Any]) -> None:
        """Two tries; why both failed is printed in one line, without the secret part of the target."""
        send: Callable[[str, dict[str, Any], float], str | None] = post if is_url(target) else run_command
        for pause in (self.pause, 0):
            try:
                problem = send(target, notice, self.timeout)
            except Exception as error:  # whatever it is, it must not cost the run anything
                problem = type(error).__name__  # its message may contain the address
            if problem is None:
                return
            time.sleep(pause)
        print(f"--notify {mark_of(target)}: {problem}; the message was not sent: {notice['text']}", file=sys.stderr)


def post(url: str, notice: dict[str, Any], timeout: float) -> str | None:
    """POST the notice as JSON; None if the server accepts it, else why it was not delivered."""
    from urllib.error import HTTPError, URLError  # here, as few runs need them
    from urllib.request import Request, urlopen

    headers = {"Content-Type": "application/json", "User-Agent": "ebt"}
    request = Request(url, json.dumps(notice).encode(), headers, method="POST")
    try:
        with urlopen(request, timeout=timeout):
            return None
    except HTTPError as error:
        return f"it answered {error.code}"
    except URLError as error:
        return f"it cannot be reached ({getattr(error.reason, 'strerror', None) or type(error.reason).__name__})"
    except TimeoutError:
        return f"no answer within {timeout:.0f} s"


def run_command(command: str, notice: dict[str, Any], timeout: float) -> str | None:
    """Run a shell command with the sentence as its input and each part of the notice as an environment variable."""
    parts = {f"{NOTIFY}_{name.upper()}": str(value or "") for name, value in notice.items()}
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        env={**os.environ, **parts},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # all that it starts can be ended, and a Ctrl-C is not for it
    )
    try:
        process.communicate(f"{notice['text']}\n".encode(), timeout=timeout)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"not done within {timeout:.0f} s"
    return f"exit status {process.returncode}" if process.returncode else None


notifier = Notifier()


def tell_once(folder: Path, event: str, sentence: str) -> None:
    """Send one message about a run from a process that does not train it."""
    notifier.begin(None, folder)
    notifier.tell(event, sentence)
    notifier.close()


def tell_the_end(train: Callable[[RunConfig], int], config: RunConfig) -> int:
    """The exit status of `train`; the message about its end is sent last."""
    timeout = 0.0  # an interrupted run has no time to wait
    try:
        status = train(config)
        needs_no_message = status == EXIT_BY_HAND or (status == EXIT_RESUMABLE and JOB_RUN_DIR in os.environ)
        if not needs_no_message:
            tell_of(status)
            timeout = CLOSE_SECONDS
        return status
    except Exception as error:
        words = str(error) if isinstance(error, UserError) else f"{cause_of_error(error)}: {error}"
        notifier.tell("failure", f"failed: {' '.join(words.split())}")
        timeout = CLOSE_SECONDS
        raise
    finally:
        notifier.close(timeout)


def tell_of(status: int) -> None:
    """Send the message about the end of the run, by attempts.jsonl and metrics.jsonl."""
    if notifier.target is None:
        return
    folder = RunFolder(Path(notifier.about["folder"]))
    last = (merge_attempts(read_rows(folder.attempts)) or [{}])[-1]
    cause, step = str(last.get("cause") or ""), last.get("last_step")
    task = Run(folder.path).task
    values = [row[task.headline] for row in read_rows(folder.metrics) if isinstance(row.get(task.headline), float)]
    loss = f", {task.measure(task.headline).title} {values[-1]:.4f}" if values else ""
    if cause.startswith("finished") and status in (0, 3):
        notifier.tell("end", f"{cause} at step {step}{loss}{'; its --goal was not met' if status else ''}.")
    else:
        notifier.tell("failure", f"ended at step {step}: {cause or f'exit status {status}'}{loss}.")
