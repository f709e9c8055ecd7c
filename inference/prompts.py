"""Where prompts come from: a flag, a file, standard input, or a person who is asked for them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.flags import SettingsError
from core.errors import UserError
from inference.commands import Generate

SIGN = "> "
QUIT = "/quit"


@dataclass(frozen=True)
class Prompt:
    """A text to go on from. where: its name in a message; fields: what else was beside it in a .jsonl file."""

    text: str
    where: str
    fields: dict[str, Any] = field(default_factory=dict)


def read_prompts(command: Generate) -> list[Prompt] | None:
    """The prompts of the command line; None to ask a person for them."""
    given = {"prompt": command.prompt is not None, "prompts": command.prompts is not None}
    flags = [f"--{name}" for name in (*given, "interactive") if given.get(name, command.interactive)]
    if len(flags) > 1:
        raise SettingsError([f"{' and '.join(flags)} are given together: each says what to go on from; keep one."])
    if command.prompt is not None:
        return [Prompt(command.prompt, "--prompt")]
    if command.prompts is not None:
        return read_file(command.prompts)
    if command.interactive or sys.stdin.isatty():
        return None
    where = "standard input"
    text = as_text(sys.stdin.buffer.read(), where).removesuffix("\n")  # echo and editors add it
    if not text:
        raise UserError(f"{where} is empty: give a text there, or with --prompt or --prompts.")
    return [Prompt(text, where)]


def as_text(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start + 1} of it is 0x{data[error.start]:02x}"
        raise UserError(f"{where} is not UTF-8, {wrong}: convert it to UTF-8.") from error


def read_file(name: str) -> list[Prompt]:
    """A prompt of each line; of a .jsonl file, of each line's field prompt."""
    flag = f"--prompts is {name!r}"
    try:
        data = Path(name).read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{flag}: there is no such file.") from error
    except OSError as error:
        raise UserError(f"{flag}: it cannot be read ({error.strerror}).") from error
    lines = as_text(data, f"--prompts {name}").removeprefix("\ufeff").removesuffix("\n").split("\n")
    if lines == [""]:
        raise UserError(f"{flag}: the file is empty; write a prompt a line into it.")
    read = from_json if name.endswith(".jsonl") else from_line
    return [read(line.removesuffix("\r"), f"line {number} of {name}") for number, line in enumerate(lines, 1)]


def from_line(line: str, where: str) -> Prompt:
    if not line:
        raise UserError(f"{where} is empty: write a prompt there, or remove the line.")
    return Prompt(line, where)


def from_json(line: str, where: str) -> Prompt:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f'{where} is not JSON ({error}): write {{"prompt": "..."}}.') from error
    if not isinstance(fields, dict) or not isinstance(fields.get("prompt"), str):
        raise UserError(f'{where} has no text `prompt`: write {{"prompt": "..."}}.')
    text = fields.pop("prompt")
    if not text:
        raise UserError(f"{where} has an empty `prompt`: write a text there, or remove the line.")
    return Prompt(as_text(text.encode(errors="surrogatepass"), where), where, fields)


def asked(sign_on_stdout: bool) -> Iterator[Prompt | UserError]:
    """What a person types, a line a prompt, until the end of the input, /quit, or two empty lines.

    A line that is no text comes as the mistake it is, so that asking goes on.
    """
    if sys.stdin.isatty():
        import readline  # noqa: F401  (importing it lets input() edit its line)
    # without it a wrong byte would end the session: with it as_text finds and tells it
    sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    empty = 0
    while empty < 2:
        if not sign_on_stdout:
            print(SIGN, end="", file=sys.stderr, flush=True)
        try:
            line = input(SIGN if sign_on_stdout else "")
        except EOFError:
            print(file=sys.stdout if sign_on_stdout else sys.stderr)
            return
        if line.strip() == QUIT:
            return
        empty = 0 if line else empty + 1
        if not line:
            continue
        try:
            yield Prompt(as_text(line.encode(errors="surrogateescape"), "the prompt"), "the prompt")
        except UserError as mistake:
            yield mistake
