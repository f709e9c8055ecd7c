"""A run in words, for the top of its page and for `python -m runs show`: what it changed, what it took, how it went."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from config.record import from_dict, values_of
from config.settings import all_flags
from core.commands import CommandParser
from core.errors import UserError
from core.text import format_value, join_words
from runs.attempts import REFUSED
from runs.compare import BITS, Validation, alike, meeting, obstacle, validations_of, value_of
from runs.index import IndexedRun, clock, load
from runs.metrics import SPLITS, number_or
from runs.run import STATES, Note, find_run

# Where a run lives, what it is called and how it is looked at say nothing about what was tried.
NOT_COMPARED = frozenset(
    (
        *("run_name", "logs_dir", "config", "resume_training_ckpt", "console_log_filename", "no_wandb", "wandb_entity"),
        *(
            "notify",
            "wandb_project",
            "wandb_tags",
            "wandb_offline",
            "compare_baseline",
            "log_model_archi",
            "plan",
            "print_config",
        ),
    )
)
NEAR = 50  # earlier runs among which the nearest is looked for
NAMED = 8  # changes that are listed one by one
UNFINISHED = "It did not finish: "
SAME = 0.005  # of a loss: less is no rise


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
    against, relation = model_of(record, records)
    changes = differences(against.settings, record.settings) if against else {}
    return Summary(
        against,
        relation,
        changes,
        summary=[what_it_is(record), what_changed(record, against, relation, changes)],
        stats=stats_of(record),
        takeaways=takeaways_of(record, against),
    )


def model_of(record: IndexedRun, records: Sequence[IndexedRun]) -> tuple[IndexedRun | None, str]:
    """The run that this one is best understood from: its parent, or the earlier one with the fewest differences."""
    parent = record.facts["parent"]
    if parent and (match := next((other for other in records if other.run_id == parent), None)):
        return match, "its parent"
    before = records[records.index(record) + 1 :] if record.value("model_name") is not None else []
    alike = (other for other in before if other.value("model_name") is not None and other.task.name == record.task.name)
    earlier = list(islice(alike, NEAR))
    if not earlier:
        return None, ""
    return min(earlier, key=lambda other: distance(other.config, record.config)), "the nearest earlier run"


def distance(a: dict[str, dict[str, Any]], b: dict[str, dict[str, Any]]) -> int:
    """How many settings differ; groups that are the same in both are seen at once."""
    return sum(
        len(differences(a.get(group, {}), b.get(group, {})))
        for group in a.keys() | b.keys()
        if a.get(group) is not b.get(group)
    )


def differences(a: dict[str, Any], b: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """{flag: (in a, in b)} of the settings that make a difference; one that a version did not have is as by default."""
    if a.keys() == b.keys():
        return {name: (a[name], b[name]) for name in b if a[name] != b[name] and name not in NOT_COMPARED}
    changes = {}
    for name in [*b, *(name for name in a if name not in b)]:
        one, other = value_of(a, name), value_of(b, name)
        if one != other and name not in NOT_COMPARED:
            changes[name] = one, other
    return changes


def what_it_is(record: IndexedRun) -> str:
    settings = record.settings
    if not settings:
        return "Its settings are not known."
    title = record.task.models.get(str(settings.get("model_name", "")), "model")
    kind = f"{'An' if title[:1].lower() in 'aeiou' else 'A'} {title}"
    size = f" of size {format_value(settings['model_size'])}" if "model_size" in settings else ""
    conditioning = settings.get("ebt_type")
    if settings.get("model_name") == "ebt" and conditioning not in (None, "default"):
        size += f" with {format_value(conditioning)}"
    data = f" on {format_value(settings['dataset_name'])}" if "dataset_name" in settings else ""
    steps = f", {figure(settings['max_steps'])} steps" if "max_steps" in settings else ""
    return f"{kind}{size}{data}{steps}."


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
    words = [changed(name, *values) for name, values in list(changes.items())[:NAMED]]
    if more := len(changes) - len(words):
        words.append(f"{more} more")
    return f"Other than {relation}, {format_value(against.run_id)}: {join_words(words, 'and')}."


def changed(name: str, before: Any, after: Any) -> str:
    if isinstance(after, bool) and isinstance(before, bool):
        return f"{name} on" if after else f"{name} off"
    return f"{name} {format_value(after)} instead of {format_value(before)}"


def stats_of(record: IndexedRun) -> list[str]:
    """How far it came, what that took, and the numbers."""
    last, task, sentences = record.last, record.task, []
    unit = task.unit
    step, total = last.get("step"), record.settings.get("max_steps")
    if step is not None:
        of = f" of {total:,}" if isinstance(total, int) else ""
        spent = f" in {duration(last['seconds'])} of training" if "seconds" in last else ""
        speed = f", {last[unit] / last['seconds']:,.0f} {unit}/s" if last.get("seconds", 0) > 0 and unit in last else ""
        sentences.append(f"Step {step:,.0f}{of}{spent}{speed}.")
    cost = [f"{amount(last[name])} {word}" for name, word in ((unit, unit), ("flops", "FLOPs")) if name in last]
    if cost:
        sentences.append(f"It read {' and took '.join(cost)}." if unit in last else f"It took {cost[0]}.")
    for name in map(task.headline_on, SPLITS):
        if name in last:
            sentences.append(f"{task.measure(name).title.capitalize()} {figure(last[name])}{best_of(record, name)}.")
    hosts = list(dict.fromkeys(str(attempt["host"]) for attempt in record.run.attempts if "host" in attempt))
    if hosts:
        times = record.facts["attempts"]
        tries = "One attempt" if times == 1 else f"{times} attempts"
        sentences.append(f"{tries} on {join_words(list(map(format_value, hosts)), 'and')}.")
    return sentences + verdicts_of(record, good=True)


def best_of(record: IndexedRun, name: str) -> str:
    value, step = record.best.get(name, (None, None))
    if value is None or value == record.last[name]:
        return ""
    return f" (best {figure(value)}" + (f" at step {step:,})" if step is not None else ")")


def takeaways_of(record: IndexedRun, against: IndexedRun | None) -> list[str]:
    """What a person would say looking at the numbers; nothing that they do not show."""
    sentences = []
    last, state, task = record.last, record.state, record.task
    if not STATES[state].good:
        cause = str(record.run.attempts[-1].get("cause") or "") if record.run.attempts else ""
        sentences.append(
            f"{UNFINISHED}{format_value(cause) if cause.startswith(state) else state_sentence(state, cause)}."
        )
    if rehearsal := record.value("rehearsal"):
        sentences.append(f"A rehearsal or a part of the validation split ({rehearsal}): its losses are not ranked.")
    validations = validations_of(record.path, record.value("context_length"), task.headline)
    seen = alike(validations)
    if len(seen) > 1 and (sign := task.sign(task.headline)):
        best = min(seen, key=lambda one: sign * one.value)
        worse = sign * (seen[-1].value - best.value)
        if worse > SAME * abs(best.value):
            sentences.append(f"Its best validation was at step {best.step:,}; since then it got worse by {worse:.3g}.")
        elif state == "finished" and best is seen[-1] and best.step == last.get("step"):
            sentences.append("Its last validation was its best, so it may still have been improving.")
    sentences += compared(record, against, validations)
    gain = last.get("valid_thinking_gain")
    if gain is not None and math.isfinite(gain) and is_trained(record):
        unit = task.measure("valid_thinking_gain").unit.partition(" per ")[0]
        fell = f"helped: the loss fell by {gain:.3g}" if gain > 0 else f"did not help: the loss rose by {-gain:.3g}"
        changed = f"{fell} {unit}".rstrip() if gain else "did not help: the loss stayed the same"
        sentences.append(f"Thinking {changed} from the first step of the descent to the last.")
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
    """What its use of the machine shows, in sentences: what is well, or what is not."""
    verdicts = record.run.read("usage.json").get("verdicts")
    entries = [each for each in verdicts if isinstance(each, dict)] if isinstance(verdicts, list) else []
    texts = [
        format_value(each["text"])
        for each in entries
        if isinstance(each.get("text"), str) and bool(each.get("good")) is good
    ]
    return [text[:1].upper() + text[1:] for text in texts]


def compared(record: IndexedRun, against: IndexedRun | None, validations: Sequence[Validation]) -> list[str]:
    """Its headline beside that of `against`, at the last step at which both were validated; or why not."""
    if against is None or not any(one.step > 0 for one in validations):
        return []
    task = record.task
    theirs = validations_of(against.path, against.value("context_length"), task.headline)
    if not any(one.step > 0 for one in theirs):
        return []
    other, name = format_value(against.run_id), task.headline
    why = obstacle(against.settings, record.settings, name)
    if why and not obstacle(against.settings, record.settings, BITS):  # of another tokenizer: a byte is a byte
        name, why = BITS, None
    if why:
        return [f"No verdict against {other}: {why}."]
    bits = name == BITS
    met = meeting(validations, theirs, (lambda one: one.bytes) if bits else (lambda one: one.units))
    if met is None or (bits and not met[0].bytes):
        unit = "the tokenizers differ, and " if bits else ""
        same = f"there is no step at which both were validated over the same {'text' if bits else task.unit}"
        return [f"No verdict against {other}: {unit}{same}."]
    mine, its = (one.bits if bits else one.value for one in met)
    title, step = task.measure(name).title, f"step {met[0].step:,}"
    if figure(mine) == figure(its):
        return [f"At {step} its {title} is {figure(mine)}, as that of {other}."]
    gap = f"{abs(mine - its):.3g}"
    if differences(against.settings, record.settings).keys() == {"seed"}:
        return [
            f"At {step} its {title} is {figure(mine)}; {other}, of another seed, has {figure(its)}: {gap} by chance."
        ]
    sign = task.sign(name)
    if not sign:
        return [f"At {step} its {title} is {figure(mine)}; {other} has {figure(its)}."]
    better = "better" if sign * mine < sign * its else "worse"
    return [
        f"At {step} its {title} {figure(mine)} is {better} than that of {other} ({figure(its)}) by {gap}; "
        "with one seed each nobody knows how much of it is chance."
    ]


def figure(value: Any) -> str:
    """A measured number, short."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return format_value(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{value:,.0f}"
    return f"{value:.4f}" if 0.1 <= abs(value) < 100 else f"{value:.4g}"


