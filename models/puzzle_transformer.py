"""The bidirectional transformer of puzzles: cells with input fields and coordinates, a symbol to be predicted in each.

    x = fields + coordinates                      `embed`
    h = blocks(x),  f = W_o norm(h)               `forward`: logits of a feed-forward transformer
    E = -sum_i <p_i, f_i(x + p W)>                `energy` of predictions p, head "dot"
    E = sum_i w . norm(h_i(x + p W))              head "linear", as published

Padding is never attended to and has no energy, and the symbols of given cells are part of every p.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from models.layers.analytic import Saved, autograd_gradient, defines_gradient, forward_saving, input_gradient
from models.layers.bidirectional_attention import BidirectionalAttention, padding_bias
from models.layers.feed_forward import FeedForward
from models.layers.linear import Linear
from models.layers.norm import NORMS
from models.model import Batch
from models.transformer import init_weights

HEADS = ("dot", "linear")


@dataclass(frozen=True)
class PuzzleShape:
    """The numbers that fix the parameters. symbols: V. fields: the size of each input field.

    positions: coordinates of each cell, G lists of N numbers.
    """

    cells: int
    symbols: int
    fields: tuple[int, ...]
    positions: Sequence[Sequence[int]]
    layers: int
    width: int
    heads: int
    hidden: int
    init_method: str = "xavier"
    init_gain: float = 1.0
    norm: str = "rms"
    activation: str = "silu"
    tied: ClassVar[bool] = False


class Clues(NamedTuple):
    """What is shown of puzzles. inputs: [B, N, F]. one_hot: symbols of given cells, else 0, [B, N, V].

    blank: cells to be predicted, [B, N, 1]. real: cells that are no padding, [B, N].
    """

    inputs: Tensor
    one_hot: Tensor
    blank: Tensor
    real: Tensor


class PuzzleContext(NamedTuple):
    """What an energy reads of puzzles: the embedded cells [B, N, D], the bias of attention and the clues.

    weight: 1 for a cell, 0 for padding, [B, N, 1].
    """

    x: Tensor
    bias: Tensor
    weight: Tensor
    clues: Clues


def clues_of(batch: Batch, symbols: int, dtype: torch.dtype) -> Clues:
    given_BN1, real_BN = batch["given"][..., None], batch["real"]
    one_hot_BNV = (given_BN1 == torch.arange(symbols, device=given_BN1.device)).to(dtype)
    return Clues(batch["inputs"], one_hot_BNV, (given_BN1 < 0) & real_BN[..., None], real_BN)


class PuzzleBlock(nn.Module):
    """Attention, then feed-forward, each added to the stream. [B, N, D] -> [B, N, D]"""

    def __init__(self, shape: PuzzleShape) -> None:
        super().__init__()
        self.attention_norm = NORMS[shape.norm](shape.width)
        self.attention = BidirectionalAttention(shape.width, shape.heads)
        self.feed_forward_norm = NORMS[shape.norm](shape.width)
        self.feed_forward = FeedForward(shape.width, shape.hidden, shape.activation)

    def forward(self, x_BND: Tensor, bias: Tensor) -> Tensor:
        return self.forward_saving(x_BND, bias)[0]

    def forward_saving(self, x_BND: Tensor, bias: Tensor) -> tuple[Tensor, Saved]:
        """`forward`, and the tensors that its input gradient needs."""
        normed_BND, before = forward_saving(self.attention_norm, x_BND)
        mixed_BND, mixed = self.attention.forward_saving(normed_BND, bias)
        x_BND = x_BND + mixed_BND
        normed_BND, between = forward_saving(self.feed_forward_norm, x_BND)
        fed_BND, fed = self.feed_forward.forward_saving(normed_BND)
        return x_BND + fed_BND, (before, mixed, between, fed)

    def input_gradient(self, g_BND: Tensor, saved: Saved) -> Tensor:
        """From the gradient of the block's output to that of x."""
        before, mixed, between, fed = saved
        g_fed_BND = self.feed_forward.input_gradient(g_BND, fed)
        g_BND = g_BND + input_gradient(self.feed_forward_norm, g_fed_BND, between)
        g_mixed_BND = self.attention.input_gradient(g_BND, mixed)
        return g_BND + input_gradient(self.attention_norm, g_mixed_BND, before)


class BlockFunctions(NamedTuple):
    """The methods of a block as functions of it: compiled or not."""

    forward_saving: Callable[..., Any]
    input_gradient: Callable[..., Any]


# Called on the block, so that the methods of a subclass are used.
EAGER = BlockFunctions(
    lambda block, *inputs: block.forward_saving(*inputs), lambda block, *inputs: block.input_gradient(*inputs)
)


