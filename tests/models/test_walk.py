"""How the language EBT walks: the sizes, number and landscapes of its steps, and what evaluation makes of them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from models.descent import Step
from tests.models.test_ebt import CONDITIONINGS, PAD, ROWS, S, fresh, model_of


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_evaluation_keeps_no_graph(conditioning: str) -> None:
    model = model_of(f"--ebt_type {conditioning} --langevin_dynamics_noise 0.3 --langevin_dynamics_noise_learnable")
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            start = model.start(ROWS[:, :-1], fixed=True)
            walk = model.walk(ROWS[:, :-1], start, model.evaluation_steps(), differentiable=False)
            for tensor in (model(ROWS[:, :-1]), *walk.predictions, *walk.energies, *walk.gradient_norms):
                assert tensor.grad_fn is None and not tensor.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())


def test_evaluation_reports_the_loss_of_every_step() -> None:
    model = model_of()
    for rows in (ROWS[:1], ROWS[1:]):
        model.validation_step({"input_ids": rows}, 0)
    model.on_validation_epoch_end()
    start = model.start(ROWS[:, :-1], fixed=True)
    walk = model.walk(ROWS[:, :-1], start, model.evaluation_steps(), differentiable=False)
    for t, y in enumerate(walk.predictions):
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
    size = model.calibrate({"input_ids": ROWS})
    assert torch.equal(torch.get_rng_state(), before)
    assert size == model.step_size.item() and model.learning_rate_multipliers() == {"step_size": size}
    start = model.start(ROWS[:, :-1], fixed=True)
    steps = [Step(0, factor * model.step_size.detach()) for factor in (1, 0)]
    moved, stayed = (model.walk(ROWS[:, :-1], start, [step], differentiable=False).predictions[0] for step in steps)
    assert (moved - stayed).std().item() == pytest.approx(1, abs=1e-9)


def test_a_given_step_size_is_not_calibrated() -> None:
    model = fresh("--mcmc_step_size 2.5")
    assert model.calibrate({"input_ids": ROWS}) is None and model.step_size.item() == 2.5


def test_step_sizes_are_drawn_around_the_learned_one() -> None:
    model = model_of("--randomize_mcmc_step_size_scale 3")
    steps = model.training_steps(200, S)
    sizes = torch.stack([step.size for step in steps])
    assert sizes.shape == (len(steps), 200, S, 1) and len(sizes.unique()) == sizes.numel()
    assert 2 / 3 <= sizes.min() < 0.7 and 5.9 < sizes.max() <= 6
    assert all(step.size == 2 for step in model.evaluation_steps())


@pytest.mark.parametrize(
    ("flags", "counts"),
    [
        ("--randomize_mcmc_num_steps 0", {3}),
        ("--randomize_mcmc_num_steps 2", {3, 4, 5}),
        ("--randomize_mcmc_num_steps 2 --randomize_mcmc_num_steps_min 2", {2, 3, 4, 5}),
    ],
)
def test_the_number_of_steps_is_drawn_from_its_range(flags: str, counts: set[int]) -> None:
    model = model_of(f"--mcmc_num_steps 3 {flags}")
    assert {len(model.training_steps(1, 1)) for _ in range(100)} == counts
    assert len(model.evaluation_steps()) == 3


@pytest.mark.parametrize(
    ("flags", "count", "expected"),
    [
        ("", 5, [0, 0, 0, 0, 0]),
        ("--ebt_type adaln", 3, [0, 1, 2]),
        ("--ebt_type adaln", 6, [0, 0, 1, 1, 2, 2]),
        ("--ebt_type time_embed", 5, [0, 0, 1, 1, 2]),
        ("--ebt_type time_embed", 2, [0, 1]),
        ("--ebt_type time_embed --randomize_mcmc_num_steps_final_landscape", 5, [0, 1, 2, 2, 2]),
    ],
)
def test_each_step_has_its_landscape(flags: str, count: int, expected: list[int]) -> None:
    model = model_of(f"--mcmc_num_steps 3 {flags}")
    final = model.thinking.extra_on_final_landscape
    assert [model.landscape_of(step, count, final) for step in range(count)] == expected
    for steps in (model.training_steps(1, 1), model.evaluation_steps()):
        assert [step.landscape for step in steps] == [
            model.landscape_of(t, len(steps), final) for t in range(len(steps))
        ]
