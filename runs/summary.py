"""A run in words, for the top of its page and for `python -m runs show`: what it changed, what it took, how it went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from config.record import LEADING_FLAGS, defaults_like, is_used, plain_value, record_flags
from config.settings import COMMON, SIZE_TABLE_FLAGS
from config.task import DEFAULT_TASK, SPLITS
from config.task_flags import all_flags
from core.commands import CommandParser
from core.errors import UserError
from core.text import format_count, format_duration, format_number, format_time, format_value, join_words, plural
from runs.attempts import REFUSED
from runs.compare import (
    Validation,
    last_common_validations,
    of_one_extent,
    validations_of,
    value_of,
    why_not_comparable,
)
from runs.index import IndexedRun, find_record
from runs.run import RUN_HELP, STATES, Note

CANDIDATES = 50  # earlier runs among which the nearest is looked for
LISTED_CHANGES = 8  # changes that are listed one by one
UNFINISHED = "It did not finish: "
SMALL_RISE = 0.005  # share of the best loss; less than that is not called worse


@dataclass(frozen=True)
class Summary:
    """Sentences. against: the run that `changes` {flag: (there, here)} refer to; relation: what it is to it."""

    against: IndexedRun | None
    relation: str
    changes: dict[str, tuple[Any, Any]]
    summary: list[str] = field(default_factory=list)
    stats: list[str] = field(default_factory=list)
    takeaways: list[str] = field(default_factory=list)


def summarise(record: IndexedRun, records: Sequence[IndexedRun]) -> Summary:
    """The words about a run; `records` are all runs, this one among them, the newest first."""
    against, relation = reference_run(record, records)
    changes = differences(against.settings, record.settings) if against else {}
    return Summary(
        against,
        relation,
        changes,
        summary=[what_it_is(record), what_changed(record, against, relation, changes)],
        stats=stats_of(record),
        takeaways=takeaways_of(record, against),
    )


def reference_run(record: IndexedRun, records: Sequence[IndexedRun]) -> tuple[IndexedRun | None, str]:
    """The run to describe this one by: its parent, or the earlier one with the fewest differences; and which it is."""
    parent = record.facts["parent"]
    if parent and (match := next((other for other in records if other.run_id == parent), None)):
        return match, "its parent"
    before = records[records.index(record) + 1 :] if record.value("model_name") is not None else []
    same_task = (
        other for other in before if other.value("model_name") is not None and other.task.name == record.task.name
    )
    earlier = list(islice(same_task, CANDIDATES))
    if not earlier:
        return None, ""
    return min(earlier, key=lambda other: distance(other.config, record.config)), "the nearest earlier run"


def distance(a: dict[str, dict[str, Any]], b: dict[str, dict[str, Any]]) -> int:
    """How many settings differ; groups that both share are passed over."""
    return sum(
        len(differences(a.get(group, {}), b.get(group, {})))
        for group in a.keys() | b.keys()
        if a.get(group) is not b.get(group)
    )


def differences(a: dict[str, Any], b: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """{flag: (in a, in b)} of the settings that make a difference; one that a version did not have is as by default."""
    ignored = record_flags()
    if a.keys() == b.keys():
        return {name: (a[name], b[name]) for name in b if a[name] != b[name] and name not in ignored}
    changes = {}
    for name in [*b, *(name for name in a if name not in b)]:
        one, other = value_of(a, name), value_of(b, name)
        if one != other and name not in ignored:
            changes[name] = one, other
    return changes


def what_it_is(record: IndexedRun) -> str:
    settings = record.settings
    if not settings:
        return "Its settings are not known."
    title = record.task.models.get(str(settings.get("model_name", "")), "model")
    kind = f"{'An' if title[:1].lower() in 'aeiou' else 'A'} {title}"
    has_size = "model_size" in settings and len(settings.keys() & set(SIZE_TABLE_FLAGS)) > 1  # every run has a rate
    size = f" of size {format_value(settings['model_size'])}" if has_size else ""
    notable = [format_value(value) for value in notable_settings(settings)]
    size += f" with {join_words(notable, 'and')}" if notable else ""
    data = f" on {format_value(settings['dataset_name'])}" if "dataset_name" in settings else ""
    steps = f", {format_number(settings['max_steps'])} steps" if "max_steps" in settings else ""
    return f"{kind}{size}{data}{steps}."


def notable_settings(settings: Mapping[str, Any]) -> list[Any]:
    """The values of the task's own settings that tables show first, where they are not the default."""
    flags = [flag for flag in all_flags().values() if flag.shown_first == 1 and flag.group not in COMMON]
    return [
        settings[flag.name]
        for flag in flags
        if settings.get(flag.name) not in (None, flag.default) and is_used(flag, settings)
    ]


