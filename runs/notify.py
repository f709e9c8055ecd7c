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

TIMEOUT_SECONDS = 10.0  # seconds that one try may take
PAUSE = 1.0  # between the two tries
LONGEST = 2000  # characters of a sentence
AT_THE_END = 2 * TIMEOUT_SECONDS + PAUSE + 1  # seconds that a run waits for messages that are not delivered yet


class Notifier:
    """One for a process; it sends nothing before `begin`, in a process that is not the first, and without a target."""

    def __init__(self) -> None:
        self.target: str | None = None
        self.about: dict[str, Any] = {}
        self.waiting: Queue[dict[str, Any]] = Queue()

    def begin(self, config: RunConfig | None, folder: Path) -> None:
        """config: as typed; where it has no target, that of the run's record counts."""
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
                f"warning: --notify {mark}: the rest is not kept with the run, so nobody is told; export {NOTIFY}, "
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
            self.waiting.put({"text": text, "event": event, **self.about})

    def close(self, timeout: float = AT_THE_END) -> None:
        """Wait until every message is delivered, at most `timeout` seconds; later messages are dropped."""
        if self.target is None:
            return
        deadline = time.monotonic() + timeout
        while self.waiting.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.02)
        if timeout and self.waiting.unfinished_tasks:
            words = f"{mark_of(self.target)}: not all was told within {timeout:.0f} s, and the run waits no longer"
            print(f"--notify {words}", file=sys.stderr)
        self.target = None

    def work(self) -> None:
        while self.target is not None:
            notice = self.waiting.get()
            self.deliver(self.target, notice)
            self.waiting.task_done()

    @staticmethod
    def deliver(target: str, notice: dict[str, Any]) -> None:
        """Two tries; why both failed is a line of the log, without what the record must not have."""
        send: Callable[[str, dict[str, Any]], str | None] = post if is_url(target) else run_command
        for pause in (PAUSE, 0):
            try:
                problem = send(target, notice)
            except Exception as error:  # whatever it is, it must not cost the run anything
                problem = type(error).__name__  # its words may have the address
            if problem is None:
                return
            time.sleep(pause)
        print(f"--notify {mark_of(target)}: {problem}; nobody was told: {notice['text']}", file=sys.stderr)


def post(url: str, notice: dict[str, Any]) -> str | None:
    """None where the other side took it."""
    from urllib.error import HTTPError, URLError  # here, as few runs need them
    from urllib.request import Request, urlopen

    headers = {"Content-Type": "application/json", "User-Agent": "ebt"}
    request = Request(url, json.dumps(notice).encode(), headers, method="POST")
    try:
        with urlopen(request, timeout=TIMEOUT_SECONDS):
            return None
    except HTTPError as error:
        return f"it answered {error.code}"
    except URLError as error:
        return f"it cannot be reached ({getattr(error.reason, 'strerror', None) or type(error.reason).__name__})"
    except TimeoutError:
        return f"no answer within {TIMEOUT_SECONDS:.0f} s"


def run_command(command: str, notice: dict[str, Any]) -> str | None:
    """The sentence is its input, and each part of the notice a variable of its environment."""
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
        process.communicate(f"{notice['text']}\n".encode(), timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"not done within {TIMEOUT_SECONDS:.0f} s"
    return f"exit status {process.returncode}" if process.returncode else None


notifier = Notifier()


def tell_once(folder: Path, event: str, sentence: str) -> None:
    """For a command about a run, outside of its processes."""
    notifier.begin(None, folder)
    notifier.tell(event, sentence)
    notifier.close()


def tell_the_end(train: Callable[[RunConfig], int], config: RunConfig) -> int:
    """The exit status of `train`; the message about its end is sent last."""
    timeout = 0.0  # an interrupted run has no time to wait
    try:
        status = train(config)
        goes_on = status == EXIT_BY_HAND or (status == EXIT_RESUMABLE and JOB_RUN_DIR in os.environ)
        if not goes_on:
            tell_of(status)
            timeout = AT_THE_END
        return status
    except Exception as error:
        words = str(error) if isinstance(error, UserError) else f"{cause_of_error(error)}: {error}"
        notifier.tell("failure", f"failed: {' '.join(words.split())}")
        timeout = AT_THE_END
        raise
    finally:
        notifier.close(timeout)


def tell_of(status: int) -> None:
    """What attempts.jsonl says of the end."""
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
