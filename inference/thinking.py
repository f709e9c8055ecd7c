"""The walk down the energy at inference: the plan that the --infer_ flags ask for, and the walk that follows it.

Unlike the walk of training, it may take back a step that raises the energy, stop a position early, and choose among
several candidates. No graph outlives a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from config.settings import Inference
from core.errors import UserError
from models.energy_model import WalkSettings
from models.energy_transformer import Context
from models.language import EnergyLM, LanguageModel
from models.layers.linear import is_few_rows_no_grad
from models.layers.vocabulary import move
from models.noise import keyed_normal, noise_key
from models.spaces import neg_entropy
from models.walk import Step

ENERGY_FLAGS = (
    *("infer_ebt_num_steps", "infer_ebt_override_alpha", "infer_ebt_stop_change", "infer_generated_samples"),
    *("infer_energy_sampling_technique", "infer_langevin_dynamics_noise", "infer_langevin_first_step"),
    *("infer_accept_lower_energies", "infer_steps_final_landscape", "infer_alpha_final_landscape"),
)


@dataclass(frozen=True)
class WalkPlan:
    """The walk at one position. steps: the most that are taken; candidates: walks, each from its own start.

    choice: which candidate is selected, that of the lowest energy (min), of the largest decrease (max_gap) or, to see
    what the energy is worth, of the highest energy (max). accept_lower: a step that raises the energy is taken back,
    and the next one is half as long. stop_change: a position stops when a step changed its energy by less; 0 takes all
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
    """Walks at N places of each row before step `number` (counted from 0), or at their end.

    y: [B, N, V]; first_energy: before the first step, steps: taken at each place, both [B, N]; passes: forward passes
    of the prediction stream.
    """

    number: int
    y: Tensor
    first_energy: Tensor
    steps: Tensor
    passes: int
    compute_energy: Callable[[], Tensor]

    @cached_property
    def energy(self) -> Tensor:
        """The energy of y, [B, N]. At the end it is computed lazily, by one more pass through the same context."""
        return self.compute_energy()


def plan_from_flags(model: LanguageModel, settings: Inference, seed: int = 0) -> WalkPlan | None:
    """The plan that the settings ask for; None for a model without energy, which predicts in one pass."""
    if not isinstance(model, EnergyLM):
        defaults = Inference()
        names = [name for name in ENERGY_FLAGS if getattr(settings, name) != getattr(defaults, name)]
        if names:
            flags = ", ".join(f"--{name}" for name in names)
            raise UserError(f"{flags}: this model has no energy to walk down; leave it out, or choose an EBT's run.")
        return None
    thinking = model.walk_settings
    evaluation_step, steps = model.evaluation_steps()[-1], []
    for t, landscape in enumerate(landscapes(thinking, settings, model.network.has_landscapes)):
        size, noise, alpha = evaluation_step.size, evaluation_step.noise, settings.infer_ebt_override_alpha
        is_last = landscape == thinking.landscapes - 1 or not model.network.has_landscapes
        if alpha and (is_last or not settings.infer_alpha_final_landscape):
            size = alpha * size if alpha < 1 else torch.full_like(size, alpha)
        if settings.infer_langevin_dynamics_noise is not None:
            noise = settings.infer_langevin_dynamics_noise
        if settings.infer_langevin_first_step and t > 0:
            noise = 0.0
        steps.append(Step(model.landscape_of(landscape), size, noise))
    starts_at_random = thinking.start != "zeros" and thinking.noise_scale > 0
    if settings.infer_generated_samples > 1 and not starts_at_random and not any(float(step.noise) for step in steps):
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


def start_of_walk(model: EnergyLM, context: Callable[[], Context], like: Tensor, noise: Callable[[], Tensor]) -> Tensor:
    """Where the walks begin. context: of the first step; like: zeros of the shape of y; noise: standard normal."""
    thinking = model.walk_settings
    y_BNV = like
    if thinking.start == "prior":
        prior_BND = context().prior
        assert prior_BND is not None
        y_BNV = model.network.to_vocabulary(prior_BND).expand_as(y_BNV)
    if thinking.start != "zeros" and thinking.noise_scale:
        y_BNV = y_BNV + thinking.noise_scale * noise()
    return y_BNV


def single_step(
    model: EnergyLM, context: Context, y_BNV: Tensor, step: Step, noise: Callable[[], Tensor]
) -> tuple[Tensor, Tensor]:
    """Add the step's noise and take one step. -> y after it [B, N, V], the energy before it, with the noise, [B, N]"""
    network, rule = model.network, model.space.rule
    if step.noise:
        y_BNV = y_BNV + step.noise * noise()
    energy_BN, gradient_BND = network.energy_and_gradient(model.embed(y_BNV), context, create_graph=False)
    base_BNV = y_BNV
    if rule.entropy:
        energy_BN = energy_BN + neg_entropy(y_BNV)
        base_BNV = y_BNV - step.size * y_BNV
    elif rule.from_probabilities and rule.normalize:
        base_BNV = y_BNV.softmax(-1)
    dz_BND = step.size * gradient_BND
    if is_few_rows_no_grad(dz_BND):
        return base_BNV - network.to_vocabulary(dz_BND), energy_BN
    return move(base_BNV, dz_BND, network.prediction_embedding)[0], energy_BN


