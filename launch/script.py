"""The text of a job script: what is asked of Slurm, then the commands that run a script of the snapshot."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from core.errors import UserError
from core.text import shown

HEADERS = Path("job_scripts") / "headers"
ARRAY = re.compile(r"#SBATCH\s.*(?<!\S)(--array|-a)")
SHORT = {
    **{"-A": "--account", "-C": "--constraint", "-D": "--chdir", "-G": "--gpus", "-J": "--job-name", "-N": "--nodes"},
    **{"-c": "--cpus-per-task", "-d": "--dependency", "-e": "--error", "-n": "--ntasks", "-o": "--output"},
    **{"-p": "--partition", "-q": "--qos", "-t": "--time", "-w": "--nodelist", "-x": "--exclude"},
}
FIRST = ("--open-mode=append", "--requeue", "--signal=USR1@120")  # unless a header or script asks for another
# Options that say the same thing in another way: the last who says it counts, and sbatch does not see two of them.
SAME = (
    {"--mem", "--mem-per-cpu", "--mem-per-gpu"},
    {"--gres", "--gpus", "--gpus-per-node", "--gpus-per-socket", "--gpus-per-task"},
    {"--cpus-per-task", "--cpus-per-gpu"},
    {"--requeue", "--no-requeue"},
)


@dataclass(frozen=True)
class Header:
    """The head of a script: its #SBATCH lines, and commands such as `module load`.

    resources: what --slurm asks for beyond that, such as nodes=2.
    """

    name: str
    options: list[str]
    commands: list[str]
    resources: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[tuple[str, list[str]]]:
        """(title, #SBATCH lines) of both."""
        return [(f"# {self.name}:", self.options), ("# asked for with --slurm:", list(map(as_line, self.resources)))]


def read_header(root: Path, name: str) -> Header:
    """The header of this name, of `root` or, for a run from an old snapshot on the cluster of today, of EBT_HEADERS."""
    folder = Path(os.environ.get("EBT_HEADERS") or root / HEADERS)
    known = sorted(file.stem for file in folder.glob("*.slurm"))
    if name not in known or not re.fullmatch(r"[\w.-]+", name):
        raise UserError(f"HEADER is {name!r}: choose {', '.join(known)}, or add {HEADERS}/NAME.slurm.")
    lines = read_text(folder / f"{name}.slurm", "HEADER").split("\n")
    commands = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return Header(f"{HEADERS}/{name}.slurm", options_of("\n".join(lines)), commands)


def read_text(path: Path, what: str) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise UserError(f"{what} is {shown(path.name)}: it cannot be read ({error.strerror}).") from None
    except UnicodeError:
        raise UserError(f"{what} is {shown(path.name)}: it is not a UTF-8 text.") from None


def options_of(text: str) -> list[str]:
    """The #SBATCH lines that Slurm would read: those above the first command."""
    found = []
    for line in text.split("\n"):
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            found.append(line.rstrip())
    if any(ARRAY.match(line) for line in found):
        raise UserError("#SBATCH --array: an array is several runs, and one submission is one run; remove that line.")
    return found


def as_line(resource: str) -> str:
    """nodes=2 as an #SBATCH line; a value with blanks is between quotes."""
    name, equals, value = resource.partition("=")
    plain = re.fullmatch(r"[\w.,:;=@%+/\[\]*&|!()-]*", value, re.ASCII)
    return f"#SBATCH --{name}{equals}" + (value if plain else '"' + value.replace('"', '\\"') + '"')


def each_once(parts: list[tuple[str, list[str]]]) -> list[str]:
    """(title, #SBATCH lines) as lines, without those that a later one overrules and titles that have none left."""
    later: set[str] = set()
    lines: list[str] = []
    for title, options in reversed(parts):
        kept = []
        said = set().union(*map(option_names, options))
        for line in reversed(options):
            names = option_names(line)
            if not names or not names <= later:
                kept.append(line)
            later |= names
        later |= {name for group in SAME if group & said for name in group}
        lines += [*kept, *([title] if kept and title else [])]
    return lines[::-1]


def option_names(line: str) -> set[str]:
    """The options of an #SBATCH line, which may have several, by their long names."""
    plain = re.split("['\"]", line.removeprefix("#SBATCH"))[0]
    plain = re.sub(r"--gres[= ](?!(gres[/:])?gpu\b)", "--gres-of-others ", plain)  # says nothing about GPUs
    return {SHORT.get(word, word) for word in re.findall(r"(?<!\S)(--[\w-]+|-[A-Za-z])", plain)}


def job_script(
    header: Header | None, script: str, text: str, flags: list[str], run: Path, environment: list[str]
) -> str:
    """The whole script; `script` is its path in the snapshot, `text` what it says, `run` the run's folder."""
    lines = [
        "#!/usr/bin/env bash",
        f"# {shown(script)}, kept with its run: the run goes on when this is submitted again.",
    ]
    if header:
        asked = [(f"# {shown(script)}:", options_of(text)), *header.lines]
        lines += each_once(
            [
                ("", [f"#SBATCH {option}" for option in FIRST]),
                *asked,
                ("", [f"#SBATCH --job-name={run.name}", f'#SBATCH --output="{slurm_quoted(str(run))}/slurm-%j.log"']),
            ]
        )
    lines += ["set -uo pipefail", f"export EBT_JOB_RUN_DIR={shlex.quote(str(run))}"]
    lines += [
        "export PYTHONDONTWRITEBYTECODE=1 # the snapshot stays as it is",
        'cd -- "$EBT_JOB_RUN_DIR/code" || exit',
        *("# shellcheck source=/dev/null", "source job_scripts/environment.sh"),
        *("# shellcheck source=/dev/null", "source job_scripts/under_slurm.sh"),
    ]
    lines += commands_of(header) if header else []
    told = [line for line in text.replace("\r", "").rstrip("\n").split("\n") if not (header and line[:7] == "#SBATCH")]
    lines += [
        *environment,
        '[[ -z "${SLURM_JOB_ID:-}" ]] || "${python:?}" -m launch begin "$EBT_JOB_RUN_DIR" || leave $?',
        " ".join(["under_slurm", "bash", shlex.quote(script), *map(shlex.quote, flags)]),
        f"# {shown(script)}:",
        *(f"#| {line}".rstrip() for line in told),
    ]
    return "\n".join(lines) + "\n"


def commands_of(header: Header) -> list[str]:
    """The header's commands, below `source job_scripts/environment.sh`; the first that fails ends the job."""
    if not header.commands:
        return []
    failed = f"trap 'header_failed {header.name} $? $LINENO' ERR"
    # Commands of sites, such as `module`, read variables that are not there.
    return [f"# {header.name}:", "set +u", "find_module", failed, *header.commands, "trap - ERR", "set -u"]


def slurm_quoted(path: str) -> str:
    """A path between the quotes of an #SBATCH line, where Slurm and not a shell reads it."""
    if not path.isprintable() or "\\" in path:
        raise UserError(
            f"--logs_dir is {path!r}: Slurm cannot write a log there; choose a path without \\ and newlines."
        )
    return path.replace('"', '\\"').replace("%", "%%")


def check_syntax(text: str, what: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().split("\n")[0]
        raise UserError(f"{what} is no valid bash: {shown(said.removeprefix('bash: '))}; correct it.")
