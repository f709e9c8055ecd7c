"""The language EBT as slowly and plainly as possible: observed tokens and predictions in one masked sequence.

One row, one head, one position at a time; the energy is differentiated by the prediction itself.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from models.energy_language_model import EnergyLanguageModel
from models.energy_transformer import EnergyTransformer
from tests.reference.transformer import norm as rms_norm
from tests.reference.transformer import rotated

ACTIVATIONS = {
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "relu": lambda x: x * (x > 0),
    "elu": lambda x: torch.where(x > 0, x, torch.exp(x) - 1),
}


def norm(kind: str, layer: Any, x: Tensor) -> Tensor:
    if kind == "rms":
        return rms_norm(x, layer.scale)
    if kind == "layer":
        centred = x - x.mean()
        return centred / torch.sqrt((centred * centred).mean() + 1e-5) * layer.weight + layer.bias
    if kind == "dyt":
        return layer.scale * torch.tanh(layer.slope * x) + layer.shift
    return x


def places(tokens: list[int], separator_id: int | None, time_token: bool) -> list[tuple[str, int, int, int]]:
    """What stands where in [time, o_0 .. o_{S-1}, p_0 .. p_{S-1}]: its kind, index, document and RoPE position."""
    first = int(time_token)
    document, documents = 0, []
    for token in tokens:
        document += token == separator_id
        documents.append(document)
    sequence = [("time", 0, -1, 0)] if time_token else []
    sequence += [("observed", i, d, first + i) for i, d in enumerate(documents)]
    sequence += [("predicted", i, d, first + i + 1) for i, d in enumerate(documents)]
    return sequence


def sees(a: tuple[str, int, int, int], b: tuple[str, int, int, int]) -> bool:
    """Whether the element at place a may look at the element at place b."""
    (kind, i, document, _), (other, j, other_document, _) = a, b
    if other == "time":
        return True
    if other == "predicted":
        return kind == "predicted" and i == j
    return kind != "time" and j <= i and document == other_document


def energies_of_row(network: EnergyTransformer, tokens: list[int], p_SV: Tensor, landscape: int) -> Tensor:
    """The energy of each prediction. [S] tokens, [S, V] predictions -> [S]"""
    shape = network.shape
    D, H = shape.width, shape.heads
    K = D // H
    sequence = places(tokens, shape.separator_id, shape.conditioning == "time_embed")
    mask = [[sees(a, b) for b in sequence] for a in sequence]
    positions = [place[3] for place in sequence]
    table = network.embedding.weight if network.prediction is None else network.prediction.weight.T
    named: Tensor | None = None if network.landscape is None else network.landscape.weight[landscape]
    stream = [named] if shape.conditioning == "time_embed" and named is not None else []
    stream += [network.embedding.weight[token] for token in tokens]
    stream += [p @ table for p in p_SV]
    block: Any
    for block in network.blocks:
        shift, scale, gate, shift2, scale2, gate2 = torch.zeros(6, D, dtype=p_SV.dtype)
        if block.modulation is not None and named is not None:
            six = block.modulation.weight @ (named * torch.sigmoid(named)) + block.modulation.bias
            shift, scale, gate, shift2, scale2, gate2 = six.reshape(6, D)
        qkv = []
        for x in stream:
            normed = norm(shape.norm, block.attention_norm, x) * (1 + scale) + shift
            qkv.append((block.attention.query_key_value.weight @ normed).reshape(3, H, K))
        queries = [rotated(x[0].T, i).T for x, i in zip(qkv, positions, strict=True)]  # each [H, K]
        keys = [rotated(x[1].T, i).T for x, i in zip(qkv, positions, strict=True)]
        for i, x in enumerate(stream):
            seen = [j for j in range(len(stream)) if mask[i][j]]
            heads = []
            for h in range(H):
                scores = [queries[i][h] @ keys[j][h] / math.sqrt(K) for j in seen]
                weights = torch.softmax(torch.stack(scores), dim=0)
                heads.append(sum(w * qkv[j][2, h] for w, j in zip(weights, seen, strict=True)))
            x = x + (1 + gate) * (block.attention.output.weight @ torch.cat(heads))
            normed = norm(shape.norm, block.feed_forward_norm, x) * (1 + scale2) + shift2
            left, right = (block.feed_forward.gate_value.weight @ normed).chunk(2)
            fed = block.feed_forward.output.weight @ (ACTIVATIONS[shape.activation](left) * right)
            stream[i] = x + (1 + gate2) * fed
    predicted = stream[-len(tokens) :]
    return torch.stack([network.head.weight[0] @ norm(shape.norm, network.norm, x) for x in predicted])


def walk_of_row(
    model: EnergyLanguageModel,
    tokens: list[int],
    start_SV: Tensor,
    landscapes: list[int],
    sizes: list[Tensor],
    noises_SV: list[Tensor],
) -> tuple[list[Tensor], list[Tensor]]:
    """The predictions after each step [S, V] and the energies before it [S]; a size is a number or [S, 1]."""
    rule = model.thinking.rule
    y, predictions, energies = start_SV, [], []
    for landscape, size, noise in zip(landscapes, sizes, noises_SV, strict=True):
        y = (y.detach() if rule.detach else y) + noise
        p = torch.softmax(y, dim=-1) if rule.normalize else y
        p = p if p.requires_grad else p.requires_grad_()
        energy = energies_of_row(model.network, tokens, p, landscape)
        (slope,) = torch.autograd.grad(energy.sum(), p, create_graph=True)
        y = (p if rule.from_probabilities else y) - size * slope
        predictions.append(y)
        energies.append(energy)
    return predictions, energies


def loss_of_batch(model: EnergyLanguageModel, rows: Tensor, predictions: list[list[Tensor]]) -> Tensor:
    """The training loss of rows [B, S+1] whose predictions, by row and step [S, V], were found."""
    steps = len(predictions[0])
    wanted = [steps - 1] if model.thinking.last_step_only else range(steps)
    by_step = []
    for t in wanted:
        losses = []
        for row, walk in zip(rows.tolist(), predictions, strict=True):
            for i, target in enumerate(row[1:]):
                if target != model.pad_id:
                    losses.append(torch.logsumexp(walk[t][i], dim=0) - walk[t][i, target])
        by_step.append(sum(losses) / len(losses))
    return sum(by_step) / torch.tensor(len(by_step))


def contrast_of_batch(model: EnergyLanguageModel, rows: Tensor, predictions: list[list[Tensor]]) -> Tensor:
    """How much each found prediction's energy is below the true token's, on the last landscape."""
    network, terms = model.network, []
    landscape = 0 if network.landscape is None else model.thinking.steps - 1
    for row, walk in zip(rows.tolist(), predictions, strict=True):
        truth = F.one_hot(torch.tensor(row[1:]), network.shape.vocab_size).double()
        found = torch.softmax(walk[-1].detach(), dim=-1)
        energies = [energies_of_row(network, row[:-1], p, landscape) for p in (truth, found)]
        better = torch.log1p(torch.exp(energies[0] - energies[1]))
        terms += [better[i] for i, target in enumerate(row[1:]) if target != model.pad_id]
    return torch.stack(terms).mean()
