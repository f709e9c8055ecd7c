"""`python -m launch drill`: a small run is interrupted in every way, and has to come out as if nothing had happened."""

from __future__ import annotations

import resource
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from config import RunConfig, parse_command_line
from core.commands import CommandParser
from core.errors import UserError
from core.progress import Screen, print_note
from core.text import format_value
from launch import random_drill
from launch.doctor import slurm_header
from launch.drill_runner import DrillCase, DrillRunner, LocalRunner, SlurmRunner, drill_script, first_difference
from launch.script import ROOT, Header
from runs.process import EXIT_BY_HAND
from runs.run import Run

STEPS, CHECKPOINT_EVERY, FAULT_STEP, SAVE_STEP = 12, 5, 7, 10
HANG_FLAGS = ("--hang_minutes", "0.25")  # long for a small run, short for a drill
SMALL_FLAGS = (
    *("--limit_val_batches", "2", "--limit_test_batches", "2", "--log_every_n_steps", "1", "--no_wandb"),
    *("--run_name", "drill"),
)
PURPOSE = f"""\
Interrupt a small run in every way that a cluster has, and compare it bit for bit with an uninterrupted one.

The flags are those of train_model.py. Each interruption has its own run of {STEPS} steps. With Slurm these are jobs,
with options from the environment (SBATCH_PARTITION and the like) or from --header; without Slurm they are processes of
this machine, which get signals. With --random, several runs at once get N real signals at random moments, in start-up
and at the end too. Exit status 1 if a run did not survive; then its folder is kept."""


LOST_STEPS = FAULT_STEP - CHECKPOINT_EVERY  # of a process that ends at FAULT_STEP and cannot save
CASES = (
    DrillCase("time limit (SIGUSR1)", f"pause:{FAULT_STEP}", "USR1", ("time limit",)),
    DrillCase("preempted (SIGTERM)", f"pause:{FAULT_STEP}", "TERM", ("interrupted: SIGTERM", "preempted")),
    DrillCase("terminal lost (SIGHUP)", f"pause:{FAULT_STEP}", "HUP", ("interrupted: SIGHUP",)),
    DrillCase(
        "stopped by hand (Ctrl-C)",
        f"pause:{FAULT_STEP}",
        "INT",
        ("stopped by hand",),
        restarted_by="person",
        status=EXIT_BY_HAND,
    ),
    DrillCase("requeued", f"pause:{FAULT_STEP}", "requeue", ("requeued",)),
    DrillCase(
        "crashed (SIGABRT)",
        f"abort:{FAULT_STEP}",
        "",
        ("crashed", "killed"),
        lost=LOST_STEPS,
        status=-signal.SIGABRT,
    ),
    DrillCase("hung", f"hang:{FAULT_STEP}", "", ("hung",), lost=LOST_STEPS, flags=HANG_FLAGS),
    DrillCase(
        "node failure (SIGKILL)",
        f"kill:{FAULT_STEP}",
        "",
        ("node failure", "killed"),
        lost=LOST_STEPS,
        restarted_by="person",
        status=-signal.SIGKILL,
    ),
    DrillCase(
        "killed while saving",
        f"save:{SAVE_STEP}",
        "",
        ("node failure", "killed"),
        lost=SAVE_STEP - CHECKPOINT_EVERY,
        restarted_by="person",
        status=-signal.SIGKILL,
    ),
    DrillCase("cancelled", f"pause:{FAULT_STEP}", "cancel", ("cancelled",), restarted_by="nobody"),
)
REFERENCE = DrillCase("uninterrupted", "", "", ("finished",))


