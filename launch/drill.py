"""`python -m launch drill`: a small run is interrupted in every way, and has to come out as if nothing had happened."""

from __future__ import annotations

import resource
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from config import RunConfig, parse_command_line
from core.commands import CommandParser
from core.errors import UserError
from core.text import shown
from launch import random_drill, sessions
from launch.doctor import asked_header
from launch.players import Local, OnSlurm, Player, drill_script
from launch.script import Header
from launch.trace import first_difference
from runs.reading import Run
from runs.signals import BY_HAND, GOES_ON

STEPS, EVERY, AT, SAVING = 12, 5, 7, 10
HANGS = ("--hang_minutes", "0.25")  # long for a small run, and short for who waits
SMALL = (
    *("--limit_val_batches", "2", "--limit_test_batches", "2", "--log_every_n_steps", "1", "--no_wandb"),
    *("--run_name", "drill"),
)
PURPOSE = f"""\
Interrupt a small run in every way that a cluster has, and compare it bit for bit with one that nobody interrupts.

The flags are those of train_model.py. {STEPS} steps are trained for each way, as jobs where there is a Slurm (its
options from the environment, SBATCH_PARTITION and the like, or from --header) and otherwise here, where signals stand
for it. With --random, real signals come at random moments of several runs at once, in start-up and at the end too,
again and again until N were used. Exit status 1 if a run did not survive; then its folder is kept."""


@dataclass(frozen=True)
class Way:
    """One way to end an attempt.

    plant: what the run is brought to (training/rehearsal.py). how: what is done to it then: a signal's name, requeue,
    cancel, or nothing where it does that itself. causes: how what attempts.jsonl says may begin. lost: steps that it
    may cost. back: who starts it again: the job itself, a person, or nobody. flags: of its run alone. status: what its
    process ends with where there is no job.
    """

    name: str
    plant: str
    how: str
    causes: tuple[str, ...]
    lost: int = 0
    back: str = "itself"
    flags: tuple[str, ...] = ()
    status: int = GOES_ON


WAYS = (
    Way("time limit (SIGUSR1)", f"pause:{AT}", "USR1", ("time limit",)),
    Way("preempted (SIGTERM)", f"pause:{AT}", "TERM", ("interrupted: SIGTERM", "preempted")),
    Way("terminal lost (SIGHUP)", f"pause:{AT}", "HUP", ("interrupted: SIGHUP",)),
    Way("stopped by hand (Ctrl-C)", f"pause:{AT}", "INT", ("stopped by hand",), back="person", status=BY_HAND),
    Way("requeued", f"pause:{AT}", "requeue", ("requeued",)),
    Way("crashed (SIGABRT)", f"abort:{AT}", "", ("crashed", "killed"), AT - EVERY, status=-signal.SIGABRT),
    Way("hung", f"hang:{AT}", "", ("hung",), AT - EVERY, flags=HANGS),
    Way(
        *("node failure (SIGKILL)", f"kill:{AT}", "", ("node failure", "killed")),
        *(AT - EVERY, "person", (), -signal.SIGKILL),
    ),
    Way(
        *("killed while saving", f"save:{SAVING}", "", ("node failure", "killed")),
        *(SAVING - EVERY, "person", (), -signal.SIGKILL),
    ),
    Way("cancelled", f"pause:{AT}", "cancel", ("cancelled",), back="nobody"),
)
WHOLE = Way("uninterrupted", "", "", ("finished",))


