"""Shows a trained language model: the descent of its energy, how it ranks tokens, and a sample of its text."""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

from config.settings import Transformer
from core.errors import or_report
from core.files import append_row
from core.text import printable_lines
from data.module import DataModule
from models.language import EnergyLM, ranking, sample
from tasks import Showing
from tasks.show.walk import show_walk

POSITIONS = 1024  # of held-out text
PROMPT_BYTES, SAMPLE_TOKENS, TEMPERATURE = 64, 160, 0.8
MAX_SEARCHED = 1_000_000  # tokens in which a document for the sample is searched


def show_language(showing: Showing) -> None:
    """Print and draw what the model does with held-out text. A part that fails is reported, and the next one runs."""
    config, model = showing.config, showing.model
    rows = -(-POSITIONS // config[Transformer].context_length)
    rows_BS = held_out_rows(showing.data, min(rows, config.trainer.batch_size_per_device)).to(model.device)
    if isinstance(model, EnergyLM):
        energy_model, batch = model, {"input_ids": rows_BS}
        words = ("positions of held-out text", "true next token", "nats per token")
        or_report("the descent of the energy", lambda: show_walk(showing, batch, *words))
        or_report("the ranking of tokens", lambda: show_ranking(showing, energy_model, rows_BS))
    or_report("a sample", lambda: show_sample(showing))


def held_out_rows(data: DataModule, count: int) -> Tensor:
    """Rows from all over the validation split, [B, S+1]."""
    rows = data.rows["valid"]
    return rows.__getitems__(np.unique(np.linspace(0, len(rows) - 1, count + 1).astype(int)[:-1]).tolist())["input_ids"]


def show_ranking(showing: Showing, model: EnergyLM, rows_BS: Tensor) -> None:
    text = showing.data.rows["train"].tokens
    indices = torch.randint(len(text), rows_BS[:, 1:].shape, generator=torch.Generator().manual_seed(0))
    others_BS = torch.from_numpy(text[indices.numpy()].astype(np.int64)).to(rows_BS.device)
    share, count = ranking(model, rows_BS, others_BS)
    showing.say(f"\nthe true token has the lower energy at {share:.0%} of {count:,} held-out positions")
    showing.say("  (against another token, drawn from the training text as often as it occurs there)")


def show_sample(showing: Showing) -> None:
    data, model = showing.data, showing.model
    rows, tokenizer = data.rows["valid"], data.processor
    per_byte = rows.num_units / max(1, rows.num_bytes)
    prompt = beginning(rows.tokens[:MAX_SEARCHED], tokenizer.separator_id, max(1, round(PROMPT_BYTES * per_byte)))
    tokens = sample(
        model,
        torch.from_numpy(prompt.astype(np.int64)).to(model.device),
        SAMPLE_TOKENS,
        showing.config[Transformer].context_length,
        never=(tokenizer.separator_id, tokenizer.pad_id),
        temperature=TEMPERATURE,
    )
    showing.say(f"\na sample: the beginning of a held-out document, continued at temperature {TEMPERATURE}")
    texts = {"prompt": tokenizer.decode(prompt), "sample": tokenizer.decode(tokens.cpu().numpy())}
    for name, text in texts.items():
        showing.say("\n".join(f"  {name:6} | {line}" for line in printable_lines(text, sys.stdout.encoding)))
    append_row(
        showing.folder / "samples.jsonl", {"step": showing.step, "prompt": texts["prompt"], "text": texts["sample"]}
    )


def beginning(tokens: np.ndarray, separator_id: int, length: int) -> np.ndarray:
    """The separator and the first `length` tokens of the first document that is longer, or of the longest one."""
    starts = np.flatnonzero(tokens == separator_id)
    lengths = np.diff(np.append(starts, len(tokens))) - 1
    long_enough = np.flatnonzero(lengths > length)
    document = long_enough[0] if len(long_enough) else lengths.argmax()
    return tokens[starts[document] : starts[document] + 1 + min(length, lengths[document])]
