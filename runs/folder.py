"""One folder per run: settings, command, code, environment, attempts, metrics, checkpoints.

`logs/runs/<run_id>/` is made once; every resume works in it, so the run id never changes.
"""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from config import RunConfig
from config.record import to_dict, values_of
from config.task import find_task, task_record
from core.environment import JOB_RUN_DIR, LINEAGE, RUN_DIR
from core.errors import UserError
from core.files import append_row, read_rows, write_json, write_text
from runs.attempts import Attempt, cause_of_error, cause_of_killed, merge_attempts, stamp
from runs.lock import Lock
from runs.process import EXIT_RESUMABLE, signals
from runs.ranks import is_first_process, process_rank
from runs.slurm import slurm_job

PACKAGES = (
    "torch",
    "pytorch-lightning",
    "torchmetrics",
    "transformers",
    "tokenizers",
    "datasets",
    "numpy",
    "wandb",
    "submitit",
)

LAST, LAST_OR_NEW = "last", "last_or_new"  # of --resume_training_ckpt


class RunError(UserError):
    """A run that cannot be opened or found, in one sentence."""


class RunFolder:
    """Paths and records of one run. `create` makes a new one, `open` is for one that exists."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.attempts = path / "attempts.jsonl"
        self._lock: Lock | None = None

    @classmethod
    def for_run(cls, config: RunConfig) -> RunFolder:
        """The folder this process works in: that of the run it resumes or belongs to, or a new one; locked."""
        prepared = os.environ.get(JOB_RUN_DIR)
        if not is_first_process():
            if not (shared := prepared or os.environ.get(RUN_DIR)):
                raise RunError(
                    f"this is process {process_rank()} of a run and does not know the run's folder ({RUN_DIR} is not "
                    f"set): sbatch job_scripts/train.slurm starts all of them, or export {JOB_RUN_DIR} first."
                )
            return cls.open(Path(shared))
        folder = cls.open(Path(prepared)) if prepared else cls.resumed(config) or cls.create(config)
        folder.lock()
        folder.record_killed()
        os.environ[RUN_DIR] = str(folder.path.absolute())
        return folder

    @classmethod
    def create(cls, config: RunConfig, add: Callable[[Path], None] | None = None) -> RunFolder:
        """Record what is about to run; built under a staging name and renamed, so it is complete or not there.

        add: puts more into the folder before it gets its name.
        """
        run_id = new_run_id(config.run.run_name)
        runs = Path(config.logging.logs_dir) / "runs"
        staging = runs / f".{run_id}"
        try:
            (staging / "checkpoints").mkdir(parents=True)
            record(staging, config)
            if add is not None:
                add(staging)
            staging.rename(runs / run_id)
        except OSError as error:
            shutil.rmtree(staging, ignore_errors=True)
            raise RunError(
                f"--logs_dir is {config.logging.logs_dir!r}: cannot write there ({error.strerror}): "
                "choose a folder you can write to, or free some space."
            ) from error
        return cls(runs / run_id)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        if not (path / "config.json").is_file():
            raise RunError(f"{path} is not a run folder: it has no config.json; give a folder RUN of logs/runs.")
        return cls(path)

    @classmethod
    def resumed(cls, config: RunConfig) -> RunFolder | None:
        """The folder that --resume_training_ckpt resumes in, if it names one."""
        checkpoint = config.checkpoint.resume_training_ckpt
        if checkpoint is None:
            return None
        if checkpoint in (LAST, LAST_OR_NEW):
            return cls.newest(config.logging.logs_dir, config.run.run_name, may_begin=checkpoint == LAST_OR_NEW)
        if not Path(checkpoint).is_file():
            raise RunError(
                f"--resume_training_ckpt is {checkpoint!r}: there is no such file; give a .ckpt file, or last."
            )
        folder = Path(checkpoint).resolve().parent.parent
        return cls(folder) if (folder / "config.json").is_file() else None

    @classmethod
    def newest(cls, logs_dir: str, run_name: str, may_begin: bool) -> RunFolder | None:
        """The newest run of this name that has a checkpoint; newer ones without a checkpoint are printed.

        may_begin: return None where there is none, instead of an error.
        """
        runs = []
        for file in Path(logs_dir).glob("runs/[!.]*/config.json"):
            try:
                config = json.loads(file.read_bytes())
                name = config["run"]["run_name"]
                trained = not (config["testing"]["only_test"] or config["debugging"]["fast_dev_run"])
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if name == run_name and trained:
                runs.append((file.parent.name.rsplit("_", 2)[-2:], file.parent))
        without_checkpoint: list[str] = []
        for _, path in sorted(runs, reverse=True):
            if any((path / "checkpoints").glob("step_*.ckpt")):
                if without_checkpoint:  # not on stdout, which a job script reads the folder from
                    print(f"passed over, without a checkpoint: {', '.join(without_checkpoint)}", file=sys.stderr)
                return cls(path)
            without_checkpoint.append(path.name)
        if may_begin:
            return None
        others = f", only {', '.join(without_checkpoint)} without one" if without_checkpoint else ""
        raise RunError(
            f"--resume_training_ckpt is 'last': no run named {run_name!r} in {logs_dir}/runs has a checkpoint{others}; "
            "leave the flag out to start a run, or give last_or_new, which resumes where it can and else starts a run."
        )

    def lock(self) -> None:
        """Hold the folder for this process, until it ends, however it ends."""
        self._lock = Lock(self.path / "lock")
        try:
            self._lock.acquire()
        except BlockingIOError:
            raise RunError(
                f"another process is writing run {self.run_id}: wait for it, stop it, or choose another --run_name."
            ) from None

    @property
    def newest_step(self) -> int:
        """The step of the newest checkpoint, by its name; 0 where there is none."""
        return max((int(file.stem[len("step_") :]) for file in self.checkpoints.glob("step_*.ckpt")), default=0)

    def record_killed(self, cause: str | None = None) -> None:
        """Record the end of an attempt that was killed before it could, by what its files show.

        This process holds the lock, so the one that began the attempt is dead. Call this before the metrics are
        truncated for a resume.

        cause: why it ended, where the caller knows.
        """
        for row in merge_attempts(read_rows(self.attempts)):
            if "start" in row and "end" not in row:
                last_change = max(file.stat().st_mtime for file in (self.attempts, self.metrics) if file.exists())
                why = cause or cause_of_killed(row, slurm_job())
                self.record_end(row["attempt"], self.last_seen_step(row), why, last_change)

    def last_seen_step(self, attempt: dict[str, Any]) -> int:
        """The last step that an attempt shows traces of: in a checkpoint, a row of metrics or its heartbeat."""
        steps = [row.get("step") for row in read_rows(self.metrics)]
        try:
            heartbeat = json.loads((self.path / "heartbeat.json").read_bytes())
            steps.append(heartbeat["step"] if stamp(heartbeat["time"]) >= attempt["start"] else 0)
        except (OSError, ValueError, KeyError, TypeError):
            pass  # it did not live long enough for one
        numbers = [step for step in steps if isinstance(step, int)]
        return max(attempt.get("first_step", 0), self.newest_step, *numbers)

    def record_end(self, attempt: int, step: int, cause: str, when: float) -> None:
        lost = 0 if cause == "finished" else max(0, step - self.newest_step)
        row = {"attempt": attempt, "end": stamp(when), "last_step": step, "steps_lost": lost, "cause": cause}
        append_row(self.attempts, row)

    @contextmanager
    def attempt(self, config: RunConfig, step: int) -> Iterator[Attempt]:
        """Record that this process works on the run from `step` on and, at the end, why it ended.

        config.json is replaced by the settings of this attempt.
        """
        attempt = Attempt(self, step)
        if is_first_process():
            write_json(self.path / "config.json", to_dict(config))
            if not (self.path / "task.json").exists():  # a folder that a sweep or an older version made
                write_json(self.path / "task.json", task_record_of(config))
            attempt.begin()
        try:
            yield attempt
        except KeyboardInterrupt:
            attempt.end(None, "stopped by hand")
            raise
        except SystemExit as leaving:
            cause = signals.cause if leaving.code == EXIT_RESUMABLE else f"error: exit status {leaving.code}"
            attempt.end(max(step, self.newest_step), cause)
            raise
        except BaseException as error:
            attempt.end(None, cause_of_error(error))
            raise


def new_run_id(run_name: str) -> str:
    """The name, the time and a random part; good for the name of a folder and of a job."""
    slug = re.sub(r"[^A-Za-z0-9.-]+", "-", run_name).strip("-.") or "run"
    return f"{slug[:60]}_{time.strftime('%Y%m%d-%H%M%S')}_{secrets.token_hex(3)}"


def record(folder: Path, config: RunConfig) -> None:
    """Write the settings, the command, the code's state and the environment into `folder`."""
    write_json(folder / "config.json", to_dict(config))
    write_json(folder / "task.json", task_record_of(config))
    write_text(folder / "command.txt", shlex.join([os.path.basename(sys.executable), *sys.argv]) + "\n")
    code, diff = code_state()
    write_json(folder / "code.json", code)
    write_text(folder / "code.diff", diff)
    write_json(folder / "environment.json", environment())
    # {"parent": run id, "how": rerun, resubmit or sweep, "changes": {flag: value}}
    if lineage := os.environ.get(LINEAGE):
        write_text(folder / "lineage.json", lineage + "\n")


