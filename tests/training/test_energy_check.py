"""A run whose energy and gradient are two functions is refused before its first step, with the part that differs."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from models.energy_check import EnergyMismatch, check_energy
from models.energy_transformer import EnergyBlock, EnergyShape, EnergyTransformer
from models.layers import feed_forward, norm, prediction_attention
from models.layers.feed_forward import ACTIVATIONS
from models.layers.norm import NORMS
from tests.conftest import TrainCommand

CONDITIONINGS = ("default", "time_embed", "adaln", "adaln_zero")
FORMS = ("scalar", "residual")


def network_of(form: str = "residual", layers: int = 2, **options: Any) -> EnergyTransformer:
    torch.manual_seed(0)
    own = 1 if form == "residual" else layers  # blocks that predictions pass
    shape: dict[str, Any] = {
        **{"vocab_size": 19, "context_length": 12, "layers": layers, "landscapes": 2, "separator_id": 17},
        **{"width": 16, "heads": 2, "hidden": 16, "tied": False, "init_method": "xavier", "init_gain": 1.0},
        **{"form": form, "enter": layers - own},
    }
    return EnergyTransformer(EnergyShape(**shape | options))


def mismatch(network: EnergyTransformer) -> str:
    with pytest.raises(EnergyMismatch) as caught:
        check_energy(network)
    return str(caught.value)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_every_energy_is_sound(form: str, conditioning: str) -> None:
    for norm_name, activation in product(NORMS, ACTIVATIONS):
        network = network_of(form, conditioning=conditioning, norm=norm_name, activation=activation)
        before = {name: weight.clone() for name, weight in network.state_dict().items()}
        threads, generator = torch.get_num_threads(), torch.get_rng_state()
        check_energy(network)
        assert all(torch.equal(weight, before[name]) for name, weight in network.state_dict().items())
        assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), generator)
        assert all(weight.grad is None and weight.requires_grad for weight in network.parameters())


@pytest.mark.parametrize("form", FORMS)
def test_a_network_of_any_size_and_type_is_sound(form: str) -> None:
    for options in ({"layers": 1}, {"layers": 5, "width": 96, "heads": 3, "hidden": 100}):
        check_energy(network_of(form, **options))
    check_energy(network_of(form).bfloat16())
    check_energy(network_of(form).to("cpu", torch.float64).requires_grad_(False))


def scaled(result: Any, factor: float = 2.0) -> Any:
    """What a formula that is wrong by a factor gives: of several things the first, which may be several again."""
    if not isinstance(result, tuple):
        return factor * result
    return scaled(result[0], factor), *result[1:]


BLOCK, HEAD = "energy: blocks.0 (EnergyBlock): ", "energy: the head (EnergyTransformer): "
FORWARD, FORWARD_TRAINING, GRADIENT_TRAINING = "its forward", "its forward in training", "its gradient in training"
BY_WEIGHTS = "its gradient, differentiated by weights,"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("conditioning", ("default", "adaln"))  # the others have the blocks of these
@pytest.mark.parametrize(
    ("module", "name", "what"),
    [
        (feed_forward, "swiglu", FORWARD),
        (feed_forward, "swiglu_grad", FORWARD),
        (feed_forward, "swiglu_grad_backward", BY_WEIGHTS),
        (norm, "rms_norm", FORWARD),
        (norm, "rms_norm_grad", FORWARD),
        (norm, "rms_norm_grad_backward", BY_WEIGHTS),
        (prediction_attention, "attention_eager", FORWARD),
        (prediction_attention, "attention_eager_grad", FORWARD),
        (prediction_attention, "self_score_grad", FORWARD),
        (prediction_attention, "score_grad_backward", BY_WEIGHTS),
        (prediction_attention, "add_score_grad", BY_WEIGHTS),
    ],
)
def test_a_wrong_formula_of_a_block(
    module: Any, name: str, what: str, form: str, conditioning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = network_of(form, conditioning=conditioning)
    check_energy(network)
    right = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *inputs: scaled(right(*inputs)))
    assert mismatch(network).startswith(f"{BLOCK}{what}")


@pytest.mark.parametrize(
    ("module", "plain", "differentiated", "what"),
    [
        (prediction_attention, "attention_eager", "_Attend", FORWARD),
        (prediction_attention, "attention_eager_grad", "_AttendGrad", FORWARD),
        (feed_forward, "swiglu", "_SwiGLU", FORWARD),
        (feed_forward, "swiglu_grad", "_SwiGLUGrad", FORWARD),
        (norm, "rms_norm", "_RMSNorm", FORWARD),
        (norm, "rms_norm_grad", "_RMSNormGrad", FORWARD),
    ],
)
@pytest.mark.parametrize("in_training", [False, True])
def test_a_formula_that_is_wrong_in_one_of_its_two_uses(
    module: Any, plain: str, differentiated: str, what: str, in_training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inference runs it plainly, training inside of an autograd function; an error in only one of them is detected."""
    network, right, kind = network_of(), getattr(module, plain), getattr(module, differentiated)
    inside: list[bool] = []
    apply = kind.apply

    def marked(*inputs: Any) -> Any:
        inside.append(True)
        try:
            return apply(*inputs)
        finally:
            inside.pop()

    def wrong(*inputs: Any) -> Any:
        result = right(*inputs)
        return scaled(result) if bool(inside) is in_training else result

    monkeypatch.setattr(kind, "apply", staticmethod(marked))
    check_energy(network)
    monkeypatch.setattr(module, plain, wrong)
    of_training = GRADIENT_TRAINING if plain.endswith("_grad") else FORWARD_TRAINING
    assert mismatch(network).startswith(f"{BLOCK}{of_training if in_training else what} does not fit: ")


