"""What a study found: the setting chosen for each contestant, and the table of those that were confirmed.

Settings are chosen by the last validation of each run, as a mean over the seeds of tuning. The table has means over the
fresh seeds with 95% intervals of Student's t, and a sentence for each two contestants: apart, or within noise.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any, NamedTuple

from config.task import Measure
from core.errors import UserError
from core.files import write_json, write_text
from core.text import format_short_duration, format_value, join_words, plural
from launch.study_file import Contestant, Study
from runs.run import Run, seconds_of

LEVEL = 0.95  # of the intervals
# Student's t, two-sided 95%, for 1 to 10 degrees of freedom; an expansion is exact enough for more.
T_OF_FEW = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
UNEQUAL_FLOPS = 0.02  # share by which training FLOPs may differ before it is remarked
COSTS = ("flops", "parameters", "seconds", "wall_seconds")  # of a run


def t_quantile(freedom: int) -> float:
    """The factor of a 95% interval with these degrees of freedom."""
    if freedom <= len(T_OF_FEW):
        return T_OF_FEW[freedom - 1]
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    terms = (z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return sum(term / freedom**power for power, term in enumerate(terms))


class Estimate(NamedTuple):
    """Mean of n values, their standard deviation, and the interval of the mean; nan where n is too small."""

    n: int
    mean: float
    spread: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], is_share: bool = False) -> Estimate:
        """is_share: a share of something, whose interval ends at 0 and 1."""
        n = len(values)
        if n < 2:
            return cls(n, values[0] if values else math.nan, math.nan, math.nan, math.nan)
        mean, spread = fmean(values), stdev(values)
        half = t_quantile(n - 1) * spread / math.sqrt(n)
        low, high = mean - half, mean + half
        return cls(n, mean, spread, *((max(0.0, low), min(1.0, high)) if is_share else (low, high)))

    @property
    def record(self) -> dict[str, Any]:
        return {name: None if math.isnan(value) else value for name, value in self._asdict().items()}


# -- one run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """One run of a study. contestant, setting: their numbers."""

    stage: str
    contestant: int
    setting: int
    seed: int
    run: Run

    @cached_property
    def state(self) -> str:
        return self.run.state

    @cached_property
    def last(self) -> dict[str, Any]:
        """The last value of every column of its metrics."""
        merged: dict[str, Any] = {}
        for row in self.run.metrics():
            merged |= row
        return merged

    def value(self, column: str) -> float:
        """The last value of a measure; nan if the run did not finish. Raises if a finished run has not measured it."""
        if self.state != "finished":
            return math.nan
        value = self.last.get(column)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if column in self.last:  # as a text or null, which is how some write what is not finite
            return math.nan
        split = column.partition("_")[0]
        names = [name for name in self.last if name.startswith(f"{split}_")]
        has = f"it has {join_words(names[:12], 'and')}" if names else f"its {split} split was not evaluated"
        raise UserError(f"{format_value(self.run.run_id)} has no {format_value(column)}: {has}.")

    @property
    def flops(self) -> float:
        return number(self.last.get("flops"))

    @property
    def seconds(self) -> float:
        """Training time, without validation."""
        return number(self.last.get("seconds"))

    @property
    def wall_seconds(self) -> float:
        """From start to end of every attempt, with validation and test."""
        spans = [seconds_of(each.get("end")) - seconds_of(each.get("start")) for each in self.run.attempts]
        return sum(max(0.0, span) for span in spans)

    @property
    def parameters(self) -> float:
        return number(self.run.read("model.json").get("parameters"))

    @property
    def code(self) -> str:
        """Which snapshot of the code it ran."""
        return (self.run.path / "code").resolve().name


def number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def mean_of(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return fmean(finite) if finite else math.nan


# -- the choice ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """The setting that won for one contestant; None where none could be judged. scores: the mean of each setting, nan
    where a run of it diverged or failed. notes: what a reader has to know of it."""

    setting: int | None
    scores: list[float]
    notes: list[str]


def choose(study: Study, outcomes: Sequence[Outcome], better: str) -> list[Choice]:
    """The best setting of each contestant by tune.by. better: lower or higher."""
    return [
        choose_setting(study, number, [one for one in outcomes if one.contestant == number], better)
        for number in range(len(study.contestants))
    ]


def choose_setting(study: Study, number: int, outcomes: Sequence[Outcome], better: str) -> Choice:
    contestant, notes = study.contestants[number], []
    if not study.by:
        return Choice(0, [math.nan], [])
    scores = []
    for setting in range(len(contestant.settings)):
        runs = [one for one in outcomes if one.setting == setting]
        values = [one.value(study.by) for one in runs]
        scores.append(fmean(values) if values and all(map(math.isfinite, values)) else math.nan)
        if bad := sorted({one.state for one in runs} - {"finished"}):
            notes.append(
                f"{contestant.name}: {contestant.label(setting)} {join_words(bad, 'and')}, and counts as lost."
            )
        elif math.isnan(scores[-1]):
            notes.append(
                f"{contestant.name}: {contestant.label(setting)} has no finite {study.by}, and counts as lost."
            )
    judged = [setting for setting, score in enumerate(scores) if math.isfinite(score)]
    if not judged:
        return Choice(None, scores, [*notes, f"{contestant.name}: no setting could be judged, so none is confirmed."])
    best = (min if better == "lower" else max)(scores[setting] for setting in judged)
    winners = [setting for setting in judged if scores[setting] == best]
    if len(winners) > 1:
        tied = join_words([contestant.label(setting) for setting in winners[1:]], "and")
        notes.append(
            f"{contestant.name}: {contestant.label(winners[0])} is level with {tied}; the first in the file is taken."
        )
    return Choice(winners[0], scores, [*notes, *edges(contestant, winners[0])])


def edges(contestant: Contestant, setting: int) -> Iterator[str]:
    """Numbers chosen at the end of three or more that were tried: the best may lie beyond."""
    for name in contestant.tuned:
        try:
            values = sorted({float(str(row[name])) for row in contestant.settings})
            chosen = float(str(contestant.settings[setting][name]))
        except (KeyError, ValueError):
            continue
        if len(values) > 2 and chosen in (values[0], values[-1]):
            which = "smallest" if chosen == values[0] else "largest"
            yield f"{contestant.name}: {name} {chosen:g} is the {which} that was tried; the best may lie beyond it."


# -- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Results:
    """All that a study has found so far. measures: of the columns that it reads. confirmed: empty until all are."""

    study: Study
    measures: Mapping[str, Measure]
    tuned: Sequence[Outcome]
    choices: Sequence[Choice]
    confirmed: Sequence[Outcome]

    def runs_of(self, contestant: int) -> list[Outcome]:
        return [one for one in self.confirmed if one.contestant == contestant]

    @cached_property
    def rows(self) -> list[int]:
        """The contestants that have a winner."""
        return [number for number, choice in enumerate(self.choices) if choice.setting is not None]

    @cached_property
    def estimates(self) -> dict[tuple[int, str], Estimate]:
        """{(contestant, measure): over its seeds}"""
        return {
            (row, column): Estimate.of(
                [value for one in self.runs_of(row) if math.isfinite(value := one.value(column))],
                self.measures[column].is_share,
            )
            for row in self.rows
            for column in self.study.measures
        }

    def name(self, contestant: int) -> str:
        return self.study.contestants[contestant].name

    def setting_of(self, contestant: int) -> str:
        choice = self.choices[contestant]
        return self.study.contestants[contestant].label(choice.setting) if choice.setting is not None else "none"

    @property
    def head(self) -> list[str]:
        titles = [self.measures[column].title for column in self.study.measures]
        return ["", "chosen", "settings tried", "seeds", *titles, "training FLOPs", "parameters", "wall time"]

    def cells(self, contestant: int) -> list[str]:
        """One row of the table."""
        runs = self.runs_of(contestant)
        estimates = [self.estimates[contestant, column] for column in self.study.measures]
        shown = [self.estimate_text(column, self.estimates[contestant, column]) for column in self.study.measures]
        flops, size, _, seconds = (mean_of([getattr(one, name) for one in runs]) for name in COSTS)
        return [
            *(self.name(contestant), self.setting_of(contestant), str(self.study.budget)),
            *(str(max(estimate.n for estimate in estimates)), *shown),
            f"{flops:.3g}" if math.isfinite(flops) else "?",
            f"{size:,.0f}" if math.isfinite(size) else "?",
            format_short_duration(seconds) if math.isfinite(seconds) else "?",
        ]

    def estimate_text(self, column: str, estimate: Estimate) -> str:
        """94.2% ± 1.1% [91.4%, 97.0%]: mean, standard deviation, interval."""
        if not estimate.n:
            return "?"
        form = self.measures[column].format
        if estimate.n == 1:
            return form(estimate.mean)
        return f"{form(estimate.mean)} ± {form(estimate.spread)} [{form(estimate.low)}, {form(estimate.high)}]"

    def comparisons(self) -> list[str]:
        """A sentence for each measure and two contestants; none with one seed, which says nothing of chance."""
        if len(self.study.confirm_seeds) < 2:
            return []
        return [
            compare(self.measures[column], *((self.name(row), self.estimates[row, column]) for row in pair))
            for column in self.study.measures
            for pair in itertools.combinations(self.rows, 2)
        ]

    def method(self) -> list[str]:
        """How the numbers came about, in sentences."""
        study, seeds = self.study, seed_words(self.study.confirm_seeds)
        sentences = []
        if study.by:
            sentences.append(
                f"{plural(study.budget, 'setting')} of each were trained with {seed_words(study.tune_seeds)}; the best "
                f"by {study.by} (validation split, last validation of a run) was trained again with {seeds}, which "
                "tuning had not seen, and tested."
            )
        else:
            sentences.append(f"Each was trained with {seeds} as given, without tuning, and tested.")
        if len(study.confirm_seeds) > 1:
            sentences.append(
                "Mean ± standard deviation over seeds, and the 95% interval of the mean by Student's t; two are apart "
                "where their intervals do not overlap."
            )
        else:
            sentences.append("With one seed there is no interval: how much of a difference is chance is not known.")
        return sentences

    def notes(self) -> list[str]:
        """What else a reader has to know, in sentences."""
        notes = [note for choice in self.choices for note in choice.notes]
        for one in self.confirmed:
            if one.state != "finished":
                notes.append(f"{self.name(one.contestant)}: seed {one.seed} {one.state}, and is in no mean.")
        flops = {self.name(row): mean_of([one.flops for one in self.runs_of(row)]) for row in self.rows}
        amounts = [value for value in flops.values() if math.isfinite(value)]
        if amounts and max(amounts) > (1 + UNEQUAL_FLOPS) * min(amounts):
            listed = join_words([f"{name} {value:.3g}" for name, value in flops.items()], "and")
            notes.append(f"Training FLOPs differ: {listed}.")
        versions = {one.code for one in (*self.tuned, *self.confirmed)}
        if len(versions) > 1:
            notes.append(f"Its runs are of {len(versions)} versions of the code.")
        return notes

    def tried(self) -> list[list[str]]:
        """The head and a row for every setting that was tried."""
        rows = [["", "setting", self.study.by, "state", "training FLOPs", "wall time", ""]]
        for number, choice in enumerate(self.choices):
            contestant = self.study.contestants[number]
            for setting, score in enumerate(choice.scores):
                runs = [one for one in self.tuned if (one.contestant, one.setting) == (number, setting)]
                flops, seconds = (mean_of([getattr(one, name) for one in runs]) for name in ("flops", "wall_seconds"))
                rows.append(
                    [
                        *(contestant.name, contestant.label(setting)),
                        self.measures[self.study.by].format(score) if math.isfinite(score) else "?",
                        join_words(sorted({one.state for one in runs}), "and") if runs else "?",
                        f"{flops:.3g}" if math.isfinite(flops) else "?",
                        format_short_duration(seconds) if math.isfinite(seconds) else "?",
                        "chosen" if setting == choice.setting else "",
                    ]
                )
        return rows


def seed_words(seeds: Sequence[int]) -> str:
    """seed 1; seeds 11, 12 and 13"""
    return f"seed{'s' if len(seeds) > 1 else ''} {join_words(list(map(str, seeds)), 'and')}"


def compare(measure: Measure, one: tuple[str, Estimate], other: tuple[str, Estimate]) -> str:
    """One sentence: whether two intervals are apart, and who is better then."""
    (name, mine), (rival, theirs) = one, other
    if not mine.n or not theirs.n:
        return f"{measure.title}: {name} and {rival} cannot be compared, as one of them has no value."
    values = f"{name} {measure.format(mine.mean)}, {rival} {measure.format(theirs.mean)}"
    if mine.n < 2 or theirs.n < 2:
        return f"{measure.title}: {values}: with one seed it is not known how much of it is chance."
    if mine.low <= theirs.high and theirs.low <= mine.high:
        return f"{measure.title}: {values}: within noise."
    if measure.better is None:
        return f"{measure.title}: {values}: the intervals are apart."
    is_better = (mine.mean < theirs.mean) == (measure.better == "lower")
    return f"{measure.title}: {values}: {name if is_better else rival} is better, the intervals are apart."


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown; the first row is its head."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def report(results: Results) -> str:
    """table.md"""
    study = results.study
    parts = [f"# {study.name}"]
    if results.confirmed:
        parts.append(markdown([results.head, *(results.cells(row) for row in results.rows)]))
        parts.append("\n".join(results.method()))
        parts.append("\n".join(f"- {sentence}" for sentence in results.comparisons()))
    if notes := results.notes():
        parts.append("Notes:\n\n" + "\n".join(f"- {note}" for note in notes))
    if study.by and results.tuned:
        parts += ["## Settings tried", markdown(results.tried())]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_results(results: Results, folder: Path) -> None:
    """table.md, table.csv (a line a contestant), runs.csv (a line a run) and study.json (everything)."""
    study = results.study
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "table.md", report(results))
    write_text(folder / "runs.csv", csv_text(list(run_records(results))))
    if results.confirmed:
        write_text(folder / "table.csv", csv_text([flat(record) for record in contestant_records(results)]))
    write_json(
        folder / "study.json",
        {
            "study": study.name,
            "stage": "done" if results.confirmed else "confirming",
            "tune": {"by": study.by, "seeds": study.tune_seeds} if study.by else None,
            "confirm": {"seeds": study.confirm_seeds, "measures": study.measures},
            "interval": "95%, Student's t over seeds",
            "contestants": list(contestant_records(results)),
            "comparisons": results.comparisons() if results.confirmed else [],
            "notes": results.notes(),
            "runs": list(run_records(results)),
        },
    )


def contestant_records(results: Results) -> Iterator[dict[str, Any]]:
    """Everything known of each contestant."""
    for number, choice in enumerate(results.choices):
        contestant = results.study.contestants[number]
        runs = results.runs_of(number)
        costs = {name: mean_of([getattr(one, name) for one in runs]) for name in COSTS}
        yield {
            "contestant": contestant.name,
            "settings_tried": len(contestant.settings),
            "chosen": contestant.chosen_values(choice.setting) if choice.setting is not None else None,
            **{name: None if math.isnan(value) else value for name, value in costs.items()},
            "measures": {
                column: results.estimates[number, column].record
                for column in results.study.measures
                if results.confirmed and (number, column) in results.estimates
            },
        }


def run_records(results: Results) -> Iterator[dict[str, Any]]:
    """A flat record for every run, those of tuning first."""
    study = results.study
    for one in (*results.tuned, *results.confirmed):
        contestant = study.contestants[one.contestant]
        columns = [study.by] if one.stage == "tune" else study.measures
        values = {name: one.value(name) for name in columns} | {name: getattr(one, name) for name in COSTS}
        yield {
            "stage": one.stage,
            "contestant": contestant.name,
            "setting": contestant.label(one.setting),
            "seed": one.seed,
            "state": one.state,
            "run": one.run.run_id,
            **{name: None if math.isnan(value) else value for name, value in values.items()},
        }


def flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one: measures.test_loss.mean"""
    plain: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping) and name != "chosen":
            plain |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, Mapping):
            plain[prefix + name] = ", ".join(f"{flag} {format_value(each)}" for flag, each in value.items())
        else:
            plain[prefix + name] = value
    return plain


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """A column for every key of any record; empty where a record has none."""
    columns = list(dict.fromkeys(name for record in records for name in record))
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if record.get(name) is None else record[name] for name in columns] for record in records)
    return text.getvalue()
