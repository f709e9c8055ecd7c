"""Which variables of the environment belong to a job, to the processes of a run, and to the run itself."""

from __future__ import annotations

import os

# What says where Slurm is; every other SLURM_ variable is of the job that this is called from.
SLURM = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS")
# These would win over the script's own lines and part the job from its run folder.
OWN = ("JOB_NAME", "OUTPUT", "ERROR", "ARRAY_INX", "WAIT")
PROCESSES = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
RUN = ("EBT_RUN_DIR", "EBT_JOB_RUN_DIR", "EBT_STEP_OF", "EBT_RANDOM_SEED", "EBT_LINEAGE", "EBT_HEADERS")


def clean_environment() -> dict[str, str]:
    """This process's environment without what belongs to the job or the run it may itself be in."""

    def foreign(name: str) -> bool:
        if name in PROCESSES or name in RUN or name in [f"SBATCH_{option}" for option in OWN]:
            return True
        return name.startswith(("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_")) and name not in SLURM

    return {name: value for name, value in os.environ.items() if not foreign(name)}
