"""How a trained energy model thinks: the walk down its energy, with the choices that inference leaves open.

Nothing here is differentiated twice, and no graph outlives a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from config.errors import UserError
from config.settings import Inference
from models.descent import Step
from models.energy_language_model import EnergyLanguageModel
from models.energy_transformer import Context
from models.language_model import LanguageModel
from models.layers.vocabulary import embed, move
from models.noise import keyed_normal, noise_key

ENERGY_FLAGS = (
    *("infer_ebt_num_steps", "infer_ebt_override_alpha", "infer_ebt_stop_change", "infer_generated_samples"),
    *("infer_energy_sampling_technique", "infer_langevin_dynamics_noise", "infer_langevin_first_step"),
    *("infer_accept_lower_energies", "infer_steps_final_landscape", "infer_alpha_final_landscape"),
)


@dataclass(frozen=True)
class Plan:
    """How to think at one position. steps: the most that are taken; candidates: walks from starts of their own.

    choice: which candidate is believed, that of the least energy (min), of the largest fall (max_gap) or, to see what
    the energy is worth, of the most energy (max). accept_lower: a step that raises the energy is taken back, and the
    next one is half as long. stop_change: a position is done when a step changed its energy by less; 0 takes all steps.
    """

    steps: list[Step]
    candidates: int = 1
    choice: str = "min"
    accept_lower: bool = False
    stop_change: float = 0.0
    seed: int = 0


class Thought(NamedTuple):
    """Where the walks ended: logits [B, P, V]; energies before the first step and at the end, and steps taken, [B, P].

    passes: how often the prediction stream ran, for every candidate of a position.
    """

    logits: Tensor
    first_energy: Tensor
    energy: Tensor
    steps: Tensor
    passes: int


Watch = Callable[[int, Tensor, Tensor], None]  # step, logits before it [B, P, V], their energy [B, P]


@dataclass
class Contexts:
    """The context of each landscape, made when it is first asked for."""

    make: Callable[[int], Context]
    made: dict[int, Context] = field(default_factory=dict)

    def __call__(self, landscape: int) -> Context:
        if landscape not in self.made:
            self.made[landscape] = self.make(landscape)
        return self.made[landscape]


def make_plan(model: LanguageModel, settings: Inference, seed: int = 0) -> Plan | None:
    """The plan that the settings ask for; None for a model without energy, which can only be asked once."""
    if not isinstance(model, EnergyLanguageModel):
        plain = Inference()
        asked = [name for name in ENERGY_FLAGS if getattr(settings, name) != getattr(plain, name)]
        if asked:
            flags = ", ".join(f"--{name}" for name in asked)
            raise UserError(f"{flags}: this model has no energy to walk down; leave it out, or choose an EBT's run.")
        return None
    steps = model.evaluation_steps()
    count = settings.infer_ebt_num_steps or len(steps)
    trained, last = steps[-1], model.last_landscape
    final = settings.infer_steps_final_landscape or model.thinking.extra_on_final_landscape
    made = []
    for t in range(count):
        landscape = model.landscape_of(t, count, final)
        size, noise = trained.size, trained.noise
        if settings.infer_ebt_override_alpha and (landscape == last or not settings.infer_alpha_final_landscape):
            size = torch.full_like(size, settings.infer_ebt_override_alpha)
        if settings.infer_langevin_dynamics_noise is not None:
            noise = settings.infer_langevin_dynamics_noise
        if settings.infer_langevin_first_step and t > 0:
            noise = 0.0
        made.append(Step(landscape, size, noise))
    return Plan(
        made,
        candidates=settings.infer_generated_samples,
        choice=settings.infer_energy_sampling_technique,
        accept_lower=settings.infer_accept_lower_energies,
        stop_change=settings.infer_ebt_stop_change,
        seed=seed,
    )


@torch.no_grad()
def think(
    model: EnergyLanguageModel,
    context_of: Callable[[int], Context],
    positions_BP: Tensor,
    plan: Plan,
    candidates_BP: Tensor | int = 0,
    watch: Watch | None = None,
) -> Thought:
    """Walk down the energy at P places of each row, each with what its context shows it.

    positions: the place of the last token that a prediction sees; candidates: which of its walks this is. The two and
    the plan's seed fix all noise. watch: called before each step, and with the number of steps at the end.
    """
    network, rule = model.network, model.thinking.rule
    embedding_VD = network.prediction_embedding

    def embedded(y_BPV: Tensor) -> Tensor:
        return embed(y_BPV, embedding_VD) if rule.normalize else y_BPV @ embedding_VD

    def noise(step: int) -> Tensor:
        keys_BP = noise_key(positions_BP, candidates_BP, step)
        return keyed_normal(keys_BP, len(embedding_VD), plan.seed).to(embedding_VD.dtype)

    if model.thinking.start == "zeros":
        y_BPV = embedding_VD.new_zeros(*positions_BP.shape, len(embedding_VD))
    else:
        y_BPV = model.thinking.noise_scale * noise(0)
    active_BP = torch.ones_like(positions_BP, dtype=torch.bool)
    moved_BP, taken_BP = ~active_BP, torch.zeros_like(positions_BP)
    factor_BP = torch.ones(positions_BP.shape, dtype=y_BPV.dtype, device=y_BPV.device)
    first_BP = before_BP = None
    landscape, passes = -1, 0
    for number, step in enumerate(plan.steps):
        context = context_of(step.landscape)
        noisy_BPV = y_BPV + step.noise * noise(number + 1) if step.noise else y_BPV
        energy_BP, slope_BPD = network.slope(embedded(noisy_BPV), context, differentiable=False)
        passes += 1
        if plan.accept_lower and step.noise:
            energy_BP = network.energy(embedded(y_BPV), context)
            passes += 1
        if plan.stop_change and before_BP is not None and step.landscape == landscape:
            active_BP &= ~(moved_BP & ((before_BP - energy_BP).abs() < plan.stop_change))
            if not active_BP.any():
                break
        first_BP = energy_BP if first_BP is None else first_BP
        before_BP, landscape = energy_BP, step.landscape
        if watch:
            watch(number, y_BPV, energy_BP)
        size_BP1 = (step.size * factor_BP)[..., None]
        next_BPV = move(noisy_BPV, size_BP1 * slope_BPD, embedding_VD, rule.from_probabilities)
        moved_BP = active_BP
        if plan.accept_lower:
            moved_BP = active_BP & (network.energy(embedded(next_BPV), context) < energy_BP)
            passes += 1
            factor_BP = torch.where(moved_BP, factor_BP, factor_BP / 2)
        taken_BP = taken_BP + active_BP
        y_BPV = next_BPV if moved_BP.all() else torch.where(moved_BP[..., None], next_BPV, y_BPV)
    assert first_BP is not None
    last_BP = network.energy(embedded(y_BPV), context_of(plan.steps[-1].landscape))
    if watch:
        watch(len(plan.steps), y_BPV, last_BP)
    return Thought(y_BPV, first_BP, last_BP, taken_BP, passes + 1)


def believed(thought: Thought, choice: str) -> Tensor:
    """What makes a candidate the better one: the larger, the better. [B, P]"""
    return {"min": -thought.energy, "max": thought.energy, "max_gap": thought.first_energy - thought.energy}[choice]


def think_rows(model: EnergyLanguageModel, tokens_BS: Tensor, plan: Plan, watch: Watch | None = None) -> Thought:
    """Think at every position of whole rows [B, S], without a cache; of several candidates the chosen one is kept."""
    with torch.no_grad():
        contexts = Contexts(lambda landscape: model.network.context(tokens_BS, landscape))
        positions_BS = torch.arange(tokens_BS.shape[1], device=tokens_BS.device).expand(tokens_BS.shape)
        best = think(model, contexts, positions_BS, plan, 0, watch)
        for candidate in range(1, plan.candidates):
            other = think(model, contexts, positions_BS, plan, candidate, watch)
            better_BS = believed(other, plan.choice) > believed(best, plan.choice)
            best = Thought(
                torch.where(better_BS[..., None], other.logits, best.logits),
                torch.where(better_BS, other.first_energy, best.first_energy),
                torch.where(better_BS, other.energy, best.energy),
                torch.where(better_BS, other.steps, best.steps),
                best.passes + other.passes,
            )
    return best


def with_steps(plan: Plan, count: int) -> Plan:
    """The same plan with so many steps; those it lacks are like its last."""
    return replace(plan, steps=(plan.steps + [plan.steps[-1]] * count)[:count])
