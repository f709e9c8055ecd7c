"""Reading and predicting token by token, for several texts of different lengths at once.

    decoder = make_decoder(model, plan, texts, room=100)
    while ...:
        prediction = decoder.predict()      logits for the next token of every text
        decoder.append(tokens)              the tokens that were chosen; `go_on` does so for those who are not done

A text gets the same predictions in any company. When the context is full, the newer half of it is kept and read again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from inference.cache import Cache
from inference.thinking import Plan, Thought, believed, think
from models.energy_language_model import Contexts, EnergyLanguageModel
from models.energy_transformer import Context
from models.language_model import LanguageModel
from models.transformer import Shape, Transformer


class Prediction(NamedTuple):
    """For the next token of each text: logits [B, V] and, from an EBT, how it came to them.

    candidates: all walks, [B, G]; chosen: which of them was believed, [B].
    """

    logits: Tensor
    candidates: Thought | None = None
    chosen: Tensor | None = None

    def of_chosen(self, name: str) -> Tensor:
        """A field of the chosen walk: energy, first_energy or steps, [B]."""
        assert self.chosen is not None
        return getattr(self.candidates, name).gather(1, self.chosen[:, None])[:, 0]


def up_to(columns_B: Tensor, used: int) -> Tensor:
    """The mask of new positions in these columns, who see all before them and themselves. -> [B, 1, 1, used]"""
    return (torch.arange(used, device=columns_B.device) <= columns_B[:, None])[:, None, None]


class Decoder(ABC):
    """Texts in reading. lengths: how many tokens of each are in the window that the model sees, [B]."""

    def __init__(self, shape: Shape, weight: Tensor, texts: Sequence[Sequence[int]], room: int) -> None:
        assert all(texts), "a text has at least one token"
        self.shape, self.weight = shape, weight
        self.texts = [list(text) for text in texts]
        self.context_length = shape.context_length
        self.capacity = min(self.context_length, max(map(len, texts)) + room)
        self.lengths = torch.zeros(len(texts), dtype=torch.int64, device=weight.device)

    @property
    def cache_bytes(self) -> int:
        return sum(tensor.nbytes for cache in self.caches() for tensor in (cache.keys, cache.values))

    @torch.inference_mode()
    def read_all(self) -> None:
        """Read the texts, or as much of their ends as the context holds."""
        windows = [text[-self.context_length :] for text in self.texts]
        self.refill(torch.arange(len(windows), device=self.weight.device), windows)

    @torch.inference_mode()
    def append(self, tokens_B: Tensor) -> None:
        """Read one more token of each text."""
        for text, token in zip(self.texts, tokens_B.tolist(), strict=True):
            text.append(token)
        full_B = self.lengths == self.context_length
        if full_B.any():
            rows = full_B.nonzero()[:, 0]
            kept = max(1, self.context_length // 2)
            self.refill(rows, [self.texts[row][-kept:-1] for row in rows.tolist()])
        self.lengths += 1
        self.extend(tokens_B.to(self.weight.device))

    def go_on(self, tokens: Sequence[int], rows: Sequence[int]) -> None:
        """Read the next token of these rows, and forget the others, who are done."""
        if len(rows) < len(self.texts):
            self.keep(rows)
        self.append(torch.tensor([tokens[row] for row in rows]))

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these texts only."""
        index = torch.tensor(rows, dtype=torch.int64, device=self.weight.device)
        self.texts = [self.texts[row] for row in rows]
        self.lengths = self.lengths[index]
        for cache in self.caches():
            cache.keep(index)

    def refill(self, rows: Tensor, windows: list[list[int]]) -> None:
        """Read these rows anew from their beginning."""
        self.lengths[rows] = torch.tensor([len(window) for window in windows], device=self.weight.device)
        longest = max(map(len, windows))
        padded = [window + [0] * (longest - len(window)) for window in windows]  # nobody looks behind a row's end
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

    def __init__(self, model: EnergyLanguageModel, plan: Plan, texts: Sequence[Sequence[int]], room: int) -> None:
        super().__init__(model.network.shape, model.network.head.weight, texts, room)
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

    def keep(self, rows: Sequence[int]) -> None:
        super().keep(rows)
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
            hidden_BSD, _ = network.observe(x_BSD, network.condition(landscape), angles, None, cache.fill(rows))
            if hidden_BSD is not None:
                ends_B = (self.lengths[rows] - 1 + network.time_tokens).clamp(min=0)
                hidden_BD = self.hidden_of[landscape].clone()
                hidden_BD[rows] = hidden_BSD[torch.arange(len(rows), device=rows.device), ends_B]
                self.hidden_of[landscape] = hidden_BD

    def extend(self, tokens_B: Tensor) -> None:
        network = self.network
        columns_B = self.lengths - 1 + network.time_tokens
        used = int(columns_B.max()) + 1
        mask = up_to(columns_B, used)
        x_B1D, angles = network.embedding(tokens_B)[:, None], network.rotations[columns_B][:, None, None]
        for landscape, cache in self.cache_of.items():
            past = cache.extend(columns_B, used)
            hidden_B1D, _ = network.observe(x_B1D, network.condition(landscape), angles, mask, past)
            if hidden_B1D is not None:
                self.hidden_of[landscape] = hidden_B1D[:, 0]

    def context(self, landscape: int) -> Context:
        """What one prediction after each text sees."""
        network = self.network
        ends_B = self.lengths + network.time_tokens
        used = int(ends_B.max())
        seen = up_to(ends_B - 1, used + 1)
        seen[..., -1] = True  # a prediction's own place
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
        thought = think(self.model, Contexts(self.context), positions_BG, self.plan, candidates_G)
        chosen_B = torch.zeros_like(self.lengths)
        if self.plan.candidates > 1:
            chosen_B = believed(thought.first_energy, thought.energy, self.plan.choice).argmax(1)
        return Prediction(thought.logits[torch.arange(len(chosen_B)), chosen_B], thought, chosen_B)

    @torch.inference_mode()
    def energy_of(self, tokens_B: Tensor) -> Tensor:
        """The energy of a token as the next one of each text, where the walk ends. [B] -> [B]"""
        context = self.context(self.plan.steps[-1].landscape)
        return self.network.energy(self.network.prediction_embedding[tokens_B][:, None], context)[:, 0]


