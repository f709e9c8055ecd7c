"""The energy-based transformer: one set of blocks, two streams.

    context = model.context(tokens, landscape)     the observed stream, an ordinary causal transformer: keys and values
    energy  = model.energy(prediction, context)    the prediction stream: position i sees observed 0..i and itself

The observed stream never sees a prediction: it is computed once per landscape and differentiated once. Only the
prediction stream is differentiated twice. Prediction i stands for token i+1 and has the position of that token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.layers.analytic import Saved, autograd_gradient, defines_gradient, forward_saving, input_gradient
from models.layers.attention import CacheAppend, SelfAttention, document_mask
from models.layers.feed_forward import FeedForward
from models.layers.linear import Linear, linear
from models.layers.norm import NORMS
from models.layers.rope import rotations
from models.transformer import TransformerShape, init_weights


@dataclass(frozen=True)
class EnergyShape(TransformerShape):
    """A transformer's shape, and what only an energy has."""

    conditioning: str = "default"  # default, time_embed, adaln or adaln_zero
    landscapes: int = 1  # how many step indices the energy may distinguish
    norm: str = "rms"
    activation: str = "silu"
    shared_embedding: bool = False  # predictions are embedded as tokens are
    form: str = "scalar"  # scalar or residual: see EnergyTransformer.energy
    enter: int = 0  # the block at which predictions enter


