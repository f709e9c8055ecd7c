"""Checkpoints read from outside a training: verified, listed, the newest one, and the weights of one.

A checkpoint holds tensors and plain values only, so reading one never runs code. torch is imported when one is read.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config import RunConfig, SettingsError
from core.errors import UserError

if TYPE_CHECKING:
    from torch import nn

PATTERN = "step_*.ckpt"


class CheckpointError(UserError):
    """A checkpoint that cannot be used, in one sentence."""


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"step_{step:08d}.ckpt"


def step_of(path: Path) -> int:
    return int(path.stem.removeprefix("step_"))


def saved_checkpoints(folder: Path) -> list[Path]:
    """The files, oldest first; none of them is read."""
    return sorted(folder.glob(PATTERN))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Verify every byte, then read tensors and plain values; anything else is refused unread."""
    import torch

    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such checkpoint.")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged:
            raise CheckpointError(f"{path} is damaged (in {damaged}): take an earlier checkpoint of the run.")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise CheckpointError(f"{path} is not a whole checkpoint ({error}): take an earlier one of the run.") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} holds more than tensors and plain values: refused, and nothing in it was run."
        ) from error
    except RuntimeError as error:  # what torch raises for an archive of another kind
        raise CheckpointError(f"{path} is not a checkpoint of this toolkit: it is another kind of archive.") from error
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint or "run" not in checkpoint:
        raise CheckpointError(f"{path} is not a checkpoint of this toolkit: it has no record of its run.")
    return checkpoint


def valid_checkpoints(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every checkpoint that can be read, with its content, newest first; a warning names each damaged one."""
    for path in reversed(saved_checkpoints(folder)):
        try:
            yield path, read_checkpoint(path)
        except CheckpointError as error:
            print(f"warning: {error}")


def newest_checkpoint(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    return next(valid_checkpoints(folder), None)


def weights_path(config: RunConfig, flag: str, value: str) -> Path:
    """The file that a flag names: a path, or `last` for the newest checkpoint of a run with this --run_name."""
    if value != "last":
        return Path(value)
    runs = Path(config.logging.logs_dir) / "runs"
    checkpoints = [
        path for path in runs.glob("[!.]*/checkpoints/last.ckpt") if recorded_run_name(path) == config.run.run_name
    ]
    if not checkpoints:
        problem = f"there is no checkpoint of a run named {config.run.run_name!r}"
        raise SettingsError([f"--{flag} is 'last': {problem}; give its --run_name, or a .ckpt file."])
    return max(checkpoints, key=lambda path: path.stat().st_mtime_ns)


def recorded_run_name(checkpoint: Path) -> str | None:
    """The --run_name in the config.json of a checkpoint's run folder."""
    try:
        return json.loads((checkpoint.parent.parent / "config.json").read_bytes())["run"]["run_name"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Weights:
    """Weights of a checkpoint, to start from, to test or to run. flag: the one that named it, for messages."""

    def __init__(
        self, flag: str, weights: dict[str, Any], own_step_size: bool = False, run: Path | None = None
    ) -> None:
        self.flag = flag
        self.weights = weights
        self.own_step_size = own_step_size  # --mcmc_step_size was typed; otherwise the checkpoint's is used
        self.run = run  # the folder that they come from

    def load_into(self, model: nn.Module) -> None:
        """Load the weights, or say in one sentence why they do not fit."""
        own = model.state_dict()
        if self.own_step_size and "step_size" in own:
            self.weights["step_size"] = own["step_size"]
        for name in sorted(own.keys() | self.weights.keys()):
            here, there = own.get(name), self.weights.get(name)
            if here is None or there is None or here.shape != there.shape:
                shapes = ["missing" if tensor is None else tuple(tensor.shape) for tensor in (there, here)]
                raise CheckpointError(
                    f"--{self.flag}: its weights do not fit this model: {name} is {shapes[0]} there and {shapes[1]} "
                    "here; use the same --task, --model_size and other flags of the model."
                )
        model.load_state_dict(self.weights)