class TransformerDecoder(Decoder):
    """A Transformer++: the logits of a text's last position, known as soon as it is read."""

    def __init__(self, model: LanguageModel, texts: Sequence[Sequence[int]], room: int) -> None:
        assert isinstance(model.network, Transformer)
        super().__init__(model.network.shape, model.network.embedding.weight, texts, room)
        self.network = model.network
        self.cache = Cache(self.shape, len(texts), self.capacity, self.weight)
        self.logits_BV = self.weight.new_zeros(len(texts), self.shape.vocab_size)
        self.read_all()

    def caches(self) -> list[Cache]:
        return [self.cache]

    def fill(self, rows: Tensor, tokens_BS: Tensor) -> None:
        if not tokens_BS.shape[1]:
            return
        x_BSD, pasts = self.network.embedding(tokens_BS), self.cache.fill(rows)
        angles = self.network.rotations[: tokens_BS.shape[1]]
        for block, past in zip(self.network.blocks, pasts, strict=True):
            x_BSD = block(x_BSD, angles, None, past)
        last_BD = x_BSD[torch.arange(len(rows)), (self.lengths[rows] - 1).clamp(min=0)]
        self.logits_BV[rows] = self.network.head(self.network.norm(last_BD))

    def extend(self, tokens_B: Tensor) -> None:
        columns_B = self.lengths - 1
        used = int(columns_B.max()) + 1
        mask, angles = up_to(columns_B, used), self.network.rotations[columns_B][:, None, None]
        x_B1D = self.network.embedding(tokens_B)[:, None]
        for block, past in zip(self.network.blocks, self.cache.extend(columns_B, used), strict=True):
            x_B1D = block(x_B1D, angles, mask, past)
        self.logits_BV = self.network.head(self.network.norm(x_B1D))[:, 0]

    def keep(self, rows: Sequence[int]) -> None:
        super().keep(rows)
        self.logits_BV = self.logits_BV[list(rows)]

    def predict(self) -> Prediction:
        return Prediction(self.logits_BV)


def make_decoder(model: LanguageModel, plan: Plan | None, texts: Sequence[Sequence[int]], room: int) -> Decoder:
    """The decoder of a model. texts: token ids, from which the reading begins; room: tokens that will be appended."""
    if isinstance(model, EnergyLanguageModel):
        assert plan is not None
        return EnergyDecoder(model, plan, texts, room)
    return TransformerDecoder(model, texts, room)
