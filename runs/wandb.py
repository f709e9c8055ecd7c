"""The W&B page of a run, written from the run folder while it trains or later, and `python -m runs sync`.

W&B keeps its files in `<run folder>/wandb/`, a folder for each process that worked on the run. Those that follow each
other are uploaded in order. Where a process was killed, or steps were trained twice, W&B would cut or shift the curves:
then one clean copy is written from metrics.jsonl and uploaded instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from core.commands import CommandParser
from core.files import read_rows, write_json
from core.progress import progress
from core.text import format_value, plural
from runs.metrics import LANGUAGE_TASK, Best, TaskRecord, best_values, number_or
from runs.pictures import pictures_by_step
from runs.run import Run, all_runs, find_run

FILES_AT_START = (
    *("config.json", "task.json", "command.txt", "code.json", "code.diff", "environment.json", "job_script.slurm"),
    *("lineage.json", "model.txt", "model.json"),
)
FILES_AT_END = ("attempts.jsonl", "divergence.jsonl", "alarms.jsonl", "usage.json", "samples.jsonl")
COMPLETE = "whole.json"  # marks a piece that holds all that its process measured
PROBE_SECONDS = 5.0


@dataclass(frozen=True)
class OfflineRun:
    """What one process left for W&B. steps: its first and last, where it holds all that the process measured."""

    file: Path
    is_online: bool  # it was uploading while it trained
    is_synced: bool
    steps: tuple[int, int] | None = None

    def mark_complete(self, first: int, last: int) -> None:
        write_json(self.file.parent / COMPLETE, {"first_step": first, "last_step": last})

    def mark_synced(self) -> None:
        """As `wandb sync` does it, so that each knows of the other."""
        self.file.with_suffix(".wandb.synced").touch()


def offline_runs(folder: Path) -> list[OfflineRun]:
    """All pieces of a run, the oldest first: the names of their folders hold the time."""
    files = [file for kind in ("run-*", "offline-run-*") for file in folder.glob(f"wandb/{kind}/*.wandb")]
    return [offline_run_at(file) for file in sorted(files, key=lambda file: file.parent.name.removeprefix("offline-"))]


def offline_run_at(file: Path) -> OfflineRun:
    whole = Run(file.parent).read(COMPLETE)
    first, last = whole.get("first_step"), whole.get("last_step")
    return OfflineRun(
        file=file,
        is_online=not file.parent.name.startswith("offline-"),
        is_synced=file.with_suffix(".wandb.synced").exists(),
        steps=(first, last) if isinstance(first, int) and isinstance(last, int) else None,
    )


def client() -> Any:
    """W&B's module, silenced: what people need to know is printed here."""
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    return wandb


def why_offline() -> str | None:
    """Why nothing can be uploaded now, in words; None where a server answers and somebody is logged in there.

    Asked before W&B's client tries, because that tries for minutes.
    """
    wandb = client()
    try:
        url = str(wandb.setup().settings.base_url)
        if not wandb.login(prompt=False, verify=False):
            return "nobody is logged in (`wandb login`)"
    except Exception as error:  # a key that is none, a setting that it does not know
        return f"nobody is logged in: {' '.join(str(error).split()).rstrip('.')}"
    try:
        urllib.request.urlopen(url, timeout=PROBE_SECONDS).close()
    except urllib.error.HTTPError:
        pass  # an answer
    except (OSError, ValueError) as error:
        return f"{url} cannot be reached ({getattr(error, 'reason', error)})"
    return None


def open_wandb(run: Run, folder: Path, run_id: str, offline: bool, **settings: Any) -> Any:
    """W&B's run of this id, with all settings and the files of the record; its own files come into `folder`/wandb."""
    wandb = client()
    os.environ["WANDB_DATA_DIR"] = str((folder / "wandb").absolute())  # what waits for upload stays with the run too
    settings_of_run = run.settings
    page = wandb.init(
        id=run_id,
        name=run.name,
        project=settings_of_run.get("wandb_project"),
        entity=settings_of_run.get("wandb_entity"),
        tags=list(settings_of_run.get("wandb_tags") or ()),
        dir=str(folder.absolute()),
        mode="offline" if offline else "online",
        resume="allow",
        settings=wandb.Settings(
            console="off",  # console.log is sent, without the traces of progress bars
            disable_git=True,  # code.json and code.diff have what ran; the working tree may have changed since
            git_commit=run.read("code.json").get("commit"),
            silent=True,
            symlink=False,  # a folder copied to another machine keeps its files
            **settings,
        ),
    )
    os.environ.pop("WANDB_SERVICE", None)  # processes that we start have their own pages
    page.config.update(config_of(run), allow_val_change=True)
    save_files(page, run.path, FILES_AT_START)
    return page


