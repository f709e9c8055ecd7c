"""The way ahead and the way back of a layer, written out as plain formulas.

A cached token is thousands of operations on a few numbers each, and autograd's bookkeeping would be most of its time.
And the compiler differentiates once, not twice: where the first derivative is written out, it can take the second.
So the layers of the prediction stream have `ahead`, which gives the value and what the way back needs, and `back`, from
the gradient of the value to that of what it was made from. `tests/models/test_back.py` holds them against autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Kept = tuple[Any, ...]  # tensors, or tuples of them


def ahead(layer: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Kept]:
    """layer(x), by the layer's own way where it has one."""
    own = getattr(layer, "ahead", None)
    return (layer(x), (x,)) if own is None else own(x)


def back(layer: Callable[[Tensor], Tensor], g: Tensor, kept: Kept) -> Tensor:
    """From the gradient of layer(x) to that of x: the layer's own way, else autograd's."""
    own = getattr(layer, "back", None)
    if own is not None:
        return own(g, kept)
    y, pull, *_ = torch.func.vjp(layer, kept[0])
    return pull(g.to(y.dtype))[0]
