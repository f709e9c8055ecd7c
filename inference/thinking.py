"""The walk down the energy at inference: the plan that the --infer_ flags ask for, and the walk that follows it.

Unlike the walk of training, it may take back a step that raises the energy, stop a prediction early, and choose among
several candidates. No graph outlives a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from config.settings import Inference
from core.errors import UserError
from models.energy_model import EnergyModel, WalkSettings
from models.model import Batch, Model
from models.noise import CANDIDATES, mix_seed, parallel_normal
from models.walk import NoiseFn, Step, walk

ENERGY_FLAGS = (
    *("infer_ebt_num_steps", "infer_ebt_override_alpha", "infer_ebt_stop_change", "infer_generated_samples"),
    *("infer_energy_sampling_technique", "infer_langevin_dynamics_noise", "infer_langevin_first_step"),
    *("infer_accept_lower_energies", "infer_steps_final_landscape", "infer_alpha_final_landscape"),
)


@dataclass(frozen=True)
class WalkPlan:
    """The walk of one prediction. steps: the most that are taken; candidates: walks, each from its own start.

    choice: which candidate is selected, that of the lowest energy (min), of the largest decrease (max_gap) or, to see
    what the energy is worth, of the highest energy (max). accept_lower: a step that raises the energy is taken back,
    and the next one is half as long. stop_change: a prediction stops when a step changed its energy by less; 0 takes
    all steps.
    """

    steps: list[Step]
    candidates: int = 1
    choice: str = "min"
    accept_lower: bool = False
    stop_change: float = 0.0
    seed: int = 0


@dataclass
class WalkState:
    """Walks before step `number` (counted from 0), or at their end.

    y: the predictions; first_energy: before the first step, steps: taken by each, both of the energies' shape; passes:
    forward passes of the energy.
    """

    number: int
    y: Tensor
    first_energy: Tensor
    steps: Tensor
    passes: int
    compute_energy: Callable[[], Tensor]

    @cached_property
    def energy(self) -> Tensor:
        """The energy of y. At the end it is computed lazily, by one more pass through the same context."""
        return self.compute_energy()


def plan_from_flags(model: Model, settings: Inference, seed: int = 0) -> WalkPlan | None:
    """The plan that the settings ask for; None for a model without energy, which predicts in one pass."""
    if not isinstance(model, EnergyModel):
        defaults = Inference()
        names = [name for name in ENERGY_FLAGS if getattr(settings, name) != getattr(defaults, name)]
        if names:
            flags = ", ".join(f"--{name}" for name in names)
            raise UserError(f"{flags}: this model has no energy to walk down; leave it out, or choose an EBT's run.")
        return None
    thinking = model.walk_settings
    evaluation_step, steps = model.evaluation_steps()[-1], []
    for t, landscape in enumerate(landscapes(thinking, settings, model.has_landscapes)):
        size, noise, alpha = evaluation_step.size, evaluation_step.noise, settings.infer_ebt_override_alpha
        is_last = landscape == thinking.landscapes - 1 or not model.has_landscapes
        if alpha and (is_last or not settings.infer_alpha_final_landscape):
            size = alpha * size if alpha < 1 else torch.full_like(size, alpha)
        if settings.infer_langevin_dynamics_noise is not None:
            noise = settings.infer_langevin_dynamics_noise
        if settings.infer_langevin_first_step and t > 0:
            noise = 0.0
        steps.append(Step(model.landscape_of(landscape), size, noise))
    draws = starts_at_random(thinking) or any(float(step.noise) for step in steps)
    if settings.infer_generated_samples > 1 and not draws:
        raise UserError(
            f"--infer_generated_samples is {settings.infer_generated_samples}: without noise all candidates of this "
            "model are the same; add --infer_langevin_dynamics_noise, or ask for 1."
        )
    return WalkPlan(
        steps,
        candidates=settings.infer_generated_samples,
        choice=settings.infer_energy_sampling_technique,
        accept_lower=settings.infer_accept_lower_energies,
        stop_change=settings.infer_ebt_stop_change,
        seed=seed,
    )


def landscapes(thinking: WalkSettings, settings: Inference, conditioned: bool) -> list[int]:
    """The landscape of each step; --infer_ebt_num_steps counts per landscape of a conditioned energy, else in all."""
    count, last = settings.infer_ebt_num_steps, thinking.landscapes - 1
    if count is None:
        return thinking.evaluation_landscapes
    if not conditioned:
        return [last] * count
    once = settings.infer_steps_final_landscape
    return [k for k in range(last + 1) for _ in range(1 if once and k < last else count)]


def starts_at_random(thinking: WalkSettings) -> bool:
    """Whether the settings give the start of a walk noise."""
    return thinking.start != "zeros" and thinking.noise_scale > 0


@torch.no_grad()
def careful_walk(
    model: EnergyModel, context_of: Callable[[int], Any], start: Tensor, plan: WalkPlan, noise: NoiseFn
) -> Iterator[WalkState]:
    """Walk down the energy from `start`: yields the state before each step, and at the end.

    context_of: what the predictions see, by landscape. noise: called with the number of the step, from 1.
    """
    space, y = model.space, start
    events = space.event_dims

    def spread(x: Tensor) -> Tensor:
        """From the energies' shape to one that broadcasts over predictions."""
        return x[(..., *[None] * events)]

    active = torch.ones(y.shape[: y.dim() - events], dtype=torch.bool, device=y.device)
    moved, taken = ~active, torch.zeros(active.shape, dtype=torch.int64, device=y.device)
    factor = torch.ones(active.shape, dtype=y.dtype, device=y.device)
    first = previous = None
    landscape, passes = -1, 0

    def energy_and_gradient(z: Tensor, landscape: int, create_graph: bool) -> tuple[Tensor, Tensor]:
        return model.energy_and_gradient(z, context_of(landscape), create_graph)

    for number, step in enumerate(plan.steps):
        sized = replace(step, size=spread(step.size * factor))
        numbered = partial(at_step, noise, number + 1)
        (walked,) = walk(energy_and_gradient, space, y, [sized], differentiable=False, noise=numbered)
        energy = walked.energy
        passes += 1
        if plan.accept_lower and step.noise:
            energy = model.prediction_energy(y, context_of(step.landscape))
            passes += 1
        if plan.stop_change and previous is not None and step.landscape == landscape:
            active &= ~(moved & ((previous - energy).abs() < plan.stop_change))
            if not active.any():
                break
        first = energy if first is None else first
        previous, landscape = energy, step.landscape
        yield WalkState(number, y, first, taken, passes, energy.detach)
        moved = active
        if plan.accept_lower:
            moved = active & (model.prediction_energy(walked.y, context_of(step.landscape)) < energy)
            passes += 1
            factor = torch.where(moved, factor, factor / 2)
        taken = taken + active
        y = walked.y if moved.all() else torch.where(spread(moved), walked.y, y)
    assert first is not None

    @torch.no_grad()
    def last_energy() -> Tensor:
        return model.prediction_energy(y, context_of(plan.steps[-1].landscape))

    yield WalkState(len(plan.steps), y, first, taken, passes, last_energy)