def what_changed(
    record: IndexedRun, against: IndexedRun | None, relation: str, changes: dict[str, tuple[Any, Any]]
) -> str:
    """One sentence: what is different here, and from which run."""
    if against is None:
        parent = record.facts["parent"]
        return (
            f"Its parent {format_value(parent)} is not here." if parent else "There is no earlier run to tell it from."
        )
    if not changes:
        return f"The same settings as {relation}, {format_value(against.run_id)}."
    words = [change_text(name, *values) for name, values in list(changes.items())[:LISTED_CHANGES]]
    if more := len(changes) - len(words):
        words.append(f"{more} more")
    return f"Other than {relation}, {format_value(against.run_id)}: {join_words(words, 'and')}."


def change_text(name: str, before: Any, after: Any) -> str:
    if isinstance(after, bool) and isinstance(before, bool):
        return f"{name} on" if after else f"{name} off"
    return f"{name} {format_value(after)} instead of {format_value(before)}"


def stats_of(record: IndexedRun) -> list[str]:
    """Sentences about steps, cost, speed, losses and machines."""
    last, task, sentences = record.last, record.task, []
    unit = task.unit
    step, total = last.get("step"), record.settings.get("max_steps")
    if step is not None:
        of = f" of {total:,}" if isinstance(total, int) else ""
        spent = f" in {format_duration(last['seconds'])} of training" if "seconds" in last else ""
        speed = f", {last[unit] / last['seconds']:,.0f} {unit}/s" if last.get("seconds", 0) > 0 and unit in last else ""
        sentences.append(f"Step {step:,.0f}{of}{spent}{speed}.")
    cost = [f"{format_count(last[name])} {word}" for name, word in ((unit, unit), ("flops", "FLOPs")) if name in last]
    if cost:
        sentences.append(f"It read {' and took '.join(cost)}." if unit in last else f"It took {cost[0]}.")
    for name in map(task.headline_on, SPLITS):
        if name in last:
            measure = task.measure(name)
            sentences.append(f"{measure.title.capitalize()} {measure.text(last[name])}{best_text(record, name)}.")
    hosts = list(dict.fromkeys(str(attempt["host"]) for attempt in record.run.attempts if "host" in attempt))
    if hosts:
        times = record.facts["attempts"]
        tries = "One attempt" if times == 1 else plural(times, "attempt")
        sentences.append(f"{tries} on {join_words(list(map(format_value, hosts)), 'and')}.")
    return sentences + verdicts_of(record, good=True)


def best_text(record: IndexedRun, name: str) -> str:
    value, step = record.best.get(name, (None, None))
    if value is None or value == record.last[name]:
        return ""
    return f" (best {record.task.measure(name).text(value)}" + (f" at step {step:,})" if step is not None else ")")


