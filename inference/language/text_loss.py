"""The loss of a model on a text: rows of a split, of another dataset or of shifted text, and their measures."""

from __future__ import annotations

import ast
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from config.settings import Text, Transformer
from core.errors import UserError
from core.progress import progress
from data.language.rows import PackedRows
from data.language.sources import Source
from data.language.store import Split, open_store, read_documents
from data.language.tokenizers import Tokenizer
from inference.intervals import bootstrap, interval
from inference.language.walk import walk_rows
from inference.loading import Loaded
from inference.think_curve import Sample
from inference.thinking import WalkPlan, WalkState
from models.language import EnergyLM, TextEvaluation

SAMPLES = 1000  # of the bootstrap; few, as a training split can have very many documents
MIN_DOCUMENTS = 8  # for a bootstrap over documents
MIN_ROWS = 2  # for a bootstrap over rows
# Code by several authors and of several kinds: the default shifted text.
LIBRARY_MODULES = (
    *("argparse", "calendar", "configparser", "csv", "dataclasses", "difflib", "fractions", "ftplib"),
    *("heapq", "ipaddress", "mailbox", "pickle", "random", "shutil", "statistics", "textwrap", "threading", "turtle"),
)


@dataclass(frozen=True)
class TextRows:
    """Rows of a text. count: number of rows to evaluate; whole: the rows are the whole text."""

    rows: PackedRows
    count: int
    whole: bool


def text_of_run(loaded: Loaded, data: Text, split: str, limit: int, share: float) -> TextRows:
    """The rows that training evaluates on, from its cache."""
    return text_rows(loaded, open_store(data, loaded.processor).splits[split], True, data, split, limit, share)


def text_of_dataset(loaded: Loaded, source: Source, data: Text, split: str, limit: int, share: float) -> TextRows:
    """Rows of any dataset with the tokenizer of the run, read without a cache and no further than needed."""
    needed = limit * loaded.config[Transformer].context_length + 1 if limit else None
    documents, whole = read_split(source, data, split, loaded.processor, needed)
    return text_rows(loaded, documents, whole, data, split, limit, share)


def text_rows(loaded: Loaded, split: Split, whole: bool, data: Text, name: str, limit: int, share: float) -> TextRows:
    rows = PackedRows(split, loaded.config[Transformer].context_length, loaded.processor.pad_id)
    if not len(rows):
        raise empty_split(name, data)
    count = max(1, int(share * len(rows)))
    return TextRows(rows, min(count, limit) if limit else count, whole)


def empty_split(name: str, data: Text) -> UserError:
    return UserError(
        f"The {name} split of {data.dataset_name} is empty: choose another with python -m inference evaluate --split, "
        "or all."
    )


def read_split(source: Source, data: Text, split: str, tokenizer: Tokenizer, needed: int | None) -> tuple[Split, bool]:
    """The documents of a split, or of all splits, as one stream of tokens, and whether that is the whole split."""
    source.prepare()
    parts: list[np.ndarray] = []
    tokens = documents = size = 0
    whole = True
    with progress("Reading", "documents") as advance:
        for document in read_documents(source, data):
            advance(1)
            if split in ("all", document.split):
                parts += [np.array([tokenizer.separator_id]), tokenizer.encode(document.text).astype(np.int64)]
                tokens, documents, size = tokens + 1 + len(parts[-1]), documents + 1, size + document.size
                if needed is not None and tokens >= needed:
                    whole = False
                    break
    return Split(np.concatenate(parts) if parts else np.zeros(0, np.int64), documents, size), whole


class StepLosses:
    """Sums the loss after each step of walks; a walk that stops early keeps its last loss.

    first: 1, or 0 where the start of a walk is a prediction already.
    """

    def __init__(self, steps: int, pad_id: int, first: int = 1) -> None:
        self.sums = torch.zeros(steps + 1, dtype=torch.float64)
        self.pad_id, self.first = pad_id, first
        self.targets: Tensor | None = None  # [B, S], of the current batch
        self.reached = 0

    def update(self, state: WalkState) -> None:
        step = state.number
        if step >= self.first:
            assert self.targets is not None
            since = self.reached + 1 if step else 0
            self.sums[since : step + 1] += token_losses(state.y, self.targets, self.pad_id).sum().cpu()
        self.reached = step

    def result(self, walks: float) -> dict[str, float]:
        """The means, with the names of a validation in training. walks: number of walks summed."""
        means = (self.sums / walks).tolist()
        return {f"loss_step_{step}": loss for step, loss in enumerate(means) if step >= self.first}


