"""The report of a think-curve of puzzles: tables, sentences and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from core.text import format_amount, join_words, plural
from inference.intervals import SAMPLES, Interval
from inference.reasoning.puzzle_runs import run_labels
from inference.think_curve import wrap
from runs.pictures import COLOURS, FAINT, picture_text, pyplot

if TYPE_CHECKING:
    from inference.reasoning.think_curve import ModelCurve, Point, Shares, ThinkCurveResult


def percent(share: Interval) -> str:
    return f"{share.mean:6.1%} ±{100 * share.half:.1f}"


def in_points(gain: Interval) -> str:
    """A gain in percentage points, with its interval, without its sign."""
    sign = -1 if gain.mean < 0 else 1
    low, high = sorted((sign * gain.low + 0.0, sign * gain.high + 0.0))  # + 0.0: no -0.0
    return f"{100 * abs(gain.mean):.1f} points [{100 * low:.1f}, {100 * high:.1f}]"


def compared(difference: Interval) -> str:
    """A difference as the end of a sentence: 3.1 points [1.0, 5.2] more, and whether it can be told from 0."""
    if difference.mean == difference.low == difference.high == 0:
        return "as many"
    side = "more" if difference.mean >= 0 else "less"
    clear = difference.low > 0 or difference.high < 0
    return f"{in_points(difference)} {side}" + ("" if clear else ", which cannot be told from 0")


def report(result: ThinkCurveResult, about: str) -> list[str]:
    """A table for each model, sentences for each kind of puzzle, and how to read them."""
    counts = join_words([f"{shares.rows} {shares.name}" for shares in result.shares], "and")
    lines = [f"{about}: puzzles solved, {result.puzzles}: {counts}"]
    for curve in result.curves:
        lines += ["", f"{curve.run.title.upper()}  {curve.run.name}, training step {curve.run.loaded.step:,}"]
        lines += table(result, curve)
    own, rivals = result.curves[0], result.curves[1:]
    for shares in result.shares:
        lines += ["", shares.name.upper(), *wrap(describe_thinking(shares, own))]
        for text in (describe_candidates(shares, own), describe_stopping(shares, own)):
            lines += wrap(text)
        for rival in rivals:
            lines += wrap(describe_rival(shares, own, rival))
    return [*lines, "", *wrap(caption(result))]


def table(result: ThinkCurveResult, curve: ModelCurve) -> list[str]:
    """The share of each kind by steps, then by candidates; * is the number of steps of an evaluation."""
    heading = "  ".join(f"{shares.name:<16}" for shares in result.shares)
    lines = [f"  {curve.run.units:>8} {'starts':>7} {'FLOPs/puzzle':>13}   {heading}"]
    rows: list[tuple[str, Point]] = []
    for point in curve.sparse:
        mark = "*" if point.steps == curve.run.evaluation_steps and curve.run.thinks else " "
        rows.append((f"{point.steps:.0f}{mark}", point))
    for number in curve.candidate_counts[1:]:
        rows += [(f"{steps} ", curve.point(steps, number)) for steps in curve.selection_steps]
    rows += [("stays ", point) for point in curve.stays]
    for name, point in rows:
        cost = f"{point.candidates:7} {format_amount(point.flops_of(None), ''):>13}"
        cells = "  ".join(f"{percent(shares.share(point)):<16}" for shares in result.shares)
        lines.append(f"  {name:>9}{cost}   {cells}".rstrip())
    for point in curve.stays:
        cells = "  ".join(f"{point.steps_of(shares.kind):6.1f}{'':10}" for shares in result.shares)
        lines.append(f"  {f'mean {curve.run.units} to there':>30}   {cells}".rstrip())
    return lines


def describe_thinking(shares: Shares, curve: ModelCurve) -> str:
    """Whether more steps help, and where they stop helping."""
    run, points = curve.run, curve.sparse
    unit = run.units
    first, best, last = points[0], shares.best(points), points[-1]
    if not run.thinks:
        return (
            f"This is a {run.title}: it answers in one pass and cannot think for longer. "
            f"It solves {percent(shares.share(first)).strip()}."
        )
    if not shares.means[[point.column for point in curve.points]].any():
        return f"None of these puzzles is solved, whatever the number of {run.units}: train for longer."
    if len(points) == 1:
        return f"One {run.unit} was asked for: nothing to compare; ask for more with --steps."
    comparisons = len(points) - 1
    text = f"1 {run.unit} solves {shares.means[first.column]:.1%}, "
    if best is first:
        lost = shares.gain(last, first, comparisons)
        harm = "do harm" if lost.high < 0 else "do not help"
        return text + f"{run.count(int(last.steps))} {shares.means[last.column]:.1%}: more {unit} {harm} here."
    gain = shares.gain(best, first, comparisons)
    text += f"{run.count(int(best.steps))} {shares.means[best.column]:.1%}, {in_points(gain)} more: "
    if gain.low <= 0:
        return text + f"that more {unit} help cannot be said here, as the interval holds 0."
    enough = next(point for point in points if point is best or shares.gain(best, point, comparisons).low <= 0)
    text += f"more {unit} help. "
    if enough is last:
        return text + f"They still help at {last.steps:.0f}: ask for more with --steps."
    text += f"They stop helping at {enough.steps:.0f}: from there to {last.steps:.0f} no gain can be told from 0."
    lost = shares.gain(last, best, comparisons)
    if lost.high < 0:
        text += f" Too many do harm: {last.steps:.0f} solve {in_points(lost)} less than {best.steps:.0f}."
    return text


def describe_candidates(shares: Shares, curve: ModelCurve) -> str:
    """Whether choosing among candidates helps, and whether steps of the same cost help more."""
    numbers = curve.candidate_counts[1:]
    if not numbers or not shares.means[[point.column for point in curve.points]].any():
        return ""
    choices = [curve.point(steps, number) for steps in curve.selection_steps for number in numbers]

    def gain_of(point: Point) -> Interval:
        return shares.gain(point, curve.point(int(point.steps)), len(choices))

    best = max(choices, key=lambda point: (gain_of(point).mean, -point.flops_of(None)))
    gain, flops = gain_of(best), best.flops_of(None)
    after = f"after {curve.run.count(int(best.steps))}"
    text = f"Best of {best.candidates} by energy {after}, against one start: {compared(gain)}."
    longest = max((point for point in curve.every_step if point.flops_of(None) <= flops), key=lambda each: each.steps)
    sides = compared(shares.gain(longest, best, len(choices)))
    if longest.steps == curve.last and longest.flops_of(None) < 0.9 * flops:
        return text + f" One start of {curve.run.count(curve.last)}, which is cheaper, solves {sides}."
    return text + f" One start of equal FLOPs, {curve.run.count(int(longest.steps))}, solves {sides}."


def describe_stopping(shares: Shares, curve: ModelCurve) -> str:
    """What is lost or saved by stopping a puzzle when its energy stays."""
    if not curve.stays or not shares.means[[point.column for point in curve.points]].any():
        return ""
    (point,) = curve.stays
    full = curve.point(curve.last)
    what = "energy" if curve.run.has_energy else "confidence"
    mean = f"a mean of {point.steps_of(shares.kind):.1f} {curve.run.units}"
    share = point.flops_of(shares.kind) / full.flops_of(shares.kind)
    return (
        f"Stopping each puzzle when its {what} stays takes {mean}, {share:.0%} of the FLOPs of "
        f"{curve.run.count(curve.last)}, and solves {compared(shares.gain(point, full))}."
    )


def describe_rival(shares: Shares, own: ModelCurve, rival: ModelCurve) -> str:
    """The rival's best against the run's best of at most the same FLOPs."""
    best = shares.best(rival.sparse + rival.stays)
    flops = best.flops_of(shares.kind)
    affordable = [point for point in own.points if point.flops_of(shares.kind) <= flops]
    text = f"The {rival.run.title} {rival.run.name} solves {shares.means[best.column]:.1%} with {how(rival, best)}, "
    text += f"{format_amount(flops, 'FLOP')} a puzzle. "
    if affordable:
        mine = shares.best(affordable)
        within = "Within the same FLOPs"
    else:
        mine = min(own.points, key=lambda point: point.flops_of(shares.kind))
        within = f"At its cheapest, {mine.flops_of(shares.kind) / flops:.1f} times the FLOPs,"
    comparisons = max(len(rival.sparse + rival.stays), len(affordable))
    return (
        f"{text}{within} the {own.run.title} solves {shares.means[mine.column]:.1%} with {how(own, mine)}: "
        f"{compared(shares.gain(mine, best, comparisons))}."
    )


def how(curve: ModelCurve, point: Point) -> str:
    """A point in words: the best of 4 after 16 steps."""
    if point in curve.stays:
        return f"a stop when its {'energy' if curve.run.has_energy else 'confidence'} stays"
    after = curve.run.count(int(point.steps))
    return after if point.candidates == 1 else f"the best of {point.candidates} after {after}"


def caption(result: ThinkCurveResult) -> str:
    own = result.curves[0]
    text = (
        f"± and [ ] are 95% intervals: {SAMPLES:,} draws of puzzles, with replacement. Differences are paired: all "
        "models see the same puzzles and the same draws. Where the best of several is judged, its interval allows for "
        "the choice. * is the number of an evaluation. FLOPs are those of matrix products of the forward and, for an "
        "energy, the input gradient."
    )
    if own.run.has_energy:
        text += (
            " A start among several, and one that is stopped, takes one pass more, for the energy where it ends. "
            f"The energy stays when a step changes it by less than {result.stop_change:g} of its fall so far."
        )
    if result.note:
        text += f" Note: {result.note}."
    return text


def draw(result: ThinkCurveResult, about: str, file: object) -> None:
    """A row of panels for each kind of puzzle: by steps, by compute."""
    plots = pyplot()
    rows = len(result.shares)
    labels = run_labels([curve.run for curve in result.curves])
    figure, panels = plots.subplots(rows, 2, figsize=(12, 3.7 * rows + 1.1), squeeze=False, sharey="row")
    for shares, (by_steps, by_flops) in zip(result.shares, panels, strict=True):

        def flops(point: Point, kind: int = shares.kind) -> float:
            return point.flops_of(kind)

        for number, curve in enumerate(result.curves):
            colour = COLOURS[number % len(COLOURS)]
            draw_curve(shares, curve, by_steps, labels[number], colour, lambda point: point.steps)
            draw_curve(shares, curve, by_flops, labels[number], colour, flops, choices=True)
        by_steps.set_title(
            picture_text(f"{shares.name}, {plural(shares.rows, 'puzzle')}"), loc="left", fontweight="bold"
        )
        by_steps.set_xscale("log", base=2)
        by_steps.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        by_steps.set_xlabel("steps or loops")
        by_steps.set_ylabel("solved")
        by_flops.set_xscale("log")
        by_flops.set_xlabel("FLOPs of a puzzle")
        for panel in (by_steps, by_flops):
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
            panel.grid(**FAINT)
            panel.set_axisbelow(True)
            for side in ("top", "right"):
                panel.spines[side].set_visible(False)
    handles, texts = panels[0][1].get_legend_handles_labels()
    figure.suptitle(picture_text(f"Thinking for longer: {about}"), x=0.01, ha="left", fontsize="large")
    figure.legend(handles, texts, loc="lower left", ncols=3, fontsize="small", frameon=False, bbox_to_anchor=(0.01, 0))
    lines = -(-len(texts) // 3)
    height = 3.7 * rows + 1.1
    figure.tight_layout(rect=(0, (0.15 + 0.22 * lines) / height, 1, 1 - 0.1 / height))
    figure.savefig(file, dpi=120, format="png")
    plots.close(figure)


def draw_curve(
    shares: Shares, curve: ModelCurve, panel: Any, label: str, colour: str, x_of: Any, choices: bool = False
) -> None:
    """One model: a line by steps with its band, or a point; choices: with its candidates and where it stops."""
    run, points = curve.run, curve.every_step
    if not run.thinks:
        (point,) = points
        share = shares.share(point)
        error = [[share.mean - share.low], [share.high - share.mean]]
        panel.axhline(share.mean, color=colour, linewidth=0.8, linestyle=":")
        panel.errorbar([x_of(point)], [share.mean], error, color=colour, marker="s", linestyle="none", label=label)
        return
    draw_line(shares, panel, points, x_of, colour, label, band=True)
    if not choices:
        evaluation = curve.point(min(run.evaluation_steps, curve.last))
        panel.plot([x_of(evaluation)], [shares.means[evaluation.column]], color=colour, marker="o", markersize=6)
        return
    for number, style in zip(curve.candidate_counts[1:], ("--", "-.", ":", "--", "-."), strict=False):
        of_number = [point for point in curve.points if point.candidates == number]
        draw_line(shares, panel, of_number, x_of, colour, f"{label}, best of {number} by energy", style)
    for point in curve.stays:
        what = "energy" if run.has_energy else "confidence"
        panel.plot(
            [x_of(point)],
            [shares.means[point.column]],
            color=colour,
            marker="*",
            markersize=11,
            linestyle="none",
            label=f"{label}, stopped when its {what} stays",
        )


def draw_line(
    shares: Shares,
    panel: Any,
    points: Sequence[Point],
    x_of: Any,
    colour: str,
    label: str,
    style: str = "-",
    band: bool = False,
) -> None:
    x_values = [x_of(point) for point in points]
    intervals = [shares.share(point) for point in points]
    if band:
        low, high = [each.low for each in intervals], [each.high for each in intervals]
        panel.fill_between(x_values, low, high, color=colour, alpha=0.15, linewidth=0)
    marker = "o" if len(points) == 1 else None
    panel.plot(x_values, [each.mean for each in intervals], style, color=colour, marker=marker, label=label)