def amount(value: float) -> str:
    """A large count in short: 819,200, 1.3 million, 1.2e+15."""
    if value >= 1e12:
        return f"{value:.3g}"
    words = ((1e9, "billion"), (1e6, "million"))
    return next((f"{value / size:.3g} {word}" for size, word in words if value >= size), f"{value:,.0f}")


def duration(seconds: Any) -> str:
    """7 min 43 s"""
    left = number_or(seconds, math.nan)
    if not math.isfinite(left) or left < 0:
        return "?"
    if left < 60:
        return f"{left:.0f} s"
    minutes, hours, days = int(left // 60), int(left // 3600), int(left // 86400)
    if hours < 1:
        return f"{minutes} min {int(left % 60)} s"
    return f"{hours} h {minutes % 60} min" if days < 1 else f"{days} d {hours % 24} h"


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
    parser.add_argument("run", metavar="RUN", help="its id, its name, the beginning of its id, its job, or last")
    options = parser.parse_args(argv)
    logs = Path(options.logs_dir)
    record, records = record_of(logs, options.run)
    for title, lines in sections(record, records):
        print(title)
        for line in lines:
            print(f"  {line}")
        print()
    return 0


def record_of(logs: Path, name: str) -> tuple[IndexedRun, list[IndexedRun]]:
    """The run that a person means, and all runs of its folder."""
    path = find_run(logs, name).path
    home = path.resolve().parent.parent if path.resolve().parent.name == "runs" else None
    records = load(logs if home is None or home == logs.resolve() else home)
    if match := next((record for record in records if record.run_id == path.resolve().name), None):
        return match, records
    raise UserError(
        f"RUN is {format_value(name)}: it does not lie in a folder runs/, where runs are; give its id instead."
    )


def sections(record: IndexedRun, records: Sequence[IndexedRun]) -> list[tuple[str, list[str]]]:
    """(title, lines) of everything there is to say; what there is nothing of is left out."""
    words = summarise(record, records)
    files = [name for name in FILES if (record.path / name).exists()]
    state = record.state
    tags = f"  [{', '.join(map(format_value, record.facts['tags']))}]" if record.facts["tags"] else ""
    aside = ", archived" if record.is_archived else ""
    head = [f"{state}{aside}, begun {clock(record.began)}{tags}", format_value(str(record.path))]
    title = format_value(record.run_id)
    if record.name != record.run_id and not record.run_id.startswith(f"{record.name}_"):
        title += f" ({format_value(record.name)})"
    parts = [
        (title, head),
        ("Summary", words.summary + family(record, records)),
        ("Stats", words.stats),
        ("Takeaways", words.takeaways),
        ("Settings that are not the default", own_settings(record)),
        ("Metrics: last, best", metric_lines(record)),
        ("Attempts", attempt_lines(record) if record.facts["attempts"] > 1 else []),
        ("Alarms", [alarm_line(alarm) for alarm in record.run.rows("alarms.jsonl")]),
        ("Journal", [line for note in record.run.notes for line in note_lines(note)]),
        ("What is missing", record.facts["problems"]),
        ("Files", [", ".join(files)] if files else []),
    ]
    return [(title, lines) for title, lines in parts if lines]


def family(record: IndexedRun, records: Sequence[IndexedRun]) -> list[str]:
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


def own_settings(record: IndexedRun) -> list[str]:
    """`flag value` of the settings that differ from what its size and recipe give by themselves."""
    usual = usual_settings(record.settings)
    own = {name: value for name, value in record.settings.items() if usual.get(name) != value}
    lines = {
        format_value(name): format_value(value)
        for name, value in own.items()
        if name not in NOT_COMPARED or name == "run_name"
    }
    width = max(map(len, lines), default=0) + 2
    return [f"{name:{width}}{value}" for name, value in lines.items()]


def usual_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Every setting as a run of the same size and recipe has it without other flags."""
    own: dict[str, Any] = {name: settings[name] for name in ("model_size", "recipe") if name in settings}
    try:
        return plain(values_of(from_dict(own)))
    except ValueError:  # a size that this version does not have
        return plain({name: flag.default for name, flag in all_flags().items()})


def plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def metric_lines(record: IndexedRun) -> list[str]:
    task = record.task
    names = sorted((name for name in record.last if name not in task.places), key=lambda name: name not in record.best)
    width = max(map(len, names[:METRICS]), default=0) + 2
    lines = []
    for name in names[:METRICS]:
        value, step = record.best.get(name, (None, None)) if task.sign(name) else (None, None)
        best = "" if value is None else f"{figure(value):>10}" + (f" at step {step:,}" if step is not None else "")
        unit = task.measure(name).unit
        lines.append(f"{format_value(name):{width}}{figure(record.last[name]):>10}{best:28}{unit}".rstrip())
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
        f"{clock(note.time)} {format_value(note.tag)}: {format_value(first)}",
        *(f"  {format_value(line)}" if line else "" for line in rest),
    ]