class LossByDocument:
    """Sums losses by document and by row, for the interval of their mean.

    Documents are independent, rows of one document are not: rows are resampled only where there are few documents.
    """

    def __init__(self, separator_id: int, pad_id: int) -> None:
        self.separator_id, self.pad_id = separator_id, pad_id
        self.sums, self.targets = np.zeros(1), np.zeros(1)  # by document
        self.row_sums: list[float] = []
        self.row_targets: list[int] = []

    def update(self, losses_BS: Tensor, targets_BS: Tensor) -> None:
        """Add the rows that follow those before."""
        counted_BS = targets_BS != self.pad_id
        self.row_sums += losses_BS.sum(1).tolist()
        self.row_targets += counted_BS.sum(1).tolist()
        number = len(self.sums) - 1 + np.cumsum((targets_BS == self.separator_id).flatten().cpu().numpy())
        size = number[-1] + 1
        grown = [np.pad(sums, (0, size - len(sums))) for sums in (self.sums, self.targets)]
        self.sums = grown[0] + np.bincount(number, losses_BS.flatten().cpu().numpy(), size)
        self.targets = grown[1] + np.bincount(number, counted_BS.flatten().cpu().numpy(), size)

    def result(self) -> dict[str, Any]:
        """The 95% interval of the mean loss, by a bootstrap over documents or rows; none for a single row."""
        some = self.targets > 0
        unit, sums, targets = "documents", self.sums[some], self.targets[some]
        documents = len(sums)
        if documents < MIN_DOCUMENTS:
            unit, sums, targets = "rows", np.array(self.row_sums), np.array(self.row_targets)
        if len(sums) < 2:
            return {"documents": documents}
        loss = interval(sums.sum() / targets.sum(), bootstrap(sums[None, :, None], targets, SAMPLES)[:, 0])
        return {"documents": documents, "loss_low": loss.low, "loss_high": loss.high, "interval_over": unit}


class WalkStatistics:
    """Sums energies and numbers of steps of the walks at all targets."""

    def __init__(self, steps: int) -> None:
        self.first = self.last = 0.0
        self.steps = torch.zeros(steps + 1, dtype=torch.int64)

    def update(self, end: WalkState, counted_BS: Tensor) -> None:
        self.first += float(end.first_energy[counted_BS].double().sum())
        self.last += float(end.energy[counted_BS].double().sum())
        self.steps += torch.bincount(end.steps[counted_BS].cpu(), minlength=len(self.steps))

    def result(self, adaptive: bool) -> dict[str, Any]:
        count = int(self.steps.sum())
        result: dict[str, Any] = {"energy_first": self.first / count, "energy_last": self.last / count}
        if adaptive:
            taken = {str(step): number for step, number in enumerate(self.steps.tolist()) if number}
            mean = sum(int(step) * number for step, number in taken.items()) / count
            result |= {"mean_steps": mean, "steps": taken}
        return result


def token_losses(logits_BSV: Tensor, targets_BS: Tensor, pad_id: int) -> Tensor:
    """The loss of each target, 0 where there is none. -> [B, S], float64"""
    logits, targets = logits_BSV.flatten(0, 1).float(), targets_BS.flatten()
    losses = F.cross_entropy(logits, targets, ignore_index=pad_id, reduction="none")
    return losses.double().view(targets_BS.shape)


@torch.no_grad()
def measure_text(loaded: Loaded, plan: WalkPlan | None, text: TextRows, batch_size: int) -> dict[str, Any]:
    """Loss, bits per byte, perplexity and accuracies, as in a validation of the training, with an interval.

    plan: the walk of an EBT; adds the loss by step (with several candidates, their mean) and the energies.
    """
    model, tokenizer = loaded.model, loaded.processor
    device, pad_id = model.device, tokenizer.pad_id
    evaluation = TextEvaluation(tokenizer.vocab_size, pad_id).to(device)
    by_document = LossByDocument(tokenizer.separator_id, pad_id)
    steps = len(plan.steps) if plan else 0
    from_prior = isinstance(model, EnergyLM) and model.walk_settings.start == "prior"
    by_step, walks = StepLosses(steps, pad_id, first=0 if from_prior else 1), WalkStatistics(steps)
    start = time.perf_counter()
    with loaded.autocast(), progress("Evaluating", "rows", text.count) as advance:
        for first in range(0, text.count, batch_size):
            rows_BS = text.rows.__getitems__(range(first, min(first + batch_size, text.count)))["input_ids"].to(device)
            tokens_BS, targets_BS = rows_BS[:, :-1], rows_BS[:, 1:].contiguous()
            if plan is None:
                logits_BSV = model(tokens_BS)
            else:
                assert isinstance(model, EnergyLM)
                by_step.targets = targets_BS
                end = walk_rows(model, tokens_BS, plan, by_step.update)
                walks.update(end, targets_BS != pad_id)
                logits_BSV = end.y
            evaluation.update(logits_BSV, targets_BS)
            by_document.update(token_losses(logits_BSV, targets_BS, pad_id), targets_BS)
            advance(len(rows_BS))
    result: dict[str, Any] = evaluation.result()
    result["bits_per_byte"] = result["loss"] * bits_per_nat(text.rows)
    result |= by_document.result()
    if plan is not None:
        step_losses = by_step.result(plan.candidates * result["targets"])
        losses = list(step_losses.values())
        result |= step_losses
        result["thinking_gain"] = losses[0] - (losses[-1] if plan.candidates == 1 else result["loss"])
        result |= walks.result(plan.stop_change > 0)
    return result | {"rows": text.count, "seconds": time.perf_counter() - start}


