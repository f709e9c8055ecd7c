"""Settings that an earlier version of this project wrote down, in the words of this one.

A record (config.json, a checkpoint, a file that `--print_config` made) has a version. What a flag of an earlier version
meant is given here as flags that mean the same now; where no flag does, the sentence that says so.

1: before truncation, random steps and replay were as public EBT code has them. A record without a version.
2: now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VERSION = 2
# Flags that every record of version 1 has; a --config file that a person wrote has not all of them.
FIRST = ("mcmc_num_steps", "truncate_mcmc", "mcmc_replay_buffer_size", "randomize_mcmc_num_steps_min", "ebt_norm")

Changes = dict[str, str]  # by flag: what it meant then and means now


def upgrade(tree: Mapping[str, Any]) -> tuple[dict[str, Any], Changes]:
    """The tree as this version writes it, and the flags whose meaning in training cannot be had any more.

    Evaluation and inference give the same numbers with the tree as it is returned, also where training would not.
    """
    tree = dict(tree)
    version = tree.pop("version", None)
    energy = tree.get("energy")
    if version is not None or not isinstance(energy, Mapping) or not all(name in energy for name in FIRST):
        return tree, {}
    energy, changes = dict(energy), Changes()
    tree["energy"] = energy
    run = tree.get("run")
    is_ebt = isinstance(run, Mapping) and run.get("model_name") == "ebt"
    energy["energy_form"] = "scalar"
    energy["mcmc_last_step_loss"] = bool(energy["truncate_mcmc"])
    energy["truncate_mcmc"] = False
    if _number(energy.get("randomize_mcmc_num_steps")) > 0:
        changes["randomize_mcmc_num_steps"] = (
            "the number of all steps was drawn, and evaluation took none of them; now each landscape is repeated"
        )
    energy |= {"randomize_mcmc_num_steps": 0, "randomize_mcmc_num_steps_min": 0}
    energy["randomize_mcmc_num_steps_final_landscape"] = False
    if _number(energy.get("randomize_mcmc_step_size_scale")) > 1:
        changes["randomize_mcmc_step_size_scale"] = "a size was drawn for each step; now it is drawn once for a walk"
    if energy.get("mcmc_replay_buffer"):
        changes["mcmc_replay_buffer"] = "old rows replaced those of a batch; now they are appended"
    if energy.get("contrastive_loss"):
        changes["contrastive_loss"] = (
            "it compared with the end of the walk; now with the prediction before the last step"
        )
    return tree, changes if is_ebt else {}


def later_version(tree: Mapping[str, Any], origin: str) -> list[str]:
    """The problem of a record that a later version wrote."""
    if _number(tree.get("version")) <= VERSION:
        return []
    return [
        f"{origin} was written by a later version of these settings ({tree['version']}; this is {VERSION}): update."
    ]


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0
