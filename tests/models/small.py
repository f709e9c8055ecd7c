"""Small energy-based language models for tests, and the values that tests of layers take."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from config import parse_command_line
from models.language import EnergyLM
from models.layers.rope import rotations
from tests.support.builders import build_model

V, S, D, H, PAD, SEPARATOR = 9, 5, 8, 2, 7, 8
CONDITIONINGS = ("default", "time_embed", "adaln", "adaln_zero")
SIZE = f"--num_transformer_blocks 2 --embedding_dim {D} --multiheaded_attention_heads {H} --context_length {S}"
# Nothing is left to chance:
STILL = "--denoising_initial_condition zeros --randomize_mcmc_step_size_scale 1 --randomize_mcmc_num_steps 0"
ROWS = torch.tensor([[8, 1, 2, 8, 3, 0], [4, 5, 8, 6, 7, 7]])  # two documents each, the second row padded


def fresh(flags: str = "") -> EnergyLM:
    """The model as training would begin it."""
    torch.manual_seed(0)
    recipe = "" if "--recipe" in flags else "--recipe laptop"
    model = build_model(parse_command_line(f"--model_name ebt {recipe} {SIZE} {flags}".split()), V, SEPARATOR, PAD)
    assert isinstance(model, EnergyLM)
    return model


def model_of(flags: str = "") -> EnergyLM:
    """In float64 and with every weight at work, also those that begin at 0 or 1."""
    model = fresh(f"--mcmc_step_size {0.7 if 'residual' in flags else 2.0} {flags}").double()
    model.network.rotations = rotations(S + 2, D // H)
    for parameter in model.network.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def learned(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, learned(model), retain_graph=True, materialize_grads=True))


def train(model: EnergyLM, rows: Tensor = ROWS, seed: int = 3) -> Tensor:
    torch.manual_seed(seed)
    return model.training_step({"input_ids": rows}, 0)


def values(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()
