"""The report of a verification: tables, sentences that say what holds, and a picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.text import join_words
from data.reasoning.puzzle import KINDS
from inference.intervals import Interval, interval
from inference.reasoning.answers import OWN, SORT_TEXTS, SORTS, Verification, VerifyResult, within_interval
from inference.reasoning.puzzle_runs import run_labels
from inference.think_curve import picture_text, wrap
from inference.verification import SAMPLES, area_interval, auroc_interval, auroc_samples, risk_coverage
from runs.pictures import COLOURS, FAINT, GREY, pyplot

RELIABLE = 0.99  # an AUROC from which a ranking is called reliable
CONFIDENCE = "softmax confidence"


def number(value: Interval) -> str:
    return f"{value.mean:.4f} ±{value.half:.4f}" if np.isfinite(value.mean) else "-"


def with_bounds(value: Interval) -> str:
    return f"{value.mean:.4f} [{value.low:.4f}, {value.high:.4f}]"


def report(result: VerifyResult, about: str) -> list[str]:
    """Tables within and across puzzles, each with a verdict in words."""
    counts = join_words([f"{int(result.rows_of(kind).sum())} {KINDS[kind]}" for kind in result.kinds], "and")
    lines = [f"{about}: {result.puzzles}: {counts}"]
    lines += ["", "WITHIN A PUZZLE  AUROC of right answers against wrong ones"]
    for each in result.runs:
        lines += within_table(result, each)
    lines += ["", *[line for each in result.runs for line in wrap(describe_within(result, each))]]
    lines += ["", "ACROSS PUZZLES  AUROC of solved against unsolved ones; risk-coverage area, lower is better"]
    lines += across_table(result)
    lines += ["", *[line for each in result.runs for line in wrap(describe_across(result, each))]]
    if result.runs[0].falls is not None:
        lines += ["", "ALONG A WALK", *wrap(describe_falls(result.runs[0]))]
    return [*lines, "", *wrap(caption(result))]


def within_table(result: VerifyResult, each: Verification) -> list[str]:
    headings = [*(KINDS[kind] for kind in result.kinds), "all"]
    lines = ["", f"  {each.run.title} {each.run.name}, by its {each.run.score_name}"]
    lines.append(f"  {'':58}" + "  ".join(f"{heading:<16}" for heading in headings).rstrip())
    for sort, text in [*SORT_TEXTS.items(), (None, "all of these")]:
        aurocs = each.within.all_aurocs() if sort is None else each.within.aurocs(sort)
        values = [within_interval(aurocs, result.rows_of(kind)) for kind in (*result.kinds, None)]
        cells = [f"{number(value):<16}" for value, _ in values]
        lines.append(f"  {text:58}" + "  ".join(cells).rstrip())
    return lines


def across_table(result: VerifyResult) -> list[str]:
    headings = [*(KINDS[kind] for kind in result.kinds), "all", "area"]
    lines = [f"  {'':38} {'solved':>7}   " + "  ".join(f"{heading:<16}" for heading in headings).rstrip()]
    for each in result.runs:
        lines.append(f"  {each.run.title} {each.run.name}, {each.run.count(each.steps)}")
        solved = each.across.solved
        for name, score in each.across.scores.items():
            cells = []
            for kind in (*result.kinds, None):
                rows = result.rows_of(kind)
                cells.append(f"{number(auroc_interval(score[rows], solved[rows])):<16}")
            cells.append(number(area_interval(score, solved)))
            lines.append(f"    {name:36} {solved.mean():7.1%}   " + "  ".join(cells).rstrip())
        curve = risk_coverage(solved.astype(float), solved)
        lines.append(f"    {'':45}   a perfect score has the area {curve.best:.4f}, none has {curve.random:.4f}")
    return lines


def describe_within(result: VerifyResult, each: Verification) -> str:
    """Whether right answers rank above wrong ones of the same puzzle, and against which they do not."""
    rows = result.rows_of(None)
    total, puzzles = within_interval(each.within.all_aurocs(), rows)
    name = f"{each.run.score_name} of the {each.run.title} {each.run.name}"
    if not puzzles:
        return f"The {name}: there is no puzzle with right and wrong answers to compare."
    aurocs = each.within.all_aurocs()
    perfect = int((aurocs[np.isfinite(aurocs)] == 1).sum())
    text = f"The {name} ranks right above wrong in {total.mean:.2%} of the pairs within a puzzle, "
    text += f"without a mistake in {perfect} of {puzzles} puzzles. "
    values = {sort: within_interval(each.within.aurocs(sort), rows)[0] for sort in SORT_TEXTS}
    values = {sort: value for sort, value in values.items() if np.isfinite(value.mean)}
    weak = [f"{SORT_TEXTS[sort]} ({value.mean:.3f})" for sort, value in values.items() if value.mean < RELIABLE]
    missing = [SORT_TEXTS[sort] for sort in SORT_TEXTS if sort not in values]
    if perfect == puzzles:
        text += "So it verifies without fail here."
    elif not weak:
        text += f"So it verifies: AUROC of at least {RELIABLE} against every sort of wrong answer."
    else:
        text += f"It does not verify reliably against {join_words(weak, 'and')}: AUROC below {RELIABLE}."
    if missing:
        text += f" There was none of {join_words(missing, 'or')}."
    return text


def describe_across(result: VerifyResult, each: Verification) -> str:
    """Whether the model's own score tells which puzzles it solved, beside softmax confidence."""
    solved, scores = each.across.solved, each.across.scores
    title = f"{each.run.title} {each.run.name}"
    if solved.all() or not solved.any():
        return (
            f"{title} solves {'all' if solved.any() else 'none'} of the puzzles: nothing to tell apart across puzzles."
        )
    own = next(iter(scores))
    values = {name: auroc_interval(score, solved) for name, score in scores.items()}
    difference = auroc_samples(scores[own], solved) - auroc_samples(scores[CONFIDENCE], solved)
    gain = interval(values[own].mean - values[CONFIDENCE].mean, difference)
    side = "better than" if gain.low > 0 else "worse than" if gain.high < 0 else "not distinguishable from"
    return (
        f"{title}: across puzzles its {own} tells solved from unsolved with an AUROC of {with_bounds(values[own])}, "
        f"{side} softmax confidence with {with_bounds(values[CONFIDENCE])}."
    )


