"""What the flags of thinking mean: how many steps on which landscape, how long, with which noise, how many walks."""

from __future__ import annotations

import pytest
import torch

from config.settings import Inference
from core.errors import UserError
from inference.language.walk import walk_rows
from inference.thinking import WalkPlan, plan_from_flags
from models.language import EnergyLM
from models.walk import Step
from tests.inference.small import CONTEXT, SEPARATOR, energy_model, residual_model

CONDITIONED = ("time_embed", "adaln", "adaln_zero")


def plan_of(model: EnergyLM, **flags: object) -> WalkPlan:
    plan = plan_from_flags(model, Inference(**flags))  # type: ignore[arg-type]
    assert plan is not None
    return plan


def landscapes(plan: WalkPlan) -> list[int]:
    return [step.landscape for step in plan.steps]


def sizes(plan: WalkPlan) -> list[float]:
    return [round(float(step.size), 6) for step in plan.steps]


def noises(plan: WalkPlan) -> list[float]:
    return [float(step.noise) for step in plan.steps]


@pytest.mark.parametrize("conditioning", CONDITIONED)
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, [0, 1, 2]),
        ({"infer_ebt_num_steps": 1}, [0, 1, 2]),
        ({"infer_ebt_num_steps": 3}, [0, 0, 0, 1, 1, 1, 2, 2, 2]),
        ({"infer_ebt_num_steps": 3, "infer_steps_final_landscape": True}, [0, 1, 2, 2, 2]),
        ({"infer_ebt_num_steps": 1, "infer_steps_final_landscape": True}, [0, 1, 2]),
    ],
)
def test_steps_are_counted_for_each_landscape(conditioning: str, flags: dict[str, int], expected: list[int]) -> None:
    """As public code: --infer_ebt_num_steps on every landscape, or on the last alone and the others once."""
    for model in (
        energy_model(conditioning, "--mcmc_num_steps 3"),
        energy_model(conditioning, "--recipe residual --mcmc_num_steps 3"),
    ):
        assert landscapes(plan_of(model, **flags)) == expected


@pytest.mark.parametrize("final", [False, True])
def test_steps_of_an_unconditioned_energy_are_counted_in_all(final: bool) -> None:
    for model in (energy_model(flags="--mcmc_num_steps 3"), residual_model()):
        for count in (1, 2, 7):
            plan = plan_of(model, infer_ebt_num_steps=count, infer_steps_final_landscape=final)
            assert landscapes(plan) == [0] * count


def test_an_evaluation_repeats_the_last_landscape() -> None:
    repeated = "--mcmc_num_steps 2 --randomize_mcmc_num_steps 2"
    assert landscapes(plan_of(energy_model("time_embed", repeated))) == [0, 1, 1, 1]
    assert landscapes(plan_of(energy_model("default", repeated))) == [0] * 4
    assert landscapes(plan_of(energy_model("time_embed", "--recipe s2"))) == [0, 0, 0]
    assert landscapes(plan_of(energy_model(flags="--recipe residual"))) == [0]


@pytest.mark.parametrize(
    ("alpha", "size"),
    [(0.5, 0.4 * 0.5), (0.999, 0.4 * 0.999), (1e-3, 0.4 * 1e-3), (1.0, 1.0), (1.5, 1.5), (30.0, 30.0)],
)
def test_below_one_alpha_is_a_factor_and_from_one_on_a_size(alpha: float, size: float) -> None:
    model = residual_model("adaln")
    assert sizes(plan_of(model)) == [0.4, 0.4]
    assert sizes(plan_of(model, infer_ebt_override_alpha=alpha)) == [round(size, 6)] * 2
    last = plan_of(model, infer_ebt_override_alpha=alpha, infer_alpha_final_landscape=True, infer_ebt_num_steps=2)
    assert landscapes(last) == [0, 0, 1, 1] and sizes(last) == [0.4, 0.4, round(size, 6), round(size, 6)]
    assert sizes(plan_of(residual_model(), infer_ebt_override_alpha=alpha, infer_alpha_final_landscape=True)) == (
        [round(size, 6)] * 2  # it has one landscape
    )


