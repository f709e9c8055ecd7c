"""Transformer++ as slowly and plainly as possible: one row, one head, one position at a time."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from models.transformer import Transformer


def norm(x: Tensor, scale: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean() + 1e-5) * scale


def rotated(x: Tensor, position: int) -> Tensor:
    out = []
    for i in range(0, len(x), 2):
        angle = position * 10_000.0 ** (-i / len(x))
        cos, sin = math.cos(angle), math.sin(angle)
        out += [x[i] * cos - x[i + 1] * sin, x[i] * sin + x[i + 1] * cos]
    return torch.stack(out)


def logits_of_row(model: Transformer, tokens: list[int]) -> Tensor:
    """[S] tokens -> [S, V] logits."""
    shape = model.shape
    D, H = shape.width, shape.heads
    K = D // H
    document, documents = 0, []
    for token in tokens:
        document += token == shape.separator_id
        documents.append(document)
    stream = [model.embedding.weight[token] for token in tokens]
    block: Any
    for block in model.blocks:
        normed = [norm(x, block.attention_norm.scale) for x in stream]
        qkv = [block.attention.query_key_value.weight @ x for x in normed]
        for i in range(len(stream)):
            heads = []
            for h in range(H):
                q = rotated(qkv[i][h * K : (h + 1) * K], i)
                scores, values = [], []
                for j in range(i + 1):
                    if documents[j] != documents[i]:
                        continue
                    k = rotated(qkv[j][D + h * K : D + (h + 1) * K], j)
                    scores.append(q @ k / math.sqrt(K))
                    values.append(qkv[j][2 * D + h * K : 2 * D + (h + 1) * K])
                weights = torch.softmax(torch.stack(scores), dim=0)
                heads.append(sum(w * v for w, v in zip(weights, values, strict=True)))
            stream[i] = stream[i] + block.attention.output.weight @ torch.cat(heads)
        for i, x in enumerate(stream):
            y = norm(x, block.feed_forward_norm.scale)
            gate, value = (block.feed_forward.gate_value.weight @ y).chunk(2)
            stream[i] = x + block.feed_forward.output.weight @ (gate * torch.sigmoid(gate) * value)
    return torch.stack([model.head.weight @ norm(x, model.norm.scale) for x in stream])
