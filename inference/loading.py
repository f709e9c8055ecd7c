"""From the name of a run, or a checkpoint, to a model that can be used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from config import RunConfig, SettingsError
from config.record import from_dict
from config.settings import Inference
from core.errors import UserError
from data.kept import tokenizer_in
from data.store import open_store
from data.tokenizers import Tokenizer, build_tokenizer
from inference.commands import Model
from models import LanguageModel, build_model
from runs import RunFolder
from runs.reading import Run, all_runs, meant
from training.checkpoints import CheckpointError, read_checkpoint
from training.resume import Weights
from training.waiting import limit_threads, watch_neighbours

SHOWN = 5  # runs that an error lists
TWINS = ("-transformer++", "-transformer++-flops")


@dataclass(frozen=True)
class Loaded:
    """A model ready for inference. folder: its run's, where the checkpoint lies in one; step: of its training."""

    config: RunConfig
    model: LanguageModel
    tokenizer: Tokenizer
    checkpoint: Path
    folder: RunFolder | None
    step: int


def load(wanted: Model) -> Loaded:
    """The model that --run or --ckpt names, on its device, without gradients."""
    torch.set_flush_denormal(True)  # softmax tails are denormal: worth 2x on a CPU
    limit_threads()
    watch_neighbours()
    if wanted.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device is 'cuda': this machine has no GPU that torch can use; choose auto or cpu.")
    path = find_checkpoint(wanted)
    try:
        checkpoint = read_checkpoint(path)
        config = from_dict(checkpoint["run"]["config"], f"the record in {path}")
    except CheckpointError as error:
        raise CheckpointError(f"{error} {known_runs(wanted.logs_dir)}") from error
    run = path.resolve().parent.parent
    tokenizer = tokenizer_of(config, run)
    model = build_model(config, tokenizer.vocab_size, tokenizer.separator_id, tokenizer.pad_id)
    Weights("ckpt", checkpoint["state_dict"]).load_into(model)
    on_gpu = wanted.device == "cuda" or (wanted.device == "auto" and torch.cuda.is_available())
    model = model.to("cuda" if on_gpu else "cpu").eval().requires_grad_(False)
    folder = RunFolder.open(run) if (run / "config.json").is_file() else None
    return Loaded(config, model, tokenizer, path, folder, int(checkpoint["global_step"]))


def tokenizer_of(config: RunConfig, run: Path) -> Tokenizer:
    """The tokenizer that a run was trained with, from its folder; a BPE that is not there is in its dataset's cache, or
    made again."""
    if kept := tokenizer_in(run, config.data.tokenizer):
        return kept
    if config.data.tokenizer.partition(":")[0] == "bpe":
        return open_store(config.data).tokenizer
    return build_tokenizer(config.data.tokenizer, list)


def find_checkpoint(wanted: Model) -> Path:
    """The file that --ckpt or --run names."""
    if wanted.ckpt is not None:
        if wanted.run is not None:
            raise SettingsError(["--run and --ckpt are both given: each names a model; remove one of them."])
        path = Path(wanted.ckpt)
        if not path.is_file():
            raise UserError(f"--ckpt is {wanted.ckpt!r}: there is no such file. {known_runs(wanted.logs_dir)}")
        return path
    folder = find_run(wanted.run, wanted.logs_dir, "--run")
    for name in ("best.ckpt", "last.ckpt"):
        if (folder / "checkpoints" / name).is_file():
            return folder / "checkpoints" / name
    raise UserError(f"--run is {wanted.run!r}: it has no checkpoint yet. {known_runs(wanted.logs_dir)}")


def find_run(wanted: str | None, logs_dir: str, flag: str) -> Path:
    """The folder of a trained run, by whatever people call it; without a word the newest of all but twins."""
    if wanted is not None and (Path(wanted) / "config.json").is_file():
        return Path(wanted)
    runs = trained_runs(logs_dir)
    if wanted is not None:
        found = meant(runs, wanted)
    else:  # what --compare_baseline trained comes after the run that people mean
        found = next((run for run in runs if not run.name.endswith(TWINS)), runs[0] if runs else None)
    if found is None:
        got = f"{flag} is {wanted!r}: there is no such run" if wanted else f"{flag} is missing: there is no run"
        raise UserError(f"{got}. {known_runs(logs_dir)}")
    return found.path


def trained_runs(logs_dir: str) -> list[Run]:
    """All runs that have a checkpoint, newest first."""
    return [run for run in all_runs(Path(logs_dir)) if (run.path / "checkpoints" / "last.ckpt").exists()]


def known_runs(logs_dir: str) -> str:
    """What there is to choose from, as the end of a message."""
    names = [run.run_id for run in trained_runs(logs_dir)]
    if not names:
        return f"There is no trained run in {logs_dir}: train one with python train_model.py, or give --logs_dir."
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"Runs in {logs_dir}: {', '.join(names[:SHOWN])}{more}."


def output_folder(loaded: Loaded, settings: Inference) -> Path:
    """--infer_output_dir, which is made where it is missing; else the run's folder, or that of a lone checkpoint."""
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
