"""`python -m inference evaluate` for any task: the measures of a model on a split, beside the task's references."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
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
    model: ModelFlags, command: EvaluateFlags, inference: Inference, default_split: str = "valid", share: float = 1.0
) -> int:
    """default_split: without --split. share: of the split's rows to evaluate."""
    loaded = load(model)
    plan = plan_from_flags(loaded.model, inference, model.seed)
    if all(getattr(inference, name) == getattr(Inference(), name) for name in ENERGY_FLAGS):
        plan = None  # the model's own evaluation
    data, split = loaded.task.data(loaded.config, loaded.run), command.split or default_split
    rows = rows_of(data, split)
    count = number_to_evaluate(len(rows), command.limit, share)
    folder = output_folder(loaded, inference)
    print(f"{loaded.config.run.model_name} at step {loaded.step:,} ({loaded.checkpoint})")
    start = time.perf_counter()
    measures = loaded.task.measures(values_of(loaded.config))
    result = derived(measures, measure_rows(loaded, plan, rows, count, command.batch_size), data.facts.get(split, {}))
    references = loaded.task.references(data, split, int(result["targets"]))
    result |= {"rows": count, "seconds": time.perf_counter() - start}
    settings = changed_settings(command, inference, model.seed, share)
    dataset = {"task": loaded.task.name, "split": split}
    record_path = record_evaluation(loaded, folder, dataset, settings, result)
    units = f"{int(result['targets']):,} {loaded.task.unit}"
    print(f"\n{SPLITS[split]} split, {units if count == len(rows) else f'the first {units}'}")
    Console().print(results_table(measures, result, references))
    if "energy_first" in result:
        print(f"energy from {result['energy_first']:.4f} to {result['energy_last']:.4f}, mean of all predictions")
        print(f"steps taken {result['mean_steps']:.2f} on average")
    print(f"recorded    {record_path}")
    return 0


def rows_of(data: DataModule, split: str) -> Rows:
    rows: Rows = data.rows[split]
    if not len(rows):
        raise UserError(f"The {SPLITS[split]} split is empty: choose another with --split.")
    return rows


def number_to_evaluate(total: int, limit: int, share: float) -> int:
    """How many of all rows or questions: this share of them, and at most the limit; a limit of 0 is none."""
    count = max(1, int(share * total))
    return min(count, limit or count)


def batches_of(rows: Rows, indices: list[int], size: int, device: torch.device) -> Iterator[Batch]:
    for first in range(0, len(indices), size):
        batch = rows.__getitems__(indices[first : first + size])
        yield {name: tensor.to(device) for name, tensor in batch.items()}


@torch.no_grad()
def measure_rows(loaded: Loaded, plan: WalkPlan | None, rows: Rows, count: int, batch_size: int) -> dict[str, Any]:
    """The measures of the first `count` rows. plan: of the walks; None is the model's own evaluation."""
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


class StepLosses:
    """Sums the loss after each step of walks; a walk that stops early keeps its last loss.

    first: 1, or 0 where the start of a walk is a prediction already.
    """

    def __init__(self, steps: int, first: int) -> None:
        self.sums = torch.zeros(steps + 1, dtype=torch.float64)
        self.first = first
        self.last_step = 0  # of the current walk

    def update(self, state: WalkState, summed_loss: Callable[[Tensor], Tensor]) -> None:
        """summed_loss: the sum of the losses of predictions."""
        step = state.number
        if step >= self.first:
            since = self.last_step + 1 if step else 0
            self.sums[since : step + 1] += summed_loss(state.y).cpu()
        self.last_step = step

    def result(self, walks: float) -> dict[str, float]:
        """The means, with the names of a validation in training. walks: number of walks summed."""
        means = (self.sums / max(1, walks)).tolist()
        return {f"loss_step_{step}": loss for step, loss in enumerate(means) if step >= self.first}


