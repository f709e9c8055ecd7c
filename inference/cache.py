"""Keys and values of what a model has read, so that a new token costs one position and not the whole text again."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from models.layers.attention import Past
from models.transformer import Shape


class Cache:
    """Keys and values of all layers, for rows of at most `columns` positions.

    There is one column more, which stays empty: the place of a prediction's own score (see `attend`). What lies behind
    the end of a row is finite, and never looked at.
    """

    def __init__(self, shape: Shape, rows: int, columns: int, like: Tensor) -> None:
        size = (shape.layers, rows, shape.heads, columns + 1, shape.width // shape.heads)
        self.keys = like.new_zeros(size)
        self.values = like.new_zeros(size)

    @staticmethod
    def bytes_needed(shape: Shape, rows: int, columns: int, element: int = 4) -> int:
        return 2 * shape.layers * rows * (columns + 1) * shape.width * element

    def fill(self, rows: Tensor) -> list[Past]:
        """For each layer what keeps positions 0, 1, ... of these rows, which look at nothing earlier."""

        def keep(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            length = keys.shape[2]
            self.keys[layer, rows, :, :length] = keys
            self.values[layer, rows, :, :length] = values
            return keys, values

        return [partial(keep, layer) for layer in range(len(self.keys))]

    def extend(self, columns_B: Tensor, used: int) -> list[Past]:
        """For each layer what keeps one more position of every row, and gives the first `used` of them all."""
        rows = torch.arange(len(columns_B), device=columns_B.device)

        def keep(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            self.keys[layer][rows, :, columns_B] = keys[:, :, 0]
            self.values[layer][rows, :, columns_B] = values[:, :, 0]
            return self.keys[layer, :, :, :used], self.values[layer, :, :, :used]

        return [partial(keep, layer) for layer in range(len(self.keys))]

    def first(self, used: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer, [B, H, used, K]: views, not copies."""
        return [(keys[:, :, :used], values[:, :, :used]) for keys, values in zip(self.keys, self.values, strict=True)]

    def keep(self, rows: Tensor) -> None:
        """Forget all rows but these."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]
