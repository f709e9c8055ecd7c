"""A run in words: what it changed, what it took, and what came of it. The top of its page and of `runs show`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from core.text import listing, shown
from runs.causes import REFUSED
from runs.comparing import BITS, LOSS, Validation, alike, meeting, obstacle, validations_of, value_of
from runs.index import Record
from runs.metrics import describe
from runs.reading import number

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
NAMED = 8  # changes that are told one by one
GOAL = LOSS
UNFINISHED = "It did not finish: "
SAME = 0.005  # of a loss: less is no rise


@dataclass(frozen=True)
class Summary:
    """Sentences. against: the run that `changes` {flag: (there, here)} are told against; relation: what it is to it."""

    against: Record | None
    relation: str
    changes: dict[str, tuple[Any, Any]]
    summary: list[str] = field(default_factory=list)
    stats: list[str] = field(default_factory=list)
    takeaways: list[str] = field(default_factory=list)


def summarise(record: Record, records: Sequence[Record]) -> Summary:
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


def model_of(record: Record, records: Sequence[Record]) -> tuple[Record | None, str]:
    """The run that this one is best understood from: its parent, or the earlier one with the fewest differences."""
    parent = record.facts["parent"]
    if parent and (found := next((other for other in records if other.run_id == parent), None)):
        return found, "its parent"
    before = records[records.index(record) + 1 :] if record.value("model_name") is not None else []
    earlier = list(islice((other for other in before if other.value("model_name") is not None), NEAR))
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
    found = {}
    for name in [*b, *(name for name in a if name not in b)]:
        one, other = value_of(a, name), value_of(b, name)
        if one != other and name not in NOT_COMPARED:
            found[name] = one, other
    return found


def what_it_is(record: Record) -> str:
    settings = record.settings
    if not settings:
        return "Its settings are not known."
    kind = {"ebt": "An EBT", "baseline_transformer": "A Transformer++"}.get(settings.get("model_name", ""), "A model")
    size = f" of size {shown(settings['model_size'])}" if "model_size" in settings else ""
    conditioning = settings.get("ebt_type")
    if settings.get("model_name") == "ebt" and conditioning not in (None, "default"):
        size += f" with {shown(conditioning)}"
    data = f" on {shown(settings['dataset_name'])}" if "dataset_name" in settings else ""
    steps = f", {figure(settings['max_steps'])} steps" if "max_steps" in settings else ""
    return f"{kind}{size}{data}{steps}."


def what_changed(record: Record, against: Record | None, relation: str, changes: dict[str, tuple[Any, Any]]) -> str:
    """One sentence: what is different here, and from which run."""
    if against is None:
        parent = record.facts["parent"]
        return f"Its parent {shown(parent)} is not here." if parent else "There is no earlier run to tell it from."
    if not changes:
        return f"The same settings as {relation}, {shown(against.run_id)}."
    told = [changed(name, *values) for name, values in list(changes.items())[:NAMED]]
    if more := len(changes) - len(told):
        told.append(f"{more} more")
    return f"Other than {relation}, {shown(against.run_id)}: {listing(told, 'and')}."


def changed(name: str, before: Any, after: Any) -> str:
    if isinstance(after, bool) and isinstance(before, bool):
        return f"{name} on" if after else f"{name} off"
    return f"{name} {shown(after)} instead of {shown(before)}"


def stats_of(record: Record) -> list[str]:
    """How far it came, what that took, and the numbers."""
    last, found = record.last, []
    step, total = last.get("step"), record.settings.get("max_steps")
    if step is not None:
        of = f" of {total:,}" if isinstance(total, int) else ""
        spent = f" in {duration(last['seconds'])} of training" if "seconds" in last else ""
        speed = f", {last['tokens'] / last['seconds']:,.0f} tokens/s" if rate_is_known(last) else ""
        found.append(f"Step {step:,.0f}{of}{spent}{speed}.")
    cost = [f"{amount(last[name])} {unit}" for name, unit in (("tokens", "tokens"), ("flops", "FLOPs")) if name in last]
    if cost:
        found.append(f"It read {' and took '.join(cost)}." if "tokens" in last else f"It took {cost[0]}.")
    for name in ("train_loss", GOAL, "test_loss"):
        if name in last:
            found.append(f"{describe(name).title.capitalize()} {figure(last[name])}{best_of(record, name)}.")
    hosts = list(dict.fromkeys(str(attempt["host"]) for attempt in record.run.attempts if "host" in attempt))
    if hosts:
        times = record.facts["attempts"]
        tries = "One attempt" if times == 1 else f"{times} attempts"
        found.append(f"{tries} on {listing(list(map(shown, hosts)), 'and')}.")
    return found + verdicts_of(record, good=True)


def rate_is_known(last: dict[str, float]) -> bool:
    return last.get("seconds", 0) > 0 and "tokens" in last


def best_of(record: Record, name: str) -> str:
    value, step = record.best.get(name, (None, None))
    if value is None or value == record.last[name]:
        return ""
    return f" (best {figure(value)}" + (f" at step {step:,})" if step is not None else ")")


def takeaways_of(record: Record, against: Record | None) -> list[str]:
    """What a person would say looking at the numbers; nothing that they do not show."""
    found = []
    last, state = record.last, record.state
    if state not in ("finished", "running", "prepared", "waiting"):
        cause = str(record.run.attempts[-1].get("cause") or "") if record.run.attempts else ""
        found.append(f"{UNFINISHED}{shown(cause) if cause.startswith(state) else told(state, cause)}.")
    if rehearsal := record.value("rehearsal"):
        found.append(f"A rehearsal or a part of the validation split ({rehearsal}): its losses are not ranked.")
    validations = validations_of(record.path, record.value("context_length"))
    seen = alike(validations)
    if len(seen) > 1:
        best = min(seen, key=lambda one: one.loss)
        worse = seen[-1].loss - best.loss
        if worse > SAME * abs(best.loss):
            found.append(f"Its best validation was at step {best.step:,}; since then it got worse by {worse:.3g}.")
        elif state == "finished" and best is seen[-1] and best.step == last.get("step"):
            found.append("Its last validation was its best, so it may still have been improving.")
    found += compared(record, against, validations)
    gain = last.get("valid_thinking_gain")
    if gain is not None and math.isfinite(gain) and is_trained(record):
        fell = f"helped: the loss fell by {gain:.3g}" if gain > 0 else f"did not help: the loss rose by {-gain:.3g}"
        changed = f"{fell} nats" if gain else "did not help: the loss stayed the same"
        found.append(f"Thinking {changed} from the first step of the descent to the last.")
    alarms = record.run.rows("alarms.jsonl")
    kinds = list(dict.fromkeys(shown(str(alarm.get("kind"))) for alarm in alarms))
    if kinds:
        found.append(f"{'An alarm' if len(alarms) == 1 else f'{len(alarms)} alarms'}: {listing(kinds, 'and')}.")
    return found + verdicts_of(record, good=False)


def told(state: str, cause: str) -> str:
    if cause.startswith(REFUSED):
        return shown(cause.removeprefix(REFUSED).rstrip("."))
    return f"{state} ({shown(cause)})" if cause else state


def is_trained(record: Record) -> bool:
    """Whether its best validation is of a model that had learned; the first one comes before the first step."""
    return GOAL in record.best and record.best[GOAL][1] != 0


def verdicts_of(record: Record, good: bool) -> list[str]:
    """What its use of the machine shows, in sentences: what is well, or what is not."""
    verdicts = record.run.read("usage.json").get("verdicts")
    found = [each for each in verdicts if isinstance(each, dict)] if isinstance(verdicts, list) else []
    texts = [
        shown(each["text"]) for each in found if isinstance(each.get("text"), str) and bool(each.get("good")) is good
    ]
    return [text[:1].upper() + text[1:] for text in texts]


def compared(record: Record, against: Record | None, validations: Sequence[Validation]) -> list[str]:
    """Its loss beside that of the run it is told from, at the last step at which both were validated; or why not."""
    if against is None or not any(one.step > 0 for one in validations):
        return []
    theirs = validations_of(against.path, against.value("context_length"))
    if not any(one.step > 0 for one in theirs):
        return []
    other, name = shown(against.run_id), LOSS
    why = obstacle(against.settings, record.settings)
    if why and not obstacle(against.settings, record.settings, BITS):  # of another tokenizer: a byte is a byte
        name, why = BITS, None
    if why:
        return [f"No verdict against {other}: {why}."]
    bits = name == BITS
    met = meeting(validations, theirs, (lambda one: one.bytes) if bits else (lambda one: one.tokens))
    if met is None or (bits and not met[0].bytes):
        unit = "the tokenizers differ, and " if bits else ""
        return [f"No verdict against {other}: {unit}there is no step at which both were validated over the same text."]
    mine, its = (one.bits if bits else one.loss for one in met)
    title, step = describe(name).title, f"step {met[0].step:,}"
    if figure(mine) == figure(its):
        return [f"At {step} its {title} is {figure(mine)}, as that of {other}."]
    gap = f"{abs(mine - its):.3g}"
    if differences(against.settings, record.settings).keys() == {"seed"}:
        return [
            f"At {step} its {title} is {figure(mine)}; {other}, of another seed, has {figure(its)}: {gap} by chance."
        ]
    better = "better" if mine < its else "worse"
    return [
        f"At {step} its {title} {figure(mine)} is {better} than that of {other} ({figure(its)}) by {gap}; "
        "with one seed each nobody knows how much of it is chance."
    ]


def figure(value: Any) -> str:
    """A measured number, short."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return shown(value)
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
    left = number(seconds, math.nan)
    if not math.isfinite(left) or left < 0:
        return "?"
    if left < 60:
        return f"{left:.0f} s"
    minutes, hours, days = int(left // 60), int(left // 3600), int(left // 86400)
    if hours < 1:
        return f"{minutes} min {int(left % 60)} s"
    return f"{hours} h {minutes % 60} min" if days < 1 else f"{days} d {hours % 24} h"