def task_record_of(config: RunConfig) -> dict[str, Any]:
    """What task.json says of the task of this run."""
    return task_record(find_task(config.run.task), values_of(config))


def run_of(code: Path) -> Path | None:
    """The run whose snapshot this code is, for a process that was started from one."""
    run = os.environ.get(JOB_RUN_DIR)
    return Path(run) if run and (Path(run) / "code").resolve() == code else None


def code_state() -> tuple[dict[str, Any], str]:
    """Commit, branch and the uncommitted diff of the code that runs; empty where there is no git."""
    root = Path(__file__).resolve().parent.parent
    if run := run_of(root):
        with suppress(OSError, ValueError):
            return json.loads((run / "code.json").read_bytes()), (run / "code.diff").read_text()

    def git(*words: str) -> str:
        try:
            done = subprocess.run(["git", *words], cwd=root, capture_output=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.decode(errors="replace") if done.returncode == 0 else ""

    diff = git("diff", "HEAD")
    untracked = git("ls-files", "--others", "--exclude-standard").splitlines()
    code = {
        "commit": git("rev-parse", "HEAD").strip() or None,
        "branch": git("rev-parse", "--abbrev-ref", "HEAD").strip() or None,
        "dirty": bool(diff or untracked),
        "untracked": untracked,
    }
    return code, diff


def environment() -> dict[str, Any]:
    """Versions and machine; no environment variable, so no secret."""
    import importlib.metadata  # here, so that commands which make no run do not wait for it

    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "cpus": os.cpu_count(),
        "packages": versions,
    }