def describe_falls(each: Verification) -> str:
    """How often the energy falls along a step."""
    assert each.falls is not None
    falls, stays, rises = each.falls
    moving = falls / (falls + rises) if falls + rises else 0.0
    return (
        f"The energy falls on {falls:.1%} of the steps, stays on {stays:.1%} and rises on {rises:.1%}: "
        f"of the steps that change it, {moving:.1%} go down."
    )


def caption(result: VerifyResult) -> str:
    text = (
        f"± and [ ] are 95% intervals of draws of puzzles, with replacement ({SAMPLES:,} of an AUROC across puzzles). "
        "An AUROC of 1 ranks every right answer above every wrong one, .5 is chance. Within a puzzle it is the mean "
        "over puzzles; the area is the mean share of wrong answers when only the most trusted are given, over all "
        "shares. All runs see the same made answers; their own wrong ones differ. Softmax confidence is the mean log "
        "of the largest probability over blank cells."
    )
    if not all(each.run.has_energy for each in result.runs):
        text += (
            " Without an energy, cells are predicted one by one and the last answer is the likeliest in each: by its "
            "log p no other answer can rank above it, right or wrong."
        )
    return f"{text} Note: {result.note}." if result.note else text


def draw(result: VerifyResult, about: str, file: object) -> None:
    """Within puzzles, across puzzles, energies of solved and unsolved ones at the end, and along the walk."""
    plots = pyplot()
    figure, panels = plots.subplots(2, 2, figsize=(12.5, 9))
    draw_within(result, panels[0][0])
    draw_risk(result, panels[0][1])
    draw_ends(result.runs[0], panels[1][0])
    draw_walks(result.runs[0], panels[1][1])
    for panel in panels.flatten():
        panel.grid(**FAINT)
        panel.set_axisbelow(True)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    figure.suptitle(picture_text(f"Right from wrong: {about}, {result.puzzles}"), x=0.01, ha="left", fontsize="large")
    figure.tight_layout()
    figure.savefig(file, dpi=120, format="png")
    plots.close(figure)


