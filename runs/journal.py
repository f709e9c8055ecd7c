"""`python -m runs note`, `journal` and `todo`: notes of people, stored in the run folders."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from core.commands import CommandParser
from core.errors import UserError
from core.files import append_row, write_text
from core.text import format_time, format_value, join_words, plural
from runs.index import IndexedRun, load, with_progress
from runs.run import RUN_HELP, Note, Run, find_run
from runs.summary import summarise

TAGS = ("TRY", "RESULT", "IDEA", "TODO", "UPDATE")
OPEN = ("TODO", "IDEA")  # can be ticked off
HINT = """
# One note about {run}. A first word TRY:, RESULT:, IDEA:, TODO: or UPDATE: is its tag.
# Lines that begin like these are left out.
"""


def note(argv: list[str]) -> int:
    """`python -m runs note`"""
    parser = CommandParser(
        "python -m runs note",
        "Write into a run's journal. Without a text it opens $EDITOR, or reads what is piped into it.",
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("text", nargs="*", metavar="TEXT", help="as 'TODO: try a larger step size'")
    parser.add_argument("--tag", metavar="TAG", help=f"{join_words(TAGS)}; default: the text's first word, else UPDATE")
    options = parser.parse_intermixed_args(argv)
    tag = options.tag.upper() if options.tag else None
    if tag is not None and tag not in TAGS:
        raise UserError(f"--tag is {format_value(options.tag)}: choose {join_words(TAGS)}.")
    run = find_run(Path(options.logs_dir), options.run)
    text = " ".join(options.text) if options.text else text_from_person(run)
    leading_tag, text = split_tag(text)
    if not text:
        raise UserError('The note is empty, so nothing was written: give a text, as python -m runs note RUN "…".')
    row = {"time": time.time(), "tag": tag or leading_tag or "UPDATE", "text": text}
    append(run, row)
    print(f"{row['tag']} noted for {format_value(run.run_id)}.")
    return 0


def split_tag(text: str) -> tuple[str | None, str]:
    """The tag that a text begins with, or None, and the rest of it; control characters are removed."""
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", "", text.replace("\r\n", "\n")).strip()
    match = re.match(rf"({'|'.join(TAGS)})(?::\s*|\s+|$)", text)
    return (match[1], text[match.end() :].strip()) if match else (None, text)


def text_from_person(run: Run) -> str:
    """The text that is piped in, or written in $EDITOR."""
    if not sys.stdin.isatty():
        return sys.stdin.read()
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    if not editor:
        raise UserError(f'TEXT is missing and $EDITOR is not set: python -m runs note {run.run_id} "…".')
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "note.md"
        file.write_text(HINT.format(run=run.run_id))
        try:
            done = subprocess.run([*editor, str(file)])
        except OSError as error:
            raise UserError(
                f"$EDITOR is {format_value(editor[0])}: it cannot be started ({error.strerror}); give TEXT."
            ) from None
        if done.returncode:
            raise UserError(f"{format_value(editor[0])} ended with status {done.returncode}, so nothing was written.")
        lines = file.read_text(errors="replace").split("\n")
    return "\n".join(line for line in lines if not line.startswith("# "))


def append(run: Run, row: dict[str, Any]) -> None:
    try:
        append_row(run.path / "journal.jsonl", row)
    except OSError as error:
        raise UserError(
            f"{format_value(str(run.path / 'journal.jsonl'))} cannot be written to ({error.strerror}), so "
            "nothing was noted: "
            "ask its owner, or note it for a run of your own."
        ) from None


def journal(argv: list[str]) -> int:
    """`python -m runs journal`"""
    parser = CommandParser("python -m runs journal", "Runs and notes as one Markdown diary, in the order of time.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="only these")
    parser.add_argument("--out", metavar="FILE", help="write it there instead of printing it")
    options = parser.parse_intermixed_args(argv)
    logs = Path(options.logs_dir)
    ids = {find_run(logs, name).run_id for name in options.runs}
    records = load(logs)
    if not records:
        raise UserError(f"There are no runs in {format_value(options.logs_dir)}: --logs_dir names another folder.")
    text = diary(records, ids)
    if options.out is None:
        print(text, end="")
        return 0
    try:
        write_text(Path(options.out), text)
    except OSError as error:
        raise UserError(f"--out is {format_value(options.out)}: cannot write there ({error.strerror}).") from None
    print(f"{format_value(options.out)} has the journal of {plural(len(ids or records), 'run')}.")
    return 0


def diary(records: Sequence[IndexedRun], ids: Iterable[str] = ()) -> str:
    """One Markdown text: days, in them each run as it began, and the notes as they were written."""
    entries: list[tuple[float, str]] = []
    names = set(ids)
    for record in with_progress(records, "writing the journal"):
        if not names or record.run_id in names:
            entries.append((record.began, run_entry(record, records)))
            entries += [(note.time or record.began, note_entry(record, note)) for note in record.run.notes]
    lines, day = ["# Journal", ""], ""
    for when, entry in sorted(entries, key=lambda entry: entry[0]):
        if format_time(when)[:10] != day:
            day = format_time(when)[:10]
            lines += [f"## {day}", ""]
        lines += [entry, ""]
    return "\n".join(lines)


def run_entry(record: IndexedRun, records: Sequence[IndexedRun]) -> str:
    words = summarise(record, records)
    tags = "".join(f" [{escape_markdown(tag)}]" for tag in record.facts["tags"])
    lines = [f"### {format_time(record.began)[11:16]} {escape_markdown(record.run_id)}: {record.state}{tags}", ""]
    for title, sentences in (
        ("Summary", words.summary),
        ("Stats", words.stats),
        ("Takeaways", words.takeaways),
        ("Missing", record.facts["problems"]),
    ):
        if sentences:
            lines.append(f"- **{title}.** {escape_markdown(' '.join(sentences))}")
    return "\n".join(lines)


def note_entry(record: IndexedRun, note: Note) -> str:
    """A note may use Markdown; HTML in it is escaped."""
    text = note.text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", "\n  ")
    return (
        f"- {format_time(note.time)[11:16]} **{escape_markdown(note.tag)}** ({escape_markdown(record.run_id)}) {text}"
    )


def escape_markdown(text: str) -> str:
    """A text that Markdown renders as it is."""
    plain = format_value(text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*\[\]#|~]|(?<!\w)_|_(?!\w))", r"\\\1", plain)


def todo(argv: list[str]) -> int:
    """`python -m runs todo`"""
    parser = CommandParser("python -m runs todo", "What was noted as TODO or IDEA and is not done.")
    parser.add_argument("--done", type=int, metavar="N", help="tick off number N of the list")
    options = parser.parse_intermixed_args(argv)
    notes = open_notes(load(Path(options.logs_dir)))
    if options.done is not None:
        if not 1 <= options.done <= len(notes):
            advice = f"give a number from 1 to {len(notes)}" if notes else "there is nothing left to do"
            raise UserError(f"--done is {options.done}: {advice}; python -m runs todo lists them.")
        record, note = notes[options.done - 1]
        append(record.run, {"time": time.time(), "tag": "UPDATE", "text": f"done: {note.text}", "done": note.time})
        print(f"done: {format_value(first_line(note))} ({format_value(record.run_id)})")
        return 0
    for number, (record, note) in enumerate(notes, 1):
        print(
            f"{number:>3}  {note.tag:5} {format_time(note.time)[:10]}  {format_value(first_line(note))}  "
            f"({format_value(record.run_id)})"
        )
    if not notes:
        print('Nothing is left to do. python -m runs note RUN "TODO: …" adds something.')
    return 0


def first_line(note: Note) -> str:
    first, *rest = note.text.split("\n")
    return first + (" …" if rest else "")


def open_notes(records: Iterable[IndexedRun]) -> list[tuple[IndexedRun, Note]]:
    """Every TODO and IDEA that no later note ticks off, the oldest first."""
    notes = []
    for record in records:
        if record.facts["note"] is None:
            continue
        done = {note.done for note in record.run.notes if note.done is not None}
        notes += [(record, note) for note in record.run.notes if note.tag in OPEN and note.time not in done]
    return sorted(notes, key=lambda each: each[1].time)
