"""Models of puzzles as slowly and plainly as possible: one row, one head, one cell at a time."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from models.model import Batch
from models.puzzle_transformer import PuzzleTransformer
from tests.reference.transformer import norm


def cells_of_row(batch: Batch, row: int) -> list[int]:
    """The cells that are no padding."""
    return [i for i, real in enumerate(batch["real"][row].tolist()) if real]


def embedded(network: PuzzleTransformer, batch: Batch, row: int) -> dict[int, Tensor]:
    """The embedding of each cell."""
    fields: Any = network.fields
    coordinates: Any = network.coordinates
    stream = {}
    for i in cells_of_row(batch, row):
        x = torch.zeros(network.shape.width, dtype=torch.float64)
        for table, value in zip(fields, batch["inputs"][row, i].tolist(), strict=True):
            x = x + table.weight[value]
        for table, places in zip(coordinates, network.shape.positions, strict=True):
            x = x + table.weight[places[i]]
        stream[i] = x
    return stream


def through_blocks(network: PuzzleTransformer, stream: dict[int, Tensor]) -> dict[int, Tensor]:
    D, H = network.shape.width, network.shape.heads
    K = D // H
    block: Any
    for block in network.blocks:
        qkv = {}
        for i, x in stream.items():
            qkv[i] = block.attention.query_key_value.weight @ norm(x, block.attention_norm.scale)
        after = {}
        for i, x in stream.items():
            heads = []
            for h in range(H):
                q = qkv[i][h * K : (h + 1) * K]
                scores = torch.stack([q @ qkv[j][D + h * K : D + (h + 1) * K] / math.sqrt(K) for j in stream])
                weights = torch.softmax(scores, dim=0)
                values = [qkv[j][2 * D + h * K : 2 * D + (h + 1) * K] for j in stream]
                heads.append(sum(w * v for w, v in zip(weights, values, strict=True)))
            x = x + block.attention.output.weight @ torch.cat(heads)
            gate, value = (block.feed_forward.gate_value.weight @ norm(x, block.feed_forward_norm.scale)).chunk(2)
            after[i] = x + block.feed_forward.output.weight @ (gate * torch.sigmoid(gate) * value)
        stream = after
    return stream


def readout(network: PuzzleTransformer, stream: dict[int, Tensor]) -> dict[int, Tensor]:
    scale: Any = network.norm.scale
    return {i: network.head.weight @ norm(x, scale) for i, x in stream.items()}


def logits_of_row(
    network: PuzzleTransformer, batch: Batch, row: int, loops: int = 1, state_scale: Tensor | None = None
) -> dict[int, Tensor]:
    """The logits of each cell after so many loops. state_scale: of the norm of what is fed back."""
    x = embedded(network, batch, row)
    s = through_blocks(network, x)
    for _ in range(loops - 1):
        assert state_scale is not None
        s = through_blocks(network, {i: norm(s[i], state_scale) + x[i] for i in x})
    return readout(network, s)


def energy_of_row(network: PuzzleTransformer, batch: Batch, row: int, p: dict[int, Tensor], tau: Tensor) -> Tensor:
    """The energy with its entropy term, of distributions p in blank cells."""
    x = embedded(network, batch, row)
    given = batch["given"][row].tolist()
    assert network.prediction is not None
    seen, stream = {}, {}
    for i, one in x.items():
        clue = torch.zeros(network.shape.symbols, dtype=torch.float64)
        if given[i] >= 0:
            clue[given[i]] = 1
        seen[i] = p[i] if given[i] < 0 else clue
        stream[i] = one + network.prediction.weight @ seen[i]
    f = readout(network, through_blocks(network, stream))
    if network.energy_head == "linear":
        return torch.stack([f[i][0] for i in x]).sum()
    entropy = sum((p[i] * torch.log(p[i])).sum() for i in p)
    return -torch.stack([seen[i] @ f[i] for i in x]).sum() + tau * entropy


def walk_of_row(
    network: PuzzleTransformer, batch: Batch, row: int, start: Tensor, sizes: list[Tensor], tau: Tensor
) -> tuple[list[dict[int, Tensor]], list[Tensor]]:
    """y of each blank cell after each step, and the energies before it: mirror descent, down the whole energy by p.

    The gradient of p log p by p is log p + 1, which differs from y by what softmax does not see; so the step takes the
    entropy's part as tau y.
    """
    blank = [i for i in cells_of_row(batch, row) if batch["given"][row, i] < 0]
    y = {i: start[row, i] for i in blank}
    predictions, energies = [], []
    for size in sizes:
        p = {i: torch.softmax(y[i], dim=0) for i in blank}
        p = {i: one if one.requires_grad else one.requires_grad_() for i, one in p.items()}
        energies.append(energy_of_row(network, batch, row, p, tau))
        plain = energy_of_row(network, batch, row, p, torch.zeros((), dtype=torch.float64))
        slopes = torch.autograd.grad(plain, list(p.values()), create_graph=True)
        decay = tau if network.energy_head == "dot" else 0.0
        y = {i: y[i] - size * (slope + decay * y[i]) for i, slope in zip(blank, slopes, strict=True)}
        predictions.append(y)
    return predictions, energies


def loss_of_batch(batch: Batch, predictions: list[dict[int, Tensor]]) -> Tensor:
    """The mean over all blank cells of one step's losses; predictions: by row."""
    losses = [
        torch.logsumexp(y, dim=0) - y[int(batch["answer"][row, i])]
        for row, cells in enumerate(predictions)
        for i, y in cells.items()
        if batch["answer"][row, i] >= 0 and batch["given"][row, i] < 0
    ]
    return torch.stack(losses).mean()
