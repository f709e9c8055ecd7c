"""The language EBT as slowly and plainly as possible, as published code computes it.

One row, one head, one position at a time; the energy is differentiated by the prediction itself.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from models.energy_transformer import EnergyShape, EnergyTransformer
from models.language import EnergyLM
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


def modulations(block: Any, named: Tensor | None, D: int, like: Tensor) -> Tensor:
    """Shift, scale and gate of attention and of feed-forward, [6, D]."""
    if block.modulation is None or named is None:
        return torch.zeros(6, D, dtype=like.dtype)
    return (block.modulation.weight @ (named * torch.sigmoid(named)) + block.modulation.bias).reshape(6, D)


def through_block(
    block: Any, shape: EnergyShape, named: Tensor | None, x: Tensor, place: int, seen: list[tuple[Tensor, int]]
) -> Tensor:
    """What a block makes of x at this place, who sees others at their places, and itself."""
    D, H = shape.width, shape.heads
    K = D // H
    shift, scale, gate, shift2, scale2, gate2 = modulations(block, named, D, x)

    def project(x: Tensor) -> Tensor:
        normed = norm(shape.norm, block.attention_norm, x) * (1 + scale) + shift
        return (block.attention.query_key_value.weight @ normed).reshape(3, H, K)

    everyone = [*seen, (x, place)]
    qkv = [project(other) for other, _ in everyone]
    query = rotated(qkv[-1][0].T, place).T  # [H, K]
    keys = [rotated(one[1].T, i).T for one, (_, i) in zip(qkv, everyone, strict=True)]
    heads = []
    for h in range(H):
        weights = torch.softmax(torch.stack([query[h] @ key[h] / math.sqrt(K) for key in keys]), dim=0)
        heads.append(sum(w * one[2, h] for w, one in zip(weights, qkv, strict=True)))
    x = x + (1 + gate) * (block.attention.output.weight @ torch.cat(heads))
    normed = norm(shape.norm, block.feed_forward_norm, x) * (1 + scale2) + shift2
    left, right = (block.feed_forward.gate_value.weight @ normed).chunk(2)
    return x + (1 + gate2) * (block.feed_forward.output.weight @ (ACTIVATIONS[shape.activation](left) * right))


Observed = list[list[tuple[Tensor, int]]]  # before each block and after the last: elements with their places


def observed_of_row(network: EnergyTransformer, tokens: list[int], landscape: int) -> Observed:
    """The observed stream, the time token first where there is one."""
    shape = network.shape
    named = None if network.landscape is None else network.landscape.weight[landscape]
    time = shape.conditioning == "time_embed"
    stream = [named] if time and named is not None else []
    stream += [network.embedding.weight[token] for token in tokens]
    layers = [list(zip(stream, range(len(stream)), strict=True))]
    for block in network.blocks:
        before = layers[-1]
        after = []
        for i, (x, place) in enumerate(before):
            seen = [before[j] for j in range(i) if sees(tokens, i - time, j - time, shape.separator_id)]
            after.append((through_block(block, shape, named, x, place, seen), place))
        layers.append(after)
    return layers


def sees(tokens: list[int], i: int, j: int, separator_id: int | None) -> bool:
    """Whether position i may look at position j <= i: no document begins between them; the time token is at -1."""
    return j == -1 or separator_id not in tokens[j + 1 : i + 1]


def prior_of_row(network: EnergyTransformer, tokens: list[int], landscape: int) -> Tensor:
    """The logits of the Transformer++ in a residual energy, [S, V]."""
    end = observed_of_row(network, tokens, landscape)[network.shape.enter][-len(tokens) :]
    return torch.stack([network.embedding.weight @ norm(network.shape.norm, network.norm, x) for x, _ in end])


def energies_of_row(network: EnergyTransformer, tokens: list[int], p_SV: Tensor, landscape: int) -> Tensor:
    """The energy of each prediction. [S] tokens, [S, V] predictions -> [S]"""
    shape = network.shape
    time = int(shape.conditioning == "time_embed")
    named = None if network.landscape is None else network.landscape.weight[landscape]
    layers = observed_of_row(network, tokens, landscape)
    table = network.embedding.weight if network.prediction is None else network.prediction.weight.T
    energies = []
    for i, p in enumerate(p_SV):
        z = p @ table
        hidden = layers[shape.enter][time + i][0]
        u = z + hidden if shape.form == "residual" else z
        for before, block in list(zip(layers, network.blocks, strict=False))[shape.enter :]:
            seen = [before[time + j] for j in range(-time, i + 1) if sees(tokens, i, j, shape.separator_id)]
            u = through_block(block, shape, named, u, time + i + 1, seen)
        if shape.form == "residual":
            h = norm(shape.norm, network.norm, hidden)
            correction = (network.head.weight @ h) @ norm(shape.norm, network.energy_norm, u)
            energies.append(correction - z @ h + (p * torch.log(p)).sum())
        else:
            energies.append(network.head.weight[0] @ norm(shape.norm, network.norm, u))
    return torch.stack(energies)


def walk_of_row(
    model: EnergyLM,
    tokens: list[int],
    start_SV: Tensor,
    landscapes: list[int],
    size: Tensor,
    noises_SV: list[Tensor],
) -> tuple[list[Tensor], list[Tensor]]:
    """The predictions after each step [S, V] and the energies before it [S]; the size is a number or [S, 1].

    Truncated: the slopes of all steps but the last are constants.
    """
    rule = model.rule
    y, predictions, energies = start_SV, [], []
    for t, (landscape, noise) in enumerate(zip(landscapes, noises_SV, strict=True)):
        y = (y.detach() if model.walk_settings.detach else y) + noise
        p = torch.softmax(y, dim=-1) if rule.normalize else y
        p = p if p.requires_grad else p.requires_grad_()
        energy = energies_of_row(model.network, tokens, p, landscape)
        (slope,) = torch.autograd.grad(energy.sum(), p, create_graph=True)
        if model.walk_settings.truncate and t < len(landscapes) - 1:
            slope = slope.detach()
        y = (p if rule.from_probabilities else y) - size * slope
        predictions.append(y)
        energies.append(energy)
    return predictions, energies


def loss_of_batch(model: EnergyLM, rows: Tensor, predictions: list[list[Tensor]]) -> Tensor:
    """The training loss of rows [B, S+1] whose predictions, by row and step [S, V], were found."""
    steps = len(predictions[0])
    counted_steps = [steps - 1] if model.walk_settings.last_step_only or model.walk_settings.truncate else range(steps)
    by_step = []
    for t in counted_steps:
        losses = []
        for row, walk in zip(rows.tolist(), predictions, strict=True):
            for i, target in enumerate(row[1:]):
                if target != model.pad_id:
                    losses.append(torch.logsumexp(walk[t][i], dim=0) - walk[t][i, target])
        by_step.append(sum(losses) / len(losses))
    return sum(by_step) / torch.tensor(len(by_step))


def contrast_of_batch(model: EnergyLM, rows: Tensor, energies: list[list[Tensor]]) -> Tensor:
    """How much the energy before the last step is below the true token's, on the last landscape."""
    network, terms = model.network, []
    landscape = 0 if network.landscape is None else model.walk_settings.landscapes - 1
    for row, walk in zip(rows.tolist(), energies, strict=True):
        truth = F.one_hot(torch.tensor(row[1:]), network.shape.vocab_size).double()
        better = torch.log1p(torch.exp(energies_of_row(network, row[:-1], truth, landscape) - walk[-1]))
        terms += [better[i] for i, target in enumerate(row[1:]) if target != model.pad_id]
    return torch.stack(terms).mean()
