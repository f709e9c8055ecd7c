"""`python -m inference evaluate` for any task: the measures of a model on a split, beside the task's references."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from config.record import values_of
from config.settings import Inference
from config.task import SPLITS, Measure, derived
from core.errors import UserError
from core.files import append_row
from core.progress import progress
from data.module import DataModule, Rows
from inference.commands import EvaluateFlags
from inference.loading import Loaded, ModelFlags, load, output_folder
from inference.thinking import ENERGY_FLAGS, WalkPlan, WalkState, plan_from_flags, walk_batch
from models.energy_model import EnergyModel
from models.model import Batch

RECORD = "evaluation.jsonl"


def main(
    model: ModelFlags, command: EvaluateFlags, inference: Inference, preferred: str = "valid", share: float = 1.0
) -> int:
    """preferred: the split, where none is named. share: of its rows to evaluate."""
    loaded = load(model)
    plan = plan_from_flags(loaded.model, inference, model.seed)
    if all(getattr(inference, name) == getattr(Inference(), name) for name in ENERGY_FLAGS):
        plan = None  # the model's own evaluation
    data, split = loaded.task.data(loaded.config, loaded.run), command.split or preferred
    rows = rows_of(data, split)
    count = max(1, int(share * len(rows)))
    count = min(count, command.limit or count)
    folder = output_folder(loaded, inference)
    print(f"{loaded.config.run.model_name} at step {loaded.step:,} ({loaded.checkpoint})")
    start = time.perf_counter()
    measures = loaded.task.measures(values_of(loaded.config))
    result = derived(measures, measure_rows(loaded, plan, rows, count, command.batch_size), data.facts.get(split, {}))
    references = loaded.task.references(data, split, int(result["targets"]))
    result |= {"rows": count, "seconds": time.perf_counter() - start}
    settings = changed_settings(command, inference, model.seed, share)
    about = {"task": loaded.task.name, "split": split}
    recorded = record_evaluation(loaded, folder, about, settings, result)
    units = f"{int(result['targets']):,} {loaded.task.unit}"
    print(f"\n{SPLITS[split]} split, {units if count == len(rows) else f'the first {units}'}")
    Console().print(results_table(measures, result, references))
    if "energy_first" in result:
        print(f"energy from {result['energy_first']:.4f} to {result['energy_last']:.4f}, mean of all predictions")
        print(f"steps taken {result['mean_steps']:.2f} on average")
    print(f"recorded    {recorded}")
    return 0


def rows_of(data: DataModule, split: str) -> Rows:
    rows: Rows = data.rows[split]
    if not len(rows):
        raise UserError(f"The {SPLITS[split]} split is empty: choose another with --split.")
    return rows


def batches_of(rows: Rows, indices: list[int], size: int, device: torch.device) -> Iterator[Batch]:
    for first in range(0, len(indices), size):
        batch = rows.__getitems__(indices[first : first + size])
        yield {name: tensor.to(device) for name, tensor in batch.items()}


@torch.no_grad()
def measure_rows(loaded: Loaded, plan: WalkPlan | None, rows: Rows, count: int, batch_size: int) -> dict[str, Any]:
    """The measures of the first `count` rows. plan: a walk that is not that of the model's own evaluation."""
    model = loaded.model
    walks = WalkMeasures(model, plan) if plan else None
    with loaded.autocast(), progress("Evaluating", "rows", count) as advance:
        for number, batch in enumerate(batches_of(rows, list(range(count)), batch_size, model.device)):
            if walks is None:
                model.evaluate(batch)
            else:
                walks.update(batch, number)
            advance(len(next(iter(batch.values()))))
    result: dict[str, Any] = model.compute_results() if walks is None else walks.result()
    return result


