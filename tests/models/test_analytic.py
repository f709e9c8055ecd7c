"""The analytic gradient of the energy against autograd's, eager and compiled; products of few rows."""

from __future__ import annotations

import copy
import warnings
from functools import partial

import pytest
import torch
from torch._dynamo.exc import TorchDynamoException

from models.energy_transformer import EnergyTransformer
from models.language import EnergyLM
from models.layers.analytic import autograd_gradient
from models.layers.linear import FEW, Linear, linear
from models.layers.prediction_attention import CHUNK
from tests.inference.small import VOCABULARY, built

CONDITIONINGS = ("default", "time_embed", "adaln", "adaln_zero")
LAYERS = (
    *("", "--ebt_norm layer", "--ebt_norm dyt --ebt_act_func gelu", "--ebt_norm none --ebt_act_func relu"),
    "--vocab_to_embed_uses_prob_dist",
    "--recipe residual --mcmc_num_steps 2",
    "--recipe residual --mcmc_num_steps 2 --energy_blocks 2 --ebt_norm layer",
)


def network_of(flags: str) -> EnergyTransformer:
    network = built(flags).network
    assert isinstance(network, EnergyTransformer)
    return network


@pytest.mark.parametrize("flags", LAYERS)
@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_the_slope_is_autograds(conditioning: str, flags: str) -> None:
    network = network_of(f"--ebt_type {conditioning} {flags}")
    tokens_BS = torch.randint(VOCABULARY - 2, (2, 7), generator=torch.Generator().manual_seed(1))
    z_BSD = torch.randn(2, 7, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        context = network.context(tokens_BS, 1 if conditioning != "default" else 0)
    analytic = network.energy_and_gradient(z_BSD.clone(), context, create_graph=False)
    expected = autograd_gradient(network.energy, z_BSD.clone(), context, create_graph=True)
    assert not any(tensor.requires_grad for tensor in analytic)
    assert float(expected[1].detach().abs().max()) > 1e-3  # else equality would say nothing
    for one, other in zip(analytic, expected, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-10, atol=1e-10)


def test_the_slope_under_autocast_is_near_autograds() -> None:
    network = network_of("").float()
    tokens_BS, z_BSD = torch.arange(6)[None] % VOCABULARY, torch.randn(1, 6, 16)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            context = network.context(tokens_BS, 0)
        analytic = network.energy_and_gradient(z_BSD.clone(), context, create_graph=False)[1]
        expected = autograd_gradient(network.energy, z_BSD.clone(), context, create_graph=True)[1].detach()
    assert float((analytic - expected).norm() / expected.norm()) < 0.03


def gradients_of(model: EnergyLM, length: int = 8) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """Loss and gradients of one batch; what is drawn at random is drawn anew, the same every time."""
    torch.manual_seed(0)
    model.requires_grad_(True).zero_grad()
    rows_BS = torch.randint(VOCABULARY - 2, (2, length), generator=torch.Generator().manual_seed(1))
    loss = model.training_step({"input_ids": rows_BS}, 0)
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("layers", ["", "--ebt_norm layer --ebt_act_func gelu", "--recipe residual --mcmc_num_steps 2"])
def test_compiled_blocks_give_the_same_gradients(layers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two chunks of attention, traced and differentiated as for a compiler.

    `test_ebt_training.py` has a run with the compiler itself.
    """
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    length = CHUNK + 5
    recipe = "" if "--recipe" in layers else "--recipe s2 --no-mcmc_replay_buffer"
    model = built(f"{recipe} --ebt_type adaln --context_length {length} {layers}")
    assert isinstance(model, EnergyLM)
    eager_loss, eager_gradients = gradients_of(model, length)
    model.compile_blocks()
    compiled_loss, compiled_gradients = gradients_of(model, length)
    assert model.network.compiled is not None
    torch.testing.assert_close(compiled_loss, eager_loss, rtol=1e-10, atol=1e-10)
    for compiled, eager in zip(compiled_gradients, eager_gradients, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-7, atol=1e-9)


def test_what_does_not_compile_goes_on_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise TorchDynamoException("no C++ compiler found\nand a long story")

    model = built("")
    assert isinstance(model, EnergyLM)
    expected, _ = gradients_of(model)
    monkeypatch.setattr(torch, "compile", lambda *_, **__: refuse)
    model.compile_blocks()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.equal(gradients_of(model)[0], expected) and torch.equal(gradients_of(model)[0], expected)
    assert [str(warning.message) for warning in caught] == [
        "--compile_model: continuing uncompiled: no C++ compiler found"
    ]


def test_what_fails_while_it_runs_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("out of memory")

    model = built("")
    assert isinstance(model, EnergyLM)
    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)
    model.compile_blocks()
    with pytest.raises(RuntimeError, match="out of memory"):
        gradients_of(model)


@pytest.mark.parametrize("rows", [(1,), (2, 1), (FEW,), (FEW + 1,), (0,)])
def test_products_of_few_rows_are_those_of_many(rows: tuple[int, ...]) -> None:
    layer = Linear(5, 7).double()
    x, g = torch.randn(*rows, 5, dtype=torch.float64), torch.randn(*rows, 7, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), x @ layer.weight.T)
        torch.testing.assert_close(layer.input_gradient(g), g @ layer.weight)
        assert layer(x).is_contiguous()


def test_weights_that_change_are_turned_again() -> None:
    layer, g = Linear(3, 4), torch.randn(2, 4)
    with torch.no_grad():
        layer.input_gradient(g)
        layer.weight.mul_(2)
        torch.testing.assert_close(layer.input_gradient(g), g @ layer.weight)
        layer.weight.data = torch.randn(4, 3)
        torch.testing.assert_close(layer.input_gradient(g), g @ layer.weight)
        assert copy.deepcopy(layer).transposed_weight is None and layer.transposed_weight is not None
        assert set(layer.state_dict()) == {"weight"}
        layer.double()
        torch.testing.assert_close(layer.input_gradient(g.double()), g.double() @ layer.weight)


def test_a_product_that_will_be_differentiated_is_torchs() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    weight = torch.randn(4, 3, requires_grad=True)
    (got,) = torch.autograd.grad(linear(x, weight).sum(), weight)
    torch.testing.assert_close(got, x.detach().sum(0).expand(4, -1))