def takeaways_of(record: IndexedRun, against: IndexedRun | None) -> list[str]:
    """Sentences on how it went: how it ended, its losses, the comparison with `against`, alarms, use of the machine."""
    sentences = []
    last, state, task = record.last, record.state, record.task
    if not STATES[state].good:
        cause = str(record.run.attempts[-1].get("cause") or "") if record.run.attempts else ""
        sentences.append(
            f"{UNFINISHED}{format_value(cause) if cause.startswith(state) else state_sentence(state, cause)}."
        )
    if rehearsal := record.value("rehearsal"):
        sentences.append(f"A rehearsal or a part of the validation split ({rehearsal}): its losses are not ranked.")
    validations = validations_of(record.path, record.value, task)
    similar = of_one_extent(validations)
    if len(similar) > 1 and (sign := task.sign(task.headline)):
        best = min(similar, key=lambda one: sign * one.value)
        worse = sign * (similar[-1].value - best.value)
        if worse > SMALL_RISE * abs(best.value):
            sentences.append(f"Its best validation was at step {best.step:,}; since then it got worse by {worse:.3g}.")
        elif state == "finished" and best is similar[-1] and best.step == last.get("step"):
            sentences.append("Its last validation was its best, so it may still have been improving.")
    sentences += comparison(record, against, validations)
    gain = last.get("valid_thinking_gain")
    if gain is not None and math.isfinite(gain) and is_trained(record):
        unit = task.measure("valid_thinking_gain").unit.partition(" per ")[0]
        fell = f"helped: the loss fell by {gain:.3g}" if gain > 0 else f"did not help: the loss rose by {-gain:.3g}"
        outcome = f"{fell} {unit}".rstrip() if gain else "did not help: the loss stayed the same"
        sentences.append(f"Thinking {outcome} from the first step of the descent to the last.")
    alarms = record.run.rows("alarms.jsonl")
    kinds = list(dict.fromkeys(format_value(str(alarm.get("kind"))) for alarm in alarms))
    if kinds:
        sentences.append(f"{'An alarm' if len(alarms) == 1 else f'{len(alarms)} alarms'}: {join_words(kinds, 'and')}.")
    return sentences + verdicts_of(record, good=False)


def state_sentence(state: str, cause: str) -> str:
    if cause.startswith(REFUSED):
        return format_value(cause.removeprefix(REFUSED).rstrip("."))
    return f"{state} ({format_value(cause)})" if cause else state


def is_trained(record: IndexedRun) -> bool:
    """Whether its best validation is of a model that had learned; the first one comes before the first step."""
    headline = record.task.headline
    return headline in record.best and record.best[headline][1] != 0


def verdicts_of(record: IndexedRun, good: bool) -> list[str]:
    """Sentences of usage.json about its use of the machine. good: the good ones, else the bad ones."""
    verdicts = record.run.read("usage.json").get("verdicts")
    entries = [each for each in verdicts if isinstance(each, dict)] if isinstance(verdicts, list) else []
    texts = [
        format_value(each["text"])
        for each in entries
        if isinstance(each.get("text"), str) and bool(each.get("good")) is good
    ]
    return [text[:1].upper() + text[1:] for text in texts]


