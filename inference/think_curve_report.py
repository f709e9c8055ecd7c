"""A think-curve in words, as tables and as a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from inference.intervals import SAMPLES, Interval, interval
from inference.study import Curve, Point, Study
from runs.pictures import FAINT, GREY, SHADE, pyplot
from training.plan import amount
from training.showing import readable

LINE = 110  # columns of a caption


def report(study: Study) -> list[str]:
    """The tables of every text, each with its verdict."""
    lines = []
    for curve in study.curves:
        rows = curve.text.rows
        lines += ["", f"{curve.text.kind.upper()}  {curve.text.name}, {len(rows)} rows of {rows.shape[1] - 1} tokens"]
        lines += table(study, curve, study.walk, "steps")
        for steps in study.chosen_after:
            lines += ["", f"  candidates after {plural(steps, 'step')}, {CHOICES[study.choice]}"]
            lines += table(study, curve, study.choices(steps), "cands")
        lines += ["", *wrapped(about_steps(study, curve))]
        for steps in study.chosen_after:
            lines += wrapped(about_candidates(study, curve, steps))
        if curve.baseline is not None:
            lines += wrapped(about_baseline(study, curve))
    return [*lines, "", *wrapped(about_shift(study))]


CHOICES = {
    "min": "the one of least energy is believed",
    "max_gap": "the one whose energy fell most is believed",
    "max": "the one of most energy is believed, to see what the energy is worth",
}


def table(study: Study, curve: Curve, points: list[Point], unit: str) -> list[str]:
    """Loss and compute by one of the two coordinates; * is the number of steps of an evaluation."""
    lines = [f"  {unit:>6} {'passes':>7} {'FLOPs/token':>12} {'x T++':>7}   {'loss':<18} gain over 1"]
    for point in points:
        number = point[0] if unit == "steps" else point[1]
        mark = "*" if unit == "steps" and point[0] == study.trained else " "
        cost = f"{study.cost.passes(*point):7} {amount(study.cost.flops(*point), ''):>12} {study.ratio(point):7.2f}"
        gain = curve.gain(curve.columns[point], curve.columns[points[0]]) if number > 1 else None
        lines.append(
            f"  {number:5}{mark} {cost}   {plus_minus(curve.loss(curve.columns[point])):<18} {plus_minus(gain)}"
        )
    if curve.baseline is not None and unit == "steps":
        cost = f"{'':7} {amount(study.baseline.flops, ''):>12} {1:7.2f}"
        lines.append(f"  {'T++':>5}  {cost}   {plus_minus(curve.loss(curve.baseline))}")
    return [line.rstrip() for line in lines]


def plus_minus(found: Interval | None) -> str:
    if found is None:
        return ""
    if not np.isfinite(found.mean):
        return "not finite"
    return f"{found.mean:.4f} ±{found.half:.4f}" if abs(found.mean) < 1000 else f"{found.mean:.3g}"


def about_steps(study: Study, curve: Curve) -> str:
    """Whether more steps help, in words."""
    column, trained, comparisons = curve.columns, study.trained, study.steps - 1
    best = curve.best(study.walk)
    if not np.isfinite(curve.means[column[best]]):
        return "Steps: no number of steps gives a finite loss here."
    told = f"Steps: the loss is least, {curve.means[column[best]]:.4f}, after {best[0]} of {study.steps}."
    if study.steps == 1:
        return told
    if best[0] == 1:
        told += " More steps do not help here."
    else:
        gain = curve.gain(column[best], column[1, 1], comparisons)
        told += f" That gains {gain} over 1 step: more steps {judged(gain)}."
    if trained == 1:
        return told
    if best[0] == trained:
        told += f" It is the {trained} of this model's evaluation"
        if study.steps == trained:
            return told + "."
        lost = curve.gain(column[trained, 1], column[study.steps, 1])
        return told + f": going on beyond them does not help here; {study.steps} lose {lost} against {trained}."
    gain = curve.gain(column[best], column[trained, 1], comparisons)
    more = "going on beyond them" if best[0] > trained else "stopping earlier"
    return told + f" Over the {trained} of this model's evaluation it gains {gain}: {more} {judged(gain, 's')}."


def about_candidates(study: Study, curve: Curve, steps: int) -> str:
    """Whether several candidates help, in words."""
    best = curve.best(study.choices(steps))
    told = f"Candidates after {plural(steps, 'step')}: the loss is least with {best[1]} of {study.candidates}."
    if best[1] == 1:
        lost = curve.gain(curve.columns[best], curve.columns[steps, study.candidates])
        harm = "more of them do harm" if lost.low > 0 else "more of them do not help"
        return told + f" {study.candidates} lose {lost} against 1: {harm} here."
    gain = curve.gain(curve.columns[best], curve.columns[steps, 1], study.candidates - 1)
    return told + f" That gains {gain} over 1: more of them {judged(gain)}."


def about_baseline(study: Study, curve: Curve) -> str:
    """The Transformer++ beside the best of the EBT."""
    assert curve.baseline is not None
    best = curve.best(list(curve.columns)[1:])
    gain = curve.gain(curve.columns[best], curve.baseline, len(curve.columns) - 1)
    side = "below" if gain.low > 0 else "above" if gain.high < 0 else "not told apart from"
    return (
        f"Transformer++: {curve.means[curve.baseline]:.4f}. The EBT's best ({plural(best[0], 'step')}, "
        f"{plural(best[1], 'candidate')}, {study.ratio(best):.1f} times the FLOPs) is {side} it, by {flipped(gain)}."
    )


def about_shift(study: Study) -> str:
    """Whether the paper's claim holds here: thinking gains more on text of another kind."""
    here, there = study.curves
    ends = [(curve.columns[curve.best(study.walk)], curve.columns[1, 1]) for curve in (here, there)]
    means = [curve.means[first] - curve.means[best] for curve, (best, first) in zip((here, there), ends, strict=True)]
    drawn = [curve.samples[:, b] - curve.samples[:, a] for curve, (a, b) in zip((here, there), ends, strict=True)]
    more = interval(means[1] - means[0], drawn[1] - drawn[0], study.steps - 1)
    if not np.isfinite(more.mean):
        return "Shift: not every loss is finite, so the gains on the two texts cannot be compared."
    holds = "holds here" if more.low > 0 else "does not hold here: it is the other way" if more.high < 0 else None
    holds = holds or "cannot be confirmed here: the interval holds 0"
    side = "more" if more.mean >= 0 else "less"
    return (
        f"Shift: from 1 step to the best, thinking gains {means[0]:.4f} in distribution and {means[1]:.4f} on the "
        f"shifted text, which is {flipped(more)} {side}. That gains are larger on shifted text, as the paper has it, "
        f"{holds}."
    )


