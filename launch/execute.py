"""`bash slurm_executor.sh [HEADER] JOB_SCRIPT [flags]`: checked, kept with its code, then submitted, or run here."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from config import RunConfig, parse_command_line
from config.flags import FLAGS
from config.record import values_of
from core.environment import clean_environment
from core.errors import UserError
from core.files import write_json, write_text
from core.text import shown
from launch.capsule import own_files, snapshot
from launch.chain import After, read_after, wait_for
from launch.prepare import note_start, read_job
from launch.rehearse import active_environment, rehearse
from launch.resources import as_options, check_placement, read_resources
from launch.script import HEADERS, Header, check_syntax, job_script, options_of, read_header, read_text
from launch.submit import Submission, check_with_slurm, need_slurm
from runs import RunFolder
from runs.attempts import Attempt
from runs.causes import REFUSED
from runs.folder import slurm_job

ROOT = Path(__file__).resolve().parent.parent
USAGE = """\
bash slurm_executor.sh [HEADER] JOB_SCRIPT [flags of train_model.py]

HEADER      a file of job_scripts/headers/, without .slurm: what to ask Slurm for; left out: runs here and now
JOB_SCRIPT  such as job_scripts/nlp/pretrain/ebt_s1.sh
--slurm NAME=VALUE
            an option of sbatch that wins over HEADER, such as nodes=2 or time=4:00:00; may be given several times
--after RUN [--if finished|failed|any]
            start when RUN has ended like that; without --if, when it is finished
