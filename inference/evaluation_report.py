"""What an evaluation shows on the screen, and what it leaves in the run folder."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from config.settings import Data, Inference
from core.errors import UserError
from core.files import append_row
from data.sources import Source
from inference.commands import Evaluate
from inference.loading import Loaded
from inference.questions import Answer
from inference.text_loss import Text, bits_per_nat
from inference.thinking import Plan
from training.showing import readable

RECORD = "evaluation.jsonl"
SHOWN_ANSWERS, SHOWN_WIDTH = 3, 100


@dataclass(frozen=True)
class Work:
    """One evaluation. own: the data is what the run was trained on; share: of the rows or questions."""

    loaded: Loaded
    command: Evaluate
    inference: Inference
    seed: int
    plan: Plan | None
    data: Data
    source: Source
    own: bool
    split: str
    share: float
    folder: Path

    @property
    def title(self) -> str:
        part = "all" if self.split == "all" else f"{self.split} split"
        return f"{self.data.dataset_name}, {part}"


def show_text(work: Work, result: dict[str, Any], text: Text) -> None:
    """The table of a text, and for an EBT how the walks went."""
    targets = int(result["targets"])
    of_all = f" of {text.rows.num_targets:,}" if text.whole else ""
    part = (
        f"{targets:,} tokens"
        if text.whole and text.count == len(text.rows)
        else f"the first {targets:,}{of_all} tokens"
    )
    bits = bits_per_nat(text.rows)
    low, high = result.get("loss_low"), result.get("loss_high")
    table = new_table(low is not None)
    print(f"\n{work.title}, {part}")

    def line(name: str, value: float, of: Callable[[float], float]) -> None:
        between = [] if low is None or high is None else [f"{of(low):.4f} to {of(high):.4f}"]
        table.add_row(name, f"{value:.4f}", *between)

    line("nats per token", result["loss"], lambda loss: loss)
    line("bits per byte", result["bits_per_byte"], lambda loss: loss * bits)
    line("perplexity", result["perplexity"], lambda loss: math.exp(min(loss, 700)))
    table.add_row("accuracy", f"{result['accuracy']:.2%}")
    table.add_row("top-5 accuracy", f"{result['top5']:.2%}")
    Console().print(table)
    if not math.isfinite(result["loss"]):
        print("the loss is no number: the model's walk, or its weights, went beyond all numbers; take shorter steps")
    elif low is not None:
        over = result["interval_over"]
        few = f", since they are of {plural(result['documents'], 'document')} only" if over == "rows" else ""
        print(f"95% interval: bootstrap over {result[over]:,} {over}{few}")
    if work.plan is None:
        return
    losses = {name: value for name, value in result.items() if name.startswith("loss_step_")}
    by_step = ", ".join(f"{name.removeprefix('loss_step_')}: {value:.4f}" for name, value in losses.items())
    of_all = f", mean of {work.plan.candidates} candidates" if work.plan.candidates > 1 else ""
    print(f"loss after steps {by_step}{of_all}; thinking gains {result['thinking_gain']:.4f} nats per token")
    print(f"energy from {result['energy_first']:.4f} to {result['energy_last']:.4f}, mean of all tokens")
    if "steps" in result:
        shares = ", ".join(f"{step}: {count / targets:.1%}" for step, count in result["steps"].items())
        print(f"steps taken {result['mean_steps']:.2f} on average ({shares} of the tokens)")


def show_answers(work: Work, answers: list[Answer], result: dict[str, Any], found: int) -> None:
    """The table of a question set, its remarks, and the first answers."""
    asked = plural(found, "question")
    part = asked if len(answers) == found else f"the first {len(answers):,} of {asked}"
    table = new_table(True)
    print(f"\n{work.title}, {part}")
    table.add_row("exact match", f"{result['exact']:.2%}", f"{result['exact_low']:.2%} to {result['exact_high']:.2%}")
    table.add_row("F1", f"{result['f1']:.2%}")
    if "choice_accuracy" in result:
        between = f"{result['choice_low']:.2%} to {result['choice_high']:.2%}"
        table.add_row("likeliest choice is right", f"{result['choice_accuracy']:.2%}", between)
    Console().print(table)
    if work.split not in (*work.source.splits, "all"):
        print(f"the {work.split} split is cut from the training examples: {work.data.dataset_name} has none of its own")
    if result["cut_prompts"]:
        context = work.loaded.config.architecture.context_length
        cut = plural(result["cut_prompts"], "prompt")
        print(f"longer than the context of {context} tokens, so that only the end was read: {cut}")
    if result["unfinished"]:
        longest = work.inference.infer_max_gen_len
        print(f"cut off at --infer_max_gen_len {longest}: {plural(result['unfinished'], 'answer')}")
    for answer in answers[:SHOWN_ANSWERS]:
        accepted = " | ".join(answer.question.accepted)
        for name, text in {
            "asked": answer.question.prompt[-SHOWN_WIDTH:],
            "said": answer.text,
            "right": accepted,
        }.items():
            shown = readable(text.replace("\n", " "), sys.stdout.encoding)[0]
            print(f"  {name:6} | {shown[:SHOWN_WIDTH]}")
        print()


def new_table(with_interval: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_header=with_interval)
    table.add_column("")
    table.add_column("", justify="right")
    if with_interval:
        table.add_column("95% interval", justify="right")
    return table


def plural(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'s' * (count != 1)}"


def record(work: Work, result: dict[str, Any]) -> Path:
    """Append the evaluation to the run's list of them; returns its file."""
    loaded = work.loaded
    row = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "run_id": loaded.folder.run_id if loaded.folder else None,
        "checkpoint": str(loaded.checkpoint.resolve()),
        "step": loaded.step,
        "dataset": work.data.dataset_name,
        "dataset_dir": work.data.dataset_dir,
        "split": work.split,
        "settings": settings_of(work),
        "results": finite(result),
    }
    save(work.folder / RECORD, [row])
    return work.folder / RECORD


def settings_of(work: Work) -> dict[str, Any]:
    """What differs from the defaults, without what the record says elsewhere."""
    said = {"split", "dataset_name", "dataset_dir", "infer_output_dir"}
    found: dict[str, Any] = {"seed": work.seed} if work.seed else {}
    if work.share < 1:
        found["limit_test_batches"] = work.share
    for settings in (work.command, work.inference):
        for field in fields(settings):
            value = getattr(settings, field.name)
            if value != field.default and field.name not in said:
                found[field.name] = value
    return found


def finite(result: dict[str, Any]) -> dict[str, Any]:
    """JSON has no word for infinity."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in result.items()
    }


def save(file: Path, rows: list[dict[str, Any]]) -> None:
    try:
        for row in rows:
            append_row(file, row)
    except OSError as error:
        raise UserError(
            f"{file}: cannot write there ({error.strerror}): choose another folder with --infer_output_dir."
        ) from error
