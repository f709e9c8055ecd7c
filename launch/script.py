"""Job scripts: headers, the one builder of their text, and the flags that a script gives to train_model.py."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from core.environment import CALLED_WITH, JOB_RUN_DIR, PYTHON, STEP_OF
from core.environment import HEADERS as HEADERS_DIR
from core.errors import UserError
from core.text import format_value

HEADERS = Path("job_scripts") / "headers"
ARRAY_OPTION = re.compile(r"#SBATCH\s.*(?<!\S)(--array|-a)")
LONG_NAMES = {
    **{"-A": "--account", "-C": "--constraint", "-D": "--chdir", "-G": "--gpus", "-J": "--job-name", "-N": "--nodes"},
    **{"-c": "--cpus-per-task", "-d": "--dependency", "-e": "--error", "-n": "--ntasks", "-o": "--output"},
    **{"-p": "--partition", "-q": "--qos", "-t": "--time", "-w": "--nodelist", "-x": "--exclude"},
}
DEFAULT_OPTIONS = ("--open-mode=append", "--requeue", "--signal=USR1@120")  # unless a header or script asks for another
# Options that overrule each other: only the last one of a group is printed, as sbatch would refuse some pairs.
CONFLICTING = (
    {"--mem", "--mem-per-cpu", "--mem-per-gpu"},
    {"--gres", "--gpus", "--gpus-per-node", "--gpus-per-socket", "--gpus-per-task"},
    {"--cpus-per-task", "--cpus-per-gpu"},
    {"--requeue", "--no-requeue"},
)
DEFAULT_SCRIPT = "job_scripts/train.slurm"  # of a run without a script of its own
ROOT = Path(__file__).resolve().parent.parent
FAKED_COMMANDS = ("python", "python3", "srun", "torchrun", "sbatch")
FAKE_PYTHON = f"""\
#!/bin/bash
printf '%s\\0' "$$" "${{0##*/}}" "$@" > "${CALLED_WITH}"
[[ ${{0##*/}} == python* && ${{1##*/}} == train_model.py ]] || exit 97
"""
# As in a process of a job.
JOB_VARIABLES = dict.fromkeys(("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", STEP_OF), "0")
SCRIPT_TIMEOUT_SECONDS = 30.0  # for a script to call train_model.py
# What `conda activate` also does: packages set what they need in these files, which may read unset variables.
CONDA_ACTIVATE = (
    "set +u",
    "# shellcheck source=/dev/null",
    'for file in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do [[ ! -r $file ]] || source "$file"; done',
    "set -u",
)


@dataclass(frozen=True)
class Header:
    """A file of job_scripts/headers/: #SBATCH lines, and commands such as `module load`.

    resources: what --slurm adds to it, such as nodes=2.
    """

    name: str
    options: list[str]
    commands: list[str]
    resources: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[tuple[str, list[str]]]:
        """(title, #SBATCH lines) of the header and of --slurm."""
        return [
            (f"# {self.name}:", self.options),
            ("# asked for with --slurm:", list(map(option_line, self.resources))),
        ]


def read_header(root: Path, name: str) -> Header:
    """The header of this name in `root`, or where the environment says: an old snapshot uses those of the checkout."""
    folder = Path(os.environ.get(HEADERS_DIR) or root / HEADERS)
    names = sorted(file.stem for file in folder.glob("*.slurm"))
    if name not in names or not re.fullmatch(r"[\w.-]+", name):
        raise UserError(f"HEADER is {name!r}: choose {', '.join(names)}, or add {HEADERS}/NAME.slurm.")
    lines = read_text(folder / f"{name}.slurm", "HEADER").split("\n")
    commands = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return Header(f"{HEADERS}/{name}.slurm", sbatch_lines("\n".join(lines)), commands)


def read_text(path: Path, what: str) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise UserError(
            f"{what} is {format_value(path.name)}: it cannot be read ({error.strerror}); choose another file."
        ) from None
    except UnicodeError:
        raise UserError(f"{what} is {format_value(path.name)}: it is not a UTF-8 text; save it as one.") from None


def sbatch_lines(text: str) -> list[str]:
    """The #SBATCH lines that Slurm would read: those above the first command."""
    lines = []
    for line in text.split("\n"):
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            lines.append(line.rstrip())
    if any(ARRAY_OPTION.match(line) for line in lines):
        raise UserError("#SBATCH --array: an array is several runs, and one submission is one run; remove that line.")
    return lines


def option_line(resource: str) -> str:
    """nodes=2 as an #SBATCH line; a value with blanks is between quotes."""
    name, equals, value = resource.partition("=")
    plain = re.fullmatch(r"[\w.,:;=@%+/\[\]*&|!()-]*", value, re.ASCII)
    return f"#SBATCH --{name}{equals}" + (value if plain else '"' + value.replace('"', '\\"') + '"')


@dataclass(frozen=True)
class JobScript:
    """A script for sbatch: #SBATCH lines, then commands.

    options: (title, #SBATCH lines) of each source; a later source wins, and each option is printed once. commands: the
    lines below, such as those that enter the environment and start the processes. title: a comment at the top.
    """

    options: list[tuple[str, list[str]]]
    commands: list[str]
    title: str = ""

    @property
    def text(self) -> str:
        title = [f"# {self.title}"] if self.title else []
        return "\n".join(["#!/usr/bin/env bash", *title, *merge_options(self.options), *self.commands]) + "\n"


def sbatch_options(*options: str) -> tuple[str, list[str]]:
    """Options such as --requeue as a source without a title."""
    return "", [f"#SBATCH {option}" for option in options]


def merge_options(parts: list[tuple[str, list[str]]]) -> list[str]:
    """(title, #SBATCH lines) as lines, without overruled lines and without titles that have no line left."""
    later: set[str] = set()
    lines: list[str] = []
    for title, options in reversed(parts):
        effective = []
        names_here = set().union(*map(option_names, options))
        for line in reversed(options):
            names = option_names(line)
            if not names or not names <= later:
                effective.append(line)
            later |= names
        later |= {name for group in CONFLICTING if group & names_here for name in group}
        lines += [*effective, *([title] if effective and title else [])]
    return lines[::-1]


def option_names(line: str) -> set[str]:
    """The long names of the options in an #SBATCH line."""
    plain = re.split("['\"]", line.removeprefix("#SBATCH"))[0]
    plain = re.sub(r"--gres[= ](?!(gres[/:])?gpu\b)", "--gres-of-others ", plain)  # not about GPUs
    return {LONG_NAMES.get(word, word) for word in re.findall(r"(?<!\S)(--[\w-]+|-[A-Za-z])", plain)}


def job_script(
    header: Header | None, script: str, text: str, flags: list[str], run: Path, environment: list[str]
) -> str:
    """The job script of a run. script: its path in the snapshot. text: its content. run: the run's folder."""
    title = f"{format_value(script)}, as this run has it: submitted again, it resumes the run."
    options: list[tuple[str, list[str]]] = []
    if header:
        log = f'--output="{quote_for_slurm(str(run))}/slurm-%j.log"'
        options = [sbatch_options(*DEFAULT_OPTIONS), (f"# {format_value(script)}:", sbatch_lines(text)), *header.lines]
        options += [sbatch_options(f"--job-name={run.name}", log)]
    lines = ["set -uo pipefail", export_run(run)]
    lines += [
        "export PYTHONDONTWRITEBYTECODE=1 # the snapshot stays as it is",
        f'cd -- "${JOB_RUN_DIR}/code" || exit',
        *("# shellcheck source=/dev/null", "source job_scripts/environment.sh"),
        *("# shellcheck source=/dev/null", "source job_scripts/under_slurm.sh"),
    ]
    lines += header_commands(header) if header else []
    shown_lines = [
        line for line in text.replace("\r", "").rstrip("\n").split("\n") if not (header and line[:7] == "#SBATCH")
    ]
    lines += [
        *environment,
        f'[[ -z "${{SLURM_JOB_ID:-}}" ]] || "${{python:?}}" -m launch begin "${JOB_RUN_DIR}" || leave $?',
        " ".join(["under_slurm", "bash", shlex.quote(script), *map(shlex.quote, flags)]),
        f"# {format_value(script)}:",
        *(f"#| {line}".rstrip() for line in shown_lines),
    ]
    return JobScript(options, lines, title).text


def export_run(run: Path) -> str:
    """The line of a job script that gives the run's folder to its processes; a script without it cannot resume."""
    return f"export {JOB_RUN_DIR}={shlex.quote(str(run))}"


def header_commands(header: Header) -> list[str]:
    """The header's commands, below `source job_scripts/environment.sh`; the first that fails ends the job."""
    if not header.commands:
        return []
    failed = f"trap 'header_failed {header.name} $? $LINENO' ERR"
    # Commands such as `module` read unset variables.
    return [f"# {header.name}:", "set +u", "find_module", failed, *header.commands, "trap - ERR", "set -u"]


def quote_for_slurm(path: str) -> str:
    """A path for a quoted value of an #SBATCH line, which Slurm reads and not a shell."""
    if not path.isprintable() or "\\" in path:
        raise UserError(
            f"--logs_dir is {path!r}: Slurm cannot write a log there; choose a path without \\ and newlines."
        )
    return path.replace('"', '\\"').replace("%", "%%")


def check_syntax(text: str, what: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True)
    if done.returncode:
        error = done.stderr.decode(errors="replace").strip().split("\n")[0]
        raise UserError(f"{what} is no valid bash: {format_value(error.removeprefix('bash: '))}; correct it.")


def header_name(header: Header | None) -> str | None:
    """The name of a header for --header and slurm_executor.sh; None if it is not a file of headers/."""
    return Path(header.name).stem if header and Path(header.name).parent == HEADERS else None


# -- the flags that a script gives to train_model.py -----------------------------------------------------------------


def flags_passed_by(
    script: Path,
    flags: list[str],
    environment: dict[str, str],
    in_a_job: bool,
    timeout: float = SCRIPT_TIMEOUT_SECONDS,
) -> list[str]:
    """The arguments that a script gives to train_model.py; the script is run with a fake Python, which records them."""
    with tempfile.TemporaryDirectory() as folder:
        for name in FAKED_COMMANDS:
            fake = Path(folder) / name
            fake.write_text(FAKE_PYTHON)
            fake.chmod(0o755)
        output = Path(folder) / "arguments"
        path = f"{folder}:{environment.get('PATH', '')}"
        own_environment = environment | {CALLED_WITH: str(output), "PATH": path}
        own_environment |= {"VIRTUAL_ENV": folder, PYTHON: ""} | (JOB_VARIABLES if in_a_job else {})
        process = subprocess.Popen(
            ["bash", str(script), *flags],
            env=own_environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            _, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            raise UserError(
                f"{format_value(script.name)} did not come to train_model.py within {timeout:g} s."
            ) from None
        words = [os.fsdecode(word) for word in output.read_bytes().split(b"\0")[:-1]] if output.exists() else []
    last = errors.decode(errors="replace").strip().split("\n")[-1]
    return train_flags(script.name, words, process.pid, process.returncode, last)


def train_flags(script: str, words: list[str], shell: int, status: int, errors: str) -> list[str]:
    """The arguments of train_model.py; raises if this script cannot be submitted."""
    expected = 'a script ends in `exec "${python:?}" train_model.py FLAGS "$@"`'
    if not words:
        errors = f" ({format_value(errors)})" if errors else ""
        raise UserError(
            f"{format_value(script)} ended with status {status}{errors} and did not call train_model.py: {expected}."
        )
    process, name, *rest = words
    if not rest or not name.startswith("python") or os.path.basename(rest[0]) != "train_model.py":
        called = format_value(shlex.join([name, *rest[:2]]))
        raise UserError(
            f"{format_value(script)} calls {called}: {expected}; one that does more is for sbatch or bash itself."
        )
    if int(process) != shell:
        raise UserError(
            f"{format_value(script)} calls train_model.py without exec: Slurm's signals would end its shell and not "
            f"reach the run; {expected}."
        )
    return rest[1:]


def active_environment(root: Path) -> list[str]:
    """Shell lines that activate the Python environment that is active now."""
    prefixes = {name: os.environ[name] for name in ("CONDA_PREFIX", "VIRTUAL_ENV") if os.environ.get(name)}
    if not prefixes and sys.prefix != sys.base_prefix:
        prefixes = {"VIRTUAL_ENV": sys.prefix}
    elif not prefixes and (root / ".venv" / "bin" / "python").exists():
        prefixes = {"VIRTUAL_ENV": str(root / ".venv")}
    lines = []
    for name, path in prefixes.items():
        lines += [f'export {name}={shlex.quote(path)} PATH={shlex.quote(path)}/bin:"$PATH"']
        lines += CONDA_ACTIVATE if name == "CONDA_PREFIX" else []
    return lines
