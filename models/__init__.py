"""The models: `build_model` gives the one that the settings name, ready for Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from config import RunConfig
from models.descent import Rule
from models.energy_language_model import EnergyLanguageModel, Thinking
from models.energy_transformer import EnergyShape, EnergyTransformer
from models.language_model import LanguageModel
from models.replay import ReplayBuffer
from models.transformer import Shape, Transformer

if TYPE_CHECKING:
    from collections.abc import Callable


def common_shape(config: RunConfig, vocab_size: int, separator_id: int) -> dict[str, Any]:
    """The part of a model's shape that all transformers have."""
    settings = config.architecture
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


def baseline_transformer(config: RunConfig, vocab_size: int, separator_id: int, pad_id: int) -> LanguageModel:
    """Transformer++, what energy-based transformers are compared with."""
    shape = Shape(**common_shape(config, vocab_size, separator_id), tied=config.architecture.tie_embeddings)
    return LanguageModel(Transformer(shape, config.architecture.gradient_checkpointing), vocab_size, pad_id)


def ebt(config: RunConfig, vocab_size: int, separator_id: int, pad_id: int) -> LanguageModel:
    """The energy-based transformer for language."""
    energy = config.energy
    residual = energy.energy_form == "residual"
    common = common_shape(config, vocab_size, separator_id)
    if residual:
        common |= {"layers": common["layers"] + energy.energy_blocks}
    shape = EnergyShape(
        **common,
        tied=False,
        conditioning=energy.ebt_type,
        landscapes=energy.mcmc_num_steps,
        norm=energy.ebt_norm,
        activation=energy.ebt_act_func,
        shared_embedding=energy.vocab_to_embed_uses_prob_dist,
        form=energy.energy_form,
        enter=config.architecture.num_transformer_blocks if residual else 0,
    )
    auto = isinstance(energy.mcmc_step_size, str)
    thinking = Thinking(
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
        rule=Rule(
            from_probabilities=energy.update_from == "probabilities",
            normalize=energy.normalize_initial_condition,
            detach=not energy.no_mcmc_detach,
            entropy=residual,
        ),
        last_step_only=energy.mcmc_last_step_loss,
        truncate=energy.truncate_mcmc,
        contrastive_coefficient=energy.contrastive_loss_coeff if energy.contrastive_loss else 0.0,
        reconstruction_coefficient=energy.reconstruction_coeff,
    )
    share = energy.mcmc_replay_buffer_sample_bs_percent
    replay = ReplayBuffer(energy.mcmc_replay_buffer_size, share) if energy.mcmc_replay_buffer else None
    return EnergyLanguageModel(EnergyTransformer(shape), vocab_size, pad_id, thinking, replay)


MODELS: dict[tuple[str, str], Callable[..., LanguageModel]] = {
    ("NLP", "baseline_transformer"): baseline_transformer,
    ("NLP", "ebt"): ebt,
}


def build_model(config: RunConfig, vocab_size: int, separator_id: int, pad_id: int) -> LanguageModel:
    return MODELS[config.run.modality, config.run.model_name](config, vocab_size, separator_id, pad_id)


__all__ = ["LanguageModel", "build_model"]
