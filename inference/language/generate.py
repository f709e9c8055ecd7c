"""`python -m inference generate`: continue one prompt, many, or what a person types; print the text, write JSONL."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TextIO

from config.flags import SettingsError
from config.settings import Inference
from core.errors import UserError
from core.progress import print_note, progress
from core.text import printable_lines
from inference.language.generator import Continuation, Generator, Prompt, unused_sampling_flags
from inference.loading import Loaded, ModelFlags, load
from tasks.language_commands import GenerateFlags

TITLE_LENGTH = 60  # characters of a prompt above its continuation
STDOUT = "-"
FILE_NAME = "generate.jsonl"  # in --infer_output_dir
PROMPT_SIGN = "> "
QUIT = "/quit"


def main(model: ModelFlags, command: GenerateFlags, inference: Inference) -> int:
    if problems := unused_sampling_flags(inference):
        raise SettingsError(problems)
    prompts = read_prompts(command)
    path = output_path(command, inference)
    loaded = load(model)
    generator = Generator(loaded, command, inference, model.seed, with_energies=path is not None)
    rows = [generator.continuation(prompt) for prompt in prompts or ()]
    print_note(f"{loaded.config.run.model_name}, step {loaded.step}: {loaded.checkpoint}")
    try:
        with open_results(command, inference, loaded, model.seed) as results:
            console = ConsoleWriter(sys.stdout, inference, silent=path == STDOUT)
            if prompts is None:
                generate_interactive(generator, console, results)
            elif len(rows) == 1:
                generate_one(generator, rows[0], console, results)
            else:
                generate_many(generator, rows, console, results)
    finally:
        if generator.totals.tokens:
            print_note(generator.totals.summary())
    return 0


def generate_one(generator: Generator, row: Continuation, console: ConsoleWriter, results: ResultWriter) -> None:
    """One prompt: its text is printed token by token."""
    console.begin(row)
    try:
        for _, text in generator.continue_all([row]):
            console.put(text)
    except (KeyboardInterrupt, UserError):
        if row.tokens:
            console.put(row.close(None))
            console.end(row)
        raise
    console.end(row)
    results.add(row)


def generate_many(
    generator: Generator, rows: list[Continuation], console: ConsoleWriter, results: ResultWriter
) -> None:
    """Many prompts: each is printed when it and all before it are done."""
    size, longest = generator.command.batch_size, generator.inference.infer_max_gen_len
    num_printed = 0

    def show(row: Continuation) -> None:
        nonlocal num_printed
        num_printed += 1
        console.whole(row, num_printed, len(rows))

    with progress("generating", "tokens at most", len(rows) * longest) as advance:
        if console.file.isatty():
            console.file = sys.stdout  # replaced by the bar, which makes room for text
        for first in range(0, len(rows), size):
            batch = rows[first : first + size]
            try:
                for row, _ in generator.continue_all(batch):
                    advance(1 if row.finish is None else 1 + longest - len(row.tokens))
                    while num_printed < len(rows) and rows[num_printed].finish is not None:
                        results.add(rows[num_printed])
                        show(rows[num_printed])
            except (KeyboardInterrupt, UserError):
                for row in rows[num_printed : first + size]:
                    if row.finish is not None:
                        results.add(row)
                    else:
                        row.close(None)
                    show(row)
                raise


def generate_interactive(generator: Generator, console: ConsoleWriter, results: ResultWriter) -> None:
    """Read prompts and continue each; a mistake is printed and does not end the loop."""
    for prompt in read_interactive(sign_on_stdout=not console.silent):
        try:
            if isinstance(prompt, UserError):
                raise prompt
            generate_one(generator, generator.continuation(prompt), console, results)
        except UserError as error:
            print_note(str(error))


class ConsoleWriter:
    """Prints continuations; silent where the JSONL is printed instead."""

    def __init__(self, file: TextIO, inference: Inference, silent: bool) -> None:
        self.file, self.encoding = file, file.encoding
        self.inference, self.silent = inference, silent

    def put(self, text: str) -> None:
        if text and not self.silent:
            self.file.write(printable(text, self.encoding))
            self.file.flush()

    def begin(self, row: Continuation) -> None:
        self.put(row.prompt.text if self.inference.infer_echo else "")

    def end(self, row: Continuation) -> None:
        """End the last line of a text and, with --infer_logprobs, print its log-probability."""
        self.put("\n")
        if self.inference.infer_logprobs and row.tokens:
            count, mean, perplexity = len(row.tokens), row.mean_logprob, row.perplexity
            self.put(f"[{count} tokens, mean log-probability {mean:.4f}, perplexity {perplexity:.2f}]\n")

    def whole(self, row: Continuation, number: int, count: int) -> None:
        """A complete continuation, below a title with the beginning of its prompt."""
        prompt = row.prompt.text
        title = prompt if len(prompt) <= TITLE_LENGTH else prompt[: TITLE_LENGTH - 3] + "..."
        in_one_line = title.replace("\n", "\\n").replace("\t", "\\t")
        self.put(f"== {number} of {count}: {in_one_line}\n")
        self.begin(row)
        self.put(row.text)
        self.end(row)
        self.put("\n")


def printable(text: str, encoding: str | None) -> str:
    """A text with its control characters escaped, except new lines and tabs."""
    return "\t".join("\n".join(printable_lines(part, encoding)) for part in text.split("\t"))


def read_prompts(command: GenerateFlags) -> list[Prompt] | None:
    """The prompts of the command line; None to read them interactively."""
    is_set = {
        "--prompt": command.prompt is not None,
        "--prompts": command.prompts is not None,
        "--interactive": command.interactive,
    }
    flags = [flag for flag in is_set if is_set[flag]]
    if len(flags) > 1:
        raise SettingsError([f"{' and '.join(flags)} are given together: each says where prompts come from; keep one."])
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
        byte = f"byte {error.start + 1} of it is 0x{data[error.start]:02x}"
        raise UserError(f"{where} is not UTF-8, {byte}: convert it to UTF-8.") from error


def read_file(name: str) -> list[Prompt]:
    """A prompt a line; in a .jsonl file, the field `prompt` of each line."""
    flag = f"--prompts is {name!r}"
    try:
        data = Path(name).read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{flag}: there is no such file; give one with a prompt a line.") from error
    except OSError as error:
        raise UserError(f"{flag}: cannot read it ({error.strerror}); give a text file.") from error
    lines = as_text(data, f"--prompts {name}").removeprefix("\ufeff").removesuffix("\n").split("\n")
    if lines == [""]:
        raise UserError(f"{flag}: the file is empty; write a prompt a line into it.")
    parse = prompt_from_json if name.endswith(".jsonl") else prompt_from_line
    return [parse(line.removesuffix("\r"), f"line {number} of {name}") for number, line in enumerate(lines, 1)]


def prompt_from_line(line: str, where: str) -> Prompt:
    if not line:
        raise UserError(f"{where} is empty: write a prompt there, or remove the line.")
    return Prompt(line, where)


def prompt_from_json(line: str, where: str) -> Prompt:
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


def read_interactive(sign_on_stdout: bool) -> Iterator[Prompt | UserError]:
    """The lines that a person types, each a prompt, until the end of the input, /quit, or two empty lines.

    A line that is not text is yielded as an error, so that reading continues.
    """
    if sys.stdin.isatty():
        import readline  # noqa: F401  (importing it lets input() edit its line)
    # a wrong byte must not end the session: as_text reports it
    sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    empty = 0
    while empty < 2:
        if not sign_on_stdout:
            print(PROMPT_SIGN, end="", file=sys.stderr, flush=True)
        try:
            line = input(PROMPT_SIGN if sign_on_stdout else "")
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
        except UserError as error:
            yield error


def output_path(command: GenerateFlags, inference: Inference) -> str | None:
    """The path of the JSONL file: --out, or a file in --infer_output_dir."""
    if command.out is None and inference.infer_output_dir is not None:
        return str(Path(inference.infer_output_dir) / FILE_NAME)
    return command.out


class ResultWriter:
    """Writes the JSONL: an object for each prompt, complete as soon as it is done."""

    def __init__(self, file: IO[bytes] | None, loaded: Loaded, seed: int, with_means: bool) -> None:
        self.file, self.loaded, self.seed, self.with_means = file, loaded, seed, with_means

    def add(self, row: Continuation) -> None:
        if self.file is None:
            return
        about: dict[str, Any] = {"prompt": row.prompt.text, "text": row.text, "finish": row.finish}
        if self.with_means:
            about |= {"mean_logprob": row.mean_logprob, "perplexity": row.perplexity}
        about |= {"tokens": row.tokens, "seconds": round(row.seconds, 4)}
        about |= {"seed": self.seed, "checkpoint": str(self.loaded.checkpoint)}
        # some characters above 127 control a terminal; a lone surrogate of a copied field stays an escape
        line = json.dumps(row.prompt.fields | about, ensure_ascii=self.file is sys.stdout.buffer)
        self.file.write(line.encode(errors="backslashreplace") + b"\n")
        self.file.flush()


@contextmanager
def open_results(command: GenerateFlags, inference: Inference, loaded: Loaded, seed: int) -> Iterator[ResultWriter]:
    """The writer of a new results file; one that cannot be written is refused before any work is done."""
    path, with_means = output_path(command, inference), inference.infer_logprobs
    if path is None or path == STDOUT:
        yield ResultWriter(None if path is None else sys.stdout.buffer, loaded, seed, with_means)
        return
    flag = "--infer_output_dir" if command.out is None else "--out"
    value = inference.infer_output_dir if command.out is None else command.out
    if command.prompts is not None and Path(path).exists() and Path(path).samefile(command.prompts):
        raise UserError(f"{flag} is {value!r}: that would overwrite the file of --prompts; choose another.")
    try:
        if command.out is None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "wb")  # noqa: SIM115  (only errors of opening it are caught here)
    except OSError as error:
        raise UserError(f"{flag} is {value!r}: it cannot be written ({error.strerror}); choose another.") from error
    with file:
        yield ResultWriter(file, loaded, seed, with_means)
