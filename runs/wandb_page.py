"""What the W&B page of a run shows, taken from the run folder: the same while it trains and when it is rebuilt later.

W&B keeps its files in `<run folder>/wandb/`: a folder for each process that worked on the run, here called a piece.
"""

from __future__ import annotations

import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.files import read_rows, write_json
from runs.measured import Best, update_best
from runs.metrics import describe
from runs.reading import Run

AT_START = (
    *("config.json", "command.txt", "code.json", "code.diff", "environment.json", "job_script.slurm", "lineage.json"),
    *("model.txt", "model.json"),
)
AT_END = ("attempts.jsonl", "divergence.jsonl", "alarms.jsonl", "usage.json", "samples.jsonl")
WHOLE = "whole.json"  # marks a piece that holds all that its process measured
PROBE_SECONDS = 5.0


@dataclass(frozen=True)
class Piece:
    """What one process left for W&B. steps: its first and last, where it holds all that the process measured."""

    file: Path
    is_online: bool  # it was uploading while it trained
    is_synced: bool
    steps: tuple[int, int] | None = None

    def mark_whole(self, first: int, last: int) -> None:
        write_json(self.file.parent / WHOLE, {"first_step": first, "last_step": last})

    def mark_synced(self) -> None:
        """As `wandb sync` does it, so that each knows of the other."""
        self.file.with_suffix(".wandb.synced").touch()


def pieces_of(folder: Path) -> list[Piece]:
    """All pieces of a run, the oldest first: the names of their folders hold the time."""
    found = [file for kind in ("run-*", "offline-run-*") for file in folder.glob(f"wandb/{kind}/*.wandb")]
    return [piece_at(file) for file in sorted(found, key=lambda file: file.parent.name.removeprefix("offline-"))]


def piece_at(file: Path) -> Piece:
    whole = Run(file.parent).read(WHOLE)
    first, last = whole.get("first_step"), whole.get("last_step")
    return Piece(
        file=file,
        is_online=not file.parent.name.startswith("offline-"),
        is_synced=file.with_suffix(".wandb.synced").exists(),
        steps=(first, last) if isinstance(first, int) and isinstance(last, int) else None,
    )


def client() -> Any:
    """W&B's module, which says nothing by itself: what there is to say, we say."""
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


def open_page(run: Run, folder: Path, run_id: str, offline: bool, **settings: Any) -> Any:
    """W&B's run of this id, with all settings and the files of the record; its own files come into `folder`/wandb."""
    wandb = client()
    os.environ["WANDB_DATA_DIR"] = str((folder / "wandb").absolute())  # what waits for upload stays with the run too
    chosen = run.settings
    page = wandb.init(
        id=run_id,
        name=run.name,
        project=chosen.get("wandb_project"),
        entity=chosen.get("wandb_entity"),
        tags=list(chosen.get("wandb_tags") or ()),
        dir=str(folder.absolute()),
        mode="offline" if offline else "online",
        resume="allow",
        settings=wandb.Settings(
            console="off",  # console.log is sent, without the traces of progress bars
            disable_git=True,  # code.json and code.diff tell what ran; the working tree may have changed since
            git_commit=run.read("code.json").get("commit"),
            silent=True,
            symlink=False,  # a folder copied to another machine keeps its files
            **settings,
        ),
    )
    os.environ.pop("WANDB_SERVICE", None)  # processes that we start have pages of their own
    page.config.update(config_of(run), allow_val_change=True)
    save_files(page, run.path, AT_START)
    return page


def close_page(page: Any, exit_code: int) -> None:
    """End it; when this returns, its file is whole. Only the end of W&B's process says so."""
    page.finish(exit_code=exit_code)
    client().teardown()


def config_of(run: Run) -> dict[str, Any]:
    """All settings by their flag, and beside them what else a run is found by."""
    known: dict[str, Any] = {**run.settings, "run_id": run.run_id, "code": run.read("code.json")}
    with suppress(OSError):
        known["command"] = (run.path / "command.txt").read_text().strip()
    known["model"] = run.read("model.json")
    packages = run.read("environment.json").get("packages")
    known["packages"] = packages if isinstance(packages, dict) else {}
    started = run.attempts[-1] if run.attempts else {}
    known["slurm"] = {name: started[name] for name in ("job", "array_job", "array_task", "nodes") if name in started}
    return known


def save_files(page: Any, folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        if (folder / name).is_file():
            page.save(str(folder / name), base_path=str(folder), policy="now", glob=False)


class Rows:
    """Hands rows of metrics.jsonl to a page; the best value so far of what is validated goes into its summary."""

    def __init__(self, page: Any, earlier: Iterable[Mapping[str, Any]] = ()) -> None:
        self.page = page
        self.place: dict[str, Any] = {"step": 0}  # of the last row, and its time
        self.best: Best = {}
        for row in earlier:
            self.note_best(row)

    def log(self, row: Mapping[str, Any]) -> None:
        values = {name: value for name, value in row.items() if name != "step"}
        if isinstance(row.get("time"), int | float):
            values["_timestamp"] = row["time"]
        self.page.log(values, step=int(row["step"]))
        if row["step"] >= self.step:
            self.place = {name: row[name] for name in ("step", "time") if name in row}
        if self.note_best(row):
            told = {f"best/{name}": value for name, (value, _) in self.best.items() if describe(name).better}
            self.page.summary.update(told)

    @property
    def step(self) -> int:
        return int(self.place["step"])

    def note_best(self, row: Mapping[str, Any]) -> bool:
        """Whether something was never better, as `runs list` has it."""
        before = dict(self.best)
        update_best(
            self.best, [{name: row[name] for name in row if name == "step" or name.startswith(("valid_", "test_"))}]
        )
        return self.best != before


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
        rows.log({**rows.place, **media})
    save_files(rows.page, run.path, AT_END)


def log_checkpoints(page: Any, run: Run, piece: Path) -> None:
    """The checkpoints that --wandb_checkpoints asks for, as versions of one artifact; one file is sent once."""
    wandb = client()
    chosen = {"best": ("best",), "last": ("last",), "both": ("best", "last")}
    aliases: dict[Path, list[str]] = {}
    for name in chosen.get(str(run.settings.get("wandb_checkpoints")), ()):
        checkpoint = run.path / "checkpoints" / f"{name}.ckpt"
        if checkpoint.exists():
            aliases.setdefault(checkpoint.resolve(), []).append(name)
    for checkpoint, names in aliases.items():
        kept = piece / "checkpoints" / checkpoint.name
        kept.parent.mkdir(exist_ok=True)
        try:
            os.link(checkpoint, kept)  # the run may go on and remove it before it is uploaded
        except OSError:
            shutil.copyfile(checkpoint, kept)
        step = checkpoint.stem.removeprefix("step_").lstrip("0") or "0"
        artifact = wandb.Artifact(f"checkpoint-{run.run_id}", type="model", metadata={"step": int(step)})
        artifact.add_file(str(kept), name=checkpoint.name, policy="immutable", skip_cache=True)
        page.log_artifact(artifact, aliases=[*names, f"step-{step}"])
