"""The energy-based transformer: one set of blocks, two streams.

    context = model.context(tokens, landscape)     the observed stream, an ordinary causal transformer: keys and values
    energy  = model.energy(prediction, context)    the prediction stream: position i sees observed 0..i and itself

The observed stream never sees a prediction: it is computed once per landscape and differentiated once. Only the
prediction stream is differentiated twice. Prediction i stands for token i+1 and has its place in the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.layers.attention import Past, SelfAttention
from models.layers.back import Kept, ahead, back
from models.layers.documents import document_mask
from models.layers.feed_forward import FeedForward
from models.layers.linear import Linear, product
from models.layers.norm import NORMS
from models.layers.rope import rotations
from models.transformer import Shape, initialise


@dataclass(frozen=True)
class EnergyShape(Shape):
    """A transformer's shape, and what is the energy's own."""

    conditioning: str = "default"  # default, time_embed, adaln or adaln_zero
    landscapes: int = 1  # how many step indices the energy may be told apart
    norm: str = "rms"
    activation: str = "silu"
    shared_embedding: bool = field(default=False)  # predictions are embedded as tokens are


class Context(NamedTuple):
    """What predictions look at, with the time token O = S+1 positions, else O = S.

    keys_values: per layer [B, H, O+1, K] twice, the last row empty; bias: [B or 1, 1, S, O+1].
    condition: what the blocks are told of the landscape, [D], or None. angles: of the predictions, [S, K/2, 2].
    """

    keys_values: list[tuple[Tensor, Tensor]]
    bias: Tensor
    condition: Tensor | None
    angles: Tensor


class EnergyBlock(nn.Module):
    """A pre-norm block whose scales, shifts and gates may depend on the landscape."""

    def __init__(self, shape: EnergyShape) -> None:
        super().__init__()
        self.attention_norm = NORMS[shape.norm](shape.width)
        self.attention = SelfAttention(shape.width, shape.heads)
        self.feed_forward_norm = NORMS[shape.norm](shape.width)
        self.feed_forward = FeedForward(shape.width, shape.hidden, shape.activation)
        conditioned = shape.conditioning.startswith("adaln")
        self.modulation = nn.Linear(shape.width, 6 * shape.width) if conditioned else None

    def modulations(self, condition: Tensor | None) -> tuple[Tensor | None, ...]:
        """Shift, scale and gate of attention and of feed-forward, each [D]; None where nothing is conditioned."""
        if self.modulation is None:
            return (None,) * 6
        assert condition is not None
        return self.modulation(F.silu(condition)).chunk(6)

    def observe(
        self, x_BSD: Tensor, condition: Tensor | None, angles: Tensor, mask: Tensor | None, past: Past | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        shift, scale, gate, shift2, scale2, gate2 = self.modulations(condition)
        mixed_BSD, keys, values = self.attention.observe(
            modulate(self.attention_norm(x_BSD), shift, scale), angles, mask, past
        )
        x_BSD = x_BSD + gated(mixed_BSD, gate)
        fed_BSD = self.feed_forward(modulate(self.feed_forward_norm(x_BSD), shift2, scale2))
        return x_BSD + gated(fed_BSD, gate2), keys, values

    def keys_values(self, x_BSD: Tensor, condition: Tensor | None, angles: Tensor) -> tuple[Tensor, Tensor]:
        """What `observe` gives besides the stream, for the last block, whose stream nobody reads."""
        shift, scale, *_ = self.modulations(condition)
        return self.attention.keys_values(modulate(self.attention_norm(x_BSD), shift, scale), angles)

    def predict(
        self, x_BSD: Tensor, condition: Tensor | None, angles: Tensor, keys: Tensor, values: Tensor, bias: Tensor
    ) -> Tensor:
        shift, scale, gate, shift2, scale2, gate2 = self.modulations(condition)
        normed_BSD = modulate(self.attention_norm(x_BSD), shift, scale)
        x_BSD = x_BSD + gated(self.attention.predict(normed_BSD, angles, keys, values, bias), gate)
        fed_BSD = self.feed_forward(modulate(self.feed_forward_norm(x_BSD), shift2, scale2))
        return x_BSD + gated(fed_BSD, gate2)

    def ahead(
        self, x_BSD: Tensor, condition: Tensor | None, angles: Tensor, keys: Tensor, values: Tensor, bias: Tensor
    ) -> tuple[Tensor, Kept]:
        """`predict`, and what the way back needs."""
        modulations = self.modulations(condition)
        shift, scale, gate, shift2, scale2, gate2 = modulations
        normed_BSD, before = ahead(self.attention_norm, x_BSD)
        mixed_BSD, mixed = self.attention.ahead(modulate(normed_BSD, shift, scale), angles, keys, values, bias)
        x_BSD = x_BSD + gated(mixed_BSD, gate)
        normed_BSD, between = ahead(self.feed_forward_norm, x_BSD)
        fed_BSD, fed = self.feed_forward.ahead(modulate(normed_BSD, shift2, scale2))
        return x_BSD + gated(fed_BSD, gate2), (modulations, before, mixed, between, fed)

    def back(self, g_BSD: Tensor, kept: Kept, angles: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """From the gradient of what the block gives to that of x."""
        (_, scale, gate, _, scale2, gate2), before, mixed, between, fed = kept
        g_fed_BSD = self.feed_forward.back(gated(g_BSD, gate2), fed)
        g_BSD = g_BSD + back(self.feed_forward_norm, gated(g_fed_BSD, scale2), between)
        g_mixed_BSD = self.attention.back(gated(g_BSD, gate), mixed, angles, keys, values)
        return g_BSD + back(self.attention_norm, gated(g_mixed_BSD, scale), before)


class Ways(NamedTuple):
    """What a block does, as functions of it: compiled or not."""

    ahead: Callable[..., Any]
    back: Callable[..., Any]
    observe: Callable[..., Any]


PLAIN = Ways(EnergyBlock.ahead, EnergyBlock.back, EnergyBlock.observe)


def modulate(x: Tensor, shift: Tensor | None, scale: Tensor | None) -> Tensor:
    return x if shift is None or scale is None else x * (1 + scale) + shift


def gated(x: Tensor, gate: Tensor | None) -> Tensor:
    """A gate of 0 is open, so that modulations of zero are the unconditioned block."""
    return x if gate is None else x * (1 + gate)


class EnergyTransformer(nn.Module):
    """Tokens [B, S] and embedded predictions [B, S, D] to energies [B, S]."""

    rotations: Tensor
    compiled: Ways | None = None  # after `compile_blocks`

    def __init__(self, shape: EnergyShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.prediction = None if shape.shared_embedding else Linear(shape.vocab_size, shape.width)
        self.blocks = nn.ModuleList(EnergyBlock(shape) for _ in range(shape.layers))
        self.norm = NORMS[shape.norm](shape.width)
        self.head = Linear(shape.width, 1)
        named = shape.conditioning != "default"
        self.landscape = nn.Embedding(shape.landscapes, shape.width) if named else None
        # One place for the time token, and one for the last prediction, which is a token ahead of its position.
        table = rotations(shape.context_length + 2, shape.width // shape.heads).float()
        self.register_buffer("rotations", table, persistent=False)
        initialise(self, shape)
        if self.prediction is not None:
            # As large as what the blocks add to it: with less, bfloat16 rounds a prediction away.
            nn.init.normal_(self.prediction.weight)
        for block in self.blocks:
            if isinstance(block.modulation, nn.Linear):
                nn.init.zeros_(block.modulation.bias)
                std = 0.0 if shape.conditioning == "adaln_zero" else 0.02
                nn.init.normal_(block.modulation.weight, std=std)

    @property
    def prediction_embedding(self) -> Tensor:
        """[V, D], what a distribution over the vocabulary is multiplied with."""
        return self.embedding.weight if self.prediction is None else self.prediction.weight.T

    def spread(self, d_BSD: Tensor) -> Tensor:
        """What a move of the embedding is over the vocabulary: d W^T, W the prediction's embedding. -> [B, S, V]"""
        return product(d_BSD, self.embedding.weight) if self.prediction is None else self.prediction.back(d_BSD)

    @property
    def tells_landscapes(self) -> bool:
        """Whether the energy depends on the step index, so that each index has a context of its own."""
        return self.landscape is not None

    @property
    def time_tokens(self) -> int:
        """How many positions stand before the first token."""
        return int(self.shape.conditioning == "time_embed")

    def condition(self, landscape: int) -> Tensor | None:
        if self.landscape is None or self.shape.conditioning == "time_embed":
            return None
        return self.landscape.weight[landscape]

    def context(self, tokens_BS: Tensor, landscape: int = 0) -> Context:
        """Run the observed stream; the time token, where there is one, stands before all and is seen by all."""
        shape, length = self.shape, tokens_BS.shape[1]
        mask = None if shape.separator_id is None else document_mask(tokens_BS, shape.separator_id)
        if mask is None:
            mask = torch.ones(length, length, dtype=torch.bool, device=tokens_BS.device).tril()[None, None]
        x_BSD = self.embedding(tokens_BS)
        sees = mask
        if self.time_tokens:
            x_BSD = self.with_time_token(x_BSD, landscape)
            sees = F.pad(mask, (1, 0), value=True)  # what a prediction sees: every position, and the time token first
            mask = F.pad(sees, (0, 0, 1, 0), value=False)
            mask[..., 0, 0] = True
        angles = self.rotations[: x_BSD.shape[1]]
        condition = self.condition(landscape)
        causal = shape.separator_id is None  # with the time token too: without a mask, attention skips what is ahead
        observed = self.observe(x_BSD, condition, angles, None if causal else mask)
        keys_values = [(F.pad(keys, (0, 0, 0, 1)), F.pad(values, (0, 0, 0, 1))) for keys, values in observed]
        sees = F.pad(sees, (0, 1), value=True)
        bias = torch.zeros(sees.shape, dtype=self.head.weight.dtype, device=sees.device)
        ahead = self.rotations[1 + self.time_tokens :][:length]  # a prediction has the place of the token it stands for
        return Context(keys_values, bias.masked_fill_(~sees, float("-inf")), condition, ahead)

    def with_time_token(self, x_BSD: Tensor, landscape: int) -> Tensor:
        assert self.landscape is not None
        return torch.cat([self.landscape.weight[landscape].expand(len(x_BSD), 1, -1), x_BSD], dim=1)

    def observe(
        self,
        x_BSD: Tensor,
        condition: Tensor | None,
        angles: Tensor,
        mask: Tensor | None,
        pasts: Sequence[Past] | None = None,
    ) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer, [B, H, S, K]; with `pasts`, which keep them, those of all positions so far."""
        observed = []
        earlier: Sequence[Past | None] = pasts or [None] * len(self.blocks)
        ways = PLAIN if self.compiled is None or pasts or not torch.is_grad_enabled() else self.compiled
        for block, past in zip(self.blocks[:-1], earlier[:-1], strict=True):
            x_BSD, keys, values = ways.observe(block, x_BSD, condition, angles, mask, past)
            observed.append((keys, values))
        last = self.blocks[-1].keys_values(x_BSD, condition, angles)  # type: ignore[operator]
        return [*observed, last if earlier[-1] is None else earlier[-1](*last)]

    def energy(self, z_BSD: Tensor, context: Context) -> Tensor:
        """The energy of each position's prediction, given what was observed. [B, S, D] -> [B, S]"""
        condition, angles, bias = context.condition, context.angles, context.bias
        for block, (keys, values) in zip(self.blocks, context.keys_values, strict=True):
            z_BSD = block.predict(z_BSD, condition, angles, keys, values, bias)  # type: ignore[operator]
        return self.head(self.norm(z_BSD)).squeeze(-1)

    def slope(self, z_BSD: Tensor, context: Context, differentiable: bool) -> tuple[Tensor, Tensor]:
        """The energy [B, S] and its gradient by the prediction [B, S, D], itself differentiable if asked."""
        if not differentiable:
            with torch.no_grad():
                return self.written_slope(z_BSD, context, PLAIN)
        with torch.enable_grad():
            if self.compiled is not None:
                return self.written_slope(z_BSD, context, self.compiled)
            z_BSD = z_BSD if z_BSD.requires_grad else z_BSD.requires_grad_()
            energy_BS = self.energy(z_BSD, context)
            (slope_BSD,) = torch.autograd.grad(energy_BS.sum(), z_BSD, create_graph=True)
        return energy_BS, slope_BSD

    def written_slope(self, z_BSD: Tensor, context: Context, ways: Ways) -> tuple[Tensor, Tensor]:
        """`slope` without autograd: half the time of a single position, and what can be compiled block by block."""
        condition, angles, bias = context.condition, context.angles, context.bias
        kept = []
        for block, (keys, values) in zip(self.blocks, context.keys_values, strict=True):
            z_BSD, of_block = ways.ahead(block, z_BSD, condition, angles, keys, values, bias)
            kept.append(of_block)
        normed_BSD, of_norm = ahead(self.norm, z_BSD)
        slope_BSD = back(self.norm, self.head.weight.expand(normed_BSD.shape), of_norm)
        for block, of_block, (keys, values) in zip(
            reversed(self.blocks), reversed(kept), reversed(context.keys_values), strict=True
        ):
            slope_BSD = ways.back(block, slope_BSD, of_block, angles, keys, values)
        return self.head(normed_BSD).squeeze(-1), slope_BSD

    def compile_blocks(self) -> None:
        """Compile what a block does, once for all layers and steps; what training differentiates runs compiled."""
        self.compiled = Ways(*(torch.compile(way, dynamic=False, fullgraph=True) for way in PLAIN))
