"""On which devices a run trains and with how many processes: accelerator, strategy and environment of the Trainer."""

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
from runs.ranks import Step, check_gpus, process_rank, srun_step


class SrunEnvironment(ClusterEnvironment):
    """The processes of one srun, numbered as srun numbers them; training/peers.py has set MASTER_PORT in each."""

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
        """Fixed by srun."""

    def global_rank(self) -> int:
        return self.step.rank

    def set_global_rank(self, rank: int) -> None:
        """Fixed by srun."""

    def local_rank(self) -> int:
        return self.step.local_rank

    def node_rank(self) -> int:
        return self.step.node


def trainer_devices(config: RunConfig) -> dict[str, Any]:
    """Accelerator, devices, nodes and strategy: arguments of pl.Trainer."""
    step = srun_step()
    devices = gpu_devices(config, step) if on_gpu(config) else cpu_devices(config, step)
    return {"strategy": strategy(config), **devices, "num_nodes": step.nodes if step else 1}


def environments() -> list[ClusterEnvironment]:
    """What started the processes: stated, so that Lightning does not guess it from the job's variables."""
    if (step := srun_step()) is not None:
        return [SrunEnvironment(step)]
    return [] if TorchElasticEnvironment.detect() else [LightningEnvironment()]


def device_of(config: RunConfig) -> torch.device:
    """The device of a single process outside a run: for tools, and to show a model after its training."""
    return torch.device("cuda" if torch.cuda.is_available() and config.trainer.gpus != "none" else "cpu")


def on_gpu(config: RunConfig) -> bool:
    gpus = config.trainer.gpus
    if gpus == "none" or (gpus == "auto" and not torch.cuda.is_available()):
        return False
    if not torch.cuda.is_available():
        raise SettingsError([f"--gpus is {gpus!r}: this machine has no GPU that torch can use; leave the flag out."])
    return True


def process_count(config: RunConfig) -> int:
    """How many processes the run has, before its Trainer knows."""
    if (step := srun_step()) is not None:
        return step.tasks
    if TorchElasticEnvironment.detect():
        return TorchElasticEnvironment().world_size()
    devices = (gpu_devices if on_gpu(config) else cpu_devices)(config, None)["devices"]
    if isinstance(devices, list):
        return len(devices)
    return torch.cuda.device_count() if devices == -1 else int(devices)


def cpu_devices(config: RunConfig, step: Step | None) -> dict[str, Any]:
    if config.trainer.float_precision == "16":
        raise SettingsError(["--float_precision is 16: half precision needs a GPU; choose bf16 or 32."])
    return {"accelerator": "cpu", "devices": step.tasks_per_node if step else config.trainer.cpu_processes}


def gpu_devices(config: RunConfig, step: Step | None) -> dict[str, Any]:
    settings, count = config.trainer, torch.cuda.device_count()
    if step is not None:
        processes = step.tasks_per_node
        if count == 1 and processes > 1:  # --gpus-per-task: each process sees its own alone, as the first
            shared_index = DDPStrategy(
                parallel_devices=[torch.device("cuda", 0)] * processes,
                find_unused_parameters=config.debugging.find_unused_parameters,
            )
            return {"accelerator": "gpu", "devices": 1, "strategy": shared_index}
        check_gpus(processes, count, settings.allow_idle_gpus)
        return {"accelerator": "gpu", "devices": processes}
    devices: Any = -1 if settings.gpus in ("auto", "-1") else settings.gpus
    if isinstance(devices, str):
        devices = [int(word) for word in devices.split(",")] if "," in devices else int(devices)
    if (max(devices) >= count) if isinstance(devices, list) else (devices > count):
        raise SettingsError([f"--gpus is {settings.gpus!r}: this machine has {count} GPU(s), numbered from 0."])
    if settings.gpus == "auto" and settings.allow_idle_gpus:
        devices = 1
    return {"accelerator": "gpu", "devices": devices}


def strategy(config: RunConfig) -> str:
    name = config.trainer.distributed_strategy
    several = config.trainer.cpu_processes > 1 or config.trainer.gpus not in ("auto", "none", "1")
    if config.debugging.find_unused_parameters and (name == "ddp" or (name == "auto" and (several or srun_step()))):
        return "ddp_find_unused_parameters_true"
    return name


def check_world(trainer: pl.Trainer) -> None:
    """Refuse to start where Lightning and the launcher number the processes differently: two would write one record."""
    step = srun_step()
    started, rank = (step.tasks, step.rank) if step else (trainer.world_size, process_rank())
    if (trainer.world_size, trainer.global_rank) != (started, rank):
        raise UserError(
            f"{started} processes were started and this is number {rank}, but the run would have {trainer.world_size} "
            f"and call it number {trainer.global_rank}: two would write one record. Start them with "
            "sbatch job_scripts/train.slurm."
        )
