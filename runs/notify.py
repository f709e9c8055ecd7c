"""Tells whom --notify names how a run goes: by a thread, once more if it fails, and never at the cost of the run."""

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
from core.errors import UserError
from core.files import read_rows
from core.notify import VARIABLE, is_url, mark_of, target_of
from runs.attempts import is_first_process, merged, slurm_job
from runs.causes import job_name, of_error
from runs.folder import JOB_RUN_DIR, RunFolder
from runs.signals import BY_HAND, GOES_ON

PATIENCE = 10.0  # seconds that one try may take
PAUSE = 1.0  # between the two tries
LONGEST = 2000  # characters of a sentence
AT_THE_END = 2 * PATIENCE + PAUSE + 1  # seconds that a run waits for what is still to be told


class Notifier:
    """One for a process; it tells nobody before `begin`, in a process that is not the first, and without a target."""

    def __init__(self) -> None:
        self.target: str | None = None
        self.about: dict[str, Any] = {}
        self.waiting: Queue[dict[str, Any]] = Queue()

    def begin(self, config: RunConfig | None, folder: Path) -> None:
        """config: as typed; where it names nobody, or is not known, whom the run's record names."""
        if not is_first_process():
            return
        kept: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            kept = json.loads((folder / "config.json").read_bytes())
        mark = config.logging.notify if config else None
        mark = mark or kept.get("logging", {}).get("notify")
        self.target = target_of(mark)
        if mark and self.target is None:
            print(
                f"warning: --notify {mark}: the rest is not kept with the run, so nobody is told; export {VARIABLE}, "
                "or give --notify again.",
                file=sys.stderr,
            )
        if self.target is None:
            return
        name = config.run.run_name if config else kept.get("run", {}).get("run_name")
        self.about = {"run": folder.name, "name": name, "folder": str(folder.absolute()), "job": job_name(slurm_job())}
        threading.Thread(target=self.work, daemon=True).start()

    def tell(self, event: str, sentence: str) -> None:
        """Returns at once. event: end, failure, alarm, goal, or stuck where a job is not queued again."""
        if self.target is not None:
            text = f"{self.about['run']}: {sentence}"[:LONGEST]
            self.waiting.put({"text": text, "event": event, **self.about})

    def close(self, patience: float = AT_THE_END) -> None:
        """Wait until all is told, but no longer than that; nothing is told after it."""
        if self.target is None:
            return
        deadline = time.monotonic() + patience
        while self.waiting.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.02)
        if patience and self.waiting.unfinished_tasks:
            words = f"{mark_of(self.target)}: not all was told within {patience:.0f} s, and the run waits no longer"
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
        with urlopen(request, timeout=PATIENCE):
            return None
    except HTTPError as error:
        return f"it answered {error.code}"
    except URLError as error:
        return f"it cannot be reached ({getattr(error.reason, 'strerror', None) or type(error.reason).__name__})"
    except TimeoutError:
        return f"no answer within {PATIENCE:.0f} s"


def run_command(command: str, notice: dict[str, Any]) -> str | None:
    """The sentence is its input, and each part of the notice a variable of its environment."""
    parts = {f"{VARIABLE}_{name.upper()}": str(value or "") for name, value in notice.items()}
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        env={**os.environ, **parts},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # all that it starts can be ended, and a Ctrl-C is not for it
    )
    try:
        process.communicate(f"{notice['text']}\n".encode(), timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"not done within {PATIENCE:.0f} s"
    return f"exit status {process.returncode}" if process.returncode else None


notifier = Notifier()


def tell_once(folder: Path, event: str, sentence: str) -> None:
    """For a command about a run, outside of its processes."""
    notifier.begin(None, folder)
    notifier.tell(event, sentence)
    notifier.close()


def tell_the_end(train: Callable[[RunConfig], int], config: RunConfig) -> int:
    """The exit status of `train`; how it ended is told last of all."""
    patience = 0.0  # one that is told to end has no time to wait
    try:
        status = train(config)
        goes_on = status == BY_HAND or (status == GOES_ON and JOB_RUN_DIR in os.environ)
        if not goes_on:
            tell_of(status)
            patience = AT_THE_END
        return status
    except Exception as error:
        words = str(error) if isinstance(error, UserError) else f"{of_error(error)}: {error}"
        notifier.tell("failure", f"failed: {' '.join(words.split())}")
        patience = AT_THE_END
        raise
    finally:
        notifier.close(patience)


def tell_of(status: int) -> None:
    """What attempts.jsonl says of the end."""
    if notifier.target is None:
        return
    folder = RunFolder(Path(notifier.about["folder"]))
    last = (merged(read_rows(folder.attempts)) or [{}])[-1]
    cause, step = str(last.get("cause") or ""), last.get("last_step")
    losses = [row["valid_loss"] for row in read_rows(folder.metrics) if isinstance(row.get("valid_loss"), float)]
    loss = f", validation loss {losses[-1]:.4f}" if losses else ""
    if cause.startswith("finished") and status in (0, 3):
        notifier.tell("end", f"{cause} at step {step}{loss}{'; its --goal was not met' if status else ''}.")
    else:
        notifier.tell("failure", f"ended at step {step}: {cause or f'exit status {status}'}{loss}.")
