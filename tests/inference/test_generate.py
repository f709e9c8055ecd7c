"""`python -m inference generate`, on runs that were really trained, as a person uses it."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from config.settings import Inference
from data.language.tokenizers import ByteTokenizer
from inference.__main__ import main
from inference.language.decoder import Prediction
from inference.language.generate import printable
from inference.language.generator import Generator, candidate_distance
from inference.language.walk import walk_rows
from inference.loading import ModelFlags, find_run, load
from inference.thinking import WalkState, plan_from_flags
from models.language import EnergyLM, token_energies
from tests.conftest import ROOT
from tests.support import warm

SEPARATOR, PAD = ByteTokenizer.separator_id, ByteTokenizer.pad_id
# Half a step, since a whole one of a residual energy ends at almost the same place from anywhere.
NOISY = {"--infer_langevin_dynamics_noise": "0.5", "--infer_ebt_override_alpha": "0.5"}
PROMPTS = ["The first", "a", "def main(argv: list", "It is", "The first"]


class Shell:
    """`python -m inference generate` in this process. out, err: what the last call printed."""

    def __init__(self, run: Path, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self.run, self.capsys, self.folder = run, capsys, folder
        self.out = self.err = ""

    def __call__(self, *flags: str, status: int = 0) -> str:
        """Its standard output; `status` is what it must return."""
        code = main(["generate", "--run", str(self.run), "--device", "cpu", *flags])
        self.out, self.err = self.capsys.readouterr()
        assert code == status, self.out + self.err
        model, _, rest = self.err.partition("\n")
        if ", step 6: " in model:  # a mistake is told before the model is named
            assert model.endswith(f", step 6: {self.run}/checkpoints/best.ckpt")
            self.err = rest
        return self.out

    def rows(self, *flags: str) -> list[dict[str, Any]]:
        """The objects that it writes."""
        path = self.folder / "out.jsonl"
        self(*flags, "--out", str(path))
        return [json.loads(line) for line in path.read_text().splitlines()]

    def error(self, *flags: str) -> str:
        """What it says of a mistake, on standard error alone."""
        self(*flags, status=2)
        assert not self.out
        return self.err.removesuffix("\n")


@pytest.fixture
def shell(ebt_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    return Shell(ebt_run, capsys, tmp_path)


@pytest.fixture
def residual_shell(residual_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    return Shell(residual_run, capsys, tmp_path)


@pytest.fixture
def plain_shell(baseline_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    return Shell(baseline_run, capsys, tmp_path)


@pytest.fixture
def fix_tokens(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[int]], None]:
    """Lets the model draw these tokens in turn."""

    def fix(tokens: Sequence[int]) -> None:
        left = iter(tokens)
        monkeypatch.setattr(
            "inference.language.generator.draw", lambda logits, uniform, sampling: torch.tensor([next(left)])
        )

    return fix


@pytest.fixture
def type_input(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts bytes on standard input."""

    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    def put(data: bytes, terminal: bool = False) -> None:
        kind = Terminal if terminal else io.TextIOWrapper
        monkeypatch.setattr(sys, "stdin", kind(io.BytesIO(data), encoding="utf-8"))

    return put


def prompts_file(folder: Path, prompts: list[str] = PROMPTS) -> str:
    path = folder / "prompts.txt"
    path.write_text("\n".join(prompts) + "\n")
    return str(path)


# what comes out


def test_text_is_printed_and_the_rest_is_said_beside_it(shell: Shell) -> None:
    text = shell("--prompt", "The first", "--infer_max_gen_len", "12", "--infer_ebt_num_steps", "3")
    assert text.endswith("\n") and not text.startswith("The first")
    assert shell.err.startswith("12 tokens, ") and "tokens/s, cache 0.0" in shell.err
    assert shell.err.endswith("steps per token: 3: 100%, mean 3.00\n")
    echoed = shell("--prompt", "The first", "--infer_max_gen_len", "12", "--infer_ebt_num_steps", "3", "--infer_echo")
    assert echoed == "The first" + text


