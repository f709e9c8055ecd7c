"""`python -m launch cancel`, `requeue` and `resubmit`: end a run, let it continue, or repeat it as a new run."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from config.record import without_flags
from config.task_flags import all_names
from core.commands import CommandParser, read_changes
from core.environment import HEADERS as HEADERS_DIR
from core.environment import JOB_RUN_DIR, LINEAGE
from core.errors import UserError
from core.files import append_row
from core.text import format_value
from launch.bad_nodes import node_that_ended
from launch.queue import unfinished_runs
from launch.resources import read_resources
from launch.script import DEFAULT_SCRIPT, HEADERS, ROOT, export_run
from launch.slurm import ACTIVE, NEVER_STARTS, PENDING, SLURM_HELP, Job, SlurmJobs, jobs_of, status_of
from launch.submission import Submission, check_with_slurm, need_slurm, same_dependency
from launch.submit import execute, logs_flag, run_in_background
from runs.folder import RunError, RunFolder
from runs.run import Run, find_run
from runs.slurm import run_slurm, scontrol_show

CANCEL_TIMEOUT_SECONDS = 20.0  # for a cancelled run to save its state
INTERRUPTED = "interrupted"  # the cause that a run records when a signal ends it


# -- cancel ----------------------------------------------------------------------------------------------------------


def selected_runs(options: Namespace) -> tuple[list[Run], SlurmJobs]:
    """The named runs, each once, and their jobs."""
    matches = [find_run(Path(options.logs_dir).absolute(), word) for word in options.runs]
    runs = list({run.path.resolve(): run for run in matches}.values())
    return runs, jobs_of(runs)


def run_parser(name: str, purpose: str) -> CommandParser:
    parser = CommandParser(f"python -m launch {name}", purpose)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="id, name, job, path, or last")
    return parser


def for_each(runs: list[Run], jobs: SlurmJobs, act: Callable[[Run, SlurmJobs], str]) -> int:
    """Call `act` for every run and print the results; an error of one run does not stop the others."""
    status = 0
    for run in runs:
        try:
            print(f"{run.run_id}: {act(run, jobs)}", flush=True)
        except UserError as error:
            print(f"{run.run_id}: {error}", file=sys.stderr)
            status = 1
    return status


def cancel(argv: list[str], timeout: float = CANCEL_TIMEOUT_SECONDS) -> int:
    """The command. timeout: seconds to wait for the ends of the cancelled runs."""
    purpose = "End runs, not to be queued again: a running one saves its state first, a waiting one leaves the queue."
    runs, jobs = selected_runs(run_parser("cancel", purpose).parse_args(argv))
    status = for_each(runs, jobs, cancel_one)
    wait_for_ends([run for run in runs if Run(run.path).submission.get("state") == "cancelled"], timeout)
    return status


def cancel_one(run: Run, jobs: SlurmJobs) -> str:
    job, status = jobs.job_of(run), status_of(run, jobs)
    if status.state in ("cancelled", "finished"):
        return f"nothing to cancel: it is {status}."
    if job is not None and not job.is_over:
        submission = record_cancelled(run)
        try:
            submission.call_slurm(["scancel", job.name])
        except UserError:
            submission.try_save_state(str(run.submission.get("state")), time=run.submission.get("time"))
            raise
        return f"job {job.name} was cancelled while it was {'waiting' if job.state in PENDING else 'running'}."
    process = run.holder  # read once: it may end at any moment, and a signal to process 0 would go to ourselves
    if process and not is_here(run):
        raise UserError(f"it runs on {format_value(host_of(run))} without a job: cancel it there.")
    if process > 0:
        record_cancelled(run)
        try:
            os.kill(process, signal.SIGTERM)
        except ProcessLookupError:
            return f"process {process} of this machine ended by itself just now; the run is noted as cancelled."
        return f"process {process} of this machine got a signal to save its state and end."
    if status.state not in ACTIVE and status.state not in ("lost", "interrupted"):
        return f"nothing to cancel: it is {status}."
    if run.job_name is not None and not jobs.covers(run):
        why = jobs.problem or f"it is a job of cluster {format_value(run.job.get('cluster'))}"
        raise UserError(f"job {run.job_name} cannot be cancelled from here ({why}): try again later, or there.")
    record_cancelled(run)
    return "it has no job and no process any more; it is noted as cancelled."


def record_cancelled(run: Run) -> Submission:
    """Record it before the signal is sent, so that the end is not taken for an interruption."""
    submission = Submission(run.path)
    try:
        submission.save_state("cancelled")
        return submission
    except OSError as error:
        raise UserError(
            f"{format_value(str(run.path))} cannot be written to ({error.strerror}): it was left alone."
        ) from None


def host_of(run: Run) -> str:
    last = run.attempts[-1] if run.attempts else {}
    return str(last.get("host") or run.read("environment.json").get("host") or "another machine")


def is_here(run: Run) -> bool:
    return host_of(run) == platform.node()


def wait_for_ends(runs: list[Run], timeout: float) -> None:
    """Record the cause of attempts as soon as they end; for slower ones submission.json has it."""
    began_at = time.monotonic()
    is_announced = False
    while runs := [run for run in runs if not close_cancelled(Run(run.path))]:
        if not is_announced and time.monotonic() - began_at > 1:
            print(f"waiting up to {timeout:g} s for the end of {len(runs)}; Ctrl-C changes nothing", file=sys.stderr)
            is_announced = True
        if time.monotonic() - began_at > timeout:
            break
        time.sleep(0.2)


def close_cancelled(run: Run) -> bool:
    """Whether the newest attempt is over; if so, its cause becomes `cancelled`."""
    if not run.attempts:
        return not run.is_held
    last = run.attempts[-1]
    if "end" not in last:
        if run.state != "cancelled":
            return False
        with suppress(RunError, OSError):  # killed before it could record its end
            folder = RunFolder(run.path)
            folder.lock()
            folder.record_killed("cancelled")
        return True
    if str(last.get("cause", "")).startswith(INTERRUPTED) and run.state == "cancelled":
        append_row(run.path / "attempts.jsonl", {"attempt": last["attempt"], "cause": "cancelled"})
    return True


# -- requeue ---------------------------------------------------------------------------------------------------------


def requeue(argv: list[str]) -> int:
    purpose = "Put runs back into the queue; each resumes from its last state, in its own folder."
    parser = run_parser("requeue", purpose)
    parser.add_argument(
        "--exclude_nodes",
        metavar="NODES",
        help="start elsewhere: last (the node of its last attempt), or names such as n1,n[3-4]",
    )
    options = parser.parse_args(argv)
    return for_each(*selected_runs(options), lambda run, jobs: requeue_one(run, jobs, options.exclude_nodes))


def requeue_one(run: Run, jobs: SlurmJobs, exclude: str | None = None) -> str:
    job, status = jobs.job_of(run), status_of(run, jobs)
    if status.state == "finished":
        command = f"python -m launch resubmit {shlex.quote(run.run_id)}{logs_flag(run.path.parent.parent)}"
        raise UserError(f"it is finished; {command} runs it once more.")
    if job is not None and not job.is_over:
        return requeue_job(run, job, exclude)
    if run.is_held:
        raise UserError(
            f"it runs on {format_value(host_of(run))} without a job, so there is nothing to put into a queue."
        )
    if jobs.problem:
        raise UserError(f"{jobs.problem}; whether it waits already is not known, so nothing was done: try again later.")
    if not is_resumable(run):
        raise UserError(f"it has no job script; this resumes it: {resume_command(run)}")
    step = RunFolder(run.path).newest_step
    if not is_for_slurm(run):
        if exclude is not None:
            raise UserError(
                f"--exclude_nodes is {format_value(exclude)}: it runs on this machine, and not on nodes of Slurm."
            )
        if run.path in unfinished_runs(run.path.parent.parent):
            raise UserError("it is in the queue of this machine: python -m launch queue continues with it.")
        return f"started again as process {run_in_background(run.path)} of this machine; it resumes from step {step}."
    need_slurm(f"bash {shlex.quote(str(run.path / 'job_script.slurm'))} runs it here and now")
    dependency, elsewhere = same_dependency(run), ""
    options = dependency.options if dependency else []
    if exclude is not None:
        script = (run.path / "job_script.slurm").read_text(errors="replace")
        excluded = re.findall(r"^#SBATCH +(?:--exclude[= ]|-x[= ]?) *(\S+)", script, re.MULTILINE)
        nodes = nodes_to_exclude(run, exclude)
        options.append(f"--exclude={','.join([*excluded[-1:], nodes])}")
        elsewhere = f", not on {nodes}"
    submission = Submission(run.path, options)
    start = check_with_slurm((run.path / "job_script.slurm").read_text(), submission.own_options)
    start = dependency.start if dependency and dependency.start else start
    message = f"submitted again as job {submission.submit()}; it resumes from step {step}{elsewhere}"
    return f"{message}; start: {start}." if start else f"{message}."


def requeue_job(run: Run, job: Job, exclude: str | None = None) -> str:
    """Queue the same job again, without the nodes to `exclude`."""
    submission, is_waiting = Submission(run.path), job.state in PENDING
    nodes = nodes_to_exclude(run, exclude) if exclude is not None else ""
    if is_waiting and job.reason in NEVER_STARTS:
        command = f"python -m launch why {shlex.quote(run.run_id)}{logs_flag(run.path.parent.parent)}"
        raise UserError(f"job {job.name} waits, but can never start ({job.reason}): {command} says what to do.")
    fields = scontrol_show("job", job.name) if nodes else {}
    required = fields.get("ReqNodeList", "(null)")
    if required not in ("(null)", "") and hosts(required) & hosts(nodes):
        raise UserError(
            f"it has to run on {format_value(required)} (--nodelist), so without {format_value(nodes)} it could never "
            "start: exclude other nodes."
        )
    if not is_waiting:
        submission.call_slurm(["scontrol", "requeue", job.name])
    if nodes:
        excluded = fields.get("ExcNodeList", "(null)")
        all_excluded = nodes if excluded in ("(null)", "") else f"{excluded},{nodes}"
        submission.call_slurm(["scontrol", "update", f"JobId={job.name}", f"ExcNodeList={all_excluded}"])
    elsewhere = f" It will not start on {nodes}." if nodes else ""
    if not is_waiting:
        return f"job {job.name} saves its state, is queued again and resumes from there.{elsewhere}"
    if not job.is_held:
        return f"job {job.name} waits already ({job.reason}).{elsewhere}"
    try:
        submission.call_slurm(["scontrol", "release", job.name])
    except UserError as error:
        advice = "only those who run the cluster can release it: ask them, or cancel it."
        raise UserError(f"job {job.name} is held ({job.reason}), and {error}: {advice}") from None
    if submission.record.get("error"):  # of an earlier release that failed
        submission.try_save_state("released", error=None)
    held_by = "" if job.reason == "JobHeldUser" else f" ({job.reason})"
    return f"job {job.name} was held{held_by}, and is released.{elsewhere}"


def hosts(nodes: str) -> set[str]:
    """The single nodes of a list such as n[1-2]."""
    output, _ = run_slurm("scontrol", "show", "hostnames", nodes)
    return set(output.split())


def nodes_to_exclude(run: Run, exclude: str) -> str:
    """The nodes that --exclude_nodes names, as Slurm writes them."""
    if exclude != "last":
        _, problem = run_slurm("scontrol", "show", "node", exclude)
        if problem or not exclude:
            raise UserError(
                f"--exclude_nodes is {format_value(exclude)}: Slurm has no such nodes; sinfo -N lists them."
            )
        return exclude
    if not run.attempts:
        raise UserError("--exclude_nodes is last: it has no attempt yet; name the nodes, as in n1,n[3-4].")
    if node := node_that_ended(run.attempts[-1]):
        return node
    nodes = format_value(str(run.attempts[-1].get("nodes") or host_of(run)))
    raise UserError(f"--exclude_nodes is last: which node of {nodes} ended its last attempt is not known; name it.")


def is_resumable(run: Run) -> bool:
    """Whether the run's job script continues in this folder when it is submitted again."""
    try:
        script = (run.path / "job_script.slurm").read_text(errors="replace")
    except OSError:
        return False
    return f"{export_run(run.path.absolute())}\n" in script


