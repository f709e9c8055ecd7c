"""Continuing prompts token by token, a few at a time; each comes out the same in any company.

A prompt is read as a document from its beginning, after a separator, as in training. Its continuation ends at the next
separator, at a stop text, or when it is long enough.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from config.settings import Inference
from core.errors import UserError
from inference.commands import Generate
from inference.decoder import Decoder, EnergyDecoder, Prediction, make_decoder
from inference.loading import Loaded
from inference.prompts import Prompt
from inference.sampling import Chance, Sampling, draw
from inference.streaming import Pieces, UntilStop
from inference.thinking import make_plan


@dataclass
class Row:
    """A prompt, what the model reads of it, and what has come after it.

    tokens: all that were drawn, those of a stop text and a closing separator too. finish: why it ended.
    """

    prompt: Prompt
    read: list[int]
    chance: Chance
    pieces: Pieces
    until: UntilStop
    tokens: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    seconds: float = 0.0

    def close(self, finish: str | None) -> str:
        """End here; what was held back is the last text that it adds."""
        self.finish = finish
        rest = self.pieces.close()
        if self.tokens:
            self.tokens[-1]["text"] += rest
        last = "" if self.until.found else self.until.push(rest) + self.until.close()
        self.text += last
        return last

    @property
    def mean_logprob(self) -> float:
        return sum(token["logprob"] for token in self.tokens) / len(self.tokens)

    @property
    def perplexity(self) -> float:
        return math.exp(min(-self.mean_logprob, 700.0))


@dataclass
class Totals:
    """What all continuations took. distances: how far apart the candidates of each token ended, where asked."""

    tokens: int = 0
    seconds: float = 0.0
    cache_bytes: int = 0
    steps: Counter[int] = field(default_factory=Counter)
    distances: list[float] = field(default_factory=list)

    def closing(self) -> str:
        rate = self.tokens / max(self.seconds, 1e-9)
        said = [f"{self.tokens:,} tokens, {rate:,.0f} tokens/s, cache {self.cache_bytes / 1e6:.2f} MB"]
        if self.steps:
            shares = ", ".join(f"{steps}: {self.steps[steps] / self.tokens:.0%}" for steps in sorted(self.steps))
            mean = sum(steps * count for steps, count in self.steps.items()) / self.tokens
            said.append(f"steps per token: {shares}, mean {mean:.2f}")
        if self.distances:
            mean = sum(self.distances) / len(self.distances)
            said.append(f"candidates end {mean:.3f} apart (mean total-variation distance, 0 to 1)")
        return "; ".join(said)


class Generator:
    """Continues prompts, a few at a time; each comes out the same in any company."""

    def __init__(self, loaded: Loaded, command: Generate, inference: Inference, seed: int, in_detail: bool) -> None:
        self.loaded, self.command, self.inference, self.seed = loaded, command, inference, seed
        self.in_detail = in_detail  # whether the energies of each token are wanted: two more passes
        self.plan = make_plan(loaded.model, inference, seed)
        self.words = loaded.tokenizer
        self.how = Sampling(inference.infer_temp, inference.infer_topk, inference.infer_topp, (self.words.pad_id,))
        self.asked: Counter[str] = Counter()
        self.totals = Totals()

    def row(self, prompt: Prompt) -> Row:
        """Begin a continuation, if the model can read the prompt."""
        tokens = [self.words.separator_id, *self.words.encode(prompt.text).tolist()]
        most = self.loaded.config.architecture.context_length
        if len(tokens) > most and self.command.long_prompt == "refuse":
            raise UserError(
                f"{prompt.where} is {len(tokens):,} tokens long, the separator before it included: this model reads "
                f"{most:,} at most; shorten it, or give --long_prompt window to keep its end."
            )
        chance = Chance(self.seed, tokens, self.asked[prompt.text])
        self.asked[prompt.text] += 1
        return Row(prompt, tokens[-most:], chance, Pieces(self.words), UntilStop(self.command.stop))

    @torch.no_grad()
    def go_on(self, rows: list[Row]) -> Iterator[tuple[Row, str]]:
        """Token by token of every row, the text that it adds; the row that has ended says why."""
        start = time.perf_counter()
        decoder = make_decoder(
            self.loaded.model, self.plan, [row.read for row in rows], self.inference.infer_max_gen_len
        )
        self.totals.cache_bytes = max(self.totals.cache_bytes, decoder.cache_bytes)
        try:
            while rows:
                drawn_B, facts = self.predict(decoder, rows)
                for row, fact in zip(rows, facts, strict=True):
                    text = self.take(row, fact)
                    row.seconds = time.perf_counter() - start
                    yield row, text
                going = [number for number, row in enumerate(rows) if row.finish is None]
                rows = [rows[number] for number in going]
                if rows:
                    decoder.go_on(drawn_B.tolist(), going)
        finally:
            self.totals.seconds += time.perf_counter() - start

    def predict(self, decoder: Decoder, rows: list[Row]) -> tuple[Tensor, list[dict[str, Any]]]:
        """The next token of each row, [B], and what is to be told of it."""
        prediction = decoder.predict()
        logits_BV = prediction.logits.double().cpu()
        if not logits_BV.isfinite().all():
            raise UserError(
                f"the prediction of token {len(rows[0].tokens) + 1} is not finite: take shorter or fewer steps "
                "(--infer_ebt_override_alpha, --infer_ebt_num_steps) or, if its training diverged, an earlier --ckpt."
            )
        uniform_B = torch.tensor([row.chance.at(len(row.tokens)) for row in rows], dtype=torch.float64)
        drawn_B = draw(logits_BV, uniform_B, self.how)
        told = {"id": drawn_B, "logprob": logits_BV.log_softmax(-1).gather(1, drawn_B[:, None])[:, 0]}
        if isinstance(decoder, EnergyDecoder):
            if self.in_detail:
                told["energy"] = decoder.energy_of(drawn_B.to(decoder.weight.device))
                told["prediction_energy"] = prediction.of_chosen("energy")
            told["steps"] = prediction.of_chosen("steps")
            if self.inference.infer_debug_sample_distances:
                self.totals.distances += distance(prediction).tolist()
        columns = {name: [round(value, 6) for value in values.tolist()] for name, values in told.items()}
        return drawn_B, [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def take(self, row: Row, fact: dict[str, Any]) -> str:
        """Add a token to a row. -> the text that is now sure to belong to it"""
        self.totals.tokens += 1
        if "steps" in fact:
            self.totals.steps[fact["steps"]] += 1
        ended = fact["id"] == self.words.separator_id
        piece = "" if ended else row.pieces.push(fact["id"])
        row.tokens.append({"id": fact["id"], "text": piece} | fact)
        text = row.until.push(piece)
        row.text += text
        if ended:
            return text + row.close("separator")
        if row.until.found:
            return text + row.close("stop")
        return text + row.close("length") if len(row.tokens) == self.inference.infer_max_gen_len else text


def distance(prediction: Prediction) -> Tensor:
    """The mean total variation between the distributions of two candidates, 0 to 1. -> [B]"""
    assert prediction.candidates is not None
    share_BGV = prediction.candidates.logits.float().softmax(-1)
    count = share_BGV.shape[1]
    return torch.cdist(share_BGV, share_BGV, p=1).sum((1, 2)) / (2 * count * (count - 1))