def at_step(noise: NoiseFn, number: int, _: int, like: Tensor) -> Tensor:
    """The noise of this step, whatever number a walk of a single step gives it."""
    return noise(number, like)


def last_state(states: Iterator[WalkState], observe: Callable[[WalkState], None] | None = None) -> WalkState:
    """The end of a careful walk. observe: called with every state."""
    for state in states:
        if observe:
            observe(state)
    return state


def candidate_score(first: Tensor, last: Tensor, choice: str) -> Tensor:
    """How good a candidate is by its first and last energy: the candidate of the largest score is selected."""
    return {"min": -last, "max": last, "max_gap": first - last}[choice]


@torch.no_grad()
def best_candidate(model: EnergyModel, plan: WalkPlan, walk_candidate: Callable[[int], WalkState]) -> WalkState:
    """Walk with every candidate; for each prediction only the selected one is held."""
    best = walk_candidate(0)
    for candidate in range(1, plan.candidates):
        other = walk_candidate(candidate)
        scores = [candidate_score(state.first_energy, state.energy, plan.choice) for state in (other, best)]
        better = scores[0] > scores[1]
        better_y = better[(..., *[None] * model.space.event_dims)]
        best = WalkState(
            best.number,
            torch.where(better_y, other.y, best.y),
            torch.where(better, other.first_energy, best.first_energy),
            torch.where(better, other.steps, best.steps),
            best.passes + other.passes,
            torch.where(better, other.energy, best.energy).detach,
        )
    return best


def with_steps(plan: WalkPlan, count: int) -> WalkPlan:
    """The same plan with so many steps; those it lacks are like its last."""
    return replace(plan, steps=(plan.steps + [plan.steps[-1]] * count)[:count])


@torch.no_grad()
def walk_batch(
    model: EnergyModel,
    batch: Batch,
    plan: WalkPlan,
    number: int = 0,
    observe: Callable[[WalkState], None] | None = None,
) -> WalkState:
    """The end of careful walks for a batch; of several candidates the selected one.

    Seed, number of the batch and candidate determine all noise: torch's generator is set to them. The first candidate
    of seed 0 starts where an evaluation does.
    """
    observed = model.observed(batch)
    contexts = model.contexts(observed)

    def walk_candidate(candidate: int) -> WalkState:
        torch.manual_seed(mix_seed(number * CANDIDATES + candidate, plan.seed))
        start = model.start(observed, fixed=not candidate and not plan.seed, contexts=contexts)
        return last_state(careful_walk(model, contexts, start, plan, lambda _, y: parallel_normal(y.shape, y)), observe)

    return best_candidate(model, plan, walk_candidate)
