"""The models. Data walks through them so:

    tasks' own models (language)     what is observed, predicted and judged; a subclass of Model or EnergyModel
    energy_model, walk, spaces       training and evaluation of predictions that walk down an energy, in any space
    transformer, energy_transformer  networks
    layers/                          their parts, with input gradients as formulas

`build_model` gives the one that the settings name, ready for Lightning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from config import RunConfig
from config.energy import Energy
from config.settings import Transformer as TransformerSettings
from models.energy_model import WalkSettings
from models.energy_transformer import EnergyShape, EnergyTransformer
from models.language import EnergyLM, LanguageModel, TransformerLM
from models.replay import ReplayBuffer
from models.spaces import UpdateRule
from models.transformer import Transformer, TransformerShape

if TYPE_CHECKING:
    from collections.abc import Callable

    from config.energy import Energy


def transformer_shape(config: RunConfig, vocab_size: int, separator_id: int) -> dict[str, Any]:
    """The part of a model's shape that all transformers have."""
    settings = config[TransformerSettings]
    return {
        "vocab_size": vocab_size,
        "context_length": settings.context_length,
        "layers": settings.num_transformer_blocks,
        "width": settings.embedding_dim,
        "heads": settings.multiheaded_attention_heads,
        "hidden": round(settings.embedding_dim * settings.ffn_dim_multiplier),
        "separator_id": separator_id if settings.isolate_documents else None,
        "init_method": settings.weight_initialization_method,
        "init_gain": settings.weight_initialization_gain,
    }


def energy_shape(config: RunConfig, vocab_size: int, separator_id: int) -> EnergyShape:
    """The shape of an energy transformer; a residual energy has its own blocks behind the others."""
    energy, shape = config[Energy], transformer_shape(config, vocab_size, separator_id)
    residual = energy.energy_form == "residual"
    if residual:
        shape |= {"layers": shape["layers"] + energy.energy_blocks}
    return EnergyShape(
        **shape,
        tied=False,
        conditioning=energy.ebt_type,
        landscapes=energy.mcmc_num_steps,
        norm=energy.ebt_norm,
        activation=energy.ebt_act_func,
        shared_embedding=energy.vocab_to_embed_uses_prob_dist,
        form=energy.energy_form,
        enter=config[TransformerSettings].num_transformer_blocks if residual else 0,
    )


def walk_settings(energy: Energy) -> WalkSettings:
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


def update_rule(energy: Energy) -> UpdateRule:
    """How predictions over a vocabulary are moved."""
    return UpdateRule(
        from_probabilities=energy.update_from == "probabilities",
        normalize=energy.normalize_initial_condition,
        entropy=energy.energy_form == "residual",
    )


def replay_buffer(energy: Energy) -> ReplayBuffer | None:
    if not energy.mcmc_replay_buffer:
        return None
    return ReplayBuffer(energy.mcmc_replay_buffer_size, energy.mcmc_replay_buffer_sample_bs_percent)


def baseline_transformer(config: RunConfig, vocab_size: int, separator_id: int, pad_id: int) -> TransformerLM:
    """Transformer++, what energy-based transformers are compared with."""
    tied = config[TransformerSettings].tie_embeddings
    shape = TransformerShape(**transformer_shape(config, vocab_size, separator_id), tied=tied)
    return TransformerLM(Transformer(shape, config[TransformerSettings].gradient_checkpointing), vocab_size, pad_id)


def ebt(config: RunConfig, vocab_size: int, separator_id: int, pad_id: int) -> EnergyLM:
    """The energy-based transformer for language."""
    energy = config[Energy]
    network = EnergyTransformer(energy_shape(config, vocab_size, separator_id))
    return EnergyLM(network, vocab_size, pad_id, walk_settings(energy), update_rule(energy), replay_buffer(energy))


MODELS: dict[tuple[str, str], Callable[..., LanguageModel]] = {
    ("NLP", "baseline_transformer"): baseline_transformer,
    ("NLP", "ebt"): ebt,
}


def build_model(config: RunConfig, vocab_size: int, separator_id: int, pad_id: int) -> LanguageModel:
    return MODELS[str(config.run.modality), config.run.model_name](config, vocab_size, separator_id, pad_id)
