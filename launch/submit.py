"""The two commands that submit one run: `bash slurm_executor.sh`, which calls `python -m launch execute`, and
`python -m launch submit`, which goes through submitit.

Both check the script and its flags, make a capsule, and submit it, or run it on this machine. submitit has its own
handling of signals, requeues and time limits. So the function that it runs is `exec`: the job's first process becomes
`bash job_script.slurm` of the run's folder, which handles signals as in every other job.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from config import RunConfig, parse_command_line
from core.commands import CommandParser
from core.environment import clean_environment
from core.errors import UserError
from core.text import format_value
from launch.capsule import absolute_paths, copy_job_script, make_capsule
from launch.resources import as_options, check_placement, read_resources
from launch.script import (
    DEFAULT_SCRIPT,
    HEADERS,
    ROOT,
    Header,
    JobScript,
    active_environment,
    check_syntax,
    flags_passed_by,
    header_name,
    job_script,
    read_header,
    read_text,
    sbatch_lines,
)
from launch.slurm import CLUSTERS, SLURM_HELP, choose_cluster, header_for
from launch.submission import (
    AFTER_HELP,
    IF_HELP,
    Dependency,
    Submission,
    check_with_slurm,
    dependency_on,
    need_slurm,
    read_dependency,
)
from runs import RunFolder
from runs.slurm import slurm_error

EXECUTOR_USAGE = """\
bash slurm_executor.sh [HEADER] JOB_SCRIPT [flags of train_model.py]

HEADER      a file of job_scripts/headers/, without .slurm: what to ask Slurm for; left out: runs here and now
JOB_SCRIPT  such as job_scripts/nlp/pretrain/ebt_s1.sh
--slurm NAME=VALUE
            an option of sbatch that wins over HEADER, such as nodes=2 or time=4:00:00; may be given several times
--after RUN [--if finished|failed|any]
            start when RUN has ended like that; without --if, when it is finished
--dry_run   print the script that would be submitted, and make nothing"""
DRY_RUN_ID = "RUN_ID"  # in place of a name, which a dry run does not give
MAX_MINUTES = 5_000_000  # submitit's limit for a job on this machine; practically none
SUBMIT_USAGE = """\
python -m launch submit [JOB_SCRIPT] [--header H] [--slurm NAME=VALUE] [--after RUN [--if END]] [--cluster C]
                        [--dry_run] [flags of train_model.py]"""
SUBMIT_PURPOSE = """\
Submit one run through submitit; its code, script and settings are kept with it first.

