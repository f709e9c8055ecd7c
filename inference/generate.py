"""`python -m inference generate`: go on from a prompt, from many, or from what a person types."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from config.flags import SettingsError
from config.settings import Inference
from core.errors import UserError
from core.progress import notice, progress
from inference.commands import Generate, Model
from inference.continuation import Generator, Row
from inference.loading import load
from inference.prompts import asked, read_prompts
from inference.results import STDOUT, Results, open_results, wanted_path
from training.showing import readable

TITLE = 60  # letters of a prompt above its continuation
CLOSED_PIPE = 141  # the exit status of a program whose reader left: 128 + SIGPIPE


def main(model: Model, command: Generate, inference: Inference) -> int:
    """The exit status; a reader that leaves early (| head) ends it quietly."""
    refuse_idle(inference)
    prompts = read_prompts(command)
    path = wanted_path(command, inference)
    loaded = load(model)
    generator = Generator(loaded, command, inference, model.seed, in_detail=path is not None)
    rows = [generator.row(prompt) for prompt in prompts or ()]
    notice(f"{loaded.config.run.model_name}, step {loaded.step}: {loaded.checkpoint}")
    try:
        with open_results(command, inference, loaded, model.seed) as results:
            screen = Screen(sys.stdout, inference, silent=path == STDOUT)
            if prompts is None:
                converse(generator, screen, results)
            elif len(rows) == 1:
                alone(generator, rows[0], screen, results)
            else:
                several(generator, rows, screen, results)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains when it ends
        return CLOSED_PIPE
    finally:
        if generator.totals.tokens:
            notice(generator.totals.closing())
    return 0


def refuse_idle(inference: Inference) -> None:
    """Flags that would have no effect."""
    narrowing = {"infer_topk": inference.infer_topk > 0, "infer_topp": inference.infer_topp < 1}
    if inference.infer_temp == 0 and any(narrowing.values()):
        raise SettingsError(
            [
                f"--{name} has no effect with --infer_temp 0, which takes the likeliest: remove one of them."
                for name, given in narrowing.items()
                if given
            ]
        )


def alone(generator: Generator, row: Row, screen: Screen, results: Results) -> None:
    """One prompt: its text is printed as it comes."""
    screen.begin(row)
    try:
        for _, text in generator.go_on([row]):
            screen.put(text)
    except (KeyboardInterrupt, UserError):
        if row.tokens:
            screen.put(row.close(None))
            screen.end(row)
        raise
    screen.end(row)
    results.add(row)


def several(generator: Generator, rows: list[Row], screen: Screen, results: Results) -> None:
    """Many prompts: each is printed when it and all before it are done."""
    size, most = generator.command.batch_size, generator.inference.infer_max_gen_len
    shown = 0

    def show(row: Row) -> None:
        nonlocal shown
        shown += 1
        screen.whole(row, shown, len(rows))

    with progress("generating", "tokens at most", len(rows) * most) as advance:
        if screen.file.isatty():
            screen.file = sys.stdout  # the bar's, which makes room for a text; elsewhere it would swallow it
        for first in range(0, len(rows), size):
            batch = rows[first : first + size]
            try:
                for row, _ in generator.go_on(batch):
                    advance(1 if row.finish is None else 1 + most - len(row.tokens))
                    while shown < len(rows) and rows[shown].finish is not None:
                        results.add(rows[shown])
                        show(rows[shown])
            except (KeyboardInterrupt, UserError):
                for row in rows[shown : first + size]:
                    if row.finish is not None:
                        results.add(row)
                    else:
                        row.close(None)
                    show(row)
                raise


def converse(generator: Generator, screen: Screen, results: Results) -> None:
    """Ask, answer, and ask again; a mistake is told, and asking goes on."""
    for prompt in asked(sign_on_stdout=not screen.silent):
        try:
            if isinstance(prompt, UserError):
                raise prompt
            alone(generator, generator.row(prompt), screen, results)
        except UserError as mistake:
            notice(str(mistake))


class Screen:
    """Where continuations are printed; silent where the JSONL is printed instead."""

    def __init__(self, file: TextIO, inference: Inference, silent: bool) -> None:
        self.file, self.encoding = file, file.encoding
        self.inference, self.silent = inference, silent

    def put(self, text: str) -> None:
        if text and not self.silent:
            self.file.write(visible(text, self.encoding))
            self.file.flush()

    def begin(self, row: Row) -> None:
        self.put(row.prompt.text if self.inference.infer_echo else "")

    def end(self, row: Row) -> None:
        """The last line of a text and, if asked for, how likely the model found it."""
        self.put("\n")
        if self.inference.infer_logprobs and row.tokens:
            count, mean, perplexity = len(row.tokens), row.mean_logprob, row.perplexity
            self.put(f"[{count} tokens, mean log-probability {mean:.4f}, perplexity {perplexity:.2f}]\n")

    def whole(self, row: Row, number: int, count: int) -> None:
        """One of several, with the beginning of its prompt as a title."""
        prompt = row.prompt.text
        title = prompt if len(prompt) <= TITLE else prompt[: TITLE - 3] + "..."
        in_one_line = title.replace("\n", "\\n").replace("\t", "\\t")
        self.put(f"== {number} of {count}: {in_one_line}\n")
        self.begin(row)
        self.put(row.text)
        self.end(row)
        self.put("\n")


def visible(text: str, encoding: str | None) -> str:
    """A text as it may be printed: what a terminal would obey is written out, except new lines and tabs."""
    return "\t".join("\n".join(readable(part, encoding)) for part in text.split("\t"))
