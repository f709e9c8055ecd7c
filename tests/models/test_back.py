"""The backward pass of single positions, written out, against autograd's."""

from __future__ import annotations

import copy

import pytest
import torch

from models.energy_transformer import EnergyTransformer
from models.layers.linear import FEW, Linear, product
from tests.inference.small import VOCABULARY, built

CONDITIONINGS = ("default", "time_embed", "adaln", "adaln_zero")
LAYERS = (
    *("", "--ebt_norm layer", "--ebt_norm dyt --ebt_act_func gelu", "--ebt_norm none --ebt_act_func relu"),
    "--vocab_to_embed_uses_prob_dist",
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
    found = network.slope(z_BSD.clone(), context, differentiable=False)
    wanted = network.slope(z_BSD.clone(), context, differentiable=True)
    assert not any(tensor.requires_grad for tensor in found)
    assert float(wanted[1].detach().abs().max()) > 1e-3  # else equality would say nothing
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-10, atol=1e-10)


def test_the_slope_under_autocast_is_near_autograds() -> None:
    network = network_of("").float()
    tokens_BS, z_BSD = torch.arange(6)[None] % VOCABULARY, torch.randn(1, 6, 16)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            context = network.context(tokens_BS, 0)
        found = network.slope(z_BSD.clone(), context, differentiable=False)[1]
        wanted = network.slope(z_BSD.clone(), context, differentiable=True)[1].detach()
    assert float((found - wanted).norm() / wanted.norm()) < 0.03


@pytest.mark.parametrize("rows", [(1,), (2, 1), (FEW,), (FEW + 1,), (0,)])
def test_products_of_few_rows_are_those_of_many(rows: tuple[int, ...]) -> None:
    layer = Linear(5, 7).double()
    x, g = torch.randn(*rows, 5, dtype=torch.float64), torch.randn(*rows, 7, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), x @ layer.weight.T)
        torch.testing.assert_close(layer.back(g), g @ layer.weight)
        assert layer(x).is_contiguous()


def test_weights_that_change_are_turned_again() -> None:
    layer, g = Linear(3, 4), torch.randn(2, 4)
    with torch.no_grad():
        layer.back(g)
        layer.weight.mul_(2)
        torch.testing.assert_close(layer.back(g), g @ layer.weight)
        layer.weight.data = torch.randn(4, 3)
        torch.testing.assert_close(layer.back(g), g @ layer.weight)
        assert copy.deepcopy(layer).turned is None and layer.turned is not None
        assert set(layer.state_dict()) == {"weight"}
        layer.double()
        torch.testing.assert_close(layer.back(g.double()), g.double() @ layer.weight)


def test_a_product_that_will_be_differentiated_is_torchs() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    weight = torch.randn(4, 3, requires_grad=True)
    (got,) = torch.autograd.grad(product(x, weight).sum(), weight)
    torch.testing.assert_close(got, x.detach().sum(0).expand(4, -1))