def comparison(record: IndexedRun, against: IndexedRun | None, validations: Sequence[Validation]) -> list[str]:
    """Its headline beside that of `against`, at the last step at which both were validated; or why not."""
    if against is None or not any(one.step > 0 for one in validations):
        return []
    task = record.task
    theirs = validations_of(against.path, against.value, task)
    if not any(one.step > 0 for one in theirs):
        return []
    other, name = format_value(against.run_id), task.headline
    instead = task.instead_of(name)
    if against.task.name != task.name:
        return [f"No verdict against {other}: it is of another task."]
    why = why_not_comparable(against.settings, record.settings, name, task)
    is_other_unit = bool(why and instead and not why_not_comparable(against.settings, record.settings, instead, task))
    if why and not is_other_unit:
        return [f"No verdict against {other}: {why}."]
    pair = last_common_validations(validations, theirs, attrgetter("unit_free_extent" if is_other_unit else "units"))
    if pair is None or (is_other_unit and not pair[0].unit_free_extent):
        units = [f"{flag.replace('_', ' ')}s" for flag in task.decides["unit"]]  # none where units never differ
        differ = f"the {join_words(units, 'and')} differ, and " if is_other_unit else ""
        same = f"there is no step at which both were validated over the same {'data' if is_other_unit else task.unit}"
        return [f"No verdict against {other}: {differ}{same}."]
    name = instead if instead and is_other_unit else name
    mine, its = (one.unit_free if is_other_unit else one.value for one in pair)
    measure, step = task.measure(name), f"step {pair[0].step:,}"
    title, mine_text, its_text = measure.title, measure.text(mine), measure.text(its)
    if mine_text == its_text:
        return [f"At {step} its {title} is {mine_text}, as that of {other}."]
    gap = f"{100 * abs(mine - its):.3g} percentage points" if measure.is_share else f"{abs(mine - its):.3g}"
    if differences(against.settings, record.settings).keys() == {"seed"}:
        return [f"At {step} its {title} is {mine_text}; {other}, of another seed, has {its_text}: {gap} by chance."]
    sign = task.sign(name)
    if not sign:
        return [f"At {step} its {title} is {mine_text}; {other} has {its_text}."]
    better = "better" if sign * mine < sign * its else "worse"
    return [
        f"At {step} its {title} {mine_text} is {better} than that of {other} ({its_text}) by {gap}; "
        "with one seed each it is not known how much of this is chance."
    ]


SAME_NAME = 5  # runs of the same name that are listed
METRICS = 20  # that are shown; those which have a best value come first
# Named in the order in which people look for them.
FILES = (
    *("console.log", "job_script.slurm", "command.txt", "code", "code.diff", "checkpoints/best.ckpt"),
    *("checkpoints/last.ckpt", "energy.png"),
)


def show(argv: list[str]) -> int:
    """`python -m runs show`"""
    parser = CommandParser("python -m runs show", "One run: what it was, how it went, what was noted.")
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    options = parser.parse_args(argv)
    logs = Path(options.logs_dir)
    record, records = find_record(logs, options.run)
    for title, lines in sections(record, records):
        print(title)
        for line in lines:
            print(f"  {line}")
        print()
    return 0


def sections(record: IndexedRun, records: Sequence[IndexedRun]) -> list[tuple[str, list[str]]]:
    """(title, lines) of everything there is to say; what there is nothing of is left out."""
    words = summarise(record, records)
    files = [name for name in FILES if (record.path / name).exists()]
    state = record.state
    tags = f"  [{', '.join(map(format_value, record.facts['tags']))}]" if record.facts["tags"] else ""
    aside = ", archived" if record.is_archived else ""
    head = [f"{state}{aside}, begun {format_time(record.began)}{tags}", format_value(str(record.path))]
    title = format_value(record.run_id)
    if record.name != record.run_id and not record.run_id.startswith(f"{record.name}_"):
        title += f" ({format_value(record.name)})"
    parts = [
        (title, head),
        ("Summary", words.summary + related_runs(record, records)),
        ("Stats", words.stats),
        ("Takeaways", words.takeaways),
        ("Settings that are not the default", changed_settings(record)),
        ("Metrics: last, best", metric_lines(record)),
        ("Attempts", attempt_lines(record) if record.facts["attempts"] > 1 else []),
        ("Alarms", [alarm_line(alarm) for alarm in record.run.rows("alarms.jsonl")]),
        ("Journal", [line for note in record.run.notes for line in note_lines(note)]),
        ("What is missing", record.facts["problems"]),
        ("Files", [", ".join(files)] if files else []),
    ]
    return [(title, lines) for title, lines in parts if lines]


