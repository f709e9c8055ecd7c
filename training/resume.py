"""Starting from a checkpoint: which settings come from its run, which may differ, what is removed after its step."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

from config import RunConfig, SettingsError
from config.record import changed_problems, flag_named, from_dict, is_changeable, is_of_model, values_of
from core.environment import RANDOM_SEED
from runs import RunFolder, is_first_process
from runs.checkpoints import (
    CheckpointError,
    Weights,
    newest_checkpoint,
    read_checkpoint,
    saved_checkpoints,
    weights_path,
)
from runs.folder import LAST, LAST_OR_NEW
from runs.slurm import slurm_job
from training.recorder import MetricsFile

# Groups and flags that are taken from the checkpoint's run, beside the settings of the model: by a run that resumes it,
# one that only tests it, and one that fine-tunes it.
LIMITS = ("limit_train_batches", "limit_val_batches", "limit_test_batches", "run_testing_after_training")
RESUME_GROUPS = (*LIMITS, "run", "data", "optimizer", "trainer", "checkpoint", "logging")
TEST_GROUPS = ("data",)
FINETUNE_GROUPS: tuple[str, ...] = ()
START_AGAIN = "leave --resume_training_ckpt out to start a new run"


def merge_settings(
    config: RunConfig, stored: dict[str, Any], flag: str, groups: tuple[str, ...], fixed: bool
) -> RunConfig:
    """The settings as typed; those not typed, of the model and of `groups`, as the checkpoint's run had them.

    groups: groups or single flags to take from it. fixed: typed settings that would make it another run are errors;
    otherwise only those that give weights of another shape.
    """
    before = from_dict(stored)
    typed_flags = {name for name, source in config.sources.items() if source in ("command line", "file")}
    outdated = {name: why for name, why in before.changed.items() if fixed or name not in typed_flags}
    problems = [] if config.testing.only_test else changed_problems(outdated, f"the run of {flag}")
    changes: dict[str, Any] = {}
    values, earlier = values_of(config), values_of(before)
    if before.run.task != config.run.task:
        problems.append(
            f"--task is {config.run.task!r}: the run of {flag} has {before.run.task!r}; add --task {before.run.task}."
        )
        raise SettingsError(problems)
    for name, source in config.sources.items():
        setting = flag_named(name, values)
        value, old = values[name], earlier[name]
        typed = source in ("command line", "file") or source.startswith("--")
        must_agree = not is_changeable(setting) if fixed else setting.of_shape
        if typed and must_agree and value != old:
            problems.append(f"--{name} is {value!r}: the run of {flag} has {old!r}; leave it out, or start a new run.")
        if not typed and (is_of_model(setting) or setting.group in groups or name in groups):
            changes[name] = old
    if problems:
        raise SettingsError(problems)
    return config.with_values(changes)


def resume(config: RunConfig, folder: RunFolder) -> tuple[RunConfig, Path | None, int]:
    """Settings, checkpoint and step to resume from; a fresh start where there is no checkpoint yet."""
    requested = config.checkpoint.resume_training_ckpt
    requeued = requested is None or int(slurm_job().get("restart", 0)) > 0
    has_checkpoint = bool(saved_checkpoints(folder.checkpoints))
    if requeued and has_checkpoint:
        requested = LAST
    if requested is None or (not has_checkpoint and requested in (LAST, LAST_OR_NEW)):
        if is_first_process() and folder.metrics.exists():  # it was killed before its first checkpoint
            MetricsFile.truncate_after(folder.metrics, -1)
        if requested is not None:
            print(f"no checkpoint of a run named {config.run.run_name!r} yet: starting from step 0.")
        return draw_seed(config), None, 0
    if requested in (LAST, LAST_OR_NEW):
        newest = newest_checkpoint(folder.checkpoints)
        if newest is None:
            raise CheckpointError(f"no checkpoint of run {folder.run_id} can be read: {START_AGAIN}.")
        path, checkpoint = newest
    else:
        path, checkpoint = Path(requested), read_checkpoint(Path(requested))
    config = merge_settings(config, checkpoint["run"]["config"], "--resume_training_ckpt", RESUME_GROUPS, fixed=True)
    step = checkpoint["global_step"]
    if is_first_process():
        MetricsFile.truncate_after(folder.metrics, step)
        if checkpoint.get("validation_due"):
            MetricsFile.drop_validation(folder.metrics, step)
        move_later_checkpoints(folder, path)
        print(f"resuming from step {step} ({path})")
    return config, path, step


def move_later_checkpoints(folder: RunFolder, path: Path) -> None:
    """Move checkpoints later than the one to resume from into a folder `later`: new ones will have their names."""
    if path.resolve().parent != folder.checkpoints.resolve():
        return
    for later in saved_checkpoints(folder.checkpoints):
        if later.name > path.resolve().name:
            (folder.checkpoints / "later").mkdir(exist_ok=True)
            later.rename(folder.checkpoints / "later" / later.name)
    for name in ("last.ckpt", "best.ckpt"):
        link = folder.checkpoints / name
        if link.is_symlink() and not link.exists():
            link.unlink()


def draw_seed(config: RunConfig) -> RunConfig:
    """A random seed with --is_random_seed; all processes of a run take that of the first."""
    if not config.trainer.is_random_seed:
        return config
    seed = int(os.environ.setdefault(RANDOM_SEED, str(secrets.randbelow(2**31))))
    return replace(config, trainer=replace(config.trainer, seed=seed))


def initial_weights(config: RunConfig) -> tuple[RunConfig, Weights | None]:
    """The weights that --finetuning_model_ckpt or --only_test_model_ckpt names, with their run's settings."""
    flag = "only_test_model_ckpt" if config.testing.only_test else "finetuning_model_ckpt"
    value = config.testing.only_test_model_ckpt if config.testing.only_test else config.checkpoint.finetuning_model_ckpt
    if value is None:
        return config, None
    path = weights_path(config, flag, value)
    checkpoint = read_checkpoint(path)
    groups = TEST_GROUPS if config.testing.only_test else FINETUNE_GROUPS
    config = merge_settings(config, checkpoint["run"]["config"], f"--{flag}", groups, fixed=False)
    typed = config.sources.get("mcmc_step_size") in ("command line", "file")
    return config, Weights(flag, checkpoint["state_dict"], own_step_size=typed, run=path.resolve().parent.parent)
