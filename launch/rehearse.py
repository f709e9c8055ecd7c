"""Finds out what a job script would give to train_model.py, by running it with a stand-in for Python."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from core.errors import UserError
from core.text import shown

STANDS_IN_FOR = ("python", "python3", "srun", "torchrun", "sbatch")
STAND_IN = """\
#!/bin/bash
printf '%s\\0' "$$" "${0##*/}" "$@" > "$EBT_REHEARSAL"
[[ ${0##*/} == python* && ${1##*/} == train_model.py ]] || exit 97
"""
IN_A_JOB = {
    "SLURM_JOB_ID": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "EBT_STEP_OF": "0",
}  # as a process of the job sees it
PATIENCE = 30  # seconds
# What `conda activate` also does: packages set what they need in these files, which may read unset variables.
ACTIVATE = (
    "set +u",
    "# shellcheck source=/dev/null",
    'for file in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do [[ ! -r $file ]] || source "$file"; done',
    "set -u",
)


def rehearse(script: Path, flags: list[str], environment: dict[str, str], in_a_job: bool) -> list[str]:
    """The words after train_model.py when the script is given these flags; nothing of Python is run."""
    with tempfile.TemporaryDirectory() as folder:
        for name in STANDS_IN_FOR:
            stand_in = Path(folder) / name
            stand_in.write_text(STAND_IN)
            stand_in.chmod(0o755)
        heard = Path(folder) / "heard"
        mine = environment | {"EBT_REHEARSAL": str(heard), "PATH": f"{folder}:{environment.get('PATH', '')}"}
        mine |= {"VIRTUAL_ENV": folder, "EBT_PYTHON": ""} | (IN_A_JOB if in_a_job else {})
        process = subprocess.Popen(
            ["bash", str(script), *flags],
            env=mine,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            _, said = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            raise UserError(f"{shown(script.name)} did not come to train_model.py within {PATIENCE} s.") from None
        words = [os.fsdecode(word) for word in heard.read_bytes().split(b"\0")[:-1]] if heard.exists() else []
    last = said.decode(errors="replace").strip().split("\n")[-1]
    return judge(script.name, words, process.pid, process.returncode, last)


def judge(script: str, words: list[str], shell: int, status: int, said: str) -> list[str]:
    """The words of train_model.py, or why this script cannot be submitted."""
    wanted = 'a script ends in `exec "${python:?}" train_model.py FLAGS "$@"`'
    if not words:
        said = f" ({shown(said)})" if said else ""
        raise UserError(f"{shown(script)} ended with status {status}{said} and did not call train_model.py: {wanted}.")
    process, name, *rest = words
    if not rest or not name.startswith("python") or os.path.basename(rest[0]) != "train_model.py":
        called = shown(shlex.join([name, *rest[:2]]))
        raise UserError(f"{shown(script)} calls {called}: {wanted}; one that does more is for sbatch or bash itself.")
    if int(process) != shell:
        raise UserError(
            f"{shown(script)} calls train_model.py without exec: Slurm's signals would end its shell and not reach the "
            f"run; {wanted}."
        )
    return rest[1:]


def active_environment(root: Path) -> list[str]:
    """The lines that enter the Python environment of this moment again."""
    prefixes = {name: os.environ[name] for name in ("CONDA_PREFIX", "VIRTUAL_ENV") if os.environ.get(name)}
    if not prefixes and sys.prefix != sys.base_prefix:
        prefixes = {"VIRTUAL_ENV": sys.prefix}
    elif not prefixes and (root / ".venv" / "bin" / "python").exists():
        prefixes = {"VIRTUAL_ENV": str(root / ".venv")}
    lines = []
    for name, path in prefixes.items():
        lines += [f'export {name}={shlex.quote(path)} PATH={shlex.quote(path)}/bin:"$PATH"']
        lines += ACTIVATE if name == "CONDA_PREFIX" else []
    return lines
