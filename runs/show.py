"""`python -m runs show RUN`: one run on a screen or two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from config.flags import FLAGS
from config.record import from_dict, values_of
from core.commands import CommandParser
from core.errors import UserError
from core.text import listing, shown
from runs.index import Record, clock, load
from runs.metrics import PLACE, describe
from runs.reading import Note, find_run
from runs.summary import NOT_COMPARED, figure, summarise

SAME_NAME = 5  # runs of the same name that are told
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


def record_of(logs: Path, wanted: str) -> tuple[Record, list[Record]]:
    """The run that a person means, and all runs of its folder."""
    path = find_run(logs, wanted).path
    home = path.resolve().parent.parent if path.resolve().parent.name == "runs" else None
    records = load(logs if home is None or home == logs.resolve() else home)
    if found := next((record for record in records if record.run_id == path.resolve().name), None):
        return found, records
    raise UserError(f"RUN is {shown(wanted)}: it does not lie in a folder runs/, where runs are; give its id instead.")


def sections(record: Record, records: Sequence[Record]) -> list[tuple[str, list[str]]]:
    """(title, lines) of everything there is to say; what there is nothing of is left out."""
    words = summarise(record, records)
    files = [name for name in FILES if (record.path / name).exists()]
    state = record.state
    tags = f"  [{', '.join(map(shown, record.facts['tags']))}]" if record.facts["tags"] else ""
    aside = ", archived" if record.is_archived else ""
    head = [f"{state}{aside}, begun {clock(record.began)}{tags}", shown(str(record.path))]
    title = shown(record.run_id)
    if record.name != record.run_id and not record.run_id.startswith(f"{record.name}_"):
        title += f" ({shown(record.name)})"
    found = [
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
    return [(title, lines) for title, lines in found if lines]


def family(record: Record, records: Sequence[Record]) -> list[str]:
    """How this run was made, those that were made from it, and those that it could be mistaken for."""
    how = record.run.read("lineage.json").get("how")
    made = [f"Made by {shown(how)} of {shown(record.facts['parent'])}."] if how and record.facts["parent"] else []
    children = [other.run_id for other in records if other.facts["parent"] == record.run_id]
    same = [shown(other.run_id) for other in records if other.name == record.name and other is not record]
    return [
        *made,
        *([f"Made from it: {listing(list(map(shown, children)), 'and')}."] if children else []),
        *([f"Of the same name: {listing(same[:SAME_NAME], 'and')}{more_than(same, SAME_NAME)}."] if same else []),
    ]


def more_than(names: Sequence[str], told: int) -> str:
    return f" and {len(names) - told:,} more" if len(names) > told else ""


def own_settings(record: Record) -> list[str]:
    """`flag value` of the settings that differ from what its size and recipe give by themselves."""
    usual = usual_settings(record.settings)
    own = {name: value for name, value in record.settings.items() if usual.get(name) != value}
    told = {shown(name): shown(value) for name, value in own.items() if name not in NOT_COMPARED or name == "run_name"}
    width = max(map(len, told), default=0) + 2
    return [f"{name:{width}}{value}" for name, value in told.items()]


def usual_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Every setting as a run of the same size and recipe has it without other flags."""
    own: dict[str, Any] = {name: settings[name] for name in ("model_size", "recipe") if name in settings}
    try:
        return plain(values_of(from_dict(own)))
    except ValueError:  # a size that this version does not have
        return plain({name: flag.default for name, flag in FLAGS.items()})


def plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def metric_lines(record: Record) -> list[str]:
    names = sorted((name for name in record.last if name not in PLACE), key=lambda name: name not in record.best)
    width = max(map(len, names[:METRICS]), default=0) + 2
    lines = []
    for name in names[:METRICS]:
        value, step = record.best.get(name, (None, None)) if describe(name).better else (None, None)
        best = "" if value is None else f"{figure(value):>10}" + (f" at step {step:,}" if step is not None else "")
        unit = describe(name).unit
        lines.append(f"{shown(name):{width}}{figure(record.last[name]):>10}{best:28}{unit}".rstrip())
    if more := len(names) - METRICS:
        lines += [f"and {more} more: python -m runs list --json --where 'id={record.run_id}'"] if more > 0 else []
    return lines


def attempt_lines(record: Record) -> list[str]:
    lines = []
    for attempt in record.run.attempts:
        begun, ended = (str(attempt.get(name, "?")).replace("T", " ")[:19] for name in ("start", "end"))
        steps = f"steps {shown(attempt.get('first_step', '?'))} to {shown(attempt.get('last_step', '?'))}"
        job = f", job {shown(attempt['job'])}" if "job" in attempt else ""
        host = f" on {shown(attempt['host'])}" if "host" in attempt else ""
        lines.append(f"{attempt['attempt']}: {shown(begun)} to {shown(ended)}, {steps}{host}{job}: "
                     f"{shown(attempt.get('cause', 'no end was noted'))}")  # fmt: skip
    return lines


def alarm_line(alarm: dict[str, Any]) -> str:
    advice = f" {shown(alarm['advice'])}" if alarm.get("advice") else ""
    return f"step {shown(alarm.get('step', '?'))}: {shown(alarm.get('text', alarm.get('kind', '?')))}{advice}"


def note_lines(note: Note) -> list[str]:
    first, *rest = note.text.split("\n")
    return [
        f"{clock(note.time)} {shown(note.tag)}: {shown(first)}",
        *(f"  {shown(line)}" if line else "" for line in rest),
    ]
