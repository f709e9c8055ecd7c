"""Sets of energy flags that were tried together; flags that are given too win over them."""

from __future__ import annotations

from typing import Any

RECIPES: dict[str, dict[str, Any]] = {
    # Trains smoothly at the size of a laptop, and gains from thinking longer (docs/log.md).
    "laptop": {"no_mcmc_detach": True, "truncate_mcmc": True},
    # The paper's System 1: two long steps, each judged, no gradient between them.
    "s1": {
        "mcmc_num_steps": 2,
        "mcmc_step_size": 500.0,
        "mcmc_step_size_lr_multiplier": 1500.0,
        "randomize_mcmc_step_size_scale": 1.0,
        "randomize_mcmc_num_steps": 0,
        "gaussian_random_noise_scaling": 1.0,
        "update_from": "probabilities",
    },
    # The paper's System 2: short noisy steps of random length and number, only the last one judged.
    "s2": {
        "mcmc_num_steps": 2,
        "mcmc_step_size": 5.0,
        "mcmc_step_size_learnable": False,
        "randomize_mcmc_step_size_scale": 2.0,
        "randomize_mcmc_num_steps": 2,
        "gaussian_random_noise_scaling": 1.0,
        "update_from": "probabilities",
        "langevin_dynamics_noise": 3.0,
        "no_langevin_during_eval": True,
        "no_mcmc_detach": True,
        "truncate_mcmc": True,
        "mcmc_replay_buffer": True,
    },
}

RECIPE_FLAGS = frozenset(name for values in RECIPES.values() for name in values)