def close_wandb(page: Any, exit_code: int) -> None:
    """End it; when this returns, its file is whole. Only the end of W&B's process says so."""
    page.finish(exit_code=exit_code)
    client().teardown()


def config_of(run: Run) -> dict[str, Any]:
    """All settings by their flag, and beside them what else a run is found by."""
    config: dict[str, Any] = {**run.settings, "run_id": run.run_id, "code": run.read("code.json")}
    with suppress(OSError):
        config["command"] = (run.path / "command.txt").read_text().strip()
    config["model"] = run.read("model.json")
    packages = run.read("environment.json").get("packages")
    config["packages"] = packages if isinstance(packages, dict) else {}
    started = run.attempts[-1] if run.attempts else {}
    config["slurm"] = {name: started[name] for name in ("job", "array_job", "array_task", "nodes") if name in started}
    return config


def save_files(page: Any, folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        if (folder / name).is_file():
            page.save(str(folder / name), base_path=str(folder), policy="now", glob=False)


class Rows:
    """Hands rows of metrics.jsonl to a page; the best value so far of what is validated goes into its summary."""

    def __init__(self, page: Any, earlier: Iterable[Mapping[str, Any]] = (), task: TaskRecord = LANGUAGE_TASK) -> None:
        self.page = page
        self.task = task
        self.position: dict[str, Any] = {"step": 0}  # of the last row, and its time
        self.best: Best = {}
        for row in earlier:
            self.note_best(row)

    def log(self, row: Mapping[str, Any]) -> None:
        values = {name: value for name, value in row.items() if name != "step"}
        if isinstance(row.get("time"), int | float):
            values["_timestamp"] = row["time"]
        self.page.log(values, step=int(row["step"]))
        if row["step"] >= self.step:
            self.position = {name: row[name] for name in ("step", "time") if name in row}
        if self.note_best(row):
            best = {f"best/{name}": value for name, (value, _) in self.best.items() if self.task.sign(name)}
            self.page.summary.update(best)

    @property
    def step(self) -> int:
        return int(self.position["step"])

    def note_best(self, row: Mapping[str, Any]) -> bool:
        """Whether something was never better, as `runs list` has it."""
        before = self.best
        evaluated = {name: row[name] for name in row if name == "step" or name.startswith(("valid_", "test_"))}
        self.best = best_values([evaluated], self.task, before)
        return self.best != before


def picture_row(pictures: Mapping[str, Path], step: int) -> dict[str, Any]:
    """A row of pictures that were drawn at a training step: {name: PNG file}."""
    image = client().Image
    return {"step": step} | {f"pictures/{name}": image(str(file), caption=file.name) for name, file in pictures.items()}


def log_results(rows: Rows, run: Run) -> None:
    """Pictures, samples and alarms, as many of them as the folder has."""
    wandb = client()
    media: dict[str, Any] = {
        f"pictures/{file.stem}": wandb.Image(str(file), caption=file.name) for file in sorted(run.path.glob("*.png"))
    }
    tables = {"samples": ("step", "prompt", "text"), "alarms": ("step", "kind", "text", "advice")}
    for name, columns in tables.items():
        if data := [[row.get(column) for column in columns] for row in read_rows(run.path / f"{name}.jsonl")]:
            media[name] = wandb.Table(columns=list(columns), data=data)
            rows.page.summary[f"number_of_{name}"] = len(data)
    if media:
        rows.log({**rows.position, **media})
    save_files(rows.page, run.path, FILES_AT_END)


def log_checkpoints(page: Any, run: Run, piece: Path) -> None:
    """The checkpoints that --wandb_checkpoints asks for, as versions of one artifact; one file is sent once."""
    wandb = client()
    names_of = {"best": ("best",), "last": ("last",), "both": ("best", "last")}
    aliases: dict[Path, list[str]] = {}
    for name in names_of.get(str(run.settings.get("wandb_checkpoints")), ()):
        checkpoint = run.path / "checkpoints" / f"{name}.ckpt"
        if checkpoint.exists():
            aliases.setdefault(checkpoint.resolve(), []).append(name)
    for checkpoint, names in aliases.items():
        copy = piece / "checkpoints" / checkpoint.name
        copy.parent.mkdir(exist_ok=True)
        try:
            os.link(checkpoint, copy)  # the run may resume and remove it before it is uploaded
        except OSError:
            shutil.copyfile(checkpoint, copy)
        step = checkpoint.stem.removeprefix("step_").lstrip("0") or "0"
        artifact = wandb.Artifact(f"checkpoint-{run.run_id}", type="model", metadata={"step": int(step)})
        artifact.add_file(str(copy), name=checkpoint.name, policy="immutable", skip_cache=True)
        page.log_artifact(artifact, aliases=[*names, f"step-{step}"])


REBUILT = "rebuilt"  # folder of the clean piece, beside the others
REBUILT_LIMITS = {"x_disable_stats": True, "x_disable_machine_info": True, "x_save_requirements": False}


@dataclass(frozen=True)
class SyncAction:
    """What to do with a run, and why. pieces: those that wait, in order. page: W&B's id of what is rebuilt."""

    kind: Literal["nothing", "upload", "rebuild", "ask"]
    why: str
    pieces: tuple[OfflineRun, ...] = ()
    page: str = ""


def sync_action(
    run_id: str, pieces: Sequence[OfflineRun], is_running: bool = False, rebuild: bool = False, again: int = 0
) -> SyncAction:
    """What to do with a run. again: how many clean pages of it were uploaded before."""
    waiting = tuple(piece for piece in pieces if not piece.is_synced)
    begun = again > 0 or any(piece.is_synced or piece.is_online for piece in pieces)
    if is_running:
        return SyncAction("nothing", "it is still running")
    if rebuild:  # W&B cannot take rows back, so what it has of a run stays, and the clean page is another
        return SyncAction("rebuild", "as asked", waiting, f"{run_id}-{REBUILT}{again + 1}" if begun else run_id)
    if not waiting:
        return SyncAction("nothing", "W&B has it" if pieces else "it has no W&B files")
    trouble = why_not_in_order(pieces)
    if trouble is None:
        return SyncAction(
            "upload", "one piece" if len(pieces) == 1 else f"{len(waiting)} of {len(pieces)} pieces", waiting
        )
    if begun:
        return SyncAction(
            "ask", f"W&B has a part of it, and {trouble}: --rebuild makes a clean page beside that one", waiting
        )
    return SyncAction("rebuild", trouble, waiting, run_id)


def why_not_in_order(pieces: Sequence[OfflineRun]) -> str | None:
    """Why the waiting pieces cannot be uploaded one after the other, in words; None where they can."""
    if any(piece.is_online and not piece.is_synced for piece in pieces):
        return "its upload broke off"
    if any(piece.steps is None for piece in pieces):
        return "a process of it was killed"
    steps = [piece.steps for piece in pieces if piece.steps is not None]
    if any(earlier[1] >= later[0] for earlier, later in pairwise(steps)):
        return "steps were trained twice"
    if sorted(pieces, key=lambda piece: not piece.is_synced) != list(pieces):
        return "a later piece is there already"
    return None


def sync(argv: list[str]) -> int:
    """`python -m runs sync`"""
    parser = CommandParser("python -m runs sync", "Upload the W&B files in run folders that W&B does not have yet.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="which runs [all that have something to upload]")
    parser.add_argument("--rebuild", action="store_true", help="upload a clean page written from metrics.jsonl")
    parser.add_argument("--dry_run", action="store_true", help="say what would be done")
    options = parser.parse_args(argv)
    logs = Path(options.logs_dir)
    runs = [find_run(logs, name) for name in options.runs] or list(reversed(list(all_runs(logs))))
    if options.rebuild and not options.runs:
        parser.error("--rebuild without RUN: name the runs to rebuild")
    actions = [(run, sync_action_of(run, options.rebuild)) for run in runs]
    todo = [(run, action) for run, action in actions if action.kind in ("upload", "rebuild")]
    for run, idle in actions:
        if idle.kind == "ask" or (idle.kind == "nothing" and options.runs):
            print(f"{format_value(run.run_id)}: nothing uploaded, {idle.why}.")
    if not todo:
        if not options.runs:
            print(f"None of the {len(runs):,} runs in {format_value(str(logs))} has anything to upload.")
        return 0
    if options.dry_run:
        for run, action in todo:
            print(f"{format_value(run.run_id)}: would {action.kind}, {action.why}.")
        return 0
    if why := why_offline():
        waits = f"{plural(len(todo), 'run')} {'wait' if len(todo) > 1 else 'waits'}"
        print(f"W&B: {why}: nothing was uploaded, {waits}; call this again later.", file=sys.stderr)
        return 1
    return min(1, sum(not carry_out(run, action) for run, action in todo))


def sync_action_of(run: Run, rebuild: bool) -> SyncAction:
    again = len(list((run.path / "wandb" / REBUILT).glob("*/wandb/*/*.wandb.synced")))
    return sync_action(run.run_id, offline_runs(run.path), run.state == "running", rebuild, again)


def carry_out(run: Run, action: SyncAction) -> bool:
    """Upload or rebuild, and print one line; whether W&B has everything now."""
    trouble = ""
    with progress(f"{format_value(run.run_id)}: {action.kind}", "pieces", len(action.pieces)) as advance:
        try:
            files = [rebuild(run, action.page)] if action.kind == "rebuild" else [piece.file for piece in action.pieces]
        except Exception as error:  # the next run may do better
            trouble = f"could not be rebuilt, {type(error).__name__}: {error}"
        else:
            words = upload(files, run.path)
            trouble = f"not uploaded, {words}" if words else ""
        advance(len(action.pieces))
    if trouble:
        print(f"{format_value(run.run_id)}: {trouble}", file=sys.stderr)
        return False
    for piece in action.pieces:
        piece.mark_synced()
    done = f"a clean page {format_value(action.page)} from metrics.jsonl" if action.kind == "rebuild" else "uploaded"
    print(f"{format_value(run.run_id)}: {done}, {action.why}.")
    if action.kind == "rebuild" and action.page != run.run_id:
        print("  W&B had a part of it under the old id, which stays as it is; delete that page by hand.")
    return True


def upload(files: Sequence[Path], folder: Path) -> str | None:
    """Hand the files to `wandb sync`, whose logs come into `folder`; None when all arrived, else its last line."""
    command = [sys.executable, "-m", "wandb", "sync", *map(str, files)]
    own = {**os.environ, "WANDB_DIR": str(folder.absolute())}
    done = subprocess.run(command, env=own, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if all(file.with_suffix(".wandb.synced").exists() for file in files):
        return None
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines[-1] if lines else f"wandb sync ended with status {done.returncode}"


def rebuild(run: Run, page_id: str) -> Path:
    """Write one whole piece from the run folder, as if one process had trained the run without a stop; its file."""
    folder = run.path / "wandb" / REBUILT / page_id
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    page = open_wandb(run, folder, page_id, offline=True, x_start_time=run.began, **REBUILT_LIMITS)
    file = Path(page.settings.sync_dir) / f"run-{page_id}.wandb"
    try:
        rows = Rows(page, task=run.task)
        for row in rows_by_step([*run.metrics(), *usage_rows(run)], pictures_by_step(run.path)):
            rows.log(row)
        for text in run.path.glob(str(run.settings.get("console_log_filename", "console.log"))):
            page.write_logs(text.read_text(errors="replace"))
        log_results(rows, run)
        log_checkpoints(page, run, file.parent)
    finally:
        close_wandb(page, 0 if run.state == "finished" else 1)
    return file


def usage_rows(run: Run) -> list[dict[str, Any]]:
    return [
        {"step": row.get("step")}
        | {f"usage/{name}": value for name, value in row.items() if name not in ("step", "time")}
        for row in read_rows(run.path / "usage.jsonl")
    ]


def rows_by_step(rows: Iterable[dict[str, Any]], pictures: Mapping[str, Mapping[int, Path]]) -> list[dict[str, Any]]:
    """Rows and pictures by step; those of one step are one row for W&B, with the time of the last that has one."""
    drawn = [picture_row({name: file}, step) for name, files in pictures.items() for step, file in files.items()]
    of_steps = [row for row in (*drawn, *rows) if isinstance(row.get("step"), int)]
    return sorted(of_steps, key=lambda row: number_or(row["step"], 0.0))
