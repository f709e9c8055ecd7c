"""Shows how predictions of any energy model walk: energy and loss by the number of steps, in the terminal and drawn."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from core.files import write_atomically
from models.energy_model import EnergyModel, WalkCurve, WalkSettings, walk_curve
from models.model import Batch
from runs.pictures import GREY, SHADE, pyplot
from tasks import Showing

PLOT_LINES, PLOT_COLUMNS = 8, 60


def show_walk(showing: Showing, batch: Batch, predictions: str, target: str, unit: str) -> None:
    """Print and draw the walks of a batch.

    predictions: what they are of, "positions of held-out text"; target: "true next token"; unit: of the loss.
    """
    model = showing.model
    assert isinstance(model, EnergyModel)
    settings = model.walk_settings
    walks = walk_curve(model, batch, max(8, 2 * settings.step_counts[-1]))
    curve, words = Curve.of(walks), Words(predictions.split()[0], target, unit)
    showing.say(f"\nenergy by steps taken, {walks.truth.numel():,} {predictions}")
    showing.say("\n".join(energy_plot(curve, settings.steps, glyphs(sys.stdout.encoding), words)))
    picture: Path = showing.folder / "energy.png"
    write_atomically(picture, lambda file: draw_descent(curve, settings, words, file))
    showing.say(f"  drawn in {picture}")


class Words(NamedTuple):
    """What the walks are of: predictions (positions), the target (true next token), the unit of the loss."""

    predictions: str
    target: str
    unit: str


class Curve(NamedTuple):
    """By the number of steps taken: quartiles and mean of the energy over positions, and the mean loss."""

    low: np.ndarray
    mean: np.ndarray
    high: np.ndarray
    loss: np.ndarray
    truth: float  # mean energy of the target

    @classmethod
    def of(cls, walk_curve: WalkCurve) -> Curve:
        energies = walk_curve.energies.cpu().numpy()
        low, high = np.percentile(energies, (25, 75), axis=1)
        return cls(low, energies.mean(axis=1), high, walk_curve.losses.cpu().numpy(), float(walk_curve.truth.mean()))

    def limits(self, steps: int) -> tuple[float, float]:
        """Limits of a plot: of all values up to `steps`; later ones widen it to three times that at most."""
        values = np.array([self.low, self.mean, self.high])
        inner = [*values[:, : steps + 1].ravel(), self.truth]
        inner = [value for value in inner if np.isfinite(value)] or [0.0]
        bottom, top = min(inner), max(inner)
        span = top - bottom or 1.0
        outer = np.clip(values[np.isfinite(values)], bottom - span, top + span)
        return float(min([bottom, *outer])), float(max([top, *outer]))


class Glyphs(NamedTuple):
    """Characters of a text plot."""

    mean: str
    bar: str
    truth: str
    axis: str
    tick: str
    above: str
    below: str


def glyphs(encoding: str | None) -> Glyphs:
    """Characters that this encoding has."""
    unicode = Glyphs("●", "│", "┈", "│", "┤", "▲", "▼")
    try:
        "".join(unicode).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return Glyphs("o", "|", "-", "|", "+", "^", "v")
    return unicode


def energy_plot(curve: Curve, evaluation_steps: int, marks: Glyphs, words: Words) -> list[str]:
    """The energy by steps taken as lines of text: mean and middle half, the true token's energy, and the losses."""
    last = len(curve.mean) - 1
    width = 6
    max_columns = PLOT_COLUMNS // width
    steps = sorted(
        {0, evaluation_steps, *np.linspace(0, last, min(max_columns, last + 1)).round().astype(int).tolist()}
    )
    bottom, top = curve.limits(evaluation_steps)
    grid = [[" "] * (width * len(steps)) for _ in range(PLOT_LINES)]

    def line_of(value: float) -> int:
        return int(np.clip(round((top - value) / ((top - bottom) or 1.0) * (PLOT_LINES - 1)), 0, PLOT_LINES - 1))

    if np.isfinite(curve.truth):
        grid[line_of(curve.truth)] = [marks.truth] * (width * len(steps))
    for number, step in enumerate(steps):
        column = number * width + (width - 1) // 2
        low, mean, high = curve.low[step], curve.mean[step], curve.high[step]
        if not np.isfinite([low, mean, high]).all():
            continue
        for line in range(line_of(high), line_of(low) + 1):
            grid[line][column] = marks.bar
        grid[line_of(mean)][column] = marks.above if mean > top else marks.below if mean < bottom else marks.mean
    labels = {0: f"{top:.2f}", PLOT_LINES - 1: f"{bottom:.2f}"}
    lines = []
    for line, row in enumerate(grid):
        label = labels.get(line, "")
        lines.append(f"{label:>9} {marks.tick if label else marks.axis}{''.join(row)}".rstrip())
    names = [f"{step}{'*' if step == evaluation_steps else ''}" for step in steps]
    lines.append(f"{'steps':>9}  {''.join(f'{name:^{width}}' for name in names)}".rstrip())
    losses = [f"{curve.loss[step]:.2f}" if curve.loss[step] < 100 else "large" for step in steps]
    lines.append(f"{'loss':>9}  {''.join(f'{loss:^{width}}' for loss in losses)}".rstrip())
    lines.append(
        f"  {marks.mean} mean, {marks.bar} middle half of the {words.predictions}, "
        f"{marks.truth * 3} mean of the {words.target};"
    )
    lines.append(f"  loss in {words.unit}; * is the number of steps that validation takes")
    return lines


def mark_steps(panel: Any, evaluation_steps: int, training_steps: tuple[int, int] | None = None) -> None:
    """Mark the steps of an evaluation and, where they vary, those of training (fewest, most) on a panel by steps."""
    from matplotlib.ticker import MaxNLocator

    if training_steps is not None and training_steps[1] > training_steps[0]:
        fewest, most = training_steps
        panel.axvspan(fewest, most, **SHADE, label=f"trained with {fewest} to {most}")
    panel.axvline(evaluation_steps, color=GREY, linestyle=":", label=f"evaluated with {evaluation_steps}")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))


def draw_descent(curve: Curve, settings: WalkSettings, words: Words, file: object) -> None:
    """The same as a picture of two panels."""
    plots = pyplot()
    figure, panels = plots.subplots(1, 2, figsize=(10, 4))
    steps = np.arange(len(curve.mean))
    for panel in panels:
        mark_steps(panel, settings.steps, (settings.step_counts[0], settings.step_counts[-1]))
        panel.set_xlabel("steps taken")
    bottom, top = curve.limits(settings.steps)
    margin = 0.05 * (top - bottom)
    panels[0].fill_between(
        steps, curve.low, curve.high, color="C0", alpha=0.2, label=f"middle half of {words.predictions}"
    )
    panels[0].plot(steps, curve.mean, color="C0", marker="o", label="mean")
    panels[0].axhline(curve.truth, color="C2", linestyle="--", label=f"{words.target}, mean")
    panels[0].set_ylim(bottom - margin, top + margin)
    panels[0].set_ylabel("energy (the model's own unit)")
    panels[0].set_title("energy of the prediction")
    panels[1].plot(steps, curve.loss, color="C1", marker="o", label="mean")
    panels[1].set_ylim(bottom=0)
    panels[1].set_ylabel(f"loss, {words.unit}")
    panels[1].set_title("loss of the prediction")
    for panel in panels:
        panel.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(file, dpi=120, format="png")
    plots.close(figure)
