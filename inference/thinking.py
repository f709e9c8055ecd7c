"""The walk down the energy at inference: the plan that the --infer_ flags ask for, and the walk that follows it.

Unlike the walk of training, it can undo a step that raises the energy, stop a prediction early, and select one of
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
from inference.loading import Loaded
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
    """The walk of one prediction. steps: at most these; candidates: number of walks, each from its own start.

    choice: which candidate is selected, that of the lowest energy (min), of the largest decrease (max_gap) or, to see
    what the energy is worth, of the highest energy (max). accept_lower: a step that raises the energy is undone, and
    the next one is half as long. stop_change: a prediction stops when a step changed its energy by less; 0 takes all
    steps.
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

    y: the predictions. first_energy: before the first step; steps: how many each walk took; both have the energies'
    shape. passes: forward passes of the energy so far.
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


def require_energy(loaded: Loaded, consequence: str) -> Any:
    """The model, refused where it has no energy. consequence: of that, as the end of the sentence."""
    if not isinstance(loaded.model, EnergyModel):
        name = loaded.folder.run_id if loaded.folder else str(loaded.checkpoint)
        raise UserError(f"--run is {name!r}: this model has no energy{consequence}; choose an EBT's run.")
    return loaded.model


def plan_from_flags(model: Model, inference: Inference, seed: int = 0) -> WalkPlan | None:
    """The plan of the --infer_ flags; None for a model without energy, which predicts in one pass."""
    if not isinstance(model, EnergyModel):
        defaults = Inference()
        names = [name for name in ENERGY_FLAGS if getattr(inference, name) != getattr(defaults, name)]
        if names:
            flags = ", ".join(f"--{name}" for name in names)
            raise UserError(f"{flags}: this model has no energy to walk down; leave it out, or choose an EBT's run.")
        return None
    walk_settings = model.walk_settings
    evaluation_step, steps = model.evaluation_steps()[-1], []
    for t, landscape in enumerate(landscapes(walk_settings, inference, model.has_landscapes)):
        size, noise, alpha = evaluation_step.size, evaluation_step.noise, inference.infer_ebt_override_alpha
        is_last = landscape == walk_settings.landscapes - 1 or not model.has_landscapes
        if alpha and (is_last or not inference.infer_alpha_final_landscape):
            size = alpha * size if alpha < 1 else torch.full_like(size, alpha)
        if inference.infer_langevin_dynamics_noise is not None:
            noise = inference.infer_langevin_dynamics_noise
        if inference.infer_langevin_first_step and t > 0:
            noise = 0.0
        steps.append(Step(model.landscape_of(landscape), size, noise))
    draws = starts_at_random(walk_settings) or any(float(step.noise) for step in steps)
    if inference.infer_generated_samples > 1 and not draws:
        raise UserError(
            f"--infer_generated_samples is {inference.infer_generated_samples}: without noise all candidates of this "
            "model are the same; add --infer_langevin_dynamics_noise, or ask for 1."
        )
    return WalkPlan(
        steps,
        candidates=inference.infer_generated_samples,
        choice=inference.infer_energy_sampling_technique,
        accept_lower=inference.infer_accept_lower_energies,
        stop_change=inference.infer_ebt_stop_change,
        seed=seed,
    )


def landscapes(walk_settings: WalkSettings, inference: Inference, conditioned: bool) -> list[int]:
    """The landscape of each step; --infer_ebt_num_steps counts per landscape of a conditioned energy, else in all."""
    count, last = inference.infer_ebt_num_steps, walk_settings.landscapes - 1
    if count is None:
        return walk_settings.evaluation_landscapes
    if not conditioned:
        return [last] * count
    once = inference.infer_steps_final_landscape
    return [k for k in range(last + 1) for _ in range(1 if once and k < last else count)]


def starts_at_random(walk_settings: WalkSettings) -> bool:
    """Whether the settings give the start of a walk noise."""
    return walk_settings.start != "zeros" and walk_settings.noise_scale > 0


