"""`python -m inference think-curve` for any task with an energy: the loss against the steps of the walk.

A task that can say more, such as what several candidates or compute give, has a command of its own; it uses the curves
and the sentences here.
"""

from __future__ import annotations

import csv
import io
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from config.record import values_of
from config.settings import Inference
from config.task import SPLITS
from config.twin import baseline_config
from core.errors import UserError
from core.files import write_atomically, write_text
from core.progress import progress
from core.text import printable_lines
from data.module import Rows
from inference.commands import ThinkCurveFlags
from inference.evaluate import batches_of, rows_of
from inference.intervals import SAMPLES, Interval, bootstrap, interval
from inference.loading import Loaded, ModelFlags, find_run, load, output_folder
from inference.thinking import WalkPlan, WalkState, plan_from_flags, require_energy, walk_batch
from models.energy_model import EnergyModel
from models.model import Batch, Model
from runs.pictures import FAINT, picture_text, pyplot
from tasks.show.walk import mark_steps

LINE_WIDTH = 110  # characters of a caption's line
CSV_HEADER = ("sample", "model", "steps", "seed", "loss", "low", "high")
Point = tuple[int, int]  # steps, candidates


@dataclass(frozen=True)
class Sample:
    """What losses are measured on. kind: in-distribution or shifted; name: as the report calls it."""

    kind: str
    name: str
    rows: Any


@dataclass(frozen=True)
class Curve:
    """Losses on one sample, in K columns: one for each point and, last, one for the baseline.

    columns: the column of each point; baseline: that of the model to compare with, if there is one. by_seed: mean
    losses, [seeds, K]; samples: of the bootstrap, paired, [samples, K].
    """

    sample: Sample
    columns: dict[Point, int]
    by_seed: np.ndarray
    samples: np.ndarray
    baseline: int | None

    @property
    def means(self) -> np.ndarray:
        return self.by_seed.mean(0)

    def loss(self, column: int) -> Interval:
        return interval(self.means[column], self.samples[:, column])

    def gain(self, of: int, over: int, comparisons: int = 1) -> Interval:
        """How much less the loss of one column is than that of another."""
        with np.errstate(invalid="ignore"):
            return interval(self.means[over] - self.means[of], self.samples[:, over] - self.samples[:, of], comparisons)

    def best(self, points: list[Point]) -> Point:
        losses = [self.means[self.columns[point]] for point in points]
        return points[int(np.argmin(np.where(np.isfinite(losses), losses, np.inf)))]


def step_points(steps: int) -> list[Point]:
    return [(step, 1) for step in range(1, steps + 1)]


def model_with_energy(loaded: Loaded, steps: int) -> Any:
    """The model, refused where it has no energy, or where its evaluation takes more than these steps."""
    model = require_energy(loaded, ", so it cannot think for longer")
    least = model.walk_settings.steps
    if steps < least:
        raise UserError(f"--steps is {steps}: this model's evaluation takes {least}; choose {least} or more.")
    return model


def plan_of_steps(model: EnergyModel, inference: Inference, steps: int) -> WalkPlan:
    """A plan whose walk gives the losses of every number of steps: further steps are all on the last landscape."""
    before = model.walk_settings.landscapes - 1 if model.has_landscapes else 0
    settings = replace(inference, infer_ebt_num_steps=steps - before, infer_steps_final_landscape=True)
    plan = plan_from_flags(model, settings)
    assert plan is not None
    return plan


