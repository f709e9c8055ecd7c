"""Run folders written by hand, and programs that stand for Slurm's."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest


def stamp(ago: float = 0.0) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(time.time() - ago))


def began(number: int, ago: float = 60, **more: Any) -> dict[str, Any]:
    return {"attempt": number, "start": stamp(ago), "host": "elsewhere", "pid": 1, "first_step": 0, **more}


def ended(number: int, cause: str, ago: float = 30, **more: Any) -> dict[str, Any]:
    return {"attempt": number, "end": stamp(ago), "last_step": 9, "cause": cause, **more}


def write_run(logs: Path, name: str, *attempts: dict[str, Any], number: int = 0, **files: Any) -> Path:
    """files: the content of submission.json, job.json and the like, by their names without .json."""
    run = logs / "runs" / f"{name}_20261116-{number:06}_{number:06x}"
    run.mkdir(parents=True)
    files = {"config": {"run": {"run_name": name}, "trainer": {"max_steps": 100}}} | files
    for kind, content in files.items():
        (run / f"{kind}.json").write_text(json.dumps(content))
    if attempts:
        (run / "attempts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in attempts))
    return run


class Programs:
    """A folder in PATH; each program records its arguments, then runs its commands."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def put(self, name: str, text: str) -> None:
        log = self.folder / f"{name}.calls"
        (self.folder / name).write_text(f'#!/bin/bash\nprintf "%s " "$@" >> "{log}"; echo >> "{log}"\n{text}\n')
        (self.folder / name).chmod(0o755)

    def queue(self, *lines: str, cluster: str = "test") -> None:
        """squeue that prints these lines: job|state|reason|nodes|partition|start."""
        self.put("squeue", "\n".join(f"echo '{line}'" for line in lines))
        self.put("scontrol", f"echo 'ClusterName             = {cluster}'")

    def calls(self, name: str) -> list[str]:
        """The arguments of each call of a program."""
        log = self.folder / f"{name}.calls"
        return [line.strip() for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "logs"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    return Programs(tmp_path / "programs", monkeypatch)
