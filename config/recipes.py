"""Sets of energy flags that were tried together; flags that are given too win over them."""

from __future__ import annotations

from typing import Any

# What public EBT code has where a flag is not given, so that its job scripts mean here what they mean there.
PUBLIC: dict[str, Any] = {
    "energy_form": "scalar",
    "ebt_type": "default",
    "mcmc_num_steps": 2,
    "mcmc_step_size_learnable": False,
    "mcmc_step_size_lr_multiplier": 5000.0,
    "randomize_mcmc_step_size_scale": 1.0,
    "randomize_mcmc_num_steps": 0,
    "randomize_mcmc_num_steps_min": 0,
    "denoising_initial_condition": "random_noise",
    "gaussian_random_noise_scaling": 1.0,
    "normalize_initial_condition": False,
    "update_from": "probabilities",
    "langevin_dynamics_noise": 0.0,
    "no_mcmc_detach": False,
    "truncate_mcmc": False,
    "mcmc_replay_buffer": False,
    "contrastive_loss_coeff": 0.0005,
}

RECIPES: dict[str, dict[str, Any]] = {
    # A Transformer++ that is corrected by what its prediction adds to the energy (docs/energy.md, docs/log.md).
    "residual": {},
    # The published form of the energy, so that it trains smoothly at the size of a laptop.
    "laptop": {
        "energy_form": "scalar",
        "mcmc_num_steps": 2,
        "randomize_mcmc_step_size_scale": 2.0,
        "denoising_initial_condition": "random_noise",
        "gaussian_random_noise_scaling": 0.1,
        "mcmc_last_step_loss": True,
    },
    "public": PUBLIC,
    # The paper's System 1: two long steps, each judged, no gradient between them.
    "s1": PUBLIC
    | {
        "ebt_type": "time_embed",
        "mcmc_step_size": 500.0,
        "mcmc_step_size_learnable": True,
        "mcmc_step_size_lr_multiplier": 1500.0,
        "normalize_initial_condition": True,
    },
    # The paper's System 2: two or three noisy steps of random length, of which only the last is differentiated.
    # Public code adds the noise in evaluation too; here evaluation is without.
    "s2": PUBLIC
    | {
        "ebt_type": "time_embed",
        "mcmc_num_steps": 1,
        "mcmc_step_size": 5.0,
        "randomize_mcmc_step_size_scale": 2.0,
        "randomize_mcmc_num_steps": 2,
        "randomize_mcmc_num_steps_min": 2,
        "normalize_initial_condition": True,
        "langevin_dynamics_noise": 3.0,
        "no_langevin_during_eval": True,
        "no_mcmc_detach": True,
        "truncate_mcmc": True,
        "mcmc_replay_buffer": True,
    },
}

RECIPE_FLAGS = frozenset(name for values in RECIPES.values() for name in values)
