"""The token loop: continue several prompts at once, sample, decode incrementally, and match stop texts.

A prompt is read as the beginning of a document, after a separator, as in training. Its continuation ends at the next
separator, at a stop text, or at --infer_max_gen_len. Continuations are batch-invariant.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from config.settings import Inference, Transformer
from core.errors import UserError
from data.language.tokenizers import Tokenizer
from inference.language.decoder import Decoder, EnergyDecoder, Prediction, make_decoder
from inference.loading import Loaded
from inference.thinking import plan_from_flags
from models.noise import mix_seed
from tasks.language_commands import GenerateFlags

MIN_TEMPERATURE = 1e-9  # below it samples are the same; dividing by it stays finite
INCOMPLETE = "\ufffd"  # the decoded beginning of a character


@dataclass(frozen=True)
class Prompt:
    """A text to continue. where: its name in a message; fields: the other fields of its object in a .jsonl file."""

    text: str
    where: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass
class Continuation:
    """A prompt, the tokens of it that the model reads, and its continuation.

    tokens: all that were sampled, including those of a stop text and the last separator. finish: why it ended.
    """

    prompt: Prompt
    prompt_tokens: list[int]
    uniform: KeyedUniform
    decoder: IncrementalDecoder
    stop_matcher: StopMatcher
    tokens: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    seconds: float = 0.0

    def close(self, finish: str | None) -> str:
        """End the continuation. -> the text that was held back"""
        self.finish = finish
        rest = self.decoder.close()
        if self.tokens:
            self.tokens[-1]["text"] += rest
        last = "" if self.stop_matcher.matched else self.stop_matcher.push(rest) + self.stop_matcher.close()
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
    """Totals of all continuations. distances: between candidates, of each token (--infer_debug_sample_distances)."""

    tokens: int = 0
    seconds: float = 0.0
    cache_bytes: int = 0
    steps: Counter[int] = field(default_factory=Counter)
    distances: list[float] = field(default_factory=list)

    def summary(self) -> str:
        rate = self.tokens / max(self.seconds, 1e-9)
        parts = [f"{self.tokens:,} tokens, {rate:,.0f} tokens/s, cache {self.cache_bytes / 1e6:.2f} MB"]
        if self.steps:
            shares = ", ".join(f"{steps}: {self.steps[steps] / self.tokens:.0%}" for steps in sorted(self.steps))
            mean = sum(steps * count for steps, count in self.steps.items()) / self.tokens
            parts.append(f"steps per token: {shares}, mean {mean:.2f}")
        if self.distances:
            mean = sum(self.distances) / len(self.distances)
            parts.append(f"candidates end {mean:.3f} apart (mean total-variation distance, 0 to 1)")
        return "; ".join(parts)


class Generator:
    """Continues prompts with one model and one set of flags.

    with_energies: record those of each token, which takes two more passes.
    """

    def __init__(
        self, loaded: Loaded, command: GenerateFlags, inference: Inference, seed: int, with_energies: bool
    ) -> None:
        self.loaded, self.command, self.inference, self.seed = loaded, command, inference, seed
        self.with_energies = with_energies
        self.plan = plan_from_flags(loaded.model, inference, seed)
        self.tokenizer = loaded.processor
        self.sampling = Sampling(
            inference.infer_temp, inference.infer_topk, inference.infer_topp, (self.tokenizer.pad_id,)
        )
        self.occurrences: Counter[str] = Counter()
        self.totals = Totals()

    def continuation(self, prompt: Prompt) -> Continuation:
        """An empty continuation; refuses a prompt that is longer than the context."""
        tokens = [self.tokenizer.separator_id, *self.tokenizer.encode(prompt.text).tolist()]
        longest = self.loaded.config[Transformer].context_length
        if len(tokens) > longest and self.command.long_prompt == "refuse":
            raise UserError(
                f"{prompt.where} is {len(tokens):,} tokens long, the separator before it included: this model reads "
                f"{longest:,} at most; shorten it, or give --long_prompt window to keep its end."
            )
        uniform = KeyedUniform(self.seed, tokens, self.occurrences[prompt.text])
        self.occurrences[prompt.text] += 1
        return Continuation(
            prompt, tokens[-longest:], uniform, IncrementalDecoder(self.tokenizer), StopMatcher(self.command.stop)
        )

    @torch.no_grad()
    def continue_all(self, rows: list[Continuation]) -> Iterator[tuple[Continuation, str]]:
        """Yields every row with the text that its next token adds, until all have a `finish`."""
        start = time.perf_counter()
        decoder = make_decoder(
            self.loaded.model, self.plan, [row.prompt_tokens for row in rows], self.inference.infer_max_gen_len
        )
        self.totals.cache_bytes = max(self.totals.cache_bytes, decoder.cache_bytes)
        try:
            while rows:
                tokens_B, entries = self.predict(decoder, rows)
                for row, entry in zip(rows, entries, strict=True):
                    text = self.append_token(row, entry)
                    row.seconds = time.perf_counter() - start
                    yield row, text
                active = [number for number, row in enumerate(rows) if row.finish is None]
                rows = [rows[number] for number in active]
                if rows:
                    decoder.continue_rows(tokens_B.tolist(), active)
        finally:
            self.totals.seconds += time.perf_counter() - start

    def predict(self, decoder: Decoder, rows: list[Continuation]) -> tuple[Tensor, list[dict[str, Any]]]:
        """The next token of each row, [B], and its entry in the results: id, logprob, energies, steps."""
        prediction = decoder.predict()
        logits_BV = prediction.logits.double().cpu()
        if not logits_BV.isfinite().all():
            raise UserError(
                f"the prediction of token {len(rows[0].tokens) + 1} is not finite: take shorter or fewer steps "
                "(--infer_ebt_override_alpha, --infer_ebt_num_steps) or, if its training diverged, an earlier --ckpt."
            )
        uniform_B = torch.tensor([row.uniform.at(len(row.tokens)) for row in rows], dtype=torch.float64)
        tokens_B = draw(logits_BV, uniform_B, self.sampling)
        values_B = {"id": tokens_B, "logprob": logits_BV.log_softmax(-1).gather(1, tokens_B[:, None])[:, 0]}
        if isinstance(decoder, EnergyDecoder):
            if self.with_energies:
                values_B["energy"] = decoder.energy_of(tokens_B.to(decoder.weight.device))
                values_B["prediction_energy"] = prediction.of_selected("energy")
            values_B["steps"] = prediction.of_selected("steps")
            if self.inference.infer_debug_sample_distances:
                self.totals.distances += candidate_distance(prediction).tolist()
        columns = {name: [round(value, 6) for value in values.tolist()] for name, values in values_B.items()}
        return tokens_B, [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def append_token(self, row: Continuation, entry: dict[str, Any]) -> str:
        """Add a token to a row. -> the text that is now certain"""
        self.totals.tokens += 1
        if "steps" in entry:
            self.totals.steps[entry["steps"]] += 1
        is_separator = entry["id"] == self.tokenizer.separator_id
        piece = "" if is_separator else row.decoder.push(entry["id"])
        row.tokens.append({"id": entry["id"], "text": piece} | entry)
        text = row.stop_matcher.push(piece)
        row.text += text
        if is_separator:
            return text + row.close("separator")
        if row.stop_matcher.matched:
            return text + row.close("stop")
        return text + row.close("length") if len(row.tokens) == self.inference.infer_max_gen_len else text


def candidate_distance(prediction: Prediction) -> Tensor:
    """The mean total-variation distance between the distributions of two candidates, 0 to 1. -> [B]"""
    assert prediction.candidates is not None
    probs_BGV = prediction.candidates.y.float().softmax(-1)
    count = probs_BGV.shape[1]
    return torch.cdist(probs_BGV, probs_BGV, p=1).sum((1, 2)) / (2 * count * (count - 1))


@dataclass(frozen=True)
class Sampling:
    """temperature: 0 takes the likeliest token; top_k: number of tokens to sample from, 0 is all; top_p: their share.

    excluded: tokens that are never sampled.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    excluded: Collection[int] = ()