def is_for_slurm(run: Run) -> bool:
    """Whether the run is for Slurm: a script for this machine has no #SBATCH lines."""
    return run.job_name is not None or "\n#SBATCH" in (run.path / "job_script.slurm").read_text(errors="replace")


def resume_command(run: Run) -> str:
    """The command that resumes a run: its flags as typed, and the newest checkpoint, which implies the folder."""
    checkpoints = sorted(run.path.absolute().glob("checkpoints/step_*.ckpt"))
    resume_flag = ["--resume_training_ckpt", str(checkpoints[-1])] if checkpoints else []
    program = ["sbatch", "job_scripts/train.slurm"] if run.job_name else ["python", "train_model.py"]
    command = shlex.join([*program, *typed_flags(run), *resume_flag])
    return command if checkpoints else f"{command} (from step 0: it saved nothing)"


# -- resubmit --------------------------------------------------------------------------------------------------------


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
    changes = read_setting_changes(options.set)
    lineage = {"parent": run.run_id, "how": "resubmit", "changes": changes}
    logs = run.path.absolute().parent.parent
    flags = [*with_changes(typed_flags(run), changes), "--logs_dir", str(logs)]
    last = [*slurm_words(run, options.slurm), *(["--dry_run"] if options.dry_run else [])]
    os.environ[LINEAGE] = json.dumps(lineage, ensure_ascii=False)
    code, script = run.path.absolute() / "code", run.submission.get("script")
    if not ((code / "slurm_executor.sh").is_file() and isinstance(script, str)):
        print(f"{run.run_id} has no snapshot of its code: the new run has that of this checkout.", file=sys.stderr)
        return execute([*header_words(run, options.header), DEFAULT_SCRIPT, *flags, *last])
    environment = with_active_python(dict(os.environ)) | {JOB_RUN_DIR: str(run.path.absolute())}  # whose code it is
    if options.header:
        environment[HEADERS_DIR] = str(ROOT / HEADERS)
    if cluster := submit_cluster(run, options.header):
        os.chdir(code)
        command = [sys.executable, "-m", "launch", "submit", script, "--cluster", cluster, *flags, *last]
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    else:
        command = ["bash", str(code / "slurm_executor.sh"), *header_words(run, options.header), script, *flags, *last]
    sys.stdout.flush()
    os.execvpe(command[0], command, environment)  # the snapshot's own parser and submission


