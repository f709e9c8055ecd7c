"""What `generate` leaves as JSONL: an object for each prompt, written whole as soon as it is done."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from config.settings import Inference
from core.errors import UserError
from inference.commands import Generate
from inference.continuation import Row
from inference.loading import Loaded

STDOUT = "-"
FILE = "generate.jsonl"  # in --infer_output_dir


def wanted_path(command: Generate, inference: Inference) -> str | None:
    """Where --out, or else --infer_output_dir, wants it."""
    if command.out is None and inference.infer_output_dir is not None:
        return str(Path(inference.infer_output_dir) / FILE)
    return command.out


class Results:
    """A line for each continuation; a killed run leaves whole lines."""

    def __init__(self, file: IO[bytes] | None, loaded: Loaded, seed: int, with_means: bool) -> None:
        self.file, self.loaded, self.seed, self.with_means = file, loaded, seed, with_means

    def add(self, row: Row) -> None:
        if self.file is None:
            return
        about: dict[str, Any] = {"prompt": row.prompt.text, "text": row.text, "finish": row.finish}
        if self.with_means:
            about |= {"mean_logprob": row.mean_logprob, "perplexity": row.perplexity}
        about |= {"tokens": row.tokens, "seconds": round(row.seconds, 4)}
        about |= {"seed": self.seed, "checkpoint": str(self.loaded.checkpoint)}
        # a terminal obeys some characters above 127 too; half a character of a copied field stays an escape
        line = json.dumps(row.prompt.fields | about, ensure_ascii=self.file is sys.stdout.buffer)
        self.file.write(line.encode(errors="backslashreplace") + b"\n")
        self.file.flush()


@contextmanager
def open_results(command: Generate, inference: Inference, loaded: Loaded, seed: int) -> Iterator[Results]:
    """The results file, made anew; one that cannot be written is told before any work is done."""
    path, with_means = wanted_path(command, inference), inference.infer_logprobs
    if path is None or path == STDOUT:
        yield Results(None if path is None else sys.stdout.buffer, loaded, seed, with_means)
        return
    flag = "--infer_output_dir" if command.out is None else "--out"
    given = inference.infer_output_dir if command.out is None else command.out
    if command.prompts is not None and Path(path).exists() and Path(path).samefile(command.prompts):
        raise UserError(f"{flag} is {given!r}: that would overwrite the file of --prompts; choose another.")
    try:
        if command.out is None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "wb")  # noqa: SIM115  (what is written later has errors of its own)
    except OSError as error:
        raise UserError(f"{flag} is {given!r}: it cannot be written ({error.strerror}); choose another.") from error
    with file:
        yield Results(file, loaded, seed, with_means)