def judged(gain: Interval, ending: str = "") -> str:
    """helps or does not: only what is beyond the interval counts."""
    if gain.low > 0:
        return f"help{ending} here"
    return f"do{'es' if ending else ''} not help here (the interval holds 0)"


def flipped(gain: Interval) -> str:
    """A gain as a distance: turned around where it is a loss."""
    return str(gain if gain.mean >= 0 else Interval(-gain.mean, -gain.high, -gain.low))


def plural(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'}"


def caption(study: Study) -> list[str]:
    """What the numbers are, and are not."""
    seeds = f"{len(study.seeds)} seeds of noise" if len(study.seeds) > 1 else "the text alone, as there is one seed"
    rows = "rows of text and " if len(study.seeds) > 1 else "rows of "
    told = (
        f"± and [ ] are 95% intervals: {SAMPLES:,} draws of {rows}{seeds}, with replacement. Gains are paired: both "
        "sides see the same draws. Where the best of several is judged, its interval allows for the choice. "
        "* is the number of steps of an evaluation. FLOPs are those of matrix products; T++ is the forward pass of a "
        "Transformer++. A candidate among several takes one pass more, for the energy where it ends."
    )
    landscapes = len(set(study.cost.landscapes))
    if landscapes > 1:
        told += f" Steps beyond {landscapes} are all on the last of this model's {landscapes} landscapes."
    if study.baseline.loaded is None:
        told += f" No loss of a Transformer++: {study.baseline.why}."
    else:
        told += f" Transformer++: {study.baseline.name}, training step {study.baseline.loaded.step:,}."
    return wrapped(told)


def wrapped(text: str, width: int = LINE) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def draw(study: Study, about: str, file: object) -> None:
    """A row of panels for each text: by steps, by candidates, by compute."""

    plots = pyplot()
    columns = 3 if study.chosen_after else 2
    figure, panels = plots.subplots(2, columns, figsize=(4.9 * columns, 9.2), squeeze=False)
    for curve, row in zip(study.curves, panels, strict=True):
        draw_steps(study, curve, row[0])
        if study.chosen_after:
            draw_candidates(study, curve, row[1])
        draw_compute(study, curve, row[-1])
        level = curve.loss(curve.columns[study.trained, 1]).half
        row[0].set_title(plain(f"{curve.text.kind}: {curve.text.name}"), loc="left", fontweight="bold")
        row[-1].set_title(f"all levels together: ±{level:.3f}", loc="right", fontsize="small")
        for panel in (row[0], row[-1]):
            panel.set_ylabel("loss, nats per token")
        for panel in row:
            panel.grid(**FAINT)
            panel.set_axisbelow(True)
            for side in ("top", "right"):
                panel.spines[side].set_visible(False)
    figure.suptitle(plain(f"Thinking for longer: {about}"), x=0.01, ha="left", fontsize="large")
    figure.text(0.01, 0.01, "\n".join(wrapped(picture_caption(study), 60 * columns)), fontsize="small")
    figure.tight_layout(rect=(0, 0.075, 1, 0.98))
    figure.savefig(file, dpi=120, format="png")
    plots.close(figure)


def picture_caption(study: Study) -> str:
    over = f"{len(study.seeds)} seeds and the rows of the text" if len(study.seeds) > 1 else "the rows of the text"
    same = "; in the middle: to 1 candidate" if study.chosen_after else ""
    told = (
        f"Bands: 95% interval (bootstrap over {over}) of the difference to {plural(study.trained, 'step')} and "
        f"1 candidate{same}. It is paired, so it has no width there; what is uncertain about all levels together "
        "stands above the right panel. Dots are measured, nothing is smoothed."
    )
    if len(set(study.cost.landscapes)) > 1:
        told += f" Steps beyond {len(set(study.cost.landscapes))} are on the last landscape."
    if study.baseline.loaded is None:
        told += f" No Transformer++: {study.baseline.why}."
    return plain(told)


def plain(text: str) -> str:
    """A text as a picture can show it: in letters that every font has, and never as a formula."""
    return " ".join(readable(text, "ascii")).replace("$", r"\$")


def draw_steps(study: Study, curve: Curve, panel: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    fewest, most = study.drawn
    if most > fewest:
        panel.axvspan(fewest, most, **SHADE, label=f"trained with {fewest} to {most}")
    panel.axvline(study.trained, color=GREY, linestyle=":", label=f"evaluated with {study.trained}")
    limits = draw_line(study, curve, panel, study.walk, [point[0] for point in study.walk], "C0", "1 candidate")
    each = study.cost.passes_per_step
    panel.set_xlabel("steps, each a pass of the prediction stream" if each == 1 else f"steps of {each} passes each")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_xlim(left=0.5)
    finish(study, curve, panel, [limits])


def draw_candidates(study: Study, curve: Curve, panel: Any) -> None:
    """The change against one candidate: what choosing gains is small beside what steps gain."""
    from matplotlib.ticker import MaxNLocator

    panel.axhline(0, color=GREY, linewidth=1)
    for color, steps in zip(("C1", "C4"), study.chosen_after, strict=False):
        points = study.choices(steps)
        first = curve.columns[steps, 1]
        gains = [curve.gain(curve.columns[point], first) for point in points]
        numbers = [point[1] for point in points]
        low, high = [-gain.high for gain in gains], [-gain.low for gain in gains]
        panel.fill_between(numbers, low, high, color=color, alpha=0.18, linewidth=0)
        label = f"after {plural(steps, 'step')} (1 candidate: {curve.means[first]:.3f})"
        panel.plot(numbers, [-gain.mean for gain in gains], color=color, marker="o", markersize=4, label=label)
    panel.set_xlabel(f"candidates; {CHOICES[study.choice].split(', ')[0]}")
    panel.set_ylabel("change of the loss against 1 candidate, nats")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.margins(y=0.25)
    panel.legend(fontsize="small", framealpha=0.9, loc="upper left")


def draw_compute(study: Study, curve: Curve, panel: Any) -> None:
    lines = [("C0", "1 candidate, more steps", study.walk)]
    for color, steps in zip(("C1", "C4"), study.chosen_after, strict=False):
        lines.append((color, f"{plural(steps, 'step')}, more candidates", study.choices(steps)))
    limits = []
    for color, label, points in lines:
        ratios = [study.ratio(point) for point in points]
        limits.append(draw_line(study, curve, panel, points, ratios, color, label))
    if curve.baseline is not None:
        panel.plot([1], [curve.means[curve.baseline]], color="C3", marker="*", markersize=11, linestyle="none")
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    panel.xaxis.set_minor_formatter(lambda value, _: f"{value:g}x" if f"{value:g}"[0] in "25" else "")
    flops = amount(study.baseline.flops, "FLOPs")
    panel.set_xlabel(f"compute per token, in forward passes of a Transformer++ ({flops})", fontsize="small")
    finish(study, curve, panel, limits)


def draw_line(
    study: Study, curve: Curve, panel: Any, points: list[Point], places: Sequence[float], color: str, label: str
) -> list[float]:
    """A line with its band; returns the losses that the panel has to show."""
    columns = [curve.columns[point] for point in points]
    anchor = curve.columns[study.trained, 1]
    losses = curve.means[columns]
    gains = [curve.gain(column, anchor) for column in columns]
    level = curve.means[anchor]
    low, high = [level - gain.high for gain in gains], [level - gain.low for gain in gains]
    panel.fill_between(places, low, high, color=color, alpha=0.18, linewidth=0)
    panel.plot(places, losses, color=color, marker="o", markersize=4, label=label)
    return [value for value in (*losses, *low, *high) if np.isfinite(value)]


def finish(study: Study, curve: Curve, panel: Any, lines: list[list[float]]) -> None:
    """The flat line of the Transformer++, limits that a walk gone astray does not stretch, and the legend."""
    flat = [] if curve.baseline is None else [curve.means[curve.baseline]]
    values = [value for line in lines for value in line]
    beyond = None
    if values:
        bottom, start = min(values + flat), max(lines[0][:1] + flat)
        top = min(max(values + flat), start + 2 * max(start - bottom, 0.05))
        margin = 0.06 * (top - bottom or 1)
        if max(values) > top + margin:
            beyond = "goes on above this panel"
        panel.set_ylim(bottom - margin, top + margin)
    if curve.baseline is not None:
        anchor = curve.columns[study.trained, 1]
        gain = curve.gain(curve.baseline, anchor)
        band = [curve.means[anchor] - gain.high, curve.means[anchor] - gain.low]
        panel.axhspan(*band, color="C3", alpha=0.1, linewidth=0)
        panel.axhline(flat[0], color="C3", linestyle="--", label=f"Transformer++, {flat[0]:.3f}")
    panel.legend(fontsize="small", framealpha=0.9, title=beyond, title_fontsize="small")
