"""How a trained energy model thinks: the walk down its energy, with the choices that inference leaves open.

Nothing here is differentiated twice, and no graph outlives a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from config.settings import Inference
from core.errors import UserError
from models.descent import Step, neg_entropy
from models.energy_language_model import EnergyLanguageModel, Thinking
from models.energy_transformer import Context
from models.language_model import LanguageModel
from models.layers.linear import is_few
from models.layers.vocabulary import move
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


@dataclass
class Thought:
    """Where the walks ended: logits [B, N, V], the energy before the first step and the steps taken, [B, N].

    passes: how often the prediction stream ran.
    """

    logits: Tensor
    first_energy: Tensor
    steps: Tensor
    passes: int
    find_energy: Callable[[], Tensor]

    @cached_property
    def energy(self) -> Tensor:
        """The energy at the end, [B, N]: one more pass, for who wants it, while the context is as it was."""
        return self.find_energy()


Watch = Callable[[int, Tensor, Tensor], None]  # step, logits before it [B, N, V], their energy [B, N]


def make_plan(model: LanguageModel, settings: Inference, seed: int = 0) -> Plan | None:
    """The plan that the settings ask for; None for a model without energy, which can only be asked once."""
    if not isinstance(model, EnergyLanguageModel):
        plain = Inference()
        asked = [name for name in ENERGY_FLAGS if getattr(settings, name) != getattr(plain, name)]
        if asked:
            flags = ", ".join(f"--{name}" for name in asked)
            raise UserError(f"{flags}: this model has no energy to walk down; leave it out, or choose an EBT's run.")
        return None
    thinking = model.thinking
    trained, made = model.evaluation_steps()[-1], []
    for t, landscape in enumerate(landscapes(thinking, settings, model.network.tells_landscapes)):
        size, noise, alpha = trained.size, trained.noise, settings.infer_ebt_override_alpha
        is_last = landscape == thinking.landscapes - 1 or not model.network.tells_landscapes
        if alpha and (is_last or not settings.infer_alpha_final_landscape):
            size = alpha * size if alpha < 1 else torch.full_like(size, alpha)
        if settings.infer_langevin_dynamics_noise is not None:
            noise = settings.infer_langevin_dynamics_noise
        if settings.infer_langevin_first_step and t > 0:
            noise = 0.0
        made.append(Step(model.landscape_of(landscape), size, noise))
    starts_at_random = thinking.start != "zeros" and thinking.noise_scale > 0
    if settings.infer_generated_samples > 1 and not starts_at_random and not any(float(step.noise) for step in made):
        raise UserError(
            f"--infer_generated_samples is {settings.infer_generated_samples}: without noise all candidates of this "
            "model are the same; add --infer_langevin_dynamics_noise, or ask for 1."
        )
    return Plan(
        made,
        candidates=settings.infer_generated_samples,
        choice=settings.infer_energy_sampling_technique,
        accept_lower=settings.infer_accept_lower_energies,
        stop_change=settings.infer_ebt_stop_change,
        seed=seed,
    )


def landscapes(thinking: Thinking, settings: Inference, conditioned: bool) -> list[int]:
    """The landscape of each step; --infer_ebt_num_steps counts per landscape of a conditioned energy, else in all."""
    count, last = settings.infer_ebt_num_steps, thinking.landscapes - 1
    if count is None:
        return thinking.evaluation_landscapes
    if not conditioned:
        return [last] * count
    once = settings.infer_steps_final_landscape
    return [k for k in range(last + 1) for _ in range(1 if once and k < last else count)]


@torch.no_grad()
def think(
    model: EnergyLanguageModel,
    context_of: Callable[[int], Context],
    positions_BN: Tensor,
    plan: Plan,
    candidates_BN: Tensor | int = 0,
    watch: Watch | None = None,
) -> Thought:
    """Walk down the energy at N places of each row, each with what its context shows it.

    positions: the place of the last token that a prediction sees; candidates: which of its walks this is. The two and
    the plan's seed fix all noise. watch: called before each step, and with the number of steps at the end.
    """
    network, thinking, rule = model.network, model.thinking, model.thinking.rule
    embedding_VD = network.prediction_embedding

    def moved(y_BNV: Tensor, size_BN1: Tensor, d_BND: Tensor) -> Tensor:
        before_BNV = y_BNV.softmax(-1) if rule.from_probabilities and rule.normalize else y_BNV
        before_BNV = y_BNV - size_BN1 * y_BNV if rule.entropy else before_BNV
        d_BND = size_BN1 * d_BND
        return before_BNV - network.spread(d_BND) if is_few(d_BND) else move(before_BNV, d_BND, embedding_VD)[0]

    def noise(step: int) -> Tensor:
        keys_BN = noise_key(positions_BN, candidates_BN, step)
        return keyed_normal(keys_BN, len(embedding_VD), plan.seed).to(embedding_VD.dtype)

    y_BNV = embedding_VD.new_zeros(*positions_BN.shape, len(embedding_VD))
    if thinking.start == "prior":
        prior_BND = context_of(plan.steps[0].landscape).prior
        assert prior_BND is not None
        y_BNV = network.spread(prior_BND).expand_as(y_BNV)
    if thinking.start != "zeros" and thinking.noise_scale:
        y_BNV = y_BNV + thinking.noise_scale * noise(0)
    active_BN = torch.ones_like(positions_BN, dtype=torch.bool)
    moved_BN, taken_BN = ~active_BN, torch.zeros_like(positions_BN)
    factor_BN = torch.ones(positions_BN.shape, dtype=y_BNV.dtype, device=y_BNV.device)
    first_BN = before_BN = None
    landscape, passes = -1, 0
    for number, step in enumerate(plan.steps):
        context = context_of(step.landscape)
        noisy_BNV = y_BNV + step.noise * noise(number + 1) if step.noise else y_BNV
        energy_BN, slope_BND = network.energy_and_gradient(model.embed(noisy_BNV), context, create_graph=False)
        energy_BN = energy_BN + neg_entropy(noisy_BNV) if rule.entropy else energy_BN
        passes += 1
        if plan.accept_lower and step.noise:
            energy_BN = model.energy(y_BNV, context)
            passes += 1
        if plan.stop_change and before_BN is not None and step.landscape == landscape:
            active_BN &= ~(moved_BN & ((before_BN - energy_BN).abs() < plan.stop_change))
            if not active_BN.any():
                break
        first_BN = energy_BN if first_BN is None else first_BN
        before_BN, landscape = energy_BN, step.landscape
        if watch:
            watch(number, y_BNV, energy_BN)
        size_BN1 = (step.size * factor_BN)[..., None]
        next_BNV = moved(noisy_BNV, size_BN1, slope_BND)
        moved_BN = active_BN
        if plan.accept_lower:
            moved_BN = active_BN & (model.energy(next_BNV, context) < energy_BN)
            passes += 1
            factor_BN = torch.where(moved_BN, factor_BN, factor_BN / 2)
        taken_BN = taken_BN + active_BN
        y_BNV = next_BNV if moved_BN.all() else torch.where(moved_BN[..., None], next_BNV, y_BNV)
    assert first_BN is not None

    def end() -> Tensor:
        with torch.no_grad():
            return model.energy(y_BNV, context_of(plan.steps[-1].landscape))

    thought = Thought(y_BNV, first_BN, taken_BN, passes, end)
    if watch:
        watch(len(plan.steps), y_BNV, thought.energy)
    return thought


def believed(first: Tensor, last: Tensor, choice: str) -> Tensor:
    """What makes a candidate the better one, by its first and last energy: the larger, the better."""
    return {"min": -last, "max": last, "max_gap": first - last}[choice]


def think_rows(model: EnergyLanguageModel, tokens_BS: Tensor, plan: Plan, watch: Watch | None = None) -> Thought:
    """Think at every position of whole rows [B, S], without a cache; of several candidates the chosen one is kept."""
    with torch.no_grad():
        contexts = model.contexts(tokens_BS)
        positions_BS = torch.arange(tokens_BS.shape[1], device=tokens_BS.device).expand(tokens_BS.shape)
        best = think(model, contexts, positions_BS, plan, 0, watch)
        for candidate in range(1, plan.candidates):
            other = think(model, contexts, positions_BS, plan, candidate, watch)
            scores = [believed(found.first_energy, found.energy, plan.choice) for found in (other, best)]
            better_BS = scores[0] > scores[1]
            energy_BS = torch.where(better_BS, other.energy, best.energy)
            best = Thought(
                torch.where(better_BS[..., None], other.logits, best.logits),
                torch.where(better_BS, other.first_energy, best.first_energy),
                torch.where(better_BS, other.steps, best.steps),
                best.passes + other.passes,
                partial(torch.Tensor.detach, energy_BS),
            )
    return best


def with_steps(plan: Plan, count: int) -> Plan:
    """The same plan with so many steps; those it lacks are like its last."""
    return replace(plan, steps=(plan.steps + [plan.steps[-1]] * count)[:count])
