"""`python -m inference think-curve`: the loss of an EBT against steps, candidates and compute."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from config.settings import Inference
from core.errors import UserError
from core.files import write_atomically, write_text
from core.progress import progress
from inference.commands import Model, ThinkCurve
from inference.flops import flops_of_reading, thinking_cost
from inference.intervals import resampled
from inference.loading import Loaded, find_run, load, output_folder
from inference.study import Baseline, Curve, Point, Study
from inference.texts import Text, shifted_text, validation_text
from inference.think_curve_report import caption, draw, report
from inference.thinking import Plan, believed, make_plan, think
from models import LanguageModel, build_model
from models.energy_language_model import Contexts, EnergyLanguageModel
from training.comparison import twin_of
from training.showing import readable


def main(model: Model, command: ThinkCurve, inference: Inference) -> int:
    loaded = load(model)
    energy_model = loaded.model
    if not isinstance(energy_model, EnergyLanguageModel):
        name = loaded.folder.run_id if loaded.folder else str(loaded.checkpoint)
        raise UserError(
            f"--run is {name!r}: this model has no energy, so it cannot think for longer; choose an EBT's run."
        )
    thinking = energy_model.thinking
    if command.steps < thinking.steps:
        raise UserError(
            f"--steps is {command.steps}: this model's evaluation takes {thinking.steps}; "
            f"choose {thinking.steps} or more."
        )
    choice = inference.infer_energy_sampling_technique
    if command.candidates == 1 and choice != Inference().infer_energy_sampling_technique:
        raise UserError(
            f"--infer_energy_sampling_technique is {choice!r}: with --candidates 1 there is nothing to choose from; "
            "remove it, or ask for more."
        )
    folder = output_folder(loaded, inference)
    baseline = find_baseline(model, command, loaded)
    texts = [validation_text(loaded, command.tokens), shifted_text(loaded, command.shifted, command.tokens)]
    # Each number of steps is the beginning of the longest walk: for that, the steps beyond are on the last landscape.
    before = thinking.landscapes - 1 if energy_model.network.tells_landscapes else 0
    settings = replace(inference, infer_ebt_num_steps=command.steps - before, infer_steps_final_landscape=True)
    plan = make_plan(energy_model, settings)
    assert plan is not None
    plans = [replace(plan, seed=model.seed + number) for number in range(command.seeds)]
    candidates = command.candidates
    starts_at_random = thinking.start != "zeros" and thinking.noise_scale > 0
    if not starts_at_random and not any(float(step.noise) for step in plan.steps):
        print("Nothing is drawn at random here (the walk starts without noise): one seed, one candidate.")
        plans, candidates = plans[:1], 1
    study = Study(
        curves=[],
        cost=thinking_cost(energy_model, plan, texts[0].rows.shape[1] - 1),
        baseline=baseline,
        trained=thinking.steps,
        drawn=(thinking.step_counts[0], thinking.step_counts[-1]),
        steps=command.steps,
        candidates=candidates,
        seeds=[plan.seed for plan in plans],
        choice=choice,
    )
    rounds = sum(-(-len(text.rows) // command.batch_size) for text in texts)
    with progress("Thinking", "steps", rounds * len(plans) * candidates * study.steps) as advance:
        for text in texts:
            study.curves.append(measure(study, energy_model, plans, text, command.batch_size, advance))
    about = f"{loaded.folder.run_id if loaded.folder else loaded.checkpoint.name}, training step {loaded.step:,}"
    write_csv(folder / "think_curve.csv", study)
    write_atomically(folder / "think_curve.png", lambda file: draw(study, about, file))
    for line in (f"{about}: loss in nats per token", *report(study), "", *caption(study)):
        print(*readable(line if can_say("±") else line.replace("±", "+-"), sys.stdout.encoding))
    print(f"drawn in {folder / 'think_curve.png'}, numbers in {folder / 'think_curve.csv'}")
    return 0


def can_say(sign: str) -> bool:
    try:
        return bool(sign.encode(sys.stdout.encoding or "ascii"))
    except UnicodeEncodeError:
        return False


def find_baseline(model: Model, command: ThinkCurve, loaded: Loaded) -> Baseline:
    """--baseline, or the Transformer++ that --compare_baseline trained beside the run, if it can be compared."""
    twin = twin_of(loaded.config)
    length = loaded.config.architecture.context_length
    if command.baseline is not None:
        path = find_run(command.baseline, model.logs_dir, "--baseline")
        other = load(replace(model, run=str(path), ckpt=None))
        if problem := cannot_compare(other, loaded):
            raise UserError(f"--baseline is {command.baseline!r}: {problem}.")
        return Baseline(other, flops_of_reading(other.model.network, length))
    logs = str(loaded.folder.path.parent.parent) if loaded.folder else model.logs_dir
    try:
        path = find_run(twin.run.run_name, logs, "--baseline")
        other = load(replace(model, run=str(path), ckpt=None))
        problem = cannot_compare(other, loaded)
        if problem is None:
            return Baseline(other, flops_of_reading(other.model.network, length))
        why = f"the run {path.name} does not serve: {problem}"
    except UserError:
        why = (
            f"there is no trained run {twin.run.run_name} (--compare_baseline trains it), and --baseline names no other"
        )
    words = loaded.tokenizer
    plain = build_model(twin, words.vocab_size, words.separator_id, words.pad_id)
    return Baseline(None, flops_of_reading(plain.network, length), why)


def cannot_compare(other: Loaded, loaded: Loaded) -> str | None:
    """Why the losses of another run's model cannot stand beside this one's, and what to do."""
    has, wanted = other.config.architecture.context_length, loaded.config.architecture.context_length
    if isinstance(other.model, EnergyLanguageModel):
        return "it is an EBT; choose a run of --model_name baseline_transformer"
    if other.tokenizer.fingerprint != loaded.tokenizer.fingerprint:
        names = f"{other.tokenizer.name}, and the EBT's is {loaded.tokenizer.name}"
        return f"its tokenizer is {names}, so losses per token do not compare; choose a run with the same"
    if has < wanted:
        return f"its context is {has} tokens, and the EBT's is {wanted}; choose a run with at least as many"
    return None


@torch.no_grad()
def measure(
    study: Study,
    model: EnergyLanguageModel,
    plans: list[Plan],
    text: Text,
    batch_size: int,
    advance: Callable[[int], None],
) -> Curve:
    """The losses of all points on one text; plans: one for each seed."""
    points = [(0, 1), *study.walk, *(point for steps in study.chosen_after for point in study.choices(steps)[1:])]
    columns = {point: number for number, point in enumerate(points)}
    plain = study.baseline.loaded.model if study.baseline.loaded else None
    parts = []
    for rows_BS in text.rows.split(batch_size):
        rows_BS = rows_BS.to(model.device)
        tokens_BS, targets_BS = rows_BS[:, :-1], rows_BS[:, 1:]
        contexts = model.contexts(tokens_BS)
        found = np.zeros((len(plans), len(rows_BS), len(points) + (plain is not None)))
        for seed, plan in enumerate(plans):
            for point, loss_B in thought_losses(study, model, contexts, tokens_BS, targets_BS, plan, advance):
                found[seed, :, columns[point]] = loss_B.double().cpu().numpy()
        if plain is not None:
            found[:, :, -1] = row_losses(plain, targets_BS, plain(tokens_BS)).sum(1).double().cpu().numpy()
        parts.append(found)
    sums, targets = np.concatenate(parts, 1), text.targets(model.pad_id)
    baseline = len(points) if plain is not None else None
    return Curve(text, columns, sums.sum(1) / targets.sum(), resampled(sums, targets), baseline)


def thought_losses(
    study: Study,
    model: EnergyLanguageModel,
    contexts: Contexts,
    tokens_BS: Tensor,
    targets_BS: Tensor,
    plan: Plan,
    advance: Callable[[int], None],
) -> Iterator[tuple[Point, Tensor]]:
    """Points and their losses, summed over each row [B]; of a walk only losses and energies are kept."""
    positions_BS = torch.arange(tokens_BS.shape[1], device=tokens_BS.device).expand(tokens_BS.shape)
    best: dict[int, tuple[Tensor, Tensor]] = {}  # by steps: how much the chosen candidates are believed, their losses
    for candidate in range(study.candidates):
        losses: dict[int, Tensor] = {}
        energies: dict[int, Tensor] = {}

        def watch(
            step: int,
            y_BSV: Tensor,
            energy_BS: Tensor,
            candidate: int = candidate,
            losses: dict[int, Tensor] = losses,
            energies: dict[int, Tensor] = energies,
        ) -> None:
            advance(int(step > 0))
            if candidate == 0 or step in study.chosen_after:
                losses[step] = row_losses(model, targets_BS, y_BSV)
            if step == 0:
                energies[step] = energy_BS
            elif step in study.chosen_after:  # not what the next step sees, which may be noisy or another landscape's
                energies[step] = model.energy(y_BSV, contexts(plan.steps[step - 1].landscape))

        think(model, contexts, positions_BS, plan, candidate, watch)
        if candidate == 0:
            yield from (((step, 1), loss_BS.sum(1)) for step, loss_BS in losses.items())
        for steps in study.chosen_after:
            score_BS, loss_BS = believed(energies[0], energies[steps], plan.choice), losses[steps]
            if candidate:
                better_BS = score_BS > best[steps][0]
                score_BS = torch.where(better_BS, score_BS, best[steps][0])
                loss_BS = torch.where(better_BS, loss_BS, best[steps][1])
                yield (steps, candidate + 1), loss_BS.sum(1)
            best[steps] = score_BS, loss_BS


def row_losses(model: LanguageModel, targets_BS: Tensor, logits_BSV: Tensor) -> Tensor:
    """The loss of each target, 0 where there is none, [B, S]; a row at a time, to hold no second [B, S, V]."""
    pairs = zip(logits_BSV, targets_BS, strict=True)
    return torch.stack([F.cross_entropy(y.float(), t, ignore_index=model.pad_id, reduction="none") for y, t in pairs])


def write_csv(path: Path, study: Study) -> None:
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
    for curve in study.curves:
        places: list[tuple[dict[str, Any], int]] = []
        for point, column in curve.columns.items():
            about = {"model": "ebt", "steps": point[0], "candidates": point[1], "passes": study.cost.passes(*point)}
            about |= {"flops_per_token": round(study.cost.flops(*point)), "ratio": f"{study.ratio(point):.4g}"}
            places.append((about, column))
        if curve.baseline is not None:
            flops = round(study.baseline.flops)
            places.append(({"model": "Transformer++", "flops_per_token": flops, "ratio": 1}, curve.baseline))
        for about, column in places:
            seeds = study.seeds if column != curve.baseline else []  # a Transformer++ draws nothing
            for seed, loss in zip(seeds, curve.by_seed[:, column], strict=False):
                writer.writerow({"text": curve.text.kind, **about, "seed": seed, "loss": f"{loss:.6f}"})
            mean, low, high = (f"{value:.6f}" for value in curve.loss(column))
            writer.writerow({"text": curve.text.kind, **about, "seed": "mean", "loss": mean, "low": low, "high": high})
    write_text(path, file.getvalue())
