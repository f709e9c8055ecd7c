"""The loss of a model on a text: rows of a split of the run's dataset or of another one, and their measures."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
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
from inference.evaluate import StepLosses, WalkStatistics, batches_of, number_to_evaluate, thinking_gain
from inference.intervals import bootstrap, interval
from inference.language.walk import walk_rows
from inference.loading import Loaded
from inference.thinking import WalkPlan
from models.language import EnergyLM, TextEvaluation

SAMPLES = 1000  # of the bootstrap; few, as a training split can have very many documents
MIN_DOCUMENTS = 8  # for a bootstrap over documents


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
    return TextRows(rows, number_to_evaluate(len(rows), limit, share), whole)


def empty_split(name: str, data: Text) -> UserError:
    return UserError(
        f"The {name} split of {data.dataset_name} is empty: choose another with python -m inference evaluate --split, "
        "or all."
    )


def read_split(source: Source, data: Text, split: str, tokenizer: Tokenizer, needed: int | None) -> tuple[Split, bool]:
    """The documents of a split, or of all splits, as one stream of tokens, and whether that is the whole split.

    needed: number of tokens after which reading stops.
    """
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
        """Add the next rows of the text."""
        counted_BS = targets_BS != self.pad_id
        self.row_sums += losses_BS.sum(1).tolist()
        self.row_targets += counted_BS.sum(1).tolist()
        begins = (targets_BS == self.separator_id).flatten().cpu().numpy()
        document = len(self.sums) - 1 + np.cumsum(begins)  # of each target
        size = document[-1] + 1
        padded = [np.pad(sums, (0, size - len(sums))) for sums in (self.sums, self.targets)]
        self.sums = padded[0] + np.bincount(document, losses_BS.flatten().cpu().numpy(), size)
        self.targets = padded[1] + np.bincount(document, counted_BS.flatten().cpu().numpy(), size)

    def result(self) -> dict[str, Any]:
        """The 95% interval of the mean loss, by a bootstrap over documents or rows; none for a single row."""
        has_targets = self.targets > 0
        unit, sums, targets = "documents", self.sums[has_targets], self.targets[has_targets]
        documents = len(sums)
        if documents < MIN_DOCUMENTS:
            unit, sums, targets = "rows", np.array(self.row_sums), np.array(self.row_targets)
        if len(sums) < 2:
            return {"documents": documents}
        loss = interval(sums.sum() / targets.sum(), bootstrap(sums[None, :, None], targets, SAMPLES)[:, 0])
        return {"documents": documents, "loss_low": loss.low, "loss_high": loss.high, "interval_over": unit}


def token_losses(logits_BSV: Tensor, targets_BS: Tensor, pad_id: int) -> Tensor:
    """The loss of each target, 0 where there is none. -> [B, S], float64"""
    logits, targets = logits_BSV.flatten(0, 1).float(), targets_BS.flatten()
    losses = F.cross_entropy(logits, targets, ignore_index=pad_id, reduction="none")
    return losses.double().view(targets_BS.shape)


def summed_loss(logits_BSV: Tensor, targets_BS: Tensor, pad_id: int) -> Tensor:
    return token_losses(logits_BSV, targets_BS, pad_id).sum()


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
    has_first_prediction = isinstance(model, EnergyLM) and model.starts_with_a_prediction
    by_step, walks = StepLosses(steps, first=0 if has_first_prediction else 1), WalkStatistics(steps)
    start = time.perf_counter()
    with loaded.autocast(), progress("Evaluating", "rows", text.count) as advance:
        for batch in batches_of(text.rows, list(range(text.count)), batch_size, device):
            rows_BS = batch["input_ids"]
            tokens_BS, targets_BS = rows_BS[:, :-1], rows_BS[:, 1:].contiguous()
            if plan is None:
                logits_BSV = model(tokens_BS)
            else:
                assert isinstance(model, EnergyLM)
                loss_of = partial(summed_loss, targets_BS=targets_BS, pad_id=pad_id)
                end = walk_rows(model, tokens_BS, plan, partial(by_step.update, summed_loss=loss_of))
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
        result |= step_losses
        result["thinking_gain"] = thinking_gain(step_losses, result["loss"], plan.candidates)
        result |= walks.energies()
        if plan.stop_change:
            result |= {"mean_steps": walks.mean_steps(), "steps": walks.step_counts()}
    return result | {"rows": text.count, "seconds": time.perf_counter() - start}


def bits_per_nat(rows: PackedRows) -> float:
    """Bits per byte of the text for each nat per token."""
    return rows.num_units / max(1, rows.num_bytes) / math.log(2)
