"""On which devices a run trains, and with how many processes: what Lightning is told of them."""

from __future__ import annotations

import os
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    TorchElasticEnvironment,
)
from pytorch_lightning.strategies import DDPStrategy

from config import RunConfig, SettingsError
from core.errors import UserError
from runs.processes import Step, check_gpus, process_rank, srun_step


class SrunProcesses(ClusterEnvironment):
    """The processes of one srun, counted as srun counts them; `training/company.py` has told all where to meet."""

    def __init__(self, step: Step) -> None:
        self.step = step

    creates_processes_externally = True

    @property
    def main_address(self) -> str:
        return os.environ.get("MASTER_ADDR") or self.step.first_node

    @property
    def main_port(self) -> int:
        return int(os.environ["MASTER_PORT"])

    @staticmethod
    def detect() -> bool:
        return srun_step() is not None

    def world_size(self) -> int:
        return self.step.tasks

    def set_world_size(self, size: int) -> None:
        """srun said it."""

    def global_rank(self) -> int:
        return self.step.rank

    def set_global_rank(self, rank: int) -> None:
        """srun said it."""

    def local_rank(self) -> int:
        return self.step.local_rank

    def node_rank(self) -> int:
        return self.step.node


def placement(config: RunConfig) -> dict[str, Any]:
    """The arguments of pl.Trainer that say where it runs, but for `plugins`."""
    step = srun_step()
    where = gpus(config, step) if on_gpu(config) else cpus(config, step)
    return {"strategy": strategy(config), **where, "num_nodes": step.nodes if step else 1}


def environments() -> list[ClusterEnvironment]:
    """Who started the processes. Lightning is not left to guess it from the job's variables."""
    if (step := srun_step()) is not None:
        return [SrunProcesses(step)]
    return [] if TorchElasticEnvironment.detect() else [LightningEnvironment()]


def on_gpu(config: RunConfig) -> bool:
    wanted = config.trainer.gpus
    if wanted == "none" or (wanted == "auto" and not torch.cuda.is_available()):
        return False
    if not torch.cuda.is_available():
        raise SettingsError([f"--gpus is {wanted!r}: this machine has no GPU that torch can use; leave the flag out."])
    return True


def cpus(config: RunConfig, step: Step | None) -> dict[str, Any]:
    if config.trainer.float_precision == "16":
        raise SettingsError(["--float_precision is 16: half precision needs a GPU; choose bf16 or 32."])
    return {"accelerator": "cpu", "devices": step.tasks_per_node if step else config.trainer.cpu_processes}


def gpus(config: RunConfig, step: Step | None) -> dict[str, Any]:
    settings, count = config.trainer, torch.cuda.device_count()
    if step is not None:
        here = step.tasks_per_node
        if count == 1 and here > 1:  # --gpus-per-task: each process sees its own alone, as the first
            own = DDPStrategy(
                parallel_devices=[torch.device("cuda", 0)] * here,
                find_unused_parameters=config.debugging.find_unused_parameters,
            )
            return {"accelerator": "gpu", "devices": 1, "strategy": own}
        check_gpus(here, count, settings.allow_idle_gpus)
        return {"accelerator": "gpu", "devices": here}
    wanted: Any = -1 if settings.gpus in ("auto", "-1") else settings.gpus
    if isinstance(wanted, str):
        wanted = [int(word) for word in wanted.split(",")] if "," in wanted else int(wanted)
    if (max(wanted) >= count) if isinstance(wanted, list) else (wanted > count):
        raise SettingsError([f"--gpus is {settings.gpus!r}: this machine has {count} GPU(s), numbered from 0."])
    if settings.gpus == "auto" and settings.allow_idle_gpus:
        wanted = 1
    return {"accelerator": "gpu", "devices": wanted}


def strategy(config: RunConfig) -> str:
    name = config.trainer.distributed_strategy
    several = config.trainer.cpu_processes > 1 or config.trainer.gpus not in ("auto", "none", "1")
    if config.debugging.find_unused_parameters and (name == "ddp" or (name == "auto" and (several or srun_step()))):
        return "ddp_find_unused_parameters_true"
    return name


def check_world(trainer: pl.Trainer) -> None:
    """Every process is one of the same run, and the one that writes is the one that holds the folder."""
    step = srun_step()
    started, rank = (step.tasks, step.rank) if step else (trainer.world_size, process_rank())
    if (trainer.world_size, trainer.global_rank) != (started, rank):
        raise UserError(
            f"{started} processes were started and this is number {rank}, but the run would have {trainer.world_size} "
            f"and call it number {trainer.global_rank}: two would write one record. Start them with "
            "sbatch job_scripts/train.slurm."
        )
