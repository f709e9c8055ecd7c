"""How well a model predicts a text: the rows of it, and what is measured on them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from config.settings import Data
from core.errors import UserError
from core.progress import progress
from data.rows import PackedRows
from data.sources import Source
from data.store import Split, open_store, read_documents
from data.tokenizers import Tokenizer
from inference.intervals import interval, resampled
from inference.loading import Loaded
from inference.thinking import Plan, Thought, think_rows
from models.energy_language_model import EnergyLanguageModel
from models.language_model import Evaluation

SAMPLES = 1000  # of the bootstrap: a training split can have very many documents
REDUCED = {"bf16": torch.bfloat16, "16": torch.float16}  # numbers of a training, and so of its evaluations
FEWEST_DOCUMENTS = 8  # with fewer, a bootstrap over them says little


@dataclass(frozen=True)
class Text:
    """Rows of a text. count: how many of them are looked at; whole: the rows are all that there are."""

    rows: PackedRows
    count: int
    whole: bool


def own_text(loaded: Loaded, data: Data, split: str, limit: int, share: float) -> Text:
    """The rows that training evaluates on, from its cache."""
    return rows_of(loaded, open_store(data, loaded.tokenizer).splits[split], True, data, split, limit, share)


def other_text(loaded: Loaded, source: Source, data: Data, split: str, limit: int, share: float) -> Text:
    """Rows of any dataset with the tokenizer of the run, read now and no further than is needed."""
    needed = limit * loaded.config.architecture.context_length + 1 if limit else None
    found, whole = read_split(source, data, split, loaded.tokenizer, needed)
    return rows_of(loaded, found, whole, data, split, limit, share)


def rows_of(loaded: Loaded, split: Split, whole: bool, data: Data, name: str, limit: int, share: float) -> Text:
    rows = PackedRows(split, loaded.config.architecture.context_length, loaded.tokenizer.pad_id)
    if not len(rows):
        raise empty_split(name, data)
    wanted = max(1, int(share * len(rows)))
    return Text(rows, min(wanted, limit) if limit else wanted, whole)


def empty_split(name: str, data: Data) -> UserError:
    return UserError(
        f"The {name} split of {data.dataset_name} is empty: choose another with python -m inference evaluate --split, "
        "or all."
    )


def read_split(source: Source, data: Data, split: str, tokenizer: Tokenizer, needed: int | None) -> tuple[Split, bool]:
    """The documents of a split, or of all splits, as one stream; whether it is all of it, or only what is needed."""
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
    """Watches walks and sums up the loss after each of their steps; a walk that ends early stays where it ended.

    first: 1, or 0 where the start of a walk is a prediction too.
    """

    def __init__(self, steps: int, pad_id: int, first: int = 1) -> None:
        self.sums = torch.zeros(steps + 1, dtype=torch.float64)
        self.pad_id, self.first = pad_id, first
        self.targets: Tensor | None = None  # [B, S], those of the rows that are walked on now
        self.reached = 0

    def __call__(self, step: int, logits_BSV: Tensor, energy_BS: Tensor) -> None:
        if step >= self.first:
            assert self.targets is not None
            since = self.reached + 1 if step else 0
            self.sums[since : step + 1] += losses_of(logits_BSV, self.targets, self.pad_id).sum().cpu()
        self.reached = step

    def result(self, walks: float) -> dict[str, float]:
        """The means, as a validation of the training names them. walks: how many there were."""
        means = (self.sums / walks).tolist()
        return {f"loss_step_{step}": loss for step, loss in enumerate(means) if step >= self.first}


class Pieces:
    """Sums up losses by document and by row, for the interval of their mean.

    Documents stand for themselves, as the rows of one do not; rows are the next best where there are few documents.
    """

    def __init__(self, separator_id: int, pad_id: int) -> None:
        self.separator_id, self.pad_id = separator_id, pad_id
        self.sums, self.targets = np.zeros(1), np.zeros(1)  # by document
        self.row_sums: list[float] = []
        self.row_targets: list[int] = []

    def update(self, losses_BS: Tensor, targets_BS: Tensor) -> None:
        """Rows that follow on those before."""
        counted_BS = targets_BS != self.pad_id
        self.row_sums += losses_BS.sum(1).tolist()
        self.row_targets += counted_BS.sum(1).tolist()
        number = len(self.sums) - 1 + np.cumsum((targets_BS == self.separator_id).flatten().cpu().numpy())
        size = number[-1] + 1
        grown = [np.pad(sums, (0, size - len(sums))) for sums in (self.sums, self.targets)]
        self.sums = grown[0] + np.bincount(number, losses_BS.flatten().cpu().numpy(), size)
        self.targets = grown[1] + np.bincount(number, counted_BS.flatten().cpu().numpy(), size)

    def result(self) -> dict[str, Any]:
        """The 95% interval of the mean loss, by a bootstrap over the pieces that it names; none for a single row."""
        some = self.targets > 0
        pieces, sums, targets = "documents", self.sums[some], self.targets[some]
        documents = len(sums)
        if documents < FEWEST_DOCUMENTS:
            pieces, sums, targets = "rows", np.array(self.row_sums), np.array(self.row_targets)
        if len(sums) < 2:
            return {"documents": documents}
        found = interval(sums.sum() / targets.sum(), resampled(sums[None, :, None], targets, SAMPLES)[:, 0])
        return {"documents": documents, "loss_low": found.low, "loss_high": found.high, "interval_over": pieces}


class Walks:
    """Sums up what an EBT does at its targets: energies, and steps taken."""

    def __init__(self, steps: int) -> None:
        self.first = self.last = 0.0
        self.steps = torch.zeros(steps + 1, dtype=torch.int64)

    def update(self, thought: Thought, counted_BS: Tensor) -> None:
        self.first += float(thought.first_energy[counted_BS].double().sum())
        self.last += float(thought.energy[counted_BS].double().sum())
        self.steps += torch.bincount(thought.steps[counted_BS].cpu(), minlength=len(self.steps))

    def result(self, adaptive: bool) -> dict[str, Any]:
        count = int(self.steps.sum())
        result: dict[str, Any] = {"energy_first": self.first / count, "energy_last": self.last / count}
        if adaptive:
            taken = {str(step): number for step, number in enumerate(self.steps.tolist()) if number}
            mean = sum(int(step) * number for step, number in taken.items()) / count
            result |= {"mean_steps": mean, "steps": taken}
        return result


def losses_of(logits_BSV: Tensor, targets_BS: Tensor, pad_id: int) -> Tensor:
    """The loss of each target, 0 where there is none. -> [B, S], float64"""
    logits, targets = logits_BSV.flatten(0, 1).float(), targets_BS.flatten()
    losses = F.cross_entropy(logits, targets, ignore_index=pad_id, reduction="none")
    return losses.double().view(targets_BS.shape)


@torch.no_grad()
def measure(loaded: Loaded, plan: Plan | None, text: Text, batch_size: int) -> dict[str, Any]:
    """Loss, bits per byte, perplexity and accuracies, as a validation of the training has them, and their company.

    plan: how an EBT thinks; then also the loss by step (with several candidates, their mean) and the energies.
    """
    model, words = loaded.model, loaded.tokenizer
    device, pad_id = model.device, words.pad_id
    evaluation = Evaluation(words.vocab_size, pad_id).to(device)
    pieces = Pieces(words.separator_id, pad_id)
    steps = len(plan.steps) if plan else 0
    from_prior = isinstance(model, EnergyLanguageModel) and model.thinking.start == "prior"
    by_step, walks = StepLosses(steps, pad_id, first=0 if from_prior else 1), Walks(steps)
    start = time.perf_counter()
    precision = REDUCED.get(loaded.config.trainer.float_precision)
    with (
        torch.autocast(device.type, precision, enabled=precision is not None),
        progress("Evaluating", "rows", text.count) as advance,
    ):
        for first in range(0, text.count, batch_size):
            rows_BS = text.rows.__getitems__(range(first, min(first + batch_size, text.count))).to(device)
            tokens_BS, targets_BS = rows_BS[:, :-1], rows_BS[:, 1:].contiguous()
            if plan is None:
                logits_BSV = model(tokens_BS)
            else:
                assert isinstance(model, EnergyLanguageModel)
                by_step.targets = targets_BS
                thought = think_rows(model, tokens_BS, plan, by_step)
                walks.update(thought, targets_BS != pad_id)
                logits_BSV = thought.logits
            evaluation.update(logits_BSV, targets_BS)
            pieces.update(losses_of(logits_BSV, targets_BS, pad_id), targets_BS)
            advance(len(rows_BS))
    result: dict[str, Any] = evaluation.result()
    result["bits_per_byte"] = result["loss"] * bits_per_nat(text.rows)
    result |= pieces.result()
    if plan is not None:
        named = by_step.result(plan.candidates * result["targets"])
        losses = list(named.values())
        result |= named
        result["thinking_gain"] = losses[0] - (losses[-1] if plan.candidates == 1 else result["loss"])
        result |= walks.result(plan.stop_change > 0)
    return result | {"rows": text.count, "seconds": time.perf_counter() - start}


def bits_per_nat(rows: PackedRows) -> float:
    """Bits per byte of the text for each nat per token."""
    return rows.num_targets / max(1, rows.num_bytes) / math.log(2)