JOB_SCRIPT is such as job_scripts/nlp/pretrain/ebt_s1.sh; without it, train_model.py gets the flags as they are."""


# -- slurm_executor.sh -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SubmitRequest:
    """One submission, as typed.

    words: all of the command. header: what to ask Slurm for; None to run on this machine. script: its path from the
    checkout's root. flags: those for train_model.py. dependency: the run to wait for.
    """

    words: list[str]
    header: Header | None
    script: str
    flags: list[str]
    dry_run: bool
    dependency: Dependency | None = None

    @classmethod
    def read(cls, words: list[str]) -> SubmitRequest:
        resources, rest = take_option("--slurm", [word for word in words if word != "--dry_run"])
        after_words, rest = take_option("--after", rest)
        if_words, rest = take_option("--if", rest)
        for word in rest:
            try:
                word.encode()
            except UnicodeEncodeError:
                raise UserError(f"{word!a} is not UTF-8: a script cannot hold it; write it in another way.") from None
        if not rest or rest[0].startswith("-"):
            raise UserError(EXECUTOR_USAGE)
        header = None
        if not (Path(rest[0]).suffix or "/" in rest[0]):
            header = read_header(ROOT, rest.pop(0))
            if not rest:
                raise UserError(f"JOB_SCRIPT is missing after {format_value(header.name)}: {script_choices()}.")
        sbatch_options = read_resources(resources)
        if sbatch_options and header is None:
            raise UserError(
                "--slurm has no effect without a HEADER, as the script runs here and now: remove one of them."
            )
        if header is not None:
            header = replace(header, resources=sbatch_options)
        dependency = read_dependency(next(reversed(after_words), None), next(reversed(if_words), None), header)
        return cls(words, header, script_path(rest[0]), rest[1:], "--dry_run" in words, dependency)

    def checked_by_slurm(self, config: RunConfig, write_script: Callable[[Path], str]) -> tuple[Self, str]:
        """The request with its dependency resolved, and the expected start; raises if Slurm would not accept it."""
        logs, header = Path(config.logging.logs_dir), self.header
        start = check_with_slurm(
            write_script(logs / "runs" / DRY_RUN_ID), as_options(header.resources if header else ())
        )
        if self.dependency is None:
            return self, start
        dependency = dependency_on(logs, self.dependency.run, self.dependency.condition)
        return replace(self, dependency=dependency), dependency.start or start

    @property
    def options(self) -> list[str]:
        """Options of sbatch for this submission alone."""
        return self.dependency.options if self.dependency else []

    @property
    def typed(self) -> str:
        return shlex.join(["bash", "slurm_executor.sh", *self.words])

    def record(self, config: RunConfig, run: Path) -> dict[str, Any]:
        """For submission.json: what was typed, and the flags that `resubmit` gives to a run of the same snapshot."""
        header = Path(self.header.name).stem if self.header else None
        flags = self.flags + absolute_paths(config, run)
        requested: dict[str, Any] = {"header": header, "slurm": self.header.resources if self.header else []}
        requested |= {"after": self.dependency.record} if self.dependency else {}
        return {"typed": self.words, **requested, "script": self.script, "flags": flags}


def take_option(name: str, words: list[str]) -> tuple[list[str], list[str]]:
    """The values of one option among the flags of train_model.py, and the other words."""
    values: list[str] = []
    rest: list[str] = []
    previous = ""
    for word in words:
        if previous == name:
            values.append(word)
            word = ""
        elif word.startswith(f"{name}="):
            values.append(word.removeprefix(f"{name}="))
        elif word != name:
            rest.append(word)
        previous = word
    if previous == name:
        raise UserError(f"{name} is the last word: a value has to follow it.")
    return values, rest


def script_path(word: str) -> str:
    """The script's path from the checkout's root."""
    path = Path(os.path.abspath(ROOT / word))
    if not path.is_file():
        raise UserError(f"JOB_SCRIPT is {word!r}: there is no such file; {script_choices()}.")
    if not path.is_relative_to(ROOT):
        raise UserError(f"JOB_SCRIPT is {word!r}: put it into job_scripts/, so that it is kept with the code it runs.")
    return str(path.relative_to(ROOT))


def script_choices() -> str:
    files = sorted(file for file in (ROOT / "job_scripts").rglob("*.s*") if (ROOT / HEADERS) not in file.parents)
    sourced = ("environment.sh", "under_slurm.sh")
    return "choose " + ", ".join(str(file.relative_to(ROOT)) for file in files if file.name not in sourced)


def logs_flag(logs: Path) -> str:
    """--logs_dir as the next command needs it; empty for the default."""
    return "" if logs == ROOT / "logs" else f" --logs_dir {shlex.quote(str(logs))}"


def execute(words: list[str]) -> int:
    """The command behind slurm_executor.sh; does not return if the script runs on this machine."""
    if words in (["-h"], ["--help"]):
        print(EXECUTOR_USAGE)
        return 0
    request = SubmitRequest.read(words)
    config, write_script = validate(request)
    if request.dry_run:
        print(write_script(Path(config.logging.logs_dir) / "runs" / DRY_RUN_ID), end="")
        return 0
    if request.header:
        need_slurm()
        request, start = request.checked_by_slurm(config, write_script)
    folder = make_capsule(request, config, write_script)
    copy_job_script(folder.path)
    print(f"run id  {folder.run_id}", flush=True)
    if request.header is None:
        os.execvpe("bash", ["bash", str(folder.path / "job_script.slurm")], clean_environment())
    job = Submission(folder.path, request.options, is_new=True).submit()
    log = folder.path / f"slurm-{job}.log"
    print(f"job id  {job}\nscript  {folder.path / 'job_script.slurm'}\nlog     {log}")
    print_start(start)
    print(f"follow  python -m launch logs {folder.run_id} -f{logs_flag(folder.path.parent.parent)}")
    return 0


def print_start(start: str) -> None:
    if start:
        print(f"start   {start}")


def validate(request: SubmitRequest) -> tuple[RunConfig, Callable[[Path], str]]:
    """The run's settings and a function that builds its job script. Checks everything, creates nothing."""
    text = read_text(ROOT / request.script, "JOB_SCRIPT")
    check_syntax(text, f"JOB_SCRIPT {format_value(request.script)}")
    with chdir(ROOT):  # relative paths are relative to it, as when a script runs with plain bash
        flags = flags_passed_by(ROOT / request.script, request.flags, clean_environment(), request.header is not None)
        config = parse_command_line(flags)
        refuse_resumed(config, request)
        logs = Path(config.logging.logs_dir).absolute()
    config = replace(config, logging=replace(config.logging, logs_dir=str(logs)))
    environment = active_environment(ROOT)

    def write_script(run: Path) -> str:
        flags = request.flags + absolute_paths(config, run)
        script = job_script(request.header, request.script, text, flags, run, environment)
        check_syntax(script, request.header.name if request.header else request.script)
        return script

    script = write_script(logs / "runs" / DRY_RUN_ID)
    if request.header:
        check_placement(sbatch_lines(script), config.trainer)
    return config, write_script