def main(model: ModelFlags, command: ThinkCurveFlags, inference: Inference) -> int:
    loaded = load(model)
    energy_model: EnergyModel = model_with_energy(loaded, command.steps)
    plan = plan_of_steps(energy_model, inference, command.steps)
    data = loaded.task.data(loaded.config, loaded.run)
    samples = [Sample("in-distribution", f"{SPLITS[command.split]} split", rows_of(data, command.split))]
    if (shifted := loaded.task.shifted(data)) is not None:
        samples.append(Sample("shifted", shifted.describe(), shifted))
    baseline, missing_reason = find_baseline(loaded, model, command.baseline)
    plans = [replace(plan, seed=model.seed + number) for number in range(command.seeds)]
    if not any(float(step.noise) for step in plan.steps) and not has_random_start(energy_model, samples[0].rows):
        print("Nothing is drawn at random here (the walk starts without noise): one seed.")
        plans = plans[:1]
    folder = output_folder(loaded, inference)
    curves = []
    num_batches = sum(-(-min(command.rows, len(sample.rows)) // command.batch_size) for sample in samples)
    with loaded.autocast(), progress("Thinking", "batches", num_batches * len(plans)) as advance:
        for sample in samples:
            curves.append(measure_curve(energy_model, baseline, plans, sample, command, advance))
    headline = loaded.task.measures(values_of(loaded.config))[0]
    unit = ", ".join(dict.fromkeys(filter(None, (headline.title, headline.unit))))
    about = f"{loaded.name}, training step {loaded.step:,}"
    evaluation_steps = energy_model.walk_settings.steps
    write_csv(folder / "think_curve.csv", CSV_HEADER, curves, [plan.seed for plan in plans], csv_fields)
    write_atomically(
        folder / "think_curve.png", lambda file: draw_curves(curves, command.steps, evaluation_steps, about, unit, file)
    )
    lines = [f"{about}: {unit}"]
    for curve in curves:
        lines += ["", f"{curve.sample.kind.upper()}  {curve.sample.name}"]
        lines += table(curve, command.steps, evaluation_steps)
        lines += ["", *wrap(describe_steps(curve, command.steps, evaluation_steps))]
    if len(curves) > 1:
        lines += ["", *wrap(describe_shift(curves, command.steps, "data"))]
    resampled = "rows and seeds of noise" if len(plans) > 1 else "rows"
    notes = [
        f"± and [ ] are 95% intervals: {SAMPLES:,} draws of {resampled}, with replacement.",
        "Gains are paired. * is the number of steps of an evaluation. FLOPs are not counted.",
        f"Baseline: {baseline.name}, training step {baseline.step:,}." if baseline else "",
        f"No baseline: {missing_reason}." if missing_reason else "",
    ]
    print_lines(*lines, "", *wrap(" ".join(filter(None, notes))))
    print(f"drawn in {folder / 'think_curve.png'}, numbers in {folder / 'think_curve.csv'}")
    return 0


def has_random_start(model: EnergyModel, rows: Rows) -> bool:
    """Whether walks start at random: two starts of one row differ."""
    (batch,) = batches_of(rows, [0], 1, model.device)
    with torch.no_grad():
        first, second = (model.start(model.observed(batch)) for _ in range(2))
    return not torch.equal(first, second)


def task_problem(other: Loaded, loaded: Loaded) -> str | None:
    """Why the losses of another run cannot be compared with those of this one, and what to do."""
    if other.task.name != loaded.task.name:
        return f"its task is {other.task.name}, and not {loaded.task.name}; choose another run"
    return None


def find_baseline(
    loaded: Loaded,
    model: ModelFlags,
    name: str | None,
    problem_of: Callable[[Loaded, Loaded], str | None] = task_problem,
) -> tuple[Loaded | None, str]:
    """The run of --baseline, or the twin that --compare_baseline trained beside the run; else why there is none."""
    if name is None and not loaded.task.twin:
        return None, ""
    twin = name or baseline_config(loaded.config).run.run_name
    logs = str(loaded.folder.path.parent.parent) if loaded.folder and name is None else model.logs_dir
    try:
        path = find_run(twin, logs, "--baseline")
        other = load(replace(model, run=str(path), ckpt=None))
    except UserError:
        if name is not None:
            raise
        return None, f"there is no trained run {twin} (--compare_baseline trains it), and --baseline names no other"
    problem = problem_of(other, loaded)
    if problem is None:
        return other, ""
    if name is not None:
        raise UserError(f"--baseline is {name!r}: {problem}.")
    return None, f"the run {path.name} does not serve: {problem}"


@torch.no_grad()
def measure_curve(
    model: EnergyModel,
    baseline: Loaded | None,
    plans: list[WalkPlan],
    sample: Sample,
    command: ThinkCurveFlags,
    advance: Callable[[int], None],
) -> Curve:
    """The loss of every number of steps; plans: one for each seed."""
    points = [(0, 1), *step_points(command.steps)]
    count = min(command.rows, len(sample.rows))
    indices = (np.arange(count) * len(sample.rows) // count).tolist()
    parts, targets = [], []
    for number, batch in enumerate(batches_of(sample.rows, indices, command.batch_size, model.device)):
        target = model.target(batch)
        weights = model.counted(target).reshape(len(target), -1).sum(1)
        sums = np.zeros((len(plans), len(target), len(points) + (baseline is not None)))
        for seed, plan in enumerate(plans):

            def observe(state: WalkState, seed: int = seed) -> None:
                sums[seed, :, state.number] = row_losses(model, state.y, target, weights)  # noqa: B023

            walk_batch(model, batch, plan, number, observe)
            advance(1)
        if baseline is not None:
            sums[:, :, -1] = baseline_losses(baseline.model, batch, len(target))
        parts.append(sums)
        targets.append(weights.cpu().numpy())
    sums, counts = np.concatenate(parts, 1), np.concatenate(targets)
    columns = {point: column for column, point in enumerate(points)}
    last = len(points) if baseline is not None else None
    return Curve(sample, columns, sums.sum(1) / counts.sum(), bootstrap(sums, counts), last)


def row_losses(model: EnergyModel, y: Tensor, target: Tensor, weights: Tensor) -> np.ndarray:
    """The loss of each row, times its targets; 0 for a row that has none."""
    losses = [
        model.loss(y[row : row + 1], target[row : row + 1]).double() * weight if weight else y.new_zeros(()).double()
        for row, weight in enumerate(weights.tolist())
    ]
    return torch.stack(losses).cpu().numpy()


def baseline_losses(model: Model, batch: Batch, rows: int) -> np.ndarray:
    """The same for a baseline, which evaluates each row alone."""
    sums = []
    for row in range(rows):
        model.evaluate({name: tensor[row : row + 1] for name, tensor in batch.items()})
        result = model.compute_results()
        sums.append(result["loss"] * result["targets"] if result["targets"] else 0.0)
    return np.array(sums)


def table(curve: Curve, steps: int, evaluation_steps: int) -> list[str]:
    """Loss by step; * is the number of steps of an evaluation."""
    lines = [f"  {'steps':>6}   {'loss':<18} gain over 1"]
    for point in step_points(steps):
        mark = "*" if point[0] == evaluation_steps else " "
        gain = curve.gain(curve.columns[point], curve.columns[1, 1]) if point[0] > 1 else None
        lines.append(f"  {point[0]:5}{mark}   {plus_minus(curve.loss(curve.columns[point])):<18} {plus_minus(gain)}")
    if curve.baseline is not None:
        lines.append(f"  baseline {plus_minus(curve.loss(curve.baseline))}")
    return [line.rstrip() for line in lines]


def print_lines(*lines: str) -> None:
    """Print lines, with what the terminal's encoding lacks replaced."""
    encoding = sys.stdout.encoding
    try:
        sign = "±".encode(encoding or "ascii").decode(encoding or "ascii")
    except UnicodeEncodeError:
        sign = "+-"
    for line in lines:
        print(*printable_lines(line.replace("±", sign), encoding))


def csv_fields(curve: Curve) -> dict[int, dict[str, Any]]:
    """By column: which model it is, and its steps."""
    fields: dict[int, dict[str, Any]] = {
        column: {"model": "energy", "steps": steps} for (steps, _), column in curve.columns.items()
    }
    if curve.baseline is not None:
        fields[curve.baseline] = {"model": "baseline"}
    return fields


def write_csv(
    path: Path,
    header: Sequence[str],
    curves: Sequence[Curve],
    seeds: Sequence[int],
    fields_of: Callable[[Curve], dict[int, dict[str, Any]]],
) -> None:
    """A row for each point and seed, and one with the mean of all seeds and its interval.

    header: its first field is the kind of sample. fields_of: the fields that describe each column of a curve.
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, header, restval="", lineterminator="\n")
    writer.writeheader()
    for curve in curves:
        for column, fields in fields_of(curve).items():
            row = {header[0]: curve.sample.kind, **fields}
            if column != curve.baseline:  # whose loss is the same for every seed
                for seed, loss in zip(seeds, curve.by_seed[:, column], strict=True):
                    writer.writerow({**row, "seed": seed, "loss": f"{loss:.6f}"})
            mean, low, high = (f"{value:.6f}" for value in curve.loss(column))
            writer.writerow({**row, "seed": "mean", "loss": mean, "low": low, "high": high})
    write_text(path, file.getvalue())


def draw_curves(
    curves: Sequence[Curve], steps: int, evaluation_steps: int, about: str, unit: str, file: object
) -> None:
    """A panel for each sample: the loss by step, with its interval."""
    plots = pyplot()
    figure, panels = plots.subplots(1, len(curves), figsize=(5.5 * len(curves), 4.4), squeeze=False)
    for curve, panel in zip(curves, panels[0], strict=True):
        numbers = list(range(1, steps + 1))
        losses = [curve.loss(curve.columns[step, 1]) for step in numbers]
        mark_steps(panel, evaluation_steps)
        panel.fill_between(
            numbers, [loss.low for loss in losses], [loss.high for loss in losses], color="C0", alpha=0.18, linewidth=0
        )
        panel.plot(numbers, [loss.mean for loss in losses], color="C0", marker="o", markersize=4)
        if curve.baseline is not None:
            level = curve.means[curve.baseline]
            panel.axhline(level, color="C3", linestyle="--", label=f"baseline, {level:.3f}")
        panel.set_title(picture_text(f"{curve.sample.kind}: {curve.sample.name}"), loc="left", fontweight="bold")
        panel.set_xlabel("steps")
        panel.set_ylabel(picture_text(unit))
        panel.grid(**FAINT)
        panel.legend(fontsize="small", framealpha=0.9)
    figure.suptitle(picture_text(f"Thinking for longer: {about}"), x=0.01, ha="left", fontsize="medium", wrap=True)
    figure.tight_layout()
    figure.savefig(file, dpi=120, format="png")
    plots.close(figure)


def describe_steps(curve: Curve, steps: int, evaluation_steps: int) -> str:
    """Whether more steps help, in words."""
    column, comparisons = curve.columns, steps - 1
    best = curve.best(step_points(steps))
    if not np.isfinite(curve.means[column[best]]):
        return "Steps: no number of steps gives a finite loss here."
    text = f"Steps: the loss is least, {curve.means[column[best]]:.4f}, after {best[0]} of {steps}."
    if steps == 1:
        return text
    if best[0] == 1:
        text += " More steps do not help here."
    else:
        gain = curve.gain(column[best], column[1, 1], comparisons)
        text += f" That gains {gain} over 1 step: more steps {verdict(gain)}."
    if evaluation_steps == 1:
        return text
    if best[0] == evaluation_steps:
        text += f" It is the {evaluation_steps} of this model's evaluation"
        if steps == evaluation_steps:
            return text + "."
        lost = curve.gain(column[evaluation_steps, 1], column[steps, 1])
        return text + f": going on beyond them does not help here; {steps} lose {lost} against {evaluation_steps}."
    gain = curve.gain(column[best], column[evaluation_steps, 1], comparisons)
    more = "going on beyond them" if best[0] > evaluation_steps else "stopping earlier"
    return (
        text + f" Over the {evaluation_steps} of this model's evaluation it gains {gain}: {more} {verdict(gain, 's')}."
    )


def describe_shift(curves: Sequence[Curve], steps: int, noun: str) -> str:
    """Whether the claim of the paper holds: more steps gain more on shifted data. noun: a word for that data."""
    here, there = curves
    ends = [(curve.columns[curve.best(step_points(steps))], curve.columns[1, 1]) for curve in (here, there)]
    means = [curve.means[first] - curve.means[best] for curve, (best, first) in zip((here, there), ends, strict=True)]
    samples = [curve.samples[:, b] - curve.samples[:, a] for curve, (a, b) in zip((here, there), ends, strict=True)]
    more = interval(means[1] - means[0], samples[1] - samples[0], steps - 1)
    if not np.isfinite(more.mean):
        return "Shift: not every loss is finite, so the two gains cannot be compared."
    holds = "holds here" if more.low > 0 else "does not hold here: it is the other way" if more.high < 0 else None
    holds = holds or "cannot be confirmed here: the interval holds 0"
    side = "more" if more.mean >= 0 else "less"
    return (
        f"Shift: from 1 step to the best, thinking gains {means[0]:.4f} in distribution and {means[1]:.4f} on the "
        f"shifted {noun}, which is {absolute_value(more)} {side}. "
        f"That gains are larger on shifted {noun}, as the paper has it, {holds}."
    )


def verdict(gain: Interval, ending: str = "") -> str:
    """Whether it helps: only if the interval does not contain 0."""
    if gain.low > 0:
        return f"help{ending} here"
    return f"do{'es' if ending else ''} not help here (the interval holds 0)"


def absolute_value(gain: Interval) -> str:
    """The absolute value of a gain."""
    return str(gain if gain.mean >= 0 else Interval(-gain.mean, -gain.high, -gain.low))


def plus_minus(value: Interval | None) -> str:
    if value is None:
        return ""
    if not np.isfinite(value.mean):
        return "not finite"
    return f"{value.mean:.4f} ±{value.half:.4f}" if abs(value.mean) < 1000 else f"{value.mean:.3g}"


def wrap(text: str, width: int = LINE_WIDTH) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