def draw_within(result: VerifyResult, panel: Any) -> None:
    rows, labels = result.rows_of(None), run_labels([each.run for each in result.runs])
    for index, each in enumerate(result.runs):
        shift = (index - (len(result.runs) - 1) / 2) * 0.7 / len(result.runs)
        places, values = [], []
        for place, sort in enumerate(SORTS):
            if sort == OWN and not each.run.thinks:
                continue  # its one answer is the likeliest: 0 by construction, which would flatten the rest
            value, count = within_interval(each.within.aurocs(sort), rows)
            if count:
                places.append(place + shift)
                values.append(value)
        errors = [[v.mean - v.low for v in values], [v.high - v.mean for v in values]]
        label = f"{labels[index]}, {each.run.score_name}"
        colour = COLOURS[index % len(COLOURS)]
        panel.errorbar(places, [v.mean for v in values], errors, fmt="o", color=colour, label=label)
    panel.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    panel.set_xticks(range(len(SORTS)), [sort.replace(" ", "\n", 1) for sort in SORTS])
    panel.set_xlim(-0.5, len(SORTS) - 0.5)
    panel.set_ylabel("AUROC within a puzzle")
    panel.set_title("right against wrong answers of a puzzle", loc="left", fontweight="bold")
    panel.legend(fontsize="small", framealpha=0.9, loc="lower left")


def draw_risk(result: VerifyResult, panel: Any) -> None:
    labels = run_labels([each.run for each in result.runs])
    for index, each in enumerate(result.runs):
        colour = COLOURS[index % len(COLOURS)]
        styles = iter(("-", "-.", ":") if len(each.across.scores) == 3 else ("-", ":"))
        for name, score in each.across.scores.items():
            curve = risk_coverage(score, each.across.solved)
            label = f"{labels[index]}, {name}: {curve.area:.3f}"
            panel.plot(curve.coverage, curve.risk, next(styles), color=colour, label=label)
    panel.set_xlabel("share answered, the most trusted first")
    panel.set_ylabel("share of these that is wrong")
    panel.set_title("risk by coverage, with its area", loc="left", fontweight="bold")
    # room for the legend above the curves
    top = max(float((~each.across.solved).mean()) for each in result.runs) or 1.0
    panel.set_ylim(-0.03 * top, top * (1.1 + 0.08 * len(panel.get_lines())))
    panel.legend(fontsize="small", framealpha=0.9, loc="upper left")


def draw_ends(each: Verification, panel: Any) -> None:
    """The score of the last answers, of solved and unsolved puzzles."""
    name, score = next(iter(each.across.scores.items()))
    values = -score if each.run.has_energy else score
    finite = np.isfinite(values)
    edges = np.histogram_bin_edges(values[finite], 40) if finite.any() else 10
    for solved, colour, label in ((True, COLOURS[2], "solved"), (False, COLOURS[3], "not solved")):
        chosen = values[finite & (each.across.solved == solved)]
        if len(chosen):
            panel.hist(chosen, edges, color=colour, alpha=0.6, label=f"{label}, {len(chosen)}")
    panel.set_xlabel(f"{name} after {each.run.count(each.steps)}")
    panel.set_ylabel("puzzles")
    panel.set_title(picture_text(f"{each.run.title} {each.run.name}"), loc="left", fontweight="bold")
    panel.legend(fontsize="small", framealpha=0.9)


def draw_walks(each: Verification, panel: Any) -> None:
    """Median and quartiles of the energy along the walk."""
    if each.energies is None:
        panel.axis("off")
        return
    steps = np.arange(each.energies.shape[1])
    for solved, colour, label in ((True, COLOURS[2], "solved"), (False, COLOURS[3], "not solved")):
        chosen = each.energies[each.across.solved == solved]
        if len(chosen):
            low, middle, high = np.quantile(chosen, (0.25, 0.5, 0.75), axis=0)
            panel.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
            panel.plot(steps, middle, color=colour, label=label)
    panel.set_xlabel("steps")
    panel.set_ylabel("energy")
    panel.set_title("energy along the walk: median and quartiles", loc="left", fontweight="bold")
    panel.legend(fontsize="small", framealpha=0.9)