def test_a_wrong_readout_is_the_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    network, right = network_of(), EnergyTransformer.input_gradient

    def forgetful(self: EnergyTransformer, g: Tensor, saved: Any, context: Any, *rest: Any) -> Tensor:
        """Without what the prior adds."""
        return right(self, g, saved, context, *rest) + g * context.prior

    monkeypatch.setattr(EnergyTransformer, "input_gradient", forgetful)
    assert mismatch(network).startswith(f"{HEAD}{FORWARD} does not fit: ")

    def unread(self: EnergyTransformer, g: Tensor, saved: Any, context: Any, *rest: Any) -> Tensor:
        """With another readout than the energy's."""
        return right(self, g, saved, context._replace(readout=2 * context.readout), *rest)

    monkeypatch.setattr(EnergyTransformer, "input_gradient", unread)
    assert mismatch(network).startswith(f"{HEAD}{FORWARD} does not fit: ")
    monkeypatch.setattr(EnergyTransformer, "input_gradient", right)
    check_energy(network)


@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_norm_at_the_end_is_the_heads(form: str) -> None:
    class Wrong(norm.RMSNorm):
        def input_gradient(self, g: Tensor, saved: Any) -> Tensor:
            return 2 * super().input_gradient(g, saved)

    network = network_of(form)
    network.energy_norm, network.norm = Wrong(16) if form == "residual" else None, Wrong(16)
    assert mismatch(network).startswith(f"{HEAD}{FORWARD} does not fit: ")


def test_a_head_that_training_does_not_reach_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The readout as a constant: predictions are as they were, and U never learns."""
    network, right = network_of(), EnergyTransformer.complete

    def constant(self: EnergyTransformer, context: Any, hidden: Tensor | None) -> Any:
        result = right(self, context, hidden)
        assert result.readout is not None
        return result._replace(readout=result.readout.detach())

    monkeypatch.setattr(EnergyTransformer, "complete", constant)
    assert mismatch(network).startswith(f"{HEAD}its forward, differentiated by weights, does not fit: ")


class WrongBlock(EnergyBlock):
    def forward_saving(self, *inputs: Any) -> Any:
        made, saved = super().forward_saving(*inputs)
        return 2 * made, saved

    def input_gradient(self, *inputs: Any) -> Tensor:
        return super().input_gradient(*inputs)


class OwnBlock(EnergyBlock):
    def forward_prediction(self, *inputs: Any) -> Tensor:
        return 2 * super().forward_prediction(*inputs)


def test_a_block_of_ones_own_is_named() -> None:
    network = network_of(layers=3)
    network.blocks[2] = WrongBlock(network.shape)
    assert mismatch(network).startswith("energy: blocks.2 (WrongBlock): its forward does not fit: ")


def test_an_energy_that_autograd_differentiates_has_nothing_to_differ() -> None:
    network = network_of(layers=3)
    network.blocks[2] = OwnBlock(network.shape)
    assert not network.is_analytic
    check_energy(network)


def test_the_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EnergyBlock, "input_gradient", lambda self, g, *rest: g)
    message = mismatch(network_of())
    assert message.startswith(f"{BLOCK}{FORWARD} does not fit: ") and "\n" not in message
    assert message.endswith(
        "so that what is trained and what is evaluated would be two energies. Make `forward_saving` and "
        "`input_gradient` agree; or define `forward_prediction` (of a network: `energy`) alone in "
        "a subclass, which autograd differentiates, if slower."
    )


BROKEN = """
    from models.energy_transformer import EnergyBlock
    right = EnergyBlock.input_gradient
    EnergyBlock.input_gradient = lambda self, *inputs: 2 * right(self, *inputs)
"""


@pytest.mark.parametrize("recipe", ["residual", "s1"])
def test_a_run_is_refused(train_command: TrainCommand, recipe: str) -> None:
    output = train_command.ebt("--recipe", recipe).with_fault(BROKEN, status=2)
    assert "energy: blocks.0 (EnergyBlock): its forward does not fit: " in output and "Traceback" not in output
    assert not list(train_command.logs.glob("runs/*/checkpoints/*.ckpt"))
    metrics = list(train_command.logs.glob("runs/*/metrics.jsonl"))
    assert not any(path.read_text() for path in metrics), "not even a validation has run"
