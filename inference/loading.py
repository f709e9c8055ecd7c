"""Find a run or a checkpoint by its name, and load its model for inference. torch is imported by `load`."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config import RunConfig, SettingsError
from config.flags import flag
from config.record import from_dict
from config.settings import Inference
from config.twin import twin_slug
from core.errors import UserError
from runs import RunFolder
from runs.checkpoints import CheckpointError, Weights, read_checkpoint
from runs.run import Run, all_runs, match_run
from runs.threads import limit_threads, watch_shared_cores
from tasks import Task, find_task

if TYPE_CHECKING:
    import torch

MAX_LISTED = 5  # runs in an error message


@dataclass(frozen=True)
class ModelFlags:
    """which model"""

    run: str | None = flag(None, "run id, run name, run folder or last; default: the newest run", metavar="RUN")
    ckpt: str | None = flag(None, "checkpoint file instead; default: the run's best, else its last", metavar="PATH")
    logs_dir: str = flag("logs", "folder of all runs", metavar="PATH")
    device: str = flag("auto", "where it runs", choices=("auto", "cpu", "cuda"))
    seed: int = flag(0, "seed of all noise and all draws", low=0)


@dataclass(frozen=True)
class Loaded:
    """A model ready for inference. folder: of its run, None for a checkpoint outside of one; step: of its training."""

    task: Task
    config: RunConfig
    model: Any  # of the task
    processor: Any  # of the task
    checkpoint: Path
    folder: RunFolder | None
    step: int

    @property
    def name(self) -> str:
        return self.folder.run_id if self.folder else self.checkpoint.name

    @property
    def run(self) -> Path:
        """The folder that the checkpoint's run has, or would have."""
        return run_of(self.checkpoint)

    def autocast(self) -> torch.autocast:
        """Evaluation uses the precision of the training."""
        import torch

        types = {"bf16": torch.bfloat16, "16": torch.float16}
        precision = types.get(self.config.trainer.float_precision)
        return torch.autocast(self.model.device.type, precision, enabled=precision is not None)


def load(flags: ModelFlags) -> Loaded:
    """The model of --run or --ckpt, on its device, in evaluation mode and without gradients."""
    import torch

    torch.set_flush_denormal(True)  # softmax tails are denormal: twice as fast on a CPU
    limit_threads()
    watch_shared_cores()
    if flags.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device is 'cuda': this machine has no GPU that torch can use; choose auto or cpu.")
    path = find_checkpoint(flags)
    checkpoint, config = read_with_config(path, flags.logs_dir)
    run = run_of(path)
    task = find_task(config.run.task)
    processor = task.processor(config, run)
    model = task.model(config, task.spec(config, run))
    Weights("ckpt", checkpoint["state_dict"]).load_into(model)
    on_gpu = flags.device == "cuda" or (flags.device == "auto" and torch.cuda.is_available())
    model = model.to("cuda" if on_gpu else "cpu").eval().requires_grad_(False)
    folder = RunFolder.open(run) if (run / "config.json").is_file() else None
    return Loaded(task, config, model, processor, path, folder, int(checkpoint["global_step"]))


def run_of(checkpoint: Path) -> Path:
    """The run folder of RUN/checkpoints/FILE."""
    return checkpoint.resolve().parent.parent


def task_name(flags: ModelFlags) -> str | None:
    """The task of the run that the flags name; None where there is no such run.

    It is read from the run folder; torch is imported only for a checkpoint without one.
    """
    try:
        path = find_checkpoint(flags)
    except UserError:
        return None
    record = run_of(path) / "config.json"
    if record.is_file():
        with suppress(ValueError):
            return from_dict(json.loads(record.read_bytes()), str(record)).run.task
    return read_with_config(path, flags.logs_dir)[1].run.task


def read_with_config(path: Path, logs_dir: str) -> tuple[dict[str, Any], RunConfig]:
    """A checkpoint, and the settings that are recorded in it."""
    try:
        checkpoint = read_checkpoint(path)
        return checkpoint, from_dict(checkpoint["run"]["config"], f"the record in {path}")
    except CheckpointError as error:
        raise CheckpointError(f"{error} {runs_hint(logs_dir)}") from error


def find_checkpoint(flags: ModelFlags) -> Path:
    """The file that --ckpt or --run names."""
    if flags.ckpt is not None:
        if flags.run is not None:
            raise SettingsError(["--run and --ckpt are both given: each names a model; remove one of them."])
        path = Path(flags.ckpt)
        if not path.is_file():
            raise UserError(f"--ckpt is {flags.ckpt!r}: there is no such file. {runs_hint(flags.logs_dir)}")
        return path
    folder = find_run(flags.run, flags.logs_dir, "--run")
    for name in ("best.ckpt", "last.ckpt"):
        if (folder / "checkpoints" / name).is_file():
            return folder / "checkpoints" / name
    raise UserError(f"--run is {flags.run!r}: it has no checkpoint yet. {runs_hint(flags.logs_dir)}")


def is_twin(run: Run) -> bool:
    """Whether --compare_baseline named it."""
    slug = twin_slug(run.task)
    return run.name.endswith((f"-{slug}", f"-{slug}-flops"))


def find_run(name: str | None, logs_dir: str, flag: str) -> Path:
    """The folder of a trained run by id, name or path; without a name, the newest that is not a twin."""
    if name is not None and (Path(name) / "config.json").is_file():
        return Path(name)
    runs = trained_runs(logs_dir)
    if name is not None:
        run = match_run(runs, name)
    else:  # --compare_baseline trains the twin after the run itself
        run = next((run for run in runs if not is_twin(run)), runs[0] if runs else None)
    if run is None:
        got = f"{flag} is {name!r}: there is no such run" if name else f"{flag} is missing: there is no run"
        raise UserError(f"{got}. {runs_hint(logs_dir)}")
    return run.path


def trained_runs(logs_dir: str) -> list[Run]:
    """All runs that have a checkpoint, newest first."""
    return [run for run in all_runs(Path(logs_dir)) if (run.path / "checkpoints" / "last.ckpt").exists()]


def runs_hint(logs_dir: str) -> str:
    """The runs to choose from, as the end of a message."""
    names = [run.run_id for run in trained_runs(logs_dir)]
    if not names:
        return f"There is no trained run in {logs_dir}: train one with python train_model.py, or give --logs_dir."
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"Runs in {logs_dir}: {', '.join(names[:MAX_LISTED])}{more}."


def output_folder(loaded: Loaded, settings: Inference) -> Path:
    """--infer_output_dir, created if missing; else the folder of the run, or of a checkpoint outside of a run."""
    if settings.infer_output_dir is None:
        return loaded.folder.path if loaded.folder else loaded.checkpoint.parent
    path = Path(settings.infer_output_dir)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--infer_output_dir is {settings.infer_output_dir!r}: cannot make that folder ({error.strerror}): "
            "choose one you can write to."
        ) from error
    return path
