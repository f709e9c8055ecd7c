"""The report of a think-curve: tables, sentences and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from core.text import format_amount, plural
from inference.intervals import SAMPLES
from inference.think_curve import (
    Curve,
    Point,
    absolute_value,
    describe_shift,
    describe_steps,
    plus_minus,
    verdict,
    wrap,
)
from runs.pictures import FAINT, GREY, picture_text, pyplot
from tasks.show.walk import mark_steps

if TYPE_CHECKING:
    from inference.language.think_curve import ThinkCurveResult

CHOICES = {
    "min": "the one of lowest energy is selected",
    "max_gap": "the one whose energy fell most is selected",
    "max": "the one of highest energy is selected, to see what the energy is worth",
}


def report(result: ThinkCurveResult) -> list[str]:
    """The tables of every text, each with a verdict in words."""
    lines = []
    for curve in result.curves:
        sample, (rows, length) = curve.sample, curve.sample.rows.shape
        lines += ["", f"{sample.kind.upper()}  {sample.name}, {rows} rows of {length - 1} tokens"]
        lines += table(result, curve, result.step_points, "steps")
        for steps in result.selection_steps:
            lines += ["", f"  candidates after {plural(steps, 'step')}, {CHOICES[result.choice]}"]
            lines += table(result, curve, result.candidate_points(steps), "cands")
        lines += ["", *wrap(describe_steps(curve, result.steps, result.evaluation_steps))]
        for steps in result.selection_steps:
            lines += wrap(describe_candidates(result, curve, steps))
        if curve.baseline is not None:
            lines += wrap(describe_baseline(result, curve))
    return [*lines, "", *wrap(describe_shift(result.curves, result.steps, "text"))]


def table(result: ThinkCurveResult, curve: Curve, points: list[Point], unit: str) -> list[str]:
    """Loss and compute by one of the two coordinates; * is the number of steps of an evaluation."""
    lines = [f"  {unit:>6} {'passes':>7} {'FLOPs/token':>12} {'x T++':>7}   {'loss':<18} gain over 1"]
    for point in points:
        number = point[0] if unit == "steps" else point[1]
        mark = "*" if unit == "steps" and point[0] == result.evaluation_steps else " "
        flops, ratio = format_amount(result.cost.flops(*point), ""), result.relative_flops(point)
        cost = f"{result.cost.passes(*point):7} {flops:>12} {ratio:7.2f}"
        gain = curve.gain(curve.columns[point], curve.columns[points[0]]) if number > 1 else None
        lines.append(
            f"  {number:5}{mark} {cost}   {plus_minus(curve.loss(curve.columns[point])):<18} {plus_minus(gain)}"
        )
    if curve.baseline is not None and unit == "steps":
        cost = f"{'':7} {format_amount(result.baseline.flops, ''):>12} {1:7.2f}"
        lines.append(f"  {'T++':>5}  {cost}   {plus_minus(curve.loss(curve.baseline))}")
    return [line.rstrip() for line in lines]


def describe_candidates(result: ThinkCurveResult, curve: Curve, steps: int) -> str:
    """Whether several candidates help, in words."""
    best = curve.best(result.candidate_points(steps))
    text = f"Candidates after {plural(steps, 'step')}: the loss is least with {best[1]} of {result.candidates}."
    if best[1] == 1:
        lost = curve.gain(curve.columns[best], curve.columns[steps, result.candidates])
        harm = "more of them do harm" if lost.low > 0 else "more of them do not help"
        return text + f" {result.candidates} lose {lost} against 1: {harm} here."
    gain = curve.gain(curve.columns[best], curve.columns[steps, 1], result.candidates - 1)
    return text + f" That gains {gain} over 1: more of them {verdict(gain)}."


def describe_baseline(result: ThinkCurveResult, curve: Curve) -> str:
    """The Transformer++ against the best of the EBT."""
    assert curve.baseline is not None
    best = curve.best(list(curve.columns)[1:])
    gain = curve.gain(curve.columns[best], curve.baseline, len(curve.columns) - 1)
    side = "below" if gain.low > 0 else "above" if gain.high < 0 else "not distinguishable from"
    ratio = f"{result.relative_flops(best):.1f} times the FLOPs"
    point = f"{plural(best[0], 'step')}, {plural(best[1], 'candidate')}, {ratio}"
    return (
        f"Transformer++: {curve.means[curve.baseline]:.4f}. "
        f"The EBT's best ({point}) is {side} it, by {absolute_value(gain)}."
    )


def caption(result: ThinkCurveResult) -> list[str]:
    """How to read the numbers."""
    seeds = f"{len(result.seeds)} seeds of noise" if len(result.seeds) > 1 else "the text alone, as there is one seed"
    rows = "rows of text and " if len(result.seeds) > 1 else "rows of "
    text = (
        f"± and [ ] are 95% intervals: {SAMPLES:,} draws of {rows}{seeds}, with replacement. Gains are paired: both "
        "sides see the same draws. Where the best of several is judged, its interval allows for the choice. "
        "* is the number of steps of an evaluation. FLOPs are those of matrix products; T++ is the forward pass of a "
        "Transformer++. A candidate among several takes one pass more, for the energy where it ends."
    )
    landscapes = len(set(result.cost.landscapes))
    if landscapes > 1:
        text += f" Steps beyond {landscapes} are all on the last of this model's {landscapes} landscapes."
    if result.baseline.loaded is None:
        text += f" No loss of a Transformer++: {result.baseline.missing_reason}."
    else:
        text += f" Transformer++: {result.baseline.name}, training step {result.baseline.loaded.step:,}."
    return wrap(text)


def draw(result: ThinkCurveResult, about: str, file: object) -> None:
    """A row of panels for each text: by steps, by candidates, by compute."""
    plots = pyplot()
    columns = 3 if result.selection_steps else 2
    figure, panels = plots.subplots(2, columns, figsize=(4.9 * columns, 9.2), squeeze=False)
    for curve, row in zip(result.curves, panels, strict=True):
        draw_steps(result, curve, row[0])
        if result.selection_steps:
            draw_candidates(result, curve, row[1])
        draw_compute(result, curve, row[-1])
        level = curve.loss(curve.columns[result.evaluation_steps, 1]).half
        row[0].set_title(picture_text(f"{curve.sample.kind}: {curve.sample.name}"), loc="left", fontweight="bold")
        row[-1].set_title(f"all levels together: ±{level:.3f}", loc="right", fontsize="small")
        for panel in (row[0], row[-1]):
            panel.set_ylabel("loss, nats per token")
        for panel in row:
            panel.grid(**FAINT)
            panel.set_axisbelow(True)
            for side in ("top", "right"):
                panel.spines[side].set_visible(False)
    figure.suptitle(picture_text(f"Thinking for longer: {about}"), x=0.01, ha="left", fontsize="large")
    figure.text(0.01, 0.01, "\n".join(wrap(picture_caption(result), 60 * columns)), fontsize="small")
    figure.tight_layout(rect=(0, 0.075, 1, 0.98))
    figure.savefig(file, dpi=120, format="png")
    plots.close(figure)


def picture_caption(result: ThinkCurveResult) -> str:
    over = f"{len(result.seeds)} seeds and the rows of the text" if len(result.seeds) > 1 else "the rows of the text"
    steps = plural(result.evaluation_steps, "step")
    same = "; in the middle: to 1 candidate" if result.selection_steps else ""
    text = (
        f"Bands: 95% interval (bootstrap over {over}) of the difference to {steps} and 1 candidate{same}. "
        "It is paired, so it has no width there; what is uncertain about all levels together "
        "stands above the right panel. Dots are measured, nothing is smoothed."
    )
    if len(set(result.cost.landscapes)) > 1:
        text += f" Steps beyond {len(set(result.cost.landscapes))} are on the last landscape."
    if result.baseline.loaded is None:
        text += f" No Transformer++: {result.baseline.missing_reason}."
    return picture_text(text)


def draw_steps(result: ThinkCurveResult, curve: Curve, panel: Any) -> None:
    mark_steps(panel, result.evaluation_steps, result.training_steps)
    limits = draw_line(
        result, curve, panel, result.step_points, [point[0] for point in result.step_points], "C0", "1 candidate"
    )
    each = result.cost.passes_per_step
    panel.set_xlabel("steps, each a pass of the prediction stream" if each == 1 else f"steps of {each} passes each")
    panel.set_xlim(left=0.5)
    finish_panel(result, curve, panel, [limits])


def draw_candidates(result: ThinkCurveResult, curve: Curve, panel: Any) -> None:
    """The change against one candidate: what choosing gains is small beside what steps gain."""
    from matplotlib.ticker import MaxNLocator

    panel.axhline(0, color=GREY, linewidth=1)
    for color, steps in zip(("C1", "C4"), result.selection_steps, strict=False):
        points = result.candidate_points(steps)
        first = curve.columns[steps, 1]
        gains = [curve.gain(curve.columns[point], first) for point in points]
        numbers = [point[1] for point in points]
        low, high = [-gain.high for gain in gains], [-gain.low for gain in gains]
        panel.fill_between(numbers, low, high, color=color, alpha=0.18, linewidth=0)
        label = f"after {plural(steps, 'step')} (1 candidate: {curve.means[first]:.3f})"
        panel.plot(numbers, [-gain.mean for gain in gains], color=color, marker="o", markersize=4, label=label)
    panel.set_xlabel(f"candidates; {CHOICES[result.choice].split(', ')[0]}")
    panel.set_ylabel("change of the loss against 1 candidate, nats")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.margins(y=0.25)
    panel.legend(fontsize="small", framealpha=0.9, loc="upper left")


def draw_compute(result: ThinkCurveResult, curve: Curve, panel: Any) -> None:
    lines = [("C0", "1 candidate, more steps", result.step_points)]
    for color, steps in zip(("C1", "C4"), result.selection_steps, strict=False):
        lines.append((color, f"{plural(steps, 'step')}, more candidates", result.candidate_points(steps)))
    limits = []
    for color, label, points in lines:
        ratios = [result.relative_flops(point) for point in points]
        limits.append(draw_line(result, curve, panel, points, ratios, color, label))
    if curve.baseline is not None:
        panel.plot([1], [curve.means[curve.baseline]], color="C3", marker="*", markersize=11, linestyle="none")
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    panel.xaxis.set_minor_formatter(lambda value, _: f"{value:g}x" if f"{value:g}"[0] in "25" else "")
    flops = format_amount(result.baseline.flops, "FLOPs")
    panel.set_xlabel(f"compute per token, in forward passes of a Transformer++ ({flops})", fontsize="small")
    finish_panel(result, curve, panel, limits)


def draw_line(
    result: ThinkCurveResult,
    curve: Curve,
    panel: Any,
    points: list[Point],
    x_values: Sequence[float],
    color: str,
    label: str,
) -> list[float]:
    """A line with its band. -> the losses that the panel has to show"""
    columns = [curve.columns[point] for point in points]
    anchor = curve.columns[result.evaluation_steps, 1]
    losses = curve.means[columns]
    gains = [curve.gain(column, anchor) for column in columns]
    level = curve.means[anchor]
    low, high = [level - gain.high for gain in gains], [level - gain.low for gain in gains]
    panel.fill_between(x_values, low, high, color=color, alpha=0.18, linewidth=0)
    panel.plot(x_values, losses, color=color, marker="o", markersize=4, label=label)
    return [value for value in (*losses, *low, *high) if np.isfinite(value)]


def finish_panel(result: ThinkCurveResult, curve: Curve, panel: Any, lines: list[list[float]]) -> None:
    """Add the line of the Transformer++, limits that a diverging walk does not stretch, and the legend."""
    levels = [] if curve.baseline is None else [curve.means[curve.baseline]]
    values = [value for line in lines for value in line]
    note = None
    if values:
        bottom, start = min(values + levels), max(lines[0][:1] + levels)
        top = min(max(values + levels), start + 2 * max(start - bottom, 0.05))
        margin = 0.06 * (top - bottom or 1)
        if max(values) > top + margin:
            note = "goes on above this panel"
        panel.set_ylim(bottom - margin, top + margin)
    if curve.baseline is not None:
        anchor = curve.columns[result.evaluation_steps, 1]
        gain = curve.gain(curve.baseline, anchor)
        band = [curve.means[anchor] - gain.high, curve.means[anchor] - gain.low]
        panel.axhspan(*band, color="C3", alpha=0.1, linewidth=0)
        panel.axhline(levels[0], color="C3", linestyle="--", label=f"Transformer++, {levels[0]:.3f}")
    panel.legend(fontsize="small", framealpha=0.9, title=note, title_fontsize="small")