def unused_sampling_flags(inference: Inference) -> list[str]:
    """Flags that shape what is drawn, where nothing is drawn: a problem for each."""
    changed = {"infer_topp": inference.infer_topp < 1, "infer_topk": inference.infer_topk > 0}
    effect = "has no effect with --infer_temp 0, which takes the likeliest token: remove it, or give a temperature."
    return [f"--{name} {effect}" for name in changed if changed[name] and inference.infer_temp == 0]


class KeyedUniform:
    """The uniform numbers of one continuation, by the index of a token: counter-based, and so batch-invariant.

    The key is the seed, the prompt, and how often that prompt came before: a repeated prompt is continued differently,
    and neither the other prompts nor their order matter.
    """

    def __init__(self, seed: int, prompt: Sequence[int], occurrence: int) -> None:
        name = f"{seed} {occurrence} {' '.join(map(str, prompt))}"
        self.key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")

    def at(self, index: int) -> float:
        """Above 0 and below 1."""
        return (mix_seed(index, self.key) + 0.5) / 2**32


def draw(logits_BV: Tensor, uniform_B: Tensor, sampling: Sampling) -> Tensor:
    """Sample a token for each row, by inverting the cumulative distribution at its uniform number. -> [B]"""
    logits_BV = logits_BV.double().clone()
    logits_BV[:, list(sampling.excluded)] = float("-inf")
    if sampling.temperature == 0:
        return logits_BV.argmax(-1)
    logits_BV -= logits_BV.max(-1, keepdim=True).values
    probs_BV = (logits_BV / max(sampling.temperature, MIN_TEMPERATURE)).softmax(-1)
    if sampling.top_k or sampling.top_p < 1:
        probs_BV = probs_BV * top_k_top_p_mask(probs_BV, sampling.top_k or probs_BV.shape[-1], sampling.top_p)
    cumulative_BV = probs_BV.cumsum(-1)
    threshold_B = uniform_B.to(cumulative_BV) * cumulative_BV[:, -1]
    return torch.searchsorted(cumulative_BV, threshold_B[:, None], right=True)[:, 0]