def submit_cluster(run: Run, header: str | None) -> str | None:
    """--cluster for `launch submit`; None if a header is given, which slurm_executor.sh takes."""
    submission = run.submission
    if header is not None or isinstance(submission.get("header"), str):
        return None
    if isinstance(cluster := submission.get("cluster"), str):
        return cluster
    if run.job_name is not None:
        return "slurm"
    return "local" if (run.path / "submitit").is_dir() else None


def slurm_words(run: Run, requested: Sequence[str]) -> list[str]:
    """--slurm options of RUN with the changes, as words of the command."""
    earlier = run.submission.get("slurm")
    words = read_resources([*(earlier if isinstance(earlier, list) else []), *requested])
    code = run.path / "code"
    if requested and code.is_dir() and not (code / "launch" / "resources.py").is_file():
        raise UserError(f"--slurm is not known to the code that {run.run_id} keeps: give --header instead.")
    return [f"--slurm={word}" for word in words]


def header_words(run: Run, requested: str | None) -> list[str]:
    """The header as a word of slurm_executor.sh; empty for a run of this machine."""
    if requested is not None:
        return [requested]
    if isinstance(header := run.submission.get("header"), str):
        return [header]
    if run.job_name is not None:
        choices = ", ".join(sorted(file.stem for file in (ROOT / HEADERS).glob("*.slurm")))
        raise UserError(
            f"{run.run_id} was submitted without a header, so what to ask Slurm for is not known: add --header "
            f"{choices}."
        )
    return []


