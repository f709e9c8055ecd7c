"""Values together with what carries a gradient back through them, where nobody will differentiate that gradient.

A cached token is thousands of operations on a few numbers each, and autograd's bookkeeping would be most of its time.
So the layers of the prediction stream have their own backward pass: `and_back` gives the value and a function from the
gradient of the value to that of what it was made from. `tests/models/test_back.py` holds it against autograd.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Back = Callable[[Tensor], Tensor]


def and_back(layer: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Back]:
    """layer(x), and its back: the layer's own where it has one, else autograd's."""
    own = getattr(layer, "and_back", None)
    if own is not None:
        return own(x)
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        y = layer(leaf)
    return y.detach(), lambda g: torch.autograd.grad(y, leaf, g.to(y.dtype))[0]