def drill(argv: list[str]) -> int:
    """The command; 1 if a run did not survive."""
    usage = "python -m launch drill [--random N [--seed S]] [--header NAME] [--logs_dir PATH] [flags of train_model.py]"
    parser = CommandParser("python -m launch drill", PURPOSE, usage=usage)
    parser.add_argument("--header", metavar="NAME", help="ask Slurm for what job_scripts/headers/NAME.slurm says")
    parser.add_argument("--random", type=int, metavar="N", help="N interruptions at random moments of several runs")
    if any(word.partition("=")[0] in ("--random", "--help", "-h") for word in argv):  # else it is the run's
        parser.add_argument("--seed", type=int, metavar="S", help="with --random: the same kinds and moments again")
    options, flags = parser.parse_known_args(argv)
    if options.random is not None and options.random < 1:
        raise UserError(f"--random is {options.random}: give a number of interruptions from 1 on.")
    steps, every = (STEPS, EVERY) if options.random is None else (random_drill.STEPS, random_drill.EVERY)
    words = [*flags, *small(check(parse_command_line(flags)), steps, every)]
    parse_command_line(words)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # crashes leave no files
    header = asked_header(options.header)
    desk = make_desk(Path(options.logs_dir))
    if options.random is not None:
        seed = secrets.randbelow(10**6) if options.seed is None else options.seed
        return at_random(desk, words, header, options.random, seed)
    player: Player = OnSlurm(desk, words, header) if header else Local(desk, words)
    ways = [way for way in WAYS if way.how not in player.cannot]
    print(f"{len(ways)} ways to end a run, {STEPS} steps each, {player.where}; files in {shown(str(desk))}", flush=True)
    try:
        with Telling(len(ways) + 1) as telling:
            player.play([WHOLE, *ways], telling)
    except BaseException:
        player.stop()
        raise
    verdicts = {way: judge(way, player.run(way), player.run(WHOLE), player.problem(way)) for way in [WHOLE, *ways]}
    Console().print(table(verdicts, player))
    if player.cannot:
        print(f"Not here, where there is no Slurm: {' and '.join(w.name for w in WAYS if w.how in player.cannot)}.")
    if any(problem for problem in verdicts.values()):
        print(f"The runs and their logs are kept in {shown(str(desk))}.")
        return 1
    shutil.rmtree(desk)
    return 0


def at_random(desk: Path, words: list[str], header: Header | None, count: int, seed: int) -> int:
    """`--random`: interrupted at random moments, several runs at once; 1 if one did not survive."""
    words = [*words, *HANGS]
    queue, script = sessions.JobStates(), desk / "drill.slurm"
    if header is not None:
        script.write_text(drill_script(header))

    def new(name: str) -> sessions.Session:
        if header is not None:
            return sessions.SlurmSession(desk, name, words, script, queue)
        return sessions.LocalSession(desk, name, words)

    kinds, lanes, where = (sessions.AS_JOBS, 4, OnSlurm.where) if header else (sessions.HERE, 2, Local.where)
    print(f"{count} interruptions, seed {seed}, {where}; files in {shown(str(desk))}", flush=True)
    began = time.monotonic()
    with Telling(1) as tell:
        game = random_drill.RandomDrill(new, kinds, count, seed, lanes, tell)
        try:
            whole = game.play()
        except BaseException:
            game.stop()
            raise
    problems = {"uninterrupted": whole.problem} if whole.problem else {}
    for session in game.sessions[1:]:
        if whole.run is not None and (problem := session.judge(whole.run)):
            problems[session.name] = problem
    Console().print(random_drill.table(game.sessions))
    for line in random_drill.closing(game.sessions[1:], time.monotonic() - began, problems):
        print(line)
    if problems:
        print(f"The runs and their logs are kept in {shown(str(desk))}; again: --random {count} --seed {seed}.")
        return 1
    shutil.rmtree(desk)
    return 0


def check(config: RunConfig) -> RunConfig:
    """Refuse what is no new training."""
    chosen = {
        "resume_training_ckpt": config.checkpoint.resume_training_ckpt,
        "only_test": config.testing.only_test,
        "fast_dev_run": config.debugging.fast_dev_run,
        "notify": config.logging.notify,
        "execution_mode": config.run.execution_mode == "inference",
    }
    for name, value in chosen.items():
        if value:
            raise UserError(f"--{name} does not go with a drill, which trains a new run: leave it out.")
    return config