def with_active_python(environment: dict[str, str]) -> dict[str, str]:
    """The environment with this Python active: a snapshot has no .venv."""
    if sys.prefix != sys.base_prefix and not (environment.get("VIRTUAL_ENV") or environment.get("CONDA_PREFIX")):
        path = f"{sys.prefix}/bin:{environment.get('PATH', '')}"
        return environment | {"VIRTUAL_ENV": sys.prefix, "PATH": path}
    return environment


def typed_flags(run: Run) -> list[str]:
    """The flags of train_model.py that a run was started with, as they were typed."""
    flags = run.submission.get("flags")
    if isinstance(flags, list):
        return [str(word) for word in flags]
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


def read_setting_changes(words: list[str]) -> dict[str, str]:
    """The changes of --set, by the flags' canonical names."""
    changes = {}
    for name, value in read_changes(words).items():
        word = f"{name}={value}"
        if name in ("logs_dir", "resume_training_ckpt"):
            raise UserError(
                f"--set is {format_value(word)}: a new run starts from step 0, beside the old one; leave it out."
            )
        flag = all_names().get(name.replace("-", "_"))
        if flag is not None and flag.kind is bool and value not in ("true", "false"):
            raise UserError(
                f"--set is {format_value(word)}: {flag.name} is a switch; write {flag.name}=true or =false."
            )
        changes[flag.name if flag else name] = value
    return changes


def with_changes(words: list[str], changes: dict[str, str]) -> list[str]:
    """The words with these flags replaced, and without flags that would resume the old run."""
    remaining = without_flags(words, ("resume_training_ckpt", "logs_dir", *changes))
    return [*remaining, *(word for name, value in changes.items() for word in change_words(name, value))]


def change_words(name: str, value: str) -> list[str]:
    flag: Any = all_names().get(name)
    if flag is not None and flag.kind is bool:
        return [flag.spelled(value == "true")]
    if flag is not None and flag.kind is tuple:
        return [f"--{name}", *value.replace(",", " ").split()]
    return [f"--{name}={value}"]  # one word, so that a value may begin with dashes