class WalkStatistics:
    """Sums energies and numbers of steps of the walks at all targets."""

    def __init__(self, steps: int) -> None:
        self.first = self.last = 0.0
        self.steps = torch.zeros(steps + 1, dtype=torch.int64)

    @property
    def walks(self) -> int:
        return max(1, int(self.steps.sum()))

    def update(self, end: WalkState, counted: Tensor) -> None:
        """counted: which predictions have a target, of the energies' shape."""
        self.first += float(end.first_energy[counted].double().sum())
        self.last += float(end.energy[counted].double().sum())
        self.steps += torch.bincount(end.steps[counted].cpu(), minlength=len(self.steps))

    def energies(self) -> dict[str, float]:
        return {"energy_first": self.first / self.walks, "energy_last": self.last / self.walks}

    def mean_steps(self) -> float:
        return sum(step * count for step, count in enumerate(self.steps.tolist())) / self.walks

    def step_counts(self) -> dict[str, int]:
        """The number of walks by the steps that they took."""
        return {str(step): count for step, count in enumerate(self.steps.tolist()) if count}


def thinking_gain(step_losses: Mapping[str, float], loss: float, candidates: int) -> float:
    """How much less the last loss is than the first. loss: of the selected candidates, where there are several."""
    losses = list(step_losses.values())
    return losses[0] - (losses[-1] if candidates == 1 else loss)


class WalkMeasures:
    """The measures of an energy model's evaluation for walks by a given plan, with their energies and steps."""

    def __init__(self, model: EnergyModel, plan: WalkPlan) -> None:
        self.model, self.plan = model, plan
        self.losses = StepLosses(len(plan.steps), first=0 if model.starts_with_a_prediction else 1)
        self.walks = WalkStatistics(len(plan.steps))
        self.targets = 0

    def update(self, batch: Batch, number: int) -> None:
        """Walk on a batch. number: of the batch, which determines its noise."""
        target = self.model.target(batch)
        counted = self.model.counted(target)
        count = int(counted.sum())
        if not count:
            return

        def summed_loss(y: Tensor) -> Tensor:
            return count * self.model.loss(y, target).double()

        def observe(state: WalkState) -> None:
            self.losses.update(state, summed_loss)

        end = walk_batch(self.model, batch, self.plan, number, observe)
        self.model.evaluation.update(end.y, target)
        self.walks.update(end, counted)
        self.targets += count

    def result(self) -> dict[str, float]:
        """With several candidates the losses by step are the mean of all of them."""
        result = self.model.evaluation.result()
        losses = self.losses.result(self.plan.candidates * self.targets)
        return {
            **result,
            **losses,
            "thinking_gain": thinking_gain(losses, result["loss"], self.plan.candidates),
            **self.walks.energies(),
            "mean_steps": self.walks.mean_steps(),
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
    """A row for each measure: its value, and those of the references."""
    table = new_table(*references)
    for measure in measures:
        names = [name for name in result if measure.split and measure.matches(name)]
        for name in names:
            column = measure.named(name)
            others = [column.format(values[name]) if name in values else "" for values in references.values()]
            table.add_row(column.heading, column.format(result[name]), *others)
    return table


def record_evaluation(
    loaded: Loaded, folder: Path, dataset: Mapping[str, Any], settings: Mapping[str, Any], result: Mapping[str, Any]
) -> Path:
    """Append an evaluation to evaluation.jsonl. -> the path of that file"""
    row = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "run_id": loaded.folder.run_id if loaded.folder else None,
        "checkpoint": str(loaded.checkpoint.resolve()),
        "step": loaded.step,
        **dataset,
        "settings": dict(settings),
        "results": finite(result),
    }
    save_rows(folder / RECORD, [row])
    return folder / RECORD


def changed_settings(command: Any, inference: Inference, seed: int, share: float) -> dict[str, Any]:
    """Flags that differ from their defaults, except those that the record has in fields of their own."""
    own_fields = {"split", "dataset_name", "dataset_dir", "infer_output_dir"}
    changed: dict[str, Any] = {"seed": seed} if seed else {}
    if share < 1:
        changed["limit_test_batches"] = share
    for settings in (command, inference):
        for field in fields(settings):
            value = getattr(settings, field.name)
            if value != field.default and field.name not in own_fields:
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
