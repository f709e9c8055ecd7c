"""From settings to the parts of energy models and transformers, for every task that has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from config.energy import Energy, Walk
from config.settings import Blocks

if TYPE_CHECKING:
    from models.energy_model import WalkSettings
    from models.replay import ReplayBuffer


def walk_settings(energy: Walk) -> WalkSettings:
    """How predictions walk down the energy."""
    from models.energy_model import WalkSettings

    auto = isinstance(energy.mcmc_step_size, str)
    return WalkSettings(
        landscapes=energy.mcmc_num_steps,
        min_repeats=max(1, energy.randomize_mcmc_num_steps_min) if energy.randomize_mcmc_num_steps else 1,
        max_repeats=energy.randomize_mcmc_num_steps + 1,
        repeat_final_only=energy.randomize_mcmc_num_steps_final_landscape,
        step_size=None if auto else float(energy.mcmc_step_size),
        learnable_step_size=energy.mcmc_step_size_learnable,
        step_size_lr_multiplier=None if auto else energy.mcmc_step_size_lr_multiplier,
        step_size_scale=energy.randomize_mcmc_step_size_scale,
        start=energy.denoising_initial_condition,
        noise_scale=energy.gaussian_random_noise_scaling,
        langevin_noise=energy.langevin_dynamics_noise,
        learnable_langevin=energy.langevin_dynamics_noise_learnable,
        langevin_in_evaluation=not energy.no_langevin_during_eval,
        detach=not energy.no_mcmc_detach,
        last_step_only=energy.mcmc_last_step_loss,
        truncate=energy.truncate_mcmc,
        contrastive_coefficient=energy.contrastive_loss_coeff if energy.contrastive_loss else 0.0,
        reconstruction_coefficient=energy.reconstruction_coeff,
    )


def replay_buffer(energy: Walk) -> ReplayBuffer | None:
    from models.replay import ReplayBuffer

    if not energy.mcmc_replay_buffer:
        return None
    return ReplayBuffer(energy.mcmc_replay_buffer_size, energy.mcmc_replay_buffer_sample_bs_percent)


def blocks_shape(settings: Blocks) -> dict[str, Any]:
    """The part of a shape that all transformers have."""
    return {
        "layers": settings.num_transformer_blocks,
        "width": settings.embedding_dim,
        "heads": settings.multiheaded_attention_heads,
        "hidden": round(settings.embedding_dim * settings.ffn_dim_multiplier),
        "init_method": settings.weight_initialization_method,
        "init_gain": settings.weight_initialization_gain,
    }


def energy_shape(energy: Energy, shape: dict[str, Any]) -> dict[str, Any]:
    """What an energy transformer has besides; a residual energy has its own blocks behind the others."""
    residual = energy.energy_form == "residual"
    return shape | {
        "layers": shape["layers"] + (energy.energy_blocks if residual else 0),
        "conditioning": energy.ebt_type,
        "landscapes": energy.mcmc_num_steps,
        "norm": energy.ebt_norm,
        "activation": energy.ebt_act_func,
        "form": energy.energy_form,
        "enter": shape["layers"] if residual else 0,
    }