def drill(
    argv: list[str],
    cases: Sequence[DrillCase] = CASES,
    random_steps: int = random_drill.STEPS,
    root: Path = ROOT,
) -> int:
    """The command; 1 if a run did not survive.

    cases: the interruptions without --random. random_steps: of each run with --random. root: the folder of
    train_model.py for runs on this machine.
    """
    usage = "python -m launch drill [--random N [--seed S]] [--header NAME] [--logs_dir PATH] [flags of train_model.py]"
    parser = CommandParser("python -m launch drill", PURPOSE, usage=usage)
    parser.add_argument("--header", metavar="NAME", help="ask Slurm for what job_scripts/headers/NAME.slurm says")
    parser.add_argument("--random", type=int, metavar="N", help="N interruptions at random moments of several runs")
    if any(word.partition("=")[0] in ("--random", "--help", "-h") for word in argv):  # else it is the run's
        parser.add_argument("--seed", type=int, metavar="S", help="with --random: the same kinds and moments again")
    options, flags = parser.parse_known_args(argv)
    if options.random is not None and options.random < 1:
        raise UserError(f"--random is {options.random}: give a number of interruptions from 1 on.")
    steps, every = (
        (STEPS, CHECKPOINT_EVERY) if options.random is None else (random_steps, random_drill.CHECKPOINT_EVERY)
    )
    words = [*flags, *small_run_flags(check_settings(parse_command_line(flags)), steps, every)]
    parse_command_line(words)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # crashes leave no files
    header = slurm_header(options.header)
    work_dir = make_work_dir(Path(options.logs_dir))
    if options.random is not None:
        seed = secrets.randbelow(10**6) if options.seed is None else options.seed
        return run_random_drill(work_dir, words, header, options.random, seed, steps, root)
    runner: DrillRunner = SlurmRunner(work_dir, words, header) if header else LocalRunner(work_dir, words, root)
    skipped = [case.name for case in cases if case.action in runner.unsupported]
    cases = [case for case in cases if case.action not in runner.unsupported]
    print(
        f"{len(cases)} interruptions, {STEPS} steps each, {runner.where}; files in {format_value(str(work_dir))}",
        flush=True,
    )
    try:
        with DrillProgress(len(cases) + 1) as progress:
            runner.run_all([REFERENCE, *cases], progress)
    except BaseException:
        runner.stop()
        raise
    verdicts = {
        case: check_case(case, runner.run_of(case), runner.run_of(REFERENCE), runner.problem(case))
        for case in [REFERENCE, *cases]
    }
    Console().print(table(verdicts, runner))
    if skipped:
        print(f"Not here, where there is no Slurm: {' and '.join(skipped)}.")
    if any(problem for problem in verdicts.values()):
        print(f"The runs and their logs are kept in {format_value(str(work_dir))}.")
        return 1
    shutil.rmtree(work_dir)
    return 0


def run_random_drill(
    work_dir: Path, flags: list[str], header: Header | None, count: int, seed: int, steps: int, root: Path
) -> int:
    """`--random`: several runs at once, interrupted at random moments; 1 if one did not survive."""
    flags = [*flags, *HANG_FLAGS]
    states, script = random_drill.JobStates(), work_dir / "drill.slurm"
    if header is not None:
        script.write_text(drill_script(header))

    def make_run(name: str) -> random_drill.InterruptedRun:
        if header is not None:
            return random_drill.SlurmInterruptedRun(work_dir, name, flags, script, states)
        return random_drill.LocalInterruptedRun(work_dir, name, flags, root)

    kinds, parallel, where = (
        (random_drill.SLURM_KINDS, 4, SlurmRunner.where) if header else (random_drill.LOCAL_KINDS, 2, LocalRunner.where)
    )
    print(f"{count} interruptions, seed {seed}, {where}; files in {format_value(str(work_dir))}", flush=True)
    began = time.monotonic()
    with DrillProgress(1) as report:
        all_runs = random_drill.RandomDrill(make_run, kinds, count, seed, parallel, report, steps)
        try:
            reference = all_runs.run_all()
        except BaseException:
            all_runs.stop()
            raise
    problems = {"uninterrupted": reference.problem} if reference.problem else {}
    for session in all_runs.sessions[1:]:
        if reference.run is not None and (problem := session.check(reference.run)):
            problems[session.name] = problem
    Console().print(random_drill.table(all_runs.sessions))
    for line in random_drill.closing(all_runs.sessions[1:], time.monotonic() - began, problems):
        print(line)
    if problems:
        print(
            f"The runs and their logs are kept in {format_value(str(work_dir))}; again: --random {count} --seed {seed}."
        )
        return 1
    shutil.rmtree(work_dir)
    return 0


