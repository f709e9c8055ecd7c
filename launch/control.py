"""`python -m launch cancel` and `requeue`: end a run for good, or let it go on."""

from __future__ import annotations

import os
import platform
import re
import shlex
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from core.commands import CommandParser
from core.errors import UserError
from core.files import append_row
from core.text import shown
from launch.bad_nodes import node_that_ended
from launch.chain import wait_again
from launch.door import run_in_background
from launch.execute import logs_flag
from launch.queue_worker import unfinished_runs
from launch.resubmit import typed_flags
from launch.slurm import LIVE, NEVER, WAITS, Answer, Job, ask, ask_for_jobs, standing
from launch.submit import Submission, check_with_slurm, need_slurm
from runs.causes import ask_slurm
from runs.folder import RunError, RunFolder
from runs.reading import Run, find_run

PATIENCE = 20.0  # seconds in which a cancelled run may save its state while we wait for its last word
STOPS = "interrupted"  # how a run that was told to end calls it


def chosen(options: Namespace) -> tuple[list[Run], Answer]:
    """The runs that were named, each once, and what Slurm says of them."""
    found = [find_run(Path(options.logs_dir).absolute(), word) for word in options.runs]
    runs = list({run.path.resolve(): run for run in found}.values())
    return runs, ask_for_jobs(runs)


def command(name: str, purpose: str) -> CommandParser:
    parser = CommandParser(f"python -m launch {name}", purpose)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="id, name, job, path, or last")
    return parser


def each(runs: list[Run], answer: Answer, act: Callable[[Run, Answer], str]) -> int:
    """Do it to every run; one that cannot be helped does not keep the others from it."""
    status = 0
    for run in runs:
        try:
            print(f"{run.run_id}: {act(run, answer)}", flush=True)
        except UserError as error:
            print(f"{run.run_id}: {error}", file=sys.stderr)
            status = 1
    return status


def cancel(argv: list[str]) -> int:
    purpose = "End runs for good: a running one saves its state first, a waiting one leaves the queue."
    runs, answer = chosen(command("cancel", purpose).parse_args(argv))
    status = each(runs, answer, cancel_one)
    wait_for_ends([run for run in runs if Run(run.path).submission.get("state") == "cancelled"])
    return status


def cancel_one(run: Run, answer: Answer) -> str:
    job, now = answer.job_of(run), standing(run, answer)
    if now.state in ("cancelled", "finished"):
        return f"nothing to cancel: it is {now}."
    if job is not None and not job.is_over:
        submission = note_cancelled(run)
        try:
            submission.ask(["scancel", job.name])
        except UserError:
            submission.note_if_possible(str(run.submission.get("state")), time=run.submission.get("time"))
            raise
        return f"job {job.name} was cancelled while it was {'waiting' if job.state in WAITS else 'running'}."
    process = run.holder  # asked once: it may end at any moment, and a signal to process 0 would be one to ourselves
    if process and not is_here(run):
        raise UserError(f"it runs on {shown(host_of(run))} without a job: cancel it there.")
    if process > 0:
        note_cancelled(run)
        try:
            os.kill(process, signal.SIGTERM)
        except ProcessLookupError:
            return f"process {process} of this machine ended by itself just now; the run is noted as cancelled."
        return f"process {process} of this machine was told to save its state and end."
    if now.state not in LIVE and now.state not in ("lost", "interrupted"):
        return f"nothing to cancel: it is {now}."
    if run.job_name is not None and not answer.is_about(run):
        why = answer.problem or f"it is a job of cluster {shown(run.job.get('cluster'))}"
        raise UserError(f"job {run.job_name} cannot be cancelled from here ({why}): try again later, or there.")
    note_cancelled(run)
    return "it has no job and no process any more; it is noted as cancelled."


def note_cancelled(run: Run) -> Submission:
    """Before it is told to end, so that nothing takes it for an interruption."""
    submission = Submission(run.path)
    try:
        submission.note("cancelled")
        return submission
    except OSError as error:
        raise UserError(f"{shown(str(run.path))} cannot be written to ({error.strerror}): it was left alone.") from None


