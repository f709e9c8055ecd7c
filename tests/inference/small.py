"""Small models in float64, with weights large enough that every part of them matters."""

from __future__ import annotations

from functools import lru_cache

import torch

from config import parse_command_line
from models.language import EnergyLM, LanguageModel
from tests.support.builders import build_model

CONTEXT, VOCABULARY, SEPARATOR, PAD = 12, 19, 17, 18
SMALL = f"--context_length {CONTEXT} --num_transformer_blocks 2 --embedding_dim 16 --multiheaded_attention_heads 2"


def built(flags: str) -> LanguageModel:
    torch.manual_seed(0)
    recipe = "" if "--recipe" in flags or "_transformer" in flags else "--recipe laptop"
    config = parse_command_line(f"{SMALL} {recipe} {flags}".split())
    model = build_model(config, VOCABULARY, SEPARATOR, PAD).double().eval().requires_grad_(False)
    for parameter in model.network.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@lru_cache
def energy_model(conditioning: str = "default", flags: str = "") -> EnergyLM:
    size = "" if "--mcmc_step_size" in flags else "--mcmc_step_size 0.03"
    model = built(f"--ebt_type {conditioning} {size} {flags}")
    assert isinstance(model, EnergyLM)
    return model


@lru_cache
def residual_model(conditioning: str = "default", flags: str = "") -> EnergyLM:
    """Two blocks of the energy's own, two landscapes and noise at the start, unless the flags say otherwise."""
    several = "--energy_blocks 2 --mcmc_num_steps 2 --mcmc_step_size 0.4 --gaussian_random_noise_scaling 0.3"
    return energy_model(conditioning, f"--recipe residual {several} {flags}")


@lru_cache
def plain_model() -> LanguageModel:
    return built("--model_name baseline_transformer")


@lru_cache
def looped_model() -> LanguageModel:
    return built("--model_name looped_transformer --evaluation_loops 3")
