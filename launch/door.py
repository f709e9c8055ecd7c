"""`python -m launch submit`: one run through submitit, on Slurm or in the background of this machine.

submitit would have signals, requeues and time limits its own way. So the function that it runs is `exec`: the job's
first process becomes `bash job_script.slurm` of the run's folder, and from there on signals have the one owner that
they have in every other job.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from contextlib import chdir, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config import RunConfig
from core.commands import CommandParser
from core.environment import clean_environment
from core.errors import UserError
from core.text import shown
from launch.chain import AFTER_HELP, IF_HELP, read_after
from launch.cluster import CLUSTERS, SLURM_HELP, USUAL, choose_cluster, header_for, header_word
from launch.execute import DRY, Order, checked, keep_plain_copy, logs_flag, make_capsule, print_start, script_path
from launch.script import options_of
from launch.submit import Submission, complaint

LONGEST = 5_000_000  # minutes: submitit's own limit for a job on this machine, which it must never reach
USAGE = """\
python -m launch submit [JOB_SCRIPT] [--header H] [--slurm NAME=VALUE] [--after RUN [--if END]] [--cluster C]
                        [--dry_run] [flags of train_model.py]"""
PURPOSE = """\
Submit one run through submitit; its code, script and settings are kept with it first.

JOB_SCRIPT is such as job_scripts/nlp/pretrain/ebt_s1.sh; without it, train_model.py gets the flags as they are."""


@dataclass(frozen=True)
class Submitted(Order):
    """An order typed at this door."""

    cluster: str = "local"

    @property
    def typed(self) -> str:
        return shlex.join(["python", "-m", "launch", "submit", *self.words])

    def record(self, config: RunConfig, run: Path) -> dict[str, Any]:
        return super().record(config, run) | {"header": header_word(self.header), "cluster": self.cluster}


def submit(argv: list[str]) -> int:
    """Keep the run, hand it to submitit, and say where it is."""
    parser = CommandParser("python -m launch submit", PURPOSE, usage=USAGE)
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
    script = argv[0] if argv and not argv[0].startswith("-") else USUAL
    options, flags = parser.parse_known_args(argv[1:] if argv and not argv[0].startswith("-") else argv)
    if any(word.split("=")[0] == "--logs_dir" for word in argv):
        flags += ["--logs_dir", options.logs_dir]
    cluster = choose_cluster(options.cluster)
    header = header_for(options.header, cluster, options.slurm)
    after = read_after(options.after, options.condition, header)
    order = Submitted(argv, header, script_path(script), flags, options.dry_run, after, cluster)
    config, write_script = checked(order)
    logs = Path(config.logging.logs_dir)
    if found := re.search("%[jtAa]", str(logs)):
        raise UserError(
            f"--logs_dir is {str(logs)!r}: submitit would read {found.group()} as the number of a job; "
            "choose another path, or submit with slurm_executor.sh."
        )
    if options.dry_run:
        print(write_script(logs / "runs" / DRY), end="")
        return 0
    if cluster == "slurm":
        order, start = order.tried_out(config, write_script)
    run = make_capsule(order, config, write_script).path
    keep_plain_copy(run)
    print(f"run id  {run.name}\nscript  {run / 'job_script.slurm'}", flush=True)
    leave_job()
    if cluster == "debug":
        run_here(run)
    if cluster == "slurm":
        job = ThroughSubmitit(run, order.options, is_new=True).submit()
        print(f"job id  {job}\nlog     {run / f'slurm-{job}.log'}")
        print_start(start)
    else:
        process = run_in_background(run)
        print(f"process {process}\nlog     {run / 'submitit' / f'{process}_0_log.out'}")
    print(f"follow  python -m launch logs {run.name} -f{logs_flag(logs)}")
    return 0


class ThroughSubmitit(Submission):
    """A job of Slurm whose script submitit writes, below the #SBATCH lines of the run's own."""

    def send(self) -> str:
        from submitit import SlurmExecutor  # here, so that --help does not wait for it
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        options, own = options_of((self.run / "job_script.slurm").read_text()), self.own_options

        class Executor(SlurmExecutor):
            def _make_submission_file_text(self, command: str, uid: str) -> str:
                return "\n".join(["#!/usr/bin/env bash", *options, "export SUBMITIT_EXECUTOR=slurm", command, ""])

            def _make_submission_command(self, submission_file_path: Path) -> list[str]:
                return ["sbatch", "--hold", *own, str(submission_file_path)]

        # exec: between Slurm and the run's script there is no other process that a signal could end
        executor = Executor(self.run / "submitit", python=f"exec {shlex.quote(sys.executable)}")
        script = str(self.run / "job_script.slurm")
        try:
            with chdir(self.run / "code"), redirect_stderr(io.StringIO()):
                return executor.submit(os.execvp, "bash", ["bash", script]).job_id
        except (FailedJobError, FailedSubmissionError) as error:
            raise complaint("sbatch", str(error)) from None
        except OSError as error:
            raise UserError(f"sbatch cannot be run ({error.strerror})") from None


def leave_job() -> None:
    """Forget the job or run that this is called from: submitit gives its own environment to all that it starts."""
    own = clean_environment()
    os.environ.clear()
    os.environ.update(own)


def run_in_background(run: Path) -> str:
    """The process that keeps the run, in a session of its own: the end of the terminal does not end it."""
    from submitit import LocalExecutor

    executor = LocalExecutor(run / "submitit")
    executor.update_parameters(timeout_min=LONGEST, stderr_to_stdout=True)
    # submitit hides all GPUs from what it starts here; the run sees those that were seen before
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = ["-u", "CUDA_VISIBLE_DEVICES"] if visible is None else [f"CUDA_VISIBLE_DEVICES={visible}"]
    words = ["env", *devices, "bash", str(run / "job_script.slurm")]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            leave_job()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(nowhere, stream)
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
        submission.note_if_possible("failed", error="submitit could not start it")
        raise UserError(f"submitit could not start the run here. Its record stays in {shown(str(run))}.")
    submission.note("here", process=int(process))
    return process


def run_here(run: Path) -> None:
    """Does not return: this process becomes the run."""
    from submitit import DebugExecutor

    DebugExecutor(run / "submitit").submit(os.execvp, "bash", ["bash", str(run / "job_script.slurm")]).results()