def host_of(run: Run) -> str:
    last = run.attempts[-1] if run.attempts else {}
    return str(last.get("host") or run.read("environment.json").get("host") or "another machine")


def is_here(run: Run) -> bool:
    return host_of(run) == platform.node()


def wait_for_ends(runs: list[Run], patience: float = PATIENCE) -> None:
    """Give the attempts their cause as soon as they have ended; those that take longer are known by submission.json."""
    begin = time.monotonic()
    said = False
    while runs := [run for run in runs if not close_cancelled(Run(run.path))]:
        if not said and time.monotonic() - begin > 1:
            print(f"waiting up to {patience:g} s for the end of {len(runs)}; Ctrl-C changes nothing", file=sys.stderr)
            said = True
        if time.monotonic() - begin > patience:
            break
        time.sleep(0.2)


def close_cancelled(run: Run) -> bool:
    """Whether the run's newest attempt is over; one that was told to end is noted as cancelled."""
    if not run.attempts:
        return not run.is_held
    last = run.attempts[-1]
    if "end" not in last:
        if run.state != "cancelled":
            return False
        with suppress(RunError, OSError):  # killed before it could say so
            folder = RunFolder(run.path)
            folder.lock()
            folder.close_killed("cancelled")
        return True
    if str(last.get("cause", "")).startswith(STOPS) and run.state == "cancelled":
        append_row(run.path / "attempts.jsonl", {"attempt": last["attempt"], "cause": "cancelled"})
    return True


def requeue(argv: list[str]) -> int:
    purpose = "Put runs back into the queue; each goes on from its last state, in its own folder."
    parser = command("requeue", purpose)
    parser.add_argument(
        "--exclude_nodes",
        metavar="NODES",
        help="start elsewhere: last (the node of its last attempt), or names such as n1,n[3-4]",
    )
    options = parser.parse_args(argv)
    return each(*chosen(options), lambda run, answer: requeue_one(run, answer, options.exclude_nodes))


def requeue_one(run: Run, answer: Answer, exclude: str | None = None) -> str:
    job, now = answer.job_of(run), standing(run, answer)
    if now.state == "finished":
        again = f"python -m launch resubmit {shlex.quote(run.run_id)}{logs_flag(run.path.parent.parent)}"
        raise UserError(f"it is finished; {again} runs it once more.")
    if job is not None and not job.is_over:
        return requeue_job(run, job, exclude)
    if run.is_held:
        raise UserError(f"it runs on {shown(host_of(run))} without a job, so there is nothing to put into a queue.")
    if answer.problem:
        raise UserError(f"{answer.problem}; whether it waits already is not known, so it was left alone.")
    if not goes_on(run):
        raise UserError(f"it has no job script of its own; what goes on is: {command_that_goes_on(run)}")
    step = RunFolder(run.path).newest_step
    if not asks_slurm(run):
        if exclude is not None:
            raise UserError(f"--exclude_nodes is {shown(exclude)}: it runs on this machine, and not on nodes of Slurm.")
        if run.path in unfinished_runs(run.path.parent.parent):
            raise UserError("it is in the queue of this machine: python -m launch queue goes on with it.")
        return f"started again as process {run_in_background(run.path)} of this machine; it goes on from step {step}."
    need_slurm(f"bash {shlex.quote(str(run.path / 'job_script.slurm'))} runs it here and now")
    after, elsewhere = wait_again(run), ""
    options = after.options if after else []
    if exclude is not None:
        script = (run.path / "job_script.slurm").read_text(errors="replace")
        before = re.findall(r"^#SBATCH +(?:--exclude[= ]|-x[= ]?) *(\S+)", script, re.MULTILINE)
        nodes = nodes_to_avoid(run, exclude)
        options.append(f"--exclude={','.join([*before[-1:], nodes])}")
        elsewhere = f", not on {nodes}"
    submission = Submission(run.path, options)
    start = check_with_slurm((run.path / "job_script.slurm").read_text(), submission.own_options)
    start = after.start if after and after.start else start
    again = f"submitted again as job {submission.submit()}; it goes on from step {step}{elsewhere}"
    return f"{again}; start: {start}." if start else f"{again}."