@pytest.mark.parametrize("kind", ["ebt", "residual"])
def test_a_row_has_all_that_is_known_of_each_token(kind: str, shell: Shell, residual_shell: Shell) -> None:
    ask, more = (shell, {}) if kind == "ebt" else (residual_shell, NOISY)
    flags = ("--infer_temp", "0.5", "--infer_max_gen_len", "15", "--infer_generated_samples", "2", "--seed", "3")
    (row,) = ask.rows("--prompt", "The first", *flags, *(word for pair in more.items() for word in pair))
    assert list(row) == ["prompt", "text", "finish", "tokens", "seconds", "seed", "checkpoint"]
    assert (row["prompt"], row["seed"], row["finish"]) == ("The first", 3, "length")
    assert row["checkpoint"] == str(ask.run / "checkpoints" / "best.ckpt") and row["seconds"] > 0
    tokens = row["tokens"]
    assert all(list(token) == ["id", "text", "logprob", "energy", "prediction_energy", "steps"] for token in tokens)
    assert "".join(token["text"] for token in tokens) == row["text"]

    loaded = load(ModelFlags(run=str(ask.run), device="cpu"))
    model = loaded.model
    assert isinstance(model, EnergyLM)
    ids_1S = torch.tensor([[SEPARATOR, *b"The first", *(token["id"] for token in tokens)]])
    noisy: dict[str, Any] = {name.removeprefix("--"): float(value) for name, value in more.items()}
    inference = Inference(infer_generated_samples=2, **noisy)
    plan = plan_from_flags(model, inference, seed=3)
    assert plan is not None
    result = walk_rows(model, ids_1S[:, :-1], plan)
    came = slice(len("The first"), None)
    expected = {
        "logprob": result.y.log_softmax(-1).gather(2, ids_1S[:, 1:, None])[0, came, 0],  # at temperature 1
        "energy": token_energies(model, ids_1S[:, :-1], ids_1S[:, 1:])[0, came],
        "prediction_energy": result.energy[0, came],
        "steps": result.steps[0, came],
    }
    for name, values in expected.items():
        actual = torch.tensor([token[name] for token in tokens])
        torch.testing.assert_close(actual, values, rtol=1e-4, atol=1e-4, check_dtype=False, msg=name)


def test_a_transformer_has_neither_energy_nor_steps(plain_shell: Shell) -> None:
    (row,) = plain_shell.rows("--prompt", "The first", "--infer_max_gen_len", "5")
    assert [list(token) for token in row["tokens"]] == [["id", "text", "logprob"]] * 5
    assert "tokens/s, cache" in plain_shell.err and "steps" not in plain_shell.err