@torch.no_grad()
def careful_walk(
    model: EnergyLM,
    context_of: Callable[[int], Context],
    positions_BN: Tensor,
    plan: WalkPlan,
    candidates_BN: Tensor | int = 0,
) -> Iterator[WalkState]:
    """Walk down the energy at N places of each row: yields the state before each step, and at the end.

    context_of: what the places see, by landscape. positions: of the last token that a prediction sees; candidates:
    which of its walks this is. These two and the plan's seed determine all noise.
    """
    embedding_VD = model.network.prediction_embedding

    def noise(number: int) -> Tensor:
        keys_BN = noise_key(positions_BN, candidates_BN, number)
        return keyed_normal(keys_BN, len(embedding_VD), plan.seed).to(embedding_VD.dtype)

    zeros_BNV = embedding_VD.new_zeros(*positions_BN.shape, len(embedding_VD))
    y_BNV = start_of_walk(model, partial(context_of, plan.steps[0].landscape), zeros_BNV, partial(noise, 0))
    active_BN = torch.ones_like(positions_BN, dtype=torch.bool)
    moved_BN, taken_BN = ~active_BN, torch.zeros_like(positions_BN)
    factor_BN = torch.ones(positions_BN.shape, dtype=y_BNV.dtype, device=y_BNV.device)
    first_BN = previous_BN = None
    landscape, passes = -1, 0
    for number, step in enumerate(plan.steps):
        context = context_of(step.landscape)
        sized = replace(step, size=(step.size * factor_BN)[..., None])
        next_BNV, energy_BN = single_step(model, context, y_BNV, sized, partial(noise, number + 1))
        passes += 1
        if plan.accept_lower and step.noise:
            energy_BN = model.prediction_energy(y_BNV, context)
            passes += 1
        if plan.stop_change and previous_BN is not None and step.landscape == landscape:
            active_BN &= ~(moved_BN & ((previous_BN - energy_BN).abs() < plan.stop_change))
            if not active_BN.any():
                break
        first_BN = energy_BN if first_BN is None else first_BN
        previous_BN, landscape = energy_BN, step.landscape
        yield WalkState(number, y_BNV, first_BN, taken_BN, passes, energy_BN.detach)
        moved_BN = active_BN
        if plan.accept_lower:
            moved_BN = active_BN & (model.prediction_energy(next_BNV, context) < energy_BN)
            passes += 1
            factor_BN = torch.where(moved_BN, factor_BN, factor_BN / 2)
        taken_BN = taken_BN + active_BN
        y_BNV = next_BNV if moved_BN.all() else torch.where(moved_BN[..., None], next_BNV, y_BNV)
    assert first_BN is not None

    @torch.no_grad()
    def last_energy() -> Tensor:
        return model.prediction_energy(y_BNV, context_of(plan.steps[-1].landscape))

    yield WalkState(len(plan.steps), y_BNV, first_BN, taken_BN, passes, last_energy)


def walk_positions(
    model: EnergyLM,
    context_of: Callable[[int], Context],
    positions_BN: Tensor,
    plan: WalkPlan,
    candidates_BN: Tensor | int = 0,
    observe: Callable[[WalkState], None] | None = None,
) -> WalkState:
    """The end of a careful walk. observe: called with every state."""
    for state in careful_walk(model, context_of, positions_BN, plan, candidates_BN):
        if observe:
            observe(state)
    return state


def candidate_score(first: Tensor, last: Tensor, choice: str) -> Tensor:
    """How good a candidate is by its first and last energy: the candidate of the largest score is selected."""
    return {"min": -last, "max": last, "max_gap": first - last}[choice]


@torch.no_grad()
def walk_rows(
    model: EnergyLM,
    tokens_BS: Tensor,
    plan: WalkPlan,
    observe: Callable[[WalkState], None] | None = None,
) -> WalkState:
    """Walk at every position of whole rows [B, S], without a cache; of several candidates only the selected is held."""
    contexts = model.contexts(tokens_BS)
    positions_BS = torch.arange(tokens_BS.shape[1], device=tokens_BS.device).expand(tokens_BS.shape)
    best = walk_positions(model, contexts, positions_BS, plan, 0, observe)
    for candidate in range(1, plan.candidates):
        other = walk_positions(model, contexts, positions_BS, plan, candidate, observe)
        scores = [candidate_score(state.first_energy, state.energy, plan.choice) for state in (other, best)]
        better_BS = scores[0] > scores[1]
        best = WalkState(
            best.number,
            torch.where(better_BS[..., None], other.y, best.y),
            torch.where(better_BS, other.first_energy, best.first_energy),
            torch.where(better_BS, other.steps, best.steps),
            best.passes + other.passes,
            torch.where(better_BS, other.energy, best.energy).detach,
        )
    return best


def with_steps(plan: WalkPlan, count: int) -> WalkPlan:
    """The same plan with so many steps; those it lacks are like its last."""
    return replace(plan, steps=(plan.steps + [plan.steps[-1]] * count)[:count])