def check_settings(config: RunConfig) -> RunConfig:
    """Raise unless the flags start a new training."""
    refused = {
        "resume_training_ckpt": config.checkpoint.resume_training_ckpt,
        "only_test": config.testing.only_test,
        "fast_dev_run": config.debugging.fast_dev_run,
        "notify": config.logging.notify,
        "execution_mode": config.run.execution_mode == "inference",
    }
    for name, value in refused.items():
        if value:
            raise UserError(f"--{name} does not go with a drill, which trains a new run: leave it out.")
    return config


def small_run_flags(config: RunConfig, steps: int = STEPS, every: int = CHECKPOINT_EVERY) -> list[str]:
    """Flags that make a run of these settings small and log every step."""
    words = [*SMALL_FLAGS, "--max_steps", str(steps), "--checkpoint_every_n_steps", str(every)]
    if config.trainer.check_val_every_n_epoch is None:
        words += ["--val_check_interval", "4"]
    if (config.optimizer.warm_up_steps or 0) > steps:
        words += ["--warm_up_steps", "4"]
    return words


def make_work_dir(logs: Path) -> Path:
    """Create the drill's folder in the logs folder, which every node sees."""
    try:
        logs.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="drill_", dir=logs)).absolute()
    except OSError as error:
        raise UserError(
            f"--logs_dir is {format_value(str(logs))}: cannot write there ({error.strerror}): choose another folder."
        ) from None


def check_case(case: DrillCase, run: Run | None, reference: Run | None, problem: str | None) -> str | None:
    """What is wrong with the run of a case, in words; None if nothing is."""
    if run is None:
        return problem or "it made no run folder"
    attempts = run.attempts
    if case is REFERENCE:
        if problem or not attempts or attempts[-1].get("cause") != "finished":
            return problem or "it did not finish"
        return first_difference(run.metrics(), run.metrics())  # finds repeated steps
    if reference is None or not reference.attempts or reference.attempts[-1].get("cause") != "finished":
        return "there is no uninterrupted run to compare it with"
    if not attempts:
        return problem or "it made no attempt"
    first, last = attempts[0], attempts[-1]
    if case.restarted_by == "nobody":
        if len(attempts) > 1:
            return f"it continued after it was cancelled: {len(attempts)} attempts"
    elif len(attempts) == 1:
        return f"it did not resume: {problem or first.get('cause', 'the cause is unknown')}"
    elif last.get("cause") != "finished":
        return f"it did not finish: {problem or last.get('cause')}"
    if not str(first.get("cause")).startswith(case.causes):
        return f"attempts.jsonl says {first.get('cause')!r} and not {case.causes[0]!r}"
    if (lost := first.get("steps_lost")) is None or lost > case.lost:
        return f"it lost {lost} steps and may lose {case.lost}"
    return (
        first_difference(
            run.metrics(), reference.metrics(), first["last_step"] if case.restarted_by == "nobody" else None
        )
        or problem
    )


def table(verdicts: dict[DrillCase, str | None], runner: DrillRunner) -> Table:
    shape = Table(
        "interruption", "attempts", "steps lost", "verdict", box=None, padding=(0, 2, 0, 0), header_style="bold"
    )
    for case, problem in verdicts.items():
        run = runner.run_of(case)
        attempts = run.attempts if run else []
        lost = "" if case is REFERENCE or not attempts else str(attempts[0].get("steps_lost", "?"))
        verdict = Text(f"fail: {format_value(problem)}", "red") if problem else Text("pass", "green")
        shape.add_row(case.name, str(len(attempts)), lost, verdict)
    return shape


class DrillProgress:
    """How far the runs are: a line that moves on a terminal; elsewhere a line for each change."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.phases: dict[str, str] = {}
        self.began = time.monotonic()
        self.screen = Screen()

    def __enter__(self) -> Callable[[str, str], None]:
        return self.report

    def __exit__(self, *_: object) -> None:
        self.screen.clear()

    def report(self, name: str, phase: str) -> None:
        if self.phases.get(name) == phase:
            return
        self.phases[name] = phase
        if not self.screen.is_terminal:
            print_note(f"{time.monotonic() - self.began:4.0f} s  {name}: {phase}")
            return
        done = sum(phase == "done" for phase in self.phases.values())
        busy = [f"{name}: {phase}" for name, phase in self.phases.items() if phase != "done"]
        text = f"{done} of {self.total} done   {'   '.join(busy[:3])}"
        self.screen.draw(text[: shutil.get_terminal_size().columns - 1])