def top_k_top_p_mask(probs_BV: Tensor, top_k: int, top_p: float) -> Tensor:
    """The tokens among the k likeliest and, of these, among the fewest that together have the share p. -> [B, V]"""
    sorted_BV, order_BV = probs_BV.sort(dim=-1, descending=True, stable=True)
    sorted_BV[:, top_k:] = 0
    sorted_BV /= sorted_BV.sum(-1, keepdim=True)
    before_BV = sorted_BV.cumsum(-1) - sorted_BV
    mask_BV = (sorted_BV > 0) & (before_BV < top_p)
    return torch.zeros_like(mask_BV).scatter(-1, order_BV, mask_BV)


class IncrementalDecoder:
    """The text that each token adds; joined, it is the text of all tokens.

    An incomplete character is held back. What a token adds can depend on the token before it (a space that is dropped
    at the beginning of a text), so decoding starts with the tokens of the previous piece.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.context: list[int] = []  # tokens of the previous piece
        self.pending: list[int] = []  # tokens whose text is held back

    def push(self, token: int) -> str:
        self.pending.append(token)
        text = self.pending_text()
        if not text or text.endswith(INCOMPLETE):
            return ""
        self.context, self.pending = self.pending, []
        return text

    def pending_text(self) -> str:
        """The text of the pending tokens."""
        before = self.tokenizer.decode(self.context)
        return self.tokenizer.decode(self.context + self.pending)[len(before) :]

    def close(self) -> str:
        """The text that was held back."""
        text = self.pending_text()
        self.pending = []
        return text


class StopMatcher:
    """Text up to the first stop text, which may come in pieces. held: text that could be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.held = ""
        self.matched = False

    def push(self, piece: str) -> str:
        """The text that is now certain not to belong to a stop text; empty after one."""
        text = self.held + piece
        starts = [start for stop in self.stops if (start := text.find(stop)) >= 0]
        if starts:
            self.matched, self.held = True, ""
            return text[: min(starts)]
        longest = max((partial_match_length(text, stop) for stop in self.stops), default=0)
        self.held = text[len(text) - longest :]
        return text[: len(text) - longest]

    def close(self) -> str:
        """The text that was held back, at the end of the input."""
        held, self.held = self.held, ""
        return held


def partial_match_length(text: str, stop: str) -> int:
    """Length of the longest end of the text that is a beginning of the stop text."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)
