"""Variables of the environment: every EBT_ name, and which variables belong to a job, to processes and to a run."""

from __future__ import annotations

import os

# Of a run
RUN_DIR = "EBT_RUN_DIR"  # the folder that the first process of a run made, for its other processes
JOB_RUN_DIR = "EBT_JOB_RUN_DIR"  # the folder that a job's run was given when it was submitted
STEP_OF = "EBT_STEP_OF"  # the job whose processes a Slurm step starts
RANDOM_SEED = "EBT_RANDOM_SEED"  # the seed that all processes of a run share with --is_random_seed
LINEAGE = "EBT_LINEAGE"  # the parent of the next run, as JSON
HEADERS = "EBT_HEADERS"  # the folder of headers, where it is not that of the code
DRILL = "EBT_DRILL"  # the fault that a drill injects
# Of a person or a machine
NOTIFY = "EBT_NOTIFY"  # whom --notify tells
CACHE = "EBT_CACHE"  # the folder of token caches
# Of job scripts
PYTHON = "EBT_PYTHON"  # the Python of a container
IMAGE = "EBT_IMAGE"  # the image of a container
SRUN = "EBT_SRUN"  # more options of srun
CALLED_WITH = "EBT_CALLED_WITH"  # the file into which a trial of a job script writes the flags that it passes

RUN = (RUN_DIR, JOB_RUN_DIR, STEP_OF, RANDOM_SEED, LINEAGE, HEADERS)
PROCESSES = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# What says where Slurm is; every other SLURM_ variable is of the job that this is called from.
SLURM = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS")
JOB_PREFIXES = ("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_")
# These would win over the lines of a job script and part the job from its run folder.
OVERRIDING = tuple(f"SBATCH_{option}" for option in ("JOB_NAME", "OUTPUT", "ERROR", "ARRAY_INX", "WAIT"))


def without_run() -> dict[str, str]:
    """This process's environment without what belongs to its run, for a process that begins another."""
    return {name: value for name, value in os.environ.items() if name not in PROCESSES and name not in RUN}


def clean_environment() -> dict[str, str]:
    """This process's environment without what belongs to the job or the run it may itself be in."""

    def is_of_job(name: str) -> bool:
        return name in OVERRIDING or (name.startswith(JOB_PREFIXES) and name not in SLURM)

    return {name: value for name, value in without_run().items() if not is_of_job(name)}