def bits_per_nat(rows: PackedRows) -> float:
    """Bits per byte of the text for each nat per token."""
    return rows.num_units / max(1, rows.num_bytes) / math.log(2)


@dataclass(frozen=True)
class TextSample(Sample):
    """Rows [B, S+1] spread evenly over a text."""

    rows: Tensor

    def targets(self, pad_id: int) -> np.ndarray:
        """Number of predicted tokens of each row, [B]."""
        return (self.rows[:, 1:] != pad_id).sum(1).numpy()


def validation_text(loaded: Loaded, tokens: int) -> TextSample:
    """Rows of the run's own validation split."""
    name = f"validation split of {loaded.config.data.dataset_name}"
    split = open_store(loaded.config[Text], loaded.processor).splits["valid"]
    return TextSample("in-distribution", name, sample_rows(loaded, split, tokens, f"The {name}", "choose another run"))


def shifted_text(loaded: Loaded, file: str | None, tokens: int) -> TextSample:
    """Rows of --shifted, or of Python code."""
    if file is None:
        name, documents, subject = "Python code of the standard library", library_code(), "Python's own code"
    else:
        name, documents, subject = Path(file).name, [read_text_file(file)], f"--shifted is {file!r}: it"
    split = tokenize_documents(loaded.processor, documents)
    return TextSample("shifted", name, sample_rows(loaded, split, tokens, subject, "give a longer file"))


def sample_rows(loaded: Loaded, split: Split, tokens: int, subject: str, remedy: str) -> Tensor:
    """About this many tokens, in rows spread evenly over the whole split, [B, S+1]."""
    length = loaded.config[Transformer].context_length
    needed = MIN_ROWS * length
    if tokens < needed:
        raise UserError(
            f"--tokens is {tokens}: an interval needs {MIN_ROWS} rows of this model's {length} tokens at least; "
            f"choose {needed} or more."
        )
    rows = PackedRows(split, length, loaded.processor.pad_id)
    if rows.num_units < needed:
        raise UserError(
            f"{subject} has {rows.num_units:,} tokens to predict: an interval needs {MIN_ROWS} rows of this "
            f"model's {length} tokens, {needed} in all; {remedy}."
        )
    count = min(-(-tokens // length), len(rows))
    return rows.__getitems__((np.arange(count) * len(rows) // count).tolist())["input_ids"]


def tokenize_documents(tokenizer: Tokenizer, documents: list[str]) -> Split:
    parts = [part for tokens in tokenizer.encode_batch(documents) for part in ([tokenizer.separator_id], tokens)]
    return Split(np.concatenate(parts).astype(np.int64), len(documents), sum(len(text.encode()) for text in documents))


def read_text_file(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--shifted is {file!r}: cannot read it ({error.strerror}); give a text file.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--shifted is {file!r}: it is not text in UTF-8; give a text file.") from error


def library_code() -> list[str]:
    """The source of a fixed list of modules of this Python."""
    folder = Path(os.__file__).parent
    files = [file for name in LIBRARY_MODULES if (file := folder / f"{name}.py").is_file()]
    if not files:
        raise UserError("--shifted is missing: this Python comes without the source of its library; give a text file.")
    return [without_docstrings(file.read_text(encoding="utf-8")) for file in files]


def without_docstrings(source: str) -> str:
    """Code only: the built-in dataset consists of docstrings, so they would not be shifted text."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                for number in range(first.lineno - 1, first.end_lineno or first.lineno):
                    lines[number] = ""
    return "".join(lines)