class PuzzleTransformer(nn.Module):
    """Cells to logits, [B, N, F] -> [B, N, V]; with an energy head also predictions [B, N, V] to energies [B].

    head: None for a model without an energy.
    """

    positions: Tensor
    compiled: BlockFunctions | None = None  # after `compile_energy`

    def __init__(self, shape: PuzzleShape, head: str | None = None) -> None:
        super().__init__()
        self.shape, self.energy_head = shape, head
        self.fields = nn.ModuleList(nn.Embedding(size, shape.width) for size in shape.fields)
        positions_GN = torch.as_tensor(shape.positions, dtype=torch.long).reshape(-1, shape.cells)
        self.register_buffer("positions", positions_GN, persistent=False)
        self.coordinates = nn.ModuleList(nn.Embedding(int(row.max()) + 1, shape.width) for row in positions_GN)
        self.prediction = Linear(shape.symbols, shape.width) if head else None
        self.blocks = nn.ModuleList(PuzzleBlock(shape) for _ in range(shape.layers))
        self.norm = NORMS[shape.norm](shape.width)
        self.head = Linear(shape.width, 1 if head == "linear" else shape.symbols)
        init_weights(self, shape)
        for table in (*self.fields, *self.coordinates):
            # Their sum is about as large as a normalised state, which a looped transformer adds it to.
            nn.init.normal_(table.weight, std=(len(self.fields) + len(self.coordinates)) ** -0.5)
        if self.prediction is not None:
            nn.init.normal_(self.prediction.weight)  # as large as the cells that it is added to

    def embed(self, inputs_BNF: Tensor) -> Tensor:
        """The sum of the embeddings of fields and coordinates. [B, N, F] -> [B, N, D]"""
        x_ND = sum(table(row) for table, row in zip(self.coordinates, self.positions, strict=True))
        x_BND = sum(table(field) for table, field in zip(self.fields, inputs_BNF.unbind(-1), strict=True))
        return x_BND + x_ND

    def bias(self, real_BN: Tensor) -> Tensor:
        """What keeps attention away from padding."""
        return padding_bias(real_BN, self.head.weight, self.shape.heads)

    def through_blocks(self, x_BND: Tensor, bias: Tensor) -> Tensor:
        for block in self.blocks:
            x_BND = block(x_BND, bias)
        return x_BND

    def readout(self, h_BND: Tensor) -> Tensor:
        """[B, N, D] -> [B, N, V]"""
        return self.head(self.norm(h_BND))

    def forward(self, inputs_BNF: Tensor, real_BN: Tensor) -> Tensor:
        return self.readout(self.through_blocks(self.embed(inputs_BNF), self.bias(real_BN)))

    # The energy.

    def context(self, clues: Clues) -> PuzzleContext:
        """What does not depend on predictions."""
        weight_BN1 = clues.real[..., None].to(self.head.weight.dtype)
        return PuzzleContext(self.embed(clues.inputs), self.bias(clues.real), weight_BN1, clues)

    def energy(self, p_BNV: Tensor, context: PuzzleContext) -> Tensor:
        """The energy of predictions, whatever they say of given cells. [B, N, V] -> [B]

        A subclass may define another one; autograd then differentiates it, and the walk is slower.
        """
        return self.forward_saving(p_BNV, context)[0]

    def forward_saving(
        self, p_BNV: Tensor, context: PuzzleContext, functions: BlockFunctions = EAGER
    ) -> tuple[Tensor, Saved]:
        """`energy`, and the tensors that its input gradient needs."""
        assert self.prediction is not None
        p_BNV = torch.where(context.clues.blank, p_BNV, context.clues.one_hot)
        x_BND, saved = context.x + self.prediction(p_BNV), []
        for block in self.blocks:
            x_BND, of_block = functions.forward_saving(block, x_BND, context.bias)
            saved.append(of_block)
        normed_BND, of_norm = forward_saving(self.norm, x_BND)
        f_BNV = self.head(normed_BND)
        weighted_BNV = context.weight if self.energy_head == "linear" else -p_BNV * context.weight
        return (f_BNV * weighted_BNV).sum((-2, -1)), (saved, of_norm, f_BNV, weighted_BNV)

    def input_gradient(self, saved: Saved, context: PuzzleContext, functions: BlockFunctions = EAGER) -> Tensor:
        """The gradient of the energy by predictions, 0 in given cells. -> [B, N, V]"""
        assert self.prediction is not None
        of_blocks, of_norm, f_BNV, weighted_BNV = saved
        g_BND = input_gradient(self.norm, self.head.input_gradient(weighted_BNV), of_norm)
        for block, of_block in zip(reversed(self.blocks), reversed(of_blocks), strict=True):
            g_BND = functions.input_gradient(block, g_BND, of_block)
        g_BNV = self.prediction.input_gradient(g_BND)
        if self.energy_head == "dot":
            g_BNV = g_BNV - f_BNV
        return g_BNV * context.clues.blank

    @property
    def is_analytic(self) -> bool:
        """Whether the gradient is a formula: no subclass changed the energy or a block without its formula."""
        blocks = {type(block) for block in self.blocks}
        return defines_gradient(type(self), "energy") and all(defines_gradient(kind, "forward") for kind in blocks)

    def energy_and_gradient(self, p_BNV: Tensor, context: PuzzleContext, create_graph: bool) -> tuple[Tensor, Tensor]:
        """The energy [B] and its gradient by predictions [B, N, V], itself differentiable with create_graph."""
        if not self.is_analytic:
            return autograd_gradient(self.energy, p_BNV, context, create_graph)
        functions = self.compiled if torch.is_grad_enabled() and self.compiled is not None else EAGER
        with torch.set_grad_enabled(create_graph):
            energy_B, saved = self.forward_saving(p_BNV, context, functions)
            return energy_B, self.input_gradient(saved, context, functions)

    def compile_energy(self) -> None:
        """Compile the methods of a block that a walk uses, once for all blocks; where grad mode is on."""
        methods = (PuzzleBlock.forward_saving, PuzzleBlock.input_gradient)
        self.compiled = BlockFunctions(*(torch.compile(method, dynamic=False) for method in methods))
