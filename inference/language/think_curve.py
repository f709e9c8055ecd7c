"""`python -m inference think-curve`: the loss of an EBT against steps, candidates and compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from config.settings import Inference, Transformer
from config.twin import baseline_config
from core.errors import UserError
from core.files import write_atomically
from core.progress import progress
from inference.intervals import bootstrap
from inference.language.flops import WalkCost, forward_flops, walk_cost
from inference.language.think_curve_report import caption, draw, report
from inference.language.think_curve_texts import TextSample, shifted_text, validation_text
from inference.language.walk import token_walk
from inference.loading import Loaded, ModelFlags, load, output_folder
from inference.think_curve import (
    Curve,
    Point,
    find_baseline,
    model_with_energy,
    plan_of_steps,
    print_lines,
    step_points,
    task_problem,
    write_csv,
)
from inference.thinking import WalkPlan, candidate_score, starts_at_random
from models.energy_model import Contexts, EnergyModel
from models.language import EnergyLM, LanguageModel
from tasks.language_commands import ThinkCurveFlags

CSV_HEADER = (
    *("text", "model", "steps", "candidates", "seed", "loss", "low", "high"),
    *("passes", "flops_per_token", "ratio"),
)


@dataclass(frozen=True)
class Baseline:
    """A Transformer++ to compare with. loaded: None where no trained one was found, for missing_reason."""

    loaded: Loaded | None
    flops: float
    missing_reason: str = ""

    @property
    def name(self) -> str:
        assert self.loaded is not None
        return self.loaded.name


@dataclass(frozen=True)
class ThinkCurveResult:
    """The curves of all texts, and their cost. evaluation_steps, training_steps: of this model (fewest, most)."""

    curves: list[Curve]
    cost: WalkCost
    baseline: Baseline
    evaluation_steps: int
    training_steps: tuple[int, int]
    steps: int
    candidates: int
    seeds: list[int]
    choice: str

    @property
    def step_points(self) -> list[Point]:
        return step_points(self.steps)

    def candidate_points(self, steps: int) -> list[Point]:
        return [(steps, candidate) for candidate in range(1, self.candidates + 1)]

    @property
    def selection_steps(self) -> list[int]:
        """The numbers of steps after which one of the candidates is selected."""
        return sorted({self.evaluation_steps, self.steps}) if self.candidates > 1 else []

    def relative_flops(self, point: Point) -> float:
        """FLOPs of a point, as a multiple of those of a Transformer++."""
        return self.cost.flops(*point) / self.baseline.flops


def main(model: ModelFlags, command: ThinkCurveFlags, inference: Inference) -> int:
    loaded = load(model)
    energy_model: EnergyLM = model_with_energy(loaded, command.steps)
    settings = energy_model.walk_settings
    choice = inference.infer_energy_sampling_technique
    if command.candidates == 1 and choice != Inference().infer_energy_sampling_technique:
        raise UserError(
            f"--infer_energy_sampling_technique is {choice!r}: with --candidates 1 there is nothing to choose from; "
            "remove it, or ask for more."
        )
    folder = output_folder(loaded, inference)
    baseline = find_transformer(model, command, loaded)
    texts = [validation_text(loaded, command.tokens), shifted_text(loaded, command.shifted, command.tokens)]
    plan = plan_of_steps(energy_model, inference, command.steps)
    plans = [replace(plan, seed=model.seed + number) for number in range(command.seeds)]
    candidates = command.candidates
    if not starts_at_random(settings) and not any(float(step.noise) for step in plan.steps):
        print("Nothing is drawn at random here (the walk starts without noise): one seed, one candidate.")
        plans, candidates = plans[:1], 1
    result = ThinkCurveResult(
        curves=[],
        cost=walk_cost(energy_model, plan, texts[0].rows.shape[1] - 1),
        baseline=baseline,
        evaluation_steps=settings.steps,
        training_steps=(settings.step_counts[0], settings.step_counts[-1]),
        steps=command.steps,
        candidates=candidates,
        seeds=[plan.seed for plan in plans],
        choice=choice,
    )
    num_batches = sum(-(-len(text.rows) // command.batch_size) for text in texts)
    with progress("Thinking", "steps", num_batches * len(plans) * candidates * result.steps) as advance:
        for text in texts:
            result.curves.append(measure_curve(result, energy_model, plans, text, command.batch_size, advance))
    about = f"{loaded.name}, training step {loaded.step:,}"
    write_csv(folder / "think_curve.csv", CSV_HEADER, result.curves, result.seeds, partial(csv_fields, result))
    write_atomically(folder / "think_curve.png", lambda file: draw(result, about, file))
    print_lines(f"{about}: loss in nats per token", *report(result), "", *caption(result))
    print(f"drawn in {folder / 'think_curve.png'}, numbers in {folder / 'think_curve.csv'}")
    return 0


def find_transformer(model: ModelFlags, command: ThinkCurveFlags, loaded: Loaded) -> Baseline:
    """The Transformer++ to compare with; the FLOPs of an untrained one where there is none."""
    length = loaded.config[Transformer].context_length
    baseline, missing_reason = find_baseline(loaded, model, command.baseline, comparison_problem)
    if baseline is not None:
        return Baseline(baseline, forward_flops(baseline.model.network, length))
    untrained = loaded.task.model(baseline_config(loaded.config), loaded.task.spec(loaded.config, loaded.run))
    return Baseline(None, forward_flops(untrained.network, length), missing_reason)


def comparison_problem(other: Loaded, loaded: Loaded) -> str | None:
    """Why the losses of another run cannot be compared with those of this one, and what to do."""
    if problem := task_problem(other, loaded):
        return problem
    if isinstance(other.model, EnergyModel):
        return "it is an EBT; choose a run of --model_name baseline_transformer"
    if other.processor.fingerprint != loaded.processor.fingerprint:
        names = f"{other.processor.name}, and the EBT's is {loaded.processor.name}"
        return f"its tokenizer is {names}, so losses per token do not compare; choose a run with the same"
    length, needed = other.config[Transformer].context_length, loaded.config[Transformer].context_length
    if length < needed:
        return f"its context is {length} tokens, and the EBT's is {needed}; choose a run with at least as many"
    return None


@torch.no_grad()
def measure_curve(
    result: ThinkCurveResult,
    model: EnergyLM,
    plans: list[WalkPlan],
    text: TextSample,
    batch_size: int,
    advance: Callable[[int], None],
) -> Curve:
    """The losses of all points on one text; plans: one for each seed."""
    points = [
        (0, 1),
        *result.step_points,
        *(point for steps in result.selection_steps for point in result.candidate_points(steps)[1:]),
    ]
    columns = {point: number for number, point in enumerate(points)}
    transformer = result.baseline.loaded.model if result.baseline.loaded else None
    parts = []
    for rows_BS in text.rows.split(batch_size):
        rows_BS = rows_BS.to(model.device)
        tokens_BS, targets_BS = rows_BS[:, :-1], rows_BS[:, 1:]
        contexts = model.contexts(tokens_BS)
        sums = np.zeros((len(plans), len(rows_BS), len(points) + (transformer is not None)))
        for seed, plan in enumerate(plans):
            for point, loss_B in point_losses(result, model, contexts, tokens_BS, targets_BS, plan, advance):
                sums[seed, :, columns[point]] = loss_B.double().cpu().numpy()
        if transformer is not None:
            sums[:, :, -1] = (
                losses_by_row(transformer, targets_BS, transformer(tokens_BS)).sum(1).double().cpu().numpy()
            )
        parts.append(sums)
    sums, targets = np.concatenate(parts, 1), text.targets(model.pad_id)
    baseline = len(points) if transformer is not None else None
    return Curve(text, columns, sums.sum(1) / targets.sum(), bootstrap(sums, targets), baseline)


def point_losses(
    result: ThinkCurveResult,
    model: EnergyLM,
    contexts: Contexts,
    tokens_BS: Tensor,
    targets_BS: Tensor,
    plan: WalkPlan,
    advance: Callable[[int], None],
) -> Iterator[tuple[Point, Tensor]]:
    """Points and their losses, summed over each row [B]; of a walk only losses and energies are held."""
    positions_BS = torch.arange(tokens_BS.shape[1], device=tokens_BS.device).expand(tokens_BS.shape)
    best: dict[int, tuple[Tensor, Tensor]] = {}  # by steps: scores and losses of the selected candidates
    for candidate in range(result.candidates):
        losses: dict[int, Tensor] = {}
        energies: dict[int, Tensor] = {}
        for state in token_walk(model, contexts, positions_BS, plan, candidate):
            step = state.number
            advance(int(step > 0))
            if candidate == 0 or step in result.selection_steps:
                losses[step] = losses_by_row(model, targets_BS, state.y)
            if step == 0:
                energies[step] = state.energy
            elif step in result.selection_steps:  # state.energy may have noise, or be of another landscape
                energies[step] = model.prediction_energy(state.y, contexts(plan.steps[step - 1].landscape))
        if candidate == 0:
            yield from (((step, 1), loss_BS.sum(1)) for step, loss_BS in losses.items())
        for steps in result.selection_steps:
            score_BS, loss_BS = candidate_score(energies[0], energies[steps], plan.choice), losses[steps]
            if candidate:
                better_BS = score_BS > best[steps][0]
                score_BS = torch.where(better_BS, score_BS, best[steps][0])
                loss_BS = torch.where(better_BS, loss_BS, best[steps][1])
                yield (steps, candidate + 1), loss_BS.sum(1)
            best[steps] = score_BS, loss_BS


def losses_by_row(model: LanguageModel, targets_BS: Tensor, logits_BSV: Tensor) -> Tensor:
    """The loss of each target, 0 where there is none, [B, S]; a row at a time, to need no second [B, S, V]."""
    pairs = zip(logits_BSV, targets_BS, strict=True)
    return torch.stack([F.cross_entropy(y.float(), t, ignore_index=model.pad_id, reduction="none") for y, t in pairs])


def csv_fields(result: ThinkCurveResult, curve: Curve) -> dict[int, dict[str, Any]]:
    """By column: which model it is, its steps and candidates, and what they cost."""
    fields: dict[int, dict[str, Any]] = {}
    for point, column in curve.columns.items():
        steps, candidates = point
        fields[column] = {
            "model": "ebt",
            "steps": steps,
            "candidates": candidates,
            "passes": result.cost.passes(steps, candidates),
            "flops_per_token": round(result.cost.flops(steps, candidates)),
            "ratio": f"{result.relative_flops(point):.4g}",
        }
    if curve.baseline is not None:
        flops = round(result.baseline.flops)
        fields[curve.baseline] = {"model": "Transformer++", "flops_per_token": flops, "ratio": 1}
    return fields
