"""`python -m runs diff A B`: what differs between two runs, and so may be why their results do."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from core.commands import CommandParser
from core.text import format_duration, format_number, format_value
from runs.index import IndexedRun, find_record
from runs.run import RUN_HELP, Run
from runs.summary import differences

ROOT = Path(__file__).resolve().parent.parent
COMMIT = re.compile(r"[0-9a-f]{7,64}")
GIT_TIMEOUT_SECONDS = 20
MAX_BYTES = 2_000_000  # of a file whose lines are compared


class CodeDiff(NamedTuple):
    """notes: what is compared, in sentences. text: a unified diff, from the first run to the second."""

    notes: list[str]
    text: str


def diff(argv: list[str]) -> int:
    """`python -m runs diff`"""
    parser = CommandParser("python -m runs diff", "What differs between two runs: settings, results, code, machine.")
    for name in ("a", "b"):
        parser.add_argument(name, metavar=name.upper(), help=RUN_HELP)
    parser.add_argument("--code", action="store_true", help="the differences of the code, line by line")
    options = parser.parse_args(argv)
    logs = Path(options.logs_dir)
    (a, _), (b, _) = find_record(logs, options.a), find_record(logs, options.b)
    code = code_diff(a.run, b.run)
    print(f"A  {format_value(a.run_id)}: {a.state}\nB  {format_value(b.run_id)}: {b.state}\n")
    for title, rows in (
        ("Settings", setting_rows(a, b)),
        ("Results", result_rows(a, b)),
        ("Data", data_rows(a, b)),
        ("Environment", environment_rows(a.run, b.run)),
    ):
        print_rows(title, rows)
    print("Code")
    changed = [f"{name}  +{added} -{removed}" for name, added, removed in files_of(code.text)]
    for line in [*code.notes, *map(format_value, changed)]:
        print(f"  {line}")
    if options.code and code.text:
        print()
        for line in code.text.split("\n"):
            print(format_value(line.replace("\t", "    ")) if line else "")
    elif changed:
        print("  --code shows the lines.")
    return 0


def print_rows(title: str, rows: dict[str, tuple[str, str]]) -> None:
    """Name, A and B in columns."""
    print(title)
    if not rows:
        print("  no difference\n")
        return
    names, left = max(map(len, rows)) + 2, max(len(a) for a, _ in rows.values()) + 2
    for name, (a, b) in rows.items():
        print(f"  {name:{names}}{a:{left}}{b}")
    print()


def data_names(a: IndexedRun, b: IndexedRun) -> set[str]:
    """The settings of the data: its group, and those by which a task chooses its data."""
    return {name for run in (a, b) for name in (*run.config.get("data", {}), *run.task.decides["data"])}


def setting_rows(a: IndexedRun, b: IndexedRun) -> dict[str, tuple[str, str]]:
    """The settings that differ, but for those of the data: see data_rows."""
    changed, data = differences(a.settings, b.settings).items(), data_names(a, b)
    return {format_value(name): pair(a, b, name, values) for name, values in changed if name not in data}


def data_rows(a: IndexedRun, b: IndexedRun) -> dict[str, tuple[str, str]]:
    changed, data = differences(a.settings, b.settings).items(), data_names(a, b)
    rows = {format_value(name): pair(a, b, name, values) for name, values in changed if name in data}
    sizes = a.last.get("valid_targets"), b.last.get("valid_targets")
    if None not in sizes and sizes[0] != sizes[1]:
        rows[f"{a.task.unit} of a validation"] = format_number(sizes[0]), format_number(sizes[1])
    return rows


def pair(a: IndexedRun, b: IndexedRun, name: str, values: tuple[Any, Any]) -> tuple[str, str]:
    """Both values; a version that did not have the setting has no value of it."""
    one, other = (
        format_value(value) if name in record.settings else "(not there)"
        for record, value in zip((a, b), values, strict=True)
    )
    return one, other


def result_rows(a: IndexedRun, b: IndexedRun) -> dict[str, tuple[str, str]]:
    """Steps, cost and time, and the best value of what both measured; equal numbers too."""
    rows = {}
    for name in dict.fromkeys(("step", a.task.unit, b.task.unit, "flops", "seconds")):
        if name in a.last or name in b.last:
            text = format_duration if name == "seconds" else format_number
            one, other = (text(record.last[name]) if name in record.last else "" for record in (a, b))
            rows["time" if name == "seconds" else name] = one, other
    for name in a.best:
        if name in b.best and name.startswith(("train_", "valid_", "test_")) and not name.endswith("_targets"):
            rows[f"best {name}"] = format_number(a.best[name][0]), format_number(b.best[name][0])
    return rows


def environment_rows(a: Run, b: Run) -> dict[str, tuple[str, str]]:
    """Python, machine and packages that differ."""
    flat = []
    for run in (a, b):
        environment = run.read("environment.json")
        packages = environment.pop("packages", None)
        flat.append(environment | (packages if isinstance(packages, dict) else {}))
    return {
        format_value(name): (format_value(flat[0].get(name, "?")), format_value(flat[1].get(name, "?")))
        for name in dict.fromkeys([*flat[0], *flat[1]])
        if flat[0].get(name, "?") != flat[1].get(name, "?")
    }


def code_diff(a: Run, b: Run) -> CodeDiff:
    """From the snapshots where both have one, else from the commits and what was not committed."""
    if (a.path / "code").is_dir() and (b.path / "code").is_dir():
        text = "".join(snapshot_diff(a.path / "code", b.path / "code"))
        return CodeDiff(["The snapshots differ:" if text else "The snapshots of the code are the same."], text)
    notes, text = commit_diff(*(str(run.read("code.json").get("commit") or "") for run in (a, b)))
    patches = [patch_of(run) for run in (a, b)]
    if patches[0] != patches[1]:
        only = f"Only {'A' if patches[0] else 'B'} had uncommitted changes:"
        notes.append("What was not committed differs:" if all(patches) else only)
        text += "".join(unified(patches[0], patches[1], "code.diff of A", "code.diff of B"))
    elif patches[0]:
        notes.append("Both had the same uncommitted changes.")
    return CodeDiff(notes, text)


def patch_of(run: Run) -> str:
    try:
        return (run.path / "code.diff").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def commit_diff(a: str, b: str) -> tuple[list[str], str]:
    """Sentences about two commits, and their diff where this checkout has both."""
    unknown = [run for run, commit in (("A", a), ("B", b)) if not COMMIT.fullmatch(commit)]
    if unknown:
        return [f"The commit of {' and '.join(unknown)} is not known."], ""
    if a == b:
        return [f"Both are of commit {a[:10]}."], ""
    try:
        words = ["git", "diff", "--no-color", "--no-ext-diff", a, b, "--"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, timeout=GIT_TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return [f"Commit {a[:10]} against {b[:10]}; git cannot compare them here."], ""
    if done.returncode:
        return [f"Commit {a[:10]} against {b[:10]}; this checkout does not have both."], ""
    return [f"Commit {a[:10]} against {b[:10]}:"], done.stdout.decode(errors="replace")


def snapshot_diff(a: Path, b: Path) -> Iterator[str]:
    for name in sorted({*files_under(a), *files_under(b)}):
        one, other = a / name, b / name
        try:
            if one.exists() and other.exists() and one.samefile(other):  # both are links to the one copy of it
                continue
            texts = [file.read_bytes() if file.is_file() else None for file in (one, other)]
        except OSError:
            continue
        if texts[0] == texts[1]:
            continue
        if any(text is not None and (len(text) > MAX_BYTES or b"\0" in text) for text in texts):
            yield f"--- a/{name}\n+++ b/{name}\n(not text, or too large to be compared)\n"
            continue
        lines = [(text or b"").decode(errors="replace") for text in texts]
        names = [f"{side}/{name}" if text is not None else "/dev/null" for side, text in zip("ab", texts, strict=True)]
        yield from unified(*lines, *names)


def files_under(folder: Path) -> list[str]:
    files = []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        files += [os.path.relpath(os.path.join(root, name), folder) for name in names]
    return files


def unified(a: str, b: str, name_a: str, name_b: str) -> Iterator[str]:
    for line in difflib.unified_diff(a.splitlines(), b.splitlines(), name_a, name_b, lineterm=""):
        yield f"{line}\n"


def files_of(text: str) -> list[tuple[str, int, int]]:
    """(file, lines added, lines removed) of a unified diff."""
    files: list[tuple[str, int, int]] = []
    lines = text.split("\n")
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("--- ") and after.startswith("+++ "):
            name = (line if after.startswith("+++ /dev/null") else after)[4:]
            files.append((re.sub(r"^[ab]/", "", name), -1, 0))  # the next line, +++, is no line of the file
        elif files and line[:1] in ("+", "-"):
            name, added, removed = files[-1]
            files[-1] = (name, added + (line[0] == "+"), removed + (line[0] == "-"))
    return files
