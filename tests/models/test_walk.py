"""How the language EBT walks: the sizes, number and landscapes of its steps, and what evaluation makes of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.energy_transformer import Context, EnergyBlock, EnergyTransformer
from models.layers.analytic import autograd_gradient
from models.walk import Step
from tests.models.small import CONDITIONINGS, PAD, ROWS, D, S, fresh, model_of, train


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_evaluation_keeps_no_graph(conditioning: str) -> None:
    model = model_of(f"--ebt_type {conditioning} --langevin_dynamics_noise 0.3 --langevin_dynamics_noise_learnable")
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            start = model.start(ROWS[:, :-1], fixed=True)
            walked = list(model.walk(ROWS[:, :-1], start, model.evaluation_steps(), differentiable=False))
            for tensor in (model(ROWS[:, :-1]), *(tensor for step in walked for tensor in step)):
                assert tensor.grad_fn is None and not tensor.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())


def test_evaluation_reports_the_loss_of_every_step() -> None:
    model = model_of()
    for rows in (ROWS[:1], ROWS[1:]):
        model.validation_step({"input_ids": rows}, 0)
    model.on_validation_epoch_end()
    start = model.start(ROWS[:, :-1], fixed=True)
    walked = list(model.walk(ROWS[:, :-1], start, model.evaluation_steps(), differentiable=False))
    for t, (y, *_) in enumerate(walked):
        expected = F.cross_entropy(y.flatten(0, 1), ROWS[:, 1:].flatten(), ignore_index=PAD).item()
        assert model.results[f"loss_step_{t + 1}"] == pytest.approx(expected, rel=1e-6)
    assert model.results["loss"] == pytest.approx(model.results["loss_step_2"], rel=1e-6)


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--update_from probabilities --ebt_type time_embed",
        "--denoising_initial_condition zeros --ebt_type adaln",
    ],
)
def test_the_calibrated_first_step_has_a_deviation_of_one(flags: str) -> None:
    model = fresh(flags).double()
    before = torch.get_rng_state()
    size = model.calibrate({"input_ids": ROWS})["step_size"]
    assert torch.equal(torch.get_rng_state(), before)
    assert size == model.step_size.item() and model.learning_rates() == {"step_size": size}
    start = model.start(ROWS[:, :-1], fixed=True)
    steps = [Step(0, factor * model.step_size.detach()) for factor in (1, 0)]
    moved, stayed = (next(model.walk(ROWS[:, :-1], start, [step], differentiable=False)).y for step in steps)
    assert (moved - stayed).std().item() == pytest.approx(1, abs=1e-9)


def test_a_given_step_size_is_not_calibrated() -> None:
    model = fresh("--mcmc_step_size 2.5")
    assert model.calibrate({"input_ids": ROWS}) == {} and model.step_size.item() == 2.5


def test_a_step_size_is_drawn_once_for_a_walk_and_position() -> None:
    model = model_of("--randomize_mcmc_step_size_scale 3")
    first, *others = (step.size for step in model.training_steps(200, S))
    assert others and all(torch.equal(size, first) for size in others)
    assert first.shape == (200, S, 1) and len(first.unique()) == first.numel()
    assert 2 / 3 <= first.min() < 0.7 and 5.9 < first.max() <= 6
    assert all(step.size == 2 for step in model.evaluation_steps())


LANDSCAPES = [
    ("", {(0, 1, 2)}, [0, 1, 2]),
    (
        "--randomize_mcmc_num_steps 1",
        {(0,) * a + (1,) * b + (2,) * c for a in (1, 2) for b in (1, 2) for c in (1, 2)},
        [0, 1, 2, 2],
    ),
    ("--randomize_mcmc_num_steps 2 --randomize_mcmc_num_steps_min 3", {(0, 0, 0, 1, 1, 1, 2, 2, 2)}, [0, 1, 2, 2, 2]),
    (
        "--randomize_mcmc_num_steps 2 --randomize_mcmc_num_steps_min 2 --randomize_mcmc_num_steps_final_landscape",
        {(0, 1, 2, 2), (0, 1, 2, 2, 2)},
        [0, 1, 2, 2, 2],
    ),
]


@pytest.mark.parametrize("conditioning", ["default", "adaln", "time_embed"])
@pytest.mark.parametrize(("flags", "drawn", "evaluated"), LANDSCAPES)
def test_landscapes_are_repeated(
    conditioning: str, flags: str, drawn: set[tuple[int, ...]], evaluated: list[int]
) -> None:
    """As published: the repeats of each are drawn per batch; an evaluation repeats the last one as often as may be."""
    model = model_of(f"--mcmc_num_steps 3 --ebt_type {conditioning} {flags}")
    if conditioning == "default":  # one energy, however many landscapes are counted
        drawn, evaluated = {(0,) * len(steps) for steps in drawn}, [0] * len(evaluated)
    landscapes = {tuple(step.landscape for step in model.training_steps(1, 1)) for _ in range(200)}
    assert landscapes == drawn
    assert set(map(len, landscapes)) <= set(model.walk_settings.step_counts)
    assert [step.landscape for step in model.evaluation_steps()] == evaluated


def test_the_published_system_2_takes_two_or_three_steps_and_evaluates_with_three() -> None:
    model = model_of("--recipe s2")
    counts = {len(model.training_steps(1, 1)) for _ in range(50)}
    assert counts == {2, 3} == set(model.walk_settings.step_counts) and len(model.evaluation_steps()) == 3
    steps = model.training_steps(1, 1)
    assert [step.create_graph for step in steps] == [False] * (len(steps) - 1) + [True]


def test_truncated_steps_leave_no_graph_behind() -> None:
    model, tokens = model_of("--recipe s2 --mcmc_num_steps 3 --ebt_type adaln"), ROWS[:, :-1]
    steps = model.training_steps(*tokens.shape)
    contexts = model.contexts(tokens, steps)
    walked = list(model.walk(tokens, model.start(tokens), steps, differentiable=True, contexts=contexts))
    assert [step.y.requires_grad for step in walked] == [False] * (len(steps) - 1) + [True]
    assert [contexts(k).keys_values[0][0].requires_grad for k in range(3)] == [False, False, True]


def test_an_energy_of_ones_own_is_differentiated_by_autograd() -> None:
    """In training, evaluation and inference mode; the formulas of blocks it does not use are not asked."""

    class Squared(EnergyTransformer):
        def energy(self, z_BSD: Tensor, context: Context) -> Tensor:
            return super().energy(z_BSD, context).square()

    model = model_of("--recipe s2 --no-mcmc_replay_buffer --langevin_dynamics_noise 0")
    assert model.network.is_analytic
    plain = model(ROWS[:, :-1])
    model.network.__class__ = Squared
    assert not model.network.is_analytic
    own = model(ROWS[:, :-1])
    assert not torch.allclose(plain, own)
    with torch.inference_mode():
        torch.testing.assert_close(model(ROWS[:, :-1]), own)
    tokens, z = ROWS[:, :-1], torch.randn(2, S, D).double()
    context = model.network.context(tokens, 0)
    energy, slope = model.network.energy_and_gradient(z, context, create_graph=True)
    model.network.__class__ = EnergyTransformer
    root, root_slope = model.network.energy_and_gradient(z, context, create_graph=True)
    torch.testing.assert_close(energy, root.square())
    torch.testing.assert_close(slope, 2 * root[..., None] * root_slope)
    model.network.__class__ = Squared
    train(model).backward()
    assert all(p.grad is not None for p in model.network.blocks.parameters())


def test_a_block_of_ones_own_is_differentiated_by_autograd() -> None:
    class Doubled(EnergyBlock):
        def forward_prediction(self, *inputs: Any) -> Tensor:
            return 2 * super().forward_prediction(*inputs)

    model, plain = model_of(), model_of()
    for block in model.network.blocks:
        block.__class__ = Doubled
    assert not model.network.is_analytic and plain.network.is_analytic
    assert not torch.allclose(model(ROWS[:, :-1]), plain(ROWS[:, :-1]))
    assert torch.isfinite(train(model))


@pytest.mark.parametrize("head", ["scalar", "network"])
def test_the_type_of_the_head_is_not_assumed(head: str) -> None:
    model, tokens, z = model_of(), ROWS[:, :-1], torch.randn(2, S, D).double()
    if head == "network":
        model.network.head = nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, 1)).double()  # type: ignore[assignment]
        model.network.head.weight = torch.zeros((), dtype=torch.float64)
    context = model.network.context(tokens, 0)
    energy, slope = model.network.energy_and_gradient(z, context, create_graph=False)
    other, other_slope = autograd_gradient(model.network.energy, z, context, create_graph=False)
    torch.testing.assert_close(energy, other, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(slope, other_slope, atol=1e-10, rtol=1e-10)
    assert slope.abs().max() > 1e-3