def requeue_job(run: Run, job: Job, exclude: str | None = None) -> str:
    """The same job goes on, without the nodes to `exclude`."""
    submission, waits = Submission(run.path), job.state in WAITS
    nodes = nodes_to_avoid(run, exclude) if exclude is not None else ""
    if waits and job.reason in NEVER:
        why = f"python -m launch why {shlex.quote(run.run_id)}{logs_flag(run.path.parent.parent)}"
        raise UserError(f"job {job.name} waits, but can never start ({job.reason}): {why} says what to do.")
    fields = ask_slurm("job", job.name) if nodes else {}
    if (bound := fields.get("ReqNodeList", "(null)")) not in ("(null)", "") and hosts(bound) & hosts(nodes):
        raise UserError(f"it is bound to {shown(bound)} (--nodelist), so without {shown(nodes)} it could never start.")
    if not waits:
        submission.ask(["scontrol", "requeue", job.name])
    if nodes:
        before = fields.get("ExcNodeList", "(null)")
        both = nodes if before in ("(null)", "") else f"{before},{nodes}"
        submission.ask(["scontrol", "update", f"JobId={job.name}", f"ExcNodeList={both}"])
    elsewhere = f" It will not start on {nodes}." if nodes else ""
    if not waits:
        return f"job {job.name} saves its state, goes back into the queue and goes on from there.{elsewhere}"
    if not job.is_held:
        return f"job {job.name} waits already ({job.reason}).{elsewhere}"
    try:
        submission.ask(["scontrol", "release", job.name])
    except UserError as error:
        ask_them = "only those who run the cluster can release it: ask them, or cancel it."
        raise UserError(f"job {job.name} is held ({job.reason}), and {error}: {ask_them}") from None
    if submission.record.get("error"):  # that it could not be released
        submission.note_if_possible("released", error=None)
    held_by = "" if job.reason == "JobHeldUser" else f" ({job.reason})"
    return f"job {job.name} was held{held_by}, and is released.{elsewhere}"


def hosts(nodes: str) -> set[str]:
    """Slurm's list of nodes, such as n[1-2], one by one."""
    answer, _ = ask("scontrol", "show", "hostnames", nodes)
    return set(answer.split())


def nodes_to_avoid(run: Run, exclude: str) -> str:
    """The nodes that --exclude_nodes names, as Slurm wants them."""
    if exclude != "last":
        _, problem = ask("scontrol", "show", "node", exclude)
        if problem or not exclude:
            raise UserError(f"--exclude_nodes is {shown(exclude)}: Slurm has no such nodes; sinfo -N lists them.")
        return exclude
    if not run.attempts:
        raise UserError("--exclude_nodes is last: it has no attempt yet; name the nodes, as in n1,n[3-4].")
    if node := node_that_ended(run.attempts[-1]):
        return node
    there = shown(str(run.attempts[-1].get("nodes") or host_of(run)))
    raise UserError(f"--exclude_nodes is last: which node of {there} ended its last attempt is not known; name it.")


def goes_on(run: Run) -> bool:
    """Whether the run's job script runs in this very folder when it is submitted again."""
    try:
        script = (run.path / "job_script.slurm").read_text(errors="replace")
    except OSError:
        return False
    return f"export EBT_JOB_RUN_DIR={shlex.quote(str(run.path.absolute()))}\n" in script


def asks_slurm(run: Run) -> bool:
    """Whether the run is for Slurm: a script for this machine asks for nothing."""
    return run.job_name is not None or "\n#SBATCH" in (run.path / "job_script.slurm").read_text(errors="replace")


def command_that_goes_on(run: Run) -> str:
    """What to type: the flags as they were typed, and the newest checkpoint, which names the folder too."""
    saved = sorted(run.path.absolute().glob("checkpoints/step_*.ckpt"))
    more = ["--resume_training_ckpt", str(saved[-1])] if saved else []
    door = ["sbatch", "job_scripts/train.slurm"] if run.job_name else ["python", "train_model.py"]
    return shlex.join([*door, *typed_flags(run), *more]) + ("" if saved else " (anew: it saved nothing)")