def refuse_resumed(config: RunConfig, request: SubmitRequest) -> None:
    """Refuse to resume a run here: it keeps its folder, script and code."""
    if (run := RunFolder.resumed(config)) is None:
        return
    how = "sbatch" if request.header else "bash"
    script = run.path.absolute() / "job_script.slurm"
    instead = (
        shlex.quote(str(script)) if (run.path / "code").is_dir() else "job_scripts/train.slurm with the same flags"
    )
    raise UserError(
        f"--resume_training_ckpt resumes run {format_value(run.run_id)}, which has its own script: {how} {instead}."
    )


# -- python -m launch submit -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SubmititRequest(SubmitRequest):
    """A request of `launch submit`."""

    cluster: str = "local"

    @property
    def typed(self) -> str:
        return shlex.join(["python", "-m", "launch", "submit", *self.words])

    def record(self, config: RunConfig, run: Path) -> dict[str, Any]:
        return super().record(config, run) | {"header": header_name(self.header), "cluster": self.cluster}


def submit(argv: list[str]) -> int:
    """The command: make the capsule, hand it to submitit, print where it is."""
    parser = CommandParser("python -m launch submit", SUBMIT_PURPOSE, usage=SUBMIT_USAGE)
    parser.add_argument("--header", metavar="H", help="a file of job_scripts/headers/: what to ask Slurm for")
    parser.add_argument("--slurm", action="append", default=[], metavar="NAME=VALUE", help=SLURM_HELP)
    parser.add_argument("--after", metavar="RUN", help=AFTER_HELP)
    parser.add_argument("--if", dest="condition", metavar="END", help=IF_HELP)
    parser.add_argument(
        "--cluster",
        choices=CLUSTERS,
        default="auto",
        help="slurm; local: in the background of this machine; debug: here and now; auto: slurm, else local",
    )
    parser.add_argument("--dry_run", action="store_true", help="print the script that would run, and make nothing")
    script = argv[0] if argv and not argv[0].startswith("-") else DEFAULT_SCRIPT
    options, flags = parser.parse_known_args(argv[1:] if argv and not argv[0].startswith("-") else argv)
    if any(word.split("=")[0] == "--logs_dir" for word in argv):
        flags += ["--logs_dir", options.logs_dir]
    cluster = choose_cluster(options.cluster)
    header = header_for(options.header, cluster, options.slurm)
    dependency = read_dependency(options.after, options.condition, header)
    request = SubmititRequest(argv, header, script_path(script), flags, options.dry_run, dependency, cluster)
    config, write_script = validate(request)
    logs = Path(config.logging.logs_dir)
    if match := re.search("%[jtAa]", str(logs)):
        raise UserError(
            f"--logs_dir is {str(logs)!r}: submitit would read {match.group()} as the number of a job; "
            "choose another path, or submit with slurm_executor.sh."
        )
    if options.dry_run:
        print(write_script(logs / "runs" / DRY_RUN_ID), end="")
        return 0
    if cluster == "slurm":
        request, start = request.checked_by_slurm(config, write_script)
    run = make_capsule(request, config, write_script).path
    copy_job_script(run)
    print(f"run id  {run.name}\nscript  {run / 'job_script.slurm'}", flush=True)
    leave_job_environment()
    if cluster == "debug":
        run_here(run)
    if cluster == "slurm":
        job = SubmititSubmission(run, request.options, is_new=True).submit()
        print(f"job id  {job}\nlog     {run / f'slurm-{job}.log'}")
        print_start(start)
    else:
        process = run_in_background(run)
        print(f"process {process}\nlog     {run / 'submitit' / f'{process}_0_log.out'}")
    print(f"follow  python -m launch logs {run.name} -f{logs_flag(logs)}")
    return 0