class WalkMeasures:
    """What an evaluation of an energy model measures, of walks by another plan; and the energies and steps of these."""

    def __init__(self, model: EnergyModel, plan: WalkPlan) -> None:
        self.model, self.plan = model, plan
        self.losses = torch.zeros(len(plan.steps) + 1, dtype=torch.float64)
        self.targets = 0
        self.first = self.last = self.steps = 0.0

    def update(self, batch: Batch, number: int) -> None:
        """Walk on a batch. number: of the batch, which decides its noise."""
        target = self.model.target(batch)
        counted = self.model.counted(target)
        count, reached = int(counted.sum()), 0
        if not count:
            return

        def observe(state: WalkState) -> None:
            """A walk that stops early keeps its last loss."""
            nonlocal reached
            since = reached + 1 if state.number else 0  # 0: another candidate begins
            self.losses[since : state.number + 1] += count * self.model.loss(state.y, target).double().cpu()
            reached = state.number

        end = walk_batch(self.model, batch, self.plan, number, observe)
        self.model.evaluation.update(end.y, target)
        self.targets += count
        self.first += float(end.first_energy[counted].double().sum())
        self.last += float(end.energy[counted].double().sum())
        self.steps += float(end.steps[counted].sum())

    def result(self) -> dict[str, float]:
        """With several candidates the losses by step are the mean of all of them."""
        result = self.model.evaluation.result()
        means: Tensor = self.losses / max(1, self.plan.candidates * self.targets)
        first = 0 if self.model.starts_with_a_prediction else 1
        losses = {f"loss_step_{step}": loss for step, loss in enumerate(means.tolist()) if step >= first}
        last = means[-1].item() if self.plan.candidates == 1 else result["loss"]
        count = max(1, self.targets)
        return {
            **result,
            **losses,
            "thinking_gain": means[first].item() - last,
            "energy_first": self.first / count,
            "energy_last": self.last / count,
            "mean_steps": self.steps / count,
        }


def new_table(*columns: str) -> Table:
    """A table of names and values, and more columns with headings."""
    table = Table(box=box.SIMPLE_HEAD, show_header=bool(columns))
    table.add_column("")
    table.add_column("", justify="right")
    for heading in columns:
        table.add_column(heading, justify="right")
    return table


def results_table(
    measures: tuple[Measure, ...], result: Mapping[str, float], references: Mapping[str, Mapping[str, float]]
) -> Table:
    """Every measure with its value and that of the references."""
    table = new_table(*references)
    for measure in measures:
        names = [name for name in result if measure.split and measure.matches(name)]
        for name in names:
            named = measure.named(name)
            others = [named.format(values[name]) if name in values else "" for values in references.values()]
            table.add_row(named.heading, named.format(result[name]), *others)
    return table


def record_evaluation(
    loaded: Loaded, folder: Path, about: Mapping[str, Any], settings: Mapping[str, Any], result: Mapping[str, Any]
) -> Path:
    """Append an evaluation to evaluation.jsonl. about: its data. -> its path"""
    row = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "run_id": loaded.folder.run_id if loaded.folder else None,
        "checkpoint": str(loaded.checkpoint.resolve()),
        "step": loaded.step,
        **about,
        "settings": dict(settings),
        "results": finite(result),
    }
    save_rows(folder / RECORD, [row])
    return folder / RECORD


def changed_settings(command: Any, inference: Inference, seed: int, share: float) -> dict[str, Any]:
    """Flags that differ from their defaults, except those that the record has in other fields."""
    elsewhere = {"split", "dataset_name", "dataset_dir", "infer_output_dir"}
    changed: dict[str, Any] = {"seed": seed} if seed else {}
    if share < 1:
        changed["limit_test_batches"] = share
    for settings in (command, inference):
        for field in fields(settings):
            value = getattr(settings, field.name)
            if value != field.default and field.name not in elsewhere:
                changed[field.name] = value
    return changed


def finite(result: Mapping[str, Any]) -> dict[str, Any]:
    """The results with None for numbers that are not finite, which JSON cannot represent."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in result.items()
    }


def save_rows(file: Path, rows: list[dict[str, Any]]) -> None:
    try:
        for row in rows:
            append_row(file, row)
    except OSError as error:
        raise UserError(
            f"{file}: cannot write there ({error.strerror}): choose another folder with --infer_output_dir."
        ) from error