--dry_run   print the script that would be submitted, and make nothing"""
DRY = "RUN_ID"  # stands for the name that a dry run does not give


@dataclass(frozen=True)
class Order:
    """What was typed: a header or none, a script of the checkout, and flags for train_model.py."""

    words: list[str]
    header: Header | None
    script: str
    flags: list[str]
    dry_run: bool
    after: After | None = None

    @classmethod
    def read(cls, words: list[str]) -> Order:
        resources, rest = take("--slurm", [word for word in words if word != "--dry_run"])
        wanted, rest = take("--after", rest)
        condition, rest = take("--if", rest)
        for word in rest:
            try:
                word.encode()
            except UnicodeEncodeError:
                raise UserError(f"{word!a} is not UTF-8: a script cannot hold it; write it in another way.") from None
        if not rest or rest[0].startswith("-"):
            raise UserError(USAGE)
        header = None
        if not (Path(rest[0]).suffix or "/" in rest[0]):
            header = read_header(ROOT, rest.pop(0))
            if not rest:
                raise UserError(f"JOB_SCRIPT is missing after {shown(header.name)}: {scripts()}.")
        own = read_resources(resources)
        if own and header is None:
            raise UserError(
                "--slurm has no effect without a HEADER, as the script runs here and now: remove one of them."
            )
        if header is not None:
            header = replace(header, resources=own)
        after = read_after(wanted[-1] if wanted else None, condition[-1] if condition else None, header)
        return cls(words, header, script_path(rest[0]), rest[1:], "--dry_run" in words, after)

    def tried_out(self, config: RunConfig, whole_script: Callable[[Path], str]) -> tuple[Self, str]:
        """Before anything is made: with the run that it waits for, and when Slurm would start it."""
        logs, header = Path(config.logging.logs_dir), self.header
        start = check_with_slurm(whole_script(logs / "runs" / DRY), as_options(header.resources if header else ()))
        if self.after is None:
            return self, start
        after = wait_for(logs, self.after.run, self.after.condition)
        return replace(self, after=after), after.start or start

    @property
    def options(self) -> list[str]:
        """Of sbatch, for this submission alone."""
        return self.after.options if self.after else []

    @property
    def typed(self) -> str:
        return shlex.join(["bash", "slurm_executor.sh", *self.words])

    def record(self, config: RunConfig, run: Path) -> dict[str, Any]:
        """For submission.json: what was typed, and what of it another run from the same snapshot is given."""
        header = Path(self.header.name).stem if self.header else None
        flags = self.flags + absolute_paths(config, run)
        asked: dict[str, Any] = {"header": header, "slurm": self.header.resources if self.header else []}
        asked |= {"after": self.after.record} if self.after else {}
        return {"typed": self.words, **asked, "script": self.script, "flags": flags}


def take(name: str, words: list[str]) -> tuple[list[str], list[str]]:
    """The values of an option of ours among the flags of train_model.py, and what is left of them."""
    values: list[str] = []
    rest: list[str] = []
    before = ""
    for word in words:
        if before == name:
            values.append(word)
            word = ""
        elif word.startswith(f"{name}="):
            values.append(word.removeprefix(f"{name}="))
        elif word != name:
            rest.append(word)
        before = word
    if before == name:
        raise UserError(f"{name} is the last word: a value has to follow it.")
    return values, rest


def script_path(word: str) -> str:
    """The script's path from the checkout's root."""
    path = Path(os.path.abspath(ROOT / word))
    if not path.is_file():
        raise UserError(f"JOB_SCRIPT is {word!r}: there is no such file; {scripts()}.")
    if not path.is_relative_to(ROOT):
        raise UserError(f"JOB_SCRIPT is {word!r}: put it into job_scripts/, so that it is kept with the code it runs.")
    return str(path.relative_to(ROOT))


def scripts() -> str:
    found = sorted(file for file in (ROOT / "job_scripts").rglob("*.s*") if (ROOT / HEADERS) not in file.parents)
    sourced = ("environment.sh", "under_slurm.sh")
    return "choose " + ", ".join(str(file.relative_to(ROOT)) for file in found if file.name not in sourced)


def logs_flag(logs: Path) -> str:
    """What the next command about these logs needs too."""
    return "" if logs == ROOT / "logs" else f" --logs_dir {shlex.quote(str(logs))}"


def execute(words: list[str]) -> int:
    """Do what slurm_executor.sh promises; does not return when the script runs here and now."""
    if words in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    order = Order.read(words)
    config, whole_script = checked(order)
    if order.dry_run:
        print(whole_script(Path(config.logging.logs_dir) / "runs" / DRY), end="")
        return 0
    if order.header:
        need_slurm()
        order, start = order.tried_out(config, whole_script)
    folder = make_capsule(order, config, whole_script)
    keep_plain_copy(folder.path)
    print(f"run id  {folder.run_id}", flush=True)
    if order.header is None:
        os.execvpe("bash", ["bash", str(folder.path / "job_script.slurm")], clean_environment())
    job = Submission(folder.path, order.options, is_new=True).submit()
    log = folder.path / f"slurm-{job}.log"
    print(f"job id  {job}\nscript  {folder.path / 'job_script.slurm'}\nlog     {log}")
    print_start(start)
    print(f"follow  python -m launch logs {folder.run_id} -f{logs_flag(folder.path.parent.parent)}")
    return 0


def print_start(start: str) -> None:
    if start:
        print(f"start   {start}")


def checked(order: Order) -> tuple[RunConfig, Callable[[Path], str]]:
    """The settings of the run, and what writes its job script; all that can be wrong is found, and nothing is made."""
    text = read_text(ROOT / order.script, "JOB_SCRIPT")
    check_syntax(text, f"JOB_SCRIPT {shown(order.script)}")
    with chdir(ROOT):  # a path in a flag is seen from there, as it is when a script runs with plain bash
        given = rehearse(ROOT / order.script, order.flags, clean_environment(), order.header is not None)
        config = parse_command_line(given)
        refuse_resumed(config, order)
        logs = Path(config.logging.logs_dir).absolute()
    config = replace(config, logging=replace(config.logging, logs_dir=str(logs)))
    environment = active_environment(ROOT)

    def whole_script(run: Path) -> str:
        flags = order.flags + absolute_paths(config, run)
        made = job_script(order.header, order.script, text, flags, run, environment)
        check_syntax(made, order.header.name if order.header else order.script)
        return made

    made = whole_script(logs / "runs" / DRY)
    if order.header:
        check_placement(options_of(made), config.trainer)
    return config, whole_script


def refuse_resumed(config: RunConfig, order: Order) -> None:
    """A run that goes on keeps the folder, and with it the script and the code, that it has."""
    if (run := RunFolder.resumed(config)) is None:
        return
    how = "sbatch" if order.header else "bash"
    own = run.path.absolute() / "job_script.slurm"
    instead = shlex.quote(str(own)) if (run.path / "code").is_dir() else "job_scripts/train.slurm with the same flags"
    raise UserError(
        f"--resume_training_ckpt goes on in run {shown(run.run_id)}, which is kept already: {how} {instead}."
    )


def absolute_paths(config: RunConfig, run: Path) -> list[str]:
    """Flags that make relative paths hold in the snapshot, and send the run's files to the logs of the checkout."""
    flags = []
    for name, value in values_of(config).items():
        if name == "config" and value:
            flags += ["--config", str(run / f"settings{Path(value).suffix}")]
        elif name == "logs_dir" or (isinstance(value, str) and is_relative_path(name, value)):
            flags += [f"--{name}", os.path.abspath(ROOT / value)]
    return flags


