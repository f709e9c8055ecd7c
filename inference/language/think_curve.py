"""`python -m inference think-curve`: the loss of an EBT against steps, candidates and compute."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from config.settings import Inference, Transformer
from config.twin import baseline_config
from core.errors import UserError
from core.files import write_atomically, write_text
from core.progress import progress
from inference.intervals import bootstrap
from inference.language.flops import WalkCost, forward_flops, walk_cost
from inference.language.text_loss import TextSample, shifted_text, validation_text
from inference.language.think_curve_report import caption, draw, report
from inference.language.walk import token_walk
from inference.loading import Loaded, ModelFlags, find_run, load, output_folder
from inference.think_curve import Curve, Point, model_with_energy, plan_of_steps, print_lines
from inference.thinking import WalkPlan, candidate_score, starts_at_random
from models.energy_model import Contexts, EnergyModel
from models.language import EnergyLM, LanguageModel
from tasks.language_commands import ThinkCurveFlags


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
        return [(step, 1) for step in range(1, self.steps + 1)]

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
    thinking = energy_model.walk_settings
    choice = inference.infer_energy_sampling_technique
    if command.candidates == 1 and choice != Inference().infer_energy_sampling_technique:
        raise UserError(
            f"--infer_energy_sampling_technique is {choice!r}: with --candidates 1 there is nothing to choose from; "
            "remove it, or ask for more."
        )
    folder = output_folder(loaded, inference)
    baseline = find_baseline(model, command, loaded)
    texts = [validation_text(loaded, command.tokens), shifted_text(loaded, command.shifted, command.tokens)]
    plan = plan_of_steps(energy_model, inference, command.steps)
    plans = [replace(plan, seed=model.seed + number) for number in range(command.seeds)]
    candidates = command.candidates
    if not starts_at_random(thinking) and not any(float(step.noise) for step in plan.steps):
        print("Nothing is drawn at random here (the walk starts without noise): one seed, one candidate.")
        plans, candidates = plans[:1], 1
    result = ThinkCurveResult(
        curves=[],
        cost=walk_cost(energy_model, plan, texts[0].rows.shape[1] - 1),
        baseline=baseline,
        evaluation_steps=thinking.steps,
        training_steps=(thinking.step_counts[0], thinking.step_counts[-1]),
        steps=command.steps,
        candidates=candidates,
        seeds=[plan.seed for plan in plans],
        choice=choice,
    )
    rounds = sum(-(-len(text.rows) // command.batch_size) for text in texts)
    with progress("Thinking", "steps", rounds * len(plans) * candidates * result.steps) as advance:
        for text in texts:
            result.curves.append(measure_curve(result, energy_model, plans, text, command.batch_size, advance))
    about = f"{loaded.name}, training step {loaded.step:,}"
    write_csv(folder / "think_curve.csv", result)
    write_atomically(folder / "think_curve.png", lambda file: draw(result, about, file))
    print_lines(f"{about}: loss in nats per token", *report(result), "", *caption(result))
    print(f"drawn in {folder / 'think_curve.png'}, numbers in {folder / 'think_curve.csv'}")
    return 0


def find_baseline(model: ModelFlags, command: ThinkCurveFlags, loaded: Loaded) -> Baseline:
    """--baseline, or the Transformer++ that --compare_baseline trained beside the run, if it can be compared."""
    twin = baseline_config(loaded.config)
    length = loaded.config[Transformer].context_length
    if command.baseline is not None:
        path = find_run(command.baseline, model.logs_dir, "--baseline")
        other = load(replace(model, run=str(path), ckpt=None))
        if problem := comparison_problem(other, loaded):
            raise UserError(f"--baseline is {command.baseline!r}: {problem}.")
        return Baseline(other, forward_flops(other.model.network, length))
    logs = str(loaded.folder.path.parent.parent) if loaded.folder else model.logs_dir
    try:
        path = find_run(twin.run.run_name, logs, "--baseline")
        other = load(replace(model, run=str(path), ckpt=None))
        problem = comparison_problem(other, loaded)
        if problem is None:
            return Baseline(other, forward_flops(other.model.network, length))
        reason = f"the run {path.name} does not serve: {problem}"
    except UserError:
        reason = (
            f"there is no trained run {twin.run.run_name} (--compare_baseline trains it), and --baseline names no other"
        )
    untrained = loaded.task.model(twin, loaded.task.spec(loaded.config, loaded.run))
    return Baseline(None, forward_flops(untrained.network, length), reason)


def comparison_problem(other: Loaded, loaded: Loaded) -> str | None:
    """Why the losses of another run's model cannot be compared with this one's, and what to do."""
    if other.task.name != loaded.task.name:
        return f"its task is {other.task.name}, and not {loaded.task.name}; choose another run"
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


def write_csv(path: Path, result: ThinkCurveResult) -> None:
    """A row for each point and seed, and one with the mean of all seeds and its interval."""
    file = io.StringIO()
    names = (
        "text",
        "model",
        "steps",
        "candidates",
        "seed",
        "loss",
        "low",
        "high",
        "passes",
        "flops_per_token",
        "ratio",
    )
    writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
    writer.writeheader()
    for curve in result.curves:
        lines: list[tuple[dict[str, Any], int]] = []
        for point, column in curve.columns.items():
            about = {"model": "ebt", "steps": point[0], "candidates": point[1], "passes": result.cost.passes(*point)}
            flops, ratio = result.cost.flops(*point), result.relative_flops(point)
            about |= {"flops_per_token": round(flops), "ratio": f"{ratio:.4g}"}
            lines.append((about, column))
        if curve.baseline is not None:
            about = {"model": "Transformer++", "flops_per_token": round(result.baseline.flops), "ratio": 1}
            lines.append((about, curve.baseline))
        for about, column in lines:
            seeds = result.seeds if column != curve.baseline else []  # a Transformer++ draws nothing
            for seed, loss in zip(seeds, curve.by_seed[:, column], strict=False):
                writer.writerow({"text": curve.text.kind, **about, "seed": seed, "loss": f"{loss:.6f}"})
            mean, low, high = (f"{value:.6f}" for value in curve.loss(column))
            writer.writerow({"text": curve.text.kind, **about, "seed": "mean", "loss": mean, "low": low, "high": high})
    write_text(path, file.getvalue())
