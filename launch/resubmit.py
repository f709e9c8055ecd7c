"""`python -m launch resubmit RUN`: a new run from the same code and settings, or from changed ones."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from config.flags import NAMES
from core.commands import CommandParser, read_changes
from core.errors import UserError
from core.text import shown
from launch.cluster import SLURM_HELP
from launch.execute import ROOT, execute
from launch.resources import read_resources
from launch.script import HEADERS
from runs.folder import JOB_RUN_DIR, LINEAGE
from runs.reading import Run, find_run

SCRIPT = "job_scripts/train.slurm"  # for a run that was started without a script


def resubmit(argv: list[str]) -> int:
    purpose = (
        "A new run from the code snapshot and the settings of RUN, submitted as RUN was. What slurm_executor.sh ran\n"
        "on this machine is run here and now."
    )
    parser = CommandParser("python -m launch resubmit", purpose)
    parser.add_argument("run", metavar="RUN", help="id, name, job, path, or last")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="FLAG=VALUE", help="change settings")
    parser.add_argument("--header", metavar="HEADER", help=f"what to ask Slurm for: a file of {HEADERS}/")
    parser.add_argument("--slurm", action="append", default=[], metavar="NAME=VALUE", help=SLURM_HELP)
    parser.add_argument("--dry_run", action="store_true", help="print the script, and make nothing")
    options = parser.parse_args(argv)
    run = find_run(Path(options.logs_dir), options.run)
    changes = judged_changes(options.set)
    lineage = {"parent": run.run_id, "how": "resubmit", "changes": changes}
    logs = run.path.absolute().parent.parent
    flags = [*changed(typed_flags(run), changes), "--logs_dir", str(logs)]
    last = [*resources_of(run, options.slurm), *(["--dry_run"] if options.dry_run else [])]
    os.environ[LINEAGE] = json.dumps(lineage, ensure_ascii=False)
    code, script = run.path.absolute() / "code", run.submission.get("script")
    if not ((code / "slurm_executor.sh").is_file() and isinstance(script, str)):
        print(f"{run.run_id} has no snapshot of its code: the new run has that of this checkout.", file=sys.stderr)
        return execute([*header_of(run, options.header), SCRIPT, *flags, *last])
    environment = entered(dict(os.environ)) | {JOB_RUN_DIR: str(run.path.absolute())}  # whose code it is
    if options.header:
        environment["EBT_HEADERS"] = str(ROOT / HEADERS)
    if cluster := cluster_of(run, options.header):
        os.chdir(code)
        words = [sys.executable, "-m", "launch", "submit", script, "--cluster", cluster, *flags, *last]
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    else:
        words = ["bash", str(code / "slurm_executor.sh"), *header_of(run, options.header), script, *flags, *last]
    sys.stdout.flush()
    os.execvpe(words[0], words, environment)  # the parser and the submission are those of the snapshot, too


def cluster_of(run: Run, wanted: str | None) -> str | None:
    """Where `launch submit` puts it again: a run that asks Slurm for what its script does; None where a header says."""
    kept = run.submission
    if wanted is not None or isinstance(kept.get("header"), str):
        return None
    if isinstance(cluster := kept.get("cluster"), str):
        return cluster
    if run.job_name is not None:
        return "slurm"
    return "local" if (run.path / "submitit").is_dir() else None


def resources_of(run: Run, wanted: Sequence[str]) -> list[str]:
    """What RUN was given with --slurm, and what is changed of it, as words of the door."""
    kept = run.submission.get("slurm")
    words = read_resources([*(kept if isinstance(kept, list) else []), *wanted])
    code = run.path / "code"
    if wanted and code.is_dir() and not (code / "launch" / "resources.py").is_file():
        raise UserError(f"--slurm is not known to the code that {run.run_id} keeps: give --header instead.")
    return [f"--slurm={word}" for word in words]


def header_of(run: Run, wanted: str | None) -> list[str]:
    """The header as a word of slurm_executor.sh, or none for a run of this machine."""
    if wanted is not None:
        return [wanted]
    if isinstance(kept := run.submission.get("header"), str):
        return [kept]
    if run.job_name is not None:
        known = ", ".join(sorted(file.stem for file in (ROOT / HEADERS).glob("*.slurm")))
        raise UserError(
            f"{run.run_id} was submitted without a header, so what to ask Slurm for is not known: add --header {known}."
        )
    return []


def entered(environment: dict[str, str]) -> dict[str, str]:
    """With this Python as the active one: a snapshot has no .venv of its own to find."""
    if sys.prefix != sys.base_prefix and not (environment.get("VIRTUAL_ENV") or environment.get("CONDA_PREFIX")):
        path = f"{sys.prefix}/bin:{environment.get('PATH', '')}"
        return environment | {"VIRTUAL_ENV": sys.prefix, "PATH": path}
    return environment


def typed_flags(run: Run) -> list[str]:
    """The flags of train_model.py that a run was started with, as they were typed."""
    kept = run.submission.get("flags")
    if isinstance(kept, list):
        return [str(word) for word in kept]
    try:
        words = shlex.split((run.path / "command.txt").read_text())
    except (OSError, ValueError):
        words = []
    for number, word in enumerate(words):
        if os.path.basename(word) == "train_model.py" or (word == "prepare" and words[number - 1].endswith(".py")):
            return words[number + 1 :]
    if not (run.path / "config.json").is_file():
        raise UserError(f"{run.run_id} has neither a command.txt nor a config.json: its settings are not known.")
    return ["--config", str(run.path.absolute() / "config.json")]


def judged_changes(words: list[str]) -> dict[str, str]:
    """What --set changes, spelled as settings.py has it."""
    changes = {}
    for name, value in read_changes(words).items():
        word = f"{name}={value}"
        if name in ("logs_dir", "resume_training_ckpt"):
            raise UserError(f"--set is {shown(word)}: a new run begins anew, beside the old one; leave it out.")
        flag = NAMES.get(name.replace("-", "_"))
        if flag is not None and flag.kind is bool and value not in ("true", "false"):
            raise UserError(f"--set is {shown(word)}: {flag.name} is a switch; write {flag.name}=true or =false.")
        changes[flag.name if flag else name] = value
    return changes


def changed(words: list[str], changes: dict[str, str]) -> list[str]:
    """The words with these flags replaced, and without what would go on in the old run."""
    gone = {"--resume_training_ckpt", "--logs_dir", *(f"--{name}" for name in changes)}
    for name in changes:
        if name in NAMES:
            gone |= {*NAMES[name].on, *NAMES[name].off}
    kept, dropping = [], False
    for word in words:
        if word.startswith("--") and word != "--":
            dropping = word.partition("=")[0] in gone
        if not dropping:
            kept.append(word)
    return [*kept, *(word for name, value in changes.items() for word in spelled(name, value))]


def spelled(name: str, value: str) -> list[str]:
    flag: Any = NAMES.get(name)
    if flag is not None and flag.kind is bool:
        return [flag.spelled(value == "true")]
    if flag is not None and flag.kind is tuple:
        return [f"--{name}", *value.replace(",", " ").split()]
    return [f"--{name}={value}"]  # one word, so that a value may begin with dashes
