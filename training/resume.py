"""Going on from a checkpoint: its settings, what may differ from them, and cutting the record back to its step."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from config import RunConfig, SettingsError
from config.flags import FLAGS
from config.record import changed_problems, from_dict
from core.files import read_rows, write_text
from runs import RunFolder, is_first_process
from runs.folder import LAST, LAST_OR_NEW, slurm_job
from training.checkpoints import CheckpointError, newest_checkpoint, read_checkpoint
from training.recorder import MetricsFile

# What a resumed run may do differently without becoming another run.
FREE_GROUPS = ("logging", "checkpoint", "debugging", "testing")
FREE_FLAGS = (
    *("run_name", "config", "execution_mode", "num_workers", "prefetch_factor", "pretokenize_dataset", "dataset_dir"),
    *("max_steps", "max_epochs", "goal", "early_stop", "gpus", "cpu_processes", "distributed_strategy"),
    *("val_check_interval", "check_val_every_n_epoch", "val_sanity", "deterministic", "set_matmul_precision"),
    *("compile_model", "is_random_seed"),
)
MODEL = ("architecture", "energy", "recipe", "modality", "model_name", "model_size", "tokenizer")
SHAPE = (
    *("modality", "model_name", "model_size", "num_transformer_blocks", "multiheaded_attention_heads", "embedding_dim"),
    *("tokenizer", "energy_form", "energy_blocks"),
)
LIMITS = ("limit_train_batches", "limit_val_batches", "limit_test_batches", "run_testing_after_training")
RESUMED = (*MODEL, *LIMITS, "run", "data", "optimizer", "trainer", "checkpoint", "logging")
TESTED = (*MODEL, "data")
TUNED = MODEL
RANDOM_SEED = "EBT_RANDOM_SEED"
AGAIN = "leave --resume_training_ckpt out to start a run anew"


def adopt(config: RunConfig, stored: dict[str, Any], flag: str, groups: tuple[str, ...], fixed: bool) -> RunConfig:
    """The settings as typed, with the rest of these groups as the checkpoint's run had them.

    groups: groups or single flags to take over. fixed: typed settings that would make it another run are errors; else
    only those that make weights of another shape.
    """
    before = from_dict(stored)
    typed_flags = {name for name, source in config.sources.items() if source in ("command line", "file")}
    old = {name: why for name, why in before.changed.items() if fixed or name not in typed_flags}
    problems = [] if config.testing.only_test else changed_problems(old, f"the run of {flag}")
    changes: dict[str, dict[str, Any]] = {}
    for name, source in config.sources.items():
        group = FLAGS[name].group
        value, old = getattr(getattr(config, group), name), getattr(getattr(before, group), name)
        typed = source in ("command line", "file") or source.startswith("--")
        bound = group not in FREE_GROUPS and name not in FREE_FLAGS if fixed else name in SHAPE
        if typed and bound and value != old:
            problems.append(f"--{name} is {value!r}: the run of {flag} has {old!r}; leave it out, or start a new run.")
        if not typed and (group in groups or name in groups):
            changes.setdefault(group, {})[name] = old
    if problems:
        raise SettingsError(problems)
    return replace(config, **{group: replace(getattr(config, group), **values) for group, values in changes.items()})


def take_up(config: RunConfig, folder: RunFolder) -> tuple[RunConfig, Path | None, int]:
    """Settings, checkpoint and step to go on from; a fresh start where there is nothing to go on from yet."""
    wanted = config.checkpoint.resume_training_ckpt
    queued_again = wanted is None or int(slurm_job().get("restart", 0)) > 0
    saved = any(folder.checkpoints.glob("step_*.ckpt"))
    if queued_again and saved:
        wanted = LAST
    if wanted is None or (not saved and wanted in (LAST, LAST_OR_NEW)):
        if is_first_process() and folder.metrics.exists():  # it was killed before its first checkpoint
            MetricsFile.cut(folder.metrics, -1)
        if wanted is not None:
            print(f"no checkpoint of a run named {config.run.run_name!r} yet: starting from step 0.")
        return draw_seed(config), None, 0
    if wanted in (LAST, LAST_OR_NEW):
        found = newest_checkpoint(folder.checkpoints)
        if found is None:
            raise CheckpointError(f"no checkpoint of run {folder.run_id} can be read: {AGAIN}.")
        path, checkpoint = found
    else:
        path, checkpoint = Path(wanted), read_checkpoint(Path(wanted))
    config = adopt(config, checkpoint["run"]["config"], "--resume_training_ckpt", RESUMED, fixed=True)
    step = checkpoint["global_step"]
    if is_first_process():
        MetricsFile.cut(folder.metrics, step)
        if checkpoint.get("validation_due"):
            forget_validation(folder.metrics, step)
        set_aside(folder, path)
        print(f"going on from step {step} ({path})")
    return config, path, step


def forget_validation(metrics: Path, step: int) -> None:
    """Drop the row of a validation that is run again."""
    rows = [row for row in read_rows(metrics) if row.get("step") != step or "valid_loss" not in row]
    write_text(metrics, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def set_aside(folder: RunFolder, path: Path) -> None:
    """Move checkpoints that are later than the one to go on from out of the way of those to come."""
    if path.resolve().parent != folder.checkpoints.resolve():
        return
    for later in folder.checkpoints.glob("step_*.ckpt"):
        if later.name > path.resolve().name:
            (folder.checkpoints / "later").mkdir(exist_ok=True)
            later.rename(folder.checkpoints / "later" / later.name)
    for name in ("last.ckpt", "best.ckpt"):
        link = folder.checkpoints / name
        if link.is_symlink() and not link.exists():
            link.unlink()


def draw_seed(config: RunConfig) -> RunConfig:
    """A random seed where one is asked for; all processes of a run take the first one's."""
    if not config.trainer.is_random_seed:
        return config
    seed = int(os.environ.setdefault(RANDOM_SEED, str(secrets.randbelow(2**31))))
    return replace(config, trainer=replace(config.trainer, seed=seed))