class SubmititSubmission(Submission):
    """A Slurm job whose script submitit writes, below the #SBATCH lines of the run's script."""

    def send(self) -> str:
        from submitit import SlurmExecutor  # imported late, so that --help is fast
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        header_lines, options = sbatch_lines((self.run / "job_script.slurm").read_text()), self.own_options

        class Executor(SlurmExecutor):
            def _make_submission_file_text(self, command: str, uid: str) -> str:
                return JobScript([("", header_lines)], ["export SUBMITIT_EXECUTOR=slurm", command]).text

            def _make_submission_command(self, submission_file_path: Path) -> list[str]:
                return ["sbatch", "--hold", *options, str(submission_file_path)]

        # exec: no other process between Slurm and the run's script that a signal could end
        executor = Executor(self.run / "submitit", python=f"exec {shlex.quote(sys.executable)}")
        script = str(self.run / "job_script.slurm")
        try:
            with chdir(self.run / "code"), redirect_stderr(io.StringIO()):
                return executor.submit(os.execvp, "bash", ["bash", script]).job_id
        except (FailedJobError, FailedSubmissionError) as error:
            raise slurm_error("sbatch", str(error)) from None
        except OSError as error:
            raise UserError(f"sbatch cannot be run ({error.strerror})") from None


def leave_job_environment() -> None:
    """Remove variables of the job or run that this is called from: submitit passes its environment on."""
    environment = clean_environment()
    os.environ.clear()
    os.environ.update(environment)


def run_in_background(run: Path) -> str:
    """Start the run in its own session, which survives the terminal; the process id."""
    from submitit import LocalExecutor

    executor = LocalExecutor(run / "submitit")
    executor.update_parameters(timeout_min=MAX_MINUTES, stderr_to_stdout=True)
    # submitit hides all GPUs from a local job; restore the ones that are visible here
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = ["-u", "CUDA_VISIBLE_DEVICES"] if visible is None else [f"CUDA_VISIBLE_DEVICES={visible}"]
    words = ["env", *devices, "bash", str(run / "job_script.slurm")]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            leave_job_environment()
            null = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(null, stream)
            with chdir(run / "code"):
                os.write(writer, executor.submit(os.execvp, "env", words).job_id.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        process = answer.read()
    os.waitpid(child, 0)
    submission = Submission(run)
    if not process:
        submission.try_save_state("failed", error="submitit could not start it")
        raise UserError(f"submitit could not start the run here. Its record stays in {format_value(str(run))}.")
    submission.save_state("here", process=int(process))
    return process


def run_here(run: Path) -> None:
    """Replace this process by the run."""
    from submitit import DebugExecutor

    DebugExecutor(run / "submitit").submit(os.execvp, "bash", ["bash", str(run / "job_script.slurm")]).results()
