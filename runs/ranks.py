"""The processes of a run: how many there are and which one this is, by the variables of whoever started them.

srun sets SLURM_STEP_* for the processes that it started. The variables of the job (SLURM_NTASKS) do not say what was
started, nor does its name: a job of `salloc` is called after the program that it runs.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from config import RunConfig
from core.environment import JOB_RUN_DIR
from core.errors import UserError


@dataclass(frozen=True)
class Step:
    """What srun started, of which this process is one. first_node: where process 0 is."""

    tasks: int
    nodes: int
    rank: int
    local_rank: int
    node: int
    first_node: str

    @property
    def tasks_per_node(self) -> int:
        return self.tasks // self.nodes


def srun_step() -> Step | None:
    """The step of several processes that this is one of; None for a process that is alone."""
    tasks = env_number("SLURM_STEP_NUM_TASKS", 1)
    if tasks == 1 or "SLURM_PROCID" not in os.environ:
        return None
    return Step(
        tasks=tasks,
        nodes=env_number("SLURM_STEP_NUM_NODES", 1),
        rank=env_number("SLURM_PROCID", 0),
        local_rank=env_number("SLURM_LOCALID", 0),
        node=env_number("SLURM_NODEID", 0),
        first_node=first_node_of(os.environ.get("SLURM_STEP_NODELIST", "127.0.0.1")),
    )


def env_number(name: str, least: int) -> int:
    """A number from an environment variable; `least` where it is not set or no number."""
    word = os.environ.get(name, "")
    return max(least, int(word)) if word.isdecimal() else least


def first_node_of(nodes: str) -> str:
    """The first of Slurm's list of nodes, such as gpu[003-007,9],big1."""
    match = re.match(r"([^,\[]*)(?:\[([^\],-]*)[^\]]*\])?([^,\[]*)", nodes)
    return "".join(part or "" for part in match.groups()) if match else nodes


def process_rank() -> int:
    """The number of this process among those of its run, from 0."""
    return max(int(os.environ.get(name) or 0) for name in ("LOCAL_RANK", "SLURM_PROCID", "RANK"))


def is_first_process() -> bool:
    """Whether this is the process that writes the record; the others of a run only compute."""
    return process_rank() == 0


def check_processes(config: RunConfig) -> None:
    """Refuse, before anything is written, a start that would not use all requested processes and GPUs for one run."""
    step, settings = srun_step(), config.trainer
    if step is None:
        check_alone(env_number("SLURM_NTASKS", 1))
    else:
        check_step(step, JOB_RUN_DIR in os.environ)
        typed = settings.gpus if settings.gpus.isdecimal() else ""
        count = int(typed) if typed else settings.cpu_processes
        if count not in (1, step.tasks_per_node) or (typed and count != step.tasks_per_node):
            flag = "--gpus" if typed else "--cpu_processes"
            raise UserError(
                f"{flag} is {count}: srun started {step.tasks_per_node} processes on each node, and every one of them "
                f"trains; leave {flag} out, or ask Slurm for --ntasks-per-node={count}."
            )
    if settings.gpus == "none" or (step is None and (settings.gpus != "auto" or "SLURM_PTY_PORT" in os.environ)):
        return  # with --gpus, or in a shell on the node, one process uses all GPUs
    check_gpus(step.tasks_per_node if step else 1, env_number("SLURM_GPUS_ON_NODE", 0), settings.allow_idle_gpus)


def check_alone(tasks: int) -> None:
    in_step = "SLURM_STEP_NUM_TASKS" in os.environ
    if tasks > 1 and not in_step and "SLURM_JOB_ID" in os.environ:
        raise UserError(
            f"this job has {tasks} tasks, and train_model.py was started once, without srun: `srun --ntasks=1 python "
            f"train_model.py …` trains with one process; sbatch job_scripts/train.slurm starts all {tasks}."
        )


def check_step(step: Step, has_folder: bool) -> None:
    if step.tasks % step.nodes:
        raise UserError(
            f"srun started {step.tasks} processes on {step.nodes} nodes, not the same number on each: ask Slurm for "
            "--nodes and --ntasks-per-node, and leave --ntasks out."
        )
    if not has_folder:
        raise UserError(
            f"srun started {step.tasks} processes that have no run folder in common: sbatch job_scripts/train.slurm "
            f"makes one for them; a script of your own needs this above srun:\n"
            f"  export {JOB_RUN_DIR}=$(python -m launch prepare FLAGS)"
        )


def check_gpus(tasks: int, gpus: int, may_idle: bool) -> None:
    """gpus: of this node, as far as Slurm counts them."""
    if gpus and (tasks > gpus or (tasks < gpus and not may_idle)):
        processes = "1 process" if tasks == 1 else f"{tasks} processes"
        what = "would stay idle" if tasks < gpus else "would have to be shared"
        instead = ", or say --allow_idle_gpus" if tasks < gpus else ""
        raise UserError(
            f"this job has {gpus} GPUs on a node and {processes} there, so some {what}: ask Slurm for "
            f"--ntasks-per-node={gpus}, one process a GPU{instead}."
        )