class Weights:
    """Weights of a checkpoint, to start from or to test."""

    def __init__(
        self, flag: str, weights: dict[str, Any], own_step_size: bool = False, run: Path | None = None
    ) -> None:
        self.flag = flag
        self.weights = weights
        self.own_step_size = own_step_size  # typed, where otherwise that of the checkpoint stays
        self.run = run  # the folder that they come from

    def load_into(self, model: nn.Module) -> None:
        """Put the weights in, or say in one sentence why they do not fit."""
        own = model.state_dict()
        if self.own_step_size and "step_size" in own:
            self.weights["step_size"] = own["step_size"]
        for name in sorted(own.keys() | self.weights.keys()):
            here, there = own.get(name), self.weights.get(name)
            if here is None or there is None or here.shape != there.shape:
                shapes = ["missing" if tensor is None else tuple(tensor.shape) for tensor in (there, here)]
                raise CheckpointError(
                    f"--{self.flag}: its weights do not fit this model: {name} is {shapes[0]} there and {shapes[1]} "
                    "here; use the same --tokenizer, --model_size and architecture flags."
                )
        model.load_state_dict(self.weights)


def initial_weights(config: RunConfig) -> tuple[RunConfig, Weights | None]:
    """The weights that --finetuning_model_ckpt or --only_test_model_ckpt names, with their run's settings."""
    flag = "only_test_model_ckpt" if config.testing.only_test else "finetuning_model_ckpt"
    wanted = (
        config.testing.only_test_model_ckpt if config.testing.only_test else config.checkpoint.finetuning_model_ckpt
    )
    if wanted is None:
        return config, None
    path = weights_path(config, flag, wanted)
    checkpoint = read_checkpoint(path)
    config = adopt(
        config, checkpoint["run"]["config"], f"--{flag}", TESTED if config.testing.only_test else TUNED, fixed=False
    )
    typed = config.sources["mcmc_step_size"] in ("command line", "file")
    return config, Weights(flag, checkpoint["state_dict"], own_step_size=typed, run=path.resolve().parent.parent)


def weights_path(config: RunConfig, flag: str, wanted: str) -> Path:
    """The file that a path or `last` stands for: the newest checkpoint of a run of this name."""
    if wanted != "last":
        return Path(wanted)
    runs = Path(config.logging.logs_dir) / "runs"
    found = [path for path in runs.glob("[!.]*/checkpoints/last.ckpt") if run_name(path) == config.run.run_name]
    if not found:
        raise SettingsError([f"--{flag} is 'last': there is no checkpoint of a run named {config.run.run_name!r}."])
    return max(found, key=lambda path: path.stat().st_mtime_ns)


def run_name(checkpoint: Path) -> str | None:
    try:
        return json.loads((checkpoint.parent.parent / "config.json").read_bytes())["run"]["run_name"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