def related_runs(record: IndexedRun, records: Sequence[IndexedRun]) -> list[str]:
    """How this run was made, those that were made from it, and those that it could be mistaken for."""
    how = record.run.read("lineage.json").get("how")
    made = (
        [f"Made by {format_value(how)} of {format_value(record.facts['parent'])}."]
        if how and record.facts["parent"]
        else []
    )
    children = [other.run_id for other in records if other.facts["parent"] == record.run_id]
    same = [format_value(other.run_id) for other in records if other.name == record.name and other is not record]
    return [
        *made,
        *([f"Made from it: {join_words(list(map(format_value, children)), 'and')}."] if children else []),
        *([f"Of the same name: {join_words(same[:SAME_NAME], 'and')}{more_than(same, SAME_NAME)}."] if same else []),
    ]


def more_than(names: Sequence[str], count: int) -> str:
    return f" and {len(names) - count:,} more" if len(names) > count else ""


def changed_settings(record: IndexedRun) -> list[str]:
    """`flag value` of the settings that differ from what its task, size and recipe give by themselves."""
    defaults = default_settings(record.settings)
    lines = {
        format_value(name): format_value(value)
        for name, value in record.settings.items()
        if defaults.get(name) != value and (name not in record_flags() or name == "run_name")
    }
    width = max(map(len, lines), default=0) + 2
    return [f"{name:{width}}{value}" for name, value in lines.items()]


def default_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting as a run of the same task, size, recipe and debug preset has it without other flags; these few as
    the task has them."""
    return defaults_of(tuple((name, settings[name]) for name in LEADING_FLAGS if is_plain(settings.get(name))))


def is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float)


@lru_cache
def defaults_of(leading: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    values = dict(leading)
    try:
        defaults = defaults_like(values)
        plain = defaults_like(values, ("task",)) | {"task": DEFAULT_TASK}
        values = defaults | {name: plain[name] for name in LEADING_FLAGS if name in plain}
    except UserError:  # a size or a task that this version does not have
        values = {name: flag.default for name, flag in all_flags().items()}
    return {name: plain_value(value) for name, value in values.items()}


def metric_lines(record: IndexedRun) -> list[str]:
    task = record.task
    names = sorted((name for name in record.last if name not in task.axes), key=lambda name: name not in record.best)
    width = max(map(len, names[:METRICS]), default=0) + 2
    lines = []
    for name in names[:METRICS]:
        value, step = record.best.get(name, (None, None)) if task.sign(name) else (None, None)
        best = (
            "" if value is None else f"{format_number(value):>10}" + (f" at step {step:,}" if step is not None else "")
        )
        unit = task.measure(name).unit
        lines.append(f"{format_value(name):{width}}{format_number(record.last[name]):>10}{best:28}{unit}".rstrip())
    if more := len(names) - METRICS:
        lines += [f"and {more} more: python -m runs list --json --where 'id={record.run_id}'"] if more > 0 else []
    return lines


def attempt_lines(record: IndexedRun) -> list[str]:
    lines = []
    for attempt in record.run.attempts:
        begun, ended = (str(attempt.get(name, "?")).replace("T", " ")[:19] for name in ("start", "end"))
        steps = f"steps {format_value(attempt.get('first_step', '?'))} to {format_value(attempt.get('last_step', '?'))}"
        job = f", job {format_value(attempt['job'])}" if "job" in attempt else ""
        host = f" on {format_value(attempt['host'])}" if "host" in attempt else ""
        lines.append(f"{attempt['attempt']}: {format_value(begun)} to {format_value(ended)}, {steps}{host}{job}: "
                     f"{format_value(attempt.get('cause', 'no end was noted'))}")  # fmt: skip
    return lines


def alarm_line(alarm: dict[str, Any]) -> str:
    advice = f" {format_value(alarm['advice'])}" if alarm.get("advice") else ""
    return (
        f"step {format_value(alarm.get('step', '?'))}: "
        f"{format_value(alarm.get('text', alarm.get('kind', '?')))}{advice}"
    )


def note_lines(note: Note) -> list[str]:
    first, *rest = note.text.split("\n")
    return [
        f"{format_time(note.time)} {format_value(note.tag)}: {format_value(first)}",
        *(f"  {format_value(line)}" if line else "" for line in rest),
    ]