@torch.no_grad()
def inference_walk(
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
    has_moved, steps_taken = ~active, torch.zeros(active.shape, dtype=torch.int64, device=y.device)
    size_factor = torch.ones(active.shape, dtype=y.dtype, device=y.device)
    first_energy = previous_energy = None
    previous_landscape, passes = -1, 0

    def energy_and_gradient(z: Tensor, landscape: int, create_graph: bool) -> tuple[Tensor, Tensor]:
        return model.energy_and_gradient(z, context_of(landscape), create_graph)

    for number, step in enumerate(plan.steps):
        scaled_step = replace(step, size=spread(step.size * size_factor))
        step_noise = partial(at_step, noise, number + 1)
        (proposal,) = walk(energy_and_gradient, space, y, [scaled_step], differentiable=False, noise=step_noise)
        energy = proposal.energy
        passes += 1
        if plan.accept_lower and step.noise:
            energy = model.prediction_energy(y, context_of(step.landscape))
            passes += 1
        if plan.stop_change and previous_energy is not None and step.landscape == previous_landscape:
            active &= ~(has_moved & ((previous_energy - energy).abs() < plan.stop_change))
            if not active.any():
                break
        first_energy = energy if first_energy is None else first_energy
        previous_energy, previous_landscape = energy, step.landscape
        yield WalkState(number, y, first_energy, steps_taken, passes, energy.detach)
        has_moved = active
        if plan.accept_lower:
            has_moved = active & (model.prediction_energy(proposal.y, context_of(step.landscape)) < energy)
            passes += 1
            size_factor = torch.where(has_moved, size_factor, size_factor / 2)
        steps_taken = steps_taken + active
        y = proposal.y if has_moved.all() else torch.where(spread(has_moved), proposal.y, y)
    assert first_energy is not None

    @torch.no_grad()
    def last_energy() -> Tensor:
        return model.prediction_energy(y, context_of(plan.steps[-1].landscape))

    yield WalkState(len(plan.steps), y, first_energy, steps_taken, passes, last_energy)


def at_step(noise: NoiseFn, number: int, _: int, like: Tensor) -> Tensor:
    """The noise of step `number`: `walk` sees a single step, and numbers it as the first."""
    return noise(number, like)


def last_state(states: Iterator[WalkState], observe: Callable[[WalkState], None] | None = None) -> WalkState:
    """The end of a walk. observe: called with every state."""
    for state in states:
        if observe:
            observe(state)
    return state


def candidate_score(first: Tensor, last: Tensor, choice: str) -> Tensor:
    """How good a candidate is by its first and last energy: the candidate of the largest score is selected."""
    return {"min": -last, "max": last, "max_gap": first - last}[choice]


@torch.no_grad()
def best_candidate(model: EnergyModel, plan: WalkPlan, walk_candidate: Callable[[int], WalkState]) -> WalkState:
    """Walk with every candidate, and select one for each prediction. Only the best so far is held in memory."""
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
    """The plan with this many steps: cut, or continued with its last step."""
    return replace(plan, steps=(plan.steps + [plan.steps[-1]] * count)[:count])


@torch.no_grad()
def walk_batch(
    model: EnergyModel,
    batch: Batch,
    plan: WalkPlan,
    number: int = 0,
    observe: Callable[[WalkState], None] | None = None,
) -> WalkState:
    """The ends of the walks of a batch; of several candidates the selected one.

    Seed, number of the batch and candidate determine all noise: torch's generator is set to them. The first candidate
    of seed 0 starts where an evaluation does.
    """
    observed = model.observed(batch)
    contexts = model.contexts(observed)

    def walk_candidate(candidate: int) -> WalkState:
        torch.manual_seed(mix_seed(number * CANDIDATES + candidate, plan.seed))
        start = model.start(observed, fixed=not candidate and not plan.seed, contexts=contexts)
        return last_state(
            inference_walk(model, contexts, start, plan, lambda _, y: parallel_normal(y.shape, y)), observe
        )

    return best_candidate(model, plan, walk_candidate)