def test_alpha_is_a_factor_on_what_was_learned() -> None:
    model = energy_model("time_embed", "--recipe s1")  # an own copy: its step size is changed here
    before = float(model.step_size)
    with torch.no_grad():
        model.step_size.fill_(77.0)
    try:
        assert sizes(plan_of(model, infer_ebt_override_alpha=0.1)) == [7.7, 7.7]
        assert sizes(plan_of(model, infer_ebt_override_alpha=8.0)) == [8.0, 8.0]
    finally:
        with torch.no_grad():
            model.step_size.fill_(before)


@pytest.mark.parametrize("conditioning", ("default", "time_embed", "adaln"))
@pytest.mark.parametrize("alpha", [None, 0.5, 1.3])
def test_the_flags_reach_the_walk(conditioning: str, alpha: float | None) -> None:
    """The logits are those of the model's own walk, step by step of the size and on the landscape that were asked."""
    tokens_BS = torch.randint(0, SEPARATOR, (2, CONTEXT), generator=torch.Generator().manual_seed(0))
    options = {"infer_ebt_num_steps": 3, "infer_steps_final_landscape": True, "infer_ebt_override_alpha": alpha}
    for model in (energy_model(conditioning), residual_model(conditioning)):
        plan, learned = plan_of(model, **options), float(model.step_size)
        size = learned if alpha is None else learned * alpha if alpha < 1 else alpha
        expected = [0, 0, 0] if conditioning == "default" else [0, 1, 1, 1]
        steps = [Step(landscape, torch.tensor(size, dtype=torch.float64)) for landscape in expected]
        with torch.no_grad():
            walked = list(model.walk(tokens_BS, model.start(tokens_BS, fixed=True), steps, differentiable=False))
        end = walk_rows(model, tokens_BS, plan)
        torch.testing.assert_close(end.y, walked[-1].y, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(end.first_energy, walked[0].energy, rtol=1e-9, atol=1e-9)
        assert end.passes == len(expected)


def test_noise_is_that_of_the_evaluation_unless_asked() -> None:
    noisy = energy_model(flags="--langevin_dynamics_noise 0.7")
    assert noises(plan_of(noisy)) == [0.7, 0.7]
    assert noises(plan_of(noisy, infer_langevin_dynamics_noise=0.2)) == [0.2, 0.2]
    assert noises(plan_of(noisy, infer_langevin_dynamics_noise=0.0)) == [0.0, 0.0]
    assert noises(plan_of(noisy, infer_langevin_first_step=True)) == [0.7, 0.0]
    quiet = energy_model(flags="--langevin_dynamics_noise 0.7 --no_langevin_during_eval")
    assert noises(plan_of(quiet)) == [0.0, 0.0]


RESIDUAL, ZEROS = "--recipe residual", "--denoising_initial_condition zeros"


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (RESIDUAL, {}),
        (f"{RESIDUAL} --mcmc_num_steps 3", {}),
        (f"{RESIDUAL} --langevin_dynamics_noise 0.7 --no_langevin_during_eval", {}),
        (f"{RESIDUAL} --langevin_dynamics_noise 0.7", {"infer_langevin_dynamics_noise": 0.0}),
        (ZEROS, {}),  # its recipe has a scale of the noise from which other walks start
    ],
)
def test_candidates_without_noise_are_an_error(flags: str, options: dict[str, float]) -> None:
    model = energy_model(flags=flags)
    with pytest.raises(UserError) as caught:
        plan_of(model, infer_generated_samples=3, **options)
    assert str(caught.value) == (
        "--infer_generated_samples is 3: without noise all candidates of this model are the same; "
        "add --infer_langevin_dynamics_noise, or ask for 1."
    )
    assert plan_of(model, infer_generated_samples=1, **options).candidates == 1
    assert plan_of(model, infer_generated_samples=3, infer_langevin_dynamics_noise=0.1).candidates == 3


@pytest.mark.parametrize(
    "flags",
    [
        "",
        f"{RESIDUAL} --gaussian_random_noise_scaling 0.1",
        f"{RESIDUAL} --langevin_dynamics_noise 0.7",
        f"{ZEROS} --langevin_dynamics_noise 0.7",
    ],
)
def test_candidates_with_noise_differ(flags: str) -> None:
    model, tokens_1S = energy_model(flags=flags), torch.arange(1, 8)[None]
    plan = plan_of(model, infer_generated_samples=3)
    alone, best = (walk_rows(model, tokens_1S, some) for some in (plan_of(model), plan))
    assert (best.energy <= alone.energy + 1e-12).all() and (best.energy < alone.energy - 1e-6).any()