class Context(NamedTuple):
    """What predictions look at, with the time token O = S+1 positions, else O = S.

    keys_values: of each block they pass [B, H, O+1, K] twice, the last row empty; bias: [B or 1, 1, S, O+1].
    condition: the embedding of the landscape, [D], or None. angles: of the predictions, [S, K/2, 2].
    hidden: the end of the observed stream, [B, S, D], which only a residual energy reads; prior: that normed, whose
    products with the embedding are the logits of a Transformer++; readout: what the energy's head makes of the prior.
    """

    keys_values: list[tuple[Tensor, Tensor]]
    bias: Tensor
    condition: Tensor | None
    angles: Tensor
    hidden: Tensor | None = None
    prior: Tensor | None = None
    readout: Tensor | None = None


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

    def forward_observed(
        self, x_BSD: Tensor, condition: Tensor | None, angles: Tensor, mask: Tensor | None, past: CacheAppend | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        shift, scale, gate, shift2, scale2, gate2 = self.modulations(condition)
        mixed_BSD, keys, values = self.attention.forward_observed(
            modulate(self.attention_norm(x_BSD), shift, scale), angles, mask, past
        )
        x_BSD = x_BSD + gated(mixed_BSD, gate)
        fed_BSD = self.feed_forward(modulate(self.feed_forward_norm(x_BSD), shift2, scale2))
        return x_BSD + gated(fed_BSD, gate2), keys, values

    def keys_values(self, x_BSD: Tensor, condition: Tensor | None, angles: Tensor) -> tuple[Tensor, Tensor]:
        """What `forward_observed` gives besides the stream, for the last block, whose stream is not read."""
        shift, scale, *_ = self.modulations(condition)
        return self.attention.keys_values(modulate(self.attention_norm(x_BSD), shift, scale), angles)

    def forward_prediction(
        self, x_BSD: Tensor, condition: Tensor | None, angles: Tensor, keys: Tensor, values: Tensor, bias: Tensor
    ) -> Tensor:
        """The block's output for the prediction stream. Autograd differentiates a subclass that changes this alone."""
        return self.forward_saving(x_BSD, condition, angles, keys, values, bias)[0]

    def forward_saving(
        self, x_BSD: Tensor, condition: Tensor | None, angles: Tensor, keys: Tensor, values: Tensor, bias: Tensor
    ) -> tuple[Tensor, Saved]:
        """`forward_prediction`, and the tensors that its input gradient needs."""
        modulations = self.modulations(condition)
        shift, scale, gate, shift2, scale2, gate2 = modulations
        normed_BSD, before = forward_saving(self.attention_norm, x_BSD)
        mixed_BSD, mixed = self.attention.forward_saving(modulate(normed_BSD, shift, scale), angles, keys, values, bias)
        x_BSD = x_BSD + gated(mixed_BSD, gate)
        normed_BSD, between = forward_saving(self.feed_forward_norm, x_BSD)
        fed_BSD, fed = self.feed_forward.forward_saving(modulate(normed_BSD, shift2, scale2))
        return x_BSD + gated(fed_BSD, gate2), (modulations, before, mixed, between, fed)

    def input_gradient(self, g_BSD: Tensor, saved: Saved, angles: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """From the gradient of the block's output to that of x."""
        (_, scale, gate, _, scale2, gate2), before, mixed, between, fed = saved
        g_fed_BSD = self.feed_forward.input_gradient(gated(g_BSD, gate2), fed)
        g_BSD = g_BSD + input_gradient(self.feed_forward_norm, gated(g_fed_BSD, scale2), between)
        g_mixed_BSD = self.attention.input_gradient(gated(g_BSD, gate), mixed, angles, keys, values)
        return g_BSD + input_gradient(self.attention_norm, gated(g_mixed_BSD, scale), before)


class BlockFunctions(NamedTuple):
    """The methods of a block as functions of it: compiled or not."""

    forward_saving: Callable[..., Any]
    input_gradient: Callable[..., Any]
    forward_observed: Callable[..., Any]


def forward_block(block: Any, *inputs: Any) -> tuple[Tensor, Saved]:
    if defines_gradient(type(block), "forward_prediction"):
        return block.forward_saving(*inputs)
    return block.forward_prediction(*inputs), ()  # a subclass without formulas: autograd differentiates it


# Called on the block, so that the methods of a subclass and wrappers of modules (FSDP) are used.
EAGER = BlockFunctions(
    forward_block,
    lambda block, *inputs: block.input_gradient(*inputs),
    lambda block, *inputs: block.forward_observed(*inputs),
)


def modulate(x: Tensor, shift: Tensor | None, scale: Tensor | None) -> Tensor:
    return x if shift is None or scale is None else x * (1 + scale) + shift


def gated(x: Tensor, gate: Tensor | None) -> Tensor:
    """A gate of 0 is open, so that modulations of zero are the unconditioned block."""
    return x if gate is None else x * (1 + gate)


class EnergyTransformer(nn.Module):
    """Tokens [B, S] and embedded predictions z [B, S, D] to energies [B, S]: of two forms.

    scalar, as published:  E(z) = w . norm(f(z))                 f: all blocks; w: a learned vector
    residual:              E(z) = -z . h + U h . norm(f(z + x))  f: the energy's own blocks, behind the others;
                                                                 x: the observed stream before them, h = norm(x);
                                                                 U: a matrix, zero at the start

    The first term of a residual energy is that of a Transformer++, whose logits are W h. With the entropy of the
    prediction (see `models.spaces.Vocabulary`) it is the divergence from what that would predict, and the second term
    is what the energy's own blocks have to add: nothing at the start of training.
    """

    rotations: Tensor
    compiled: BlockFunctions | None = None  # after `compile_blocks`

    def __init__(self, shape: EnergyShape) -> None:
        super().__init__()
        self.shape = shape
        self.residual = shape.form == "residual"
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        shared = shape.shared_embedding or self.residual
        self.prediction = None if shared else Linear(shape.vocab_size, shape.width)
        self.blocks = nn.ModuleList(EnergyBlock(shape) for _ in range(shape.layers))
        self.norm = NORMS[shape.norm](shape.width)
        self.head = Linear(shape.width, shape.width if self.residual else 1)
        self.energy_norm = NORMS[shape.norm](shape.width) if self.residual else None
        conditioned = shape.conditioning != "default"
        self.landscape = nn.Embedding(shape.landscapes, shape.width) if conditioned else None
        # One position for the time token, and one for the last prediction, which is a token ahead.
        table = rotations(shape.context_length + 2, shape.width // shape.heads).float()
        self.register_buffer("rotations", table, persistent=False)
        init_weights(self, shape)
        if self.prediction is not None:
            # As large as what the blocks add to it: if smaller, bfloat16 would round a prediction away.
            nn.init.normal_(self.prediction.weight)
        if self.residual:
            nn.init.zeros_(self.head.weight)
        for block in self.blocks:
            if isinstance(block.modulation, nn.Linear):
                nn.init.zeros_(block.modulation.bias)
                std = 0.0 if shape.conditioning == "adaln_zero" else 0.02
                nn.init.normal_(block.modulation.weight, std=std)

    @property
    def prediction_embedding(self) -> Tensor:
        """[V, D], what a distribution over the vocabulary is multiplied with."""
        return self.embedding.weight if self.prediction is None else self.prediction.weight.T

    def to_vocabulary(self, d_BSD: Tensor) -> Tensor:
        """d W^T, where W embeds predictions: a move of the embedding as one of logits. [B, S, D] -> [B, S, V]"""
        if self.prediction is None:
            return linear(d_BSD, self.embedding.weight)
        return self.prediction.input_gradient(d_BSD)

    @property
    def has_landscapes(self) -> bool:
        """Whether the energy depends on the step index, so that each index has its own context."""
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
        """Run the observed stream. The time token, where there is one, comes first and is seen by all."""
        shape, length = self.shape, tokens_BS.shape[1]
        mask = None if shape.separator_id is None else document_mask(tokens_BS, shape.separator_id)
        if mask is None:
            mask = torch.ones(length, length, dtype=torch.bool, device=tokens_BS.device).tril()[None, None]
        x_BSD = self.embedding(tokens_BS)
        visible = mask  # to a prediction
        if self.time_tokens:
            x_BSD = self.with_time_token(x_BSD, landscape)
            visible = F.pad(mask, (1, 0), value=True)  # the time token first, which every prediction sees
            mask = F.pad(visible, (0, 0, 1, 0), value=False)
            mask[..., 0, 0] = True
        angles = self.rotations[: x_BSD.shape[1]]
        condition = self.condition(landscape)
        causal = shape.separator_id is None  # with the time token too: without a mask, attention skips what is ahead
        hidden_BSD, observed = self.forward_observed(x_BSD, condition, angles, None if causal else mask)
        keys_values = [
            (F.pad(keys, (0, 0, 0, 1)), F.pad(values, (0, 0, 0, 1))) for keys, values in observed[shape.enter :]
        ]
        visible = F.pad(visible, (0, 1), value=True)  # a prediction sees itself
        bias = torch.zeros(visible.shape, dtype=self.head.weight.dtype, device=visible.device)
        # A prediction has the position of the token it stands for.
        angles_ahead = self.rotations[1 + self.time_tokens :][:length]
        hidden_BSD = None if hidden_BSD is None else hidden_BSD[:, self.time_tokens :]
        return self.complete(
            Context(keys_values, bias.masked_fill_(~visible, float("-inf")), condition, angles_ahead), hidden_BSD
        )

    def complete(self, context: Context, hidden_BSD: Tensor | None) -> Context:
        """The context with what a residual energy reads of the end of the observed stream."""
        if hidden_BSD is None:
            return context
        prior_BSD = self.norm(hidden_BSD)
        return context._replace(hidden=hidden_BSD, prior=prior_BSD, readout=self.head(prior_BSD))

    def with_time_token(self, x_BSD: Tensor, landscape: int) -> Tensor:
        assert self.landscape is not None
        return torch.cat([self.landscape.weight[landscape].expand(len(x_BSD), 1, -1), x_BSD], dim=1)

    def forward_observed(
        self,
        x_BSD: Tensor,
        condition: Tensor | None,
        angles: Tensor,
        mask: Tensor | None,
        pasts: Sequence[CacheAppend] | None = None,
    ) -> tuple[Tensor | None, list[tuple[Tensor, Tensor]]]:
        """The stream where predictions enter, if the energy reads it, and keys and values of each layer, [B, H, S, K].

        With `pasts`, which append to a cache, they are those of all positions so far.
        """
        observed, hidden_BSD = [], None
        earlier: Sequence[CacheAppend | None] = pasts or [None] * len(self.blocks)
        functions = EAGER if self.compiled is None or pasts or not torch.is_grad_enabled() else self.compiled
        last = len(self.blocks) - 1  # only its keys and values are computed: its stream is not read
        for number, (block, past) in enumerate(zip(self.blocks, earlier, strict=True)):
            if number == self.shape.enter and self.residual:
                hidden_BSD = x_BSD
            if number < last:
                x_BSD, keys, values = functions.forward_observed(block, x_BSD, condition, angles, mask, past)
            else:
                keys, values = block.keys_values(x_BSD, condition, angles)  # type: ignore[operator]
                keys, values = (keys, values) if past is None else past(keys, values)
            observed.append((keys, values))
        return hidden_BSD, observed

    def energy(self, z_BSD: Tensor, context: Context) -> Tensor:
        """The energy of each position's prediction, given what was observed. [B, S, D] -> [B, S]

        A subclass may define another one; autograd then differentiates it, and the walk is slower.
        """
        return self.forward_saving(z_BSD, context)[0]

    def forward_saving(
        self, z_BSD: Tensor, context: Context, functions: BlockFunctions = EAGER
    ) -> tuple[Tensor, Saved]:
        """`energy`, and the tensors that its input gradient needs."""
        condition, angles, bias = context.condition, context.angles, context.bias
        u_BSD = z_BSD if context.hidden is None else z_BSD + context.hidden
        saved = []
        for block, (keys, values) in zip(self.blocks[self.shape.enter :], context.keys_values, strict=True):
            u_BSD, of_block = functions.forward_saving(block, u_BSD, condition, angles, keys, values, bias)
            saved.append(of_block)
        normed_BSD, of_norm = forward_saving(self.norm if self.energy_norm is None else self.energy_norm, u_BSD)
        if context.prior is None:
            energy_BS1, of_head = forward_saving(self.head, normed_BSD)
            return energy_BS1.squeeze(-1), (saved, of_norm, of_head)
        assert context.readout is not None
        energy_BS = (normed_BSD * context.readout).sum(-1) - (z_BSD * context.prior).sum(-1)
        return energy_BS, (saved, of_norm, ())

    def input_gradient(
        self, g_BS1: Tensor, saved: Saved, context: Context, functions: BlockFunctions = EAGER
    ) -> Tensor:
        """From the gradient of the energy to that of the prediction's embedding, [B, S, 1] -> [B, S, D]."""
        of_blocks, of_norm, of_head = saved
        norm = self.norm if self.energy_norm is None else self.energy_norm
        g_BSD = input_gradient(self.head, g_BS1, of_head) if context.readout is None else g_BS1 * context.readout
        g_BSD = input_gradient(norm, g_BSD, of_norm)
        blocks = self.blocks[self.shape.enter :]
        for block, (keys, values), of_block in zip(
            reversed(blocks), reversed(context.keys_values), reversed(of_blocks), strict=True
        ):
            g_BSD = functions.input_gradient(block, g_BSD, of_block, context.angles, keys, values)
        return g_BSD if context.prior is None else g_BSD - g_BS1 * context.prior

    @property
    def is_analytic(self) -> bool:
        """Whether the gradient is a formula: no subclass changed the energy or a block without its formula."""
        blocks = {type(block) for block in self.blocks}
        return defines_gradient(type(self), "energy") and all(
            defines_gradient(kind, "forward_prediction") for kind in blocks
        )

    def energy_and_gradient(self, z_BSD: Tensor, context: Context, create_graph: bool) -> tuple[Tensor, Tensor]:
        """The energy [B, S] and its gradient by the prediction [B, S, D], itself differentiable with create_graph."""
        if not self.is_analytic:
            return autograd_gradient(self.energy, z_BSD, context, create_graph)
        functions = self.compiled if torch.is_grad_enabled() and self.compiled is not None else EAGER
        with torch.set_grad_enabled(create_graph):
            energy_BS, saved = self.forward_saving(z_BSD, context, functions)
            ones_BS1 = torch.ones_like(energy_BS, requires_grad=False)[..., None]
            return energy_BS, self.input_gradient(ones_BS1, saved, context, functions)

    def compile_blocks(self) -> None:
        """Compile the methods of a block, once for all layers and steps; they are used where grad mode is on."""
        functions = (EnergyBlock.forward_saving, EnergyBlock.input_gradient, EnergyBlock.forward_observed)
        self.compiled = BlockFunctions(
            *(torch.compile(function, dynamic=False, fullgraph=True) for function in functions)
        )