@pytest.mark.parametrize("kind", ["", "residual_", "plain_"])
def test_continuations_are_batch_invariant(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    ask: Shell = request.getfixturevalue(f"{kind}shell")
    flags = ("--infer_temp", "1", "--infer_topk", "200", "--infer_max_gen_len", "25", "--stop", *"eotainsr ")
    together = ask.rows("--prompts", prompts_file(tmp_path), *flags)
    assert [row["prompt"] for row in together] == PROMPTS
    assert len({len(row["tokens"]) for row in together}) > 2  # so rows left the batch one after another
    in_pairs = ask.rows("--prompts", prompts_file(tmp_path), *flags, "--batch_size", "2")

    def ids(row: dict[str, Any]) -> list[int]:
        return [token["id"] for token in row["tokens"]]

    assert list(map(ids, in_pairs)) == list(map(ids, together))
    for row in together[:4]:
        (alone,) = ask.rows("--prompt", row["prompt"], *flags)
        assert ids(alone) == ids(row)
        assert {name: alone[name] for name in ("text", "finish")} == {name: row[name] for name in ("text", "finish")}
    assert ids(together[0]) != ids(together[4])  # the same prompt again
    assert ids(ask.rows("--prompt", PROMPTS[0], *flags, "--seed", "1")[0]) != ids(together[0])


def test_a_long_continuation_outgrows_the_context(shell: Shell) -> None:
    (row,) = shell.rows("--prompt", "The first", "--infer_max_gen_len", "45")
    assert len(row["tokens"]) == 45


def test_the_likeliest_is_taken_without_temperature(plain_shell: Shell, baseline_run: Path) -> None:
    (row,) = plain_shell.rows("--prompt", "The first", "--infer_temp", "0", "--infer_max_gen_len", "4")
    model = load(ModelFlags(run=str(baseline_run), device="cpu")).model
    ids = [SEPARATOR, *b"The first"]
    for token in row["tokens"]:
        likeliest = model(torch.tensor([ids]))[0, -1, :PAD].argmax().item()
        assert token["id"] == likeliest
        ids.append(token["id"])


def test_a_separator_ends_it(shell: Shell, fix_tokens: Callable[[Sequence[int]], None]) -> None:
    fix_tokens([*b"end", SEPARATOR])
    (row,) = shell.rows("--prompt", "The", "--infer_logprobs")
    assert (row["text"], row["finish"]) == ("end", "separator")
    assert row["tokens"][-1]["id"] == SEPARATOR and row["tokens"][-1]["text"] == ""
    mean = sum(token["logprob"] for token in row["tokens"]) / 4
    assert row["mean_logprob"] == pytest.approx(mean) and row["perplexity"] == pytest.approx(math.exp(-mean))
    assert shell.out == f"end\n[4 tokens, mean log-probability {mean:.4f}, perplexity {math.exp(-mean):.2f}]\n"


def test_a_stop_text_is_cut_off(shell: Shell, fix_tokens: Callable[[Sequence[int]], None]) -> None:
    fix_tokens(b"one\n\ntwo")
    (row,) = shell.rows("--prompt", "The", "--stop", "two", "\n\n")
    assert (row["text"], row["finish"]) == ("one", "stop")
    assert bytes(token["id"] for token in row["tokens"]) == b"one\n\n"
    assert shell.out == "one\n"


def test_characters_come_whole_and_harmless(
    shell: Shell, fix_tokens: Callable[[Sequence[int]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = sys.stdout.write

    def record(text: str) -> int:
        written.append(text)
        return write(text)

    monkeypatch.setattr(sys.stdout, "write", record)
    fix_tokens("é\x1b[2J\t€\x9b\n".encode() + b"\xff")
    (row,) = shell.rows("--prompt", "The", "--infer_max_gen_len", "14")
    assert row["text"] == "é\x1b[2J\t€\x9b\n\ufffd"
    assert shell.out == "é\\x1b[2J\t€\\x9b\n\ufffd\n"
    assert written == ["é", "\\x1b", "[", "2", "J", "\t", "€", "\\x9b", "\n", "\ufffd", "\n"]
    assert printable("é\r", "ascii") == "\\xe9\\r"


def test_several_are_printed_under_titles(shell: Shell, tmp_path: Path) -> None:
    prompts = ["a\tb", "x" * 70]
    out = shell(
        "--prompts",
        prompts_file(tmp_path, prompts),
        "--infer_max_gen_len",
        "3",
        "--infer_echo",
        "--long_prompt",
        "window",
    )
    blocks = out.split("== ")
    assert blocks[1].startswith("1 of 2: a\\tb\na\tb") and blocks[2].startswith(f"2 of 2: {'x' * 57}...\n{'x' * 70}")
    assert shell.err.startswith("6 tokens, ")


def test_a_bar_on_the_terminal_does_not_take_the_text(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    out = shell("--prompts", prompts_file(tmp_path), "--infer_max_gen_len", "2")
    assert [line for line in out.splitlines() if line.startswith("== ")] == [
        f"== {number} of 5: {prompt}" for number, prompt in enumerate(PROMPTS, 1)
    ]
    assert "generating" in shell.err


def test_candidates_can_be_told_apart(shell: Shell) -> None:
    shell(
        "--prompt", "a", "--infer_max_gen_len", "2", "--infer_generated_samples", "3", "--infer_debug_sample_distances"
    )
    apart = float(shell.err.partition("candidates end ")[2].partition(" apart (mean total-variation")[0])
    assert 0 <= apart < 1
    logits = torch.tensor([[[0.0, 0.0, -99.0], [0.0, -99.0, -99.0]]])  # half and half, and the first alone
    rest = torch.zeros(1, 2)
    distance = candidate_distance(
        Prediction(logits[:, 0], WalkState(1, logits, rest, rest, 1, lambda: rest), torch.tensor([0]))
    )
    torch.testing.assert_close(distance, torch.tensor([0.5]))


def test_early_ends_of_walks_are_counted(shell: Shell) -> None:
    shell(
        "--prompt", "The", "--infer_max_gen_len", "9", "--infer_ebt_num_steps", "4", "--infer_ebt_stop_change", "1000"
    )
    assert shell.err.endswith("steps per token: 1: 100%, mean 1.00\n")


# where prompts come from and results go


def test_fields_beside_a_prompt_are_kept(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": 7, "prompt": "line\\nline", "half": "\\ud800"}\r\n{"prompt": "b", "text": "old"}\n')
    first, second = shell.rows("--prompts", str(path), "--infer_max_gen_len", "2")
    assert (first["id"], first["prompt"], first["half"]) == (7, "line\nline", "\ud800")
    assert second["text"] != "old" and "id" not in second


def test_a_flag_can_have_several_lines(shell: Shell) -> None:
    (row,) = shell.rows("--prompt", "def f():\n\treturn", "--infer_max_gen_len", "2")
    assert row["prompt"] == "def f():\n\treturn"


def test_standard_input_is_one_prompt(shell: Shell, type_input: Callable[..., None]) -> None:
    type_input("first\nsecond é\n".encode())
    (row,) = shell.rows("--infer_max_gen_len", "2")
    assert row["prompt"] == "first\nsecond é"


def test_rows_can_be_printed(shell: Shell, tmp_path: Path) -> None:
    out = shell("--prompts", prompts_file(tmp_path), "--infer_max_gen_len", "2", "--out", "-")
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == PROMPTS


def test_rows_go_to_the_output_folder(shell: Shell, tmp_path: Path) -> None:
    shell("--prompt", "a", "--infer_max_gen_len", "2", "--infer_output_dir", str(tmp_path / "new" / "results"))
    assert json.loads((tmp_path / "new" / "results" / "generate.jsonl").read_text())["prompt"] == "a"


def test_the_end_of_a_long_prompt_can_be_kept(shell: Shell) -> None:
    long = "".join(chr(97 + number % 26) for number in range(50))
    message = (
        "--prompt is 51 tokens long, the separator before it included: this model reads 32 at most; "
        "shorten it, or give --long_prompt window to keep its end."
    )
    assert shell.error("--prompt", long) == message
    (row,) = shell.rows("--prompt", long, "--long_prompt", "window", "--infer_temp", "0", "--infer_max_gen_len", "1")
    loaded = load(ModelFlags(run=str(shell.run), device="cpu"))
    likeliest = loaded.model(torch.tensor([list(long[-32:].encode())]))[0, -1, :PAD].argmax().item()
    assert row["tokens"][0]["id"] == likeliest


@pytest.mark.parametrize("terminal", [True, False])
def test_a_person_is_asked_again_and_again(terminal: bool, shell: Shell, type_input: Callable[..., None]) -> None:
    type_input(b"The\n" + b"x" * 40 + b"\n\nThe\n\xff\n/quit\nnever\n", terminal)
    out = shell("--infer_max_gen_len", "4", *([] if terminal else ["--interactive"]))
    assert out.count("> ") == 6
    mistakes = shell.err.splitlines()[:-1]
    assert mistakes[0].startswith("the prompt is 41 tokens long") and "--long_prompt window" in mistakes[0]
    assert mistakes[1] == "the prompt is not UTF-8, byte 1 of it is 0xff: convert it to UTF-8."
    assert shell.err.splitlines()[-1].startswith("8 tokens, ")
    answers = [answer.strip("\n") for answer in out.split("> ") if answer.strip("\n")]
    assert len(answers) == 2 and answers[0] != answers[1]  # the same prompt again goes on differently


@pytest.mark.parametrize("typed", [b"", b"\n\nnever\n"])
def test_asking_ends(typed: bytes, shell: Shell, type_input: Callable[..., None]) -> None:
    type_input(typed)
    assert shell("--interactive", "--out", "-") == ""
    assert shell.err in ("> \n", "> > ")


# ends before the end


def interrupted_after(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    predict, left = Generator.predict, iter(range(tokens))

    def stopping(*args: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return predict(*args)

    monkeypatch.setattr(Generator, "predict", stopping)


def test_ctrl_c_leaves_what_there_is(
    shell: Shell, fix_tokens: Callable[[Sequence[int]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_tokens(b"so far\xe2")
    interrupted_after(7, monkeypatch)
    assert shell("--prompt", "The", status=130) == "so far\ufffd\n"
    assert shell.err.startswith("7 tokens, ") and shell.err.endswith("stopped by hand\n")


def test_ctrl_c_keeps_the_rows_that_are_done(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_after(5, monkeypatch)
    out, file = tmp_path / "out.jsonl", prompts_file(tmp_path)
    flags = ("--infer_max_gen_len", "3", "--batch_size", "2", "--out", str(out))
    printed = shell("--prompts", file, *flags, status=130)
    assert [json.loads(line)["prompt"] for line in out.read_text().splitlines()] == PROMPTS[:2]
    assert [f"== {number} of 5: {prompt}" in printed for number, prompt in enumerate(PROMPTS, 1)] == [True] * 4 + [
        False
    ]


def test_a_reader_that_leaves_is_no_error(ebt_run: Path) -> None:
    command = [sys.executable, "-m", "inference", "generate", "--run", str(ebt_run), "--prompt", "The", "--infer_echo"]
    running = warm.start(
        [*command, "--infer_max_gen_len", "2000"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert running.stdout is not None and running.stderr is not None
    assert running.stdout.read(3) == b"The"
    running.stdout.close()
    message = running.stderr.read().decode()
    assert running.wait(60) == 141
    assert len(message.splitlines()) == 2 and "tokens/s" in message


# mistakes


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prompt", ""], "--prompt is empty: give a text, or leave the flag out."),
        (["--prompt", "a\x1b"], "--prompt is 'a\\x1b': give a text without control characters."),
        (["--prompt", "a", "--infer_temp", "-0.1"], "--infer_temp is -0.1: give a number of at least 0."),
        (
            ["--prompt", "a", "--infer_ebt_num_steps", "0"],
            "--infer_ebt_num_steps is 0: give a whole number of at least 1.",
        ),
        (["--prompt", "a", "--infer_topp", "0"], "--infer_topp is 0: give a number above 0 and at most 1."),
        (
            ["--prompt", "a", "--infer_temp", "0", "--infer_topk", "3"],
            "--infer_topk has no effect with --infer_temp 0, which takes the likeliest token: "
            "remove it, or give a temperature.",
        ),
        (
            ["--prompt", "a", "--infer_debug_sample_distances"],
            "--infer_debug_sample_distances has no effect with --infer_generated_samples 1: "
            "remove it, or ask for more.",
        ),
        (
            ["--prompt", "a", "--prompts", "b"],
            "--prompt and --prompts are given together: each says where prompts come from; keep one.",
        ),
        (
            ["--prompts", "a", "--interactive"],
            "--prompts and --interactive are given together: each says where prompts come from; keep one.",
        ),
        (["--prompt", "a\udcff"], "--prompt is 'a\\udcff': give a text in UTF-8."),
        (["--prompts", "none.txt"], "--prompts is 'none.txt': there is no such file; give one with a prompt a line."),
        (["--prompts", "/"], "--prompts is '/': cannot read it (Is a directory); give a text file."),
        (
            ["--prompt", "a", "--out", "/none/out.jsonl"],
            "--out is '/none/out.jsonl': it cannot be written (No such file or directory); choose another.",
        ),
        (
            ["--prompt", "a", "--infer_output_dir", "/dev/null/x"],
            "--infer_output_dir is '/dev/null/x': it cannot be written (Not a directory); choose another.",
        ),
    ],
)
def test_mistakes_are_explained(flags: list[str], message: str, shell: Shell) -> None:
    assert shell.error(*flags) == message


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.txt", b"", "--prompts is '{}': the file is empty; write a prompt a line into it."),
        ("p.txt", b"a\n\nb\n", "line 2 of {} is empty: write a prompt there, or remove the line."),
        ("p.txt", b"ab\n\xe9", "--prompts {} is not UTF-8, byte 4 of it is 0xe9: convert it to UTF-8."),
        (
            "p.jsonl",
            b'{"prompt": "a"}\n{"text": "b"}\n',
            'line 2 of {} has no text `prompt`: write {{"prompt": "..."}}.',
        ),
        ("p.jsonl", b"[1]\n", 'line 1 of {} has no text `prompt`: write {{"prompt": "..."}}.'),
        ("p.jsonl", b'{"prompt": ""}\n', "line 1 of {} has an empty `prompt`: write a text there, or remove the line."),
        (
            "p.jsonl",
            b"{\n",
            "line 1 of {} is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)): "
            'write {{"prompt": "..."}}.',
        ),
        (
            "p.jsonl",
            b'{"prompt": "a\\udcff"}',
            "line 1 of {} is not UTF-8, byte 2 of it is 0xed: convert it to UTF-8.",
        ),
    ],
)
def test_mistakes_in_a_file_are_explained(
    name: str, content: bytes, message: str, shell: Shell, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert shell.error("--prompts", str(path)) == message.format(path)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (b"\n", "standard input is empty: give a text there, or with --prompt or --prompts."),
        (b"a\xff", "standard input is not UTF-8, byte 2 of it is 0xff: convert it to UTF-8."),
    ],
)
def test_mistakes_on_standard_input_are_explained(
    typed: bytes, message: str, shell: Shell, type_input: Callable[..., None]
) -> None:
    type_input(typed)
    assert shell.error() == message


def test_brackets_without_end_are_no_json(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("[" * 100_000)
    assert shell.error("--prompts", str(tmp_path / "p.jsonl")).startswith(f"line 1 of {tmp_path}/p.jsonl is not JSON (")


def test_prompts_are_not_overwritten(shell: Shell, tmp_path: Path) -> None:
    path = prompts_file(tmp_path)
    message = f"--out is {path!r}: that would overwrite the file of --prompts; choose another."
    assert shell.error("--prompts", path, "--out", path) == message
    assert Path(path).read_text().split("\n")[:-1] == PROMPTS


def test_a_mistake_leaves_earlier_results_alone(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("earlier\n")
    shell.error("--prompt", "x" * 99, "--out", str(tmp_path / "out.jsonl"))
    assert (tmp_path / "out.jsonl").read_text() == "earlier\n"


def test_candidates_without_noise_are_refused(residual_shell: Shell) -> None:
    message = (
        "--infer_generated_samples is 2: without noise all candidates of this model are the same; "
        "add --infer_langevin_dynamics_noise, or ask for 1."
    )
    assert residual_shell.error("--prompt", "a", "--infer_generated_samples", "2") == message


def test_a_model_without_energy_takes_no_steps(plain_shell: Shell) -> None:
    message = plain_shell.error("--prompt", "a", "--infer_generated_samples", "4", "--infer_ebt_num_steps", "3")
    assert message == (
        "--infer_ebt_num_steps, --infer_generated_samples: this model has no energy to walk down; "
        "leave it out, or choose an EBT's run."
    )


def test_steps_that_explode_are_told(shell: Shell) -> None:
    flags = ("--infer_ebt_override_alpha", "1e38", "--infer_ebt_num_steps", "9")
    assert shell.error("--prompt", "a", *flags).startswith(
        "the prediction of token 1 is not finite: take shorter or fewer steps "
        "(--infer_ebt_override_alpha, --infer_ebt_num_steps) or, if its training diverged, an earlier --ckpt."
    )


def with_ckpt(path: Path, logs: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of a checkpoint that cannot be used."""
    assert main(["generate", "--ckpt", str(path), "--logs_dir", str(logs), "--prompt", "a"]) == 2
    out, err = capsys.readouterr()
    assert not out
    return err.removesuffix("\n")


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.file}",)


def test_a_checkpoint_that_holds_code_is_refused(
    tmp_path: Path, ebt_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, sprung, path = ebt_run.parent.parent, tmp_path / "sprung", tmp_path / "trap.ckpt"
    hint = f" Runs in {logs}: {ebt_run.name}."
    torch.save({"state_dict": {}, "run": Trap(sprung)}, path)
    refused = f"{path} holds more than tensors and plain values: refused, and nothing in it was run."
    assert with_ckpt(path, logs, capsys) == refused + hint
    path.write_bytes(pickle.dumps(Trap(sprung)))
    assert with_ckpt(path, logs, capsys).startswith(f"{path} is not a whole checkpoint (File is not a zip file)")
    assert not sprung.exists()
    pickle.loads(path.read_bytes())
    assert sprung.exists()  # so it was a trap


def test_a_foreign_or_missing_checkpoint_is_refused(
    tmp_path: Path, ebt_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, path = ebt_run.parent.parent, tmp_path / "foreign.ckpt"
    hint = f"Runs in {logs}: {ebt_run.name}."
    assert with_ckpt(path, logs, capsys) == f"--ckpt is '{path}': there is no such file. {hint}"
    torch.save({"weights": torch.zeros(2)}, path)
    assert with_ckpt(path, logs, capsys) == (
        f"{path} is not a checkpoint of this toolkit: it has no record of its run. {hint}"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("letter.txt", "hello")
    assert with_ckpt(path, logs, capsys) == (
        f"{path} is not a checkpoint of this toolkit: it is another kind of archive. {hint}"
    )
    path.write_bytes((ebt_run / "checkpoints" / "last.ckpt").read_bytes()[:-1000])
    assert f"{path} is not a whole checkpoint" in with_ckpt(path, logs, capsys)


def test_a_missing_run_is_told(tmp_path: Path, ebt_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = ebt_run.parent.parent
    assert main(["generate", "--run", "nobody", "--logs_dir", str(logs), "--prompt", "a"]) == 2
    assert capsys.readouterr().err == f"--run is 'nobody': there is no such run. Runs in {logs}: {ebt_run.name}.\n"
    assert main(["generate", "--logs_dir", str(tmp_path), "--prompt", "a"]) == 2
    assert capsys.readouterr().err == (
        f"--run is missing: there is no run. There is no trained run in {tmp_path}: "
        "train one with python train_model.py, or give --logs_dir.\n"
    )


def test_without_a_name_the_newest_run_is_meant_and_not_its_twins(
    ebt_run: Path, baseline_run: Path, tmp_path: Path
) -> None:
    mine = shutil.copytree(ebt_run, tmp_path / "runs" / ebt_run.name)
    for number, suffix in enumerate(("transformer++", "transformer++-flops")):  # as --compare_baseline names them
        twin = shutil.copytree(baseline_run, tmp_path / "runs" / f"twin_29990101-00000{number}_000000")
        settings = (twin / "config.json").read_text()
        (twin / "config.json").write_text(settings.replace('"tiny-transformer"', f'"tiny-ebt-{suffix}"'))
        assert find_run(f"tiny-ebt-{suffix}", str(tmp_path), "--run") == twin
    assert find_run(None, str(tmp_path), "--run") == mine
    shutil.rmtree(mine)
    assert find_run(None, str(tmp_path), "--run") == twin  # where there is nothing else


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from inference.__main__ import main\n"
        "try: main(['generate', '--help'])\n"
        "except SystemExit: print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == "False\n"
    assert "--long_prompt" in done.stdout and "--infer_plot_energy_landscape" not in done.stdout