def is_relative_path(name: str, value: str) -> bool:
    if os.path.isabs(value) or value == "last":
        return False
    return "PATH" in (FLAGS[name].metavar or "") or (name == "tokenizer" and (ROOT / value).is_dir())


def make_capsule(order: Order, config: RunConfig, write_script: Callable[[Path], str]) -> RunFolder:
    """The run's folder with all that is needed to run it; complete, or not there."""
    logs = Path(config.logging.logs_dir)
    names, left_out = own_files(ROOT, logs)
    for name in left_out:
        print(
            f"not kept with the run: {shown(name)}, which git does not track and which is large or looks like a secret"
        )
    staged: list[Path] = []

    def add(staging: Path) -> None:
        staged.append(staging)
        run = staging.with_name(staging.name.removeprefix("."))
        snapshot(ROOT, sorted({*names, order.script}), logs / "code", staging / "code")
        if path := config.run.config:
            shutil.copyfile(ROOT / path, staging / f"settings{Path(path).suffix}")
        write_text(staging / "command.txt", order.typed + "\n")
        write_text(staging / "job_script.slurm", write_script(run))
        state = "submitting" if order.header else "here"
        write_json(staging / "submission.json", order.record(config, run) | {"state": state})

    try:
        return RunFolder.create(config, add)
    except BaseException:
        for staging in staged:
            shutil.rmtree(staging, ignore_errors=True)
        raise


def keep_plain_copy(run: Path) -> None:
    """One file a submission in logs/job_scripts/, by time, to look through with grep."""
    copies = run.parent.parent / "job_scripts"
    try:
        copies.mkdir(exist_ok=True)
        shutil.copyfile(run / "job_script.slurm", copies / f"{time.strftime('%Y%m%d-%H%M%S')}_{run.name}.slurm")
    except OSError as error:
        raise UserError(
            f"{shown(str(copies))} cannot be written to ({error.strerror}): nothing was submitted; "
            f"the run's record stays in {shown(str(run))}."
        ) from None


def begin_command(argv: list[str]) -> int:
    begin(Path(argv[0]))
    return 0


def begin(run: Path) -> None:
    """What the job itself does first: note which job it is, and from which step it starts."""
    kept, job = read_job(run / "job.json"), slurm_job()
    if kept.get("job") != job.get("job"):
        kept.pop("starts", None)  # somebody submitted the script once more
    write_json(run / "job.json", kept | job)
    note_start(run)


def refused_command(argv: list[str]) -> int:
    """`launch refused RUN SENTENCE`: what the job notes where its header's commands fail, and no process starts."""
    folder, sentence = RunFolder.open(Path(argv[0])), argv[1]
    begin(folder.path)
    folder.lock()
    folder.close_killed()
    attempt = Attempt(folder, folder.newest_step)
    attempt.begin()
    attempt.end(folder.newest_step, f"{REFUSED}{sentence}")
    return 0