def small(config: RunConfig, steps: int = STEPS, every: int = EVERY) -> list[str]:
    """What makes a run of these settings a small one that shows every difference."""
    words = [*SMALL, "--max_steps", str(steps), "--checkpoint_every_n_steps", str(every)]
    if config.trainer.check_val_every_n_epoch is None:
        words += ["--val_check_interval", "4"]
    if (config.optimizer.warm_up_steps or 0) > steps:
        words += ["--warm_up_steps", "4"]
    return words


def make_desk(logs: Path) -> Path:
    """A logs folder of the drill's own, where every node sees it."""
    try:
        logs.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="drill_", dir=logs)).absolute()
    except OSError as error:
        raise UserError(
            f"--logs_dir is {shown(str(logs))}: cannot write there ({error.strerror}): choose another folder."
        ) from None


def judge(way: Way, run: Run | None, whole: Run | None, problem: str | None) -> str | None:
    """What is wrong with how the run came through, in words; None where nothing is."""
    if run is None:
        return problem or "it made no run folder"
    attempts = run.attempts
    if way is WHOLE:
        if problem or not attempts or attempts[-1].get("cause") != "finished":
            return problem or "it did not finish"
        return first_difference(run.metrics(), run.metrics())  # a step twice or left out is its own fault
    if whole is None or not whole.attempts or whole.attempts[-1].get("cause") != "finished":
        return "there is no uninterrupted run to compare it with"
    if not attempts:
        return problem or "it made no attempt"
    first, last = attempts[0], attempts[-1]
    if way.back == "nobody":
        if len(attempts) > 1:
            return f"it went on after it was cancelled: {len(attempts)} attempts"
    elif len(attempts) == 1:
        return f"it did not go on: {problem or first.get('cause', 'nobody knows why')}"
    elif last.get("cause") != "finished":
        return f"it did not finish: {problem or last.get('cause')}"
    if not str(first.get("cause")).startswith(way.causes):
        return f"attempts.jsonl says {first.get('cause')!r} and not {way.causes[0]!r}"
    if (lost := first.get("steps_lost")) is None or lost > way.lost:
        return f"it lost {lost} steps and may lose {way.lost}"
    return (
        first_difference(run.metrics(), whole.metrics(), first["last_step"] if way.back == "nobody" else None)
        or problem
    )


def table(verdicts: dict[Way, str | None], player: Player) -> Table:
    shape = Table("way", "attempts", "steps lost", "verdict", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for way, problem in verdicts.items():
        run = player.run(way)
        attempts = run.attempts if run else []
        lost = "" if way is WHOLE or not attempts else str(attempts[0].get("steps_lost", "?"))
        verdict = Text(f"fail: {shown(problem)}", "red") if problem else Text("pass", "green")
        shape.add_row(way.name, str(len(attempts)), lost, verdict)
    return shape


class Telling:
    """A line that moves on a terminal; elsewhere a line for each change."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.phases: dict[str, str] = {}
        self.began = time.monotonic()
        self.status = Console(stderr=True).status("starting …") if sys.stderr.isatty() else None

    def __enter__(self) -> Callable[[str, str], None]:
        if self.status:
            self.status.start()
        return self.tell

    def __exit__(self, *_: object) -> None:
        if self.status:
            self.status.stop()

    def tell(self, name: str, phase: str) -> None:
        if self.phases.get(name) == phase:
            return
        self.phases[name] = phase
        if self.status is None:
            print(f"{time.monotonic() - self.began:4.0f} s  {name}: {phase}", file=sys.stderr, flush=True)
            return
        done = sum(phase == "done" for phase in self.phases.values())
        busy = [f"{name}: {phase}" for name, phase in self.phases.items() if phase != "done"]
        self.status.update(f"{done} of {self.total} done   {'   '.join(busy[:3])}")
