"""Reading and predicting token by token, for several texts of different lengths at once.

    decoder = make_decoder(model, plan, texts, max_new_tokens=100)
    while ...:
        prediction = decoder.predict()      logits for the next token of every text
        decoder.append(tokens)              the next token of every text; `continue_rows` drops the texts that are done

Predictions are batch-invariant. When the context is full, its newer half is read again and the older one dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from inference.language.walk import token_walk
from inference.thinking import WalkPlan, WalkState, candidate_score, last_state
from models.energy_model import Contexts
from models.energy_transformer import Context
from models.language import EnergyLM, LanguageModel
from models.layers.attention import CacheAppend
from models.transformer import Transformer, TransformerShape


class Prediction(NamedTuple):
    """For the next token of each text: logits [B, V] and, for an EBT, the walks that led to them.

    candidates: the ends of all walks, [B, G]; selection: number of the selected one, [B].
    """

    logits: Tensor
    candidates: WalkState | None = None
    selection: Tensor | None = None

    def of_selected(self, name: str) -> Tensor:
        """A field of the selected walk: energy, first_energy or steps, [B]."""
        assert self.selection is not None
        return getattr(self.candidates, name).gather(1, self.selection[:, None])[:, 0]


class Cache:
    """Keys and values of all layers, for rows of at most `columns` positions.

    One more column stays empty: a prediction's own score goes there (see `attend`). Columns after the end of a row are
    finite, and masked.
    """

    def __init__(self, shape: TransformerShape, rows: int, columns: int, like: Tensor) -> None:
        size = (shape.layers, rows, shape.heads, columns + 1, shape.width // shape.heads)
        self.keys = like.new_zeros(size)
        self.values = like.new_zeros(size)

    def fill(self, rows: Tensor) -> list[CacheAppend]:
        """Per layer a function that stores positions 0, 1, ... of these rows, which attend to nothing earlier."""

        def store(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            length = keys.shape[2]
            self.keys[layer, rows, :, :length] = keys
            self.values[layer, rows, :, :length] = values
            return keys, values

        return [partial(store, layer) for layer in range(len(self.keys))]

    def extend(self, columns_B: Tensor, used: int) -> list[CacheAppend]:
        """Per layer a function that stores one more position of every row and returns the first `used` columns."""
        rows = torch.arange(len(columns_B), device=columns_B.device)

        def store(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            self.keys[layer][rows, :, columns_B] = keys[:, :, 0]
            self.values[layer][rows, :, columns_B] = values[:, :, 0]
            return self.keys[layer, :, :, :used], self.values[layer, :, :, :used]

        return [partial(store, layer) for layer in range(len(self.keys))]

    def first(self, used: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer, [B, H, used, K]: views, not copies."""
        return [(keys[:, :, :used], values[:, :, :used]) for keys, values in zip(self.keys, self.values, strict=True)]

    def select_rows(self, rows: Tensor) -> None:
        """Drop all other rows."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]


def prefix_mask(columns_B: Tensor, used: int) -> Tensor:
    """The mask of new positions in these columns, which see themselves and all before. -> [B, 1, 1, used]"""
    return (torch.arange(used, device=columns_B.device) <= columns_B[:, None])[:, None, None]


class Decoder(ABC):
    """Several texts and their caches. lengths: number of tokens of each in the window that the model sees, [B]."""

    def __init__(
        self, shape: TransformerShape, weight: Tensor, texts: Sequence[Sequence[int]], max_new_tokens: int
    ) -> None:
        assert all(texts), "a text has at least one token"
        self.shape, self.weight = shape, weight
        self.texts = [list(text) for text in texts]
        self.context_length = shape.context_length
        self.capacity = min(self.context_length, max(map(len, texts)) + max_new_tokens)
        self.lengths = torch.zeros(len(texts), dtype=torch.int64, device=weight.device)

    @property
    def cache_bytes(self) -> int:
        return sum(tensor.nbytes for cache in self.caches() for tensor in (cache.keys, cache.values))

    @torch.inference_mode()
    def read_all(self) -> None:
        """Read the texts, or as much of their end as fits into the context."""
        windows = [text[-self.context_length :] for text in self.texts]
        self.refill(torch.arange(len(windows), device=self.weight.device), windows)

    @torch.inference_mode()
    def append(self, tokens_B: Tensor) -> None:
        """Append one token to each text, and read it."""
        for text, token in zip(self.texts, tokens_B.tolist(), strict=True):
            text.append(token)
        full_B = self.lengths == self.context_length
        if full_B.any():
            rows = full_B.nonzero()[:, 0]
            half = max(1, self.context_length // 2)
            self.refill(rows, [self.texts[row][-half:-1] for row in rows.tolist()])
        self.lengths += 1
        self.extend(tokens_B.to(self.weight.device))

    def continue_rows(self, tokens: Sequence[int], rows: Sequence[int]) -> None:
        """Append the token of each of these rows, and drop the others."""
        if len(rows) < len(self.texts):
            self.select_rows(rows)
        self.append(torch.tensor([tokens[row] for row in rows]))

    @torch.inference_mode()
    def select_rows(self, rows: Sequence[int]) -> None:
        """Drop all other texts."""
        index = torch.tensor(rows, dtype=torch.int64, device=self.weight.device)
        self.texts = [self.texts[row] for row in rows]
        self.lengths = self.lengths[index]
        for cache in self.caches():
            cache.select_rows(index)

    def refill(self, rows: Tensor, windows: list[list[int]]) -> None:
        """Read these rows again from the beginning of their windows."""
        self.lengths[rows] = torch.tensor([len(window) for window in windows], device=self.weight.device)
        longest = max(map(len, windows))
        padded = [window + [0] * (longest - len(window)) for window in windows]  # columns after a row's end are masked
        self.fill(rows, torch.tensor(padded, dtype=torch.int64, device=self.weight.device))

    @abstractmethod
    def predict(self) -> Prediction: ...

    @abstractmethod
    def caches(self) -> list[Cache]: ...

    @abstractmethod
    def fill(self, rows: Tensor, tokens_BS: Tensor) -> None: ...

    @abstractmethod
    def extend(self, tokens_B: Tensor) -> None: ...


class EnergyDecoder(Decoder):
    """An EBT: per token one position of the observed stream for each landscape, and the steps of one prediction."""

    def __init__(self, model: EnergyLM, plan: WalkPlan, texts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        super().__init__(model.network.shape, model.network.head.weight, texts, max_new_tokens)
        self.model, self.network, self.plan = model, model.network, plan
        columns = self.capacity + self.network.time_tokens
        landscapes = sorted({step.landscape for step in plan.steps})
        self.cache_of = {k: Cache(self.shape, len(texts), columns, self.weight) for k in landscapes}
        # The end of the observed stream at each text's last token, for an energy that reads it.
        rows_BD = self.weight.new_zeros(len(texts), self.shape.width)
        self.hidden_of = dict.fromkeys(landscapes, rows_BD) if self.network.residual else {}
        self.read_all()

    def caches(self) -> list[Cache]:
        return list(self.cache_of.values())

    def select_rows(self, rows: Sequence[int]) -> None:
        super().select_rows(rows)
        self.hidden_of = {k: hidden_BD[list(rows)] for k, hidden_BD in self.hidden_of.items()}

    def fill(self, rows: Tensor, tokens_BS: Tensor) -> None:
        network = self.network
        if not tokens_BS.shape[1] and not network.time_tokens:
            return
        for landscape, cache in self.cache_of.items():
            x_BSD = network.embedding(tokens_BS)
            if network.time_tokens:
                x_BSD = network.with_time_token(x_BSD, landscape)
            angles = network.rotations[: x_BSD.shape[1]]
            condition, past = network.condition(landscape), cache.fill(rows)
            hidden_BSD, _ = network.forward_observed(x_BSD, condition, angles, None, past)
            if hidden_BSD is not None:
                ends_B = (self.lengths[rows] - 1 + network.time_tokens).clamp(min=0)
                hidden_BD = self.hidden_of[landscape].clone()
                hidden_BD[rows] = hidden_BSD[torch.arange(len(rows), device=rows.device), ends_B]
                self.hidden_of[landscape] = hidden_BD

    def extend(self, tokens_B: Tensor) -> None:
        network = self.network
        columns_B = self.lengths - 1 + network.time_tokens
        used = int(columns_B.max()) + 1
        mask = prefix_mask(columns_B, used)
        x_B1D, angles = network.embedding(tokens_B)[:, None], network.rotations[columns_B][:, None, None]
        for landscape, cache in self.cache_of.items():
            past = cache.extend(columns_B, used)
            hidden_B1D, _ = network.forward_observed(x_B1D, network.condition(landscape), angles, mask, past)
            if hidden_B1D is not None:
                self.hidden_of[landscape] = hidden_B1D[:, 0]

    def context(self, landscape: int) -> Context:
        """The context of one prediction after each text."""
        network = self.network
        ends_B = self.lengths + network.time_tokens
        used = int(ends_B.max())
        seen = prefix_mask(ends_B - 1, used + 1)
        seen[..., -1] = True  # a prediction sees itself
        bias = torch.zeros(seen.shape, dtype=self.weight.dtype, device=self.weight.device)
        context = Context(
            self.cache_of[landscape].first(used + 1)[network.shape.enter :],
            bias.masked_fill_(~seen, float("-inf")),
            network.condition(landscape),
            network.rotations[ends_B][:, None, None],
        )
        return network.complete(context, self.hidden_of[landscape][:, None] if self.hidden_of else None)

    @torch.inference_mode()
    def predict(self) -> Prediction:
        """Candidates share the cache: they are positions that do not see one another."""
        candidates_G = torch.arange(self.plan.candidates, device=self.lengths.device)
        positions_BG = (self.lengths - 1)[:, None].expand(-1, self.plan.candidates)
        walks = last_state(token_walk(self.model, Contexts(self.context), positions_BG, self.plan, candidates_G))
        selection_B = torch.zeros_like(self.lengths)
        if self.plan.candidates > 1:
            selection_B = candidate_score(walks.first_energy, walks.energy, self.plan.choice).argmax(1)
        return Prediction(walks.y[torch.arange(len(selection_B)), selection_B], walks, selection_B)

    @torch.inference_mode()
    def energy_of(self, tokens_B: Tensor) -> Tensor:
        """The energy of a token as the next one of each text, on the last landscape. [B] -> [B]"""
        context = self.context(self.plan.steps[-1].landscape)
        return self.model.target_energy(tokens_B[:, None], context)[:, 0]


class TransformerDecoder(Decoder):
    """A Transformer++, looped or not: reading a token computes the logits of the next one."""

    def __init__(self, model: LanguageModel, texts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        assert isinstance(model.network, Transformer)
        super().__init__(model.network.shape, model.network.embedding.weight, texts, max_new_tokens)
        self.network = model.network
        layers = replace(self.shape, layers=self.network.cached_layers)
        self.cache = Cache(layers, len(texts), self.capacity, self.weight)
        self.logits_BV = self.weight.new_zeros(len(texts), self.shape.vocab_size)
        self.read_all()

    def caches(self) -> list[Cache]:
        return [self.cache]

    def fill(self, rows: Tensor, tokens_BS: Tensor) -> None:
        if not tokens_BS.shape[1]:
            return
        x_BSD, pasts = self.network.embedding(tokens_BS), self.cache.fill(rows)
        angles = self.network.rotations[: tokens_BS.shape[1]]
        x_BSD = self.network.through_blocks(x_BSD, angles, None, pasts)
        last_BD = x_BSD[torch.arange(len(rows)), (self.lengths[rows] - 1).clamp(min=0)]
        self.logits_BV[rows] = self.network.head(self.network.norm(last_BD))

    def extend(self, tokens_B: Tensor) -> None:
        columns_B = self.lengths - 1
        used = int(columns_B.max()) + 1
        mask, angles = prefix_mask(columns_B, used), self.network.rotations[columns_B][:, None, None]
        x_B1D = self.network.embedding(tokens_B)[:, None]
        x_B1D = self.network.through_blocks(x_B1D, angles, mask, self.cache.extend(columns_B, used))
        self.logits_BV = self.network.head(self.network.norm(x_B1D))[:, 0]

    def select_rows(self, rows: Sequence[int]) -> None:
        super().select_rows(rows)
        self.logits_BV = self.logits_BV[list(rows)]

    def predict(self) -> Prediction:
        return Prediction(self.logits_BV)


def make_decoder(
    model: LanguageModel, plan: WalkPlan | None, texts: Sequence[Sequence[int]], max_new_tokens: int
) -> Decoder:
    """The decoder of a model. texts: token ids of the prompts; max_new_tokens: how many will be appended at most."""
    if isinstance(model, EnergyLM):
        assert plan is not None
        return EnergyDecoder(model, plan, texts, max_new_tokens)
    return TransformerDecoder(model, texts, max_new_tokens)
